"""CrossPipe figure 8: what a slow link between two datacenters costs each schedule, by its latency and its bandwidth.

Four stages, two in each datacenter, eight microbatches, F = B = W, and the memory of 1F1B: four activations.
"""

from collections.abc import Callable, Sequence
from typing import Any

from evaluation.papers.experiment import Columns, Figure, Record
from lanterne.bench.output import report
from lanterne.pipeline.plan.placement import make_placement
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.crosspipe import crosspipe, crosspipe_wave
from lanterne.pipeline.planners.optimal import solve
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

STATIC = ("1f1b", "interleaved_1f1b", "zb_h1", "zb_v")
GREEDY: dict[str, Callable[[Problem], Plan]] = {"crosspipe": crosspipe, "crosspipe_wave": crosspipe_wave}
OPTIMAL = {"optimal": "unidirectional", "optimal_wave": "wave"}
NAMES = (*STATIC, *GREEDY, *OPTIMAL)
RATIOS = (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4)
SOLVER_S = (10.0, 2.0)
FIGURE_INCHES = (12, 4.8)
NOTES = """
slowdown: makespan over that of zb_v without delay; ratio: the link's latency, or time per message, over a stage's F
paper, no figures printed: wave best at low delay, unidirectional at high; loop (interleaved_1f1b) worst; greedy as good
as optimal in most places; latency and bandwidth cost alike until a message takes longer than a forward
"""
COLUMNS: Columns = [("delay", ""), ("ratio", "of F"), *((name, "slowdown") for name in NAMES), ("proved", "")]


def problem_of(kind: str, ratio: float) -> Problem:
    """The problem with a link whose latency, or time per message, is `ratio` of a stage's F."""
    delays: dict[str, Any] = (
        {"link_latency": [0, ratio, 0]}
        if kind == "latency"
        else {"link_bandwidth": [None, 1, None], "message_nbytes": ratio}
    )
    return Problem(4, 8, 1, 1, 1, max_inflight_activations=4, **(delays if ratio else {}))


def run(quick: bool, limit_s: float) -> list[Record]:
    """One record per kind of delay and ratio."""
    base = simulate(plan(problem_of("latency", 0), "zb_v"), problem_of("latency", 0)).makespan
    records = []
    for kind in ("latency", "bandwidth"):
        for ratio in RATIOS[::2] if quick else RATIOS:
            report.progress(f"{kind} {ratio}")
            problem = problem_of(kind, ratio)
            makespans = {name: simulate(plan(problem, name), problem).makespan for name in STATIC}
            makespans |= {
                name: simulate(check(make(problem), problem), problem).makespan for name, make in GREEDY.items()
            }
            proved = 0
            for name, placement in OPTIMAL.items():
                solution = solve(problem, placement=make_placement(placement, 4), time_limit_s=limit_s)
                check(solution.plan, problem)
                makespans[name] = solution.makespan
                proved += solution.is_optimal
            slowdown = {name: makespan / base for name, makespan in makespans.items()}
            records.append({"delay": kind, "ratio": ratio, "slowdown": slowdown, "proved": proved})
    return records


def row(record: Record) -> list[object]:
    """One line of the table."""
    cells = [f"{record['slowdown'][name]:.2f}" for name in NAMES]
    return [record["delay"], f"{record['ratio']:g}", *cells, f"{record['proved']}/{len(OPTIMAL)}"]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Slowdown over the ratio, latency left and bandwidth right."""
    axes = figure.subplots(1, 2, sharey=True)
    for axis, kind in zip(axes, ("latency", "bandwidth"), strict=True):
        mine = [record for record in records if record["delay"] == kind]
        for i, name in enumerate(NAMES):
            style = ":" if name in STATIC else "--" if name in GREEDY else "-"
            axis.plot(
                [r["ratio"] for r in mine],
                [r["slowdown"][name] for r in mine],
                style,
                color=f"C{i}",
                marker="o",
                markersize=4,
                label=name,
            )
        axis.set_title(kind, loc="left", fontsize=10)
        axis.set_xlabel("latency / F" if kind == "latency" else "time per message / F")
    axes[0].set_ylabel("slowdown against zb_v without delay")
    axes[0].legend(frameon=False, fontsize=8)
