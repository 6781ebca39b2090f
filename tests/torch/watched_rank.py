"""One rank of a DDP job that `watch` records: `python watched_rank.py PHASE...`; rank 1 is slow in each.

Its clock goes on by what the program says that its parts take, on every rank the same way, so that what is recorded
does not depend on what else the machine does.
"""

import os
import random
import sys
import time

from lanterne.failslow.record.adapters import start

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
QUIET, SLOW = 50, 30
USUAL_S, MORE_S = {"data": 10e-3, "forward": 2e-3, "backward": 4e-3, "optimizer": 1e-3, "meet": 1e-3}, 40e-3
SLOW_RANK = 1
# Of all clocks.
START_S = 1e3


class Clocks:
    """What the clocks of all ranks show, which every rank knows.

    Attributes: `slow`, the part in which SLOW_RANK is slow, or None.
    """

    def __init__(self):
        self._s = [START_S] * SIZE
        self._chance = random.Random(0)
        self.slow = None

    def now_s(self):
        """What this rank's shows."""
        return self._s[RANK]

    def take(self, part):
        """Every rank has done this `part`."""
        for rank in range(SIZE):
            usual_s = USUAL_S[part] * self._chance.uniform(0.98, 1.02)
            self._s[rank] += usual_s + (MORE_S if (rank, part) == (SLOW_RANK, self.slow) else 0.0)

    def meet(self):
        """All have waited for the last."""
        self._s = [max(self._s)] * SIZE
        self.take("meet")


CLOCKS = Clocks()
time.monotonic = CLOCKS.now_s
start()  # Before torch is imported, as `lanterne watch` does.

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402


class Model(torch.nn.Module):
    """Two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)

    def forward(self, x):
        CLOCKS.take("forward")
        x = self.first(x)
        x.register_hook(self.backward)
        return {"loss": self.last(x).square().mean()}

    def backward(self, _gradient):
        """Amid the backward pass; at its end the gradients are summed, and all ranks have come."""
        CLOCKS.take("backward")
        torch.autograd.Variable._execution_engine.queue_callback(CLOCKS.meet)


def train(phases):
    """Iterate quietly, and between that with rank 1 slow in each of `phases`."""
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for phase in (None, *(each for slow in phases for each in (slow, None))):
        CLOCKS.slow = phase
        for _ in range(SLOW if phase else QUIET):
            CLOCKS.take("data")
            model(torch.ones(4, 8))["loss"].backward()
            CLOCKS.take("optimizer")
            optimizer.step()
            optimizer.zero_grad()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    # The model is gone before the group: as the last to hold it, it would wait for gloo's threads, and they for Python.
    train(sys.argv[1:])
    dist.destroy_process_group()


main()
