"""Compare our all-reduce with MPI's own on the same MPI, and with a ring of a few lines of Python over mpi4py.

  ./run evaluate mpi                             16 MiB on 4 ranks, and Python's share of a round on 2
  ./run evaluate mpi -n 4 --bytes 1MiB,16MiB --json mpi.json

All take turns; every result is checked. `steady` programs only call; `allocating` ones make and drop arrays of the
buffer's size before each call, as programs do: MPI's own temporary memory then comes from the system anew in every
call, which is why one MPI_Allreduce may take twice as long as another. `over MPI` is the median of the ratios to
MPI_Allreduce of the same turn.

The second table is what a round of ours costs beyond MPI's messages: a ring of 8 bytes on 2 ranks against MPI's
Sendrecv.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.given_options import GivenOptions
from lanterne.bench.output.units import format_nbytes, format_time, parse_sizes, parse_time_s
from lanterne.errors import InputError
from lanterne.transport.job.launch import MAX_WORLD_SIZE

if TYPE_CHECKING:
    import numpy as np
    from mpi4py import MPI
    from numpy.typing import NDArray

    from lanterne.collectives.communicator import Communicator

PEER = "MPI_Allreduce"
CONTENDERS = ("ring", "allpairs", "auto", "plain ring", PEER)
HEAPS = ("steady", "allocating")
# All ranks have come back from the agreement on the start within this time.
START_MARGIN_S = 6e-3
ROUNDS = 2000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", type=int, default=4, metavar="N", help="ranks to start (default 4); not under mpiexec")
    parser.add_argument("--bytes", default="16MiB", metavar="SIZE,...", help="default 16MiB")
    parser.add_argument("--iterations", type=int, default=15, metavar="K", help="turns (default 15)")
    parser.add_argument("--timeout", default="60s", metavar="T", help="of every wait (default 60s)")
    parser.add_argument("--json", metavar="FILE", help="write everything, raw samples too ('-' for standard output)")


def run(args: GivenOptions) -> int:
    if not 1 <= args.n <= MAX_WORLD_SIZE:
        raise InputError(f"-n: got {args.n}, expected 1 to {MAX_WORLD_SIZE}")
    # Of each rank: two buffers, what is expected, and 64-bit numbers while they are made.
    sizes = parse_sizes(args.bytes, "--bytes", copies=8 * args.n)
    timeout_s = parse_time_s(args.timeout, "--timeout")
    if args.iterations < 1 or min(sizes) < 4 * args.n:
        raise InputError(
            f"mpi: got {args.iterations} iterations of {args.bytes}, expected one or more, of 4 bytes a rank"
        )
    from lanterne.transport.job.bootstrap import in_a_job

    if not in_a_job():
        from lanterne.transport.job.launch import launch

        return launch(args.own_command(), args.n, launcher="mpi")

    import lanterne

    with lanterne.init(transport="mpi", timeout_s=timeout_s) as comm:
        contest = Contest(comm)
        records = [
            record for nbytes in sizes for heap in HEAPS for record in contest.compare(nbytes, heap, args.iterations)
        ]
        rounds = contest.rounds()
        report.progress("")
        if comm.rank == 0:
            document = report.envelope(results=records, rounds=rounds)
            report.tell(args.json, document, print_records)
    return int(any(record["wrong"] for record in records))


class Contest:
    """The contenders on the ranks of one communicator."""

    def __init__(self, comm: Communicator) -> None:
        from lanterne.transport.mpi.over_mpi import load_mpi

        self.comm = comm
        self.mpi: Any = load_mpi()
        self.bare: MPI.Intracomm = self.mpi.COMM_WORLD.Dup()

    def call(self, name: str, source: NDArray[np.float32], out: NDArray[np.float32]) -> None:
        """All-reduce `source` into `out` by the contender `name`."""
        if name == PEER:
            self.bare.Allreduce(source, out)
        elif name == "plain ring":
            plain_ring(self.bare, source, out)
        else:
            self.comm.all_reduce(source, out, algorithm=name)

    def compare(self, nbytes: int, heap: str, iterations: int) -> list[dict[str, Any]]:
        """Time every contender in turn; the records, on every rank."""
        import numpy as np

        n = self.bare.size
        count = nbytes // 4 // n * n
        source = (np.arange(count) % 17 + self.bare.rank).astype(np.float32)
        expected = (np.arange(count) % 17 * n + n * (n - 1) // 2).astype(np.float32)
        out = np.empty_like(source)
        samples: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        wrong = dict.fromkeys(CONTENDERS, 0)
        for turn in range(-1, iterations):
            for name in CONTENDERS:
                report.progress(f"{format_nbytes(nbytes)} {heap} {name} {max(turn, 0) + 1}/{iterations}")
                out.fill(-1)
                if heap == "allocating":
                    np.add(source * 2, source * 3)
                self.bare.Barrier()
                start_s = self.bare.bcast(time.monotonic() + START_MARGIN_S)
                time.sleep(max(0.0, start_s - time.monotonic()))
                self.call(name, source, out)
                took_s = self.bare.allreduce(time.monotonic() - start_s, self.mpi.MAX)
                wrong[name] += self.bare.allreduce(int(np.count_nonzero(out != expected)))
                if turn >= 0:
                    samples[name].append(took_s)
        return [
            {
                "algorithm": name,
                "ranks": n,
                "nbytes": count * 4,
                "heap": heap,
                "time_s": samples[name],
                "over_mpi": statistics.median(
                    ours / peer for ours, peer in zip(samples[name], samples[PEER], strict=True)
                ),
                "wrong": wrong[name],
            }
            for name in CONTENDERS
        ]

    def rounds(self) -> dict[str, list[float]]:
        """Seconds of a round of our ring and of MPI's Sendrecv on ranks 0 and 1, ten blocks in turn; {} elsewhere."""
        import numpy as np

        pair = self.comm.split(0 if self.comm.rank < 2 else -1)
        bare = self.bare.Split(0 if self.comm.rank < 2 else self.mpi.UNDEFINED)
        if pair is None or pair.world_size < 2:
            return {}
        report.progress("rounds")
        a, b = np.ones(2, np.float32), np.zeros(2, np.float32)
        ours_s, bare_s = [], []
        for _ in range(11):
            started = time.perf_counter()
            for _ in range(ROUNDS // 2):
                pair.all_reduce(a, b, algorithm="ring")
            middle = time.perf_counter()
            for _ in range(ROUNDS):
                bare.Sendrecv(a, 1 - pair.rank, 0, b, 1 - pair.rank)
            ours_s.append((middle - started) / ROUNDS)
            bare_s.append((time.perf_counter() - middle) / ROUNDS)
        return {"ring_round_s": ours_s[1:], "sendrecv_s": bare_s[1:]}


def plain_ring(bare: MPI.Intracomm, source: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    """The ring in a few lines: MPI's Sendrecv and numpy.add. `out`: a multiple of the ranks in elements."""
    import numpy as np

    n, rank = bare.size, bare.rank
    parts = out.reshape(n, -1)
    received = np.empty_like(parts[0])
    np.copyto(out, source)
    left, right = (rank - 1) % n, (rank + 1) % n
    for step in range(n - 1):
        bare.Sendrecv(parts[(rank - step) % n], right, 0, received, left)
        parts[(rank - step - 1) % n] += received
    for step in range(n - 1):
        bare.Sendrecv(parts[(rank + 1 - step) % n], right, 0, parts[(rank - step) % n], left)


def print_records(document: dict[str, Any], file: TextIO) -> None:
    """The two tables of the document."""
    columns = [("algorithm", ""), ("heap", ""), ("size", ""), ("time", "median"), ("min", ""), ("max", "")]
    columns += [("over MPI", "median"), ("#wrong", "")]
    rows = [
        (
            record["algorithm"],
            record["heap"],
            format_nbytes(record["nbytes"]),
            format_time(statistics.median(record["time_s"])),
            format_time(min(record["time_s"])),
            format_time(max(record["time_s"])),
            f"{record['over_mpi']:.2f}",
            record["wrong"],
        )
        for record in document["results"]
    ]
    report.print_table(columns, rows, left=(0, 1), file=file)
    rounds = document["rounds"]
    if rounds:
        ours_s, bare_s = (statistics.median(rounds[key]) for key in ("ring_round_s", "sendrecv_s"))
        beyond = format_time(ours_s - bare_s)
        text = f"a round of 8 bytes on 2 ranks: {format_time(ours_s)}, of it beyond MPI's Sendrecv {beyond}"
        print("", text, sep="\n", file=file)
