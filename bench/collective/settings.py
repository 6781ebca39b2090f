"""The options of `lanterne bench COLLECTIVE`: their names and their BenchSettings."""

import argparse
import os
from dataclasses import dataclass, replace

from lanterne.bench.collective.arrivals_report import late_rank_of
from lanterne.bench.output.options import add_device, add_json, add_plot, add_ranks, add_timeout, add_transport
from lanterne.bench.output.units import check_sizes, parse_nbytes, parse_rate_bytes_per_s, parse_time_s
from lanterne.collectives.algorithms.catalogue import UNSCHEDULED, find_algorithm
from lanterne.errors import InputError, one_of
from lanterne.kernels.dtypes import DTYPES, Dtype
from lanterne.transport.job.bootstrap import in_a_job
from lanterne.transport.job.launch import MAX_WORLD_SIZE
from lanterne.transport.registry import find_transport

# The main job's first part: a delay of somewhat more than the links need for a buffer.
MAIN_RATE, MAIN_NBYTES, MAIN_DELAY_S, MAIN_ITERATIONS = "100mbit", 4 << 20, 0.4, 6
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all")


@dataclass(frozen=True)
class BenchSettings:
    """The options of one run, parsed."""

    collective: str
    ranks: int | None
    transport: str
    algorithms: tuple[str, ...]
    sizes: tuple[int, ...]
    dtype: str
    op: str
    late_rank: int | None
    delays_s: tuple[float, ...]
    iterations: int
    warmup: int
    timeout_s: float
    min_busbw: float | None
    device: str = "cpu"
    graph: bool = False
    arrivals: bool = False
    plot: str | None = None
    rate_bytes_per_s: float | None = None
    emulated_bytes_per_s: float | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "collective",
        nargs="?",
        metavar="COLLECTIVE",
        help=f"one of {', '.join(COLLECTIVES)}; default: the main job, see above",
    )
    add_ranks(parser)
    add_transport(parser, "mpi, ucx, tcp, local, or nccl with --device cuda")
    add_device(parser, "the arrays are")
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
    parser.add_argument("--iterations", type=int, metavar="K", help="timed calls of each (default 10)")
    parser.add_argument("--warmup", type=int, default=2, metavar="K", help="checked, untimed calls before (default 2)")
    add_timeout(parser)
    parser.add_argument("--min-busbw", type=float, metavar="GB/s", help="exit 1 if a bus bandwidth is below this")
    parser.add_argument("--arrivals", action="store_true", help="who came last to the calls by auto, and by how much")
    add_plot(parser)
    parser.add_argument(
        "--rate", metavar="RATE", help="of the links: late in multiples of s/rate, too (default: the lab's)"
    )
    parser.add_argument(
        "--emulate", metavar="RATE", help="links of this rate between the ranks, emulated: no root, no network"
    )
    add_json(parser)


def parse(args: argparse.Namespace) -> tuple[BenchSettings, ...]:
    """The BenchSettings of a command line: of the main job two, over emulated links and over what is there.

    Raises:
        InputError: an option that cannot be.
    """
    if args.collective is not None and args.collective not in COLLECTIVES:
        raise InputError(f"bench: {one_of(args.collective, COLLECTIVES)}, or another benchmark: bench p2p")
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
    iterations = 10 if args.iterations is None else args.iterations
    if iterations < 1 or args.warmup < 0:
        raise InputError(f"--iterations, --warmup: got {iterations} and {args.warmup}, expected at least 1 and 0")
    _check_device(args)
    if args.transport != "local":
        find_transport(args.transport)
    collective = args.collective or "all_reduce"
    if args.min_busbw is not None and not args.min_busbw >= 0:
        raise InputError(f"--min-busbw: got {args.min_busbw:g}, expected a number of at least 0")
    dtype_of(args.dtype)
    timeout_s = parse_time_s(args.timeout, "--timeout")
    if timeout_s <= 0:
        raise InputError(f"--timeout: got {args.timeout}, expected more than 0")
    settings = BenchSettings(
        collective=collective,
        ranks=args.ranks,
        transport=args.transport,
        device=args.device,
        graph=args.graph,
        algorithms=_algorithms(args, collective),
        sizes=_sizes(args),
        dtype=args.dtype,
        op=args.op,
        late_rank=args.late_rank,
        delays_s=tuple(parse_time_s(text, "--delay") for text in delays.split(",")),
        iterations=iterations,
        warmup=args.warmup,
        timeout_s=timeout_s,
        min_busbw=args.min_busbw,
        arrivals=args.arrivals,
        plot=args.plot,
        rate_bytes_per_s=known_rate_bytes_per_s(args.rate),
        emulated_bytes_per_s=parse_rate_bytes_per_s(args.emulate, "--emulate") if args.emulate else None,
    )
    # Nothing is emulated over links that are emulated already.
    if args.collective is not None or args.device != "cpu" or settings.rate_bytes_per_s is not None:
        return (settings,)
    linked = replace(
        settings,
        sizes=settings.sizes if args.bytes else (MAIN_NBYTES,),
        delays_s=settings.delays_s if args.delay else (0.0, MAIN_DELAY_S),
        iterations=args.iterations or MAIN_ITERATIONS,
        emulated_bytes_per_s=settings.emulated_bytes_per_s or parse_rate_bytes_per_s(MAIN_RATE),
    )
    return linked, replace(settings, emulated_bytes_per_s=None)


def _check_device(args: argparse.Namespace) -> None:
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
    if args.emulate and args.device != "cpu":
        raise InputError(f"--emulate: got it with --device {args.device}, expected --device cpu")
    if args.device == "cuda":
        from lanterne.kernels.arrays import require_device

        require_device()


def _algorithms(args: argparse.Namespace, collective: str) -> tuple[str, ...]:
    algorithms = tuple(name.strip() for name in (args.algorithm or "").split(",") if name.strip())
    for name in algorithms:
        if name not in ("all", "auto", *UNSCHEDULED):
            try:
                find_algorithm(collective, name)
            except InputError as error:
                if not str(error).startswith("algorithm: "):  # of a file or function that is there
                    raise InputError(f"--algorithm: {error}") from None
                raise InputError(f"--{error}, auto, native or all") from None
    return algorithms


def known_rate_bytes_per_s(text: str | None) -> float | None:
    """The rate of this host's link: that of `text`, or, None, the emulated cluster's; None: not known."""
    if text is not None:
        return parse_rate_bytes_per_s(text, "--rate")
    # `lanterne lab` tells every host the rate of its link.
    return float(os.environ["LANTERNE_RATE_BYTES_PER_S"]) if "LANTERNE_RATE_BYTES_PER_S" in os.environ else None


def _sizes(args: argparse.Namespace) -> tuple[int, ...]:
    sizes = _listed_sizes(args)
    # Every rank holds a buffer, what must come out and what does.
    check_sizes(sizes, "--bytes, --max-bytes", copies=3 * (args.ranks or 1))
    return sizes


def _listed_sizes(args: argparse.Namespace) -> tuple[int, ...]:
    if args.bytes is not None:
        sizes = tuple(parse_nbytes(text, "--bytes") for text in args.bytes.split(","))
        if min(sizes) < 1:
            raise InputError(f"--bytes: got {args.bytes}, expected sizes of at least 1")
        return sizes
    first, last = parse_nbytes(args.min_bytes, "--min-bytes"), parse_nbytes(args.max_bytes, "--max-bytes")
    if args.factor < 2 or not 0 < first <= last:
        raise InputError(
            f"--min-bytes, --max-bytes, --factor: got {args.min_bytes}, {args.max_bytes} and {args.factor}, "
            f"expected 0 < min <= max and a factor of at least 2"
        )
    growing = [first]
    while growing[-1] * args.factor <= last:
        growing.append(growing[-1] * args.factor)
    return tuple(growing)


def dtype_of(name: str) -> Dtype:
    """The DType of `--dtype name`."""
    names = [known for known in DTYPES if known != "bool"]
    if name not in names:
        raise InputError(f"--dtype: {one_of(name, names)}")
    return DTYPES[name]
