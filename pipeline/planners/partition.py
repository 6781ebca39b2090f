"""Which layers go on which stage: contiguous runs of layers that balance stages of unequal devices."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from lanterne.errors import InputError
from lanterne.pipeline.plan.costs import Floats


@dataclass(frozen=True, slots=True)
class Partition:
    """Stage i holds layers starts[i] to starts[i + 1] - 1; `bottleneck` is the largest of `stage_times`."""

    starts: tuple[int, ...]
    stage_times: tuple[float, ...]

    @property
    def bottleneck(self) -> float:
        """Time of the slowest stage, which sets the rate of the steady pipeline."""
        return max(self.stage_times)

    @property
    def num_layers(self) -> tuple[int, ...]:
        """Layers on each stage."""
        return tuple(end - start for start, end in pairwise(self.starts))

    def stage_sums(self, per_layer: Sequence[float]) -> tuple[float, ...]:
        """Sum of `per_layer` (one number per layer, such as F times or activation bytes) over each stage's layers."""
        if len(per_layer) != self.starts[-1]:
            raise InputError(f"values per layer: got {len(per_layer)}, expected {self.starts[-1]}")
        return tuple(sum(per_layer[start:end]) for start, end in pairwise(self.starts))


def partition_layers(
    layer_times: ArrayLike,
    stage_speeds: ArrayLike,
    layer_memory: ArrayLike | None = None,
    stage_memory: ArrayLike | None = None,
) -> Partition:
    """The contiguous partition, one layer or more per stage in order, whose slowest stage is fastest.

    Args:
        layer_times: time of each layer (F, B and W together) on a device of speed 1, embedding and output layers
            included as the first and last entries.
        stage_speeds: speed of each stage's device; layer time / speed is its time there.
        layer_memory, stage_memory: memory of each layer and of each stage's device, in one unit; None for no limit.

    Raises:
        InputError: a length, sign or memory limit that no partition can meet.

    Cost: a dynamic programme over (stage, last layer), O(S L w) where no stage of a better partition holds more than w
        layers.
    Paper: Chen et al. 2025 (CrossPipe), sections 6.1 and 8.1, where embedding and output count as one layer each and
        faster nodes get more layers; differs: exact, with measured times, speeds and memory.
    """
    times, speeds = _positive(layer_times, "layer times"), _positive(stage_speeds, "stage speeds", strictly=True)
    num_layers, num_stages = len(times), len(speeds)
    if num_layers < num_stages:
        raise InputError(f"layers: got {num_layers}, expected one or more for each of {num_stages} stages")
    if (layer_memory is None) != (stage_memory is None):
        raise InputError("memory: got only one of layer_memory and stage_memory, expected both or none")
    memory = np.zeros(num_layers) if layer_memory is None else _positive(layer_memory, "layer memory")
    limits = np.full(num_stages, np.inf) if stage_memory is None else _positive(stage_memory, "stage memory")
    for values, expected, what in ((memory, num_layers, "layer memory"), (limits, num_stages, "stage memory")):
        if len(values) != expected:
            raise InputError(f"{what}: got {len(values)} values, expected {expected}")
    # Any partition found within a bound proves that no better one lies outside it; so widen the bound until one is
    # found.
    bound, widest = 1.25 * max(times.sum() / speeds.sum(), times.max() / speeds.max()), times.sum() / speeds.min()
    while (starts := _search(times, speeds, memory, limits, bound)) is None:
        if bound >= widest:
            have, wanted = ", ".join(f"{limit:.0f}" for limit in limits), f"{memory.sum():.0f} in all"
            raise InputError(f"memory: got stages of {have}, expected room for {num_layers} layers, {wanted}")
        bound *= 2
    # Of those with that slowest stage, the most even: its other stages idle less and hold alike.
    best = max(_stage_times(times, speeds, starts))
    evened = _search(times, speeds, memory, limits, best, even=True)
    assert evened is not None, "the partition found before is within this bound"
    return Partition(evened, _stage_times(times, speeds, evened))


def _stage_times(times: Floats, speeds: Floats, starts: Iterable[int]) -> tuple[float, ...]:
    return tuple(float(times[i:j].sum() / speed) for (i, j), speed in zip(pairwise(starts), speeds, strict=True))


def _positive(values: ArrayLike, what: str, *, strictly: bool = False) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    wrong = ~np.isfinite(array) | (array <= 0 if strictly else array < 0)
    if array.ndim != 1 or not array.size or wrong.any():
        expected = "positive" if strictly else "zero or more"
        raise InputError(f"{what}: got {values!r}, expected one or more finite numbers, each {expected}")
    return array


def _search(
    times: Floats, speeds: Floats, memory: Floats, limits: Floats, bound: float, *, even: bool = False
) -> tuple[int, ...] | None:
    """Stage starts of the best partition in which every stage takes at most `bound`, or None.

    The best has the fastest slowest stage or, if `even`, the least sum of squared stage times.
    """
    num_layers, num_stages = len(times), len(speeds)
    time_before, memory_before = np.append(0.0, np.cumsum(times)), np.append(0.0, np.cumsum(memory))
    slack = 1e-12 * time_before[-1]
    ends = np.arange(num_layers + 1)
    first = np.searchsorted(time_before, time_before - bound * speeds.max() - slack)
    width = int(np.max(ends - first, initial=1))
    # starts[end, w]: the stage holds layers end - 1 - w to end - 1.
    starts = ends[:, None] - 1 - np.arange(width)
    outside, starts = starts < 0, np.maximum(starts, 0)
    stage_time = time_before[:, None] - time_before[starts]
    stage_memory = memory_before[:, None] - memory_before[starts]
    best, choices = np.where(ends == 0, 0.0, np.inf), []
    for speed, limit in zip(speeds, limits, strict=True):
        taken = stage_time / speed
        value = best[starts] + taken**2 if even else np.maximum(best[starts], taken)
        value[outside | (stage_time > bound * speed + slack) | (stage_memory > limit * (1 + 1e-12))] = np.inf
        choices.append(value.argmin(axis=1))
        best = value[ends, choices[-1]]
    if not np.isfinite(best[-1]):
        return None
    found = [num_layers]
    for choice in reversed(choices):
        found.append(int(starts[found[-1], choice[found[-1]]]))
    return tuple(reversed(found)) if len(found) == num_stages + 1 else None
