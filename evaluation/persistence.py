"""Benchmark a late rank that is named wrongly, or absent: static and run-time forms of all_reduce beside the ring.

  lanterne lab --hosts 8 -- ./run evaluate persistence --transport ucx --bytes 4MiB --plot persistence.png
  mpiexec -n 8 ./run evaluate persistence --share 50,95 --calls 40 --delay 20ms --bytes 64MiB --json persistence.json
  ./run evaluate persistence -n 4          a trial: threads over emulated links, where nothing paces senders

In a job, or on the emulated cluster, predictions go by what this library measured of the network when it started.

Part 1, after the StragglAR paper's table 2: the named rank is the late one in 77, 90 and 95 % of calls (--share); in
the others by turns another rank is late, or none. `stragglar` and `late_join` always expect the named rank, `auto` is
told nothing. exposed: from the last rank's call to the last completion, mean over all calls; gain: the ring's mean time
of a call, its delay included, over this one's, less 1. Predicted: the alpha-beta model on the same calls (auto: had it
known who comes when).

Part 2: the critical delay, from which on an algorithm beats the ring: measured, as the delay at which both take as
long, beside the model's. For 1 GiB, 3 us and 450 GB/s the paper's formula gives 0.940 ms at n = 8 and 0.093 ms at n
= 256 (its figure 7a); what the schedules themselves give is printed beside it.
"""

import argparse
import io
import math
import random
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lanterne.bench.collective.emulated import emulated
from lanterne.bench.collective.settings import known_rate_bytes_per_s
from lanterne.bench.output import report
from lanterne.bench.output.plots import STYLES, label_ends
from lanterne.bench.output.units import format_nbytes, format_time, parse_rate_bytes_per_s, parse_sizes, parse_time_s
from lanterne.collectives.algorithms.catalogue import find_algorithm, make_schedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.cost import CostModel, late_start, price
from lanterne.errors import InputError
from lanterne.transport.job.bootstrap import in_a_job

if TYPE_CHECKING:
    from lanterne.bench.collective.measure import CollectiveCase
    from lanterne.collectives.communicator import Communicator

ALGORITHMS = ("ring", "stragglar", "late_join", "auto")
# What auto could have chosen between, had it known.
KNOWING = ("ring", "late_join", "late_chain")
# Delays of part 2, in multiples of the largest predicted critical delay.
STEPS = (0.0, 0.5, 1.0, 1.5, 2.0)
ITEMSIZE = 4
LEAST_RANKS = 4
PAPER = CostModel(3e-6, 1 / 450e9)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--ranks", type=int, metavar="N", help="a trial with N ranks that are threads here")
    parser.add_argument("--transport", help="mpi or ucx, inside a job")
    parser.add_argument("--bytes", default="1MiB", metavar="SIZE", help="of the buffer (default 1MiB)")
    parser.add_argument("--rate", metavar="RATE", help="of the links (default: the lab's, else 200mbit)")
    parser.add_argument("--latency", default="100us", metavar="T", help="of the trial's links (default 100us)")
    parser.add_argument(
        "--share", default="77,90,95", metavar="P,...", help="%% of calls in which the named rank is late"
    )
    parser.add_argument("--delay", metavar="T", help="of the late rank (default 1.1 s/rate)")
    parser.add_argument("--calls", type=int, default=22, metavar="K", help="of each algorithm and share (default 22)")
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")
    parser.add_argument("--plot", metavar="FILE", help="draw it (png, svg, pdf)")


def run(args: argparse.Namespace) -> int:
    settings = parse(args)
    if not in_a_job():
        from lanterne.collectives.jobs import spawn

        if args.ranks is None or args.transport:
            raise InputError(
                "persistence: got no job, expected -n N alone, or `lanterne lab --hosts N --` or an mpiexec before this"
            )
        return spawn(args.ranks, _emulated, settings, args)[0]
    from lanterne.collectives.jobs import init

    with init(transport=args.transport) as comm:
        if comm.world_size < LEAST_RANKS:
            raise InputError(f"persistence: got a job of {comm.world_size} ranks, expected at least {LEAST_RANKS}")
        model = comm.tuning.model
        assert model is not None
        return run_rank(comm, model, settings, args)


def parse(args: argparse.Namespace) -> dict[str, Any]:
    """{nbytes, model, delay_s, shares, calls} of a command line.

    Raises:
        InputError: an option that cannot be.
    """
    nbytes, rate = (
        max(parse_sizes(args.bytes, "--bytes", copies=4 * (args.ranks or LEAST_RANKS))),
        known_rate_bytes_per_s(args.rate) or parse_rate_bytes_per_s("200mbit"),
    )
    if args.ranks is not None and not LEAST_RANKS <= args.ranks <= 64:
        raise InputError(f"-n: got {args.ranks}, expected {LEAST_RANKS} to 64")
    if nbytes < 1 << 16:
        raise InputError(f"--bytes: got {args.bytes}, expected at least 64K: below, nobody asks who is late")
    try:
        shares = [float(text) / 100 for text in args.share.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 <= share <= 1 for share in shares):
        raise InputError(f"--share: got {args.share!r}, expected percentages such as 77,90,95")
    if args.calls < 1:
        raise InputError(f"--calls: got {args.calls}, expected at least 1")
    return {
        "nbytes": nbytes,
        "model": CostModel(parse_time_s(args.latency, "--latency"), 1 / rate),
        "delay_s": parse_time_s(args.delay, "--delay") if args.delay else 1.1 * nbytes / rate,
        "shares": shares,
        "calls": args.calls,
    }


def _emulated(comm: "Communicator", settings: dict[str, Any], args: argparse.Namespace) -> int:
    """As `run_rank`, over emulated links with the settings' alpha and beta."""
    model = settings["model"]
    with emulated(comm, 1 / model.beta_s_per_byte, model.alpha_s, model.alpha_s) as linked:
        return run_rank(linked, model, settings, args)


def run_rank(comm: "Communicator", model: CostModel, settings: dict[str, Any], args: argparse.Namespace) -> int:
    """Both parts on this rank; rank 0 prints, writes and draws. The exit code."""
    import numpy as np

    from lanterne.bench.collective.measure import CollectiveCase

    case = CollectiveCase(comm, "all_reduce", settings["nbytes"] // ITEMSIZE, np.dtype(np.float32), "sum")
    predictor = Predictor(comm, model, settings["nbytes"])
    named = comm.world_size - 1
    mixes = [record for share in settings["shares"] for record in mix(case, predictor, named, share, settings)]
    delays = critical_delays(case, predictor, named)
    report.progress("")
    if comm.rank:
        return int(any(record["wrong"] for record in mixes))
    # A measured model is piecewise linear.
    alpha_s, beta_s_per_byte = (float(x) for x in model.alpha_beta(settings["nbytes"]))
    document = report.envelope(
        ranks=comm.world_size,
        nbytes=settings["nbytes"],
        delay_s=settings["delay_s"],
        late_rank=named,
        alpha_s=alpha_s,
        beta_s_per_byte=beta_s_per_byte,
        results=mixes,
        critical_delays=delays,
        paper=[paper_critical_delay(n) for n in (8, 256)],
    )
    if args.json:
        report.write_json(args.json, document)
    if args.json != "-":
        print_document(document)
    if args.plot:
        plot(args.plot, document)
    return int(any(record["wrong"] for record in mixes))


def options_of(algorithm: str, late_rank: int | None) -> dict[str, Any]:
    """Keyword arguments of a call by `algorithm`."""
    told = algorithm != "auto" and find_algorithm("all_reduce", algorithm).late
    return {"late_rank": late_rank} if told else {}


class Predictor:
    """Times of calls by the model, with the chunk counts that `comm` uses."""

    def __init__(self, comm: "Communicator", model: CostModel, nbytes: int) -> None:
        self._model, self._nbytes = model, nbytes
        self._n = comm.world_size
        self._cache: dict[tuple[str, int, int | None, float], float] = {}
        self._chunks = {
            name: comm.tuning.num_chunks("all_reduce", name, nbytes) for name in {*ALGORITHMS, *KNOWING} - {"auto"}
        }

    def time_s(self, algorithm: str, named: int, late_rank: int | None, delay_s: float) -> float:
        """From the common call to the end, when `late_rank` (None: nobody) is late and `named` is expected to be."""
        if algorithm == "auto":
            expected = self._n - 1 if late_rank is None else late_rank
            return min(self.time_s(name, expected, late_rank, delay_s) for name in KNOWING)
        key = algorithm, named, late_rank, delay_s
        if key not in self._cache:
            late = options_of(algorithm, named).get("late_rank")
            schedule = check(
                make_schedule("all_reduce", algorithm, self._n, self._chunks[algorithm], None, late)
            ).schedule
            start = late_start(self._n, late_rank, delay_s)
            self._cache[key] = price(schedule, self._nbytes, self._model, start).makespan_s
        return self._cache[key]


def late_ranks(world_size: int, named: int, share: float, calls: int) -> list[int | None]:
    """Who is late in each call: `named` in `share` of them, in the others another rank or nobody; shuffled."""
    chosen = random.Random(f"{world_size} {share} {calls}")
    wrong = calls - round(share * calls)
    others = [rank for rank in range(world_size) if rank != named]
    found: list[int | None] = [named] * (calls - wrong)
    found += [chosen.choice(others) if index % 2 == 0 else None for index in range(wrong)]
    chosen.shuffle(found)
    return found


def mix(
    case: "CollectiveCase", predictor: Predictor, named: int, share: float, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Part 1 for one share: a record for each algorithm; they take turns in every call."""
    from lanterne.bench.collective.measure import timed_call

    comm, delay_s = case.comm, settings["delay_s"]
    sequence = late_ranks(comm.world_size, named, share, settings["calls"])
    found: dict[str, dict[str, Any]] = {
        name: {"algorithm": name, "share": share, "late_rank": [], "time_s": [], "exposed_s": [], "wrong": 0}
        for name in ALGORITHMS
    }
    for index, late_rank in enumerate([named, *sequence]):
        for name in ALGORITHMS:
            if comm.rank == 0:
                report.progress(f"{100 * share:g} % named rightly: {index}/{len(sequence)} {name}")
            case.reset()
            time_s, late_s = timed_call(case, name, late_rank, delay_s, options_of(name, named))
            record = found[name]
            record["wrong"] += case.wrong()
            # The first is to warm up.
            if index:
                record["late_rank"].append(late_rank)
                record["time_s"].append(time_s)
                record["exposed_s"].append(time_s if late_s is None else late_s)
    for name, record in found.items():
        predicted = [predictor.time_s(name, named, late_rank, delay_s) for late_rank in sequence]
        record["predicted_time_s"] = statistics.mean(predicted)
        record["predicted_exposed_s"] = statistics.mean(
            time_s - (delay_s if late_rank is not None else 0)
            for time_s, late_rank in zip(predicted, sequence, strict=True)
        )
        record["gain"] = statistics.mean(found["ring"]["time_s"]) / statistics.mean(record["time_s"]) - 1
        record["wrong"] = _total(comm, record["wrong"])
    return list(found.values())


def _total(comm: "Communicator", number: int) -> int:
    import numpy as np

    total = np.array([number], np.int64)
    comm.all_reduce(total, total)
    return int(total[0])


def critical_delays(case: "CollectiveCase", predictor: Predictor, named: int) -> list[dict[str, Any]]:
    """Part 2: a record for each algorithm but the ring, with the named rank late in every call."""
    from lanterne.bench.collective.measure import measure

    predicted = {}
    for name in ALGORITHMS[1:]:
        together = predictor.time_s(name, named, None, 0.0) if name != "auto" else 0.0
        predicted[name] = max(0.0, together - predictor.time_s("ring", named, None, 0.0))
    unit_s = max(predicted.values())
    if not unit_s:
        return []
    differences: dict[str, list[float]] = {name: [] for name in predicted}
    for index, step in enumerate(STEPS):
        if case.comm.rank == 0:
            report.progress(f"critical delay: {index + 1}/{len(STEPS)}")
        options = {name: options_of(name, named) for name in ALGORITHMS}
        measured = measure(case, ALGORITHMS, named, step * unit_s, iterations=5, warmup=1, options=options)
        for name, its in differences.items():
            pairs = zip(measured[name][0], measured["ring"][0], strict=True)
            its.append(statistics.median(mine_s - ring_s for mine_s, ring_s in pairs))
    delays_s = [step * unit_s for step in STEPS]
    return [
        {
            "algorithm": name,
            "predicted_s": predicted[name],
            "measured_s": crossing(delays_s, its),
            "delay_s": delays_s,
            "over_ring_s": its,
        }
        for name, its in differences.items()
    ]


def crossing(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Where the polyline (x, y) first falls to 0: 0 if it begins there, None if it never does."""
    if y[0] <= 0:
        return 0.0
    for (x0, y0), (x1, y1) in pairwise(zip(x, y, strict=True)):
        if y1 <= 0:
            return x0 + (x1 - x0) * y0 / (y0 - y1)
    return None


def paper_critical_delay(world_size: int, nbytes: int = 1 << 30) -> dict[str, Any]:
    """The paper's critical delay of StragglAR (section 4.3: 3 us, 450 GB/s), by its formula, and of our schedules."""
    n, log = world_size, math.log2(world_size)
    formula_s = (log - 2) * PAPER.alpha_s + (
        (2 * (n - 2) + log) / (n - 1) - 2 * (n - 1) / n
    ) * nbytes * PAPER.beta_s_per_byte
    found = {}
    for name in ("ring", "stragglar"):
        schedule = check(make_schedule("all_reduce", name, n)).schedule
        found[name] = price(schedule, nbytes, PAPER).makespan_s
    return {"ranks": n, "nbytes": nbytes, "formula_s": formula_s, "schedules_s": found["stragglar"] - found["ring"]}


def print_document(document: dict[str, Any]) -> None:
    """Both tables, for people."""
    notes = [
        f"{document['ranks']} ranks, {format_nbytes(document['nbytes'])}; named: rank {document['late_rank']}; "
        f"late by {format_time(document['delay_s'])}; "
        f"model: {format_time(document['alpha_s'])}, {1e-9 / document['beta_s_per_byte']:.4g} GB/s",
        "exposed: from the last rank's call to the last completion; gain: of the time of a call, over the ring's",
    ]
    columns = [
        ("algorithm", ""),
        ("named rightly", "%"),
        ("exposed", "mean"),
        ("predicted", ""),
        ("time", "mean"),
        ("gain", "%"),
        ("#wrong", ""),
    ]
    rows = [
        [
            record["algorithm"],
            f"{100 * record['share']:g}",
            format_time(statistics.mean(record["exposed_s"])),
            format_time(record["predicted_exposed_s"]),
            format_time(statistics.mean(record["time_s"])),
            f"{100 * record['gain']:.1f}",
            record["wrong"],
        ]
        for record in document["results"]
    ]
    report.print_table(columns, rows, notes=notes)
    notes = ["critical delay: from it on the algorithm beats the ring"]
    for line in document["paper"]:
        notes.append(
            f"{format_nbytes(line['nbytes'])}, 3 us, 450 GB/s, n = {line['ranks']}: {1e3 * line['formula_s']:.3f} ms "
            f"by the paper's formula, {1e3 * line['schedules_s']:.3f} ms by our schedules"
        )
    rows = [
        [r["algorithm"], format_time(r["predicted_s"]), format_time(r["measured_s"])]
        for r in document["critical_delays"]
    ]
    print()
    report.print_table([("algorithm", ""), ("predicted", ""), ("measured", "")], rows, notes=notes)


def plot(path: str, document: dict[str, Any]) -> None:
    """Draw both parts into `path`: exposed time over the share, and time over the ring's over the delay."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    unit_s = document["nbytes"] * document["beta_s_per_byte"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    for name, style in zip(ALGORITHMS, STYLES, strict=False):
        mine = sorted((r for r in document["results"] if r["algorithm"] == name), key=lambda r: r["share"])
        shares = [100 * record["share"] for record in mine]
        left.plot(shares, [statistics.mean(r["exposed_s"]) / unit_s for r in mine], label=name, **style)
        left.plot(shares, [r["predicted_exposed_s"] / unit_s for r in mine], ":", color=style["color"], linewidth=1)
        for record in document["critical_delays"]:
            if record["algorithm"] == name:
                x = [delay_s / unit_s for delay_s in record["delay_s"]]
                right.plot(x, [value / unit_s for value in record["over_ring_s"]], label=name, **style)
                right.axvline(record["predicted_s"] / unit_s, color=style["color"], linestyle=":", linewidth=1)
    left.set(
        xlabel="named rank is the late one, % of calls",
        ylabel="last call to the end, mean, multiples of s beta",
        ylim=(0, None),
    )
    left.set_title("wrong or absent stragglers; dotted: predicted")
    right.axhline(0, color="#888888", linewidth=0.8)
    right.set(xlabel="delay of the named rank, multiples of s beta", ylabel="time less the ring's, multiples of s beta")
    right.set_title("critical delays; dotted: predicted")
    for axis in (left, right):
        axis.grid(alpha=0.3)
        label_ends(axis)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=Path(path).suffix[1:].lower(), dpi=120)
    plt.close(figure)
    report.write_atomically(path, buffer.getvalue())
