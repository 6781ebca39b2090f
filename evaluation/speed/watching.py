"""Benchmark fail-slow tracking: what it costs to be watched, to find iterations, and to redistribute microbatches.

  ./run evaluate failslow
  ./run evaluate failslow --check --json result.json       exit code 1 if a bar is missed

rebalance   the exact distribution over 512 and 4,096 groups (bars 0.3 and 1 ms; optimal: no move of one share helps)
period      iteration times from a call log: right from 4 iterations (bar 0.1 %), with 1 % foreign calls; cost of a call
recorded    one call through the recorder, against the bare call
watch       a loop on several ranks, its page and metrics served, for which nobody asks: the core time of recorder and
            reader over the loop's time, of blocks in a row; then, of blocks with and without `lanterne.watch` in turn,
            the median of the ratios of their times (bar 0.5 %, of both)
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from lanterne.bench.output import report
from lanterne.bench.output.units import format_time, whole
from lanterne.errors import InputError
from lanterne.failslow.mitigate.rebalance import rebalance
from lanterne.failslow.record.period import PeriodTracker, iteration_times
from lanterne.transport.own_python import own_python

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator

# (name, bytes, communicator) of a call.
Symbol: TypeAlias = tuple[str, int, int]
REBALANCE_BARS_S = {512: 0.3e-3, 4096: 1e-3}
PERIOD_BAR, WATCH_BAR = 1e-3, 5e-3
CALLS = 40
COUNT = 64 << 10
# Until then most of what a new watch does is to learn what an iteration is.
LEARNING_BLOCKS = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--repetitions", type=whole(1), default=9, metavar="K", help="of every timing (default 9)")
    parser.add_argument("--blocks", type=whole(1), default=25, metavar="K", help="pairs of blocks in it (default 25)")
    parser.add_argument("--iteration", type=float, default=20.0, metavar="MS", help="of computing in it (default 20)")
    ranks = min(4, os.cpu_count() or 1)
    words = f"ranks of the watch (default: one a core, at most 4; here {ranks}); sharing cores hides half a percent"
    parser.add_argument("-n", "--ranks", type=whole(1), default=ranks, metavar="N", help=words)
    parser.add_argument("--transport", default="mpi", help="of the watch: mpi (default), ucx or local")
    parser.add_argument("--check", action="store_true", help="print the bars; exit code 1 if one is missed")
    parser.add_argument("--json", metavar="FILE", help="write everything, raw samples too ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    """Measure and print; the exit code."""
    from lanterne.transport.job.bootstrap import in_a_job

    if not 0 < args.iteration <= 1e6:
        raise InputError(f"--iteration: got {args.iteration:g}, expected more than 0 ms, at most 1e6")
    if args.transport != "local" and in_a_job():
        return watched_rank(args)
    records = [*_rebalance(args.repetitions), *_period(args.repetitions), _recorded(args.repetitions), *_watch(args)]
    report.progress("")
    if args.json:
        report.write_json(args.json, report.envelope(results=records))
    columns, rows = [("measured", ""), ("median", "")], [[r["what"], _shown(r)] for r in records]
    if args.check:
        columns += [("bar", ""), ("", "")]
        for row, r in zip(rows, records, strict=True):
            row += ["-" if r["bar"] is None else _value(r, r["bar"]), "" if r["met"] else "missed"]
    file = sys.stderr if args.json == "-" else sys.stdout
    report.print_table(columns, rows, file=file)
    return int(args.check and not all(record["met"] for record in records))


def _record(what: str, unit: str, samples: Sequence[float], bar: float | None, valid: bool = True) -> dict[str, Any]:
    middle = statistics.median(samples)
    met = valid and (bar is None or middle <= bar)
    return {"what": what, "unit": unit, "samples": samples, "median": middle, "bar": bar, "valid": valid, "met": met}


def _value(record: dict[str, Any], value: float) -> str:
    return format_time(value) if record["unit"] == "s" else f"{100 * value:.3g} %"


def _shown(record: dict[str, Any]) -> str:
    return _value(record, record["median"]) + ("" if record["valid"] else " (wrong result)")


def _timed_s(call: Callable[[], object], repetitions: int) -> list[float]:
    call()
    found = []
    for _ in range(repetitions):
        start_s = time.perf_counter()
        call()
        found.append(time.perf_counter() - start_s)
    return found


def _rebalance(repetitions: int) -> Iterator[dict[str, Any]]:
    for groups, bar_s in REBALANCE_BARS_S.items():
        report.progress(f"rebalance, {groups} groups")
        rng = random.Random(groups)
        times = [rng.uniform(1.0, 1.1) * (1.6 if rng.random() < 0.05 else 1.0) for _ in range(groups)]
        balance = rebalance(times, 32 * groups)
        # Optimal: with one share less the slowest group is done earlier, but no other can take it in that time.
        shares = balance.microbatches
        fits = all(t * (m + 1) >= balance.makespan * (1 - 1e-12) for t, m in zip(times, shares, strict=True))
        valid = sum(shares) == 32 * groups and fits
        samples = _timed_s(partial(rebalance, times, 32 * groups), repetitions)
        yield _record(f"rebalance, {groups} groups", "s", samples, bar_s, valid)


def _period(repetitions: int) -> Iterator[dict[str, Any]]:
    """The error of the first iteration times from 4 iterations on, and the cost of a call once the marker is final."""
    report.progress("period")
    errors = []
    for seed in range(repetitions):
        symbols, times_s, lengths_s = call_log(5, seed)
        found = iteration_times(symbols, times_s)
        errors.append(min(abs(s / lengths_s[-1] - 1) for s in found[-1:]) if found else 1.0)
    yield _record("period, error after 5 iterations", "", errors, PERIOD_BAR)
    symbols, times_s, _ = call_log(500, 0)

    def track() -> None:
        tracker = PeriodTracker()
        for symbol, time_s in zip(symbols, times_s, strict=True):
            tracker.record(symbol, time_s)

    samples = [taken_s / len(symbols) for taken_s in _timed_s(track, repetitions)]
    yield _record("period, a call, learning included", "s", samples, None)


def call_log(iterations: int, seed: int) -> tuple[list[Symbol], list[float], list[float]]:
    """(symbols, times_s, iteration lengths_s) of a job of CALLS calls an iteration, and 1 % foreign ones."""
    rng = random.Random(seed)
    symbols: list[Symbol] = []
    times_s: list[float] = []
    lengths_s: list[float] = []
    now_s = 0.0
    for _ in range(iterations):
        length_s = 0.1 * rng.uniform(0.98, 1.02)
        for index in range(CALLS):
            symbol = ("all_reduce", 4096, 0) if index == CALLS - 1 else ("all_gather", index % 4, 1)
            symbols.append(symbol)
            times_s.append(now_s + (index + 1) * length_s / CALLS)
            if rng.random() < 0.01:
                symbols.append(("barrier", 0, rng.randrange(9)))
                times_s.append(times_s[-1])
        now_s += length_s
        lengths_s.append(length_s)
    return symbols, times_s, lengths_s


class _Nothing:
    """A communicator whose calls return at once."""

    communicator_id, ranks, world_size = 0, (0, 1), 2

    class transport:
        rank, name = 0, "nothing"

    def all_reduce(self, x: object, y: object) -> None:
        return None


def _recorded(repetitions: int, calls: int = 20_000) -> dict[str, Any]:
    """Seconds that the recorder adds to a call."""
    from pathlib import Path

    import numpy as np

    from lanterne.failslow.record.adapters import watch_communicator
    from lanterne.failslow.record.call_ring import RingReader
    from lanterne.failslow.record.recorder import Recorder

    report.progress("recorded calls")
    bare, x = _Nothing(), np.empty(1)
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(folder)
        recorded = watch_communicator(bare, "all_reduce", recorder, bare)

        def loop(call: Callable[[object, object], object]) -> None:
            for _ in range(calls):
                call(x, x)

        with_s = _timed_s(lambda: loop(recorded), repetitions)
        without_s = _timed_s(lambda: loop(bare.all_reduce), repetitions)
        recorder.end()
        begun = [RingReader(path).begun for path in Path(folder).glob("*.calls")]
        added_s = [(a - b) / calls for a, b in zip(with_s, without_s, strict=True)]
        return _record("recorded, a call", "s", added_s, None, valid=begun == [(repetitions + 1) * calls])


# -- watch


def _watch(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Records of the job that `watched_rank` runs."""
    import json
    from pathlib import Path

    report.progress(f"watch on {args.ranks} ranks")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "watch.json"
        os.environ["LANTERNE_BENCH_WATCH"] = str(file)
        try:
            _run_watched(args)
        finally:
            del os.environ["LANTERNE_BENCH_WATCH"]
        found = json.loads(file.read_text())
    yield _record("watch, on the loop's time", "", found["ratios"], WATCH_BAR, found["valid"])
    yield _record("watch, by its own core time", "", found["shares"], WATCH_BAR)


def _run_watched(args: argparse.Namespace) -> None:
    if args.transport == "local":
        from lanterne.collectives.jobs import spawn

        spawn(args.ranks, measure_watch, args)
        return
    from lanterne.transport.job.launch import launch

    words = [*own_python(), "-m", "evaluation", "failslow", "--blocks", str(args.blocks)]
    words += ["--iteration", str(args.iteration), "--transport", args.transport]
    code = launch(words, args.ranks, launcher="mpi" if args.transport == "mpi" else "direct")
    if code:
        raise InputError(f"watch: the job ended with code {code}, expected 0")


def watched_rank(args: argparse.Namespace) -> int:
    """What each rank of the job runs."""
    from lanterne.collectives.jobs import init

    with init(transport=args.transport) as comm:
        measure_watch(comm, args)
    return 0


def measure_watch(comm: "Communicator", args: argparse.Namespace, iterations: int = 30) -> None:
    """Time blocks of a loop with and without a watch, in turn; rank 0 writes the ratios of their times, less 1."""
    import json
    from pathlib import Path

    import numpy as np

    from lanterne.failslow.record.watch import watch

    x, y = np.ones(COUNT, np.float32), np.empty(COUNT, np.float32)

    def block(all_reduce: Callable[..., object], barrier: Callable[[], object]) -> float:
        barrier()
        start_s = time.monotonic()
        for _ in range(iterations):
            time.sleep(args.iteration / 1e3)
            for _ in range(4):
                all_reduce(x, y, algorithm="ring")
            barrier()
        return time.monotonic() - start_s

    bare = comm.all_reduce, comm.barrier
    ratios, blocks = [], LEARNING_BLOCKS + 2 * args.blocks
    with watch(comm, listen="127.0.0.1:0") as seen:
        recorded = comm.all_reduce, comm.barrier
        for _ in range(LEARNING_BLOCKS):
            block(*recorded)
        # Blocks without calls are pauses, in which logs are read more often: the core time is that of a loop without.
        before_s = seen.reader_s
        watched_s = sum(block(*recorded) for _ in range(args.blocks))
        reader_s = seen.reader_s - before_s
        for pair in range(args.blocks):
            order = (recorded, bare) if pair % 2 else (bare, recorded)
            times_s = {calls: block(*calls) for calls in order}
            ratios.append(times_s[recorded] / times_s[bare] - 1)
    expected = blocks * (5 * iterations + 1)
    assert seen.report is not None
    valid = [rank["calls"] for rank in seen.report["arrivals"]["ranks"]] == [expected] * comm.world_size
    if comm.rank == 0:
        # What a recorded call costs here, times the calls; and what rank 0 spends on reading all ranks' logs.
        each_s = _recorded(3)["median"]
        shares = [(5 * iterations * args.blocks * each_s + reader_s) / watched_s]
        found = {"ratios": ratios, "shares": shares, "valid": bool(valid and (y == comm.world_size).all())}
        Path(os.environ["LANTERNE_BENCH_WATCH"]).write_text(json.dumps(found))
