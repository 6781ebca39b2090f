"""Redo a figure of a paper: our numbers, beside those that the paper prints.

  lanterne experiment crosspipe-8 --plot figure8.png
  lanterne experiment adaptra-19 --quick --json -

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
greyhound-13       the iteration time by the call log alone, by parallelism
greyhound-14       fewer microbatches for a slow copy (S2), by severity and copies
greyhound-15       S2 with several slow copies; several slow links gathered in one stage (S3, simulated)
greyhound-16       a congested link moved to where a pipeline hides it (S3), by severity
greyhound-17       what validating a group of suspects takes
greyhound-18       what being recorded costs, by parallelism
greyhound-19       putting ranks elsewhere, peer to peer against through the disk

Simulated, but for the seconds that planning takes:

greyhound-table-3  detectors on jobs of which few have a slow rank
greyhound-table-4  the same, of which many have a congested link
greyhound-table-5  how long it takes to find the best distribution of microbatches
adaptra-19         gap of ADAPTRA's plans to the optimum, and how long they take to make
adaptra-21         1,200 iterations through the events of table 3
crosspipe-8        static, greedy and optimal schedules over the delay of one slow link
crosspipe-9        two datacenters: a pipeline across against data parallelism across, Llama 3 405B
crosspipe-12       many stages or much data parallelism, on the same nodes
crosspipe-14       how the solver scales: constraints against a mixed-integer program
crosspipe-15       bubble strides: charts of static schedules over a slow link, and of planned ones
crosspipe-table-5  M70 in two datacenters, seconds per microbatch, with more batch, memory, recomputation
crosspipe-table-6  the same in four datacenters
"""

import difflib
from importlib import import_module

from lanterne.bench.output import report
from lanterne.errors import InputError
from lanterne.pipeline.simulate.draw import save

FIGURES = {
    "adaptra": ("1", "3", "14", "15", "16", "17", "18", "19", "20", "21", "21-measured"),
    "crosspipe": ("8", "9", "11", "12", "14", "15", "17", "table-5", "table-6"),
    "greyhound": (
        *("13", "14", "15", "16", "17", "18", "19"),
        *("table-3", "table-4", "table-5", "table-6", "table-6-mild"),
    ),
}


def _module(figure):
    name = figure.replace("-", "_")
    return name if name.startswith("table") else f"figure_{name}"


# name -> module with run(quick) -> records, COLUMNS, row(record), NOTES, draw(figure, records), and perhaps
# findings(records) -> lines below the table, and bars(records) -> Bars that they have to reach.
EXPERIMENTS = {
    f"{paper}-{figure}": f"{paper}.{_module(figure)}" for paper, figures in FIGURES.items() for figure in figures
}
# The figure that shows what the table sums up.
EXPERIMENTS["greyhound-20"] = EXPERIMENTS["greyhound-table-6"]
# What --help says of each.
LIST = __doc__.split("\n\n", 2)[2]


def add_arguments(parser):
    """The options of this command."""
    parser.add_argument(
        "name", nargs="?", default="list", metavar="NAME", help="one of those above (default: list them)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer points and shorter time limits")
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar is missed; of those that have one")
    parser.add_argument("--plot", metavar="FILE", help="draw it (png, svg, pdf)")
    parser.add_argument("--json", metavar="FILE", help="write the records as JSON ('-' for standard output)")


def run(args):
    """Measure, print, write and draw; the exit code."""
    if args.name == "list":
        print(LIST, end="")
        return 0
    module = import_module(f"lanterne.bench.papers.{EXPERIMENTS[_known(args.name)]}")
    if args.check and not hasattr(module, "bars"):
        raise InputError(f"--check: got {args.name}, which has no bar, expected it without --check")
    records = module.run(args.quick)
    report.progress("")
    bars = module.bars(records) if hasattr(module, "bars") else []
    if args.json:
        reached = [bar._asdict() | {"met": bar.is_met} for bar in bars]
        report.write_json(
            args.json, report.envelope(experiment=args.name, quick=args.quick, results=records, bars=reached)
        )
    if args.json != "-":
        notes = module.NOTES.strip().splitlines()
        report.print_table(
            module.COLUMNS,
            [module.row(record) for record in records],
            title=module.__doc__.splitlines()[0],
            notes=notes,
        )
        for line in getattr(module, "findings", lambda _: [])(records):
            print(line)
        for bar in bars:
            print(f"# bar {bar}")
    if args.plot:
        _draw(module, args.plot, records)
    return int(args.check and not all(bar.is_met for bar in bars))


def _known(name):
    if name not in EXPERIMENTS:
        close = difflib.get_close_matches(name, EXPERIMENTS)
        hint = f" (did you mean {' or '.join(close)}?)" if close else ""
        raise InputError(
            f"experiment: got {name!r}{hint}, expected one of those that `lanterne experiment list` prints"
        )
    return name


def _draw(module, path, records):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=module.FIGURE_INCHES, layout="constrained")
    module.draw(figure, records)
    save(figure, path)
