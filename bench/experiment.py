"""Redo a figure of a paper: our numbers, beside those that the paper prints.

  lanterne experiment crosspipe-8 --plot figure8.png
  lanterne experiment adaptra-19 --quick --json -

adaptra-19    gap of ADAPTRA's plans to the optimum, and how long they take to make
crosspipe-8   static, greedy and optimal schedules over the delay of one slow link
crosspipe-9   two datacenters: a pipeline across against data parallelism across, Llama 3 405B
crosspipe-12  many stages or much data parallelism, on the same nodes
crosspipe-14  how the solver scales: constraints against a mixed-integer program
crosspipe-15  bubble strides: charts of static schedules over a slow link, and of planned ones

All is simulated, but for the seconds that planning takes, which are measured.
"""

from importlib import import_module

from ..errors import InputError
from ..pipeline.draw import save
from . import report

# name -> module of this folder with run(quick) -> records, COLUMNS, row(record), NOTES, draw(figure, records).
EXPERIMENTS = {
    name: f"experiment_{name.replace('-', '_')}"
    for name in ("adaptra-19", "crosspipe-8", "crosspipe-9", "crosspipe-12", "crosspipe-14", "crosspipe-15")
}


def add_arguments(parser):
    """The options of this command."""
    parser.add_argument("name", choices=EXPERIMENTS, metavar="NAME", help="one of those above")
    parser.add_argument("--quick", action="store_true", help="fewer points and shorter time limits")
    parser.add_argument("--plot", metavar="FILE", help="draw it (png, svg, pdf)")
    parser.add_argument("--json", metavar="FILE", help="write the records as JSON ('-' for standard output)")


def run(args):
    """Measure, print, write and draw; exit code 0."""
    module = import_module(f".{EXPERIMENTS[args.name]}", __package__)
    records = module.run(args.quick)
    report.progress("")
    if args.json:
        report.write_json(args.json, report.envelope(experiment=args.name, quick=args.quick, results=records))
    if args.json != "-":
        notes = module.NOTES.strip().splitlines()
        report.print_table(
            module.COLUMNS,
            [module.row(record) for record in records],
            title=module.__doc__.splitlines()[0],
            notes=notes,
        )
    if args.plot:
        _draw(module, args.plot, records)
    return 0


def _draw(module, path, records):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=module.FIGURE_INCHES, layout="constrained")
    module.draw(figure, records)
    save(figure, path)
