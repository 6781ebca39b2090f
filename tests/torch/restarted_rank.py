"""One rank of a job of torchrun's: rank 1 dies in DDP's backward pass the first time that all are started."""

import os
import signal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import lanterne.torch  # noqa: F401

RESTART = int(os.environ["TORCHELASTIC_RESTART_COUNT"])

dist.init_process_group("lanterne")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
for step in range(4):
    if RESTART == 0 and step == 2 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    model(torch.ones(2, 64)).sum().backward()
# One write: ranks share a pipe.
os.write(1, f"restart {RESTART} rank {dist.get_rank()}\n".encode())
dist.destroy_process_group()
