"""One rank of test_rebalancing.py: DDP with microbatches by speed, beside one process with the whole batch.

`rebalanced_rank.py BACKEND`. Prints JSON: the counts after each step and by how much the weights differ.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

import lanterne.torch

STEPS, MICROBATCHES, ROWS, SLOW = 24, 24, 2, 1
# Rank SLOW takes three times as long in these steps.
SLOW_STEPS = range(2, 14)


def microbatch(step, number):
    return torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(1000 * step + number))


def loss_of(model, rows):
    return (model(rows) - rows.flip(1)).square().mean()


def fresh():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))
    return model


def main():
    dist.init_process_group(sys.argv[1])
    ddp = torch.nn.parallel.DistributedDataParallel(fresh())
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1, momentum=0.9)
    shares = lanterne.torch.rebalance(ddp, MICROBATCHES, every=4)
    counts = []
    for step in range(STEPS):
        seen = 0
        for number in shares:
            seen += 1
            time.sleep(0.03 if dist.get_rank() == SLOW and step in SLOW_STEPS else 0.01)
            (loss_of(ddp, microbatch(step, number)) * shares.weight).backward()
        assert seen == shares.counts[dist.get_rank()]
        optimizer.step()
        optimizer.zero_grad()
        counts.append(shares.counts)
    alone = fresh()
    optimizer = torch.optim.SGD(alone.parameters(), 0.1, momentum=0.9)
    for step in range(STEPS):
        for number in range(MICROBATCHES):
            (loss_of(alone, microbatch(step, number)) / MICROBATCHES).backward()
        optimizer.step()
        optimizer.zero_grad()
    pairs = zip(ddp.module.parameters(), alone.parameters(), strict=True)
    difference = max(float((one - other).detach().abs().max()) for one, other in pairs)
    os.write(1, f"{json.dumps({'name': 'found', 'said': [counts, difference]})}\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
