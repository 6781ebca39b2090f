"""Messages of a plan in torch's form: where each SEND and RECV goes, and whether a file's can run to their end.

Over NCCL the order in a rank's line counts. Where `init_process_group` has a `device_id`, all messages of a rank go
through one communicator, which moves one after the other, each once both its ranks have reached it: one queue for each
rank. Without it each pair of ranks has a communicator: one queue for each pair. In a queue a message waits behind one
that is not ready (pytorch#172668, #188833), ranks can wait for each other in a circle, and the messages of a pair are
matched by their order alone. Over gloo messages pass each other.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from heapq import merge
from itertools import pairwise
from math import inf, nextafter
from typing import NamedTuple, NoReturn, TypeAlias

import numpy as np

from lanterne.errors import ScheduleError
from lanterne.pipeline.plan.costs import Floats, costs
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.plan.torch_csv import (
    RECV,
    REDUCE_GRAD,
    RESHARD,
    SEND,
    UNSHARD,
    WAIT_REDUCE_GRAD,
    WAIT_SEND,
    Rows,
    TorchAction,
    in_torch_words,
    plan_of,
    rows_of,
)
from lanterne.pipeline.simulate.check_plan import SHOWN, check
from lanterne.pipeline.simulate.event_loop import BY_RULE, NEVER, Operations, Progress, Times
from lanterne.pipeline.simulate.precedence import PlanPrecedences
from lanterne.pipeline.simulate.program import Program, program_of, run_program, with_messages
from lanterne.pipeline.simulate.simulate import simulate

# From this torch on a file says where a rank waits for its sends and for sums of gradients.
WAITS_SINCE = (2, 15)

# The place of each action of a rank.
Places: TypeAlias = dict[TorchAction, int]


class Checked(NamedTuple):
    """A file's schedule that can run to its end.

    Attributes:
        plan: what it computes.
        messages: that it says where to send; 0 for a file of computing alone.
        waits: whether it says where to wait for sends, as torch 2.15 wants it and earlier ones do not know.
        one_queue: whether it can run with one queue for each rank; else only with one for each pair of ranks. The
            figures below are of those queues. Waits for sends cost nothing in them.
        blocked: messages that were ready while the one before them in a queue was not; `blocked_time`, their sum, in
            the problem's unit.
        makespan: until the last action ends; `free`, with messages that pass each other.
        notes: what a reader should know of a file that is not wrong.
    """

    plan: Plan
    messages: int
    waits: bool
    one_queue: bool
    blocked: int
    blocked_time: float
    makespan: float
    free: float
    notes: list[str]


class Message(NamedTuple):
    """A message between two ranks: the plan's columns that make and need it, what they are, and its words on each."""

    made_by: int
    needed_by: int
    made: TorchAction
    needed: TorchAction
    sender: int
    receiver: int
    send: TorchAction
    recv: TorchAction


def place_messages(plan: Plan, problem: Problem, torch: tuple[int, int] = WAITS_SINCE) -> Rows:
    """Return `plan` with messages, as torch's runtime of that version reads it.

    The plan is run with a rule: a message moves as soon as it is made and both its ranks move no other. Each stands, on
    its sender, behind the computing that has ended when it begins, and on its receiver behind what has ended before, so
    that it can begin sooner than planned. All stand in the order in which they begin. So each waits for earlier ones
    alone, none in a circle, and none that could move stands behind one that could not.

    Raises:
        InputError: a plan that torch cannot run.
    """
    rows = rows_of(plan)
    program = program_of(plan, costs(replace(problem, data_parallel=None), plan.placement))
    messages = _messages(rows, program.operations)
    begins, ends, end = _moved(program, messages)
    line = sorted(zip(begins, ends, messages, strict=True))
    first = plan.offsets.tolist()
    place, found = first[:-1], [list[TorchAction]() for _ in rows]

    def compute(rank: int, until: float) -> None:
        while place[rank] < first[rank + 1] and end[place[rank]] < until:
            found[rank].append(rows[rank][place[rank] - first[rank]])
            place[rank] += 1

    for begin, _, message in line:
        compute(message.sender, nextafter(begin, inf))
        found[message.sender].append(message.send)
        compute(message.receiver, begin)
        found[message.receiver].append(message.recv)
    for rank in range(len(rows)):
        compute(rank, inf)
    return [_with_ends(row, torch >= WAITS_SINCE) for row in found]


def _moved(program: Program, messages: list[Message]) -> tuple[list[float], list[float], list[float]]:
    """Return when each message begins and ends to move, and when each column ends, each rank moving one at a time."""
    lanes, made = len(program.kinds), [each.made_by for each in messages]
    pairs = {pair: number for number, pair in enumerate({(each.sender, each.receiver): None for each in messages})}
    link = program.operations.link.copy()
    link[made] = [pairs[each.sender, each.receiver] for each in messages]
    operations = with_messages(program.operations._replace(link=link), lanes, np.array(made, np.int64))
    moving = Program.of_lanes(operations, lanes + len(pairs))
    moving.kinds[lanes:] = BY_RULE
    count, ends_of = len(link), list(pairs)
    waiting = [deque(np.flatnonzero(operations.lane == lanes + number).tolist()) for number in range(len(pairs))]
    free = [0.0] * lanes

    def pick(
        operations: Operations, times: Times, progress: Progress, rule: object, lane: int, now: float
    ) -> tuple[int, float]:
        """Return the message of a pair to move now, or when to ask again; they are made in the plan's order."""
        sender, receiver = ends_of[lane - lanes]
        row = waiting[lane - lanes][0] if waiting[lane - lanes] else -1
        if row < 0 or not progress.count[operations.source[row]]:
            return -1, NEVER
        begin = max(times.arrival[operations.first[row]], free[sender], free[receiver])
        if begin > now:
            return -1, begin
        waiting[lane - lanes].popleft()
        free[sender] = free[receiver] = now + operations.duration[row]
        return row, now

    ran = run_program(moving, pick)
    return ran.begun[count:].tolist(), ran.ended[count:].tolist(), ran.ended[:count].tolist()


def _with_ends(row: list[TorchAction], waits: bool) -> list[TorchAction]:
    """Return `row` with what begins and ends a stage, and the waits for sends.

    A forward's is waited for after its backward, which proves that it arrived; a backward's at the end.
    """
    last = {action.stage: place for place, action in enumerate(row) if action.kind}
    found: list[TorchAction] = []
    open_sends = dict.fromkeys(action for action in row if action.word in SEND) if waits else {}
    known: set[int] = set()
    for place, action in enumerate(row):
        if action.stage not in known:
            known.add(action.stage)
            found.append(TorchAction(action.stage, UNSHARD))
        found.append(action)
        sent = action._replace(word=SEND[0])
        if action.kind in ("B", "BW") and sent in open_sends:
            del open_sends[sent]
            found.append(action._replace(word=WAIT_SEND[0]))
        if last.get(action.stage) == place:
            ends = (REDUCE_GRAD, WAIT_REDUCE_GRAD, RESHARD) if waits else (REDUCE_GRAD, RESHARD)
            found += [TorchAction(action.stage, word) for word in ends]
    return found + [each._replace(word=WAIT_SEND[SEND.index(each.word)]) for each in open_sends]


def check_rows(rows: Rows, problem: Problem | None = None) -> Checked:
    """Prove that `rows` can run to their end over NCCL, within memory, and that each message finds its receive.

    Args:
        problem: what actions and messages take, of as many ranks and microbatches; None: F, B and W of each rank 1,
            messages nothing. What data-parallel copies take is left out.

    Raises:
        ScheduleError: what is wrong first, with its rank and action.
        InputError: the problem is for other ranks.
    """
    plan = plan_of(rows)
    if problem is None:
        problem = Problem(plan.placement.num_ranks, plan.microbatches, 1.0, 1.0, 1.0)
    problem = replace(problem, data_parallel=None)
    try:
        checked = check(plan, problem)
    except ScheduleError as error:
        raise ScheduleError(in_torch_words(str(error))) from None
    free = simulate(checked, problem).makespan
    if all(action.kind for row in rows for action in row):
        return Checked(plan, 0, False, True, 0, 0.0, free, free, ["computing alone: torch places the messages"])
    operations = program_of(plan, costs(problem, plan.placement)).operations
    messages, places = _messages(rows, operations), [_places(rank, row) for rank, row in enumerate(rows)]
    _check_messages(rows, messages, places)
    waits = _check_waits(rows, places)
    notes = _check_stages(rows, places, waits)
    circle = ""
    try:
        blocked, makespan = _run(rows, operations, messages, places, by_pair=False)
    except ScheduleError as error:
        circle = str(error)
        blocked, makespan = _run(rows, operations, messages, places, by_pair=True)
        notes.insert(0, f"with a device_id in init_process_group it never ends: {circle}")
    count = int((blocked > 1e-9 * makespan).sum())
    return Checked(plan, len(messages), waits, not circle, count, float(blocked.sum()), makespan, free, notes)


def _messages(rows: Rows, operations: Operations) -> list[Message]:
    """Return the messages between ranks, in the order of the columns that make them."""
    computing = [action for row in rows for action in row if action.kind]
    lane, found = operations.lane.tolist(), []
    for column, target in enumerate(operations.target.tolist()):
        if target >= 0 and lane[target] != lane[column]:
            made, needed = computing[column], computing[target]
            way = 0 if made.kind == "F" else 1
            words = (made._replace(word=SEND[way]), needed._replace(word=RECV[way]))
            found.append(Message(column, target, made, needed, lane[column], lane[target], *words))
    return found


def _fail(rows: Rows, rank: int, place: int, what: str) -> NoReturn:
    """Raise the error of the action at `place`, from 0, with those around it."""
    words = [f">{action}<" if at == place else str(action) for at, action in enumerate(rows[rank])]
    first, stop = max(place - SHOWN, 0), place + SHOWN + 1
    around = " ".join(words[first:stop])
    lead, trail = "... " if first else "", " ..." if len(words) > stop else ""
    raise ScheduleError(f"rank {rank}, action {place + 1}: {what}\n  {lead}{around}{trail}")


def _places(rank: int, row: list[TorchAction]) -> Places:
    """Return where each action stands in `row`; a stage is gathered and dropped as often as it likes."""
    places: Places = {}
    for place, action in enumerate(row):
        if places.setdefault(action, place) != place and action.word not in (UNSHARD, RESHARD):
            _fail([[]] * rank + [row], rank, place, f"got {action} again, expected it once")
    return places


def _check_messages(rows: Rows, messages: list[Message], places: list[Places]) -> None:
    """Check that each is sent once it is made, received before it is needed, and matched by its pair's order."""
    pairs: dict[tuple[int, int], list[tuple[int, int, Message]]] = {}
    expected: list[set[TorchAction]] = [set() for _ in rows]
    for each in messages:
        ends = ((each.sender, each.send, each.made, "after"), (each.receiver, each.recv, each.needed, "before"))
        for rank, word, computing, side in ends:
            expected[rank].add(word)
            beside = places[rank][computing]
            if word not in places[rank]:
                _fail(rows, rank, beside, f"got no {word}, expected it {side} {computing}")
            if (places[rank][word] > beside) != (side == "after"):
                _fail(rows, rank, places[rank][word], f"got {word}, expected it {side} {computing}")
        line = places[each.sender][each.send], places[each.receiver][each.recv], each
        pairs.setdefault((each.sender, each.receiver), []).append(line)
    for rank, row in enumerate(rows):
        for place, action in enumerate(row):
            if action.word in (*SEND, *RECV) and action not in expected[rank]:
                _fail(rows, rank, place, f"got {action}, expected no message: no other rank makes or needs it")
    for (_, receiver), pair in pairs.items():
        for (_, before, first), (_, after, second) in pairwise(sorted(pair)):
            if after < before:
                got = f"got {second.recv} before {first.recv}, but rank {first.sender} sends {first.send} first"
                _fail(rows, receiver, after, f"{got}; expected one order, by which NCCL matches messages of two ranks")


def _check_waits(rows: Rows, places: list[Places]) -> bool:
    """Check that each send is waited for once, behind it, in a file of torch 2.15; return whether it is one."""
    waits = any(action.word in (*WAIT_SEND, WAIT_REDUCE_GRAD) for row in rows for action in row)
    for rank, row in enumerate(rows) if waits else ():
        for place, action in enumerate(row):
            if action.word in SEND:
                wait = action._replace(word=WAIT_SEND[SEND.index(action.word)])
                if places[rank].get(wait, -1) < place:
                    got = f"got {wait} before {action}" if wait in places[rank] else f"got no {wait}"
                    _fail(rows, rank, place, f"{got}, expected it once, behind the send")
            elif action.word in WAIT_SEND:
                send = action._replace(word=SEND[WAIT_SEND.index(action.word)])
                if send not in places[rank]:
                    _fail(rows, rank, place, f"got {action} without a {send}, expected one before it")
    return waits


def _check_stages(rows: Rows, places: list[Places], waits: bool) -> list[str]:
    """Check that gradients are summed once a stage has computed, and waited for; return what is missing besides."""
    missing: dict[str, list[int]] = {UNSHARD: [], REDUCE_GRAD: []}
    for rank, row in enumerate(rows):
        stages: dict[int, list[int]] = {}
        for place, action in enumerate(row):
            if action.kind:
                stages.setdefault(action.stage, []).append(place)
        for stage, computing in stages.items():
            if places[rank].get(TorchAction(stage, UNSHARD), len(row)) > computing[0]:
                missing[UNSHARD].append(stage)
            summed = places[rank].get(TorchAction(stage, REDUCE_GRAD))
            if summed is None:
                missing[REDUCE_GRAD].append(stage)
            elif summed < computing[-1]:
                what = f"got {stage}{REDUCE_GRAD} before {row[computing[-1]]}, expected it behind the stage's last"
                _fail(rows, rank, summed, what)
        pending = None
        for place, action in enumerate(row) if waits else ():
            if action.word == REDUCE_GRAD and pending is not None:
                _fail(rows, rank, place, f"got {action} while {pending} is not waited for, expected one at a time")
            if action.word == WAIT_REDUCE_GRAD and action != (pending and pending._replace(word=WAIT_REDUCE_GRAD)):
                _fail(rows, rank, place, f"got {action}, expected it behind {action.stage}{REDUCE_GRAD}, once")
            pending = action if action.word == REDUCE_GRAD else None if action.word == WAIT_REDUCE_GRAD else pending
        if pending is not None:
            what = f"got no {pending.stage}{WAIT_REDUCE_GRAD}, expected it behind {pending}: torch 2.15 waits"
            _fail(rows, rank, places[rank][pending], what)
    why = {
        UNSHARD: "FSDP2 needs it before they compute",
        REDUCE_GRAD: "gradients are neither scaled nor summed over copies",
    }
    return [f"no {word} of stages {sorted(stages)}: {why[word]}" for word, stages in missing.items() if stages]


def _run(
    rows: Rows, operations: Operations, messages: list[Message], places: list[Places], *, by_pair: bool
) -> tuple[Floats, float]:
    """Return how long each message was ready behind one that was not, and the makespan.

    Args:
        by_pair: whether there is one queue for each pair of ranks, else for each rank. A queue moves one message at a
            time; those behind one that moves are not blocked.
    """
    made = PlanPrecedences(operations)
    # Of each queue, the place and number of its messages; of each rank, the places of its computing.
    lines: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    queues: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    computing: list[list[int]] = [[place for place, action in enumerate(row) if action.kind] for row in rows]
    first = np.cumsum([0, *map(len, computing)]).tolist()
    after: list[list[int]] = []
    for number, each in enumerate(messages):
        columns = []
        pair = each.sender, each.receiver
        # A queue as each of its two ranks has it.
        queues.append((pair, pair[::-1]) if by_pair else (pair[:1], pair[1:]))
        for queue, rank, word in zip(queues[-1], pair, (each.send, each.recv), strict=True):
            place = places[rank][word]
            lines.setdefault(queue, []).append((place, number))
            before = bisect_left(computing[rank], place)
            if before:
                columns.append(first[rank] + before - 1)
        made.send(each.made_by, *columns)
        after.append(columns)
    # Of each queue, each message's number -> that of the one before it, -1 for none.
    orders = {
        queue: dict(pairwise([-1, *(number for _, number in sorted(line))][::-1])) for queue, line in lines.items()
    }
    behind = [(later, earlier) for order in orders.values() for later, earlier in order.items() if earlier >= 0]
    for later, earlier in behind:
        made.wait(made.moves[messages[later].made_by], made.moves[messages[earlier].made_by])
    try:
        start, end = made.times()
    except ScheduleError:
        whose = "a pair of ranks" if by_pair else "a rank"
        circle = _circle(rows, messages, behind, after)
        raise ScheduleError(f"deadlock over NCCL, which moves the messages of {whose} in order: {circle}") from None
    moves = [made.moves[each.made_by] for each in messages]
    ready = [max((float(end[column]) for column in columns), default=0.0) for columns in after]
    begins, ends = start[moves].tolist(), end[moves].tolist()
    blocked = np.zeros(len(messages))
    for number, its in enumerate(queues):
        # What its queues moved before it, the latest first.
        moved = merge(*(_before(orders[queue], number) for queue in its), key=lambda n: -ends[n])
        until = begins[number]
        for other in moved:
            if until <= ready[number] or ends[other] <= ready[number]:
                break
            blocked[number] += max(until - ends[other], 0.0)
            until = min(until, begins[other])
        blocked[number] += max(until - ready[number], 0.0)
    return blocked, float(end.max())


def _before(order: dict[int, int], number: int) -> Iterator[int]:
    """Yield what comes before `number` in `order`, which has it before each of a rank's messages, the nearest first."""
    while (number := order[number]) >= 0:
        yield number


def _circle(rows: Rows, messages: list[Message], behind: list[tuple[int, int]], after: list[list[int]]) -> str:
    """Return in words the messages and actions that wait for each other in a circle."""
    computing = [(rank, action) for rank, row in enumerate(rows) for action in row if action.kind]
    count = len(computing)
    waits: dict[int, set[int]] = {column: set() for column in range(count + len(messages))}
    for column in range(1, count):
        if computing[column][0] == computing[column - 1][0]:
            waits[column].add(column - 1)
    for number, (each, columns) in enumerate(zip(messages, after, strict=True)):
        waits[count + number] |= set(columns)
        waits[each.needed_by].add(count + number)
    for later, earlier in behind:
        waits[count + later].add(count + earlier)
    try:
        TopologicalSorter(waits).prepare()
    except CycleError as error:
        names = []
        for node in error.args[1][1:]:
            if node < count:
                rank, action = computing[node]
                names.append(f"{action} (rank {rank})")
            else:
                message = messages[node - count]
                names.append(f"{message.send} to {message.recv} (ranks {message.sender}, {message.receiver})")
        return ", before ".join(names)
    raise AssertionError("no circle in orders that do not end")
