"""Runs a Scenario, and says what in it was wrong."""

import gc
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

import numpy as np

from lanterne.bench.scores.simulation.baton import Actor, Baton, Killed
from lanterne.bench.scores.simulation.network import SimulatedSocket
from lanterne.bench.scores.simulation.scenario import STORE, Event, Scenario, name_of
from lanterne.bench.scores.simulation.simulated_machine import SimulatedMachine, guard
from lanterne.collectives.communicator import Communicator
from lanterne.collectives.execute.communicator_base import CONTROL_LANE
from lanterne.collectives.schedule.cost import CostModel
from lanterne.errors import LanterneError, PeerFailed, TransportTimeout
from lanterne.transport import wire
from lanterne.transport.base import LANE_BITS
from lanterne.transport.local import LocalTransport, LocalWorld
from lanterne.transport.rails.rail import GREETING
from lanterne.transport.rank_group import Group
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.members import Members
from lanterne.transport.store.server import Store
from lanterne.transport.tcp import duplex
from lanterne.transport.tcp.over_tcp import TcpTransport

TOKEN = "a simulated job's token"
ADDRESS = "10.0.0.1", 4444
# Of every wait; and until when all is to be over, whatever happens.
TIMEOUT_S, LIMIT_S = 5.0, 300.0
# So that calls of BOARD_COUNT elements ask the board who is late.
MODEL, BOARD_COUNT = CostModel(1e-4, 1 / 50e6), 1 << 15
# Who falls within so many seconds after another may be named in its place.
TOGETHER_S = 1.5


@dataclass
class RankOutcome:
    """How a rank ended: its first `error`, calls that were `complete`, and what it was given by each, with a copy.

    After an error it goes on with whoever lives: `groups` it went on with, and what that failed with, `gave_up`.
    """

    error: BaseException | None = None
    error_s: float = 0.0
    groups: list[tuple[int, ...]] = field(default_factory=list)
    gave_up: BaseException | None = None
    complete: int = 0
    has_opened: bool = False
    has_ended: bool = False
    kept: list[tuple[Any, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What came of a Scenario.

    Attributes: `problems`, one line each, none if all is well; `digest`, of all steps; `seconds`, simulated; `trace`,
    lines of (seconds, who, what), if asked for; `steps`, of all processes.
    """

    scenario: Scenario
    problems: tuple[str, ...]
    digest: int
    seconds: float
    steps: int
    trace: tuple[tuple[float, str, str], ...] = ()


class World:
    """A scenario as it happens."""

    def __init__(self, scenario: Scenario, *, traced: bool = False) -> None:
        self.scenario = scenario
        self.baton = Baton(scenario.seed, traced=traced)
        self.machine = SimulatedMachine(self.baton)
        self.ranks = [RankOutcome() for _ in range(scenario.ranks)]
        self.actors: dict[int, Actor] = {}
        # Who fell, and when, in order; of those that froze, when they went on.
        self.fallen: list[tuple[float, int]] = []
        self.thawed_s: dict[int, float] = {}
        self.problems: list[str] = []
        self._members: Members | None = None
        self._local = LocalWorld(scenario.ranks, self.machine) if scenario.transport == "local" else None

    def run(self) -> Outcome:
        """All of it."""
        baton = self.baton
        with guard():
            if self._local is None:
                self.actors[STORE] = baton.start("store", self._store)
            for rank in range(self.scenario.ranks):
                self.actors[rank] = baton.start(f"rank {rank}", partial(self._rank, rank))
            for event in self.scenario.events:
                self._arm(event)
            hanging = baton.run(LIMIT_S)
        self.problems += [f"hang: after {LIMIT_S:g} s: {place}" for place in hanging]
        self._judge()
        steps = sum(actor.steps for actor in baton.actors)
        return Outcome(self.scenario, tuple(self.problems), baton.digest, baton.now_s, steps, tuple(baton.trace))

    # -- the processes

    def _store(self) -> None:
        store = Store(self.machine.listen(*ADDRESS), TOKEN, "members", machine=self.machine)
        self._members = store.members
        store.run()

    def _rank(self, rank: int) -> None:
        outcome = self.ranks[rank]
        try:
            with self._open(rank) as communicator:
                outcome.has_opened = True
                communicator.tuning.adopt(MODEL, "simulated")
                for _ in range(self.scenario.ranks):
                    try:
                        self._call_all(rank, communicator)
                        return
                    except LanterneError as error:
                        self._note(outcome, error)
                        communicator = self._go_on(outcome, communicator)
                self.problems.append(f"endless: rank {rank} does not get through its calls")
        except Killed:
            raise
        except BaseException as error:
            self._note(outcome, error)
        finally:
            outcome.has_ended = not self.baton.current or not self.baton.current.is_killed

    def _call_all(self, rank: int, communicator: Communicator) -> None:
        outcome = self.ranks[rank]
        outcome.complete = 0
        for number, (kind, count) in enumerate(self.scenario.calls):
            self._fail_here(rank, number)
            self.baton.note(f"begins call {number}, {kind} of {count}")
            CALLS[kind.partition(" ")[0]](Call(communicator, number, kind, count, outcome))
            outcome.complete += 1

    def _go_on(self, outcome: RankOutcome, communicator: Communicator) -> Communicator:
        """The communicator of the survivors, who make all calls again."""
        try:
            shrunk = communicator.shrink()
        except LanterneError as error:
            outcome.gave_up = error
            raise
        outcome.groups.append(shrunk.ranks)
        self.baton.note(f"goes on with ranks {shrunk.ranks}")
        return shrunk

    def _note(self, outcome: RankOutcome, error: BaseException) -> None:
        self.baton.note(f"gets {type(error).__name__}: {error}")
        if outcome.error is None:
            outcome.error, outcome.error_s = error, self.baton.now_s

    def _open(self, rank: int) -> Communicator:
        size = self.scenario.ranks
        if self._local is not None:
            transport: Any = LocalTransport(self._local, rank, TIMEOUT_S)
            return Communicator(transport, closes=(transport,))
        client = StoreClient(ADDRESS, TOKEN, TIMEOUT_S, early=True, machine=self.machine)
        group = Group(rank, size, client, timeout_s=TIMEOUT_S)
        try:
            opened = TcpTransport(group, TIMEOUT_S)
        except BaseException:
            group.abandon()
            raise
        return Communicator(opened, ranks_here=size, closes=(opened, group))

    # -- events

    def _arm(self, event: Event) -> None:
        if self._local is not None and event.kind == "kill":
            return  # see _fail_here
        actor = self.actors[event.rank]
        actor.at_step.setdefault(event.step, []).append(lambda: self._befall(event))

    def _fail_here(self, rank: int, number: int) -> None:
        """Over local: the program of a rank that falls raises before this call."""
        if self._local is None:
            return
        for event in self.scenario.events:
            if event.kind == "kill" and event.rank == rank and event.step % len(self.scenario.calls) == number:
                self.fallen.append((self.baton.now_s, rank))
                raise RuntimeError("the program fails")

    def _befall(self, event: Event) -> None:
        baton, actor, network = self.baton, self.actors[event.rank], self.machine.network
        baton.note(f"event: {event}")
        names = frozenset((actor.name, name_of(event.other)))
        if event.kind in ("kill", "restart"):
            self.fallen.append((baton.now_s, event.rank))
            baton.kill(actor)
            network.close_all(actor)
            if event.kind == "restart":
                baton.after(event.seconds, lambda: self._restart(event.rank))
        elif event.kind in ("freeze", "stop"):
            if event.kind == "freeze":
                self.fallen.append((baton.now_s, event.rank))
                self.thawed_s[event.rank] = baton.now_s + event.seconds
            actor.stopped_s = max(actor.stopped_s, baton.now_s + event.seconds)
        elif event.kind in ("cut", "partition"):
            if event.kind == "partition":
                self.fallen += [(baton.now_s, each) for each in (event.rank, event.other) if each != STORE]
            network.cuts[names] = max(network.cuts.get(names, 0.0), baton.now_s + event.seconds)
        else:
            network.delays[actor.name] = event.seconds

    def _restart(self, rank: int) -> None:
        def again() -> None:
            has_joined = self._members is not None and self._members.epoch.knows(rank)
            try:
                client = StoreClient(ADDRESS, TOKEN, TIMEOUT_S, machine=self.machine)
                Group(rank, self.scenario.ranks, client, timeout_s=TIMEOUT_S)
            except LanterneError:
                return
            if has_joined:
                self.problems.append(f"restart: rank {rank} joined the job a second time")

        if not self.baton.is_over:
            self.baton.start(f"rank {rank} again", again)

    # -- what is to hold

    def _judge(self) -> None:
        fell = {rank for _, rank in self.fallen}
        for rank, outcome in enumerate(self.ranks):
            self.problems += [f"wrong: rank {rank}: {line}" for line in outcome.wrong]
            for array, copy in outcome.kept:
                if not np.array_equal(array, copy):
                    self.problems.append(f"written later: rank {rank}: an array changed after its call had returned")
            actor = self.actors[rank]
            if actor.error is not None:
                self.problems.append(f"crash: rank {rank}: {type(actor.error).__name__}: {actor.error}")
            if rank in fell or actor.is_killed:
                continue
            self._judge_error(rank, outcome)
            self._judge_end(rank, outcome)
            left = [sock for sock in self.machine.network.by_fd.values() if sock.owner is actor]
            if left:
                self.problems.append(f"descriptors: rank {rank} leaves {len(left)} of {left[0].peer_name} open")
        store = self.actors.get(STORE)
        if store is not None and store.error is not None:
            self.problems.append(f"crash: store: {type(store.error).__name__}: {store.error}")
        for sock in self.machine.network.opened:
            self._judge_stream(sock)
        if self._local is not None and not fell:
            # Receives of control messages stay posted.
            keys = [key for key in self._local.unmatched if key[2] & ((1 << LANE_BITS) - 1) != CONTROL_LANE]
            if keys:
                self.problems.append(f"memory: messages are left of (source, destination, tag) {keys}")

    def _judge_error(self, rank: int, outcome: RankOutcome) -> None:
        error = outcome.error
        if error is None:
            return
        what = f"rank {rank}: {type(error).__name__}: {error}"
        if not isinstance(error, LanterneError):
            self.problems.append(f"crash: {what}")
        elif not self.fallen:
            # Stops add up where ranks wait for each other.
            if sum(event.seconds for event in self.scenario.events) < TIMEOUT_S - TOGETHER_S:
                self.problems.append(f"false alarm: {what}")
        elif not self._is_excused(rank):
            before = [each for at_s, each in self.fallen if at_s <= outcome.error_s]
            # One that froze first may have gone on by then.
            down = [each for each in self.fallen if self.thawed_s.get(each[1], inf) > outcome.error_s] or self.fallen
            firsts = {each for at_s, each in down if at_s <= down[0][0] + TOGETHER_S}
            if not named(error) & set(before):
                self.problems.append(f"nobody named: {what}; fell: {sorted(set(before))}")
            elif not named(error) & firsts:
                self.problems.append(f"second named: {what}; first fell {sorted(firsts)}")

    def _judge_end(self, rank: int, outcome: RankOutcome) -> None:
        """Whoever lives gets through all calls, with the same survivors as they."""
        befallen = {rank for event in self.scenario.events for rank in (event.rank, event.other)}
        if rank in befallen or not all(each.has_opened for each in self.ranks):
            return
        if outcome.gave_up is not None:
            self.problems.append(f"gave up: rank {rank}: {type(outcome.gave_up).__name__}: {outcome.gave_up}")
        elif outcome.has_ended and outcome.complete < len(self.scenario.calls):
            self.problems.append(f"lost: rank {rank} ended after {outcome.complete} calls")
        for group in outcome.groups:
            for other in group:
                if other not in befallen and group not in self.ranks[other].groups:
                    self.problems.append(f"apart: rank {rank} goes on with ranks {group}, rank {other} does not")

    def _is_excused(self, rank: int) -> bool:
        """Whether a rank cannot know who fell.

        Because something befell itself. Because a path was cut for long: all are in the same call then, and nobody is
        absent. Or because somebody froze while rails were made: ranks make theirs one after the other, and who waits
        for one serves nobody, so who is held up looks as who holds up.
        """
        kinds = {event.kind for event in self.scenario.events}
        return (
            rank in {event.rank for event in self.scenario.events}
            or "partition" in kinds
            or ("freeze" in kinds and not all(each.has_opened for each in self.ranks))
        )

    def _judge_stream(self, sock: SimulatedSocket) -> None:
        """Over a connection no message is sent twice."""
        if sock.owner.name == "store" or sock.peer_name == "store":
            return
        stream = bytes(sock.sent)
        # Of who connected: an answer and a greeting; of who accepted: a challenge and a verdict.
        start = wire.CHALLENGE_NBYTES + wire.VERDICT_NBYTES if sock.was_accepted else wire.ANSWER_NBYTES + GREETING.size
        seen: set[tuple[int, int]] = set()
        while start + duplex.HEADER.size <= len(stream):
            kind, tag, number, nbytes = duplex.HEADER.unpack_from(stream, start)
            start += duplex.HEADER.size
            if kind == duplex.DATA:
                start += nbytes
                if (tag, number) in seen:
                    ends = f"{sock.owner.name} to {sock.peer_name}"
                    self.problems.append(f"sent twice: {ends}: message {number} of tag {tag}")
                    return
                seen.add((tag, number))


def named(error: BaseException) -> set[int]:
    """The ranks that an error blames."""
    if isinstance(error, PeerFailed):
        return {error.rank}
    if isinstance(error, TransportTimeout) and error.peers:
        return set(error.peers)
    return {int(text) for text in re.findall(r"rank (\d+)", str(error))}


# -- what ranks call


@dataclass
class Call:
    """A call of a rank: what it gives and is to get."""

    communicator: Communicator
    number: int
    kind: str
    count: int
    outcome: RankOutcome

    def give(self, rank: int | None = None, count: int | None = None) -> Any:
        """What a rank, this one if it is None, gives: int64 of `count` elements."""
        rank = self.communicator.rank if rank is None else rank
        return np.arange(count or self.count, dtype=np.int64) % 13 + 100 * rank + 10_000 * self.number

    def every(self, count: int | None = None) -> Any:
        """What all ranks give, one row each."""
        return np.stack([self.give(rank, count) for rank in range(self.communicator.world_size)])

    def keep(self, got: Any, expected: Any) -> None:
        """`got` is complete."""
        wrong = int((got != expected).sum())
        if wrong:
            self.outcome.wrong.append(f"call {self.number}, {self.kind} of {self.count}: {wrong} wrong elements")
        self.outcome.kept.append((got, got.copy()))


def _all_reduce(call: Call) -> None:
    out = np.full(call.count, -1, np.int64)
    call.communicator.all_reduce(call.give(), out, algorithm=call.kind.split()[1])
    call.keep(out, call.every().sum(0))


def _all_gather(call: Call) -> None:
    out = np.full((call.communicator.world_size, call.count), -1, np.int64)
    call.communicator.all_gather(call.give(), out)
    call.keep(out, call.every())


def _reduce_scatter(call: Call) -> None:
    size, rank = call.communicator.world_size, call.communicator.rank
    out = np.full(call.count, -1, np.int64)
    call.communicator.reduce_scatter(call.give(count=size * call.count), out)
    call.keep(out, call.every(size * call.count).sum(0)[rank * call.count : (rank + 1) * call.count])


def _broadcast(call: Call) -> None:
    root = call.number % call.communicator.world_size
    out = call.give()
    call.communicator.broadcast(out, root=root)
    call.keep(out, call.give(root))


def _barrier(call: Call) -> None:
    call.communicator.barrier()


def _started(call: Call) -> None:
    outs = [np.full(call.count, -1, np.int64) for _ in range(3)]
    requests = [call.communicator.start_all_reduce(call.give(), out, algorithm="ring") for out in outs]
    for request in reversed(requests):
        request.wait()
    for out in outs:
        call.keep(out, call.every().sum(0))


def _neighbours(call: Call) -> None:
    communicator = call.communicator
    size, rank = communicator.world_size, communicator.rank
    out = np.full(call.count, -1, np.int64)
    sent = communicator.start_send(call.give(), (rank + 1) % size)
    communicator.recv(out, (rank - 1) % size)
    sent.wait()
    call.keep(out, call.give((rank - 1) % size))


def _board(call: Call) -> None:
    gives = [(np.arange(BOARD_COUNT) % 13 + rank).astype(np.float32) for rank in range(call.communicator.world_size)]
    out = np.full(BOARD_COUNT, -1, np.float32)
    call.communicator.all_reduce(gives[call.communicator.rank], out)
    call.keep(out, np.sum(gives, 0))


CALLS: dict[str, Callable[[Call], None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "barrier": _barrier,
    "started": _started,
    "neighbours": _neighbours,
    "board": _board,
}


def run(scenario: Scenario, *, traced: bool = False) -> Outcome:
    """What comes of `scenario`: the same each time.

    Raises:
        Escaped: a process goes around its world.
    """
    # What a collection calls must not depend on what went before.
    gc.disable()
    try:
        return World(scenario, traced=traced).run()
    finally:
        gc.enable()
