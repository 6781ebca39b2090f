"""Errands at an arrival board: ranks that make the same calls, each at its own time, and what they are told of them."""

from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import pairwise
from math import inf

from evaluation.simulation.errands.deciding import takes_s
from evaluation.simulation.errands.errand import HOST, PORT, TIMEOUT_S, TOKEN, Errand
from lanterne.transport.board.late_policy import MAX_LATE, Option, Policy, Start, to_text
from lanterne.transport.board.seat import LocalBoards, LocalSeat, Seat, StoreSeat, unpack_record
from lanterne.transport.board.sequencer import (
    ABORT,
    ASKING_S,
    DIED,
    FREE_BELOW_S,
    JOIN,
    MAX_SIGNATURES,
    NORMAL,
    PUNCTUAL_CALLS,
    SEEN,
    WITHOUT,
    PastGaps,
    Record,
    Sequencer,
)
from lanterne.transport.store.client import StoreClient
from lanterne.transport.wire import Kind

# Calls of some kinds; those of the last are never asked about.
POLICIES = {
    "short": Policy(2e-3, (Option("join", 1.5e-3, 1e-3),)),
    "several": Policy(20e-3, (Option("join", 12e-3, 10e-3), Option("pair", 10e-3, 11e-3, 2))),
    "long": Policy(80e-3, (Option("join", 50e-3, 40e-3),)),
    "plain": Policy(2e-3),
}
# How many calls; how far a rank may be ahead of what it was told; and ranks' times between calls.
CALLS, AHEAD = (4, 14), 2
PAUSES_S = (0.0, 1e-4, 1e-4, 1e-4, 2e-3, 0.05, 0.2)


class _Caller:
    """A rank: it is in, or has reported, all calls before `next`; takes what it is told when it likes.

    Attributes: `records`, what it has been told, and taken; `inbox`, what it has not.
    """

    def __init__(self) -> None:
        self.next = 1
        self.is_dead = False
        self.due_s = 0.0
        self.asked: list[int] = []
        self.inbox: deque[Record] = deque()
        self.records: list[Record] = []
        self.free: dict[str, int] = {}

    def take(self, signatures: Sequence[str]) -> None:
        """What it was told."""
        while self.inbox:
            record = self.inbox.popleft()
            self.records.append(record)
            if record.free:
                self.free[signatures[record.number - 1]] = record.number + record.free

    def is_free(self, number: int, signatures: Sequence[str]) -> bool:
        """Whether it was told that a call need not be asked about."""
        signature = signatures[number - 1]
        told = [record for record in [*self.records, *self.inbox] if record.free]
        said = [record for record in told if signatures[record.number - 1] == signature]
        return any(record.number < number <= record.number + record.free for record in said)

    def outcome(self, number: int) -> list[Record]:
        """How it was told that a call is settled."""
        told = [*self.records, *self.inbox]
        return [record for record in told if record.number == number and record.verdict in (NORMAL, JOIN, ABORT)]


class _Game:
    """Ranks at a board, until all have come to all calls, or died."""

    def __init__(self, errand: Errand) -> None:
        rng = errand.rng
        self.errand = errand
        self.size: int = rng.randint(2, 5)
        self.signatures: list[str] = rng.choices([*POLICIES], k=rng.randint(*CALLS))
        if rng.random() < 0.5:
            self.signatures = [rng.choice(self.signatures)] * len(self.signatures)
        self.ranks = [_Caller() for _ in range(self.size)]
        self.board = Sequencer(self.size)
        self.now_s = 0.0
        self.came: defaultdict[int, dict[int, float]] = defaultdict(dict)  # by call, by rank
        self.died: list[int] = []
        # Of calls by signature, in the order in which the last rank came: the gaps between the last ones.
        self.past: defaultdict[str, list[Sequence[float]]] = defaultdict(list)
        self.complete = 0  # calls to which all came
        self.mortal = rng.random() < 0.3
        self.pauses_s = rng.choice((PAUSES_S, PAUSES_S[:4]))

    def play(self) -> None:
        """All of it."""
        rng = self.errand.rng
        while moving := [rank for rank in self.ranks if not rank.is_dead and self._can_move(rank)]:
            rank = min(moving, key=lambda each: each.due_s)
            self._advance(max(self.now_s, rank.due_s))
            index = self.ranks.index(rank)
            if self.mortal and rng.random() < 0.05 and len(self.died) + 1 < self.size:
                rank.is_dead = True
                self.died.append(index)
                self._tell(self.board.lose(index, f"{index} fell"))
                continue
            if rng.random() < 0.7:
                rank.take(self.signatures)
            self._come(index, rank)
            rank.due_s = self.now_s + rng.choice(self.pauses_s)
        self._advance(inf)
        for rank in self.ranks:
            rank.take(self.signatures)

    def _can_move(self, rank: _Caller) -> bool:
        open_calls = [number for number in rank.asked if not rank.outcome(number)]
        waits = [number for number in open_calls if not rank.is_free(number, self.signatures)]
        return rank.next <= len(self.signatures) and len(waits) < AHEAD

    def _advance(self, until_s: float) -> None:
        while (at_s := self.board.deadline_s()) is not None and at_s <= until_s:
            self.now_s = max(self.now_s, at_s)
            self._tell(self.board.expire(self.now_s))
        self.now_s = self.now_s if until_s == inf else until_s

    def _come(self, index: int, rank: _Caller) -> None:
        number, signature = rank.next, self.signatures[rank.next - 1]
        rank.next += 1
        self.came[number][index] = self.now_s
        if len(self.came[number]) == self.size:
            times_s = sorted(self.came[number].values(), reverse=True)[: MAX_LATE + 1]
            gaps_s = tuple(later_s - before_s for later_s, before_s in pairwise(times_s))
            self.complete += 1
            if self.complete == 2:
                self.past.clear()  # The first call of a job says nothing of those after the second.
            self.past[signature].append(gaps_s)
        if number <= rank.free.get(signature, 0):
            self._tell(self.board.report(index, self.now_s, [(self.now_s, signature)], self.now_s))
        else:
            rank.asked.append(number)
            self._tell(self.board.arrive(index, number, signature, POLICIES[signature], self.now_s))

    def _tell(self, told: Sequence[tuple[int, Record]]) -> None:
        for rank, record in told:
            if record.verdict == WITHOUT:
                self._judge_start(record)
            self.ranks[rank].inbox.append(record)
        for record in {record for _, record in told if record.verdict == NORMAL}:
            self._judge_freedom(record)

    def _judge_start(self, record: Record) -> None:
        """A call begins without all that are not there, and by what was made for so many."""
        choice, _, names = record.choice.partition("@")
        absent = sorted({*range(self.size)} - self.came[record.number].keys())
        named = sorted(map(int, names.split(","))) if names else [record.rank]
        self.errand.expect("who a call begins without", (named, bool(names)), (absent, len(absent) > 1))
        options = POLICIES[self.signatures[record.number - 1]].options
        late = [option.late for option in options if option.choice == choice]
        self.errand.expect("for how many late ranks that is made", late, [len(absent)])

    def _judge_freedom(self, record: Record) -> None:
        """The next calls are free where knowing who is late had saved the last ones little."""
        signature = self.signatures[record.number - 1]
        policy, past = POLICIES[signature], self.past[signature]
        ahead = max(rank.next for rank in self.ranks) > record.number + 1
        if ahead or len(past) < PUNCTUAL_CALLS:
            return
        saved_s = 0.0
        for gaps_s in past[-PUNCTUAL_CALLS:]:
            gained_s = 0.0
            for late, starts in ((each.late, {each.late: Start(0.0, each)}) for each in policy.options):
                at_once_s = takes_s(policy, starts, gaps_s, late) - takes_s(policy, {}, gaps_s, late)
                gained_s = max(gained_s, -at_once_s)
            saved_s += gained_s
        is_short = policy.normal_s <= FREE_BELOW_S and bool(policy.options)
        least_s = PUNCTUAL_CALLS * ASKING_S
        if abs(saved_s - least_s) > 1e-9:
            self.errand.expect("whether the next calls are free", record.free > 0, is_short and saved_s < least_s)


def calls(errand: Errand) -> None:
    """All ranks are told the same of a call, once; nobody waits for ever; a death ends calls that wait for it, only."""
    game = _Game(errand)
    game.play()
    for number in range(1, len(game.signatures) + 1):
        told = {index: rank.outcome(number) for index, rank in enumerate(game.ranks) if number in rank.asked}
        alive = {index: records for index, records in told.items() if not game.ranks[index].is_dead}
        times = {len(each) + game.ranks[index].is_free(number, game.signatures) for index, each in alive.items()}
        errand.expect(f"how often call {number} is settled", times - {1}, set())
        outcomes = {record for records in told.values() for record in records}
        if len(outcomes) > 1:
            errand.problems.append(f"call {number} was settled in several ways: {outcomes}")
        missing = [rank for rank in game.died if rank not in game.came[number]]
        for record in outcomes:
            was_ended = (record.cause == DIED, record.rank) if record.verdict == ABORT else (False, -1)
            errand.expect(f"who ended call {number}", was_ended, (True, missing[0]) if missing else (False, -1))
        if not missing and outcomes:
            times_s = sorted(game.came[number].values())
            delay_s = next(iter(outcomes)).delay_s
            errand.expect(f"how late the last rank came to call {number}", delay_s, times_s[-1] - times_s[-2])
    if not game.died:
        asked = {number for rank in game.ranks for number in rank.asked if rank.outcome(number)}
        texts = [[record.text for record in rank.records if record.verdict == SEEN] for rank in game.ranks]
        seen = {len(" ".join(each).split()) // 2 for each in texts}
        errand.expect("of how many calls that were not asked about ranks hear", seen, {len(game.came.keys() - asked)})


def memory(errand: Errand) -> None:
    """Of calls of ever new signatures the board remembers the latest, and so many only."""
    past, many = PastGaps(), errand.rng.randint(MAX_SIGNATURES + 1, 3 * MAX_SIGNATURES)
    for index in range(many):
        past.note(f"signature {index}", {0: 0.0, 1: 1.0})
        past.note("", {0: 0.0, 1: 2.0})
    known = [index for index in range(many) if past.of(f"signature {index}")]
    errand.expect("signatures that are remembered", known, [*range(many - MAX_SIGNATURES, many)])
    errand.expect("what is remembered of calls that are never asked about", [*past.of("")], [])


def seats(errand: Errand) -> None:
    """At a board of threads or at the store's, ranks begin without one that is late, as soon as its window is over."""
    rng, machine = errand.rng, errand.machine
    size, policy = rng.randint(2, 4), to_text(Policy(0.1, (Option("join", 0.06, 0.05),)))
    late, clients = rng.randrange(size), list[StoreClient]()
    taken: list[Seat] = []
    if rng.random() < 0.5:
        boards = LocalBoards(machine)
        taken += [LocalSeat(boards, "a board", rank, size) for rank in range(size)]
    else:
        errand.start_store()
        for rank in range(size):
            clients.append(StoreClient((HOST, PORT), TOKEN, TIMEOUT_S, machine=machine))
            clients[-1].call(Kind.JOIN, [rank, size], TIMEOUT_S)
            taken.append(_store_seat(clients[-1], rank, size))
    for rank, seat in enumerate(taken):
        if rank != late:
            seat.arrive(1, "a call", policy)
    told: dict[int, list[int]] = {rank: [] for rank in range(size)}

    def listen() -> None:
        machine.sleep(errand.rng.uniform(0.03, 0.06))
        for rank, seat in enumerate(taken):
            while (record := seat.take()) is not None:
                told[rank].append(record.verdict)

    listen()
    begun = {rank: [] if rank == late else [WITHOUT] for rank in range(size)}
    errand.expect("what ranks hear before the late one comes", told, begun)
    taken[late].arrive(1, "a call", policy)
    listen()
    errand.expect("what ranks hear", told, {rank: [*each, JOIN] for rank, each in begun.items()})
    for client in clients:
        client.close()


def _store_seat(client: StoreClient, rank: int, size: int) -> StoreSeat:
    """A seat whose owner looks at nothing else."""
    records: dict[bytes, deque[Record]] = {}

    def look() -> None:
        client.pump()
        while client.notices:
            kind, body = client.notices.popleft()
            if kind == Kind.RECORD_NOTICE:
                key, record = unpack_record(body)
                records[key].append(record)

    return StoreSeat(client, look, records, "a board", rank, size)
