"""PyTorch's DDP goes on without a rank that is killed, and takes it back: the losses are those of one process."""

import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import lanterne
import lanterne.torch

# Of a batch, rows for 1, 2, 3 or 4 ranks alike.
STEPS, ROWS, RANKS, VICTIM = 60, 24, 4, 2


def batch(step: int) -> torch.Tensor:
    return torch.randn(ROWS, 32, generator=torch.Generator().manual_seed(step))


def loss_of(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    return (model(rows) - rows.flip(1)).square().mean()


def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
    return model, torch.optim.SGD(model.parameters(), 0.05)


def open_group(comm: lanterne.Communicator) -> None:
    """torch's default group, of the ranks of `comm` and over it."""
    if dist.is_initialized():
        dist.destroy_process_group()
    port = np.zeros(1, np.int64)
    if comm.rank == 0:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port[0] = free.getsockname()[1]
    comm.broadcast(port)
    dist.init_process_group(
        "lanterne",
        init_method=f"tcp://127.0.0.1:{port[0]}",
        rank=comm.rank,
        world_size=comm.world_size,
        pg_options=lanterne.torch.Options(communicator=comm),
    )


def agree(comm: lanterne.Communicator, step: int, model: torch.nn.Module) -> int:
    """Have the weights of the rank that is furthest, and its step; a new one has step -1; if all are new it begins."""
    steps = np.empty(comm.world_size, np.int64)
    comm.all_gather(np.array([step]), steps)
    for weights in model.parameters():
        comm.broadcast(weights.detach().numpy(), root=int(steps.argmax()))
    return max(0, int(steps.max()))


def main() -> None:
    """One rank."""
    comm = lanterne.init(timeout_s=20)
    model, optimizer = fresh()
    ddp: torch.nn.Module = model
    step, losses, changed = -1 if comm.epoch else 0, {}, True
    while True:
        try:
            if changed:
                step = agree(comm, step, model)
                open_group(comm)
                ddp = DistributedDataParallel(model)
                print(f"step {step}: rank {comm.rank} of {comm.world_size}, new: {comm.newcomers}", flush=True)
            if step == STEPS:
                break
            if step == 10 and not comm.epoch and comm.rank == VICTIM and comm.world_size == RANKS:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            loss = loss_of(ddp, batch(step).chunk(comm.world_size)[comm.rank])
            loss.backward()
            mean = loss.detach().double().reshape(1).numpy()
            comm.all_reduce(mean, mean, "mean")
            optimizer.step()
            losses[step] = mean[0]
            step += 1
            time.sleep(0.2 if comm.world_size < RANKS else 0.01)  # This model is too quick for a process to start.
            after = comm.grow()
        except RuntimeError as error:
            # Also lanterne.TransportError is one; from backward it comes as a plain RuntimeError that tells of it.
            if not isinstance(error, lanterne.TransportError) and "lanterne: " not in str(error):
                raise
            print(f"step {step}: {error}".partition("\n")[0], flush=True)
            after = comm.shrink()
        changed, comm = after is not comm, after
    if comm.rank == 0:
        model, optimizer = fresh()
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, batch(step))
            loss.backward()
            optimizer.step()
            mine = losses.get(step, float(loss.detach()))  # of a step during which others died it may not have heard
            assert abs(mine - float(loss.detach())) < 1e-5 * mine, (step, mine, float(loss.detach()))
        print(f"{STEPS} losses are those of one process: {losses[0]:.4f} to {losses[STEPS - 1]:.4f}")
    dist.destroy_process_group()
    comm.close()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        launch = [sys.executable, "-m", "lanterne", "launch", "-n", str(RANKS), "--restarts", "1", "--"]
        sys.exit(subprocess.run([*launch, sys.executable, __file__], check=False).returncode)
