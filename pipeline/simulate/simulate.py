"""When each action of a plan starts and ends: exactly, by CrossPipe section 3.5, or with blocking communication.

An action starts when the one before it on its rank has ended and what it needs from other stages has arrived. A message
leaves when its sender has ended and its link is free, keeps the link for nbytes / bandwidth, and arrives the link's
latency after that. Computing never waits for a send, unless `in_order` is asked for.

Links: messages take a link in the order in which their rank sends them. On a link that several ranks share as senders
they take it as they become ready (a tie goes to the lower rank), or in the plan's `message_order`. For a fixed plan no
time falls when a duration, a latency or a message grows, *except* on links shared first come, first served: there a
slower message may lose its turn and let a more urgent one pass. A plan with a `message_order` has no such anomaly.
"""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from math import inf

import numpy as np

from lanterne.errors import InputError, ScheduleError
from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.costs import Costs, Floats, costs
from lanterne.pipeline.plan.plan import KIND_INDEX, Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check
from lanterne.pipeline.simulate.program import (
    Communication,
    EngineProgram,
    EngineRun,
    program_of_orders,
    program_of_plan,
    run,
)


@dataclass(frozen=True, eq=False)
class Timeline:
    """A simulated iteration; times in the problem's unit, from 0.

    Attributes:
        plan, problem: what was simulated.
        start, end: (num_actions,) float64, by column of the plan.
        arrival: (num_actions,) float64, when what the action waits for from another stage was there; 0 where nothing is
            waited for.
        sent: (num_actions,) float64, when the first byte of the message of an action was on its link; nan where it
            sends none.
        data_parallel: each data-parallel communication.
        makespan: when the last action or data-parallel communication on any rank ends.
        in_order: whether communication was sent in order and blocked computing.
    """

    plan: Plan
    problem: Problem
    start: Floats
    end: Floats
    arrival: Floats
    sent: Floats
    data_parallel: tuple[Communication, ...]
    makespan: float
    in_order: bool = False

    def __repr__(self) -> str:
        return f"Timeline({self.plan!r}, makespan {self.makespan:.6g}{', in order' if self.in_order else ''})"

    def _repr_svg_(self) -> str | None:
        """What notebooks show: the chart, None where Matplotlib is missing."""
        if find_spec("matplotlib") is None:
            return None
        # By name: it needs this module.
        svg: str = import_module("lanterne.pipeline.simulate.gantt").to_svg(self)
        return svg


def simulate(plan: Plan | CheckedPlan, problem: Problem, *, in_order: bool = False, queue: int = 1) -> Timeline:
    """The Timeline of `plan` under `problem`: its own or another; it may exceed the memory.

    Args:
        plan: it is checked, unless it is a CheckedPlan.
        in_order: send in the order of the plan with one message under way per rank, its latency included, and let
            computing wait while `queue` sends are not done: head-of-line blocking (ADAPTRA section 3.2).
        queue: sends that a rank may have handed over and not done when it goes on computing; 0: it waits for each to be
            done.

    Raises:
        ScheduleError: the plan is not valid for the problem.
        InputError: queue below 0.

    Cost: about 1 us per action; 2 to 3 with in_order or links that several ranks share.
    """
    if queue < 0:
        raise InputError(f"queue: got {queue}, expected at least 0 sends")
    if not isinstance(plan, CheckedPlan) or plan.problem.microbatches != problem.microbatches:
        plan = check(plan.plan if isinstance(plan, CheckedPlan) else plan, problem, memory=False)
    made = plan.plan
    table = costs(problem, made.placement)
    program = program_of_plan(made, table)
    ran = run(program, table, queue if in_order else None, message_turns(made, table, program))
    if ran.makespan == inf:
        raise ScheduleError(
            "message_order: got one in which messages wait for each other, expected one that the plan can follow"
        )
    return _timeline(made, problem, program, ran, in_order)


def makespan(plan: Plan, problem: Problem) -> float:
    """The makespan of a plan without parts; unchecked and fast, for the inner loops of planners.

    The plan must do each rank's work once and keep B after F and W after B. It is inf where ranks wait for each other
    for ever. See `makespan_of_orders` for what is faster still.
    """
    table = costs(problem, plan.placement)
    program = program_of_orders(plan.orders, table)
    return run(program, table, turns=message_turns(plan, table, program)).makespan


def makespan_of_orders(orders: list[list[int]], table: Costs) -> float:
    """The same for `orders`, a list of action ids per rank, under the Costs `table` (see costs).

    Cost: about 0.3 us per action, so 0.3 ms for 8 ranks x 32 microbatches.
    """
    return run(program_of_orders(orders, table), table).makespan


def message_turns(plan: Plan, table: Costs, program: EngineProgram) -> dict[int, list[int]] | None:
    """The plan's `message_order` for engine.Events: link -> ids of `program` in the order in which they take it.

    Raises:
        ScheduleError: it names an unknown action, one whose message takes no link, or not all of a link's messages.
    """
    if not plan.message_order:
        return None
    target, link = program.tables.target, program.tables.link
    senders: dict[int | None, int] = {}
    for rank in program.orders:
        for action in rank:
            if target[action] >= 0 and link[action] >= 0:
                senders[target[action]] = action
    turns: dict[int, list[int]] = {}
    for messages in plan.message_order:
        for message in messages:
            sender = senders.pop(_slot_filled_by(message, table), None)
            if sender is None:
                raise ScheduleError(
                    f"message_order: got {message}, expected actions whose message takes a link, each once"
                )
            turns.setdefault(link[sender], []).append(sender)
    left = [action for action in senders.values() if link[action] in turns]
    if left:
        raise ScheduleError(
            f"message_order: got {len(left)} messages too few on a link that it orders, expected all of them"
        )
    return turns


def _slot_filled_by(action: Action, table: Costs) -> int | None:
    """The slot of the message of a whole action; None for an action that there is not."""
    known = action.kind in KIND_INDEX and action.stage < table.placement.num_stages
    if not known or action.microbatch >= table.microbatches:
        return None
    return int(table.target[table.id(KIND_INDEX[action.kind], action.stage, action.microbatch)])


def _timeline(plan: Plan, problem: Problem, program: EngineProgram, ran: EngineRun, in_order: bool) -> Timeline:
    duration, slot, target, latency, occupancy, _ = (np.array(column[: len(plan.ids)]) for column in program.tables)
    start = np.fromiter(chain.from_iterable(ran.starts), float, len(plan.ids))
    full = np.array(ran.full)
    crosses = (target >= 0) & ((latency > 0) | (occupancy > 0))
    sent = np.where(crosses, full[target] - latency - occupancy, np.nan)
    return Timeline(
        plan, problem, start, start + duration, full[slot], sent, tuple(ran.data_parallel), ran.makespan, in_order
    )
