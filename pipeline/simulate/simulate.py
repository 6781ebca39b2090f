"""Simulator: when each action of a plan starts and ends, by CrossPipe section 3.5, or with blocking communication.

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
from itertools import pairwise

import numpy as np

from lanterne.errors import InputError, ScheduleError
from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.costs import Costs, Floats, costs
from lanterne.pipeline.plan.plan import KIND_INDEX, Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check
from lanterne.pipeline.simulate.event_loop import Operations
from lanterne.pipeline.simulate.precedence import PlanPrecedences
from lanterne.pipeline.simulate.program import (
    Communication,
    Program,
    gathers_of,
    program_of,
    reduces_of,
    run_program,
    shared_senders,
    with_links,
)

STUCK = "message_order: got one in which messages wait for each other, expected one that the plan can follow"


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
        """Return the chart for notebooks, None where Matplotlib is missing."""
        if find_spec("matplotlib") is None:
            return None
        # By name: it needs this module.
        svg: str = import_module("lanterne.pipeline.simulate.gantt").to_svg(self)
        return svg


def simulate(
    plan: Plan | CheckedPlan,
    problem: Problem,
    *,
    in_order: bool = False,
    queue: int = 1,
    rendezvous: bool = False,
    durations: Floats | None = None,
) -> Timeline:
    """Return the Timeline of `plan` under `problem`, its own or another; it may exceed the memory.

    Args:
        plan: it is checked, unless it is a CheckedPlan.
        in_order: send in the order of the plan with one message under way per rank, its latency included, and let
            computing wait while `queue` sends are not done: head-of-line blocking (ADAPTRA section 3.2).
        queue: sends that a rank may have handed over and not done when it goes on computing; 0: it waits for each to be
            done.
        rendezvous: let a message take its link when it was sent, the one before it of the same pair has left the link,
            and its receive is posted: when the rank that waits for it, or for a later message of the same sender, has
            ended the action before. Sends never keep a rank from computing. Without shared or data-parallel links.
        durations: (num_actions,) of this iteration, by column; by default those of the problem.

    Raises:
        ScheduleError: the plan is not valid for the problem.
        InputError: queue below 0, or durations beside data-parallel communication.

    Cost: about 1 us per action; 2 with links that several ranks share, 5 with rendezvous, 8 with in_order.
    """
    if queue < 0:
        raise InputError(f"queue: got {queue}, expected at least 0 sends")
    if not isinstance(plan, CheckedPlan) or plan.problem.microbatches != problem.microbatches:
        plan = check(plan.plan if isinstance(plan, CheckedPlan) else plan, problem, memory=False)
    made = plan.plan
    table = costs(problem, made.placement)
    if durations is not None:
        check_alone(table)
    program = program_of(made, table, durations)
    turns = message_turns(made, table, program.operations)
    if in_order:
        return _simulate_in_order(made, problem, program, turns, queue)
    if rendezvous:
        return _simulate_rendezvous(made, problem, program.operations)
    ran = run_program(with_links(program, turns))
    if ran.left.any():
        raise ScheduleError(STUCK)
    count = len(made.ids)
    return timeline_of(made, problem, program.operations, ran.begun[:count], ran.arrival[:count])


def check_alone(table: Costs) -> None:
    """Raise InputError if there is data-parallel communication, which durations of one iteration leave out."""
    if table.reduce.any() or table.all_gather.any():
        raise InputError("data_parallel: got some beside durations of one iteration, expected a problem without")


def _simulate_in_order(
    plan: Plan, problem: Problem, program: Program, turns: dict[int, list[int]] | None, queue: int
) -> Timeline:
    """Return the Timeline in which a rank has one message under way and waits for all but the last `queue` of them."""
    operations = program.operations
    lane, target, gather = operations.lane.tolist(), operations.target.tolist(), operations.gather.tolist()
    made = PlanPrecedences(operations)
    shared = set(shared_senders(operations).tolist())
    opened: list[int | None] = [None] * plan.placement.num_ranks
    sent: list[list[int]] = [[] for _ in opened]
    for column, rank in enumerate(lane):
        if gather[column]:
            opened[rank] = made.add(gather[column], opened[rank])
            made.wait(column, opened[rank])
        if target[column] < 0 or lane[target[column]] == rank:
            continue
        link = int(operations.link[column])
        is_queued = column in shared and link not in (turns or {})
        joins = made.add(0.0, column, *sent[rank][-1:])
        sent[rank].append(made.send(column, joins, queue=link if is_queued else None))
        if len(sent[rank]) > queue and column + 1 < len(lane) and lane[column + 1] == rank:
            made.wait(column + 1, sent[rank][-1 - queue])
    for own in (turns or {}).values():
        for one, other in pairwise(own):
            made.wait(made.moves[other], made.moves[one])
    try:
        start, arrival = made.starts_and_arrivals()
    except ScheduleError as error:
        raise ScheduleError(STUCK) from error
    return timeline_of(plan, problem, operations, start, arrival, in_order=True)


def _simulate_rendezvous(plan: Plan, problem: Problem, operations: Operations) -> Timeline:
    """Return the Timeline in which messages move only once their receiver waits for them, or for a later one."""
    lane, source = operations.lane.tolist(), operations.source.tolist()
    made, firsts = PlanPrecedences(operations), set(plan.offsets.tolist())
    # Pair of ranks -> (column that sends, column that waits), in the order of sending.
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for receiver, sender in sorted(enumerate(source), key=lambda pair: pair[1]):
        if sender >= 0 and lane[sender] != lane[receiver]:
            pairs.setdefault((lane[sender], lane[receiver]), []).append((sender, receiver))
    for pair in pairs.values():
        waits = np.minimum.accumulate([receiver for _, receiver in pair][::-1])[::-1].tolist()
        before = None
        for (sender, _), first in zip(pair, waits, strict=True):
            made.send(sender, sender, before, None if first in firsts else first - 1)
            before = made.moves[sender]
    start, arrival = made.starts_and_arrivals()
    return timeline_of(plan, problem, operations, start, arrival, in_order=True)


def message_turns(plan: Plan, table: Costs, operations: Operations) -> dict[int, list[int]] | None:
    """Return the plan's `message_order`: link -> the rows that send over it, in the order in which they take it.

    Raises:
        ScheduleError: it names an unknown action, one whose message takes no link, or not all of a link's messages.
    """
    if not plan.message_order:
        return None
    link = operations.link.tolist()
    rows = np.flatnonzero(operations.link >= 0).tolist()
    senders: dict[int | None, int] = dict(zip(table.target[plan.ids[rows]].tolist(), rows, strict=True))
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
    """Return the slot of the message of a whole action; None for an unknown action."""
    known = action.kind in KIND_INDEX and action.stage < table.placement.num_stages
    if not known or action.microbatch >= table.microbatches:
        return None
    return int(table.target[table.id(KIND_INDEX[action.kind], action.stage, action.microbatch)])


def timeline_of(
    plan: Plan, problem: Problem, operations: Operations, start: Floats, arrival: Floats, *, in_order: bool = False
) -> Timeline:
    """Return the Timeline of `operations`, one per column of the plan, that began and whose messages arrived then."""
    table, end = costs(problem, plan.placement), start + operations.duration
    crosses = (operations.target >= 0) & ((operations.latency > 0) | (operations.occupancy > 0))
    sent = np.where(crosses, arrival[operations.target] - operations.latency - operations.occupancy, np.nan)
    gathers = gathers_of(plan, table)
    communications = (*gathers, *reduces_of(plan, table, end, gathers))
    makespan = max(float(end.max()), *(each.end for each in communications), 0.0)
    return Timeline(plan, problem, start, end, arrival, sent, communications, makespan, in_order)
