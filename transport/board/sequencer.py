"""The arrival board's state machine: who has come to which call, and what all do about it. Pure; no clock, no sockets.

Of every call it issues one decision, never changed: NORMAL, WITHOUT the late rank, SPREAD, or ABORT. After WITHOUT
follows one outcome: JOIN, as soon as the late rank is there, or ABORT. Before JOIN nobody may post a transfer with the
late rank, so an ABORT leaves nothing behind.

SPREAD begins with the ranks that are there, by rounds (any_arrival). Records that follow grant some rounds more than
the slowest has reported as done. So a rank that arrives takes part from the first round that is not granted, which
nobody has begun. The record that says so to the last rank is the outcome, and grants all rounds.

Ranks act on records only; the clock is an argument here, so the process that holds this object decides alone, and every
order of events can be tried in a test.

A rank may come to several calls before the first is complete, and says of each when it has nothing left to do before
it: no call begins without the late rank earlier, since until then that may still come. Who gives up a call gives up all
behind it that any rank has come to, for all ranks alike.

Where asking would cost short calls more than the latest of them could have gained by it, the record frees
those of the same signature among the next few: all ranks run them as NORMAL without asking, and report afterwards when
they came. A rank that has come to one of them by then has reported.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple, TypeAlias

from lanterne.transport.board.late_policy import (
    ANY,
    MAX_GAPS,
    MAX_OPTIONS,
    Gaps,
    Option,
    Policy,
    Starts,
    as_predicted,
    at_ports,
    choice_name,
    corrected,
    find_start,
    gaps_between,
    last_phase_s,
    saving_s,
    starts,
    without_any,
)

NORMAL, WITHOUT, JOIN, ABORT, SEEN, SPREAD = range(6)
# Why a call was aborted.
MISMATCH, TIMEOUT, DIED, FORGOTTEN = range(1, 5)


# Calls that were aborted wait here for the ranks that have not come to them yet; the oldest make room.
MAX_OPEN_CALLS = 256  # a queue of 64 calls, some aborted
# Calls whose delays decide, of one signature; and signatures, least recently used out.
MAX_DELAYS = 16  # FADING forgets earlier ones
MAX_SIGNATURES = 128  # shapes of a training step
# Some calls are free, if they take less than this and punctual_calls in a row would not have gained asking_s by
# knowing who is late: so many that asking, up to asking_s where ranks share cores, costs short calls a tenth of
# their time, and never fewer or more than these.
FREE_BELOW_S = 50e-3  # asking takes up to a fiftieth of longer calls
PUNCTUAL_CALLS = 2
FREE_CALLS = 3
MAX_FREE_CALLS = 7
ASKING_S = 1e-3  # measured: up to 1 ms where ranks share cores
# Reports of a rank that wait for those of others; with more, ranks do not make the same calls, and reports are
# ignored.
MAX_REPORTS = 1 << 14
# What calls took corrects what they are predicted to take: the mean of the latest so many of an algorithm but the
# slowest, from so many on; older ones than so many calls of the signature are forgotten, so that it is tried again.
MAX_TOOK, LEAST_TOOK, TOOK_CALLS = 5, 2, 64  # three calls in 65 are tried in vain where it is always slower
# By so much a second the clocks of two hosts may drift apart.
MAX_DRIFT = 1e-4  # quartz drifts 1e-5 to 1e-4


class Record(NamedTuple):
    """What all ranks do in call `number`.

    Attributes:
        verdict: NORMAL, WITHOUT, JOIN, SPREAD, ABORT, or, of no call in particular (number 0), SEEN.
        rank: who came last (NORMAL, JOIN, SPREAD), is late (WITHOUT), or is to blame (ABORT; -1: nobody in particular).
        delay_s: between the last but one and the last arrival (NORMAL, JOIN, the last SPREAD), else 0.
        cause: of an ABORT, else 0.
        choice: the algorithm of WITHOUT, with "@" and all late ranks where there are several, or of SPREAD; JOIN and
            ABORT repeat it for who has not seen it, "" if there was none.
        late: of an ABORT after WITHOUT, the late rank. Of SPREAD, how many rounds may be begun; -1: all. Else -1.
        text: of NORMAL and JOIN, WANTED if SPREAD would have been better, for which not all ranks are prepared. Of an
            ABORT, why; for TIMEOUT, all ranks that have not come. Of SPREAD, a rank that has come, the round
            from which on it takes part, the next such rank, and so on. Of SEEN, calls whose arrivals were reported
            afterwards: who came last, how much later (ns), and so on.
        free: of NORMAL, those of the next so many calls that have the same signature are not to be asked about.
        arrivals: when each rank arrived, ns after the first, once all have; "" where there are more than 16.
    """

    number: int
    verdict: int
    rank: int = -1
    delay_s: float = 0.0
    cause: int = 0
    choice: str = ""
    late: int = -1
    text: str = ""
    free: int = 0
    arrivals: str = ""


WANTED = "spread"
# (rank, what it is told).
Told: TypeAlias = list[tuple[int, Record]]


@dataclass(slots=True, eq=False)
class _Call:
    signature: str
    policy: Policy
    arrivals: dict[int, float] = field(default_factory=dict)
    came_s: float = 0.0  # the latest of these
    ready: set[int] = field(default_factory=set)
    starts: Starts = field(default_factory=dict)
    deadline_s: float | None = None
    decision: Record | None = None
    outcome: Record | None = None
    choice: str = ""
    late: int = -1
    option: Option | None = None  # by which it begins, as its policy has it
    # After SPREAD: by rank, from which round on it takes part, and how many it has done; how many may be begun.
    joins: dict[int, int] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    granted: int = 0
    # Whether it would begin by SPREAD if all ranks were prepared.
    is_wanted: bool = False


def _spread(number: int, call: _Call, rank: int, delay_s: float = 0.0, granted: int | None = None) -> Record:
    """Return the SPREAD that tells what is known of `call` now; `granted`: None for as many rounds as it grants."""
    text = " ".join(f"{each} {first}" for each, first in call.joins.items())
    late = call.granted if granted is None else granted
    return Record(number, SPREAD, rank, delay_s, choice=call.choice, late=late, text=text)


def _by_rank(arrivals_s: Mapping[int, float]) -> str:
    """Return the arrivals of a Record."""
    first_s = min(arrivals_s.values())
    return " ".join(str(round((arrivals_s[rank] - first_s) * 1e9)) for rank in range(len(arrivals_s)))


def rounds_ahead(choice: str) -> int:
    """Return how many rounds more than the slowest rank has done may be begun by `choice`, any_arrival/chunks/ahead."""
    return int(choice.rpartition("/")[2])


class PastGaps:
    """The Gaps of the latest calls of each signature; signatures that were used longest ago make room.

    The first call of all counts for the second alone: it has delays of its own, of imports, connections and compilers,
    and the third call would wait for ranks that are late by as much again.
    """

    def __init__(self) -> None:
        # Between ranks, and between ports.
        self._of: OrderedDict[str, deque[tuple[Gaps, Gaps]]] = OrderedDict()
        self._calls = 0  # those that have a signature
        self._port_of: Sequence[int] = ()

    def of(self, signature: str) -> Sequence[Gaps]:
        """Those of calls of `signature`, the latest last."""
        return [gaps_s for gaps_s, _ in self._of.get(signature, ())]

    def of_ports(self, signature: str) -> Sequence[Gaps]:
        """The same between ports."""
        return [gaps_s for _, gaps_s in self._of.get(signature, ())]

    def share_ports(self, port_of: Sequence[int]) -> None:
        """Ranks share ports: by rank, the port of each."""
        self._port_of = port_of

    def note(self, signature: str, arrivals_s: Mapping[int, float]) -> float:
        """Ranks came to a call at `arrivals_s`; between the last but one and the last of them, s."""
        gaps_s = gaps_between(arrivals_s.values())
        if signature:
            its_s = gaps_between(at_ports(arrivals_s, self._port_of)) if self._port_of else gaps_s
            self._calls += 1
            if self._calls == 2:
                self._of.clear()
            self._of.setdefault(signature, deque(maxlen=MAX_DELAYS)).append((gaps_s, its_s))
            self._of.move_to_end(signature)
            if len(self._of) > MAX_SIGNATURES:
                self._of.popitem(last=False)
        return gaps_s[0]


class Took:
    """How much longer calls took, after the last arrival, than predicted: by signature and algorithm.

    A rank's time ends when it knows that the call is over: with the user's work in it, if that keeps it from looking.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        # By call that is not known to be over on all ranks: its signature, algorithm, predicted s, and s by rank.
        self._open: OrderedDict[int, tuple[str, str, float, dict[int, float]]] = OrderedDict()
        # By signature, how many calls there were; by algorithm, the latest (how many then, time over the predicted).
        self._calls: OrderedDict[str, int] = OrderedDict()
        self._ratios: dict[str, dict[str, deque[tuple[int, float]]]] = {}

    def expect(self, number: int, signature: str, name: str, predicted_s: float) -> None:
        """Call `number` runs by algorithm `name`."""
        self._calls[signature] = self._calls.get(signature, 0) + 1
        self._calls.move_to_end(signature)
        if len(self._calls) > MAX_SIGNATURES:
            oldest, _ = self._calls.popitem(last=False)
            self._ratios.pop(oldest, None)
        if predicted_s > 0:
            self._open[number] = signature, name, predicted_s, {}
            if len(self._open) > MAX_OPEN_CALLS:
                self._open.popitem(last=False)

    def note(self, rank: int, number: int, took_s: float) -> None:
        """`rank` says that the call took so long there; the slowest rank counts."""
        if number not in self._open:
            return
        signature, name, predicted_s, by_rank = self._open[number]
        by_rank[rank] = took_s
        if len(by_rank) < self._world_size:
            return
        del self._open[number]
        if signature in self._calls:
            names = self._ratios.setdefault(signature, {})
            latest = names.setdefault(name, deque(maxlen=MAX_TOOK))
            latest.append((self._calls[signature], max(by_rank.values()) / predicted_s))
            if len(names) > MAX_OPTIONS:
                del names[next(iter(names))]

    def factors(self, signature: str) -> dict[str, float]:
        """Return, by algorithm, the mean ratio of the latest calls of `signature` but the slowest."""
        found, since = {}, self._calls.get(signature, 0) - TOOK_CALLS
        for name, ratios in self._ratios.get(signature, {}).items():
            latest = sorted(ratio for then, ratio in ratios if then >= since)
            if len(latest) >= LEAST_TOOK:
                found[name] = fmean(latest[:-1])
        return found


class Reports:
    """Arrivals at calls that need not ask, which each rank reports in the same order, until all have reported one."""

    def __init__(self, world_size: int) -> None:
        self._waiting: list[deque[tuple[float, str]]] = [deque() for _ in range(world_size)]  # (s, signature) by rank
        # By rank: this clock less the rank's own, and a message's time, the least of late; and when that was reckoned.
        self._clocks = [(float("inf"), 0.0)] * world_size

    def behind_s(self, rank: int, its_now_s: float, now_s: float) -> float:
        """What to add to times of `rank`, whose clock says `its_now_s` in a message that came at `now_s`."""
        behind_s, then_s = self._clocks[rank]
        behind_s = min(behind_s + MAX_DRIFT * (now_s - then_s), now_s - its_now_s)
        self._clocks[rank] = behind_s, now_s
        return behind_s

    def add(self, rank: int, arrivals: Sequence[tuple[float, str]]) -> Iterator[tuple[str, list[float]]]:
        """Take what `rank` reports, (s of this clock, signature); calls reported by all: signature and s, by rank."""
        waiting = self._waiting[rank]
        if len(waiting) + len(arrivals) > MAX_REPORTS:
            return
        waiting.extend(arrivals)
        while all(self._waiting):
            came = [reports.popleft() for reports in self._waiting]
            yield came[0][1], [at_s for at_s, _ in came]


class Sequencer:
    """The calls of one communicator of `world_size` ranks. Every method returns what to tell whom."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._calls: dict[int, _Call] = {}
        self._floor = 0  # calls up to this number are forgotten
        self._gaps = PastGaps()
        self._died: dict[int, str] = {}
        self._free: dict[str, int] = {}  # by signature, the last call that need not ask
        self._reports = Reports(world_size)
        self._took = Took(world_size)
        self._prepared: set[int] = set()  # ranks that can take part in a SPREAD

    def arrive(
        self,
        rank: int,
        number: int,
        signature: str,
        policy: Policy,
        now_s: float,
        ready: bool = True,
        *,
        prepared: bool = False,
        took: Iterable[tuple[int, float]] = (),
    ) -> Told:
        """`rank` comes to call `number`, which rises from 1 on every rank alike.

        Args:
            ready: see `be_ready`.
            prepared: whether it can take part in a SPREAD.
            took: earlier calls that are over there, and the s that each took from its outcome on.

        Raises:
            ValueError: `policy` has ports of another number of ranks.
        """
        if len(policy.port_of) not in (0, self.world_size):
            raise ValueError(f"policy: got ports of {len(policy.port_of)} ranks, expected {self.world_size}")
        if prepared:
            self._prepared.add(rank)
        for earlier, took_s in took:
            self._took.note(rank, earlier, took_s)
        if number <= self._free.get(signature, 0):
            return self._see(rank, [(now_s, signature)])
        if number <= self._floor:
            return [(rank, Record(number, ABORT, cause=FORGOTTEN, text="it was aborted long ago"))]
        call = self._calls.get(number)
        if call is None:
            call = self._calls[number] = _Call(signature, policy)
            if policy.options:
                # Here, where nobody waits for it yet.
                self._prepare(call)
            self._make_room()
        if rank in call.arrivals:
            return []
        call.arrivals[rank] = call.came_s = now_s
        if ready:
            call.ready.add(rank)
        if call.outcome is not None:
            self._close_if_complete(number)
            return [(rank, call.outcome)]
        if signature != call.signature:
            first = next(iter(call.arrivals))
            (one, its), (other, theirs) = sorted([(first, call.signature), (rank, signature)])
            text = f"rank {one} got {its}, rank {other} got {theirs}, expected the same on every rank"
            return self._abort(number, MISMATCH, -1, text)
        for dead, reason in self._died.items():
            if dead not in call.arrivals:
                return self._abort(number, DIED, dead, reason)
        return self._advance(number, call, rank, now_s)

    def _prepare(self, call: _Call) -> None:
        """Find the Starts of `call`, which nobody has come to yet."""
        if call.policy.port_of:
            self._gaps.share_ports(call.policy.port_of)
        past, at_ports = self._gaps.of(call.signature), self._gaps.of_ports(call.signature)
        policy = corrected(call.policy, self._took.factors(call.signature))
        call.starts = starts(policy, past, at_ports)
        if len(self._prepared) < self.world_size:
            call.is_wanted = any(start.option.late == ANY for its in call.starts.values() for start in its)
            if call.is_wanted:
                call.starts = starts(without_any(policy), past)

    def _advance(self, number: int, call: _Call, rank: int, now_s: float) -> Told:
        absent = self.world_size - len(call.arrivals)
        if absent == 0:
            delay_s = self._gaps.note(call.signature, call.arrivals)
            if call.decision is None:
                text, free = WANTED if call.is_wanted else "", self._free_calls(number, call)
                call.decision = Record(number, NORMAL, rank, delay_s, text=text, free=free)
            call.outcome = call.decision
            if call.decision.verdict == WITHOUT:
                text = WANTED if call.is_wanted else ""
                call.outcome = Record(number, JOIN, rank, delay_s, choice=call.choice, text=text)
            elif call.decision.verdict == SPREAD:
                self._take_in(call, rank)
                call.outcome = _spread(number, call, rank, delay_s, granted=-1)
            if self.world_size <= MAX_GAPS + 1:
                call.outcome = call.outcome._replace(arrivals=_by_rank(call.arrivals))
            told = self._tell(call, call.outcome)
            predicted_s = last_phase_s(call.policy, call.option, call.arrivals)
            self._took.expect(number, call.signature, choice_name(call.choice), predicted_s)
            self._close_if_complete(number)
            return told + self._set_free(number, call)
        if call.decision is not None and call.decision.verdict == SPREAD:
            self._take_in(call, rank)
            return self._tell(call, _spread(number, call, rank))
        self._set_deadline(call, now_s)
        return []

    def _take_in(self, call: _Call, rank: int) -> None:
        """Let `rank` take part from the first round on that nobody can have begun, and grant that round."""
        slowest = min(call.done.values())
        call.joins[rank] = call.done[rank] = call.granted
        call.granted = max(call.granted + 1, slowest + rounds_ahead(call.choice))

    def progress(self, rank: int, number: int, done: int) -> Told:
        """`rank` has done `done` rounds of call `number`, which began by SPREAD."""
        call = self._calls.get(number)
        if call is None or call.outcome is not None or not call.done.get(rank, done) < done <= call.granted:
            return []
        call.done[rank] = done
        granted = min(call.done.values()) + rounds_ahead(call.choice)
        if granted <= call.granted:
            return []
        call.granted = granted
        return self._tell(call, _spread(number, call, rank))

    def be_ready(self, rank: int, number: int, now_s: float) -> Told:
        """`rank`, which has come to call `number`, has nothing to do before it that does not need a late rank."""
        call = self._calls.get(number)
        if call is not None and rank in call.arrivals:
            call.ready.add(rank)
            self._set_deadline(call, now_s)
        return []

    def _set_deadline(self, call: _Call, now_s: float) -> None:
        start = find_start(call.starts, self._absent(call))
        waits = start is None or len(call.ready) < len(call.arrivals)
        call.deadline_s = None if start is None or waits else max(now_s, call.came_s + start.window_s)

    def _absent(self, call: _Call) -> list[int]:
        """Who has not come to `call`, if few enough for a Start."""
        if self.world_size - len(call.arrivals) > max(call.starts, default=0):
            return []
        return [rank for rank in range(self.world_size) if rank not in call.arrivals]

    def _free_calls(self, number: int, call: _Call) -> int:
        policy, past = call.policy, self._gaps.of(call.signature)
        punctual, asking_s = PUNCTUAL_CALLS, ASKING_S
        if policy.normal_s > FREE_BELOW_S or len(past) < punctual or not policy.options:
            return 0
        if sum(saving_s(policy, gaps_s) for gaps_s in list(past)[-punctual:]) >= punctual * asking_s:
            return 0
        shorter = int(10 * asking_s / max(policy.normal_s, asking_s))
        calls = max(FREE_CALLS, min(shorter, MAX_FREE_CALLS))
        decided = [other for other, its in self._calls.items() if other > number and (its.decision or its.outcome)]
        return min([calls, *(other - number - 1 for other in decided)])

    def _set_free(self, number: int, call: _Call) -> Told:
        """The calls that the decision about call `number` frees; who has come to one already has reported it."""
        told: Told = []
        if call.decision is not None and call.decision.free:
            last = self._free[call.signature] = number + call.decision.free
            if len(self._free) > MAX_SIGNATURES:
                del self._free[next(iter(self._free))]
            for other in range(number + 1, last + 1):
                if other in self._calls and self._calls[other].signature == call.signature:
                    for rank, at_s in self._calls.pop(other).arrivals.items():
                        told += self._see(rank, [(at_s, call.signature)])
        return told

    def report(self, rank: int, its_now_s: float, arrivals: Sequence[tuple[float, str]], now_s: float) -> Told:
        """`rank`, whose clock says `its_now_s`, came to calls not asked about: `arrivals`, (its s, signature).

        All ranks report the same calls in the same order; the signature is "" where no call of it is ever asked about.
        """
        behind_s = self._reports.behind_s(rank, its_now_s, now_s)
        return self._see(rank, [(at_s + behind_s, signature) for at_s, signature in arrivals])

    def _see(self, rank: int, arrivals: Sequence[tuple[float, str]]) -> Told:
        """`rank` came to calls that need not ask: `arrivals`, (s of this clock, signature)."""
        seen: list[int] = []
        for signature, times_s in self._reports.add(rank, arrivals):
            delay_s = self._gaps.note(signature, dict(enumerate(times_s)))
            seen += [times_s.index(max(times_s)), round(delay_s * 1e9)]
        record = Record(0, SEEN, text=" ".join(map(str, seen)))
        return [(each, record) for each in range(self.world_size)] if seen else []

    def expire(self, now_s: float) -> Told:
        """The clock says `now_s`: windows may be over."""
        told: Told = []
        for number, call in self._calls.items():
            if call.decision is not None or call.outcome is not None:
                continue
            if call.deadline_s is not None and call.deadline_s <= now_s:
                absent = self._absent(call)
                start = find_start(call.starts, absent)
                assert start is not None, "it set the deadline"
                call.choice = start.option.choice
                call.option = as_predicted(call.policy, start.option)
                if start.option.late == ANY:
                    for rank in call.arrivals:
                        call.joins[rank] = call.done[rank] = 0
                    call.granted = rounds_ahead(call.choice)
                    call.decision = _spread(number, call, next(reversed(call.arrivals)))
                    told += self._tell(call, call.decision)
                    continue
                call.late = absent[0]
                if len(absent) > 1:
                    call.choice += f"@{','.join(map(str, absent))}"
                call.decision = Record(number, WITHOUT, call.late, choice=call.choice)
                told += self._tell(call, call.decision)
        return told

    def deadline_s(self) -> float | None:
        """When `expire` will have something to do; None: not as things are."""
        deadlines = [
            call.deadline_s
            for call in self._calls.values()
            if call.decision is None and call.outcome is None and call.deadline_s is not None
        ]
        return min(deadlines, default=None)

    def give_up(self, rank: int, number: int) -> Told:
        """`rank`, which is in call `number`, waits no longer, neither for it nor for those behind it."""
        call = self._calls.get(number)
        if call is None or call.outcome is not None or rank not in call.arrivals:
            return []
        told: Told = []
        for each in sorted(other for other, its in self._calls.items() if other >= number and its.outcome is None):
            absent = sorted(set(range(self.world_size)) - self._calls[each].arrivals.keys())
            told += self._abort(each, TIMEOUT, absent[0], " ".join(map(str, absent)))
        return told

    def lose(self, rank: int, reason: str) -> Told:
        """`rank` has died: what waits for it, and ever will, is aborted."""
        self._died.setdefault(rank, reason)
        told: Told = []
        for number, call in list(self._calls.items()):
            if call.outcome is None and rank not in call.arrivals:
                told += self._abort(number, DIED, rank, reason)
        return told

    def _abort(self, number: int, cause: int, rank: int, text: str) -> Told:
        call = self._calls[number]
        choice = call.choice if call.late >= 0 else ""
        call.outcome = Record(number, ABORT, rank, cause=cause, choice=choice, late=call.late, text=text)
        told = self._tell(call, call.outcome)
        self._close_if_complete(number)
        return told

    def _tell(self, call: _Call, record: Record) -> Told:
        return [(rank, record) for rank in call.arrivals]

    def _close_if_complete(self, number: int) -> None:
        if len(self._calls[number].arrivals) == self.world_size:
            del self._calls[number]

    def _make_room(self) -> None:
        if len(self._calls) > MAX_OPEN_CALLS:
            self._floor = min(self._calls)
            del self._calls[self._floor]
