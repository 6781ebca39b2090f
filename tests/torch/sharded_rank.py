"""One rank of test_resilient.py: FSDP2 by run_resilient_sharded, where ranks die in a backward pass and behind a step.

Prints a line of JSON: by how much the weights differ from those of one process, how often `train_step` was called, and
the longest time between two calls.
`sharded_rank.py SHAPE DEATHS`: SHAPE is fsdp or hsdp (copies of shards, where ranks are even in number). DEATHS is a
list such as 4:1,5+2,make3:0: rank 1 dies in the backward pass of step 4, rank 2 after the optimizer's step 5, rank 0 in
the third call of `make`. "unreadable" in it gives the schedule a state that cannot be read again.
"""

import json
import os
import signal
import sys
import time
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import lanterne.torch

STEPS, ROWS, LATE = 20, 12, 3


class Net(torch.nn.Module):
    """Layers whose sizes no number of ranks divides, one smaller than there are ranks, and a buffer.

    One layer is frozen, and one is used from step LATE on: the optimizer's state grows then.
    """

    step = 0

    def __init__(self):
        super().__init__()
        self.first, self.last, self.late = torch.nn.Linear(16, 31), torch.nn.Linear(31, 16), torch.nn.Linear(16, 16)
        self.frozen = torch.nn.Linear(16, 16).requires_grad_(False)
        self.scale = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        y = self.last(torch.tanh(self.first(self.frozen(x)))) * self.scale.sum()
        return y + self.late(x) if self.step >= LATE else y


def batch(step):
    return torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(step))


def loss_of(model, rows):
    return (model(rows) - rows.flip(1)).square().mean()


def fresh(shard=lambda model: None):
    torch.manual_seed(0)
    model = Net()
    shard(model)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 0.01)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)


def main():
    shape, deaths, started = sys.argv[1], sys.argv[2].split(","), os.environ["RANK"]
    makes = 0
    is_first, made, began_s = "LANTERNE_JOIN" not in os.environ, [], []

    def shard(model):
        size = dist.get_world_size()
        replicas = 2 if shape == "hsdp" and size % 2 == 0 else 1
        mesh = init_device_mesh("cpu", (replicas, size // replicas), mesh_dim_names=("replicas", "shards"))
        for layer in (model.first, model.last, model.late, model.frozen, model):
            fully_shard(layer, mesh=mesh)

    def make():
        nonlocal makes
        makes += 1
        if is_first and f"make{makes}:{started}" in deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        made[:] = fresh(shard)
        if "unreadable" in deaths:
            made[2].state_dict = lambda: {"rate": np.float64(1)}
        return made

    def train_step(model, optimizer, schedule, step):
        began_s.append(time.monotonic())
        rank, size = dist.get_rank(), dist.get_world_size()
        optimizer.zero_grad()
        model.step = step
        loss = loss_of(model, batch(step).chunk(size)[rank])
        if is_first and f"{step}:{started}" in deaths:
            loss.register_hook(lambda _gradient: os.kill(os.getpid(), signal.SIGKILL))
        loss.backward()
        optimizer.step()
        if is_first and f"{step}+{started}" in deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        schedule.step()
        # A process takes seconds to start.
        time.sleep(1.0 if size < int(os.environ["RANKS"]) else 0.0)

    lanterne.torch.run_resilient_sharded(train_step, make, steps=STEPS, timeout_s=20)
    assert len(made[1].state_dict()["state"]) == 7
    pause_s = max((after - before for before, after in pairwise(began_s)), default=0.0)
    found = {"calls": len(began_s), "is_first": is_first, "seen": float(made[0].seen), "longest_pause_s": pause_s}
    alone, optimizer, schedule = fresh()
    for step in range(STEPS):
        optimizer.zero_grad()
        alone.step = step
        loss_of(alone, batch(step)).backward()
        optimizer.step()
        schedule.step()
    differences = []
    for one, other in zip(made[0].parameters(), alone.parameters(), strict=True):
        (chunk,) = one.__create_chunk_list__()
        part = other[chunk.offsets[0] : chunk.offsets[0] + chunk.sizes[0]] if chunk.sizes[0] else other[:0]
        assert isinstance(one, DTensor)
        assert one.to_local().shape == part.shape
        differences += [float((one.to_local() - part).detach().abs().max())] if part.numel() else []
    os.write(1, f"{json.dumps(found | {'difference': max(differences)})}\n".encode())


if __name__ == "__main__":
    main()
