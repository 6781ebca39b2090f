"""The solver's plans in the experiments: CrossUD, one stage on each rank, and CrossWave, two, there and back."""

from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.optimal import solve
from lanterne.pipeline.planners.solver import Solution
from lanterne.pipeline.simulate.check_plan import check

# The paper's name -> placement.
SOLVED = {"UD": "unidirectional", "Wave": "wave"}


def solved(problem: Problem, limit_s: float) -> dict[str, Solution]:
    """Return the checked Solution on each placement of SOLVED, each found within the time limit."""
    found = {name: solve(problem, placement=placement, time_limit_s=limit_s) for name, placement in SOLVED.items()}
    for solution in found.values():
        check(solution.plan, problem)
    return found


def over_bound(makespan: float, bound: float) -> str:
    """Return a cell of a table: `proved`, or how far the makespan is over the proved bound."""
    gap = makespan / bound - 1
    return "proved" if gap <= 1e-5 else f"{gap:.1%}"
