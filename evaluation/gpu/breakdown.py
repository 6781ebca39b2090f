"""Where a schedule's time over nccl goes: groups by messages and bytes, schedules beside ncclAllReduce, launches.

Generators of the fields of Figures (figures.py), alike on all ranks, which call them together; see ranks.py. Times of
groups and schedules are from a barrier to the end on the slowest rank, and those of launches the CPU's.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.bench.output.units import format_nbytes
from lanterne.collectives.communicator import Communicator, core_of
from lanterne.collectives.execute.device import DeviceSide
from lanterne.kernels.cuda.device_view import view_device

# What a group may hold, and how many groups follow each other while they are timed.
GROUP_NBYTES, GROUP_MESSAGES, GROUPS = (64 << 10, 1 << 20, 8 << 20, 32 << 20), (1, 2, 4, 8), 10
SCHEDULE_NBYTES = (1 << 20, 64 << 20)
# By name: the options of a call. Those of an algorithm alone have bars.
SCHEDULES: dict[str, dict[str, Any]] = {
    "ring": {"algorithm": "ring"},
    "late_join": {"algorithm": "late_join"},
    "allpairs": {"algorithm": "allpairs"},
    "ring in parts of 2 MiB": {"algorithm": "ring", "segment_nbytes": 2 << 20},
    "ring in parts of 8 MiB": {"algorithm": "ring", "segment_nbytes": 8 << 20},
    "late_join of 4 chunks": {"algorithm": "late_join", "num_chunks": 4},
    "late_join of 12 chunks": {"algorithm": "late_join", "num_chunks": 12},
}
BARS = {"ring": 0.85, "late_join": 0.8}
ITERATIONS = 5
# Parts of a ring's chunk, too long to share a group: each makes its graph longer.
LAUNCH_NBYTES, LAUNCH_PARTS, LAUNCHES = 24 << 20, (1, 2, 4, 8, 16), 24
LAUNCH_BAR_S = 20e-6
Put: TypeAlias = Callable[[NDArray[Any]], Any]
Get: TypeAlias = Callable[[Any], NDArray[Any]]
Call: TypeAlias = Callable[[], object]
Record: TypeAlias = dict[str, Any]


def slowest(comm: Communicator, value: float) -> float:
    """Return the greatest `value` of all ranks."""
    found = np.array([value], np.float64)
    comm.all_reduce(found, found, op="max", algorithm="ring")
    return float(found[0])


def figure(name: str, value: float, unit: str, bar: str, samples: list[float], *, ok: bool) -> Record:
    """Return the fields of a Figure."""
    return {"name": name, "value": float(value), "unit": unit, "bar": bar, "ok": bool(ok), "samples": list(samples)}


def group_figures(comm: Communicator, put: Put, _: Get, synchronize: Call) -> Iterator[Record]:
    """Time of a group by its messages, each to the next rank and from the one before, and by their bytes."""
    most = max(GROUP_NBYTES)
    x, out = (put(np.zeros(most // 4, np.float32)) for _ in range(2))
    comm.all_reduce(x, out, algorithm="ring")
    synchronize()
    side: DeviceSide = core_of(comm).device_side()
    channel, runtime = side.channel, side.runtime
    assert channel is not None, "over nccl"
    after, before = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
    source, target = view_device(x).address, view_device(out).address
    for nbytes in GROUP_NBYTES:
        for count in GROUP_MESSAGES:
            if count * nbytes > most:
                continue
            places = range(0, count * nbytes, nbytes)
            messages = [(True, source + place, nbytes, after) for place in places]
            messages += [(False, target + place, nbytes, before) for place in places]

            def groups(messages: list[tuple[bool, int, int, int]] = messages) -> None:
                user = runtime.current_stream()
                side.enter(side.entry(user, view_device(x)))
                for _ in range(GROUPS):
                    channel.group(messages)
                runtime.wait_event(runtime.record(channel.stream), user)

            times_s = [each / GROUPS for each in _times_s(comm, groups, synchronize)]
            name = f"group of {count} of {format_nbytes(nbytes)} each way"
            yield figure(name, statistics.median(times_s), "s", "-", times_s, ok=True)


def schedule_figures(comm: Communicator, put: Put, get: Get, synchronize: Call) -> Iterator[Record]:
    """Bus bandwidth of schedules, eager and captured, and ncclAllReduce's time over theirs, in turn with it."""
    n = comm.world_size
    offered = comm.algorithms("all_reduce")
    chosen = {name: options for name, options in SCHEDULES.items() if options["algorithm"] in offered}
    for nbytes in SCHEDULE_NBYTES:
        source = ((np.arange(nbytes // 4) * 7 + 13 * comm.rank) % 17).astype(np.float32)
        expected = np.zeros_like(source)
        comm.all_reduce(source, expected, algorithm="ring")
        x, out, unknown = put(source), put(np.zeros_like(source)), put(np.full_like(source, np.nan))
        calls: dict[str, Call] = {"native": partial(comm.all_reduce, x, out, algorithm="native")}
        graphs = []
        for name, options in chosen.items():
            graphs.append(comm.capture("all_reduce", x, out, **options))
            calls[name] = partial(comm.all_reduce, x, out, **options)
            calls[f"{name}, captured"] = graphs[-1].launch
        wrong = 0
        for call in calls.values():
            comm.all_reduce(unknown, out, algorithm="native")
            call()
            synchronize()
            wrong += int(np.count_nonzero(get(out) != expected))
        size = format_nbytes(nbytes)
        wrong = int(slowest(comm, wrong))
        yield figure(f"schedules of {size}: elements that differ from the CPU's", wrong, "", "0", [wrong], ok=not wrong)
        times_s: Mapping[str, list[float]] = {name: [] for name in calls}
        for _ in range(ITERATIONS):
            for name, call in calls.items():
                times_s[name] += _times_s(comm, call, synchronize, 1)
        for name, found in times_s.items():
            speeds = [2e-9 * (n - 1) / n * nbytes / each for each in found]
            yield figure(f"{name}, {size}: busbw in GB/s", statistics.median(speeds), "", "-", speeds, ok=True)
            if name == "native":
                continue
            ratios = [peer / ours for peer, ours in zip(times_s["native"], found, strict=True)]
            bar = BARS.get(name) if nbytes == max(SCHEDULE_NBYTES) else None
            ratio = statistics.median(ratios)
            text = "-" if bar is None else f">= {bar}"
            yield figure(f"{name}, {size}: native's time over ours", ratio, "", text, ratios, ok=ratio >= (bar or 0))
        for graph in graphs:
            graph.close()


def launch_figures(comm: Communicator, put: Put, _: Get, synchronize: Call) -> Iterator[Record]:
    """The CPU's time of a launch by how many groups and folds its graph has."""
    source = np.ones(LAUNCH_NBYTES // 4, np.float32)
    x, out = put(source), put(np.zeros_like(source))
    for parts in LAUNCH_PARTS:
        segment_nbytes = LAUNCH_NBYTES // comm.world_size // parts
        captured = comm.capture("all_reduce", x, out, algorithm="ring", segment_nbytes=segment_nbytes)
        samples = []
        for index in range(LAUNCHES):
            began_s = time.perf_counter()
            captured.launch()
            samples.append(time.perf_counter() - began_s)
            # So that no queue fills up.
            if index % 8 == 7:
                synchronize()
        synchronize()
        value = slowest(comm, statistics.median(samples))
        # Of each round a group for each part, and in the first half a fold.
        name = f"launch of a graph of {3 * (comm.world_size - 1) * parts} groups and folds"
        first = parts == LAUNCH_PARTS[0]
        yield figure(name, value, "s", "<= 20 us" if first else "-", samples, ok=not first or value <= LAUNCH_BAR_S)
        captured.close()


def _times_s(comm: Communicator, call: Call, synchronize: Call, iterations: int = ITERATIONS) -> list[float]:
    """Return the slowest rank's seconds of each of `iterations` calls, after one more where they are several."""
    found = []
    for iteration in range(-(iterations > 1), iterations):
        comm.barrier()
        began_s = time.perf_counter()
        call()
        synchronize()
        elapsed_s = slowest(comm, time.perf_counter() - began_s)
        if iteration >= 0:
            found.append(elapsed_s)
    return found
