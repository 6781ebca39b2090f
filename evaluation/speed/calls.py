"""Benchmark what calls cost: small ones, those of a megabyte, and a rank's CPU time, against MPI's own.

  ./run evaluate calls                               2 ranks of this host
  ./run evaluate calls -n 4 --only small
  lanterne lab --hosts 8 --rate 200mbit -- ./run evaluate calls --only cpu     (root)
  lanterne lab --hosts 2 --rate 200mbit -- ./run evaluate calls --only overlap (root)
  lanterne lab --hosts 8 --rate 200mbit -- ./run evaluate calls --only backward,crowded    (root)

Every case is timed in blocks of calls, one after the other, MPI's own between ours; a block's time is that of the
slowest rank, over its calls. `over MPI` is the median of the ratios to MPI's block of the same turn. Results are
checked after every block. `small`: an all_reduce of 8 bytes, bound (Communicator.bind), plain, and by the named
algorithm ring; `large`: the other collectives; `cpu`: seconds of CPU that a rank spends for a gigabyte that it sends,
in a ring of 16 MiB. `steps`: functions of lanterne that Python enters from `comm.all_reduce(x, y, algorithm="ring")`
to the transport's `post`, and how often the next one is of another file. `overlap`, if asked for: an all_reduce of 16
MiB is started, the program sleeps, multiplies matrices or runs a Python loop for as long as the call takes alone, then
waits; all of it over the longer of the two. `backward` and `crowded`, if asked for, where the rate of the links is
known: 8 buckets of 4 MiB with a bucket's time of sleep between their starts, one rank behind by 1.1 times the time of
all: what is left after its last start; and an all_reduce of 16 MiB beside 8 busy processes.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from evaluation.speed.overlap import over_ranks, overlap
from evaluation.speed.queues import backward, crowded, queue_lines
from lanterne.bench.collective.settings import known_rate_bytes_per_s
from lanterne.bench.output import report
from lanterne.bench.output.given_options import GivenOptions
from lanterne.bench.output.units import format_nbytes, format_time, whole
from lanterne.errors import InputError, one_of
from lanterne.transport.job.launch import MAX_WORLD_SIZE

if TYPE_CHECKING:
    from types import FrameType

    import numpy as np
    from mpi4py import MPI
    from numpy.typing import NDArray

    from lanterne.collectives.communicator import Communicator

PARTS = ("small", "large", "cpu", "steps")
LINK_PARTS = ("backward", "crowded")
ALL_PARTS = (*PARTS, "overlap", *LINK_PARTS)
NATIVE = "MPI"
# Calls of a block take about this long; turns of all cases.
BLOCK_S, TURNS, MOST_CALLS = 2e-3, 40, 200
LARGE_TURNS = 15
# Of a rank's buffer, by collective: the larger of input and output.
SIZES = {
    "broadcast": (1 << 20, 16 << 20),
    "all_gather": (1 << 10, 1 << 20),
    "reduce_scatter": (1 << 10, 1 << 20),
    "all_to_all": (1 << 10, 1 << 20),
}
CPU_NBYTES, CPU_S = 16 << 20, 4.0


class CallContender(NamedTuple):
    """A way to make a call, and what its output has to be."""

    name: str
    call: Callable[[], object]
    out: NDArray[np.float64]
    expected: NDArray[np.float64]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("-n", type=int, default=2, metavar="N", help="ranks to start (default 2); not in a job")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,...", help=f"of {', '.join(ALL_PARTS)}")
    parser.add_argument("--transport", default=None, help="default: as every program has it; MPI's own needs mpi")
    parser.add_argument("--rate", metavar="RATE", help="of the links, for backward and crowded (default: the lab's)")
    parser.add_argument("--turns", type=whole(1), default=TURNS, metavar="K", help=f"of small calls (default {TURNS})")
    parser.add_argument("--json", metavar="FILE", help="write everything, raw samples too ('-' for standard output)")


def run(args: GivenOptions) -> int:
    """Start the ranks, or be one; the exit code."""
    parts = args.only.split(",")
    for part in parts:
        if part not in ALL_PARTS:
            raise InputError(f"--only: {one_of(part, ALL_PARTS)}")
    if "overlap" in parts:
        # A rank computes on one core; read when numpy is loaded.
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(name, "1")
    rate_bytes_per_s = known_rate_bytes_per_s(args.rate)
    if rate_bytes_per_s is None and (asked := [part for part in parts if part in LINK_PARTS]):
        raise InputError(f"--rate: got none for {', '.join(asked)}, expected that of the links, as 200mbit")
    if not 2 <= args.n <= MAX_WORLD_SIZE:
        raise InputError(f"-n: got {args.n}, expected 2 to {MAX_WORLD_SIZE}")
    from lanterne.transport.job.bootstrap import in_a_job

    if not in_a_job():
        from lanterne.transport.job.launch import launch

        launcher = "mpi" if args.transport in (None, "mpi") else "direct"
        return launch(args.own_command(), args.n, launcher=launcher)

    import lanterne

    with lanterne.init(transport=args.transport) as comm:
        contest = CallContest(comm)
        results: list[dict[str, Any]] = []
        if "small" in parts:
            results.append(contest.small(args.turns))
        if "large" in parts:
            results += [contest.large(name, nbytes) for name, sizes in SIZES.items() for nbytes in sizes]
        document = report.envelope(results=results)
        if "cpu" in parts:
            document["cpu"] = contest.cpu()
        if "overlap" in parts:
            document["overlap"] = overlap(comm)
        if rate_bytes_per_s is not None:
            for part, measure in (("backward", backward), ("crowded", crowded)):
                if part in parts:
                    document[part] = measure(comm, rate_bytes_per_s)
        if "steps" in parts:
            calls, changes = steps(comm)
            document["steps"] = {"calls": calls, "changes_of_file": changes}
        report.progress("")
        if comm.rank == 0:
            report.tell(args.json, document, print_document)
    beside = [*document.get("overlap", []), *(document[part] for part in LINK_PARTS if part in document)]
    return int(any(row["wrong"] for row in [*beside, *(row for result in results for row in result["rows"])]))


class CallContest:
    """The contenders on the ranks of `comm`; MPI's own where the job has MPI."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.bare: MPI.Intracomm | None = None
        if comm.transport.name == "mpi":
            from lanterne.transport.mpi.over_mpi import load_mpi

            self.bare = load_mpi().COMM_WORLD.Dup()

    def small(self, turns: int) -> dict[str, Any]:
        """The all_reduce of 8 bytes."""
        import numpy as np

        comm, bare = self.comm, self.bare
        n = comm.world_size
        x, y = np.array([comm.rank + 1.0]), np.zeros(1)
        expected = np.array([n * (n + 1) / 2])
        ways: dict[str, Callable[[], object]] = {
            "bound": comm.bind("all_reduce", x, y),
            "plain": lambda: comm.all_reduce(x, y),
            "ring": lambda: comm.all_reduce(x, y, algorithm="ring"),
        }
        if bare is not None:
            ways[NATIVE] = lambda: bare.Allreduce(x, y)
        rows = self._compare([CallContender(name, call, y, expected) for name, call in ways.items()], turns)
        return {"collective": "all_reduce", "ranks": n, "nbytes": 8, "rows": rows}

    def large(self, collective: str, nbytes: int) -> dict[str, Any]:
        """A collective by auto."""
        import numpy as np

        comm, bare = self.comm, self.bare
        n, me = comm.world_size, comm.rank
        count = nbytes // 8 // n
        inputs = [np.arange(count * n) % 31.0 + rank for rank in range(n)]
        whole, part = inputs[me].copy(), inputs[me][:count].copy()
        out, out_part = np.zeros(count * n), np.zeros(count)
        # What is written, what it has to be, the arguments, and MPI's own name.
        result, expected, arguments, verb = {
            "broadcast": (out, inputs[0], (out,), "Bcast"),
            "all_gather": (out, np.concatenate([x[:count] for x in inputs]), (part, out), "Allgather"),
            "reduce_scatter": (
                out_part,
                np.sum(inputs, axis=0, dtype=np.float64).reshape(n, -1)[me],
                (whole, out_part),
                "Reduce_scatter_block",
            ),
            "all_to_all": (out, np.concatenate([x.reshape(n, -1)[me] for x in inputs]), (whole, out), "Alltoall"),
        }[collective]
        if collective == "broadcast":
            out[:] = inputs[0]
        contenders = [CallContender("auto", partial(getattr(comm, collective), *arguments), result, expected)]
        if bare is not None:
            contenders.append(CallContender(NATIVE, partial(getattr(bare, verb), *arguments), result, expected))
        # The root's data are those that it receives anew each time.
        keeps = collective == "broadcast" and me == 0
        rows = self._compare(contenders, LARGE_TURNS, keeps)
        return {"collective": collective, "ranks": n, "nbytes": count * n * 8, "rows": rows}

    def _compare(self, contenders: list[CallContender], turns: int, keeps: bool = False) -> list[dict[str, Any]]:
        """A row for each; `keeps`: the output is the input, too."""
        samples: list[list[float]] = [[] for _ in contenders]
        wrong = [0] * len(contenders)
        calls = [self._calls(contender.call) for contender in contenders]
        for turn in range(turns):
            for index, contender in enumerate(contenders):
                report.progress(f"{contender.name} {turn + 1}/{turns}")
                if not keeps:
                    contender.out.fill(-1)
                samples[index].append(self._block(contender.call, calls[index]))
                wrong[index] += int((contender.out != contender.expected).sum())
        everybody = [self._sum(float(number)) for number in wrong]
        peer = next((times for c, times in zip(contenders, samples, strict=True) if c.name == NATIVE), None)
        return [
            {
                "way": contender.name,
                "time_s": times,
                "calls": calls[index],
                "over_mpi": peer and statistics.median(a / b for a, b in zip(times, peer, strict=True)),
                "wrong": int(everybody[index]),
            }
            for index, (contender, times) in enumerate(zip(contenders, samples, strict=True))
        ]

    def _calls(self, call: Callable[[], object]) -> int:
        """How many calls are a block."""
        self._block(call, 3)
        took_s = min(self._block(call, 3) for _ in range(3))
        return max(1, min(MOST_CALLS, int(BLOCK_S / took_s)))

    def _block(self, call: Callable[[], object], calls: int) -> float:
        """Seconds of one of `calls` calls on the slowest rank."""
        self.comm.barrier(algorithm="dissemination")
        started = time.perf_counter()
        for _ in range(calls):
            call()
        return self._most((time.perf_counter() - started) / calls)

    def _most(self, value: float) -> float:
        return over_ranks(self.comm, value, "max")

    def _sum(self, value: float) -> float:
        return over_ranks(self.comm, value, "sum")

    def cpu(self) -> dict[str, Any]:
        """Seconds of CPU for a gigabyte sent, the mean of the ranks, children's and kernel's included."""
        import numpy as np

        comm = self.comm
        n = comm.world_size
        x, y = np.ones(CPU_NBYTES // 4, np.float32), np.zeros(CPU_NBYTES // 4, np.float32)
        took_s = self._block(lambda: comm.all_reduce(x, y, algorithm="ring"), 2)
        calls = max(1, int(CPU_S / took_s))
        before = os.times()
        started = time.perf_counter()
        for _ in range(calls):
            comm.all_reduce(x, y, algorithm="ring")
        took_s = time.perf_counter() - started
        after = os.times()
        spent_s = self._sum(sum(after[:4]) - sum(before[:4])) / n
        sent_gb = calls * 2 * (n - 1) / n * CPU_NBYTES / 1e9
        return {"ranks": n, "cpu_s_per_gb": spent_s / sent_gb, "seconds": took_s, "sent_gb": sent_gb, "calls": calls}


def steps(comm: Communicator) -> tuple[int, int]:
    """(functions of lanterne entered, changes of file) from all_reduce by a named algorithm to post."""
    import numpy as np

    x, y = np.ones(64), np.zeros(64)
    for _ in range(3):
        comm.all_reduce(x, y, algorithm="ring")
    files: list[str] = []
    posted = False

    def note(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal posted
        name = frame.f_code.co_filename
        if event == "call" and not posted and f"{os.sep}lanterne{os.sep}" in name:
            files.append(name)
            posted = frame.f_code.co_name in ("post", "_post")

    sys.setprofile(note)
    try:
        comm.all_reduce(x, y, algorithm="ring")
    finally:
        sys.setprofile(None)
    return len(files), sum(one != other for one, other in itertools.pairwise(files))


def print_document(document: dict[str, Any], file: TextIO) -> None:
    """The tables of the document."""
    rows = [
        (
            result["collective"],
            row["way"],
            result["ranks"],
            format_nbytes(result["nbytes"]),
            format_time(statistics.median(row["time_s"])),
            format_time(sorted(row["time_s"])[len(row["time_s"]) // 10]),
            "" if row["over_mpi"] is None else f"{row['over_mpi']:.2f}",
            row["wrong"],
        )
        for result in document["results"]
        for row in result["rows"]
    ]
    if rows:
        columns = [("collective", ""), ("way", ""), ("ranks", ""), ("size", ""), ("time", "median"), ("time", "p10")]
        columns += [("over MPI", "median"), ("#wrong", "")]
        report.print_table(columns, rows, left=(0, 1), file=file)
    if found := document.get("overlap"):
        columns = [("beside", ""), ("call alone", ""), ("work alone", ""), ("both", "median")]
        columns += [("over longer", "median"), ("CPU over", "blocking"), ("#wrong", "")]
        lines = [
            (
                row["work"],
                *(format_time(value) for value in (row["alone_s"], row["work_s"], statistics.median(row["both_s"]))),
                f"{row['over']:.2f}",
                "" if row["cpu_over"] is None else f"{row['cpu_over']:.2f}",
                row["wrong"],
            )
            for row in found
        ]
        report.print_table(columns, lines, left=(0,), file=file)
    if (cpu := document.get("cpu")) is not None:
        rate = cpu["sent_gb"] / cpu["seconds"] * 1e3
        print(f"cpu: {cpu['cpu_s_per_gb']:.2f} s a GB that a rank sends, at {rate:.0f} MB/s", file=file)
    for line in queue_lines(document):
        print(line, file=file)
    if (found := document.get("steps")) is not None:
        print(
            f"steps: {found['calls']} functions, {found['changes_of_file']} changes of file, from all_reduce to post",
            file=file,
        )
