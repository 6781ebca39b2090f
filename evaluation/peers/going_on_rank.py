"""One rank of a job of going_on.py: it trains by DDP over lanterne, torchft or both, and writes when each step ends.

  python -P going_on_rank.py CONTENDER FOLDER VICTIM STEP

Rank VICTIM ends itself (SIGKILL) at the beginning of step STEP, once. FOLDER gets a file of each process: its rank and
when it began, then a line for each step: when it was done, and of how many ranks. Times are of time.monotonic, which
processes of a host share.
"""

import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BEGAN_S = time.monotonic()
# Steps with all ranks again, and what one takes at least: a job must not be over before a process has started.
MORE_STEPS, STEP_S = 5, 0.02
TIMEOUT_S = 20.0
# Of calls between torchft's replicas.
GROUP_TIMEOUT = timedelta(seconds=5)


class Steps:
    """What a process tells of its steps; ends it where it is to die."""

    def __init__(self, folder: str, rank: int, ranks: int, victim: int, step: int) -> None:
        self._file = Path(folder, f"told-{rank}-{os.getpid()}").open("w", buffering=1)  # noqa: SIM115 (open until the process dies)
        self._file.write(f"{rank} {BEGAN_S}\n")
        self._ranks = ranks
        self._dies = rank == victim and not Path(folder, "killed").exists()
        self._killed, self._step = Path(folder, "killed"), step
        self._was_fewer = not self._dies and self._killed.exists()
        self._more = MORE_STEPS

    def begin(self, step: int, ranks: int) -> None:
        """Step `step` begins, of `ranks`."""
        if self._dies and ranks == self._ranks and step >= self._step:
            self._killed.write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)

    def done(self, ranks: int) -> bool:
        """A step of `ranks` is done; whether that was the last."""
        self._file.write(f"{time.monotonic()} {ranks}\n")
        self._was_fewer |= ranks < self._ranks and self._killed.exists()
        self._more -= self._was_fewer and ranks == self._ranks
        return self._more <= 0


def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The model, the same on all ranks, and its optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
    return model, torch.optim.SGD(model.parameters(), 0.05)


def losses(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """The loss of batch after batch."""
    chance = torch.Generator().manual_seed(0)
    while True:
        rows = torch.randn(8, 32, generator=chance)
        yield (model(rows) - rows.flip(1)).square().mean()


def over_lanterne(folder: str, victim: int, last: int) -> None:
    """As examples/torch_go_on.py has it."""
    import numpy as np

    import lanterne

    # Like a user's program: no other part of lanterne needs its backend.
    options = importlib.import_module("lanterne.torch").Options
    comm = lanterne.init(timeout_s=TIMEOUT_S)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    model, optimizer = fresh()
    tells = Steps(folder, rank, ranks, victim, last)
    step, changed, is_last = -1 if comm.epoch else 0, True, False
    while not is_last:
        try:
            if changed:
                steps = np.empty(comm.world_size, np.int64)
                comm.all_gather(np.array([step]), steps)
                step = max(0, int(steps.max()))
                for weights in model.parameters():
                    comm.broadcast(weights.detach().numpy(), root=int(steps.argmax()))
                if dist.is_initialized():
                    dist.destroy_process_group()
                met = f"{folder}/store-{comm.epoch}-{comm.communicator_id}-{comm.world_size}-{step}"
                dist.init_process_group(
                    "lanterne",
                    store=dist.FileStore(met),
                    rank=comm.rank,
                    world_size=comm.world_size,
                    pg_options=options(communicator=comm),
                )
                loss = losses(DistributedDataParallel(model))
            tells.begin(step, comm.world_size)
            optimizer.zero_grad()
            next(loss).backward()
            optimizer.step()
            step += 1
            is_last = tells.done(comm.world_size)
            time.sleep(STEP_S)
            after = comm.grow()
        except RuntimeError as error:
            if not isinstance(error, lanterne.TransportError) and "lanterne: " not in str(error):
                raise
            after = comm.shrink()
        changed, comm = after is not comm, after
    dist.destroy_process_group()
    comm.close()


def over_torchft(folder: str, victim: int, last: int) -> None:
    """As the README of torchft has it: a replica group of one process each, DDP between them over Gloo."""
    from torchft import ProcessGroupGloo

    under_torchft(ProcessGroupGloo(timeout=GROUP_TIMEOUT), folder, victim, last)


def over_both(folder: str, victim: int, last: int) -> None:
    """As `over_torchft`, over lanterne in place of Gloo."""
    group = importlib.import_module("lanterne.torch").ReconfigurableGroup
    under_torchft(group(GROUP_TIMEOUT), folder, victim, last)


def under_torchft(group: dist.ProcessGroup, folder: str, victim: int, last: int) -> None:
    """torchft says who is in `group`."""
    from torchft import Manager, Optimizer

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    model, inner = fresh()
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=group,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        min_replica_size=2,
        timeout=timedelta(seconds=TIMEOUT_S),
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        replica_id=f"rank_{rank}_",
    )
    optimizer = Optimizer(manager, inner)
    tells, is_last, loss = Steps(folder, rank, ranks, victim, last), False, losses(model)
    while not is_last:
        step = manager.current_step()
        optimizer.zero_grad()
        now = next(loss)
        tells.begin(step, manager.num_participants())
        now.backward()
        # Of its own wrappers DistributedDataParallel ends in an AssertionError after a death (0.2.0 with PyTorch 2.13),
        # and PureDistributedDataParallel waits for no sum.
        for work in [manager.allreduce(weights.grad) for weights in model.parameters()]:
            work.wait()
        optimizer.step()
        if manager.current_step() > step:
            is_last = tells.done(manager.num_participants())
        time.sleep(STEP_S)
    manager.shutdown()


CONTENDERS = {"lanterne": over_lanterne, "torchft": over_torchft, "torchft-lanterne": over_both}

if __name__ == "__main__":
    name, into, who, when = sys.argv[1:]
    CONTENDERS[name](into, int(who), int(when))
