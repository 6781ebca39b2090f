"""The jobs of ddp_deaths.py: `python ddp_deaths_rank.py RANKS` loads PyTorch, then forks a job for each line it reads.

A line is a folder, where the ranks meet, say that they train, and write what they are told. A rank ends as any program
does: so that a crash on the way out is seen.
"""

import faulthandler
import gc
import importlib
import json
import os
import sys
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# Like a user's program: no other part of lanterne needs its backend.
importlib.import_module("lanterne.torch")

LAYERS, WIDTH, CAP_MB = 8, 192, 0.25
# Of init_process_group: a rank that died before it had come is waited for so long.
TIMEOUT_S = 20.0
# Who does not end so long after it was told says where it is, and is ended.
END_S = 15.0


def main() -> None:
    """Fork jobs until the input ends; the ranks themselves return too."""
    ranks = int(sys.argv[1])
    # Else the first collection in each rank, and the one at its end, copy all that was loaded: seconds.
    gc.freeze()
    _tell(ready=True)
    while folder := sys.stdin.readline().strip():
        pids: list[int] = []
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                be_rank(folder, rank, ranks)
                return
            pids.append(pid)
        _tell(pids=pids)
        _tell(codes=[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids])


def _tell(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def be_rank(folder: str, rank: int, ranks: int) -> None:
    """Train until something goes wrong, and write what."""
    errors = os.open(f"{folder}/stderr-{rank}", os.O_WRONLY | os.O_CREAT)
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY), errors)):
        os.dup2(file, number)
    try:
        train(folder, rank, ranks)
    except RuntimeError as error:
        found = {"told": f"{type(error).__name__}: {error}", "at_s": time.monotonic()}
        with open(f"{folder}/told-{rank}.new", "w") as out:
            json.dump(found, out)
        os.rename(f"{folder}/told-{rank}.new", f"{folder}/told-{rank}")
    faulthandler.dump_traceback_later(END_S, exit=True)
    # Some programs do not, and end with the group as it is.
    if rank % 2 and dist.is_initialized():
        with suppress(RuntimeError):
            dist.destroy_process_group()


def train(folder: str, rank: int, ranks: int) -> None:
    """Train a model by DDP, for ever."""
    torch.manual_seed(0)
    dist.init_process_group(
        "lanterne",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
    layers = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    model: Any = DistributedDataParallel(layers, bucket_cap_mb=CAP_MB)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    steps = 0
    while True:
        model(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps == 2:
            with open(f"{folder}/trains-{rank}", "w"):
                pass


if __name__ == "__main__":
    main()
