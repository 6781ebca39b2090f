"""PyTorch's DDP goes on without a rank that is killed, and takes it back: the losses are those of one process."""

import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist

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
    return model, torch.optim.AdamW(model.parameters(), 0.01)


def main() -> None:
    """One rank."""
    model, optimizer = fresh()
    losses: dict[int, torch.Tensor] = {}

    def train_step(ddp: torch.nn.Module, step: int) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        if step == 10 and rank == VICTIM and size == RANKS and "LANTERNE_JOIN" not in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = loss_of(ddp, batch(step).chunk(size)[rank])
        loss.backward()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        optimizer.step()
        losses[step] = mean
        time.sleep(0.2 if size < RANKS else 0.01)  # This model is too quick for a process to start.

    lanterne.torch.run_resilient(train_step, model, optimizer, steps=STEPS, timeout_s=20)
    if len(losses) == STEPS:
        model, optimizer = fresh()
        for step in range(STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, batch(step))
            loss.backward()
            optimizer.step()
            assert abs(losses[step] - loss.detach()) < 1e-5 * losses[step], (step, losses[step], loss)
        os.write(1, f"{STEPS} losses are those of one process: {losses[0]:.4f} to {losses[STEPS - 1]:.4f}\n".encode())


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        launch = [sys.executable, "-m", "lanterne", "launch", "-n", str(RANKS), "--restarts", "1", "--"]
        sys.exit(subprocess.run([*launch, sys.executable, __file__], check=False).returncode)
