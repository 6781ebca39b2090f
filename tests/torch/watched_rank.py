"""One rank of a DDP job that `watch` records: `python watched_rank.py PHASE...`; rank 1 is slow in each."""

import os
import sys
import time

from lanterne.failslow.record.adapters import start

start()  # Before torch is imported, as `lanterne watch` does.

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

QUIET, SLOW = 50, 30
USUAL_S, MORE_S = 0.01, 0.04


class Model(torch.nn.Module):
    """Two layers; its forward and its backward take as long as `slow_s` says."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        self.slow_s = {}

    def forward(self, x):
        time.sleep(self.slow_s.get("forward", 0.0))
        x = self.first(x)
        x.register_hook(lambda _: time.sleep(self.slow_s.get("backward", 0.0)))
        return {"loss": self.last(x).square().mean()}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for phase in (None, *(each for phase in sys.argv[1:] for each in (phase, None))):
        slow_s = model.module.slow_s = {phase: MORE_S} if phase and os.environ["RANK"] == "1" else {}
        for _ in range(SLOW if phase else QUIET):
            time.sleep(USUAL_S + slow_s.get("data", 0.0))
            model(torch.ones(4, 8))["loss"].backward()
            time.sleep(slow_s.get("optimizer", 0.0))
            optimizer.step()
            optimizer.zero_grad()
    dist.destroy_process_group()


main()
