"""Calls of a backward pass that one rank began late, and calls beside busy processes, over links of a known rate."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from evaluation.beside import busy
from evaluation.speed.overlap import over_ranks
from lanterne.bench.output import report

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lanterne.collectives.communicator import Communicator
    from lanterne.collectives.execute.requests import CollectiveRequest

BUCKETS, BUCKET_NBYTES, LATE_RANK, LATENESS = 8, 4 << 20, 1, 1.1
CROWDED_NBYTES, PROCESSES = 16 << 20, 8
TURNS, WARMUPS = 6, 3


def backward(comm: Communicator, rate_bytes_per_s: float) -> dict[str, Any]:
    """Buckets of a slow backward: BUCKETS are started with a bucket's time of sleep between them, alike on all ranks.

    LATE_RANK begins LATENESS times the time of all of them later. `left`: from its last start to the last completion on
    any rank, in multiples of a bucket's time at the rate; `wrong`: elements that are not the sum.
    """
    bucket_s = BUCKET_NBYTES / rate_bytes_per_s
    pairs, expected = _arrays(comm, BUCKETS, BUCKET_NBYTES)
    lefts: list[float] = []
    wrong = 0
    for turn in range(WARMUPS + TURNS):
        report.progress(f"backward {turn + 1}/{WARMUPS + TURNS}")
        _clear(pairs)
        comm.barrier(algorithm="dissemination")
        if comm.rank == LATE_RANK:
            time.sleep(LATENESS * BUCKETS * bucket_s)
        requests: list[CollectiveRequest] = []
        for x, y in pairs:
            if requests:
                time.sleep(bucket_s)
            requests.append(comm.start_all_reduce(x, y))
        started_s = time.monotonic()
        for request in requests:
            request.wait()
        ended_s = time.monotonic()
        # Both on the clock of one machine: the hosts of `lanterne lab` are namespaces.
        left_s = over_ranks(comm, ended_s, "max") - over_ranks(comm, started_s, "max")
        if turn >= WARMUPS:
            lefts.append(left_s / bucket_s)
            wrong += _wrong(pairs, expected)
    wrong = int(over_ranks(comm, wrong, "sum"))
    return {"buckets": BUCKETS, "nbytes": BUCKET_NBYTES, "left": lefts, "wrong": wrong}


def crowded(comm: Communicator, rate_bytes_per_s: float) -> dict[str, Any]:
    """An all_reduce of CROWDED_NBYTES by auto and by ring, in turn, nobody late, beside PROCESSES busy processes.

    `over`: for each, what calls take on the slowest rank over the time of the buffer at the rate.
    """
    whole_s = CROWDED_NBYTES / rate_bytes_per_s
    pairs, expected = _arrays(comm, 1, CROWDED_NBYTES)
    (x, y), wrong = pairs[0], 0
    ways: dict[str, Callable[[], object]] = {
        "auto": lambda: comm.all_reduce(x, y),
        "ring": lambda: comm.all_reduce(x, y, algorithm="ring"),
    }
    over: dict[str, list[float]] = {name: [] for name in ways}
    with busy(PROCESSES if comm.rank == 0 else 0):
        for turn in range(WARMUPS + TURNS):
            for name, call in ways.items():
                report.progress(f"{name} beside busy processes {turn + 1}/{WARMUPS + TURNS}")
                _clear(pairs)
                comm.barrier(algorithm="dissemination")
                began_s = time.monotonic()
                call()
                took_s = over_ranks(comm, time.monotonic() - began_s, "max")
                if turn >= WARMUPS:
                    over[name].append(took_s / whole_s)
                    wrong += _wrong(pairs, expected)
    wrong = int(over_ranks(comm, wrong, "sum"))
    return {"processes": PROCESSES, "nbytes": CROWDED_NBYTES, "over": over, "wrong": wrong}


Pairs = list[tuple["NDArray[np.float32]", "NDArray[np.float32]"]]


def _arrays(comm: Communicator, count: int, nbytes: int) -> tuple[Pairs, NDArray[np.float32]]:
    """`count` inputs and outputs, and what each output has to be."""
    import numpy as np

    pattern = np.resize(np.arange(31, dtype=np.float32), nbytes // 4)
    pairs = [(pattern + comm.rank, np.zeros_like(pattern)) for _ in range(count)]
    return pairs, pattern * comm.world_size + np.float32(sum(range(comm.world_size)))


def _clear(pairs: Pairs) -> None:
    for _, y in pairs:
        y.fill(-1)


def _wrong(pairs: Pairs, expected: NDArray[np.float32]) -> int:
    return sum(int((y != expected).sum()) for _, y in pairs)


def queue_lines(document: dict[str, Any]) -> list[str]:
    """What of `backward` and `crowded` stands in the document, a line each."""
    said = []
    if (found := document.get("backward")) is not None:
        left = statistics.median(found["left"])
        said.append(f"backward: {left:.2f} buckets left after the last start, {found['wrong']} wrong")
    if (found := document.get("crowded")) is not None:
        each = ", ".join(f"{name} {statistics.median(times):.2f}" for name, times in found["over"].items())
        said.append(f"crowded: {each} of s/rate beside {found['processes']} busy processes, {found['wrong']} wrong")
    return said
