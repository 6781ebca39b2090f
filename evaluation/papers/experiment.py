"""Redo a figure of a paper: our numbers, beside those that the paper prints.

  ./run evaluate experiment crosspipe-8 --plot figure8.png
  ./run evaluate experiment adaptra-19 --quick --json -

On processes whose stages wait as long as told, over emulated links:

adaptra-1          what dependency bubbles and what blocked sends add to an iteration
adaptra-3          a slow link among the gradients' all-reduces, or between two stages
adaptra-14         the 7B model with one slow link: blocked, delegated, re-planned, as timelines
adaptra-15         slowdown over the delay of one link, 14B on eight stages
adaptra-16         one slow link, at the first or the last stage, 7B and 14B
adaptra-17         several slow links at once
adaptra-18         the slow link of figure 3 moved into the pipeline, and the pipeline adapted to it
adaptra-20         what delegates cost when no link is slow, by the size of a message
adaptra-21-measured
                   the events of table 3 on eight processes: plans that stay, that adapt, that know all
crosspipe-11       static schedules, their receives late or ahead, and planned ones, over a slow link
crosspipe-17       whether injected latency and bandwidth are what was asked for

On a job that trains, slowed on purpose:

greyhound-table-6, greyhound-20
                   2 communication and 10 compute events, with and without mitigation
greyhound-table-6-mild
                   the same with compute events of 1.5, 2 and 3 instead of 1.5, 2.3 and 3.5 times
greyhound-table-6-published
                   the same with the schedule of events that the artifact publishes
greyhound-13       the iteration time by the call log alone, by parallelism
greyhound-14       fewer microbatches for a slow copy (S2), by severity and copies
greyhound-15       S2 with several slow copies; several slow links gathered in one stage (S3, simulated)
greyhound-16       a congested link moved to where a pipeline hides it (S3), by severity
greyhound-17       what validating a group of suspects takes
greyhound-18       what being recorded costs, by parallelism
greyhound-19       putting ranks elsewhere, peer to peer against through the disk

Simulated, but for the seconds that planning takes:

adaptra-setting    figures 14 to 18 and 20 under one setting, fixed by figure 14; where it misses, the published runs
adaptra-large      slow links of the 30B and 140B models, predicted from runs of other models
h800               ADAPTRA's published runs on H800 and A10 GPUs: predicted over measured
greyhound-table-3  detectors on jobs of which few have a slow rank
greyhound-table-4  the same, of which many have a congested link
greyhound-table-5  how long it takes to find the best distribution of microbatches
adaptra-8          figures 4, 5 and 8: what a slow link costs by the slack between stages
adaptra-19         gap of ADAPTRA's plans to the optimum, and how long they take to make
adaptra-21         1,200 iterations through the events of table 3
stragglar-5        all-reduces with a late rank on eight GPUs, by buffer size and delay
stragglar-6        the same on 4 to 256 GPUs, and from which delay on a late rank's algorithm is faster
stragglar-10       the same on a mesh of four GPUs
stragglar-13, stragglar-14
                   iterations of BERT-large on 8 to 64 GPUs, one of them late before each all-reduce
stragglar-8        who was late, and how late, in the authors' log of four A100; what all-reduces would have cost
stragglar-table-2  how much faster training gets where one rank is mostly late
crosspipe-8        static, greedy and optimal schedules over the delay of one slow link
crosspipe-9        two datacenters: a pipeline across against data parallelism across, Llama 3 405B
crosspipe-12       many stages or much data parallelism, on the same nodes
crosspipe-14       how the solver scales: constraints against a mixed-integer program
crosspipe-15       bubble strides: charts of static schedules over a slow link, and of planned ones
crosspipe-table-5  M70 in two datacenters, seconds per microbatch, with more batch, memory, recomputation
crosspipe-table-6  the same in four datacenters
"""

import argparse
from collections.abc import Sequence
from importlib import import_module
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from lanterne.bench.output import report
from lanterne.bench.output.bars import Bar, print_bars
from lanterne.bench.output.load import busy_note
from lanterne.bench.output.plots import in_style, lift_legends
from lanterne.collectives.auto.load_meter import LoadMeter
from lanterne.errors import InputError, Unavailable, did_you_mean
from lanterne.pipeline.simulate.gantt import save

if TYPE_CHECKING:
    # Matplotlib takes a while to load, and only --plot needs it.
    from matplotlib import axes, figure

# One line of a table, as JSON has it.
Record: TypeAlias = dict[str, Any]
# (header, unit) of each column of the table.
Columns: TypeAlias = Sequence[tuple[str, str]]
Figure: TypeAlias = "figure.Figure"
Axes: TypeAlias = "axes.Axes"
# A value this near to the paper's, as a share of it, agrees with it.
AGREES = 0.05


class PaperValue(NamedTuple):
    """A value of ours and the one that the paper prints.

    Attributes:
        what: the paper's name of the value, such as "ZB at 60 ms".
        ours: NaN where there is none; `reason` then says why.
        paper: not 0.
        reason: why the two differ, where they may; values with the same reason share a line.
    """

    what: str
    ours: float
    paper: float
    reason: str = ""

    @property
    def off(self) -> float:
        """Difference as a share of the paper's value."""
        return self.ours / self.paper - 1

    @property
    def agrees(self) -> bool:
        return abs(self.off) <= AGREES * (1 + 1e-9)


def judge(values: Sequence[PaperValue]) -> list[str]:
    """Return the lines that say which values agree with the paper's and which differ, by how much and why.

    The first line counts those that agree. Each further line is one reason and the values that it explains.
    """
    if not values:
        return []
    agreeing = sum(value.agrees for value in values)
    lines = [f"agrees with the paper within {AGREES:.0%}: {agreeing} of {len(values)} values"]
    differing: dict[str, list[str]] = {}
    for value in values:
        if not value.agrees:
            off = f"by {value.off:+.1%}" if isfinite(value.ours) else "no value"
            differing.setdefault(value.reason or "reason unknown", []).append(f"{value.what} {off}")
    return [*lines, *(f"differs: {', '.join(found)}: {reason}" for reason, found in differing.items())]


class Experiment(Protocol):
    """What the module of an experiment holds; the first line of its docstring is the title of its table.

    It may also have `findings(records) -> list[str]`, lines below the table, `paper_values(records) ->
    list[PaperValue]`, ours beside what the paper prints, and `bars(records) -> list[Bar]`, what its figures have to
    reach. Where a solver plans, SOLVER_S is its time for each problem, (in full, quick), and `run` takes it as well.
    """

    COLUMNS: Columns
    NOTES: str
    FIGURE_INCHES: tuple[float, float]

    def run(self, quick: bool, *limit_s: float) -> list[Record]:
        """Measure or simulate; `quick`: fewer points. `limit_s`: one, of the solver, where there is SOLVER_S."""
        ...

    def row(self, record: Record) -> Sequence[object]:
        """The cells of one record."""
        ...

    def draw(self, figure: Figure, records: Sequence[Record]) -> None:
        """Draw all records."""
        ...


FIGURES: dict[str, tuple[str, ...]] = {
    "adaptra": ("1", "3", "8", "14", "15", "16", "17", "18", "19", "20", "21", "21-measured"),
    "crosspipe": ("8", "9", "11", "12", "14", "15", "17", "table-5", "table-6"),
    "stragglar": ("5", "6", "8", "10", "13", "table-2"),
    "greyhound": (
        *("13", "14", "15", "16", "17", "18", "19"),
        *("table-3", "table-4", "table-5", "table-6", "table-6-mild", "table-6-published"),
    ),
}


def _module(figure: str) -> str:
    name = figure.replace("-", "_")
    return name if name.startswith("table") else f"figure_{name}"


# name -> module, an Experiment.
EXPERIMENTS: dict[str, str] = {
    f"{paper}-{figure}": f"{paper}.{_module(figure)}" for paper, figures in FIGURES.items() for figure in figures
}
# The figure that shows what the table sums up.
EXPERIMENTS["greyhound-20"] = EXPERIMENTS["greyhound-table-6"]
# One table with two latencies of a message.
EXPERIMENTS["stragglar-14"] = EXPERIMENTS["stragglar-13"]
EXPERIMENTS["h800"] = "adaptra.h800"
EXPERIMENTS["adaptra-setting"] = "adaptra.fixed_setting"
EXPERIMENTS["adaptra-large"] = "adaptra.large_models"
# What --help says of each.
LIST = str(__doc__).split("\n\n", 2)[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument(
        "name", nargs="?", default="list", metavar="NAME", help="one of those above (default: list them)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer points and shorter time limits")
    parser.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="for the solver on each problem, where there is one"
    )
    parser.add_argument("--check", action="store_true", help="print the bars, where there are some; exit 1 if missed")
    parser.add_argument("--plot", metavar="FILE", help="draw it (png, svg, pdf)")
    parser.add_argument("--json", metavar="FILE", help="write the records as JSON ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    """Measure, print, write and draw; the exit code."""
    if args.name == "list":
        print(LIST, end="")
        return 0
    experiment = _load(args.name)
    bars_of = getattr(experiment, "bars", None)
    if args.check and bars_of is None:
        raise InputError(f"--check: got {args.name}, which has no bar, expected it without --check")
    solver_s: tuple[float, float] | None = getattr(experiment, "SOLVER_S", None)
    if args.time_limit is not None and solver_s is None:
        raise InputError(f"--time-limit: got {args.name}, which asks no solver, expected it without --time-limit")
    if args.time_limit is not None and not 0 < args.time_limit < inf:
        raise InputError(f"--time-limit: got {args.time_limit:g}, expected more than 0 seconds")
    limits = () if solver_s is None else (args.time_limit or solver_s[args.quick],)
    meter = LoadMeter()
    records = experiment.run(args.quick, *limits)
    report.progress("")
    cores = meter.foreign_cores()
    # Only what ran in processes of its own was measured; else it was computed, and is the same on a busy machine.
    busy = busy_note(cores) if meter.started_s else ""
    bars: list[Bar] = bars_of(records) if bars_of is not None else []
    values: list[PaperValue] = getattr(experiment, "paper_values", lambda _: [])(records)
    if args.json:
        reached = [bar._asdict() | {"met": None if busy else bar.is_met} for bar in bars]
        document = report.envelope(
            experiment=args.name,
            quick=args.quick,
            foreign_cores=cores,
            results=records,
            bars=reached,
            paper_values=[_judged(value, busy) for value in values],
        )
        report.write_json(args.json, document)
    if args.json != "-":
        rows = [experiment.row(record) for record in records]
        title = str(experiment.__doc__).partition("\n")[0]
        report.print_table(experiment.COLUMNS, rows, title=title, notes=experiment.NOTES.strip().splitlines())
        for line in getattr(experiment, "findings", lambda _: [])(records):
            print(line)
        if not busy:
            for line in judge(values):
                print(line)
        if args.check and not busy:
            print_bars(bars)
        if busy:
            print(busy)
    if args.plot:
        _draw(experiment, args.plot, records)
    if busy and args.check:
        raise Unavailable(f"--check: others keep this machine busy ({cores:.1f} cores): no verdict; run it again")
    return int(args.check and not all(bar.is_met for bar in bars))


def _load(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, EXPERIMENTS)
        expected = "expected one of those that `./run evaluate experiment list` prints"
        raise InputError(f"experiment: got {name!r}{hint}, {expected}")
    module: Any = import_module(f"evaluation.papers.{EXPERIMENTS[name]}")
    return module


def _judged(value: PaperValue, busy: str) -> Record:
    """Return the value for JSON, which has no NaN; no verdict where others kept the machine busy."""
    found = value._asdict() | {"off": value.off, "agrees": None if busy else value.agrees}
    return found if isfinite(value.ours) else found | {"ours": None, "off": None}


def _draw(experiment: Experiment, path: str, records: Sequence[Record]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with in_style():
        figure = plt.figure(figsize=experiment.FIGURE_INCHES, layout="constrained")
        experiment.draw(figure, records)
        lift_legends(figure)
        save(figure, path)
