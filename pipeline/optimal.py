"""CrossPipe's optimal planner: a constraint solver over actions and messages, which also proves how good its plan is."""

import os
import time
from dataclasses import dataclass
from typing import NamedTuple

from .adaptra import adaptra
from .bounds import lower_bound
from .costs import costs
from .crosspipe import crosspipe
from .optimal_model import SPLIT_KINDS, build_model
from .placement import unidirectional
from .plan import Plan
from .simulate import simulate


class Improvement(NamedTuple):
    """What the solver knew at one moment; times of the plan in the problem's unit."""

    elapsed_s: float
    makespan: float
    lower_bound: float


@dataclass(frozen=True, eq=False)
class Solution:
    """The best plan found, and the proof.

    Attributes:
        plan: a Plan.
        makespan: its simulated makespan.
        lower_bound: no plan on this placement has a smaller makespan.
        is_optimal: whether the two are equal.
        solve_s: seconds that it took.
        improvements: every Improvement on the way, the hint first.
    """

    plan: Plan
    makespan: float
    lower_bound: float
    is_optimal: bool
    solve_s: float
    improvements: tuple


def optimal(problem, *, placement=None, time_limit_s=60.0):
    """The plan of `solve`, without its proof."""
    return solve(problem, placement=placement, time_limit_s=time_limit_s).plan


def solve(problem, *, placement=None, hint=None, time_limit_s=60.0, workers=None, progress=None):
    """The Solution of least makespan on a placement, or the best found in `time_limit_s` with a proved lower bound.

    Args:
        placement: unidirectional by default.
        hint: a Plan of whole actions to start from; by default the better of ADAPTRA's and CrossPipe's greedy. From a cold start the solver
            finds nothing at 32 stages x 64 microbatches.
        workers: threads of the solver; all processors by default.
        progress: called with an Improvement whenever there is one.

    Raises:
        ScheduleError: the hint is not a plan of this problem.

    Cost: one variable per action and message; 4 to 8 stages x 8 to 16 microbatches are proved in seconds.
    Paper: Chen et al. 2025 (CrossPipe), section 4.1; differs: times are whole numbers, memory taken is there from an action's
        start and memory given back until its end, and the makespan ends with the last communication on any rank.
    """
    began = time.monotonic()
    placement = placement or unidirectional(problem.stages)
    hint = hint or best_hint(problem, placement)
    timeline = simulate(hint, problem)
    bound = lower_bound(problem, placement)
    search = _Search(problem, hint, timeline, bound, began, progress)
    if not search.is_closed():
        search.solve(time_limit_s, workers)
    return search.solution()


def best_hint(problem, placement):
    """The better of ADAPTRA's plan and CrossPipe's greedy one with whole W."""
    plans = [crosspipe(problem, placement=placement, weight_parts=1)]
    if placement.name == "unidirectional":
        plans.append(adaptra(problem))
    return min(plans, key=lambda plan: simulate(plan, problem).makespan)


class _Search:
    """The best plan and bound so far, each a fact: plans are simulated, bounds proved."""

    def __init__(self, problem, plan, timeline, bound, began, progress):
        self.problem, self.began, self.progress = problem, began, progress
        self.plan, self.timeline, self.bound = plan, timeline, bound
        self.improvements = []
        self.note(timeline.makespan, bound)

    def is_closed(self):
        return self.timeline.makespan <= self.bound * (1 + 1e-9)

    def note(self, makespan, bound):
        """Tell of an Improvement."""
        self.improvements.append(Improvement(time.monotonic() - self.began, makespan, max(bound, self.bound)))
        if self.progress:
            self.progress(self.improvements[-1])

    def solve(self, time_limit_s, workers):
        from ortools.sat.python import cp_model

        tables = costs(self.problem, self.plan.placement)
        model = build_model(tables, self.timeline.makespan, self.bound)
        for action, start in zip((a for rank in self.plan.ranks for a in rank), self.timeline.start.tolist(), strict=True):
            model.model.add_hint(model.start[action], int(start * model.scale + 1e-6))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = workers or len(os.sched_getaffinity(0))
        solver.parameters.max_time_in_seconds = max(time_limit_s - (time.monotonic() - self.began), 0.01)
        note, scale = self.note, model.scale

        class Watcher(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self):
                note(self.objective_value / scale, self.best_objective_bound / scale)

        status = solver.solve(model.model, Watcher())
        self.bound = max(self.bound, solver.best_objective_bound / scale)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.take(_plan(model, solver, self.plan.placement, self.problem.microbatches))

    def take(self, plan):
        """Keep `plan` if it is better."""
        timeline = simulate(plan, self.problem)
        if timeline.makespan < self.timeline.makespan:
            self.plan, self.timeline = plan, timeline

    def solution(self):
        # Rounding of times leaves a gap below a millionth where they are not exact in whole numbers.
        makespan, bound = self.timeline.makespan, min(self.bound, self.timeline.makespan)
        return Solution(
            self.plan, makespan, bound, makespan - bound <= 1e-5 * makespan, time.monotonic() - self.began, tuple(self.improvements)
        )  # fmt: skip


def _plan(model, solver, placement, microbatches):
    """The plan whose actions and messages are in the order of the solver's times."""
    start = {action: solver.value(variable) for action, variable in model.start.items()}
    message = {action: solver.value(variable) for action, variable in model.message.items()}
    ranks = [[] for _ in range(placement.num_ranks)]
    # A W that takes no time may share its start with an action that comes after it.
    for action in sorted(start, key=lambda action: (start[action], -SPLIT_KINDS.index(action.kind))):
        ranks[placement.stage_to_rank[action.stage]].append(action)
    order = [sorted(link, key=lambda action: message[action]) for link in model.shared_links]
    return Plan.from_actions(ranks, placement, microbatches, "optimal", order)
