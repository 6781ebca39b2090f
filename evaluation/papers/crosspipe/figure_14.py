"""CrossPipe figure 14: how solvers scale, constraints against a mixed-integer program, to within 1 % of the optimum.

Stages in two datacenters, twice as many microbatches, in the memory of 1F1B. The paper compares CPLEX with Gurobi on
128 cores and two hours; here are OR-tools' CP-SAT, which this library plans with, and SCIP on the mixed-integer program
of Qi et al. 2023 (zero bubble, appendix), in minutes. CP-SAT starts cold in one run, from the plan of `best` in
the other.
"""

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TypeAlias

from evaluation.papers.experiment import Columns, Figure, Record
from lanterne.bench.output import report
from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.bounds import lower_bound
from lanterne.pipeline.planners.optimal import solve
from lanterne.pipeline.planners.solver import Solution, polish
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

# (makespan, None where no plan was found; proved bound; [seconds, makespan, bound] of each improvement).
Solved: TypeAlias = tuple[float | None, float, list[list[float]]]
# (kind, stage, microbatch) of an action.
Start: TypeAlias = tuple[str, int, int]
GAP = 0.01
SIZES = (4, 6, 8, 16, 32)
SOLVER_S = (30.0, 10.0)
FIGURE_INCHES = (12, 4.2)
NOTES = """
makespan, bound: of the best plan and what was proved, in 1 % of F; time: until both were within 1 %, or the limit
cold: from the plan with one microbatch at a time; hinted: from the plan of `best`; all know the planners' lower bound
paper, no figures printed: constraints scale better; the mixed-integer solver runs out of memory at 32 stages
"""
COLUMNS: Columns = [
    ("stages", ""),
    ("microbatches", ""),
    ("solver", ""),
    ("makespan", ""),
    ("bound", ""),
    ("gap", "%"),
    ("first 5 % at", "s"),
    ("time", "s"),
]


def problem_of(stages: int) -> Problem:
    """F, B, W of 100, 110, 80 and a middle link of 150."""
    delays = [150 if link == stages // 2 - 1 else 0 for link in range(stages - 1)]
    return Problem(stages, 2 * stages, 100, 110, 80, delays, max_inflight_activations=stages)


def run(quick: bool, limit_s: float) -> list[Record]:
    """One record per size and solver, with the moments of improvement."""
    # Here, or the first solver timed would pay for it.
    import_module("ortools.sat.python.cp_model")
    records = []
    for stages in SIZES[:2] if quick else SIZES:
        problem = problem_of(stages)
        for solver, function in SOLVERS.items():
            report.progress(f"{stages} stages: {solver}")
            begin = time.monotonic()
            makespan, bound, moments = function(problem, limit_s)
            gap = None if makespan is None else max(makespan - bound, 0) / makespan
            records.append(
                {
                    "stages": stages,
                    "microbatches": problem.microbatches,
                    "solver": solver,
                    "makespan": makespan,
                    "lower_bound": bound,
                    "gap": gap,
                    "solve_s": time.monotonic() - begin,
                    "moments": moments,
                }
            )
    return records


def one_at_a_time(problem: Problem) -> Plan:
    """The trivial plan: each stage ends a microbatch before it begins the next."""
    ranks = [[Action(kind, s, m) for m in range(problem.microbatches) for kind in "FBW"] for s in range(problem.stages)]
    return Plan.from_actions(ranks, unidirectional(problem.stages), problem.microbatches)


def _hinted(problem: Problem, limit_s: float) -> Solved:
    return _told(solve(problem, time_limit_s=limit_s, gap=GAP), problem)


def _cold(problem: Problem, limit_s: float) -> Solved:
    return _told(polish(one_at_a_time(problem), problem, time_limit_s=limit_s, gap=GAP), problem)


def _told(solution: Solution, problem: Problem) -> Solved:
    assert simulate(check(solution.plan, problem), problem).makespan == solution.makespan
    return solution.makespan, solution.lower_bound, [list(moment) for moment in solution.improvements]


def _mixed_integer(problem: Problem, limit_s: float) -> Solved:
    """The mixed-integer program: starts are continuous; a binary variable orders each pair that nothing else does."""
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("SCIP")
    stages, count, memory = problem.stages, problem.microbatches, int(problem.limits.capacity[0])
    durations = problem.durations
    horizon = simulate(one_at_a_time(problem), problem).makespan
    start = {(k, s, m): solver.NumVar(0, horizon, "") for k in "FBW" for s in range(stages) for m in range(count)}
    makespan = solver.NumVar(lower_bound(problem, unidirectional(stages)), horizon, "")

    def after(later: Start, earlier: Start, lag: float = 0.0, unless: Any = 0) -> None:
        solver.Add(start[later] >= start[earlier] + durations[earlier[0]][earlier[1]] + lag - horizon * unless)

    for s in range(stages):
        for m in range(count):
            if s:
                after(("F", s, m), ("F", s - 1, m), problem.latency(s - 1, s))
                after(("B", s - 1, m), ("B", s, m), problem.latency(s, s - 1))
            after(("B", s, m), ("F", s, m))
            after(("W", s, m), ("B", s, m))
            if m:
                for kind in "FBW":
                    after((kind, s, m), (kind, s, m - 1))
            if m >= memory:
                after(("F", s, m), ("W", s, m - memory))
            for one, other in (("F", "B"), ("F", "W"), ("B", "W")):
                # The other kinds of earlier microbatches only: those of m and later come after `one` anyway.
                for n in range(m):
                    first = solver.BoolVar("")
                    after((other, s, n), (one, s, m), unless=1 - first)
                    after((one, s, m), (other, s, n), unless=first)
        solver.Add(makespan >= start["W", s, count - 1] + durations["W"][s])
    solver.Minimize(makespan)
    solver.SetTimeLimit(int(1e3 * limit_s))
    parameters = pywraplp.MPSolverParameters()
    parameters.SetDoubleParam(pywraplp.MPSolverParameters.RELATIVE_MIP_GAP, GAP)
    begin = time.monotonic()
    status = solver.Solve(parameters)
    found = status in (pywraplp.Solver.OPTIMAL, pywraplp.Solver.FEASIBLE)
    bound = solver.Objective().BestBound()
    return (
        (solver.Objective().Value(), bound, [[time.monotonic() - begin, solver.Objective().Value(), bound]])
        if found
        else (None, bound, [])
    )


SOLVERS: dict[str, Callable[[Problem, float], Solved]] = {
    "CP-SAT hinted": _hinted,
    "CP-SAT cold": _cold,
    "mixed-integer": _mixed_integer,
}


def row(record: Record) -> list[object]:
    """One line of the table."""
    shown = "-" if record["makespan"] is None else f"{record['makespan']:.0f}"
    gap = "-" if record["gap"] is None else f"{100 * record['gap']:.2f}"
    near = next((when for when, makespan, _ in record["moments"] if makespan <= 1.05 * record["lower_bound"]), None)
    place = [record["stages"], record["microbatches"], record["solver"], shown, f"{record['lower_bound']:.0f}", gap]
    return [*place, "-" if near is None else f"{near:.2f}", f"{record['solve_s']:.2f}"]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """The makespan over the bound as time passes, one panel per size."""
    sizes = list(dict.fromkeys(record["stages"] for record in records))
    for axis, stages in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        for record in (record for record in records if record["stages"] == stages):
            best = max(other["lower_bound"] for other in records if other["stages"] == stages)
            times = [max(moment[0], 1e-2) for moment in record["moments"]] + [max(record["solve_s"], 1e-2)]
            gaps = [100 * (moment[1] / best - 1) for moment in record["moments"]]
            axis.step(
                times,
                gaps + gaps[-1:] if gaps else [float("nan")],
                where="post",
                marker="o",
                markersize=4,
                label=record["solver"],
            )
        axis.set_xscale("log")
        # The first plans of a cold solver are three times as long as need be, hinted ones a few per cent.
        axis.set_yscale("symlog", linthresh=1.0)
        axis.set_yticks([0, 1, 3, 10, 30, 100, 300], ["0", "1", "3", "10", "30", "100", "300"])
        axis.set_title(f"{stages} stages, {2 * stages} microbatches", loc="left", fontsize=10)
        axis.set_xlabel("time (s)")
        axis.set_ylim(-0.1, 500)
    figure.axes[0].set_ylabel("best makespan over best bound (%)")
    figure.axes[0].legend(frameon=False, fontsize=8)
