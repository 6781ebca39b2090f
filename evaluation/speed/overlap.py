"""A call beside a computation: started, computed as long as the call takes alone, waited for."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lanterne.bench.output import report

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator

NBYTES, TURNS, WARMUPS = 16 << 20, 5, 3
SIDE = 192
# Rounds of a Python loop between two looks at the clock while its speed is found.
ROUNDS = 10_000


def overlap(comm: Communicator) -> list[dict[str, Any]]:
    """For each way to compute: seconds of the call alone, of the computation alone, of both, and CPU seconds.

    `over`: (start, compute, wait) over the longer of the two, the median of TURNS; 1 hides all. `cpu_over`: CPU time of
    the call beside a sleeping program over that of a blocking call. Times are those of the slowest rank.
    """
    import numpy as np

    x = np.resize(np.arange(31, dtype=np.float32) + comm.rank, NBYTES // 4)
    y, expected = (
        np.zeros_like(x),
        np.resize(np.arange(31, dtype=np.float32) * comm.world_size + sum(range(comm.world_size)), NBYTES // 4),
    )
    for _ in range(WARMUPS):
        comm.all_reduce(x, y)
    alone = [_timed(comm, lambda: comm.all_reduce(x, y)) for _ in range(TURNS)]
    alone_s, blocking_cpu_s = (statistics.median(values) for values in zip(*alone, strict=True))
    rows = []
    for name, work in _works(alone_s).items():
        report.progress(f"overlap: {name}")
        work_s = statistics.median(_timed(comm, work)[0] for _ in range(TURNS))
        both: list[tuple[float, float]] = []
        wrong = 0
        for _ in range(TURNS):
            y.fill(-1)

            def start_work_wait(work: Callable[[], object] = work) -> None:
                request = comm.start_all_reduce(x, y)
                work()
                request.wait()

            both.append(_timed(comm, start_work_wait))
            wrong += int((y != expected).sum())
        times, cpus = zip(*both, strict=True)
        longer_s = max(alone_s, work_s)
        row: dict[str, Any] = {"work": name, "alone_s": alone_s, "work_s": work_s, "both_s": list(times)}
        row["over"] = statistics.median(times) / longer_s
        # A program that computes takes its own time, too.
        row["cpu_over"] = statistics.median(cpus) / blocking_cpu_s if name == "asleep" else None
        rows.append(row | {"wrong": int(over_ranks(comm, wrong, "sum"))})
    return rows


def _works(seconds: float) -> dict[str, Callable[[], object]]:
    """Computations of about `seconds` on an idle core; each does the same every time."""
    import numpy as np

    a = np.ones((SIDE, SIDE), np.float32)
    b = np.empty_like(a)

    def multiply(times: int) -> None:
        for _ in range(times):
            np.matmul(a, a, out=b)

    def count(times: int) -> None:
        total = 0
        for number in range(times):
            total += number & 7

    products = _times(lambda: multiply(10), seconds) * 10
    rounds = _times(lambda: count(ROUNDS), seconds) * ROUNDS
    return {
        "asleep": lambda: time.sleep(seconds),
        "matmul": lambda: multiply(products),
        "Python loop": lambda: count(rounds),
    }


def _times(work: Callable[[], object], seconds: float) -> int:
    """How often `work` can be done in `seconds`."""
    work()
    times, began_s = 0, time.perf_counter()
    while (took_s := time.perf_counter() - began_s) < min(seconds, 0.2):
        work()
        times += 1
    return max(1, round(times * seconds / took_s))


def _timed(comm: Communicator, work: Callable[[], object]) -> tuple[float, float]:
    """(seconds, CPU seconds) of `work`, which all ranks begin together: the most of a rank, the mean of all."""
    comm.barrier(algorithm="dissemination")
    cpu_s, began_s = time.process_time(), time.perf_counter()
    work()
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    return over_ranks(comm, took_s, "max"), over_ranks(comm, cpu_s, "mean")


def over_ranks(comm: Communicator, value: float, op: str) -> float:
    """`op` of all ranks' values."""
    import numpy as np

    x = np.array([float(value)])
    comm.all_reduce(x, x, op, algorithm="recursive_doubling")
    return float(x[0])
