"""One rank of a part of what `./run evaluate gpu` measures over nccl; rank 0 writes the figures to a file.

Parts: schedules, groups and launches (breakdown.py), with launches the choice of a graph by who is late: the CPU's time
from when the board's record of a call is there to the launch of the graph that it names; and emulated links.
"""

import faulthandler
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.gpu.breakdown import (
    LAUNCH_BAR_S,
    Call,
    Get,
    Put,
    Record,
    figure,
    group_figures,
    launch_figures,
    schedule_figures,
    slowest,
)
from evaluation.gpu.emulated_links import link_figures
from lanterne.bench.output.report import write_json
from lanterne.collectives.communicator import Communicator, core_of
from lanterne.collectives.late import calls as late
from lanterne.pipeline.device.device_stage import cuda_device
from lanterne.transport.board.sequencer import SEEN

# Calls whose records are timed, and how late one rank of each comes.
DECISIONS, LATE_S = 48, 5e-3
DECISION_NBYTES = 1 << 20  # what it takes does not depend on it


def main(file: str, part: str, limit_s: str) -> None:
    """Write the figures of `part` to `file`, anew after each; the job is given up after `limit_s`."""
    import lanterne

    # Where each thread is, shortly before.
    faulthandler.dump_traceback_later(max(1.0, float(limit_s) - 4.0))
    # The board is asked about the short calls of `decision_figures`, too.
    late.LEAST_NORMAL_S = 0.0
    with lanterne.init(transport="nccl", timeout_s=60.0) as comm:
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)

        def put(array: NDArray[Any]) -> Any:
            return cupy.asarray(array)

        records: list[Record] = []
        with stream:
            for record in figures(comm, part, put, lambda array: array.get(), stream.synchronize):
                records.append(record)
                if comm.rank == 0:
                    write_json(file, records)


def figures(comm: Communicator, part: str, put: Put, get: Get, synchronize: Call) -> Iterator[Record]:
    """Yield the fields of the Figures (figures.py) of `part`, alike on all ranks, which call it together.

    Args:
        put, get: host array to device array and back; synchronize: returns once the current stream is done.
    """
    if part == "links":
        yield from link_figures(comm, cuda_device(comm), partial(slowest, comm))
        return
    makers: dict[str, list[Callable[[Communicator, Put, Get, Call], Iterator[Record]]]] = {
        "schedules": [schedule_figures],
        "groups": [group_figures],
        "launches": [launch_figures, decision_figures],
    }
    yield from chain.from_iterable(maker(comm, put, get, synchronize) for maker in makers[part])


def decision_figures(comm: Communicator, put: Put, _: Get, synchronize: Call) -> Iterator[Record]:
    """What a rank needs to pick a graph once it knows who is late; two ranks are never asked."""
    x, out = (put(np.zeros(DECISION_NBYTES // 4, np.float32)) for _ in range(2))
    captured = comm.capture("all_reduce", x, out)
    if captured.asks:
        times_s: list[float] = []
        with _timed_decisions(comm, times_s):
            for call in range(DECISIONS):
                if call % comm.world_size == comm.rank:
                    time.sleep(LATE_S)
                captured.launch()
                synchronize()
        value = slowest(comm, statistics.median(times_s))
        what = "from the record of who is late to the launch"
        yield figure(what, value, "s", "<= 20 us", times_s, ok=value <= LAUNCH_BAR_S)
    captured.close()


@contextmanager
def _timed_decisions(comm: Communicator, times_s: list[float]) -> Iterator[None]:
    """Appends to `times_s` the seconds from each record to the launch that it leads to."""
    runtime: Any = core_of(comm).device_side().runtime
    seat: Any = core_of(comm).late.seat
    known_s: list[float] = []
    take, launch = seat.take, runtime.launch

    def timed_take() -> Any:
        record = take()
        if record is not None and record.verdict != SEEN:
            known_s[:] = [time.perf_counter()]
        return record

    def timed_launch(graph: Any, stream: Any) -> None:
        if known_s:
            times_s.append(time.perf_counter() - known_s.pop())
        launch(graph, stream)

    seat.take = timed_take
    runtime.launch = timed_launch
    try:
        yield
    finally:
        seat.take = take
        runtime.launch = launch


if __name__ == "__main__":
    main(*sys.argv[1:])
