"""Benchmark a collective: every algorithm asked for, at every size, without and with a late rank, results checked.

With -n it starts the ranks itself (mpiexec for --transport mpi, plain processes for ucx, threads for local); without -n
it runs under the mpiexec or the torchrun-style variables that are there.

  lanterne bench                                          the main job: all_reduce on 4 ranks, and a late one
  lanterne bench all_reduce -n 8 --algorithm all --min-bytes 1K --max-bytes 64M
  lanterne bench all_reduce -n 4 --late-rank 3 --delay 5ms,50ms --json result.json --plot late.png
  lanterne bench all_reduce -n 4 --algorithm auto --bytes 64M --arrivals --json profile.json --plot arrivals.png
  lanterne bench all_reduce -n 4 --algorithm ring,late_join --late-rank profile.json --delay 50ms
  mpiexec -n 4 lanterne bench all_gather --bytes 1MiB
  lanterne bench all_reduce -n 8 --device cuda --transport nccl --algorithm auto,ring,late_join,native --graph

Time is from an agreed instant to the last completion on any rank, delays included; with a late rank, `late` is from its
call to the last completion: what its lateness still costs. Where the links' rate is known (--rate, or on the emulated
cluster) it is shown in multiples of s/rate too: the time that a link takes for the whole buffer, which nothing can beat
by much. Bandwidths are those of nccl-tests, from the median. --plot draws late over size, at the longest delay, and
over delay, at the largest size; with --arrivals also who came last and by how much (figures 2a and 8 of the StragglAR
paper).
"""

import os
import statistics
import sys
from dataclasses import dataclass

from ..collectives import native
from ..collectives.registry import find_algorithm
from ..errors import InputError
from ..transport.bootstrap import in_a_job
from ..transport.launch import MAX_WORLD_SIZE
from ..transport.registry import find_transport
from . import report
from .arrivals import late_rank_of, print_arrivals
from .collective_plot import plot
from .sizes import check_sizes
from .units import format_nbytes, format_time, parse_nbytes, parse_rate_bytes_per_s, parse_time_s

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all")


@dataclass(frozen=True)
class Settings:
    """The options of one run, parsed."""

    collective: str
    ranks: int | None
    transport: str
    algorithms: tuple
    sizes: tuple
    dtype: str
    op: str
    late_rank: int | None
    delays_s: tuple
    iterations: int
    warmup: int
    timeout_s: float
    min_busbw: float | None
    device: str = "cpu"
    graph: bool = False
    arrivals: bool = False
    plot: str | None = None
    rate_bytes_per_s: float | None = None


def add_arguments(parser):
    parser.add_argument("collective", nargs="?", choices=COLLECTIVES, help="default: the main job, see above")
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="start N ranks here")
    parser.add_argument("--transport", default="mpi", help="mpi (default), ucx, local, or nccl with --device cuda")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where the arrays are (default cpu)")
    parser.add_argument("--graph", action="store_true", help="launch captured CUDA graphs; with --transport nccl")
    parser.add_argument(
        "--algorithm", metavar="A,B,...", help="or 'all' (default: auto, ring and the transport's native one, if any)"
    )
    parser.add_argument("--bytes", metavar="SIZE,...", help="the sizes of the buffer, listed")
    parser.add_argument("--min-bytes", default="64K", metavar="SIZE", help="the smallest size (default 64K)")
    parser.add_argument("--max-bytes", default="16M", metavar="SIZE", help="the largest (default 16M)")
    parser.add_argument("--factor", type=int, default=4, metavar="F", help="each size is F times the last (default 4)")
    parser.add_argument(
        "--dtype", default="float32", help="float16 to float64, bfloat16, int8 to uint64 (default float32)"
    )
    parser.add_argument("--op", default="sum", choices=("sum", "prod", "min", "max", "mean"))
    parser.add_argument("--late-rank", metavar="R", help="this rank calls late; or that of a file of --arrivals --json")
    parser.add_argument("--delay", metavar="T,...", help="by these times; 0 is without a late rank (default 0,50ms)")
    parser.add_argument("--iterations", type=int, default=10, metavar="K", help="timed calls of each (default 10)")
    parser.add_argument("--warmup", type=int, default=2, metavar="K", help="checked, untimed calls before (default 2)")
    parser.add_argument("--timeout", default="60s", metavar="T", help="of every wait (default 60s)")
    parser.add_argument("--min-busbw", type=float, metavar="GB/s", help="exit 1 if a bus bandwidth is below this")
    parser.add_argument("--arrivals", action="store_true", help="who came last to the calls by auto, and by how much")
    parser.add_argument("--plot", metavar="FILE", help="draw the results (png, svg, pdf)")
    parser.add_argument(
        "--rate", metavar="RATE", help="of the links: late in multiples of s/rate, too (default: the lab's)"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything, raw samples too ('-' for standard output)")


def run(args):
    settings = parse(args)
    if settings.transport == "local":
        from ..collectives.communicator import spawn

        if settings.ranks is None:
            raise InputError("-n: got none, expected a number of ranks: --transport local has no launcher of its own")
        return spawn(settings.ranks, run_rank, settings, args.json)[0]
    if settings.ranks is not None and not in_a_job():
        from ..transport.launch import launch

        command = [sys.executable, "-m", "lanterne", *sys.argv[1:]]
        if args.collective is None:
            command += ["-n", str(settings.ranks)]
        return launch(command, settings.ranks, launcher="mpi" if settings.transport in ("mpi", "nccl") else "direct")
    from ..collectives.communicator import init

    with init(transport=settings.transport, timeout_s=settings.timeout_s) as comm:
        return run_rank(comm, settings, args.json)


def parse(args):
    """The Settings of a command line.

    Raises:
        InputError: an option that cannot be.
    """
    args.late_rank = late_rank_of(args.late_rank)
    if args.collective is None and args.ranks is None and not in_a_job():
        args.ranks = 4
    if args.collective is None:
        # The main job: few sizes, and the last rank late by more than any of them takes.
        args.factor, args.late_rank = 16, (args.ranks or 4) - 1
    if args.ranks is not None and not 1 <= args.ranks <= MAX_WORLD_SIZE:
        raise InputError(f"-n: got {args.ranks}, expected 1 to {MAX_WORLD_SIZE}")
    if args.late_rank is None and args.delay is not None:
        raise InputError(f"--delay: got {args.delay} without --late-rank, expected both")
    if args.late_rank is not None and args.ranks is not None and not 0 <= args.late_rank < args.ranks:
        raise InputError(f"--late-rank: got {args.late_rank}, expected 0 to {args.ranks - 1}")
    delays = (args.delay or "0,50ms") if args.late_rank is not None else "0"
    if args.iterations < 1 or args.warmup < 0:
        raise InputError(f"--iterations, --warmup: got {args.iterations} and {args.warmup}, expected at least 1 and 0")
    over_nccl = args.transport == "nccl"
    if over_nccl and args.device != "cuda":
        raise InputError(f"--transport: got nccl with --device {args.device}, expected --device cuda with it")
    if args.graph and not (over_nccl and args.warmup > 0):
        raise InputError(
            f"--graph: got it with --transport {args.transport} and --warmup {args.warmup}, expected --transport nccl "
            "--device cuda and a warm-up of at least 1"
        )
    if args.device == "cuda" and args.transport == "local":
        raise InputError("--device: got cuda with --transport local, expected mpi, ucx or nccl: a process for each GPU")
    if args.device == "cuda":
        from ..kernels.arrays import require_device

        require_device()
    if args.transport != "local":
        find_transport(args.transport)
    collective = args.collective or "all_reduce"
    algorithms = tuple(name.strip() for name in (args.algorithm or "").split(",") if name.strip())
    for name in algorithms:
        if name not in ("all", "auto", "native"):
            try:
                find_algorithm(collective, name)
            except InputError as error:
                raise InputError(f"--{error}, auto, native or all") from None
    _dtype(args.dtype)
    timeout_s = parse_time_s(args.timeout, "--timeout")
    if timeout_s <= 0:
        raise InputError(f"--timeout: got {args.timeout}, expected more than 0")
    return Settings(
        collective=collective,
        ranks=args.ranks,
        transport=args.transport,
        device=args.device,
        graph=args.graph,
        algorithms=algorithms,
        sizes=_sizes(args),
        dtype=args.dtype,
        op=args.op,
        late_rank=args.late_rank,
        delays_s=tuple(parse_time_s(text, "--delay") for text in delays.split(",")),
        iterations=args.iterations,
        warmup=args.warmup,
        timeout_s=timeout_s,
        min_busbw=args.min_busbw,
        arrivals=args.arrivals,
        plot=args.plot,
        rate_bytes_per_s=known_rate_bytes_per_s(args.rate),
    )


def known_rate_bytes_per_s(text):
    """The rate of this host's link: that of `text`, or, None, the emulated cluster's; None: not known."""
    if text is not None:
        return parse_rate_bytes_per_s(text, "--rate")
    # `lanterne lab` tells every host the rate of its link.
    return float(os.environ["LANTERNE_RATE_BYTES_PER_S"]) if "LANTERNE_RATE_BYTES_PER_S" in os.environ else None


def _sizes(args):
    sizes = _listed_sizes(args)
    # Every rank holds a buffer, what must come out and what does.
    check_sizes(sizes, "--bytes, --max-bytes", copies=3 * (args.ranks or 1))
    return sizes


def _listed_sizes(args):
    if args.bytes:
        return tuple(parse_nbytes(text, "--bytes") for text in args.bytes.split(","))
    first, last = parse_nbytes(args.min_bytes, "--min-bytes"), parse_nbytes(args.max_bytes, "--max-bytes")
    if args.factor < 2 or not 0 < first <= last:
        raise InputError(
            f"--min-bytes, --max-bytes, --factor: got {args.min_bytes}, {args.max_bytes} and {args.factor}, "
            f"expected 0 < min <= max and a factor of at least 2"
        )
    sizes = [first]
    while sizes[-1] * args.factor <= last:
        sizes.append(sizes[-1] * args.factor)
    return tuple(sizes)


def run_rank(comm, settings, json_file):
    """Every case on this rank; rank 0 prints and writes. The exit code."""
    from .measure import BUS_FACTOR, REDUCING, measure

    n = comm.world_size
    if settings.ranks not in (None, n):
        raise InputError(f"-n: got {settings.ranks}, expected the {n} ranks of this job, or none")
    if settings.late_rank is not None and settings.late_rank >= n:
        raise InputError(f"--late-rank: got {settings.late_rank}, expected 0 to {n - 1}")
    algorithms = algorithms_of(comm, settings)
    dtype = _dtype(settings.dtype)
    cases = [(nbytes, delay_s) for delay_s in settings.delays_s for nbytes in settings.sizes]
    records = []
    for index, (nbytes, delay_s) in enumerate(cases):
        count = -(-nbytes // dtype.nbytes)
        if settings.collective in ("reduce_scatter", "all_gather", "all_to_all"):
            count = -(-count // n) * n
        buffer_nbytes = count * dtype.nbytes
        case = make_case(comm, settings, count, dtype)
        late_rank = settings.late_rank if delay_s > 0 else None

        def tick(text, index=index, nbytes=nbytes):
            if comm.rank == 0:
                report.progress(f"{index + 1}/{len(cases)} {format_nbytes(nbytes)} {text}")

        measured = measure(
            case,
            algorithms,
            late_rank,
            delay_s,
            settings.iterations,
            settings.warmup,
            told_late_rank(settings, algorithms),
            tick,
        )
        case.close()
        for algorithm, (times_s, lates_s, wrong) in measured.items():
            algbw = buffer_nbytes / statistics.median(times_s) / 1e9 if late_rank is None else None
            records.append(
                {
                    "collective": settings.collective,
                    "algorithm": algorithm,
                    "chosen": chosen(comm, settings.collective, buffer_nbytes) if algorithm == "auto" else None,
                    "transport": comm.transport.name,
                    "device": settings.device,
                    "graph": settings.graph,
                    "ranks": n,
                    "nbytes": buffer_nbytes,
                    "count": count,
                    "dtype": settings.dtype,
                    "op": settings.op if settings.collective in REDUCING else None,
                    "late_rank": late_rank,
                    "delay_s": delay_s,
                    "time_s": times_s,
                    "late_s": lates_s,
                    "algbw_gbytes_per_s": algbw,
                    "busbw_gbytes_per_s": None if algbw is None else algbw * BUS_FACTOR[settings.collective](n),
                    "wrong": wrong,
                }
            )
    report.progress("")
    if comm.rank == 0:
        arrivals = comm.arrivals()
        document = report.envelope(
            rate_bytes_per_s=settings.rate_bytes_per_s,
            results=records,
            **({"arrivals": arrivals.to_json()} if settings.arrivals else {}),
        )
        if json_file:
            report.write_json(json_file, document)
        file = sys.stderr if json_file == "-" else sys.stdout
        print_records(document, file=file)
        if settings.arrivals:
            print_arrivals(arrivals, file=file)
        if settings.plot:
            plot(settings.plot, document, arrivals if settings.arrivals else None)
    below = settings.min_busbw is not None and any(
        record["busbw_gbytes_per_s"] is not None and record["busbw_gbytes_per_s"] < settings.min_busbw
        for record in records
    )
    return int(below or any(record["wrong"] for record in records))


def algorithms_of(comm, settings):
    """The algorithm names to run, the default where none was named; 'all' is every one that can run here and now.

    Raises:
        InputError: an algorithm that does not exist or cannot run here.
    """
    offered = comm.algorithms(settings.collective)
    by_mpi = settings.device == "cuda" and comm.transport.name != "nccl"
    if "native" in offered and (by_mpi or not native.offers(comm.transport, settings.collective, settings.dtype)):
        offered = offered[:-1]
    if settings.algorithms == ("all",):
        return offered
    if not settings.algorithms:
        return ("auto", *(name for name in ("ring", "native") if name in offered))
    for name in settings.algorithms:
        if name not in ("auto", *offered):
            raise InputError(
                f"--algorithm: got {name!r} for {settings.collective} of {settings.dtype} on {comm.world_size} ranks "
                f"over {comm.transport.name}, expected one of auto, {', '.join(offered)}, or all"
            )
    return settings.algorithms


def make_case(comm, settings, count, dtype):
    """The Case of these settings, on the device they name."""
    from .measure import Case

    if settings.device == "cpu":
        return Case(comm, settings.collective, count, dtype, settings.op)
    from .device_case import DeviceCase

    return DeviceCase(comm, settings.collective, count, dtype, settings.op, settings.graph)


def told_late_rank(settings, algorithms):
    """Options of the algorithms that must be told who is late: {algorithm: {"late_rank": rank}}."""
    return {
        name: {"late_rank": settings.late_rank}
        for name in algorithms
        if name not in ("auto", "native") and find_algorithm(settings.collective, name).late
    }


def chosen(comm, collective, nbytes):
    """What "auto" stands for: {algorithm, num_chunks, reason}."""
    return comm.tuning.choose(collective, nbytes)._asdict()


def _dtype(name):
    from ..kernels.dtypes import DTYPES

    names = [known for known in DTYPES if known != "bool"]
    if name not in names:
        raise InputError(f"--dtype: got {name!r}, expected one of {', '.join(names)}")
    return DTYPES[name]


COLUMNS = [
    ("algorithm", ""),
    ("size", "B"),
    ("count", ""),
    ("type", ""),
    ("op", ""),
    ("late rank", ""),
    ("delay", ""),
    ("time", "median"),
    ("p99", ""),
    ("max", ""),
    ("algbw", "GB/s"),
    ("busbw", "GB/s"),
    ("late", "median"),
    ("late", "s/rate"),
    ("#wrong", ""),
]


def print_records(document, file):
    """The table of a bench document."""
    results = document["results"]
    first = results[0]
    environment = document["environment"]
    notes = [
        f"lanterne {environment.get('lanterne', '')} {first['collective']}: {first['ranks']} ranks over "
        f"{first['transport']}, {environment['cpus']} cores of {environment['host']}",
        "time: agreed start to last completion on any rank; late: the late rank's call to last completion",
    ]
    rate = document.get("rate_bytes_per_s")
    columns, rows = list(COLUMNS), [_row(record, rate) for record in results]
    if not rate:
        del columns[-2]
        rows = [[*row[:-2], row[-1]] for row in rows]
    report.print_table(columns, rows, notes=notes, file=file)


def _row(record, rate_bytes_per_s):
    times_s = sorted(record["time_s"])
    bandwidths = (record["algbw_gbytes_per_s"], record["busbw_gbytes_per_s"])
    late_s = statistics.median(record["late_s"]) if record["late_s"] else None
    name = record["algorithm"]
    return [
        f"{name} ({record['chosen']['algorithm']})" if record["chosen"] else name,
        record["nbytes"],
        record["count"],
        record["dtype"],
        record["op"] or "-",
        "-" if record["late_rank"] is None else record["late_rank"],
        format_time(record["delay_s"]) if record["delay_s"] else "-",
        format_time(statistics.median(times_s)),
        format_time(times_s[min(len(times_s) - 1, int(0.99 * len(times_s)))]),
        format_time(times_s[-1]),
        *("-" if value is None else f"{value:.3g}" for value in bandwidths),
        format_time(late_s),
        "-" if late_s is None or not rate_bytes_per_s else f"{late_s * rate_bytes_per_s / record['nbytes']:.2f}",
        record["wrong"],
    ]
