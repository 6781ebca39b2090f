"""CrossPipe figure 11: static schedules with receives posted late or ahead (`_O`), and planned ones, over a slow link.

M8 on four stages with 8 microbatches, M70 on eight with 16, two datacenters, in the memory of 1F1B. Measured on
processes whose stages wait; F is 10 ms where M70's is 38, B and W are in its proportion.
"""

import statistics
from collections.abc import Sequence

from evaluation.papers.crosspipe.solved import SOLVED, over_bound, solved
from evaluation.papers.crosspipe.table_5 import B_S, F_S, W_S
from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from evaluation.papers.study import UNIT_S, best_of_placements, measured
from lanterne.bench.output import report
from lanterne.bench.output.bars import Bar, at_most
from lanterne.bench.pipeline.measure import PipelineCase
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.crosspipe import crosspipe
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check

F_MS = 10.0
MODELS = {"M8": 4, "M70": 8}
# Latency and time of a message on the slow link, over F.
DELAYS = ((0, 0), (0.5, 0), (1, 0), (2, 0), (0, 0.5), (0, 1), (0, 2))
MESSAGE_NBYTES = 4096
STATIC = {"1F1B": "1f1b", "IV1F1B": "interleaved_1f1b", "ZBH1": "zb_h1", "ZBV": "zb_v"}
# With what they are compared: greedy, the solver's, ours.
PLANNED = ("CrossUDSub", *(f"Cross{name}" for name in SOLVED), "best")
# Name -> data plane.
SYSTEMS = {
    **{f"{name}{mark}": plane for name in STATIC for mark, plane in (("", "paired"), ("_O", "paired_o"))},
    **dict.fromkeys(PLANNED, "paired_o"),
}
SOLVER_S = (20.0, 2.0)
# How much shorter than the best static schedule, late and ahead, the paper's planned ones are at most: M70 at 0, 2.
PAPER = {"M70": (0.336, 0.219)}
FIGURE_INCHES = (14, 8)
NOTES = """
times in ms; delay: latency and time of a message on the link between the datacenters, over F
CrossUD, CrossWave: the solver's, of whole actions; over bound: of the least that was proved
paper, no figures printed but: planned schedules up to 33.6 % shorter than static, 21.9 % than static _O (M70, 0 and 2)
best: ours, on the better of both placements
"""
COLUMNS: Columns = [
    ("model", ""),
    ("delay", "lat, bw"),
    *((name, "ms") for name in SYSTEMS),
    *((f"Cross{name}", "over bound") for name in SOLVED),
    ("off by", "median"),
    ("", "most"),
]


def problem_of(stages: int, delay: tuple[float, float]) -> Problem:
    """The Problem, in ms."""
    slow = stages // 2 - 1
    links = [delay[0] * F_MS if link == slow else 0 for link in range(stages - 1)]
    rates = [MESSAGE_NBYTES / (delay[1] * F_MS) if link == slow and delay[1] else None for link in range(stages - 1)]
    f_ms, b_ms, w_ms = (F_MS * value / F_S for value in (F_S, B_S, W_S))
    bandwidth = rates if delay[1] else None
    return Problem(
        stages, 2 * stages, f_ms, b_ms, w_ms, links, bandwidth, MESSAGE_NBYTES, max_inflight_activations=stages
    )


def run(quick: bool, limit_s: float) -> list[Record]:
    """One record per model and delay."""
    report.progress("planning")
    models = {"M8": MODELS["M8"]} if quick else MODELS
    cases, bounds = {}, {}
    for model, stages in models.items():
        for delay in DELAYS[::3] if quick else DELAYS:
            problem = problem_of(stages, delay)
            solutions = solved(problem, limit_s)
            bounds[model, delay] = {f"Cross{name}": each.lower_bound for name, each in solutions.items()}
            plans = {f"Cross{name}": solution.plan for name, solution in solutions.items()}
            plans |= {"CrossUDSub": crosspipe(problem), "best": best_of_placements(problem)}
            for name, plane in SYSTEMS.items():
                made = plans[name] if name in plans else plan(problem, STATIC[name.removesuffix("_O")])
                checked = check(made, problem, memory=False)
                cases[model, delay, name] = PipelineCase(checked, problem, UNIT_S, plane)
    found = measured(cases, 3)
    records = []
    for model, delay in dict.fromkeys(key[:2] for key in cases):
        ours = {name: found[model, delay, name] for name in SYSTEMS}
        records.append(
            {
                "model": model,
                "delay": delay,
                "measured_s": {name: statistics.median(each["measured_s"]) for name, each in ours.items()},
                "predicted_s": {name: each["predicted_s"] for name, each in ours.items()},
                "bound_s": {name: UNIT_S * bound for name, bound in bounds[model, delay].items()},
            }
        )
    return records


def row(record: Record) -> list[object]:
    """One line of the table."""
    measured_s, predicted_s = record["measured_s"], record["predicted_s"]
    off = [abs(measured_s[name] / predicted_s[name] - 1) for name in SYSTEMS]
    cells = [f"{1e3 * measured_s[name]:.0f}" for name in SYSTEMS]
    cells += [over_bound(predicted_s[name], bound) for name, bound in record["bound_s"].items()]
    cells += [f"{statistics.median(off):.1%}", f"{max(off):.1%}"]
    return [record["model"], f"{record['delay'][0]:g}, {record['delay'][1]:g}", *cells]


def findings(records: Sequence[Record]) -> list[str]:
    """How much shorter the best planned schedule is than the best static one, late and ahead."""
    return [
        f"{model}: planned schedules up to {late:.1%} shorter than static ones, {ahead:.1%} than _O"
        for model, (late, ahead) in _shorter(records).items()
    ]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Return the two reductions that the paper prints."""
    reason = "the planned schedules and B and W are not the paper's"
    return [
        PaperValue(f"{model}, planned under static{mark}", ours, paper, reason)
        for model, found in _shorter(records).items()
        for mark, ours, paper in zip(("", "_O"), found, PAPER.get(model, ()), strict=False)
    ]


def _shorter(records: Sequence[Record]) -> dict[str, list[float]]:
    """Return by model how much shorter the best planned schedule is than the best static one, late and ahead."""
    found = {}
    for model in dict.fromkeys(record["model"] for record in records):
        times = [record["measured_s"] for record in records if record["model"] == model]
        found[model] = [
            max(1 - min(t[name] for name in PLANNED) / min(t[name + mark] for name in STATIC) for t in times)
            for mark in ("", "_O")
        ]
    return found


def bars(records: Sequence[Record]) -> list[Bar]:
    """How near the simulator is."""
    off = [abs(r["measured_s"][name] / r["predicted_s"][name] - 1) for r in records for name in SYSTEMS]
    return [
        at_most("measured off simulated, most", max(off), 0.02, "{:.1%}"),
        at_most("the same, median", statistics.median(off), 0.02, "{:.1%}"),
    ]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Iteration time over the delay, a panel per model and kind: measured lines, simulated dots."""
    models = list(dict.fromkeys(record["model"] for record in records))
    axes = figure.subplots(len(models), 2, squeeze=False, sharey="row")
    for i, model in enumerate(models):
        for axis, kind in zip(axes[i], (0, 1), strict=True):
            mine = [r for r in records if r["model"] == model and not r["delay"][1 - kind]]
            for j, name in enumerate(SYSTEMS):
                colour = f"C{j // 2}" if j < 2 * len(STATIC) else f"C{j - len(STATIC)}"
                style = {"linestyle": ":" if name in STATIC else "--" if name.endswith("_O") else "-", "color": colour}
                x = [record["delay"][kind] for record in mine]
                axis.plot(x, [1e3 * record["measured_s"][name] for record in mine], label=name, **style)
                axis.plot(x, [1e3 * record["predicted_s"][name] for record in mine], ".", color=colour)
            axis.set_title(f"{model}, {('latency', 'bandwidth')[kind]}", loc="left", fontsize=10)
            axis.set_xlabel("delay / F")
        axes[i][0].set_ylabel("iteration (ms); dots: simulated")
    axes[0][0].legend(frameon=False, fontsize=8, ncols=2)
