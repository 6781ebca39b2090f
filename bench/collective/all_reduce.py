"""Benchmark a collective: every algorithm asked for, at every size, without and with a late rank, results checked.

With -n it starts the ranks itself (mpiexec for --transport mpi, plain processes for ucx, threads for local); without -n
it runs under the mpiexec or the torchrun-style variables that are there.

  lanterne bench                                          the main job: all_reduce on 4 ranks, and a late one
  lanterne bench all_reduce -n 4 --emulate 1gbit --bytes 64M --late-rank 3 --delay 600ms --algorithm ring,late_join
  lanterne bench all_reduce -n 8 --algorithm all --min-bytes 1K --max-bytes 64M
  lanterne bench all_reduce -n 4 --late-rank 3 --delay 5ms,50ms --json result.json --plot late.png
  lanterne bench all_reduce -n 4 --algorithm auto --bytes 64M --arrivals --json profile.json --plot arrivals.png
  lanterne bench all_reduce -n 4 --algorithm ring,late_join --late-rank profile.json --delay 50ms
  lanterne bench all_reduce -n 4 --algorithm ring,ring.json,theirs.xml      schedules of files; module:function as well
  mpiexec -n 4 lanterne bench all_gather --bytes 1MiB
  lanterne bench all_reduce -n 8 --device cuda --transport nccl --algorithm auto,ring,late_join,native --graph

The ranks of one machine share memory, where little is to gain. So the main job first emulates links between them, and
--emulate does so for any other: a rank's messages share its link, and leave and arrive when its rate and 0.2 ms of
latency let them. MPI's own collectives cannot be slowed so; `lanterne lab` can, as root.

Time is from an agreed instant to the last completion on any rank, delays included; with a late rank, `late` is from its
call to the last completion: what its lateness still costs. Where the links' rate is known (--rate, or on the emulated
cluster) it is shown in multiples of s/rate too: the time that a link takes for the whole buffer, which nothing can beat
by much. Bandwidths are those of nccl-tests, from the median. --plot draws late over size, at the longest delay, and
over delay, at the largest size; with --arrivals also who came last and by how much (figures 2a and 8 of the StragglAR
paper).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TextIO

from lanterne.bench.collective.arrivals_report import print_arrivals
from lanterne.bench.collective.plot import plot
from lanterne.bench.collective.settings import BenchSettings, add_arguments, dtype_of, parse
from lanterne.bench.output import report
from lanterne.bench.output.given_options import GivenOptions
from lanterne.bench.output.load import busy_note
from lanterne.bench.output.spread import COVERAGE, MedianInterval, median_interval
from lanterne.bench.output.units import format_nbytes, format_rate, format_time
from lanterne.collectives.algorithms.catalogue import UNSCHEDULED, find_algorithm
from lanterne.collectives.auto.load_meter import LoadMeter
from lanterne.collectives.auto.trials import usual_s
from lanterne.collectives.execute import native
from lanterne.errors import InputError, one_of
from lanterne.kernels.dtypes import Dtype
from lanterne.transport.job.bootstrap import in_a_job

if TYPE_CHECKING:
    from lanterne.bench.collective.measure import CollectiveCase, Tick
    from lanterne.collectives.communicator import Communicator

__all__ = ["add_arguments", "run"]

# Columns of the longest bar; a ratio of times below which it is a gain, and not the machine's noise.
BAR_COLUMNS = 50
NO_NATIVE = "native: over such links only as root, by `lanterne lab`; MPICH and Gloo took the ring's time there"
GAINS = 0.95
# What stands beside a bar and its name: a mark, gaps, a time.
BESIDE_BAR = 14


def run(args: GivenOptions) -> int:
    parts = parse(args)
    settings = parts[0]
    if settings.transport == "local":
        from lanterne.collectives.jobs import spawn

        if settings.ranks is None:
            raise InputError("-n: got none, expected a number of ranks: --transport local has no launcher of its own")
        return spawn(settings.ranks, run_rank, parts, args.json)[0]
    if settings.ranks is not None and not in_a_job():
        from lanterne.transport.job.launch import launch

        command = args.own_command()
        if args.collective is None:
            command += ["-n", str(settings.ranks)]
        report.progress(
            f"starting {settings.ranks} ranks; new to these hosts, they measure each other for some seconds"
        )
        return launch(command, settings.ranks, launcher="mpi" if settings.transport == "mpi" else "direct")
    from lanterne.collectives.jobs import init

    with init(transport=settings.transport, timeout_s=settings.timeout_s) as comm:
        return run_rank(comm, parts, args.json)


def run_rank(comm: Communicator, parts: Sequence[BenchSettings], json_file: str | None) -> int:
    """Every case of every part on this rank; rank 0 prints and writes. The exit code."""
    n, settings = comm.world_size, parts[0]
    if settings.ranks not in (None, n):
        raise InputError(f"-n: got {settings.ranks}, expected the {n} ranks of this job, or none")
    if settings.late_rank is not None and not 0 <= settings.late_rank < n:
        raise InputError(f"--late-rank: got {settings.late_rank}, expected 0 to {n - 1}")
    records = [record for part in parts for record in run_part(comm, part)]
    report.progress("")
    if comm.rank == 0:
        tell(comm, settings, records, json_file)
    below = settings.min_busbw is not None and any(
        record["busbw_gbytes_per_s"] is not None and record["busbw_gbytes_per_s"] < settings.min_busbw
        for record in records
    )
    return int(below or any(record["wrong"] for record in records))


def run_part(comm: Communicator, settings: BenchSettings) -> list[dict[str, Any]]:
    """The records of every case of `settings`, with what others used of the machine meanwhile."""
    from lanterne.bench.collective.emulated import emulated

    rate = settings.emulated_bytes_per_s
    with nullcontext(comm) if rate is None else emulated(comm, rate) as linked:
        algorithms = algorithms_of(linked, settings)
        cases = [(nbytes, delay_s) for delay_s in settings.delays_s for nbytes in settings.sizes]
        records, meter = [], LoadMeter()
        for index, (nbytes, delay_s) in enumerate(cases):
            where = "" if rate is None else " over emulated links"
            tick = partial(_tick, comm.rank, f"{index + 1}/{len(cases)} {format_nbytes(nbytes)}{where}")
            records += measured(linked, settings, algorithms, nbytes, delay_s, tick)
        meanwhile = {"emulated_bytes_per_s": rate, "foreign_cores": meter.foreign_cores(comm)}
    return [record | meanwhile for record in records]


def _tick(rank: int, case: str, text: str) -> None:
    if rank == 0:
        report.progress(f"{case} {text}")


def measured(
    comm: Communicator, settings: BenchSettings, algorithms: Sequence[str], nbytes: int, delay_s: float, tick: Tick
) -> list[dict[str, Any]]:
    """A record for each algorithm on buffers of `nbytes`, or a little more, where all ranks must have as many."""
    from lanterne.bench.collective.measure import BUS_FACTOR, REDUCING, measure
    from lanterne.collectives.communicator import core_of

    n, dtype, collective = comm.world_size, dtype_of(settings.dtype), settings.collective
    count = -(-nbytes // dtype.nbytes)
    if collective in ("reduce_scatter", "all_gather", "all_to_all"):
        count = -(-count // n) * n
    buffer_nbytes = count * dtype.nbytes
    late_rank = settings.late_rank if delay_s > 0 else None
    case, told = make_case(comm, settings, count, dtype), told_late_rank(settings, algorithms)
    ran = core_of(comm).late.ran
    before = ran.copy()
    found = measure(case, algorithms, late_rank, delay_s, settings.iterations, settings.warmup, told, tick)
    case.close()
    choice = chosen(comm, collective, buffer_nbytes, ran - before) if "auto" in algorithms else None
    records = []
    for algorithm, (times_s, lates_s, wrong) in found.items():
        algbw = buffer_nbytes / statistics.median(times_s) / 1e9 if late_rank is None else None
        records.append(
            {
                "collective": collective,
                "algorithm": algorithm,
                "chosen": choice if algorithm == "auto" else None,
                "transport": comm.transport.name,
                "device": settings.device,
                "clock": case.clock,
                "graph": settings.graph,
                "ranks": n,
                "nbytes": buffer_nbytes,
                "count": count,
                "dtype": settings.dtype,
                "op": settings.op if collective in REDUCING else None,
                "late_rank": late_rank,
                "delay_s": delay_s,
                "time_s": times_s,
                "late_s": lates_s,
                "time_median_interval": median_interval(times_s),
                "algbw_gbytes_per_s": algbw,
                "busbw_gbytes_per_s": None if algbw is None else algbw * BUS_FACTOR[collective](n),
                "wrong": wrong,
            }
        )
    return records


def tell(comm: Communicator, settings: BenchSettings, records: list[dict[str, Any]], json_file: str | None) -> None:
    """Write, print and draw what was measured."""
    arrivals = comm.arrivals() if settings.arrivals else None
    document = report.envelope(
        rate_bytes_per_s=settings.rate_bytes_per_s,
        foreign_cores=max(record["foreign_cores"] for record in records),
        results=records,
        **({"arrivals": arrivals.to_json()} if arrivals else {}),
    )

    def show(document: dict[str, Any], file: TextIO) -> None:
        for index, part in enumerate(parts_of(document)):
            if index:
                print(file=file)
            print_records(part, file)
            print_late(part, file)
        if arrivals:
            print_arrivals(arrivals, file=file)

    report.tell(json_file, document, show)
    if settings.plot:
        plot(settings.plot, parts_of(document), arrivals)


def parts_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """`document` for each kind of links that it has results of, with those, their rate and the load meanwhile."""
    parts = []
    for emulated_bytes_per_s, group in groupby(document["results"], lambda record: record["emulated_bytes_per_s"]):
        results = list(group)
        changed = {"results": results, "foreign_cores": results[0]["foreign_cores"]}
        if emulated_bytes_per_s:
            changed["rate_bytes_per_s"] = emulated_bytes_per_s
        parts.append(document | changed)
    return parts


def links_of(part: dict[str, Any]) -> str:
    """What the ranks of a part (parts_of) were linked by, for people; "" where that was not emulated."""
    rate = part["results"][0]["emulated_bytes_per_s"]
    return f"emulated links, {format_rate(rate)}" if rate else ""


def algorithms_of(comm: Communicator, settings: BenchSettings) -> tuple[str, ...]:
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
        if name not in ("auto", *offered) and not _may_run(settings.collective, name, comm.world_size):
            what = f" for {settings.collective} of {settings.dtype}"
            where = f"{what} on {comm.world_size} ranks over {comm.transport.name}"
            raise InputError(f"--algorithm: {one_of(name, ('auto', *offered), where)}, or all")
    return settings.algorithms


def _may_run(collective: str, name: str, world_size: int) -> bool:
    """Whether `name`, which nobody lists, says a schedule from outside, or which nodes are slow, for so many ranks."""
    if name in UNSCHEDULED:
        return False
    line = find_algorithm(collective, name)
    return (line.outside or line.leaves) and not line.refuses(world_size)


def make_case(comm: Communicator, settings: BenchSettings, count: int, dtype: Dtype) -> CollectiveCase:
    """The CollectiveCase of these settings, on the device they name."""
    from lanterne.bench.collective.measure import CollectiveCase

    if settings.device == "cpu":
        return CollectiveCase(comm, settings.collective, count, dtype, settings.op)
    from lanterne.bench.collective.device_case import DeviceCase

    return DeviceCase(comm, settings.collective, count, dtype, settings.op, settings.graph)


def told_late_rank(settings: BenchSettings, algorithms: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Options of the algorithms that must be told who is late: {algorithm: {"late_rank": rank}}."""
    return {
        name: {"late_rank": settings.late_rank}
        for name in algorithms
        if name not in ("auto", *UNSCHEDULED) and find_algorithm(settings.collective, name).late
    }


def chosen(comm: Communicator, collective: str, nbytes: int, ran: Mapping[str, int]) -> dict[str, Any]:
    """What "auto" stands for where nobody is late, {algorithm, num_chunks, reason}, and `ran`: {algorithm: calls}.

    Args:
        ran: calls by choice (collectives/late/calls.py), warm-ups included; none where the calls asked nobody.
    """
    ordinary = comm.tuning.choose(collective, nbytes)
    calls: dict[str, int] = {}
    for choice, number in ran.items():
        name = choice.partition("/")[0] or ordinary.algorithm
        calls[name] = calls.get(name, 0) + number
    return ordinary._asdict() | {"ran": calls}


def name_of(record: dict[str, Any]) -> str:
    """The record's algorithm, for people; of "auto" also the one that ran most."""
    name, choice = record["algorithm"], record["chosen"]
    if not choice:
        return name
    ran = choice["ran"]
    return f"{name} ({max(ran, key=ran.get) if ran else choice['algorithm']})"


COLUMNS = [
    ("algorithm", ""),
    ("size", "B"),
    ("late rank", ""),
    ("delay", ""),
    ("time", "median"),
    ("p99", ""),
    ("max", ""),
    ("over", "best"),
    ("algbw", "GB/s"),
    ("busbw", "GB/s"),
    ("late", "median"),
    ("late", "s/rate"),
    ("#wrong", ""),
]


START_TIMES = {
    "host": "time: agreed start to last completion on any rank; late: the late rank's call to last completion",
    "device": "times of the devices, by events: from the last rank in time, or the late one, to the last completion",
}


def print_records(document: dict[str, Any], file: TextIO) -> None:
    """The table of a part of a bench document (parts_of)."""
    results = document["results"]
    first = results[0]
    environment = document["environment"]
    over = links_of(document) or first["transport"]
    of = " ".join(filter(None, (first["dtype"], first["op"])))
    notes = [
        f"lanterne {environment.get('lanterne', '')} {first['collective']}: "
        f"{first['ranks']} rank{'s' if first['ranks'] != 1 else ' (-n N starts more)'} over {over}, {of}, "
        f"{environment['cpus']} cores of {environment['host']}",
        START_TIMES[first["clock"]],
        "over best: times over those of the fastest fixed algorithm of ours in the same rounds, the median",
    ]
    if links_of(document):
        notes.append(NO_NATIVE)
    rate = document.get("rate_bytes_per_s")
    columns, rows = list(COLUMNS), [_row(record, rate, over_best(results, record)) for record in results]
    if not rate:
        del columns[-2]
        rows = [[*row[:-2], row[-1]] for row in rows]
    if first["device"] == "cuda":
        columns.insert(5, ("median's", "interval"))
        for row, record in zip(rows, results, strict=True):
            row.insert(5, _interval(record["time_median_interval"]))
        notes.append(f"median's interval: of {COVERAGE:.0%} confidence, or what so few iterations give")
    report.print_table(columns, rows, notes=notes, file=file)


def print_late(document: dict[str, Any], file: TextIO) -> None:
    """What the late rank still costs at a part's largest size and longest delay, as bars, and the verdict on "auto"."""
    results, busy = document["results"], busy_note(document["foreign_cores"])
    longest_s = max(record["delay_s"] for record in results)
    largest = max(record["nbytes"] for record in results)
    late = [record for record in results if record["delay_s"] == longest_s and record["nbytes"] == largest]
    if longest_s:
        medians_s = [statistics.median(record["late_s"]) for record in late]
        what = ", ".join(filter(None, (format_nbytes(largest), f"{format_time(longest_s)} late", links_of(document))))
        print(file=file)
        report.print_notes([f"{what}: from the late rank's call to the end"], file)
        names = list(map(name_of, late))
        longest, width = max(medians_s), max(map(len, names))
        room = BAR_COLUMNS if (limit := report.columns_of(file)) is None else limit - width - BESIDE_BAR
        for name, median_s in zip(names, medians_s, strict=True):
            bar = "=" * round(max(1, min(BAR_COLUMNS, room)) * median_s / longest)
            print(f"#   {name.ljust(width)}  {bar} {format_time(median_s)}", file=file)
        by_name = {record["algorithm"]: record["late_s"] for record in late}
        if not busy and {"auto", "ring"} <= by_name.keys():
            ratio = statistics.median(a / b for a, b in zip(by_name["auto"], by_name["ring"], strict=True))
            said = "auto gains" if ratio < GAINS else "auto gains nothing here"
            how = f"{ratio:.2f} of ring's time, the median of {len(by_name['ring'])} rounds"
            report.print_notes([f"{said}: {how}"], file)
    if busy:
        report.print_notes([busy.removeprefix("# ")], file)


def over_best(results: Sequence[dict[str, Any]], record: dict[str, Any]) -> float | None:
    """Median of the record's times over those, in the same rounds, of the fastest fixed algorithm of ours in its case.

    None if there is none. What disturbs a round disturbs both, so this varies less than the ratio of their medians.
    """
    fixed = [row for row in results if row["algorithm"] not in ("auto", "native")]
    same = [row["time_s"] for row in fixed if all(row[name] == record[name] for name in ("nbytes", "delay_s"))]
    if not same:
        return None
    best_s = same[usual_s(list(zip(*same, strict=True))).argmin()]
    return statistics.median(time_s / least_s for time_s, least_s in zip(record["time_s"], best_s, strict=True))


def _interval(interval: MedianInterval) -> str:
    return f"{format_time(interval['low'])}..{format_time(interval['high'])}"


def _row(record: dict[str, Any], rate_bytes_per_s: float | None, ratio: float | None) -> list[object]:
    times_s = sorted(record["time_s"])
    bandwidths = (record["algbw_gbytes_per_s"], record["busbw_gbytes_per_s"])
    late_s = statistics.median(record["late_s"]) if record["late_s"] else None
    return [
        name_of(record),
        record["nbytes"],
        "-" if record["late_rank"] is None else record["late_rank"],
        format_time(record["delay_s"]) if record["delay_s"] else "-",
        format_time(statistics.median(times_s)),
        format_time(times_s[min(len(times_s) - 1, int(0.99 * len(times_s)))]),
        format_time(times_s[-1]),
        "-" if ratio is None else f"{ratio:.2f}",
        *("-" if value is None else f"{value:.3g}" for value in bandwidths),
        format_time(late_s),
        "-" if late_s is None or not rate_bytes_per_s else f"{late_s * rate_bytes_per_s / record['nbytes']:.2f}",
        record["wrong"],
    ]
