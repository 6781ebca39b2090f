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
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lanterne.collectives.schedule.ir import CollectiveSchedule, ScheduleBuilder
from lanterne.errors import InputError

if TYPE_CHECKING:
    from lanterne.collectives.algorithms.hierarchical.compose import Nodes
    from lanterne.collectives.algorithms.late.any_arrival_nodes import Step

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
    return _over("any_arrival", _each_alone(world_size), num_chunks, arrivals)


def hier_any_arrival_all_reduce(
    world_size: int,
    num_chunks: int | None = None,
    nodes: "Nodes | None" = None,
    arrivals: ArrivalRounds | None = None,
) -> CollectiveSchedule:
    """The same of nodes, which take part once all their ranks have arrived, on every rail (any_arrival_nodes.py).

    Default chunk count max(64, 6 N) R, of N nodes and R rails; ranks of a single node are as those of a node each.

    Args:
        arrivals: of ranks; None: all are there from round 0 on.

    Cost (p = world_size, m = num_chunks; one rank on each node): rounds <= 2*(p - 1)*m/p + 6; load <= 2*(p - 1)/p + 6/m
    """
    if nodes is None or len(nodes) == 1:
        nodes = _each_alone(world_size)
    num_chunks = num_chunks or max(LEAST_CHUNKS, CHUNKS_A_RANK * len(nodes)) * max(map(len, nodes))
    return _over("hier_any_arrival", nodes, num_chunks, arrivals)


def _each_alone(world_size: int) -> "Nodes":
    return tuple((rank,) for rank in range(world_size))


def _over(algorithm: str, nodes: "Nodes", num_chunks: int, arrivals: ArrivalRounds | None) -> CollectiveSchedule:
    world_size, rails = sum(map(len, nodes)), max(map(len, nodes))
    first, lag = arrivals or ArrivalRounds((0,) * world_size)
    if len(first) != world_size or min(first) < 0 or lag < 0:
        raise InputError(f"arrivals: got joins {first}, lag {lag}, expected {world_size} rounds, none negative")
    ranks = sorted(range(world_size), key=lambda rank: (first[rank], rank))
    rounds, starts = plan_rounds(nodes, num_chunks, ranks, [first[rank] for rank in ranks], lag)
    # What a round asks inside a node is one step after the other.
    begins = [0, *accumulate(max(1, len(steps)) for steps in rounds)]
    named = tuple(sorted((rank, begins[start]) for rank, start in zip(ranks, starts, strict=True)))
    ports = max(-(-rails // len(its)) for its in nodes)
    build = ScheduleBuilder("all_reduce", algorithm, world_size, num_chunks, ports=ports, joins=named)
    if starts[-1]:
        build.phase("wait")
    for number, steps in enumerate(rounds):
        if number == starts[-1]:
            build.phase("join")
        for step in steps or [[]]:
            source, target, chunk, op, _ = np.array(step, np.int64).reshape(-1, 5).T
            build.round((source, target, chunk, op))
    return build.build()


def plan_rounds(
    nodes: "Nodes", num_chunks: int, ranks: Sequence[int], joins: Sequence[int], lag: int
) -> tuple[list[list["Step"]], list[int]]:
    """Return the steps of each round, and the round in which each rank joins.

    Args:
        ranks: in the order in which they join.
        joins: the round that each of these is to join in.

    Returns:
        By round its steps; and `joins`, less the rounds before each in which those that had arrived had nothing left to
        do.
    """
    from lanterne.collectives.algorithms.late.any_arrival_nodes import NodeRounds

    made = NodeRounds(nodes, num_chunks, lag)
    starts = list(joins)
    rounds: list[list[Step]] = []
    idle = 0
    while True:
        while made.present < len(starts) and starts[made.present] <= made.number:
            made.arrive(ranks[made.present])
            idle = 0
        if made.is_done:
            return rounds, starts
        steps = made.round()
        rounds.append(steps)
        idle = 0 if steps else idle + 1
        if idle > lag + 1 and made.present < len(starts):
            # What was received can be sent by now, so nothing happens until the next rank joins.
            left_out = starts[made.present] - made.number
            starts[made.present :] = [start - left_out for start in starts[made.present :]]


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
