"""Simulation of GPUs that run what their hosts issue: computing, and sends by kernels or by sender processes.

Over NCCL a send and a receive are kernels. Those of one pair of ranks run one after another on one stream, both ways
together, in the order in which the host issued them; each waits for the computing that was issued before it, and both
end when both have begun. With one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1, as Megatron sets it) no kernel begins
before the one issued before it has begun, so that a send which is held back holds back all that follows. Where groups
block, a call is one group that begins after what holds its sends back, ends when the groups of its peers have begun,
and nothing overlaps it. With delegates the computing process pays for each message that it hands over or takes, and
sending processes, in turn, hold it.

Source: the authors' runs of ADAPTRA on H800 (github.com/wutianyuan1/PipeMorph), which these rules meet; see calibrate/.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lanterne.errors import InputError
from lanterne.pipeline.plan.costs import Costs, costs
from lanterne.pipeline.plan.plan import MICROBATCH, Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.simulate.precedence import Precedences
from lanterne.pipeline.simulate.program import program_of
from lanterne.pipeline.simulate.simulate import Timeline, simulate

# Terms of the Precedences.
NO_TERM, GAP, COST, HOLD = range(4)
SEND, RECEIVE, COMPUTE = ">", "<", ""


class Issued(NamedTuple):
    """One thing that a host issues: the plan's `column`, or, marked > or <, the send of its result or its receive."""

    mark: str
    column: int


@dataclass(frozen=True)
class Devices:
    """Behaviour of the devices of a pipeline and their hosts; times in the problem's unit.

    Attributes:
        hardware_queues: queues of a device, over which its streams are dealt; 0: a stream waits for no other.
        streams_per_pair: 1: both directions between two ranks share a stream; 2: one each.
        blocking_groups: calls of several messages with one peer, which block the device (batched 1F1B).
        delegates: processes per rank and direction that send, microbatch after microbatch in turn; 0: NCCL sends.
        hold: for how long a delegate holds a message beyond the link's delay.
        message_cost: what the computing process pays for each message that it hands over, and that it takes.
        gap: between two actions, beyond their durations.
    """

    hardware_queues: int = 1
    streams_per_pair: int = 1
    blocking_groups: bool = False
    delegates: int = 0
    hold: float = 0.0
    message_cost: float = 0.0
    gap: float = 0.0


class _Columns(NamedTuple):
    """A plan's columns under a problem; `sender` and `receiver` are the columns at the other ends, or -1."""

    plan: Plan
    rank_of: list[int]
    duration: list[float]
    delay: list[float]
    sender: list[int]
    receiver: list[int]

    @classmethod
    def of(cls, plan: Plan, table: Costs) -> "_Columns":
        operations = program_of(plan, table).operations
        sender = operations.source
        across = (sender >= 0) & (plan.rank_of[sender] != plan.rank_of)
        receiver = np.full(len(sender), -1)
        receiver[sender[across]] = np.flatnonzero(across)
        sender = np.where(across, sender, -1)
        duration, delay = operations.duration, operations.latency + operations.occupancy
        return cls(plan, *(each.tolist() for each in (plan.rank_of, duration, delay, sender, receiver)))

    def peer(self, issued: Issued) -> int:
        """Return the rank at the other end of a message."""
        ends = self.receiver if issued.mark == SEND else self.sender
        return self.rank_of[ends[issued.column]]


@dataclass(frozen=True, eq=False)
class DeviceRun:
    """A plan's operations on devices, ready to be timed with this gap, cost and hold or with others."""

    checked: CheckedPlan
    problem: Problem
    devices: Devices
    operations: Precedences
    computing: tuple[int, ...]
    arriving: tuple[int, ...]
    sending: tuple[int, ...]

    def timeline(self) -> Timeline:
        """Return the Timeline, whose actions last a gap longer than in the problem."""
        starts, ends = self.operations.times(self._terms)
        columns, arriving, sending = (np.array(each) for each in (self.computing, self.arriving, self.sending))
        arrival = np.where(arriving >= 0, ends[arriving], 0.0)
        sent = np.where(sending >= 0, starts[sending], np.nan)
        end = ends[columns]
        plan = self.checked.plan
        return Timeline(plan, self.problem, starts[columns], end, arrival, sent, (), float(end.max()), True)

    def makespan(
        self, *, gap: float | None = None, message_cost: float | None = None, hold: float | None = None
    ) -> float:
        """Return when the last action ends; given values replace those of the Devices. Cost: some 2 us per action."""
        own, given = self._terms, (gap, message_cost, hold)
        terms = (0.0, *(mine if other is None else other for mine, other in zip(own[1:], given, strict=True)))
        return float(self.operations.times(terms)[1].max())

    @property
    def _terms(self) -> tuple[float, ...]:
        return 0.0, self.devices.gap, self.devices.message_cost, self.devices.hold


def on_devices(
    checked: CheckedPlan, problem: Problem, devices: Devices, issue: Sequence[Sequence[Issued]] | None = None
) -> DeviceRun:
    """Return the DeviceRun of a plan under `problem`, whose link_latency holds each message back.

    Args:
        issue: what each rank's host issues, in order; by default as issue_order says.

    Raises:
        InputError: shared links, fewer than no delegates or queues, or an issue order of other messages.

    Data-parallel communication is not part of it. Cost: some 20 us per action.
    """
    if problem.shared_links:
        raise InputError("shared_links: got some beside devices, expected a link of its own for each pair")
    if min(devices.hardware_queues, devices.delegates) < 0 or devices.streams_per_pair not in (1, 2):
        raise InputError(
            f"devices: got {devices.hardware_queues} hardware queues, {devices.streams_per_pair} streams per pair and "
            f"{devices.delegates} delegates, expected at least 0, 1 or 2, and at least 0"
        )
    columns = _Columns.of(checked.plan, costs(problem, checked.plan.placement))
    if devices.delegates:
        parts = _with_delegates(columns, devices.delegates)
    elif devices.blocking_groups:
        parts = _in_groups(columns)
    else:
        parts = _on_streams(columns, devices, issue_order(checked) if issue is None else issue)
    operations, *lists = parts
    return DeviceRun(checked, problem, devices, operations, *(tuple(each) for each in lists))


def issue_order(checked: CheckedPlan, *, instant: bool = False) -> list[list[Issued]]:
    """Return per rank what hosts issue that post receives ahead, as if all actions took equally long.

    A receive is posted once its sender has begun, and both ends issue the messages of a pair in one order, so that they
    never wait for each other. This is within some actions of what the published runs issued. Messages take a tenth of
    an action, or, `instant`, no time: then many meet, and one sent forward goes before one sent back.
    """
    plan = checked.plan
    latency = 0.0 if instant else 1.0
    even = Problem(plan.placement.num_ranks, plan.microbatches, 10.0, 10.0, 10.0, link_latency=latency)
    timeline, columns = simulate(checked, even), _Columns.of(plan, costs(even, plan.placement))
    start, end = timeline.start.tolist(), timeline.end.tolist()
    messages: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    for receiver, sender in enumerate(columns.sender):
        if sender >= 0:
            ends = columns.rank_of[sender], columns.rank_of[receiver]
            messages.setdefault((min(ends), max(ends)), []).append((start[sender], sender, receiver))
    # Per rank (time, sends before receives before computing, order), and what is issued.
    events: list[list[tuple[float, int, int, Issued]]] = [[] for _ in range(plan.placement.num_ranks)]
    for column, rank in enumerate(columns.rank_of):
        events[rank].append((start[column], 2, 0, Issued(COMPUTE, column)))
    for pair, both_ways in messages.items():
        posted = dict.fromkeys(pair, -1.0)
        for place, (begun, sender, receiver) in enumerate(sorted(both_ways)):
            source, sink = columns.rank_of[sender], columns.rank_of[receiver]
            posted[source] = max(end[sender], posted[source])
            posted[sink] = max(begun + 1.0, posted[sink])
            events[source].append((posted[source], 0, place, Issued(SEND, sender)))
            events[sink].append((posted[sink], 1, place, Issued(RECEIVE, receiver)))
    return [[issued for *_, issued in sorted(own)] for own in events]


_Parts = tuple[Precedences, list[int], list[int], list[int]]


def _empty(columns: _Columns) -> _Parts:
    """Return (operations, computing, arriving, sending), to be filled by column."""
    count = len(columns.rank_of)
    return Precedences(), [-1] * count, [-1] * count, [-1] * count


def _on_streams(columns: _Columns, devices: Devices, issue: Sequence[Sequence[Issued]]) -> _Parts:
    made, computing, arriving, sending = parts = _empty(columns)
    # Both ends of a message are done when both have begun.
    done = {column: made.add() for column, sender in enumerate(columns.sender) if sender >= 0}
    for rank, order in enumerate(issue):
        _check_issued(columns, rank, order)
        streams: dict[object, int] = {}
        numbers: dict[object, int] = {COMPUTE: 0}
        queued: dict[int, int] = {}
        for issued in order:
            mark, column = issued
            stream: object = COMPUTE
            if mark != COMPUTE:
                stream = columns.peer(issued), mark if devices.streams_per_pair == 2 else ""
            number = numbers.setdefault(stream, len(numbers))
            queue = number % devices.hardware_queues if devices.hardware_queues else number
            ended, begun = [streams.get(stream)], [queued.get(queue)]
            if mark == COMPUTE:
                ended.append(done.get(column))
                kernel = computing[column] = made.add(columns.duration[column], *ended, begun=begun, term=GAP)
                streams[stream], queued[queue] = kernel, kernel
                continue
            ended.append(streams.get(COMPUTE))
            if mark == SEND and columns.delay[column]:
                spin = made.add(columns.delay[column], *ended, begun=begun)
                ended, begun = [spin], []
            kernel = queued[queue] = made.add(0.0, *ended, begun=begun)
            receiver = columns.receiver[column] if mark == SEND else column
            made.wait(done[receiver], begun=[kernel])
            streams[stream] = arriving[receiver] = done[receiver]
            if mark == SEND:
                sending[column] = kernel
    return parts


def _check_issued(columns: _Columns, rank: int, order: Sequence[Issued]) -> None:
    first, stop = columns.plan.offsets[rank : rank + 2].tolist()
    wanted = {Issued(COMPUTE, column) for column in range(first, stop)}
    wanted |= {Issued(SEND, column) for column in range(first, stop) if columns.receiver[column] >= 0}
    wanted |= {Issued(RECEIVE, column) for column in range(first, stop) if columns.sender[column] >= 0}
    if len(order) != len(wanted) or set(order) != wanted:
        raise InputError(
            f"issue[{rank}]: got {len(order)} kernels, expected {len(wanted)}: each action, send and receive of the "
            "rank's plan once"
        )


def _in_groups(columns: _Columns) -> _Parts:
    made, computing, arriving, sending = parts = _empty(columns)
    groups: dict[int, tuple[int, int]] = {}  # column that receives -> the two groups' beginnings
    for first, stop in pairwise(columns.plan.offsets.tolist()):
        last: int | None = None
        waiting: list[Issued] = []
        for column in range(first, stop + 1):
            if column < stop and columns.sender[column] >= 0:
                waiting.append(Issued(RECEIVE, column))
            for group in _grouped(columns, waiting):
                held = sum(columns.delay[each.column] for each in group if each.mark == SEND)
                begins = made.add(0.0, made.add(held, last) if held else last)
                last = made.add(0.0, begun=[begins])
                for mark, own in group:
                    receiver = columns.receiver[own] if mark == SEND else own
                    if mark == SEND:
                        sending[own] = begins
                    else:
                        arriving[own] = last
                    if receiver in groups:
                        other, its_end = groups[receiver]
                        made.wait(last, begun=[other])
                        made.wait(its_end, begun=[begins])
                    groups[receiver] = begins, last
            if column < stop:
                last = computing[column] = made.add(columns.duration[column], last, term=GAP)
                waiting = [Issued(SEND, column)] if columns.receiver[column] >= 0 else []
    return parts


def _grouped(columns: _Columns, messages: Sequence[Issued]) -> list[list[Issued]]:
    """Return the calls that `messages` between two actions go in: those with one peer together."""
    calls: list[list[Issued]] = []
    for issued in messages:
        if calls and columns.peer(calls[-1][0]) == columns.peer(issued):
            calls[-1].append(issued)
        else:
            calls.append([issued])
    return calls


def _with_delegates(columns: _Columns, delegates: int) -> _Parts:
    made, computing, arriving, sending = parts = _empty(columns)
    microbatch = columns.plan.columns[MICROBATCH].tolist()
    arrivals = {column: made.add() for column, sender in enumerate(columns.sender) if sender >= 0}
    for first, stop in pairwise(columns.plan.offsets.tolist()):
        last: int | None = None
        busy: dict[tuple[int, int], int] = {}
        for column in range(first, stop):
            if column in arrivals:
                arriving[column] = arrivals[column]
                last = made.add(0.0, last, arrivals[column], term=COST)
            last = computing[column] = made.add(columns.duration[column], last, term=GAP)
            receiver = columns.receiver[column]
            if receiver >= 0:
                last = made.add(0.0, last, term=COST)
                turn = columns.rank_of[receiver], microbatch[column] % delegates
                busy[turn] = sending[column] = made.add(columns.delay[column], last, busy.get(turn), term=HOLD)
                made.wait(arrivals[receiver], sending[column])
    return parts
