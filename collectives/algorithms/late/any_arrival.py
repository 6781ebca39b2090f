"""any_arrival: an all-reduce that makes use of every port from the second arrival on, however the ranks arrive.

An automaton makes one round after the other and needs nothing but who has arrived by then (any_arrival_rounds.py). So
all ranks that are given the same join rounds make the same schedule, and rounds can be made while earlier ones run.
Until the last rank arrives the others merge partial sums; then the rest of the merges and the copies share the ports.
What no algorithm can beat is arrival_bound.py's.
"""

import logging
import sys
import threading
import time
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np

from lanterne.collectives.schedule.ir import CollectiveSchedule, Ints, ScheduleBuilder
from lanterne.errors import InputError

log: logging.Logger = logging.getLogger("lanterne.collectives")
_loaded, _failed, _starting = threading.Event(), threading.Event(), threading.Lock()
_threads: list[threading.Thread] = []

# One round takes the compiled planner 0.1 ms with 16 ranks; more ranks have hosts for ports.
MAX_RANKS = 16
# Fewer chunks a rank cost rounds at the end, more of them cost starts.
CHUNKS_A_RANK, LEAST_CHUNKS = 6, 64
ROUNDING = 1e-9
# Numba's import takes 1 s of CPU, and calls go on meanwhile: ranks may share cores, and always share the interpreter.
IMPORT_PART = 0.2


class ArrivalRounds(NamedTuple):
    """When ranks arrive, in rounds: `joins`, by rank, the round before which it takes part in nothing.

    `lag`: rounds that a message's latency lasts, after which a chunk that was received may be sent on.
    """

    joins: tuple[int, ...]
    lag: int = 0


def any_arrival_all_reduce(
    world_size: int, num_chunks: int | None = None, arrivals: ArrivalRounds | None = None
) -> CollectiveSchedule:
    """Merge partial sums of the ranks that have arrived; spread each sum that is complete.

    Default chunk count max(64, 6 p).

    Args:
        arrivals: None: all ranks are there from round 0 on.

    Cost (p = world_size, m = num_chunks, arrivals None): rounds <= 2*(p - 1)*m/p + 6; load <= 2*(p - 1)/p + 6/m
    Paper: none; related: StragglAR (arXiv 2505.23523), for one late rank.
    """
    num_chunks = num_chunks or max(LEAST_CHUNKS, CHUNKS_A_RANK * world_size)
    first, lag = arrivals or ArrivalRounds((0,) * world_size)
    if len(first) != world_size or min(first) < 0 or lag < 0:
        raise InputError(f"arrivals: got joins {first}, lag {lag}, expected {world_size} rounds, none negative")
    roles = sorted(range(world_size), key=lambda rank: (first[rank], rank))
    rounds, starts = plan_rounds(num_chunks, [first[rank] for rank in roles], lag)
    named = tuple(sorted(zip(roles, starts, strict=True)))
    build = ScheduleBuilder("all_reduce", "any_arrival", world_size, num_chunks, rank_of=np.array(roles), joins=named)
    if starts[-1]:
        build.phase("wait")
    for number, transfers in enumerate(rounds):
        if number == starts[-1]:
            build.phase("join")
        source, target, chunk, op = transfers.T
        build.round((source, target, chunk, op))
    return build.build()


def plan_rounds(num_chunks: int, joins: Sequence[int], lag: int) -> tuple[list[Ints], list[int]]:
    """Return the rounds of all roles, and the round in which each of these joins.

    Args:
        joins: by role, the round that each is to join in, ascending.

    Returns:
        (transfers, 4) arrays of source, destination, chunk and op; and `joins`, less the rounds before each in which
        those that had arrived had nothing left to do.
    """
    from lanterne.collectives.algorithms.late.any_arrival_rounds import Planner

    planner = Planner(len(joins), num_chunks, lag)
    starts = list(joins)
    rounds: list[Ints] = []
    idle = 0
    while True:
        while planner.present < len(starts) and starts[planner.present] <= planner.number:
            planner.arrive()
            idle = 0
        if planner.is_done:
            return rounds, starts
        transfers = planner.round()
        rounds.append(transfers)
        idle = 0 if len(transfers) else idle + 1
        if idle > lag + 1 and planner.present < len(starts):
            # What was received can be sent by now, so nothing happens until the next rank joins.
            left_out = starts[planner.present] - planner.number
            starts[planner.present :] = [start - left_out for start in starts[planner.present :]]


def arrival_rounds(arrivals_s: Sequence[float], message_s: float, latency_s: float = 0.0) -> ArrivalRounds:
    """Return the ArrivalRounds of ranks, if round 0 begins with the second arrival.

    Args:
        arrivals_s: by rank, seconds.
        message_s: how long a port carries a chunk, which is a round.
        latency_s: how much later it arrives; what is less than half a message's time costs less than a lag.
    """
    second_s = sorted(arrivals_s)[:2][-1]
    # A rank that arrives within rounding of the start of a round is there.
    joins = tuple(max(0, ceil((at_s - second_s) / message_s - ROUNDING)) for at_s in arrivals_s)
    return ArrivalRounds(joins, round(latency_s / message_s))


def is_loaded() -> bool:
    """Whether rounds can be made without waiting for the compiler."""
    return _loaded.is_set()


def load() -> threading.Thread:
    """Load the compiled automaton in a thread, once: 5 s, or 15 s where it is compiled for the first time."""
    with _starting:
        # After a fork the thread is gone.
        if not _threads or not (_threads[-1].is_alive() or _loaded.is_set() or _failed.is_set()):
            # An exit waits for it: the compiler must not be at work while its library is unloaded.
            _threads.append(threading.Thread(target=_load, name="lanterne-any-arrival"))
            _threads[-1].start()
    return _threads[-1]


class _Pace:
    """Import finder that finds nothing, and keeps the imports of its thread to a part of one core's time."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._used_s = time.thread_time()

    def find_spec(self, *_: object) -> None:
        if threading.get_ident() == self._thread:
            time.sleep((time.thread_time() - self._used_s) * (1 / IMPORT_PART - 1))
            self._used_s = time.thread_time()


def _load() -> None:
    pace = _Pace()
    sys.meta_path.insert(0, pace)
    try:
        any_arrival_all_reduce(2, 1)
    except Exception:  # Whatever the compiler says: calls go on without it.
        _failed.set()
        log.warning("any_arrival: cannot be compiled, so ranks that arrive spread gain nothing", exc_info=True)
    else:
        _loaded.set()
    finally:
        sys.meta_path.remove(pace)


def refuses_many(world_size: int) -> str | None:
    """Why it cannot be used with so many ranks, or None."""
    return None if world_size <= MAX_RANKS else f"expected at most {MAX_RANKS}"
