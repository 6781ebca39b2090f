"""One rank of test_resilient.py: DDP by run_resilient, where ranks die in a backward pass and behind a step.

Prints a line of JSON: by how much the weights differ from those of one process, and how often `train_step` was called.
`resilient_rank.py KIND` trains on that device.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("lag")))

import lag_device
import torch
import torch.distributed as dist

import lanterne.torch

STEPS, ROWS = 24, 12
# Step: rank that dies in it.
IN_BACKWARD, BEHIND_STEP = {6: 1}, {14: 2}


def batch(step):
    return torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(step))


def fresh(kind="cpu"):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16)).to(kind)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.5)


def loss_of(model, rows):
    return (model(rows) - rows.flip(1)).square().mean()


def weights_of(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def main():
    kind = sys.argv[1]
    if kind == lag_device.KIND:
        lag_device.use()
    model, optimizer, schedule = fresh(kind)
    calls = 0
    is_first = "LANTERNE_JOIN" not in os.environ

    def die(step, deaths):
        if is_first and deaths.get(step) == dist.get_rank():
            os.kill(os.getpid(), signal.SIGKILL)

    def train_step(ddp, step):
        nonlocal calls
        calls += 1
        rank, size = dist.get_rank(), dist.get_world_size()
        optimizer.zero_grad()
        loss = loss_of(ddp, batch(step).chunk(size)[rank].to(kind))
        hook = model[0].weight.register_hook(lambda _gradient: die(step, IN_BACKWARD))
        loss.backward()
        hook.remove()
        optimizer.step()
        schedule.step()
        # A process takes seconds to start.
        time.sleep(1.0 if size < 3 else 0.0)
        die(step, BEHIND_STEP)

    lanterne.torch.run_resilient(train_step, model, optimizer, schedule, steps=STEPS, timeout_s=20)
    alone, optimizer, schedule = fresh()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(alone, batch(step)).backward()
        optimizer.step()
        schedule.step()
    difference = float((weights_of(model).cpu() - weights_of(alone)).abs().max())
    os.write(1, f"{json.dumps({'difference': difference, 'calls': calls, 'is_first': is_first})}\n".encode())


if __name__ == "__main__":
    main()
