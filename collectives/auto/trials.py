"""Trials of the algorithms that `auto` chooses from, and the factor by which each was off the model's prediction.

The model cannot know what else an algorithm costs or saves: folds of several inputs at once, shared caches, cores that
ranks share. So those that it ranks close together are tried, at a few sizes, when the group is new; and those that came
near the best again, briefly, by later jobs on the same hosts. No job waits for long: the first tries a few sizes, later
ones those between; of ranks that share memory, through which short calls go anyway, the second is the first that tries.
What disturbs slows most calls of a round alike, so a call is compared with the others of its round: that tells the best
apart in half the rounds that medians of times need.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lanterne.collectives.auto.predict import (
    Factor,
    Links,
    Prediction,
    corrected,
    goes_through_memory,
    predictions,
)
from lanterne.kernels.arrays import Array
from lanterne.kernels.cpu.delay import wait_until
from lanterne.kernels.cuda.device_view import DeviceView
from lanterne.kernels.cuda.runtime import CudaRuntime
from lanterne.kernels.staging import wait_for
from lanterne.transport.base import Transport

# The collective whose algorithms are tried, and the sizes: most programs wait for this one most.
TRIED = "all_reduce"
# In this order, so that what lies between is interpolated from the first job on.
TRIED_NBYTES = tuple(1 << exponent for exponent in (10, 16, 22, 18, 14, 20, 12, 24, 26))
# After so many rounds, who takes so many times what the best takes is out; rounds of over LONG_S differ less
# from each other.
CUTS, LONG_CUTS = {4: 1.35, 8: 1.25}, {2: 1.35, 3: 1.2}


# At most so many algorithms, none predicted to take more than so many times what the cheapest takes; again, by
# later jobs, those near the best.
MAX_TRIED = 4
TRIED_WITHIN = 4.0
AGAIN_WITHIN = 1.3
# They are called in turn, so often at most and for so long, pauses included, or the fewest times in the longest.
TRIALS = 16
TRIALS_S = 0.08  # chosen: the program waits
FEWEST_TRIALS = 4  # a median of fewer tells little
LONGEST_S = 0.15  # chosen: half of most_s
# Rounds that take longer differ less from each other: fewer are needed.
LONG_S = 40e-3
# Later jobs call so often, at sizes where all of it is predicted to take so long at most.
AGAIN = 3  # a median of the fewest
AGAIN_S = 0.1
# What the few calls of a later job say of an algorithm beside the others counts so much; what was known the rest.
AGAIN_WEIGHT = 0.25
LEAST_REPEATS = 2  # the first of a series is slow still
# No larger message is measured once a call took so long.
ENOUGH_S = 0.25  # slow networks are measured in seconds, large messages are linear
# A job tries nothing more once its trials took so long together, nor what is predicted to take longer than is left.
MOST_S = 0.3  # chosen: the program waits
# A measurement of links takes so long at most, however quick its calls are.
MEASURE_S = 0.6  # chosen: the program waits
# Nothing is tried that has larger buffers than this on all ranks, nor in larger groups.
MAX_TRIED_NBYTES = 256 << 20  # chosen: memory that a start may take
MAX_TRIED_RANKS = 64  # the predictions themselves would take seconds
# Between the barrier before a call and the call. Programs compute meanwhile: what comes first in a call that
# follows another at once is not what comes first when caches and cores have had other things to do.
PAUSE_S = 2.5e-3


Call: TypeAlias = Callable[[], object]


class TrialGroup(Protocol):
    """What is measured: what `auto` uses of a Communicator."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def ranks(self) -> tuple[int, ...]: ...
    @property
    def hosts(self) -> tuple[str, ...]: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def timeout_s(self) -> float: ...
    def all_reduce(
        self, in_array: Array, out_array: Array, op: str = "sum", *, algorithm: str, num_chunks: int | None = None
    ) -> None: ...
    def reduce_scatter(self, in_array: Array, out_array: Array, *, algorithm: str) -> None: ...
    def all_gather(self, in_array: Array, out_array: Array, *, algorithm: str) -> None: ...
    def broadcast(self, in_out_array: Array, root: int = 0, *, algorithm: str) -> None: ...
    def barrier(self, *, algorithm: str) -> None: ...
    def split(self, color: int, key: int = 0) -> Any: ...


def measure_factors(
    communicator: TrialGroup, model: Links, known: Sequence[Factor] = (), *, shares_memory: bool = False
) -> tuple[Factor, ...]:
    """Try the algorithms that `model` ranks close together, at sizes that are not `known`; all Factors, known first.

    Equal on all ranks. A collective call. Those left out get the largest factor of those tried, so that what makes
    everything slower does not favour them.

    Args:
        shares_memory: the ranks do: sizes that `auto` sends through that are not tried.
    """
    factors = list(known)
    spent_s = 0.0
    if communicator.world_size > MAX_TRIED_RANKS:
        return tuple(factors)
    for nbytes in TRIED_NBYTES:
        if any(row.nbytes == nbytes for row in known) or nbytes * communicator.world_size > MAX_TRIED_NBYTES:
            continue
        left_s = MOST_S - spent_s
        if left_s < (1 + LEAST_REPEATS) * 2 * PAUSE_S:
            break
        rows = predictions(TRIED, communicator.world_size, nbytes, model)
        if shares_memory and goes_through_memory(TRIED, communicator.world_size, nbytes, rows[0].time_s):
            continue
        near = [row for row in rows if row.time_s <= TRIED_WITHIN * rows[0].time_s][:MAX_TRIED]
        if (1 + LEAST_REPEATS) * sum(row.time_s + PAUSE_S for row in near) > left_s:
            continue
        took_s, contest_s = _contest(communicator, _calls(communicator, near, nbytes))
        found = {row.algorithm: time_s / row.time_s for row, time_s in zip(near, took_s, strict=True)}
        factors += [Factor(TRIED, row.algorithm, nbytes, found.get(row.algorithm, max(found.values()))) for row in rows]
        spent_s += contest_s
    return tuple(factors)


def try_again(communicator: TrialGroup, model: Links, factors: Sequence[Factor]) -> tuple[Factor, ...]:
    """`factors`, turned towards what a short trial finds now; equal on all ranks. A collective call.

    So a job that was disturbed while it measured does not decide for the others for long. Disturbances only add: all of
    a size fall where those tried took less than ever.
    """
    updated = {row[:3]: row.factor for row in factors}
    for nbytes in sorted({row.nbytes for row in factors}):
        rows = corrected(predictions(TRIED, communicator.world_size, nbytes, model), factors, TRIED, nbytes)
        near = [row for row in rows if row.time_s <= AGAIN_WITHIN * rows[0].time_s][:MAX_TRIED]
        if AGAIN * sum(row.time_s for row in near) > AGAIN_S:
            break
        took_s = usual_s(time_calls(communicator, _calls(communicator, near, nbytes), AGAIN))
        gains = np.log([time_s / row.time_s for row, time_s in zip(near, took_s, strict=True)])
        for key in updated:
            if key[2] == nbytes:
                updated[key] *= float(np.exp(min(0.0, gains.mean())))
        for row, gain in zip(near, gains, strict=True):
            updated[TRIED, row.algorithm, nbytes] *= float(np.exp(AGAIN_WEIGHT * (gain - gains.mean())))
    return tuple(Factor(*key, factor) for key, factor in updated.items())


def _calls(communicator: TrialGroup, rows: Iterable[Prediction], nbytes: int) -> list[Call]:
    """The algorithms of `rows` as functions that call them on buffers of `nbytes`."""
    source, out = trial_array(communicator, nbytes // 4), trial_array(communicator, nbytes // 4)
    return [
        partial(communicator.all_reduce, source, out, algorithm=row.algorithm, num_chunks=row.num_chunks)
        for row in rows
    ]


def _contest(communicator: TrialGroup, calls: Sequence[Call]) -> tuple[list[float], float]:
    """Seconds of each of `calls`, and of the contest; those near the quickest are called more often than the others."""
    rounds_s: list[NDArray[np.float64]] = []
    left = list(range(len(calls)))
    spent_s = 0.0
    # The first round makes plans and connections; the second is slow still.
    first_s = round_s = _round(communicator, calls, 0).sum()
    if first_s < TRIALS_S:
        round_s = min(first_s, _round(communicator, calls, 1).sum())
    cuts = LONG_CUTS if round_s > LONG_S else CUTS
    for number in range(TRIALS):
        rounds_s.append(np.full(len(calls), np.nan))
        rounds_s[-1][left] = _round(communicator, [calls[i] for i in left], number)
        spent_s += np.nansum(rounds_s[-1] + PAUSE_S)
        most_s = TRIALS_S if number + 1 >= FEWEST_TRIALS else LONGEST_S
        if number + 1 >= LEAST_REPEATS and spent_s > most_s:
            break
        if number + 1 in cuts:
            found_s = usual_s(rounds_s)
            left = [i for i in left if found_s[i] <= cuts[number + 1] * found_s[left].min()]
            if len(left) == 1:
                break
    return usual_s(rounds_s).tolist(), first_s + spent_s


def usual_s(rounds_s: ArrayLike) -> NDArray[np.float64]:
    """Usual seconds of each call, (calls,), from those of some rounds, (rounds, calls); nan where one was left out.

    Each call is compared with every other of its round that is in all rounds: medians of ratios, and their mean.
    """
    logs = np.log(rounds_s)
    always = logs[:, ~np.isnan(logs).any(axis=0)]
    ratios = np.mean([np.nanmedian(logs - other[:, None], axis=0) for other in always.T], axis=0)
    return np.exp(np.median(always.mean(axis=1)) + ratios)


def time_calls(
    communicator: TrialGroup,
    calls: Sequence[Call],
    repeats: int,
    most_s: float = MEASURE_S,
    pause_s: float = PAUSE_S,
) -> NDArray[np.float64]:
    """Seconds of each of `calls` on the slowest rank, in turn, `repeats` times: (repeats, len(calls)), equal on all.

    Where they take over `most_s` fewer times, but least_repeats.
    """
    # The first round makes plans and connections.
    in_time = int(most_s / (_round(communicator, calls, 0, pause_s) + pause_s).sum())
    repeats = max(LEAST_REPEATS, min(repeats, in_time))
    return np.stack([_round(communicator, calls, i, pause_s) for i in range(repeats)])


def _round(
    communicator: TrialGroup, calls: Sequence[Call], number: int, pause_s: float = PAUSE_S
) -> NDArray[np.float64]:
    """Seconds of each of `calls`, called once, on the slowest rank: (len(calls),), the same on all ranks.

    Each round, by its `number`, has its order: what goes before a call tells in its time, and is not to be the same.
    """
    samples = np.empty(len(calls))
    for index in random.Random(number).sample(range(len(calls)), len(calls)):
        communicator.barrier(algorithm="dissemination")
        started = time.monotonic() + pause_s
        wait_until(started)
        calls[index]()
        finish(communicator)
        samples[index] = time.monotonic() - started
    # Nothing is reduced: that would load the compiler.
    everyone = np.empty((communicator.world_size, len(calls)))
    communicator.all_gather(samples, everyone, algorithm="bruck")
    return everyone.max(axis=0)


# -- the memory that is measured with: of the host, or of the device over nccl


def trial_array(communicator: TrialGroup, count: int) -> NDArray[np.float32] | DeviceView:
    """(count,) float32, of whatever values where it is device memory."""
    runtime = _runtime(communicator)
    if runtime is None:
        return np.ones(count, np.float32)
    memory = runtime.empty(4 * count, "trial")
    return DeviceView(memory.address, count, np.dtype(np.float32), owner=memory)


def finish(communicator: TrialGroup) -> None:
    """Return once a call with such arrays is done, which over nccl has returned before."""
    runtime = _runtime(communicator)
    if runtime is not None:
        done = runtime.record(runtime.current_stream())
        wait_for(lambda: runtime.is_done(done), "trial", communicator.timeout_s)


def _runtime(communicator: TrialGroup) -> CudaRuntime | None:
    transport = communicator.transport
    return transport.runtime if transport.capabilities.stream_ordered else None
