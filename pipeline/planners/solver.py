"""The constraint solver: from a plan to a better one, with a bound that no plan of whole actions is below."""

import os
import time
from dataclasses import dataclass
from math import inf
from typing import Any

from lanterne.errors import InputError
from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.placement import Placement
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.bounds import lower_bound
from lanterne.pipeline.planners.optimal_model import SPLIT_KINDS, SolverModel, build_model
from lanterne.pipeline.planners.schedulers import Improvement, Progress
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import Timeline, simulate

# The share of the time that the solver may look for a plan that reaches the lower bound.
REACH_SHARE = 0.4
# What making the solver's model takes, about.
MODEL_S_PER_ACTION = 2e-4


@dataclass(frozen=True, eq=False)
class Solution:
    """The best plan found, and the proof.

    Attributes:
        makespan: the plan's, simulated.
        lower_bound: no plan of whole actions on this placement has a smaller makespan; one with W in pieces may.
        is_optimal: whether the two are equal.
        solve_s: seconds that it took.
        improvements: the first plan's, then those on the way; the plan may be better than the last: simulation takes
            idle time out.
    """

    plan: Plan
    makespan: float
    lower_bound: float
    is_optimal: bool
    solve_s: float
    improvements: tuple[Improvement, ...]


def polish(
    plan: Plan,
    problem: Problem,
    *,
    time_limit_s: float = 60.0,
    gap: float = 0.0,
    workers: int | None = None,
    progress: Progress = None,
) -> Solution:
    """Return the Solution that the solver finds from `plan`, on its placement, in `time_limit_s`.

    Args:
        plan: of whole F, B and W, unless it meets the lower bound. With one microbatch at a time the solver finds
            nothing better at 32 stages x 64 microbatches.
        gap: stop when the plan is proved to be within this share of the optimum.
        workers: threads of the solver; all processors by default.
        progress: called with each Improvement.

    Raises:
        ScheduleError: `plan` is not a plan of this problem that fits in memory.
        InputError: microbatches of unequal lengths; or a plan with fused actions or pieces.

    Cost: one variable per action and message; 4 to 8 stages x 8 to 16 microbatches are proved in seconds.
    Paper: Chen et al. 2025 (CrossPipe), section 4.1; differs: times are whole numbers, memory is taken from an action's
        start and memory given back until its end, and the makespan ends with the last communication on any rank.
    """
    began = time.monotonic()
    check_solvable(problem)
    timeline = simulate(check(plan, problem), problem)
    search = _Search(timeline, lower_bound(problem, plan.placement), began, progress)
    if not search.is_closed(gap):
        if not is_whole(plan):
            raise InputError(
                f"solver: got actions of {plan.scheduler} that are fused or in pieces, expected whole F, B and W"
            )
        search.solve(began + time_limit_s, least_limit_s(problem, plan.placement), gap, workers)
    return search.solution()


def check_solvable(problem: Problem) -> None:
    """Raise InputError for a problem that the solver's model cannot express."""
    if problem.microbatch_lengths is not None:
        raise InputError("solver: got microbatch_lengths, expected microbatches all alike; `best` plans unequal ones")


def is_whole(plan: Plan) -> bool:
    """Return whether the plan has F, B and W apart and none in pieces, as the solver's are."""
    return all(action.parts == 1 and action.kind in SPLIT_KINDS for rank in plan.ranks for action in rank)


def least_limit_s(problem: Problem, placement: Placement) -> float:
    """Return the seconds in which the solver can do no more than make its model, about."""
    return MODEL_S_PER_ACTION * len(SPLIT_KINDS) * placement.route_length * problem.microbatches


class _Search:
    """The best plan and bound so far, each a fact: plans are simulated, bounds proved."""

    def __init__(self, timeline: Timeline, bound: float, began: float, progress: Progress) -> None:
        self.problem = timeline.problem
        self.plan = timeline.plan
        self.timeline = timeline
        self.bound = bound
        self.began = began
        self.progress = progress
        self.improvements: list[Improvement] = []
        self.note(timeline.makespan, bound)

    def is_closed(self, gap: float) -> bool:
        return self.timeline.makespan - self.bound <= max(gap, 1e-9) * self.timeline.makespan

    def note(self, makespan: float = inf, lower_bound: float = 0.0) -> None:
        """Tell of an Improvement, if it is one."""
        before = self.improvements[-1] if self.improvements else Improvement(0.0, inf, 0.0)
        now = Improvement(
            time.monotonic() - self.began, min(before.makespan, makespan), max(before.lower_bound, lower_bound)
        )
        if now[1:] != before[1:]:
            self.improvements.append(now)
            if self.progress:
                self.progress(now)

    def solve(self, ends: float, model_s: float, gap: float, workers: int | None) -> None:
        """Look for a plan that reaches the bound for a share of the time until `ends`, then for the best in the rest.

        Asked for nothing longer than the bound, the solver prunes most: it finds such a plan, and there often is one,
        long before it would improve its way there, or proves that there is none.
        """
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        # Probing takes seconds and finds little here.
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.use_strong_propagation_in_disjunctive = True
        solver.parameters.num_workers = workers or len(os.sched_getaffinity(0))
        solver.parameters.relative_gap_limit = gap
        for horizon, share in ((self.bound, REACH_SHARE), (self.timeline.makespan, 1.0)):
            now = time.monotonic()
            if ends - now > model_s and not self.is_closed(gap):
                self.attempt(solver, horizon, now + share * (ends - now))

    def attempt(self, solver: Any, horizon: float, ends: float) -> None:
        """Let `solver` look for the best plan no longer than `horizon` until `ends`."""
        from ortools.sat.python import cp_model

        model = build_model(costs(self.problem, self.plan.placement), horizon, self.bound)
        _add_hint(model, self.timeline)
        note, unit = self.note, model.grain / model.scale

        class Watcher(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self) -> None:
                note(self.objective_value * unit, self.best_objective_bound * unit)

        solver.parameters.max_time_in_seconds = max(0.0, ends - time.monotonic())
        solver.best_bound_callback = lambda bound: note(lower_bound=bound * unit)
        status = solver.solve(model.model, Watcher())
        if status == cp_model.INFEASIBLE:
            self.bound = max(self.bound, (model.longest + 1) * unit)
            note(lower_bound=self.bound)
            return
        self.bound = max(self.bound, min(solver.best_objective_bound, model.longest) * unit)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            self.take(_plan(model, solver, self.plan.placement, self.problem.microbatches))

    def take(self, plan: Plan) -> None:
        """Keep `plan` if it is better."""
        timeline = simulate(plan, self.problem)
        if timeline.makespan < self.timeline.makespan:
            self.plan, self.timeline = plan, timeline

    def solution(self) -> Solution:
        makespan, bound = self.timeline.makespan, min(self.bound, self.timeline.makespan)
        # Times that are not exact in whole numbers leave a gap of less than that.
        is_optimal = makespan - bound <= 1e-5 * makespan
        elapsed_s = time.monotonic() - self.began
        return Solution(self.plan, makespan, bound, is_optimal, elapsed_s, tuple(self.improvements))


def _add_hint(model: SolverModel, timeline: Timeline) -> None:
    """Give the solver a whole solution to start from: a simulated timeline."""
    actions = [action for rank in timeline.plan.ranks for action in rank]
    start, end = (
        dict(zip(actions, (times * model.scale + 1e-6).astype(int).tolist(), strict=True))
        for times in (timeline.start, timeline.end)
    )
    sent = dict(zip(actions, (timeline.sent * model.scale + 1e-6).tolist(), strict=True))
    values = [(model.makespan, -(-int(timeline.makespan * model.scale - 1e-6) // model.grain))]
    values += [(variable, start[action]) for action, variable in model.start.items()]
    values += [(variable, int(sent[action])) for action, variable in model.message.items()]
    values += [(size, end[last] - start[first]) for size, first, last in model.sizes]
    values += [(variable, start[one] < start[other]) for variable, one, other in model.orders]
    for variable, value in values:
        model.model.add_hint(variable, value)


def _plan(model: SolverModel, solver: Any, placement: Placement, microbatches: int) -> Plan:
    """The plan whose actions and messages are in the order of the solver's times."""
    start = {action: solver.value(variable) for action, variable in model.start.items()}
    message = {action: solver.value(variable) for action, variable in model.message.items()}
    ranks: list[list[Action]] = [[] for _ in range(placement.num_ranks)]
    # A W that takes no time may share its start with an action that comes after it.
    for action in sorted(start, key=lambda action: (start[action], -SPLIT_KINDS.index(action.kind))):
        ranks[placement.stage_to_rank[action.stage]].append(action)
    order = [sorted(link, key=lambda action: message[action]) for link in model.shared_links]
    return Plan.from_actions(ranks, placement, microbatches, "optimal", order)
