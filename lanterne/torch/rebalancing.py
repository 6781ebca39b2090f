"""Microbatches by speed: a slow rank of a DDP job gets fewer of each batch, and the gradient stays that of the batch.

Paper: Wu et al. (GREYHOUND), section 5.2, strategy S2.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from lanterne.errors import InputError
from lanterne.failslow.mitigate.rebalance import rebalance as balance

# The share of a step that other counts have to save: half of the 10 % by which a rank counts as slow (paper, 4.3).
LEAST_GAIN = 0.05


class MicrobatchShares:
    """The microbatches of this rank, step by step; see `rebalance`.

    Attributes: `counts`, how many each rank has now.
    """

    def __init__(self, model: Any, microbatches: int, every: int, group: Any) -> None:
        size = dist.get_world_size(group)
        for name, value in (("microbatches", microbatches), ("every", every)):
            if not isinstance(value, int):
                raise InputError(f"rebalance: got {name} {value!r}, expected a whole number")
        if microbatches < 2 * size:
            raise InputError(
                f"rebalance: got {microbatches} microbatches on {size} ranks, expected at least {2 * size}"
            )
        if every < 1:
            raise InputError(f"rebalance: got every {every}, expected at least 1 step")
        self._model, self._every, self._group = model, every, group
        self._device = next(model.parameters()).device
        self._rank, self._steps = dist.get_rank(group), 0
        self._microbatches = microbatches
        self._took: list[Callable[[], float]] = []
        self.counts = tuple(microbatches * (rank + 1) // size - microbatches * rank // size for rank in range(size))

    def __repr__(self) -> str:
        return f"MicrobatchShares({', '.join(map(str, self.counts))})"

    @property
    def weight(self) -> float:
        """The factor of each microbatch's mean loss: DDP averages over ranks, whatever counts they have."""
        return len(self.counts) / self._microbatches

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's microbatches of a step, by their numbers in the batch; gradients are summed with the last.

        The time between two of them is the time of a microbatch. The last is not timed: it waits for other ranks.
        """
        if self._steps and self._steps % self._every == 0:
            self._update()
        self._steps += 1
        first = sum(self.counts[: self._rank])
        mine = range(first, first + self.counts[self._rank])
        for number in mine:
            is_last = number == mine[-1]
            with nullcontext() if is_last else self._model.no_sync():
                took = None if is_last else stopwatch(self._device)
                yield number
                if took is not None:
                    self._took.append(took())

    def _update(self) -> None:
        """Exchange the times of a microbatch over ranks, and use the best counts if they save enough."""
        # A program that leaves the loop early has none: then nothing changes.
        took_s = median([took() for took in self._took] or [0.0])
        self._took.clear()
        own = torch.tensor([took_s], dtype=torch.float64, device=self._device)
        gathered = [torch.empty_like(own) for _ in self.counts]
        dist.all_gather(gathered, own, group=self._group)
        times = [float(each) for each in gathered]
        if min(times) <= 0.0:
            return
        # Each has two at least, so that one of them can be timed: one more than a pipeline of two stages counts.
        found = balance(times, self._microbatches - len(times), pipeline_stages=2)
        if found.makespan <= (1 - LEAST_GAIN) * max(t * count for t, count in zip(times, self.counts, strict=True)):
            self.counts = tuple(count + 1 for count in found.microbatches)


def rebalance(model: Any, microbatches: int, *, every: int = 10, group: Any = None) -> MicrobatchShares:
    """Return the microbatches of this rank, as many as make the slowest rank of `group` end first.

      shares = lanterne.torch.rebalance(ddp, microbatches=32)
      for step in range(steps):
          for number in shares:                                    # 0 to 31, this rank's
              loss = loss_of(ddp, microbatch(step, number))        # a mean over its samples
              (loss * shares.weight).backward()
          optimizer.step()
          optimizer.zero_grad()

    Args:
        model: a DistributedDataParallel over `group`, or with the same `no_sync`; its gradients are means over ranks.
            Its forward pass makes no calls of its own: SyncBatchNorm would wait for ranks that have more microbatches.
        microbatches: microbatches of the batch of all ranks, at least two for each.
        every: steps between two looks at how long microbatches take. A look is one small all_gather.
        group: of torch.distributed; None for all ranks.

    Raises:
        InputError: too few microbatches, or `every` below 1.
    """
    return MicrobatchShares(model, microbatches, every, group)


def stopwatch(device: torch.device) -> Callable[[], Callable[[], float]]:
    """Start a clock; the function stops it, and returns one that reads it, in s.

    On a CUDA device the clock is that of the current stream, and only reading it waits for the stream.
    """
    if device.type != "cuda":
        began_s = time.perf_counter()

        def stop_host() -> Callable[[], float]:
            took_s = time.perf_counter() - began_s
            return lambda: took_s

        return stop_host
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()

    def stop_device() -> Callable[[], float]:
        ended.record()

        def read() -> float:
            ended.synchronize()
            return float(began.elapsed_time(ended)) / 1e3

        return read

    return stop_device
