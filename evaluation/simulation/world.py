"""Runs a Scenario, and says what in it was wrong."""

import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from evaluation.simulation import services
from evaluation.simulation.baton import Actor, Baton, Escaped, Killed
from evaluation.simulation.calls import CALLS, MODEL, Call, RankOutcome
from evaluation.simulation.delegates import Carrier, DelegateStarter
from evaluation.simulation.fate import Fate
from evaluation.simulation.judge import KILLED, Judge
from evaluation.simulation.scenario import STORE, Scenario
from evaluation.simulation.seats import SeatLog, judge_play, make_play
from evaluation.simulation.services import SERVICES, SimulatedJob, StoreCall
from evaluation.simulation.simulated_machine import SimulatedMachine, guard
from lanterne.collectives.communicator import Communicator
from lanterne.errors import LanterneError
from lanterne.transport.local import LocalTransport, LocalWorld
from lanterne.transport.rails.delegate_transport import Delegates
from lanterne.transport.rails.spare import SpareTransport
from lanterne.transport.rank_group import Group
from lanterne.transport.store.server import Store
from lanterne.transport.tcp.over_tcp import TcpTransport

TOKEN = "a simulated job's token"
ADDRESS = "127.0.0.1", 4444
# Of every wait; and until when all is to be over, whatever happens.
TIMEOUT_S, LIMIT_S = 5.0, 300.0
# Spare rails of each rank.
RAILS = "127.0.1.1", "127.0.2.1"
# How long a vote on the end lasts at most.
VOTE_S = 10.0


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
        self.baton: Baton = Baton(scenario.seed, traced=traced)
        self.machine: SimulatedMachine = SimulatedMachine(self.baton)
        self.ranks: list[RankOutcome] = [RankOutcome() for _ in range(scenario.ranks)]
        self.actors: dict[int, Actor] = {}
        self.problems: list[str] = []
        # By number of a call and of the group that makes it: what ranks did and were told at its board.
        self.plays: defaultdict[tuple[int, int], dict[int, SeatLog]] = defaultdict(dict)
        is_calm = not scenario.events
        self.job: SimulatedJob = SimulatedJob(
            ADDRESS, TOKEN, self.machine, TIMEOUT_S, scenario.seed, scenario.ranks, is_calm
        )
        # By rank.
        self.carriers: dict[int, Delegates] = {}
        self._starter = DelegateStarter(self.machine)
        self.fate: Fate = Fate(scenario, self.machine, self.job, self.actors, self._starter)
        self._local = LocalWorld(scenario.ranks, self.machine) if scenario.transport == "local" else None

    def run(self) -> Outcome:
        """All of it."""
        baton = self.baton
        with guard():
            if self._local is None:
                self.actors[STORE] = baton.start("store", self._store)
            for rank in range(self.scenario.ranks):
                self.actors[rank] = baton.start(f"rank {rank}", partial(self._rank, rank))
            if self.scenario.has("guards"):
                self._start_guards()
            for event in self.scenario.events:
                self.fate.arm(event)
            try:
                hanging = baton.run(LIMIT_S)
            except Escaped as error:  # It may still run: nothing else can be said.
                return self._outcome([f"escaped: {error}"])
        self.problems += [f"hang: after {LIMIT_S:g} s: {place}" for place in hanging]
        self._judge()
        return self._outcome(self.problems)

    def _outcome(self, problems: list[str]) -> Outcome:
        baton = self.baton
        steps = sum(actor.steps for actor in baton.actors)
        return Outcome(self.scenario, tuple(problems), baton.digest, baton.now_s, steps, tuple(baton.trace))

    # -- the processes

    def _store(self) -> None:
        store = Store(self.machine.listen(*ADDRESS), TOKEN, "members", machine=self.machine)
        self.job.members = store.members
        store.run()

    def _start_guards(self) -> None:
        """The processes beside the ranks: a guard for each, and one that watches."""
        problems, start, wake = self.problems, self.baton.start, self.baton.wake
        guards = []
        for rank in range(self.scenario.ranks):
            begin, state = partial(wake, self.actors[rank]), partial(self._end_of, rank)
            guards.append(start(f"guard {rank}", partial(services.guard, self.job, rank, begin, state, problems)))
        is_over = lambda: all(each.has_ended for each in guards)  # noqa: E731
        start("watcher", partial(services.watcher, self.job, is_over))

    def _end_of(self, rank: int) -> tuple[int, str] | None:
        """How a rank's process has ended, as its guard sees it; None: it has not."""
        actor = self.actors[rank]
        if not actor.has_ended:
            return None
        return (137, KILLED) if actor.is_killed else (int(self.ranks[rank].error is not None), "it has ended")

    def _rank(self, rank: int) -> None:
        if self.scenario.has("guards"):
            self.baton.wait(lambda: rank in self.job.guarded, inf)  # It is started by its guard.
        try:
            PROGRAMS.get(self.scenario.transport, World._communicate)(self, rank)
        except Killed:
            raise
        except BaseException as error:
            self._note(self.ranks[rank], error)
        finally:
            self.ranks[rank].has_ended = not self.baton.current or not self.baton.current.is_killed

    def _serve(self, rank: int) -> None:
        """The program of a rank that uses the store only."""
        if any(event.kind == "quit" and event.rank == rank for event in self.scenario.events):
            self.fate.fallen.append((self.baton.now_s, rank))
            return
        outcome, group = self.ranks[rank], self._join(rank)
        with group:
            outcome.has_opened = True
            for number, (kind, count) in enumerate(self.scenario.calls):
                self.baton.note(f"begins call {number}, {kind} of {count}")
                SERVICES[kind](StoreCall(self.job, group, number, kind, count, outcome, self.plays[number, 0]))
                outcome.complete += 1
            group.ends_together = self.scenario.has("end")
        if group.ends_together:
            self._vote(rank, group)

    def _carry(self, rank: int) -> None:
        """The program of a rank with delegates."""
        outcome, group = self.ranks[rank], self._join(rank)
        carrier = Carrier(group, self.machine, outcome, TIMEOUT_S)
        self.carriers[rank] = opened = carrier.open(RAILS, self._starter)
        with group, closing(opened):
            outcome.has_opened = True
            for number, (kind, count) in enumerate(self.scenario.calls):
                self.baton.note(f"begins call {number}, {kind} of {count}")
                carrier.carry(number, kind, count)
                outcome.complete += 1
            group.barrier()

    def _join(self, rank: int) -> Group:
        return Group(rank, self.scenario.ranks, self.job.connect(), timeout_s=TIMEOUT_S)

    def _vote(self, rank: int, group: Group) -> None:
        """On how to end: with an odd seed one rank will not."""
        seed, began_s = self.scenario.seed, self.baton.now_s
        willing = seed % 2 == 0 or rank != seed % self.scenario.ranks
        if not willing:
            self.machine.sleep(VOTE_S / 20)  # The others have voted.
        together = group.end_together(willing, VOTE_S)
        if self.job.calm and together != (seed % 2 == 0):
            self.problems.append(f"vote: rank {rank} got {together}")
        if self.job.calm and self.baton.now_s > began_s + VOTE_S / 2:
            self.problems.append(f"vote: rank {rank} got it after {self.baton.now_s - began_s:.1f} s")

    def _communicate(self, rank: int) -> None:
        """The program of a rank that makes calls, and goes on with whoever lives."""
        outcome = self.ranks[rank]
        with self._open(rank) as first:
            communicator, outcome.has_opened = first, True
            communicator.tuning.adopt(MODEL, "simulated")
            for _ in range(self.scenario.ranks):
                try:
                    self._call_all(rank, communicator)
                    return
                except LanterneError as error:
                    self._note(outcome, error)
                    communicator = self._go_on(outcome, communicator)
            self.problems.append(f"endless: rank {rank} does not get through its calls")

    def _call_all(self, rank: int, communicator: Communicator) -> None:
        outcome = self.ranks[rank]
        outcome.complete = 0
        for number, (kind, count) in enumerate(self.scenario.calls):
            self.fate.fails_here(rank, number)
            self.baton.note(f"begins call {number}, {kind} of {count}")
            logs = self.plays[number, len(outcome.groups)]
            CALLS[kind.partition(" ")[0]](
                Call(communicator, number, kind, count, outcome, self.scenario.seed, logs, len(outcome.groups))
            )
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
        if self._local is not None:
            transport: Any = LocalTransport(self._local, rank, TIMEOUT_S)
            return Communicator(transport, closes=(transport,))
        group = self._join(rank)
        try:
            opened: Any = TcpTransport(group, TIMEOUT_S)
            if self.scenario.transport == "spare":
                opened = self._with_rails(rank, opened, group)
        except BaseException:
            group.abandon()
            raise
        return Communicator(opened, ranks_here=self.scenario.ranks, closes=(opened, group))

    def _with_rails(self, rank: int, inner: TcpTransport, group: Group) -> SpareTransport:
        try:
            exchange = lambda told: group.exchange("lanterne/spare", told)  # noqa: E731
            self.fate.spares[rank] = opened = SpareTransport(inner, RAILS, exchange, group.check_peers)
        except BaseException:
            inner.close()
            raise
        return opened

    def _judge(self) -> None:
        judge = Judge(self.scenario, self.ranks, self.actors, self.fate, self.machine.network, TIMEOUT_S)
        judge.judge(self._local)
        self.problems += self.fate.problems + judge.problems
        self._starter.close()
        self.problems += [f"guards: {line}" for line in services.judge_guards(self.job)]
        self.problems += judge_plays(self.scenario, self.plays, calm=self.job.calm)


# Of a rank, by what it stands on; else it is `_communicate`.
PROGRAMS = {"store": World._serve, "delegates": World._carry}


def judge_plays(
    scenario: Scenario, plays: Mapping[tuple[int, int], Mapping[int, SeatLog]], *, calm: bool
) -> Iterator[str]:
    """What is wrong with the plays at boards that all ranks were in: a line each; `plays` as World has them."""
    for (number, _), logs in plays.items():
        count = scenario.calls[number][1]
        if len(logs) == scenario.ranks:
            play = make_play(f"{scenario.seed} {number}", scenario.ranks, count)
            yield from (f"board: of call {number}: {line}" for line in judge_play(play, logs, calm=calm))


def run(scenario: Scenario, *, traced: bool = False) -> Outcome:
    """What comes of `scenario`: the same each time."""
    # What a collection calls must not depend on what went before.
    gc.disable()
    try:
        return World(scenario, traced=traced).run()
    finally:
        gc.enable()
