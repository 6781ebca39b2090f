"""Every scheduler by name.

A scheduler is a function `f(problem: Problem, *, ...) -> Plan`. It names itself in the plan's `scheduler`, chooses the
placement, and raises InputError for a problem that it cannot plan. Its options are keyword-only and have defaults; one
that takes long has `time_limit_s`, and `progress`, which it calls with each Improvement. A plan that a static schedule
makes may exceed the problem's memory: `check` tells. Those of others are named "module:function", or are entry points
of the group "lanterne.schedulers" of their packages.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

from lanterne.collectives.algorithms.outside import find_function, offered
from lanterne.errors import InputError, one_of
from lanterne.pipeline.plan.placement import PLACEMENTS, Placement
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check

# In place of a placement: whichever is best.
ANY = "any"
# Those of one placement alone, other than unidirectional.
ELSEWHERE = {"interleaved_1f1b": "loop", "zb_v": "wave"}
ENTRY_POINTS = "lanterne.schedulers"


class Scheduler(NamedTuple):
    """Where a scheduler is: a function called as it is, or `function`, of a module of lanterne.pipeline.

    The module is imported when the scheduler is asked for.
    """

    module: str
    summary: str
    function: str = ""


class Improvement(NamedTuple):
    """What a scheduler that searches knew at one moment: its best plan's makespan, and what none can be below."""

    elapsed_s: float
    makespan: float
    lower_bound: float


Progress: TypeAlias = Callable[[Improvement], object] | None

SCHEDULERS: dict[str, Scheduler] = {
    "gpipe": Scheduler("schedules.gpipe", "all forwards, then all backwards"),
    "1f1b": Scheduler("schedules.one_f_one_b", "one forward, one backward; backward fused", "one_f_one_b"),
    "interleaved_1f1b": Scheduler(
        "schedules.interleaved_1f1b", "1F1B with two smaller stages per rank, around the loop"
    ),
    "zb_h1": Scheduler("schedules.zb_h1", "1F1B with W put off, in the same memory"),
    "zb_h2": Scheduler("schedules.zb_h2", "twice the warm-up, no bubbles without delays"),
    "zb_v": Scheduler("schedules.zb_v", "two smaller stages per rank in a V, no bubbles in the memory of 1F1B"),
    "alternating": Scheduler("schedules.alternating", "B and F strictly in turn, W last, with a given slack"),
    "adaptra": Scheduler("planners.adaptra", "ADAPTRA: warm-up counts that absorb the links' delays"),
    "crosspipe": Scheduler("planners.crosspipe", "CrossPipe's greedy: knows latency, bandwidth, memory; W in pieces"),
    "crosspipe_wave": Scheduler("planners.crosspipe", "the same with two half-size stages per rank, there and back"),
    "optimal": Scheduler(
        "planners.optimal",
        "CrossPipe's optimal of whole actions: a solver from the plan of best, within a time limit",
    ),
    "best": Scheduler(
        "planners.best", "ours: the best of many, then searched, with a bound; one stage per rank unless told"
    ),
}


def load(name: str) -> Callable[..., Plan]:
    """The function of scheduler `name`.

    Raises:
        InputError: an unknown name.
    """
    if name not in SCHEDULERS:
        function = find_function(name, ENTRY_POINTS, "scheduler")
        if function is None:
            known = [*SCHEDULERS, *offered(ENTRY_POINTS)]
            raise InputError(f"scheduler: {one_of(name, known)} or module:function")
        return function
    module, _, named = SCHEDULERS[name]
    found: Callable[..., Plan] = getattr(import_module(f"lanterne.pipeline.{module}"), named or name)
    return found


def plan(problem: Problem, scheduler: str, **options: Any) -> Plan:
    """The plan that `scheduler` makes for `problem`; `options` as the scheduler has them."""
    return load(scheduler)(problem, **options)


def is_same(one: Placement, other: Placement) -> bool:
    """Return whether two placements are the same but for their names."""
    return (one.stage_to_rank, one.num_routes) == (other.stage_to_rank, other.num_routes)


def fitting(names: Iterable[str], problem: Problem, placement: Placement) -> list[CheckedPlan]:
    """Return the plans of these schedulers that are on the placement and fit in memory."""
    found = []
    for name in names:
        if placement.name in PLACEMENTS and ELSEWHERE.get(name, "unidirectional") != placement.name:
            continue
        with suppress(InputError):
            made = plan(problem, name)
            if is_same(made.placement, placement):
                found.append(check(made, problem))
    return found
