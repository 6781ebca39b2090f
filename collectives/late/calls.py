"""Calls that find out by themselves who is late: the ranks' side of the arrival board (transport/board/sequencer.py).

A rank says that it has come, and does what the board's record of the call says: the ordinary algorithm (NORMAL), or a
late-rank algorithm (WITHOUT), of which only what needs the late rank waits until that has come (JOIN). So no message
with it is posted before, and an ABORT until then is clean: all raise, and the next call works. The outputs of an
aborted call, in place its inputs too, are undefined.

Where ranks arrive spread, a call begins with the first two and takes in the others as they arrive (SPREAD). Its rounds
are made while it runs (execute/growing.py), and each rank reports to the board how many of them it has done.

Calls that were started behind such a call go ahead of it (turn.py): while the late rank is away the others do of each,
one after the other, what needs no late rank, and when it comes the joins follow each other in the order of the calls,
each beginning under the end of the one before.
Each call has a lane of its own, by its number, and scratch memory of its own; a call that does not ask ends the queue.

Calls below a size never ask, and short ones not always: a record may free the next few with the same signature. All
ranks then run the ordinary algorithm at once, and tell the board afterwards, some calls together, when they came. To
such a call a rank that does not come is named as in any other, and since the others have begun the communicator closes.

Of several late ranks the others wait for all but the last, unless past calls would have ended sooner had they begun
without the last few (late_policy.starts).
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lanterne.collectives.algorithms.late import any_arrival
from lanterne.collectives.auto.predict import equal_ports
from lanterne.collectives.auto.tuning import MAX_PRICED_RANKS, override
from lanterne.collectives.execute.arguments import CheckedCall
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.execute.executor import Execution
from lanterne.collectives.execute.growing import GrowingExecution
from lanterne.collectives.execute.plans import CallPlan, Plans
from lanterne.collectives.execute.requests import CollectiveRequest
from lanterne.collectives.execute.stream_execution import BEFORE, JOINING, WHOLE, NativeExecution, StreamExecution
from lanterne.collectives.late.arrivals import ArrivalLog, Arrivals
from lanterne.collectives.late.options import (
    any_option,
    cut_options,
    group_name,
    late_names,
    make_option,
    single_options,
    undominated,
)
from lanterne.collectives.late.ready_programs import ReadyPrograms, key_of
from lanterne.collectives.late.turn import ARRIVE, BEGIN, COMPLETE, END, GO_ON, RELEASE, Turn, TurnStep
from lanterne.collectives.message_lanes import BOARD_LANES
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.topology.topology import Topology
from lanterne.errors import InputError, LanterneError, PeerFailed, TransportTimeout
from lanterne.transport.base import Request, make_tag
from lanterne.transport.board.late_policy import ANY, MAX_LATE, Policy, from_text, scaled, to_text
from lanterne.transport.board.seat import Seat
from lanterne.transport.board.sequencer import (
    ABORT,
    DIED,
    JOIN,
    MAX_SIGNATURES,
    MISMATCH,
    NORMAL,
    SEEN,
    SPREAD,
    TIMEOUT,
    WANTED,
    WITHOUT,
    Record,
)

log: logging.Logger = logging.getLogger("lanterne.collectives")


# Calls that are predicted to take less than the first, `shared` times as much where ranks share cores, or that have
# fewer bytes do not ask: scheduling keeps ranks apart by a few ms there without any being late.
LEAST_NORMAL_S = 2e-3  # the board costs 0.05 ms a call, up to 1 ms where ranks share cores
SHARED = 4  # up to 1 ms a call is an eighth of 8 ms
LEAST_NBYTES = 64 << 10  # chosen: starts, not bytes, are the time of smaller ones
# Calls are priced by powers of two, in such parts: a DDP bucket of 9 MB takes 37/64 of the time of 16 MiB.
PARTS = 64
# A part of the chunks joins late (late_hybrid) in calls that take so long.
LEAST_CUT_S = 20e-3  # each choice has a plan, made at the first call that needs it
# Without several ranks begin calls that take so long, where the join takes such a part of the ordinary time.
LEAST_SEVERAL_S = 50e-3  # each set of ranks has a plan of its own
# A start without several ranks, or where hosts have several ranks or unlike NICs, is to leave at most such a part
# of the ordinary call after the last arrival.
MOST_JOIN = 0.9  # 8 hosts at 25 MB/s, one NIC at a quarter, another rank late: begun 4.8 of s/rate, else 4.09
# After its time is over a rank gives the board, and others that finish what they began, this long.
GRACE_S = 5.0  # chosen: a busy store answers within a second
# The plans of calls by the board that are kept.
MAX_PLANS = 64
# Calls go ahead of others while these have less scratch memory than this.
AHEAD_NBYTES = 256 << 20
# What so many calls took is told with the next one.
MAX_UNTOLD = 64
# So many calls that did not ask are reported together, or at the next one that asks.
MAX_UNREPORTED = 64
# Of calls of microseconds one in `short_stride` is reported, after so many that all were.
SHORT_CALLS = 256
SHORT_STRIDE = 17  # odd: what recurs every few calls is not missed


class LateRanks:
    """What a communicator keeps for such calls: its seat at the board, policies, plans with lanes of their own.

    Args:
        key: of the board: like that of no other communicator of the job.

    Attributes: `number`, calls that asked; `arrivals`, an ArrivalLog; `ran`, calls by choice (late_policy.Option), ""
    being the ordinary algorithm.
    """

    def __init__(self, communicator: CommunicatorBase, key: str) -> None:
        self._communicator = communicator
        self.key = key
        self._seat: Seat | None = None
        self._policies: dict[tuple[int, int, CostModel, bool], str | None] = {}
        self.number = 0
        # By signature, the last call that need not ask; by number, the calls that have come and are not over.
        self._free: dict[str, int] = {}
        self._turns: dict[int, Turn] = {}
        self._unreported: list[tuple[float, str]] = []
        # Calls that are over, of which the board has not heard: (number, s).
        self._took: list[tuple[int, float]] = []
        self._ended_s = 0.0
        self._short = 0
        self.plans: Plans = Plans(communicator, [None] * MAX_PLANS)
        self.ready: ReadyPrograms = ReadyPrograms(self.plans.programs, communicator.rank, communicator.world_size)
        self.arrivals: ArrivalLog = ArrivalLog(communicator.world_size)
        self.ran: Counter[str] = Counter()

    @property
    def seat(self) -> Seat | None:
        """This rank's seat at the board, taken when first needed; None where there is no board."""
        if self._seat is None:
            communicator = self._communicator
            membership = communicator.transport.membership
            self._seat = membership.open_board(self.key, communicator.rank, communicator.world_size)
        return self._seat

    @property
    def has_room(self) -> bool:
        """Whether a call may take scratch memory while those before it have theirs."""
        return self._communicator.scratch.lent_nbytes < AHEAD_NBYTES

    @property
    def is_idle(self) -> bool:
        """Whether no call that has come is under way."""
        return not self._turns

    def is_free(self, turn: Turn) -> bool:
        """Whether the call is not to be asked about, by the record of an earlier one; alike on all ranks."""
        return turn.number <= self._free.get(turn.signature, 0)

    def _set_free(self, signature: str, number: int, calls: int) -> None:
        """Those of the `calls` after call `number` that have `signature` are not to be asked about."""
        self._free[signature] = number + calls
        if len(self._free) > MAX_SIGNATURES:
            del self._free[next(iter(self._free))]
        for turn in self._turns.values():
            if turn.signature == signature and turn.number > number and self.is_free(turn):
                turn.free()

    def came(self, signature: str = "") -> None:
        """This rank comes to a call that is not asked about; "" if none of its signature ever is.

        Cost: under 1 us.
        """
        self._unreported.append((self._communicator.machine.now_s(), signature))
        if len(self._unreported) >= MAX_UNREPORTED:
            self.report()

    def came_shortly(self) -> None:
        """As `came`, of a call of microseconds: after the first `short_calls` one of `short_stride` stands for all.

        The board takes as long over a call as that does.
        """
        self._short += 1
        if self._short <= SHORT_CALLS or self._short % SHORT_STRIDE == 0:
            self.came()

    def report(self) -> None:
        """Tell the board of the calls that were not asked about."""
        if self._unreported:
            arrivals, self._unreported = self._unreported, []
            self._seated.report(arrivals)

    def arrive(self, turn: Turn, policy: str, ready: bool) -> None:
        """This rank comes to a call that the board is asked about, `ready` to begin it."""
        self.report()
        self._turns[turn.number] = turn
        took, self._took = self._took, []
        self._seated.arrive(
            turn.number, turn.signature, policy, ready, prepared=any_arrival.is_loaded(), took=took[-MAX_UNTOLD:]
        )

    def ended(self, turn: Turn, outcome_s: float | None) -> None:
        """Note what a call took that is over, for the board: from its outcome, or the end of the call before it.

        Args:
            outcome_s: when this rank knew the outcome; None: the time says nothing.
        """
        began_s, self._ended_s = self._ended_s, self._communicator.machine.now_s()
        if outcome_s is not None and not self.is_free(turn):
            self._took.append((turn.number, self._ended_s - max(outcome_s, began_s)))

    def find_plan(self, call: CheckedCall, choice: str, late_rank: int) -> CallPlan:
        """The plan of a call as a record says; "" for that of a call for which nobody is late."""
        key = key_of(call.key, choice, late_rank) if choice else call.key
        return self.plans.find(key) or self.plans.add(key, call.dtype)

    def spread(self, call: CheckedCall, choice: str, lane: int) -> GrowingExecution:
        """Return the execution of a call to which ranks arrive while it runs."""
        tag = make_tag(self._communicator.communicator_id, lane)
        chunks, ahead = map(int, choice.split("/")[1:])
        return self.plans.programs.growing(call.key, call.dtype, call.in_place, chunks, ahead, tag)

    def progress(self, turn: Turn, done: int) -> None:
        """This rank has done `done` rounds of a call that has begun by SPREAD."""
        self._seated.progress(turn.number, done)

    def be_ready(self, turn: Turn) -> None:
        """This rank is ready to begin a call that it has come to."""
        self._seated.be_ready(turn.number)

    def give_up(self, number: int) -> None:
        """The time of call `number` is over here."""
        if self._seat is not None:
            self._seat.give_up(number)

    def forget(self, turn: Turn) -> None:
        """The call is over."""
        self._turns.pop(turn.number, None)

    @property
    def _seated(self) -> Seat:
        seat = self.seat
        assert seat is not None, "policy() and reports() found it"
        return seat

    def dispatch(self) -> None:
        """Give the calls what the board has said of them, if it may have said something."""
        if any(turn.waits for turn in self._turns.values()):
            self._take()

    def _take(self) -> None:
        while (record := self._seated.take()) is not None:
            if record.verdict == SEEN:
                numbers = list(map(int, record.text.split()))
                for rank, delay_ns in zip(numbers[::2], numbers[1::2], strict=True):
                    self.arrivals.note(rank, delay_ns / 1e9, False)
                continue
            # Nothing is done between here and the launch of a graph that could be done after it.
            turn = self._turns.get(record.number)
            if turn is not None:
                if turn.at_once is not None and record.verdict != ABORT:
                    turn.at_once(record)
                else:
                    turn.take(record)
                if record.free:
                    self._set_free(turn.signature, turn.number, record.free)
            if record.text == WANTED:
                any_arrival.load()
            if record.verdict in (NORMAL, JOIN) or (record.verdict == SPREAD and record.late < 0):
                arrivals_s = [int(ns) / 1e9 for ns in record.arrivals.split()]
                self.arrivals.note(record.rank, record.delay_s, record.verdict != NORMAL, arrivals_s)

    def look(self, since: int = 0) -> Arrivals:
        """The Arrivals after `since` calls, after a look at what the board has sent, if no call is under way."""
        with self._communicator.lock:
            if self._seat is not None and not self._communicator.busy:
                self.report()
                self._take()
        return self.arrivals.snapshot(since)

    def reports(self, collective: str) -> bool:
        """Whether calls that never ask are reported: only of what larger ones would ask about."""
        communicator = self._communicator
        if communicator.world_size <= 2 or collective != "all_reduce" or communicator.deterministic:
            return False
        return communicator.tuning.model is not None and self.seat is not None

    def policy(self, collective: str, nbytes: int, *, on_host: bool) -> str | None:
        """What the board goes by for `collective` of `nbytes`, as text; None: it is not asked. Alike on all ranks.

        Args:
            on_host: of arrays in host memory; on a device no rounds are made while a call runs.
        """
        communicator = self._communicator
        model, size = communicator.tuning.model, 1 << max(0, nbytes - 1).bit_length()
        if size < LEAST_NBYTES or collective != "all_reduce" or communicator.deterministic or model is None:
            return None
        key = size, -(-nbytes * PARTS // size), model, on_host
        if key not in self._policies:
            whole = (size, PARTS, model, on_host)
            if whole not in self._policies:
                self._policies[whole] = self._make(collective, size, model, on_host)
            policy = self._policies[whole]
            self._policies[key] = None if policy is None else to_text(scaled(from_text(policy), key[1] / PARTS))
        return self._policies[key]

    def _make(self, collective: str, nbytes: int, model: CostModel, on_host: bool) -> str | None:
        communicator = self._communicator
        n = communicator.world_size
        if not n >= 3 or override(collective, n) is not None:
            return None
        many = n > MAX_PRICED_RANKS
        normal_s = communicator.tuning.ordinary_s(collective, nbytes)
        least_s = LEAST_NORMAL_S * (SHARED if communicator.pauses.shared else 1)
        if normal_s < least_s or self.seat is None:
            return None
        links = communicator.tuning.links
        assert links is not None, "there is a model"
        over_nodes = isinstance(links, Topology)
        options = single_options(collective, n, nbytes, links, many)
        if over_nodes and not many:
            # Without some ranks it may not pay to begin: for these all others wait. Laws are not as exact.
            options = [option for option in options if option.join_s < MOST_JOIN * normal_s]
        if many:
            return to_text(Policy(normal_s, tuple(options)))
        if normal_s >= LEAST_CUT_S and not over_nodes:
            options += cut_options(options[0], n)
        if normal_s >= LEAST_SEVERAL_S:
            numbers = range(2, min(MAX_LATE, n - 1) + 1)
            group = group_name(links)
            several = [make_option(collective, group, n, nbytes, links, late) for late in numbers]
            options += [option for option in several if option.join_s < MOST_JOIN * normal_s]
            ports = equal_ports(links, n) if on_host else None
            if ports is not None:
                join = make_option(collective, late_names(links)[0], n, nbytes, links)
                options += filter(None, [any_option(join, ports, nbytes)])
        options = undominated(options)
        takes_any = any(option.late == ANY for option in options)
        port_of = links.node_of if isinstance(links, Topology) and takes_any else ()
        return to_text(Policy(normal_s, tuple(options), port_of))


def error_of(record: Record, communicator: CommunicatorBase, number: int) -> LanterneError:
    """Why the board has ended call `number`. After a TIMEOUT the communicator goes on."""
    ranks, me = communicator.ranks, communicator.ranks[communicator.rank]
    if record.cause == MISMATCH:
        return InputError(f"call {number}: {record.text}")
    if record.cause == DIED:
        # The board knows who was to come and is gone; the job, who died first, and why.
        return communicator.transport.membership.first_death(ranks) or PeerFailed(ranks[record.rank], record.text)
    if record.cause != TIMEOUT:
        return TransportTimeout(f"call {number}: {record.text}")
    absent = tuple(ranks[int(rank)] for rank in record.text.split())
    text = f"rank {', '.join(map(str, absent))} did not come in time"
    if me in absent:
        text = "this rank came after the others had given it up"
    return TransportTimeout(f"{communicator.transport.name} rank {me}: call {number}: {text}", absent)


class GraphPlan(Protocol):
    """What a request needs of a captured plan."""

    execution: StreamExecution

    def give_back(self, execution: Any, form: Any, /) -> None: ...


class DeviceEntry:
    """Where a call's stream stands when the call is made: the call has come once it is reached, which streams wait for.

    Args:
        entry: the device side's, of CheckedCall.
    """

    __slots__ = ("_communicator", "_entry", "_is_entered")

    def __init__(self, communicator: CommunicatorBase, entry: Any) -> None:
        self._communicator = communicator
        self._entry = entry
        self._is_entered = False

    @property
    def is_reached(self) -> bool:
        """Whether the stream has come to it."""
        return self._communicator.device_side().has_reached(self._entry)

    def enter(self) -> None:
        """Let the streams wait for it; once, whoever asks again."""
        if not self._is_entered:
            self._communicator.device_side().enter(self._entry)
            self._is_entered = True


class LateRequest(CollectiveRequest):
    """A call that asks the board.

    Args:
        policy: what the board goes by.
        captured: the plans by choice and late rank, where graphs were made of them: these are launched as soon as the
            board has spoken, before anything else is done.
    """

    __slots__ = (
        *("_call", "_captured", "_complete", "_completion", "_error", "_execution", "_gave_up_s", "_goes_ahead"),
        *(
            "_late",
            "_moved",
            "_place",
            "_plan",
            "_policy",
            "_outcome_s",
            "_reported",
            "_signature",
            "_step_rounds",
            "_turn",
        ),
    )

    def __init__(
        self,
        communicator: CommunicatorBase,
        late: LateRanks,
        call: CheckedCall,
        policy: str,
        captured: Mapping[tuple[str, int], GraphPlan] | None = None,
    ) -> None:
        super().__init__(communicator)
        self._late = late
        self._captured = captured
        self._place = None if call.entry is None else DeviceEntry(communicator, call.entry)
        # Streams order the calls that are queued on them.
        self._goes_ahead = call.entry is None and captured is None
        self._completion = None
        self._call: CheckedCall | None = call
        self._policy = policy
        # A call of the same size by a named algorithm is another call.
        self._signature = str(call.key._replace(algorithm="auto"))
        late.number += 1
        self._turn = Turn(late.number, self._signature)
        if captured is not None:
            self._turn.at_once = self._take_at_once
        self._execution: Execution | StreamExecution | None = None
        self._complete = False
        self._plan: CallPlan | GraphPlan | None = None
        self._error: TransportTimeout | None = None
        self._gave_up_s: float | None = None
        # When the last part of the call began.
        self._outcome_s: float | None = None

    def _begin(self) -> None:
        """See CollectiveRequest."""
        self._step(COMPLETE, room=True)

    def _advance(self) -> bool:
        """Make progress; True once complete, queued on streams, or aborted."""
        self._late.dispatch()
        self._step(COMPLETE, room=True)
        execution = self._execution
        if self._error is not None and (execution is None or execution.drained):
            return self._leave(None)
        return self._complete and self._leave(execution.completion if execution is not None else None)

    def _go_ahead(self, before: int) -> int:
        """See CollectiveRequest."""
        self._step(before, self._late.has_room)
        return min(before, self._progress)

    @property
    def _progress(self) -> int:
        """See CollectiveRequest."""
        execution = self._execution
        if not isinstance(execution, Execution):
            return self._turn.progress(left=0.0, drained=True)
        return self._turn.progress(execution.left, execution.drained)

    def _step(self, before: int, room: bool) -> None:
        """Do what comes next, as far as it goes now."""
        self._moved = False
        turn, late = self._turn, self._late
        if turn.is_new:
            # Of device arrays: a call comes once the stream has come to it.
            if self._place is not None and not self._place.is_reached:
                return
            if late.is_free(turn):
                late.came(self._signature)
                turn.free()
        while (step := turn.next(before, room)) is not None:
            self._moved = True
            self._do(step)
        execution = self._execution
        if execution is not None and not self._complete:
            before = execution.remaining
            self._complete = execution.advance()
            self._moved = self._moved or execution.remaining != before
            done = execution.progress() if isinstance(execution, GrowingExecution) else None
            if done is not None:
                late.progress(turn, done)

    def _do(self, step: TurnStep) -> None:
        late, turn, record = self._late, self._turn, step.record
        if self._captured is None and record is not None and not turn.held and step.what != END:
            self._outcome_s = self._communicator.machine.now_s()
        if record is None:
            if step.what == ARRIVE:
                late.arrive(turn, self._policy, turn.ready)
                if self._captured is not None and self._place is not None:
                    self._place.enter()  # One thing less to do after the record.
            else:
                late.be_ready(turn)
        elif step.what == END:
            self._abort(record)
        elif self._captured is not None:
            # What was not asked about.
            if self._place is not None:
                self._place.enter()
            self._launch(self._captured, record)
        elif step.what == RELEASE:
            assert self._execution is not None, "it was begun"
            self._execution.release()
        elif step.what == GO_ON:
            self._go_on(record)
        else:
            self._run(record.choice, record.rank if record.choice else -1, held=step.what == BEGIN)

    def _take_at_once(self, record: Record) -> None:
        """Do what the board says, which this rank has asked: there is nothing that a captured call would wait for."""
        assert self._captured is not None, "only these are done at once"
        self._launch(self._captured, record)
        self._turn.take(record)
        self._turn.next(COMPLETE)

    def _launch(self, captured: Mapping[tuple[str, int], GraphPlan], record: Record) -> None:
        """As `_run`, of graphs: first the launch, then what is to be remembered of it."""
        execution = self._execution
        if isinstance(execution, StreamExecution):
            execution.launch(JOINING)
            execution.launched(JOINING)
            return
        plan = captured[record.choice, record.rank if record.choice else -1]
        part = BEFORE if record.verdict == WITHOUT else WHOLE
        plan.execution.launch(part)
        self._late.ran[record.choice.partition("@")[0]] += 1
        call = self._call
        assert call is not None, "it is not over"
        self._plan, self._execution = plan, plan.execution
        plan.execution.bind(call.in_array, call.out_array, call.entry)
        plan.execution.launched(part)

    def _run(self, choice: str, late_rank: int, held: bool) -> None:
        self._late.ran[choice.partition("@")[0]] += 1
        call = self._call
        assert call is not None, "it is not over"
        plan = self._plan = self._late.find_plan(call, choice, late_rank)
        lane = BOARD_LANES[self._turn.number % len(BOARD_LANES)]
        execution = plan.take(call.in_place, lane)
        assert not isinstance(execution, NativeExecution), "the library's own ask nobody"
        self._execution = execution
        execution.bind(call.in_array, call.out_array, call.entry)
        execution.start(held=held)

    def _go_on(self, record: Record) -> None:
        """Begin, or go on, with the ranks that `record` names, by the rounds that it grants."""
        call = self._call
        assert call is not None, "it is not over"
        numbers = list(map(int, record.text.split()))
        joins = list(zip(numbers[::2], numbers[1::2], strict=True))
        execution = self._execution
        if execution is None:
            self._late.ran[record.choice] += 1
            lane = BOARD_LANES[self._turn.number % len(BOARD_LANES)]
            execution = self._execution = self._late.spread(call, record.choice, lane)
            execution.bind(call.in_array, call.out_array)
            execution.start()
        assert isinstance(execution, GrowingExecution), "the board decides once"
        execution.go_on(joins, None if record.late < 0 else record.late)

    def _leave(self, completion: Request | None) -> bool:
        """The call is over."""
        self._completion = completion
        if self._error is not None:
            self._end = None  # Its outputs are undefined.
        if completion is None:
            self._finish()
        if isinstance(self._execution, GrowingExecution):
            self._execution.unbind()
        elif self._execution is not None and self._plan is not None and self._call is not None:
            self._plan.give_back(self._execution, self._call.in_place)
        call, self._call = self._call, None
        self._late.forget(self._turn)
        if call is not None and self._error is None:
            self._late.ended(self._turn, None if call.entry is not None else self._outcome_s)
            self._late.ready.note(call, self._policy)
            if self._late.is_idle:
                self._late.ready.make()
        return True

    _poll = CollectiveRequest._poll_completion

    def _abort(self, record: Record) -> None:
        error = error_of(record, self._communicator, self._turn.number)
        if record.cause != TIMEOUT:
            raise error
        assert isinstance(error, TransportTimeout), "of those that have not come"
        self._error = error

    def _pending_peers(self) -> Sequence[int]:
        """Transport ranks that this call waits for now; before the board has spoken, all."""
        communicator = self._communicator
        if self._execution is None or self._turn.held:
            return [rank for rank in communicator.ranks if rank != communicator.ranks[communicator.rank]]
        return self._execution.pending_peers()

    def _expire(self, limit_s: float) -> None:
        """The time of a wait is over: before everybody has come, ask the board to end the call, for all alike."""
        now_s = self._communicator.machine.now_s()
        if self._gave_up_s is None and self._turn.waits:
            self._gave_up_s = now_s
            self._late.give_up(self._turn.number)
        if self._gave_up_s is None or now_s > self._gave_up_s + GRACE_S:
            super()._expire(limit_s)

    def test(self) -> bool:
        """As CollectiveRequest.test.

        Raises:
            TransportTimeout: the call was given up before every rank had come; the communicator can go on.
        """
        return super().test() and self._succeeded()

    def wait(self, timeout_s: float | None = None, *, queued: bool = False) -> None:
        """As CollectiveRequest.wait; a TransportTimeout before every rank has come leaves the communicator open."""
        super().wait(timeout_s, queued=queued)
        self._succeeded()

    def _succeeded(self) -> bool:
        if self._error is not None:
            raise self._error
        return True
