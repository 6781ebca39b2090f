"""Simulated ranks at an arrival board: a play that all know, what each was told, and what must have been told.

The play has ranks that come late, alone or several, that come to two calls at once, with work left to do before a call,
with another signature, or not before the others have given up.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from lanterne.errors import PeerFailed, TransportError, TransportTimeout
from lanterne.transport.board.late_policy import MAX_LATE, Gaps, Option, Policy, find_start, saving_s, starts, to_text
from lanterne.transport.board.seat import Arrival, Seat
from lanterne.transport.board.sequencer import (
    ABORT,
    ASKING_S,
    DIED,
    FREE_BELOW_S,
    FREE_CALLS,
    JOIN,
    MAX_FREE_CALLS,
    MISMATCH,
    NORMAL,
    PUNCTUAL_CALLS,
    SEEN,
    TIMEOUT,
    WITHOUT,
    Record,
)
from lanterne.transport.machine import Machine
from lanterne.transport.waiting import wait

# Who waits for a rank that the play keeps away gives up after the one, and that comes after the other.
GIVE_UP_S, AWAY_S = 0.3, 1.0
# Messages of a calm world are under way for less, and no two arrivals that are closer count as one before the other.
CLEAR_S = 5e-3
POLICIES = (
    Policy(2e-3, (Option("join", 1.5e-3, 1e-3), Option("chain", 1e-3, 1.8e-3))),
    Policy(60e-3, (Option("join", 40e-3, 30e-3), Option("several", 30e-3, 32e-3, 2))),
    Policy(2e-3),
)


@dataclass(frozen=True)
class SeatCall:
    """Call `number` of a play.

    Attributes: `pause_s`, by rank, before it comes; `unready_s`, by rank, how much later it is ready; `odd`, the rank
    with another signature; `away`, the rank that the others give up; `ahead`, whether ranks come to the next call, too,
    before they wait for this one.
    """

    number: int
    signature: str
    policy: Policy
    pause_s: tuple[float, ...]
    unready_s: tuple[float, ...]
    odd: int = -1
    away: int = -1
    ahead: bool = False


@dataclass
class SeatLog:
    """What a rank did, and when: it `came`, by call, was `ready`, `gave_up`, and was told `records`; calls `free`."""

    came: dict[int, float] = field(default_factory=dict)
    ready: dict[int, float] = field(default_factory=dict)
    gave_up: dict[int, float] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    records: list[tuple[float, Record]] = field(default_factory=list)
    is_over: bool = False

    def of(self, number: int, *verdicts: int) -> list[Record]:
        """What it was told of a call."""
        return [record for _, record in self.records if record.number == number and record.verdict in verdicts]

    def outcome(self, number: int) -> Record | None:
        """How a call was settled."""
        return next(iter(self.of(number, NORMAL, JOIN, ABORT)), None)


def make_play(seed: str, ranks: int, count: int) -> tuple[SeatCall, ...]:
    """The same play for the same arguments."""
    rng = random.Random(seed)
    calls: list[SeatCall] = []
    for number in range(1, 3 + count % 8):
        pause_s = [rng.uniform(0, 1e-3) for _ in range(ranks)]
        late = rng.choice((0, 0, 1, 1, 2))
        for rank in rng.sample(range(ranks), late):
            pause_s[rank] += rng.choice((0.05, 0.2))
        unready_s = [rng.choice((0.0, 0.0, 0.0, 0.02, 0.1)) for _ in range(ranks)]
        kind = rng.choice(("", "", "", "", "", "odd", "away", "ahead"))
        odd = rng.randrange(ranks) if kind == "odd" else -1
        away = rng.randrange(ranks) if kind == "away" else -1
        if away >= 0:
            pause_s[away] += AWAY_S
        signature = rng.choice("aab") if not kind or kind == "ahead" else f"{kind} {number}"
        policy = POLICIES["ab".find(signature)] if signature in "ab" else rng.choice(POLICIES)
        calls.append(SeatCall(number, signature, policy, tuple(pause_s), tuple(unready_s), odd, away, kind == "ahead"))
    return tuple(calls)


class Player:
    """One rank at its seat. Args: `check`, of deaths."""

    def __init__(
        self, seat: Seat, rank: int, machine: Machine, limit_s: float, check: Callable[[], object], log: SeatLog
    ) -> None:
        self._seat = seat
        self._rank = rank
        self._machine = machine
        self._limit_s = limit_s
        self._check = check
        self._log = log
        self._free: dict[str, int] = {}
        self._unreported: list[Arrival] = []

    def play(self, calls: Sequence[SeatCall]) -> None:
        """Come to all calls. Raises as a call of a communicator does."""
        index = 0
        while index < len(calls):
            together = calls[index : index + 1 + calls[index].ahead]
            index += len(together)
            for call in together:
                self._come(call)
            for call in together:
                if call.number in self._log.came:
                    self._settle(call)
        self._report()
        self._wait(lambda: len(seen_of(self._log)) >= len(self._log.free), self._limit_s)
        self._log.is_over = True

    def _come(self, call: SeatCall) -> None:
        self._machine.sleep(call.pause_s[self._rank])
        now_s = self._machine.now_s()
        signature = f"{call.signature} of rank {self._rank}" if call.odd == self._rank else call.signature
        if call.number <= self._free.get(signature, 0):
            self._log.free.append(call.number)
            self._unreported.append((now_s, signature))
            return
        self._report()
        ready = not call.unready_s[self._rank]
        self._log.came[call.number] = now_s
        if ready:
            self._log.ready[call.number] = now_s
        self._seat.arrive(call.number, signature, to_text(call.policy), ready)

    def _report(self) -> None:
        if self._unreported:
            self._seat.report(self._unreported)
            self._unreported = []

    def _settle(self, call: SeatCall) -> None:
        log, number = self._log, call.number
        if call.unready_s[self._rank]:
            self._machine.sleep(call.unready_s[self._rank])
            log.ready[number] = self._machine.now_s()
            self._seat.be_ready(number)
        is_over = lambda: number <= self._free.get(call.signature, 0) or log.outcome(number) is not None  # noqa: E731
        is_alone = call.away not in (-1, self._rank)
        if not self._wait(is_over, GIVE_UP_S if is_alone else self._limit_s):
            log.gave_up[number] = self._machine.now_s()
            self._seat.give_up(number)
            if not self._wait(is_over, self._limit_s):
                raise TransportError(f"the board does not answer who gives call {number} up")
        record = log.outcome(number)
        if record is None:
            log.free.append(number)
            return
        if record.free:
            self._free[call.signature] = number + record.free
        is_meant = record.cause == (MISMATCH if call.odd >= 0 else TIMEOUT if call.away >= 0 else 0)
        if record.verdict == ABORT and not is_meant:
            if record.cause == DIED:
                self._check()  # As a call does.
                raise PeerFailed(record.rank, record.text)
            if record.cause == TIMEOUT:
                absent = list(map(int, record.text.split()))
                raise TransportTimeout(f"call {number}: rank {record.text} did not come", absent)
            raise TransportError(f"call {number}: {record.text}")

    def _wait(self, is_there: Callable[[], bool], limit_s: float) -> bool:
        def look() -> bool:
            while (record := self._seat.take()) is not None:
                self._log.records.append((self._machine.now_s(), record))
            return is_there()

        return wait(look, limit_s, self._machine.pauses(), lambda _now_s: self._check())


def seen_of(log: SeatLog) -> list[tuple[int, int]]:
    """(who came last, by how many ns) of the calls that were not asked about, in order."""
    words = [int(word) for _, record in log.records if record.verdict == SEEN for word in record.text.split()]
    return list(zip(words[::2], words[1::2], strict=True))


# -- what must have been told


def judge_play(calls: Sequence[SeatCall], logs: Mapping[int, SeatLog], *, calm: bool) -> Iterator[str]:
    """What is wrong, a line each.

    Args:
        logs: by rank, of all.
        calm: nothing has befallen anybody.
    """
    for call in calls:
        told = [outcome for log in logs.values() if (outcome := log.outcome(call.number)) is not None]
        if len(set(told)) > 1:
            yield f"call {call.number} was settled in several ways: {told}"
        for log in logs.values():
            if len(log.of(call.number, NORMAL, JOIN, ABORT)) > 1 or len(log.of(call.number, WITHOUT)) > 1:
                yield f"call {call.number} was settled twice"
    if calm and not all(log.is_over for log in logs.values()):
        yield "a rank did not come to the end of the calls"
    elif calm:
        judge = _Calm(calls, logs)
        for call in calls:
            yield from (f"call {call.number}: {line}" for line in judge.of(call))
        yield from judge.of_free()


class _Calm:
    """What must hold where nothing has befallen anybody: the board knows the ranks' times but for CLEAR_S."""

    def __init__(self, calls: Sequence[SeatCall], logs: Mapping[int, SeatLog]) -> None:
        self._logs = logs
        self._by_number = {call.number: call for call in calls}
        # By signature, of calls that are over; those whose past may lag behind what was reported.
        self._past: dict[str, list[Gaps]] = {}
        self._complete = 0
        self._blurred: set[str] = set()

    def of(self, call: SeatCall) -> Iterator[str]:
        logs = self._logs
        free = {call.number in log.free for log in logs.values()}
        if len(free) > 1:
            yield "some ranks were told that it is free, others not"
        if free != {False}:
            self._blurred.add(call.signature)
            return
        outcome = next(iter(logs.values())).outcome(call.number)
        without = {record for log in logs.values() for record in log.of(call.number, WITHOUT)}
        if outcome is None or len(without) > 1:
            yield f"got {outcome} and {without}"
            return
        began = next(iter(without), None)
        choice = began.choice if began else ""
        if outcome.choice != choice:
            yield f"got the choice {outcome.choice!r} at last, {choice!r} before"
        if outcome.verdict == ABORT:
            yield from _of_abort(call, outcome, began is not None, logs)
            return
        if call.odd >= 0 or _absent(call, logs)[0]:
            yield f"got {outcome}, expected an end"
            return
        came = sorted((log.came[call.number], rank) for rank, log in logs.items())
        gaps_s = tuple(later - before for (before, _), (later, _) in pairwise(came))[::-1]
        if abs(outcome.delay_s - gaps_s[0]) > CLEAR_S or (gaps_s[0] > CLEAR_S and outcome.rank != came[-1][1]):
            yield f"got {outcome}, expected rank {came[-1][1]}, {gaps_s[0]:.4f} s after the others"
        if call.signature not in self._blurred:
            yield from self._of_start(call, outcome, began, came, gaps_s)
        self._complete += 1
        if self._complete == 2:
            self._past.clear()  # The first call says nothing of those after the second.
        # As the board has it, which decides by it: by the ranks' own times, another choice may be the best by a hair.
        self._past.setdefault(call.signature, []).append((outcome.delay_s, *gaps_s[1:MAX_LATE]))
        if call.signature not in self._blurred:
            yield from self._of_freedom(call, outcome)
        if call.ahead and call.number + 1 in self._by_number:
            self._blurred.add(self._by_number[call.number + 1].signature)

    def _of_start(
        self, call: SeatCall, outcome: Record, began: Record | None, came: Sequence[tuple[float, int]], gaps_s: Gaps
    ) -> Iterator[str]:
        """Whether the others had to begin without the last ranks."""
        found = starts(call.policy, self._past.get(call.signature, ()))
        ready_s = max(self._logs[rank].ready[call.number] for _, rank in came[:-1])
        if began is not None:
            name, _, names = began.choice.partition("@")
            # Where several come within CLEAR_S of each other, the last of them for the board may be another one.
            late = set(map(int, names.split(","))) if names else {began.rank}
            start = find_start(found, late)
            if start is None or start.option.choice != name:
                yield f"got the choice {began.choice!r}, expected one of {found}"
            elif gaps_s[len(late) - 1] < start.window_s - CLEAR_S:
                yield f"the others began without rank {late}, which was not late"
            elif gaps_s[len(late) - 1] > CLEAR_S and late != {rank for _, rank in came[-len(late) :]}:
                yield f"the others began without rank {late}, expected the last ones of {came}"
            told_s = [at_s for log in self._logs.values() for at_s, record in log.records if _began(record, call)]
            if any(self._logs[rank].ready[call.number] > min(told_s) for _, rank in came if rank not in late):
                yield "the others began before they were ready"
            return
        start = find_start(found, {came[-1][1]})
        if start is not None and came[-1][0] > max(came[-2][0] + start.window_s, ready_s) + CLEAR_S:
            yield f"nobody began without rank {outcome.rank}, {gaps_s[0]:.4f} s late"

    def _of_freedom(self, call: SeatCall, outcome: Record) -> Iterator[str]:
        """Whether the next calls had to be free."""
        policy, past = call.policy, self._past[call.signature]
        punctual, asking_s, most = PUNCTUAL_CALLS, ASKING_S, MAX_FREE_CALLS
        if outcome.verdict != NORMAL or policy.normal_s > FREE_BELOW_S or len(past) < punctual or not policy.options:
            expected = {0}
        else:
            saved_s = sum(saving_s(policy, gaps_s) for gaps_s in past[-punctual:]) / punctual
            calls = max(FREE_CALLS, min(int(10 * asking_s / max(policy.normal_s, asking_s)), most))
            expected = {calls} if saved_s < asking_s / 2 else {0} if saved_s > 2 * asking_s else {0, calls}
        if outcome.free not in expected and not call.ahead:
            yield f"{outcome.free} of the next calls are free, expected {expected}"

    def of_free(self) -> Iterator[str]:
        """What was told of the calls that were not asked about."""
        seen = {tuple(seen_of(log)) for log in self._logs.values()}
        free = next(iter(self._logs.values())).free
        if len(seen) > 1 or len(next(iter(seen))) != len(free):
            yield f"of calls that were not asked about ranks were told {seen}, expected the same of {len(free)}"


def _began(record: Record, call: SeatCall) -> bool:
    return record.number == call.number and record.verdict == WITHOUT


def _absent(call: SeatCall, logs: Mapping[int, SeatLog]) -> tuple[set[int], set[int]]:
    """Who cannot have been there when the first rank gave up `call`, and who may not have been; nobody if none did.

    More ranks than the play keeps away may be missing: one that it kept away before comes to this call that much later.
    Or none: while the others waited for that one, the rank that it keeps away from this call has come.
    """
    gave_up_s = min((log.gave_up[call.number] for log in logs.values() if call.number in log.gave_up), default=inf)
    surely, maybe = (
        {rank for rank, log in logs.items() if log.came[call.number] > gave_up_s + blur_s}
        for blur_s in (CLEAR_S, -CLEAR_S)
    )
    return surely, maybe


def _of_abort(call: SeatCall, outcome: Record, began: bool, logs: Mapping[int, SeatLog]) -> Iterator[str]:
    if call.odd >= 0:
        others = [rank for rank in logs if rank != call.odd and f"rank {rank} got" in outcome.text]
        if outcome.cause != MISMATCH or f"rank {call.odd} got" not in outcome.text or not others:
            yield f"got {outcome}, expected a mismatch of rank {call.odd}"
    else:
        surely, maybe = _absent(call, logs)
        told = sorted(map(int, outcome.text.split())) if outcome.cause == TIMEOUT else []
        is_right = surely <= set(told) <= maybe and told and outcome.rank == told[0]
        if not is_right or outcome.text != " ".join(map(str, told)):
            yield f"got {outcome}, expected nobody to wait for ranks {sorted(surely)}, or of {sorted(maybe)}"
    if (outcome.late >= 0) != began:
        yield f"got {outcome}, expected a late rank {'' if began else 'not '}to be in it"
