"""One rank of the collectives that `./run evaluate gpu` measures over nccl; rank 0 writes the figures to a file.

Eager calls, captured ones and ncclAllReduce run in turn on the same arrays; times are of the slowest rank. Launch cost
is the CPU's time from the call of `launch` to its return, with nothing to wait for. A decision is the CPU's time from
when the board's record of a call is there to the launch of the graph that it names. Emulated links come last.
"""

import faulthandler
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluation.gpu.emulated_links import link_figures
from lanterne.bench.output.report import write_json
from lanterne.collectives.captured import Captured
from lanterne.collectives.communicator import Communicator, core_of
from lanterne.collectives.late import calls as late
from lanterne.pipeline.device.device_stage import cuda_device
from lanterne.transport.board.sequencer import SEEN

NBYTES = 64 << 20
ALGORITHMS = ("ring", "late_join")
# What a launch costs the CPU does not depend on the size.
LAUNCH_NBYTES = 1 << 20
LAUNCHES, ITERATIONS = 200, 7
LAUNCH_BAR_S = DECISION_BAR_S = 20e-6
# Calls whose records are timed, and how late one rank of each comes.
DECISIONS, LATE_S = 48, 5e-3
# Host array to device array; `Call` returns once something is done.
Put: TypeAlias = Callable[[NDArray[Any]], Any]
Call: TypeAlias = Callable[[], object]


def main(file: str) -> None:
    import lanterne
    from evaluation.gpu.figures import JOB_S

    # Where each thread is, shortly before the job is given up.
    faulthandler.dump_traceback_later(JOB_S - 4.0)
    # The board is asked about the short calls of `_decision_figures`, too.
    late.LEAST_NORMAL_S = 0.0
    with lanterne.init(transport="nccl", timeout_s=60.0) as comm:
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)

        def put(array: NDArray[Any]) -> Any:
            return cupy.asarray(array)

        records: list[dict[str, Any]] = []
        with stream:
            found = figures(comm, put, lambda array: array.get(), stream.synchronize)
            links = link_figures(comm, cuda_device(comm), lambda value: _slowest(comm, value))
            for record in chain(found, links):
                records.append(record)
                # Anew each time: a job that is ended has told what it had found.
                if comm.rank == 0:
                    write_json(file, records)


def figures(
    comm: Communicator,
    put: Put,
    get: Callable[[Any], NDArray[Any]],
    synchronize: Call,
    nbytes: int = NBYTES,
    launches: int = LAUNCHES,
) -> Iterator[dict[str, Any]]:
    """Yields the fields of Figures (figures.py), alike on all ranks, which call it together; launches first.

    Args:
        put, get: host array to device array and back; synchronize: returns once the current stream is done.
    """
    source = (np.arange(nbytes // 4) * 7 + 13 * comm.rank).astype(np.int64) % 17
    # One rank alone is never late.
    algorithms = [name for name in ALGORITHMS if name in comm.algorithms("all_reduce")]
    yield from _launch_figures(comm, algorithms, source[: LAUNCH_NBYTES // 4], put, synchronize, launches)
    yield from _decision_figures(comm, source[: LAUNCH_NBYTES // 4], put, synchronize)
    x, out = put(source.astype(np.float32)), put(np.zeros(source.size, np.float32))
    unknown = put(np.full(source.size, np.nan, np.float32))
    expected = np.zeros(source.size, np.float32)
    comm.all_reduce(source.astype(np.float32), expected, algorithm="ring")
    captured = {name: comm.capture("all_reduce", x, out, algorithm=name) for name in algorithms}
    calls: dict[str, Call] = {"nccl": partial(comm.all_reduce, x, out, algorithm="native")}
    for name in algorithms:
        calls[name] = partial(comm.all_reduce, x, out, algorithm=name)
        calls[f"{name}, captured"] = captured[name].launch
    times_s: dict[str, list[float]] = {name: [] for name in calls}
    for iteration in range(-1, ITERATIONS):
        for name, call in calls.items():
            if iteration < 0:
                # The result of the call before would be right, too.
                comm.all_reduce(unknown, out, algorithm="native")
            comm.barrier()
            started = time.perf_counter()
            call()
            synchronize()
            elapsed_s = _slowest(comm, time.perf_counter() - started)
            if iteration >= 0:
                times_s[name].append(elapsed_s)
            else:
                wrong = int(_slowest(comm, int(np.count_nonzero(get(out) != expected))))
                yield _figure(f"{name}: elements that differ from the CPU's", wrong, "", "0", wrong == 0, [wrong])
    ranks = f"{comm.world_size} ranks{' that share a GPU' if comm.transport.shares_devices else ''}"
    for name in calls:
        if name != "nccl":
            ratios = [peer / ours for peer, ours in zip(times_s["nccl"], times_s[name], strict=True)]
            label = f"{name} all_reduce of {nbytes >> 20} MiB on {ranks}: ncclAllReduce's time over ours"
            yield _figure(label, statistics.median(ratios), "", "-", True, ratios)
    for graph in captured.values():
        graph.close()


def _launch_figures(
    comm: Communicator, algorithms: Sequence[str], source: NDArray[np.int64], put: Put, synchronize: Call, launches: int
) -> Iterator[dict[str, Any]]:
    x, out = put(source.astype(np.float32)), put(np.zeros(source.size, np.float32))
    for name in algorithms:
        captured = comm.capture("all_reduce", x, out, algorithm=name)
        samples = [_slowest(comm, launch_s) for launch_s in _launch_times_s(captured, synchronize, launches)]
        captured.close()
        value = statistics.median(samples)
        yield _figure(f"launch of a captured {name}", value, "s", "<= 20 us", value <= LAUNCH_BAR_S, samples)


def _decision_figures(
    comm: Communicator, source: NDArray[np.int64], put: Put, synchronize: Call
) -> Iterator[dict[str, Any]]:
    """What a rank needs to pick a graph once it knows who is late; two ranks are never asked."""
    x, out = put(source.astype(np.float32)), put(np.zeros(source.size, np.float32))
    captured = comm.capture("all_reduce", x, out)
    if captured.asks:
        times_s: list[float] = []
        with _timed_decisions(comm, times_s):
            for call in range(DECISIONS):
                if call % comm.world_size == comm.rank:
                    time.sleep(LATE_S)
                captured.launch()
                synchronize()
        value = _slowest(comm, statistics.median(times_s))
        what = "from the record of who is late to the launch"
        yield _figure(what, value, "s", "<= 20 us", value <= DECISION_BAR_S, times_s)
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


def _launch_times_s(captured: Captured, synchronize: Call, launches: int) -> list[float]:
    """Seconds of the CPU in each of `launches` launches; few at a time, so that no queue fills up."""
    times_s = []
    for index in range(launches):
        started = time.perf_counter()
        captured.launch()
        times_s.append(time.perf_counter() - started)
        if index % 8 == 7:
            synchronize()
    return times_s


def _slowest(comm: Communicator, value: float) -> float:
    found = np.array([value], np.float64)
    comm.all_reduce(found, found, op="max", algorithm="ring")
    return float(found[0])


def _figure(name: str, value: float, unit: str, bar: str, ok: bool, samples: Sequence[float]) -> dict[str, Any]:
    return {"name": name, "value": float(value), "unit": unit, "bar": bar, "ok": bool(ok), "samples": list(samples)}


if __name__ == "__main__":
    main(*sys.argv[1:])
