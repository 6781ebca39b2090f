"""Find out in seconds which GPU or CPU is slow and which links are, in both directions, without testing all pairs.

  lanterne validate -n 16                              starts 16 ranks here
  mpiexec -n 16 lanterne validate                      or runs under the launcher that is there
  lanterne validate -n 8 --ranks 0,1,4 --limit 5s      only these ranks, and about 5 s
  lanterne validate -n 8 --links 0-1,2-3               only these links
  lanterne lab --hosts 4 --rate 200mbit --rate 3=50mbit -- lanterne validate --transport ucx
  lanterne validate -n 4 --slow-rank 2=1.5x --slow-link 0-1=20ms       a rehearsal

  lanterne validate -n 8 --admit hosts.jsonl           may this node join? 1: it may not
  lanterne validate -n 8 --every 10min --history probes.jsonl          a probing job, until Ctrl-C

--admit also compares with what a history (`lanterne history`) has: earlier sweeps of the same host, else other hosts',
and whether the host was named in several jobs. What is 15 % worse, and by more than sweeps differ, speaks against it;
that takes 5 sweeps of its own, or 3 of others. Where other work used the cores, a host is not held against them, and
the sweep is not kept.

--history keeps what each sweep found, and --every sweeps again and again: `lanterne history probes.jsonl` then counts
how many of such jobs met contention for cores, slow computing or a slow network, how often and for how long. --json has
the latest sweep.

First every rank computes (matrix products of several dtypes), co-located ranks in turn where they share cores; then the
links of a ring and two trees carry 16, 32 and 64 MiB three times, both directions at once, in at most 6 passes, timed
from a transfer's start to its last byte; then both together, since some things are slow only then. The transfers shrink
where the network would need longer than --limit. What looks slow is measured again, more often on a machine busy with
something else, and is named only if it is slow by all of that, with the evidence: core time beside the clock's,
bandwidth and latency beside those of its peers. Where other work leaves no way to tell, that is said and nobody blamed;
where it takes the cores that ranks compute on, that is said too (BUSY), and it is a finding where it takes more of a
rank's than of its peers'.

Rehearsals: --slow-rank R=1.5x slows the computing of rank R, R=1.5x@together only while it transfers; --slow-link
A-B=20ms or A-B=50mbit slows a link, A>B=... one direction of it. Products are on the CPU or, with --device cuda, the
GPU. Over nccl transfers are of the GPUs' memory, timed by the GPUs, each direction by itself; else, and with
--link-memory host, of the host's. The report says which it was, and what the links are, as far as NVML and NCCL's log
tell: NVLink, PCIe and how far apart, through host memory, a network with or without GPUDirect, or unknown. Links of a
host are judged beside each other, whatever they are: one that is PCIe among NVLinks is slow, and is named.

Exit codes: 0 nothing slow, 1 something is slow.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from lanterne.bench.output import report
from lanterne.bench.output.given_options import GivenOptions
from lanterne.bench.output.options import add_device, add_json, add_ranks
from lanterne.bench.output.spread import COVERAGE, median_interval
from lanterne.bench.output.units import format_nbytes, format_time, parse_rate_bytes_per_s, parse_sizes, parse_time_s
from lanterne.errors import InputError
from lanterne.transport.job.bootstrap import in_a_job
from lanterne.transport.job.launch import MAX_WORLD_SIZE
from lanterne.transport.registry import usual_transport

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.failslow.validate.validate import Injected
    from lanterne.failslow.validate.validation import Validation
    from lanterne.transport.shaped import Link

# Of a host's name.
NAME_NBYTES = 64
# What report.print_table takes: (header, unit) pairs, and rows.
Table: TypeAlias = tuple[list[tuple[str, str]], list[list[object]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    add_ranks(parser, "--world-size")
    transports = "mpi, ucx, tcp, nccl or local (default: %(default)s)"
    parser.add_argument("--transport", default=usual_transport(), help=transports)
    add_device(parser, "the work is done")
    parser.add_argument("--link-memory", choices=("host", "device"), help="of transfers (default: device over nccl)")
    parser.add_argument("--ranks", metavar="R,R,...", help="test only these, in ring order")
    parser.add_argument("--links", metavar="A-B,...", help="test only these links")
    parser.add_argument("--bytes", metavar="SIZE,...", default="16M,32M,64M", help="default 16M,32M,64M")
    parser.add_argument("--repetitions", type=int, default=3, metavar="K", help="transfers of each size (default 3)")
    parser.add_argument("--limit", default="20s", metavar="T", help="about how long it may take (default 20s)")
    parser.add_argument(
        "--slow-rank", action="append", default=[], metavar="R=Fx[@together]", help="rehearse a slow rank"
    )
    parser.add_argument("--slow-link", action="append", default=[], metavar="A-B=T|RATE", help="rehearse a slow link")
    parser.add_argument("--admit", metavar="WHERE", help="compare with this history, a file, and keep the sweep")
    parser.add_argument("--history", metavar="WHERE", help="keep what is found in this file")
    parser.add_argument("--every", metavar="T", help="with --history: sweep every so often, until Ctrl-C")
    add_json(parser)


def run(args: GivenOptions) -> int:
    """Validate; exit code 1 if something is slow."""
    # Before NumPy loads: one core for each rank, or co-located ranks would measure each other.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    n = args.world_size
    if n is not None and not 2 <= n <= MAX_WORLD_SIZE:
        raise InputError(f"-n: got {n}, expected 2 to {MAX_WORLD_SIZE}")
    options = parse(args)
    if args.every is not None and args.history is None:
        raise InputError("--every: got no --history beside it, expected a file that keeps the sweeps")
    for option, where in (("--admit", args.admit), ("--history", args.history)):
        if where is not None:
            from lanterne.failslow.operate.history import open_to_add

            if args.slow_rank or args.slow_link:
                raise InputError(f"{option}: got a rehearsal beside it, expected no --slow-rank and no --slow-link")
            open_to_add(where, option)
    if args.device == "cuda":
        from lanterne.kernels.arrays import require_device

        require_device()
    if args.transport == "local":
        from lanterne.collectives.jobs import spawn

        if n is None:
            raise InputError("-n: got none, expected a number of ranks: --transport local has no launcher of its own")
        return spawn(n, run_rank, options, args)[0]
    if not in_a_job():
        from lanterne.transport.job.launch import launch

        if n is None:
            raise InputError("-n: got none outside a job, expected a number of ranks, or an mpiexec around this")
        command = args.own_command()
        return launch(command, n, launcher="mpi" if args.transport == "mpi" else "direct")
    from lanterne.collectives.jobs import init
    from lanterne.transport.nccl.connection_log import logged

    with logged(), init(transport=args.transport, timeout_s=max(60.0, 4 * options["limit_s"])) as comm:
        return run_rank(comm, options, args)


def parse(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of failslow.validate, `every_s`, and `slow_ranks`, `slow_links` to rehearse, as given."""
    limit_s = parse_time_s(args.limit, "--limit")
    if limit_s <= 0 or args.repetitions < 1:
        raise InputError(f"--limit, --repetitions: got {args.limit} and {args.repetitions}, expected more than 0")
    every_s = 0.0 if args.every is None else parse_time_s(args.every, "--every")
    if args.every is not None and every_s <= 0:
        raise InputError(f"--every: got {args.every}, expected more than 0")
    sizes = parse_sizes(args.bytes, "--bytes", copies=4 * (args.world_size or 1))
    if min(sizes) < 1:
        raise InputError(f"--bytes: got {args.bytes}, expected sizes of at least 1")
    return {
        "ranks": None if args.ranks is None else tuple(_number(text, "--ranks") for text in args.ranks.split(",")),
        "links": None if args.links is None else tuple(_ends(text, "--links")[:2] for text in args.links.split(",")),
        "device": args.device,
        "link_memory": args.link_memory,
        "limit_s": limit_s,
        "sizes": sizes,
        "repetitions": args.repetitions,
        "every_s": every_s,
        "slow_ranks": dict(slow_rank(text) for text in args.slow_rank),
        "slow_links": {ends: link for text in args.slow_link for ends, link in slow_link(text).items()},
    }


def slow_rank(text: str) -> tuple[int, Injected]:
    """(rank, Injected) of "3=1.5x" or "3=1.5x@together".

    Raises:
        InputError: anything else.
    """
    from lanterne.failslow.validate.validate import Injected

    match = re.fullmatch(r"(\d{1,18})=(\d+\.?\d*)x(@together)?", text.strip())
    if not match or float(match[2]) < 1.0:
        raise InputError(f"--slow-rank: got {text!r}, expected R=1.5x or R=1.5x@together, with a factor of at least 1")
    factor = float(match[2])
    return int(match[1]), Injected(1.0 if match[3] else factor, factor)


def slow_link(text: str) -> dict[tuple[int, int], Link]:
    """{(src, dst): Link} of "0-1=20ms", "0>1=50mbit" (one direction).

    Raises:
        InputError: anything else.
    """
    from lanterne.transport.shaped import Link

    ends, equals, how = text.partition("=")
    a, b, both = _ends(ends, "--slow-link")
    if not equals:
        raise InputError(f"--slow-link: got {text!r}, expected A-B=20ms or A-B=50mbit")
    try:
        link = Link(latency_s=parse_time_s(how))
    except InputError:
        link = Link(bandwidth_bytes_per_s=parse_rate_bytes_per_s(how, "--slow-link"))
    return {(a, b): link, (b, a): link} if both else {(a, b): link}


def _ends(text: str, what: str) -> tuple[int, int, bool]:
    match = re.fullmatch(r"\s*(\d{1,18})\s*([->])\s*(\d{1,18})\s*", text)
    if not match or match[1] == match[3]:
        raise InputError(f"{what}: got {text!r}, expected two different ranks, as in 0-1")
    return int(match[1]), int(match[3]), match[2] == "-"


def _number(text: str, what: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text.strip()):
        raise InputError(f"{what}: got {text!r}, expected a rank")
    return int(text)


def run_rank(comm: Communicator, options: dict[str, Any], args: argparse.Namespace) -> int:
    """Validate on this rank, once or every so often; rank 0 prints and writes. The exit code."""
    from lanterne.failslow.validate.validate import Injected
    from lanterne.pipeline.planes.plane_makers import shaped

    if args.world_size not in (None, comm.world_size):
        raise InputError(f"-n: got {args.world_size}, expected the {comm.world_size} ranks of this job, or none")
    if comm.world_size < 2:
        raise InputError("validate: got a job of 1 rank, expected at least 2: a rank is slow beside others only")
    options = dict(options)
    slow_ranks, slow_links, every_s = (options.pop(name) for name in ("slow_ranks", "slow_links", "every_s"))
    for rank in {*slow_ranks, *(end for ends in slow_links for end in ends)}:
        if rank >= comm.world_size:
            raise InputError(f"--slow-rank, --slow-link: got rank {rank}, expected 0 to {comm.world_size - 1}")
    if args.device == "cuda":
        from lanterne.kernels.cuda.runtime import own_device

        own_device(comm.rank)
    under_test = shaped(comm, slow_links) if slow_links else comm
    options["injected"] = slow_ranks.get(comm.rank, Injected())
    names = host_names(comm) if args.admit is not None or args.history is not None else ()
    job = f"probe-{os.getpid()}-{int(time.time())}"
    while True:
        began_s = time.monotonic()
        code, found = _sweep(comm, under_test, options, args, names)
        if args.history is not None and comm.rank == 0:
            keep_probe(args.history, found, names, job, every_s)
        if not every_s:
            return code
        time.sleep(max(0.0, began_s + every_s - time.monotonic()))
        comm.barrier()


def _sweep(
    comm: Communicator,
    under_test: Communicator,
    options: dict[str, Any],
    args: argparse.Namespace,
    names: Sequence[str],
) -> tuple[int, Validation]:
    """Validate once; rank 0 prints and writes. The exit code, and what was found."""
    from lanterne.failslow.validate import loads as gemm
    from lanterne.failslow.validate.validate import validate

    def tick(text: str) -> None:
        if comm.rank == 0:
            report.progress(text)

    found = validate(under_test, **options, tick=tick)
    report.progress("")
    against: dict[str, list[str]] = {}
    untold: dict[str, str] = {}
    if comm.rank == 0:
        if args.admit is not None:
            against, untold = admit(args.admit, found, names)
        if args.json:
            rehearsed = {"slow_rank": args.slow_rank, "slow_link": args.slow_link}
            content = {"transport": comm.transport.name, "rehearsed": rehearsed, **found.to_json()}
            if args.admit is not None:
                content["against"] = against
            report.write_json(args.json, report.envelope(**content))
        print_validation(found, comm, sys.stderr if args.json == "-" else sys.stdout, gemm.left_out(args.device))
        for host, texts in against.items():
            for text in texts or ["; ".join(filter(None, ("may join: nothing speaks against it", untold[host])))]:
                said = f"{'AGAINST ' if texts else ''}{host}: {text}"
                print(said, file=sys.stderr if args.json == "-" else sys.stdout)
        sys.stdout.flush()
    return int(bool(found.findings) or any(against.values())), found


def keep_probe(where: str, found: Validation, names: Sequence[str], job: str, every_s: float) -> None:
    """Add what a sweep found to the history at `where`: what is slow, and cores that other work used."""
    from lanterne.failslow.operate.census import probe_entry
    from lanterne.failslow.operate.history import open_history

    hosts = [names[rank] for rank in found.ranks]
    # A sweep that lasts longer than the time between two begins the next at once.
    entry = probe_entry(job, time.time(), max(every_s, found.took_s), hosts, (*found.findings, *found.busy))
    open_history(where).add([entry])


def host_names(comm: Communicator) -> tuple[str, ...]:
    """The host of each rank, on all ranks."""
    import numpy as np

    name = socket.gethostname().encode()[:NAME_NBYTES]
    own = np.frombuffer(name.ljust(NAME_NBYTES, b"\0"), np.uint8).copy()
    names = np.empty(comm.world_size * NAME_NBYTES, np.uint8)
    comm.all_gather(own, names)
    return tuple(bytes(row).rstrip(b"\0").decode(errors="replace") for row in names.reshape(-1, NAME_NBYTES))


def admit(where: str, found: Validation, names: Sequence[str]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """({host: what speaks against it}, {host: why its sweep was not compared, or nothing}) by the history at `where`.

    Which then has this sweep as well, unless other work disturbed it: that would be blamed on the host.
    """
    from lanterne.failslow.operate.admission import judge_sweep, sweep_entry, sweep_values, too_few
    from lanterne.failslow.operate.history import open_history

    history = open_history(where)
    entries, _ = history.read()
    values = sweep_values(dict(enumerate(names)), found.compute, found.links)
    findings = *found.busy, *found.unsure
    busy = {names[rank] for one in findings for rank in (*one.ranks, *(end for link in one.links for end in link))}
    if not findings:
        job = f"sweep-{os.getpid()}-{int(time.time())}"
        history.add([sweep_entry(host, some, job, time.time()) for host, some in values.items()])
    cannot = "cannot tell by sweeps of before: other work used the cores; again when they are free"
    untold = {host: cannot if host in busy else too_few(entries, host) for host in values}
    return {host: judge_sweep(entries, host, {} if host in busy else some) for host, some in values.items()}, untold


def print_validation(found: Validation, comm: Communicator, file: TextIO, left_out: str = "") -> None:
    """The tables of a Validation: computing by rank, links by kind, findings; `left_out`: what was not tested."""
    hosts = len(set(found.hosts))
    sizes = ", ".join(format_nbytes(nbytes) for nbytes in found.sizes)
    notes = [
        f"lanterne validate: {len(found.ranks)} ranks on {hosts} host{'s' if hosts > 1 else ''} over "
        f"{comm.transport.name}, {len(found.passes)} passes of {sizes}, both directions, in {found.took_s:.1f} s",
        f"links: {found.path}; median's interval: of {COVERAGE:.0%} confidence, or what so few transfers give",
        "median time; core: of the thread itself, which sharing the core does not lengthen",
        *filter(None, [left_out]),
    ]
    columns, rows = _compute_table(found)
    report.print_table(columns, rows, notes=notes, file=file)
    print(file=file)
    columns, rows = _link_table(found)
    report.print_table(columns, rows, file=file)
    print(file=file)
    if not found.findings:
        print("nothing is slow", file=file)
    for finding in found.findings:
        print(f"SLOW {finding.about}: {finding.evidence}", file=file)
    for finding in found.unsure:
        print(f"not sure of {finding.about}, on a machine as busy as this: {finding.evidence}", file=file)
    for finding in found.busy:
        ranks = f"rank{'s' if len(finding.ranks) > 1 else ''} {', '.join(map(str, finding.ranks))}"
        print(f"BUSY cores of {ranks}: {finding.evidence}", file=file)


def _compute_table(found: Validation) -> Table:
    from statistics import median

    columns = list(dict.fromkeys((record["load"], record["when"]) for record in found.compute))
    latest = {(record["rank"], record["load"], record["when"]): record for record in found.compute}
    header = [("rank", ""), ("host", "")]
    header += [(f"{load}{'' if when == 'alone' else ', together'}", "clock; core") for load, when in columns]
    rows: list[list[object]] = []
    for rank, host in zip(found.ranks, found.hosts, strict=True):
        cells = []
        for load, when in columns:
            record = latest[rank, load, when]
            own = record["cpu_s"]
            cells.append(f"{format_time(median(record['wall_s']))}; {format_time(median(own)) if own else '-'}")
        rows.append([rank, host, *cells])
    return header, rows


def _link_table(found: Validation) -> Table:
    host = dict(zip(found.ranks, found.hosts, strict=True))
    rows: list[list[object]] = []
    for when in ("alone", "together"):
        for inside in (True, False):
            some = [r for r in found.links if r["when"] == when and (host[r["src"]] == host[r["dst"]]) == inside]
            for kind in sorted({record.get("kind", "") for record in some}):
                what = ["within a host" if inside else "between hosts", *filter(None, [kind]), when]
                rows.append([", ".join(what), *_link_row([r for r in some if r.get("kind", "") == kind])])
    return [
        ("links", ""),
        ("tested", "directions"),
        ("slowest", "GB/s"),
        ("median", "GB/s"),
        ("its", "interval"),
        ("fastest", "GB/s"),
        ("latency", "median"),
        ("worst", ""),
    ], rows


def _link_row(records: list[dict[str, Any]]) -> list[object]:
    from statistics import median

    largest = max(record["nbytes"] for record in records)
    rates = sorted(largest / min(record["time_s"]) / 1e9 for record in records if record["nbytes"] == largest)
    latencies_s = [record["latency_s"] for record in records]
    directions = len({(record["src"], record["dst"]) for record in records})
    slowest, usual, fastest = (f"{rate:.3g}" for rate in (rates[0], median(rates), rates[-1]))
    sure = median_interval(rates)
    shown = [slowest, usual, f"{sure['low']:.3g}..{sure['high']:.3g}", fastest]
    return [directions, *shown, format_time(median(latencies_s)), format_time(max(latencies_s))]
