"""One rank of the collectives that `lanterne bench gpu` measures over nccl; rank 0 writes the figures to a file.

Eager calls, captured ones and ncclAllReduce run in turn on the same arrays; times are of the slowest rank. Launch cost
is the CPU's time from the call of `launch` to its return, with nothing to wait for.
"""

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np

NBYTES = 64 << 20
ALGORITHMS = ("ring", "late_join")
# What a launch costs the CPU does not depend on the size.
LAUNCH_NBYTES = 1 << 20
LAUNCHES, ITERATIONS = 200, 7
LAUNCH_BAR_S = 20e-6


def main(file):
    import lanterne

    with lanterne.init(transport="nccl", timeout_s=60.0) as comm:
        import cupy

        stream = cupy.cuda.Stream(non_blocking=True)

        def put(array):
            return cupy.asarray(array)

        with stream:
            records = figures(comm, put, lambda array: array.get(), stream.synchronize)
        if comm.rank == 0:
            Path(file).write_text(json.dumps(records))


def figures(comm, put, get, synchronize, nbytes=NBYTES, launches=LAUNCHES):
    """The figures as dicts (gpu.Figure), on rank 0; all ranks call it.

    Args:
        put, get: host array to device array and back; synchronize: returns once the current stream is done.
    """
    count = nbytes // 4
    source = (np.arange(count) * 7 + 13 * comm.rank).astype(np.int64) % 17
    x, out = put(source.astype(np.float32)), put(np.zeros(count, np.float32))
    expected = np.zeros(count, np.float32)
    comm.all_reduce(source.astype(np.float32), expected, algorithm="ring")
    # One rank alone is never late.
    algorithms = [name for name in ALGORITHMS if name in comm.algorithms("all_reduce")]
    captured = {name: comm.capture("all_reduce", x, out, algorithm=name) for name in algorithms}
    calls = {"nccl": lambda: comm.all_reduce(x, out, algorithm="native")}
    for name in algorithms:
        calls[name] = lambda name=name: comm.all_reduce(x, out, algorithm=name)
        calls[f"{name}, captured"] = captured[name].launch
    times_s, wrong = {name: [] for name in calls}, dict.fromkeys(calls, 0)
    for iteration in range(-1, ITERATIONS):
        for name, call in calls.items():
            comm.barrier()
            started = time.perf_counter()
            call()
            synchronize()
            elapsed_s = _slowest(comm, time.perf_counter() - started)
            if iteration >= 0:
                times_s[name].append(elapsed_s)
            else:
                wrong[name] = int(_slowest(comm, np.count_nonzero(get(out) != expected)))
    records = []
    ranks = f"{comm.world_size} ranks{' that share a GPU' if comm.transport.shares_devices else ''}"
    small = min(count, LAUNCH_NBYTES // 4)
    x, out = put(source[:small].astype(np.float32)), put(np.zeros(small, np.float32))
    for name in algorithms:
        launched = comm.capture("all_reduce", x, out, algorithm=name)
        samples = [_slowest(comm, launch_s) for launch_s in _launch_times_s(launched, synchronize, launches)]
        launched.close()
        value = statistics.median(samples)
        records.append(_figure(f"launch of a captured {name}", value, "s", "<= 20 us", value <= LAUNCH_BAR_S, samples))
    for name in calls:
        if name != "nccl":
            ratios = [peer / ours for peer, ours in zip(times_s["nccl"], times_s[name], strict=True)]
            label = f"{name} all_reduce of {nbytes >> 20} MiB on {ranks}: ncclAllReduce's time over ours"
            records.append(_figure(label, statistics.median(ratios), "", "-", True, ratios))
    records += [
        _figure(f"{name}: elements that differ from the CPU's", count, "", "0", count == 0, [count])
        for name, count in wrong.items()
    ]
    for call in captured.values():
        call.close()
    return records


def _launch_times_s(captured, synchronize, launches):
    """Seconds of the CPU in each of `launches` launches; few at a time, so that no queue fills up."""
    times_s = []
    for index in range(launches):
        started = time.perf_counter()
        captured.launch()
        times_s.append(time.perf_counter() - started)
        if index % 8 == 7:
            synchronize()
    return times_s


def _slowest(comm, value):
    found = np.array([value], np.float64)
    comm.all_reduce(found, found, op="max", algorithm="ring")
    return float(found[0])


def _figure(name, value, unit, bar, ok, samples):
    return {"name": name, "value": float(value), "unit": unit, "bar": bar, "ok": bool(ok), "samples": list(samples)}


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
