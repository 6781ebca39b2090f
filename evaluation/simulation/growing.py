"""Simulated jobs that outlive their dead and grow: ranks fall, come back, are cut off; new ones and spares come.

The store dies, too, in some, and another one comes at its address, which knows nothing. In some a path is cut for long,
in both directions or one, or all paths to the host of the store. In some the ranks agree after each step whether all
have done it, the store's death while they do included.

The program is the one of docs/going-on.md: after each of its steps the ranks look who waits to be taken in, after an
error those that live go on, and whoever is new gets the state of another. A seed decides all, as in scenario.py.
"""

import gc
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import chain, combinations
from operator import and_
from typing import Any

import numpy as np

from evaluation.simulation.baton import Actor, Baton, Killed
from evaluation.simulation.simulated_machine import SimulatedMachine, guard
from lanterne import __version__
from lanterne.collectives.communicator import Communicator
from lanterne.collectives.growth import enter, open_named
from lanterne.collectives.schedule.cost import CostModel
from lanterne.errors import LanterneError, PeerFailed, TransportError
from lanterne.transport.rank_group import Group
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.connection import StoreLost
from lanterne.transport.store.server import Store
from lanterne.transport.store.terms import ANY, SPARE, Terms
from lanterne.transport.tcp.over_tcp import TcpTransport

TOKEN = "a simulated job's token"
ADDRESS = "127.0.0.1", 4444
TERMS = Terms(__version__, "tcp", "simulated")
# Of every wait; until when all is to be over; and how long a rank may wait for a job that goes on, and nobody falls in.
TIMEOUT_S, LIMIT_S, PROMPT_S = 5.0, 400.0, 8.0
MODEL = CostModel(1e-4, 1 / 50e6)
RANKS, STEPS, STEP_S = (2, 6), (10, 50), (0.01, 0.4)
# How likely a process is killed, frozen or cut off from another; and one that was killed is started again, how soon.
FALLS = {"kill": 0.3, "freeze": 0.05, "cut": 0.08}
AGAIN, AGAIN_S = 0.8, (0.0, 2.0)
FROZEN_S, CUT_S = (8.0, 30.0), (0.001, 2.5)
# The step of a process, as the baton counts them, at which it falls: between these, EARLY of them while ranks meet.
FALLS_AT = 20, 400, 9000
EARLY = 0.35
# How often the store dies, at which of its steps, and how soon another is started at its address, as our launcher does.
STORE_DEATHS = 0, 0, 0, 1, 2
STORE_FALLS_AT, STORE_AGAIN_S = (20, 2500), (0.01, 0.6)
MOST_PROCESSES = 14
# What is cut for longer than TCP waits: nothing; the path between two, or from one to another, the store among them;
# all paths between the store's host, with rank 0, and all others, or those from it. When, and for how long.
LASTING = "", "", "pair", "one way", "host", "host one way"
LASTING_AT_S, LASTING_S = (0.05, 5.0), (8.0, 60.0)
STORE, STORE_HOST = "store", "rank 0"
# For what the store refuses nobody that asks as our processes do.
NEVER_REFUSED = "got a second rank from one client", "got place ", "got more than "
# Of cuts that TCP survives.
ONE_WAY_PART = 0.4
# Of jobs that agree after each step whether all have done it, and on bits that each rank draws.
AGREEING_PART = 0.4
DONE, DRAWN_BITS = 1, 16


class ElsewhereError(TransportError):
    """A step was not done by a rank that lives, and so by none."""


@dataclass
class GrowingProcess:
    """A process that was a rank, or wanted to be.

    Attributes: `place`: that which it has, claims, or ANY or SPARE; `knows`, whether it has what was computed so far.
    """

    name: str
    place: int
    actor: Actor | None = None
    befallen: str = ""
    asked_s: float | None = None  # to be taken in
    entered_s: float | None = None
    knows: bool = False
    steps: int = 0
    total: float = 0.0
    error: BaseException | None = None
    told: list[TransportError] = field(default_factory=list)  # after which it has shrunk
    groups: list[tuple[tuple[int, int], int, tuple[int, ...]]] = field(default_factory=list)
    # By communicator and how often it has agreed: what this one gave; and got, if it did.
    gave: dict[tuple[tuple[int, int], int], int] = field(default_factory=dict)
    got: dict[tuple[tuple[int, int], int], int] = field(default_factory=dict)


@dataclass(frozen=True)
class GrowthOutcome:
    """What came of a seed: `problems`, none if all is well; `ranks` at the start, those that were `taken_in`, `epochs`
    that began; simulated `seconds` and `steps`; names of the `events` that came."""

    seed: int
    problems: tuple[str, ...]
    digest: int
    ranks: int
    taken_in: int
    epochs: int
    seconds: float
    steps: int
    events: tuple[str, ...]
    trace: tuple[tuple[float, str, str], ...] = ()


class GrowingWorld:
    """A job as it happens; events with names in `without` do not.

    Attributes: `ranks` at the start, who do `steps` steps each; `timeout_s` of every wait; `processes`, every one ever
    that is, was or wants to be a rank; `events`, names of those that came; `problems`, a line each; `fell_s`, when
    anything befell anybody, and `over_s`, when the first was done, in simulated seconds; `store_deaths`, how often the
    store is to die, `stores`, how many were started; `lasting`, of LASTING; `agrees`, whether ranks agree on each step.
    Each of `rng`, `store_rng`, `cut_rng` and `agree_rng` is of its own, so that all else of a seed is the same without
    deaths, cuts or agreements.
    """

    def __init__(self, seed: int, *, without: frozenset[str] = frozenset(), traced: bool = False) -> None:
        self.seed = seed
        self.without = without
        self.events: list[str] = []
        self.rng: random.Random = random.Random(f"growing {seed}")
        self.baton: Baton = Baton(seed, traced=traced)
        self.machine: SimulatedMachine = SimulatedMachine(self.baton)
        self.ranks: int = self.rng.randint(*RANKS)
        self.steps: int = self.rng.randint(*STEPS)
        self.timeout_s: float = TIMEOUT_S
        self.processes: list[GrowingProcess] = []
        self.problems: list[str] = []
        self.fell_s: list[float] = []
        self.over_s: float | None = None
        self.store_rng: random.Random = random.Random(f"the store of {seed}")
        self.store_deaths = self.store_rng.choice(STORE_DEATHS)
        self.stores: int = 0
        self.cut_rng: random.Random = random.Random(f"the cuts of {seed}")
        self.lasting = self.cut_rng.choice(LASTING)
        self.agree_rng: random.Random = random.Random(f"the agreements of {seed}")
        self.agrees: bool = self.agree_rng.random() < AGREEING_PART
        # Until when the store's host is cut off.
        self._apart_until_s = 0.0

    def run(self) -> GrowthOutcome:
        """All of it."""
        rng, baton = self.rng, self.baton
        with guard():
            self._start_store()
            for rank in range(self.ranks):
                self._begin(f"rank {rank}", rank, joins=False)
            for number in range(rng.choice((0, 0, 1, 1, 2))):
                place = rng.choice((ANY, SPARE))
                baton.after(rng.uniform(0, 4), partial(self._come, f"new {self.ranks + number}", place))
            if self.lasting:
                baton.after(self.cut_rng.uniform(*LASTING_AT_S), self._cut_for_long)
            hanging = baton.run(LIMIT_S)
        self.problems += [f"hang: after {LIMIT_S:g} s: {place}" for place in hanging]
        self.problems += judge_growth(self)
        taken_in = sum(process.asked_s is not None and bool(process.groups) for process in self.processes)
        epochs = max((key[0] for process in self.processes for key, _, _ in process.groups), default=0)
        steps = sum(actor.steps for actor in baton.actors)
        what = tuple(self.problems), baton.digest, self.ranks, taken_in, epochs, baton.now_s, steps
        return GrowthOutcome(self.seed, *what, tuple(self.events), tuple(baton.trace))

    # -- the processes

    def _start_store(self) -> None:
        if self.baton.is_over:
            return
        store = self.baton.start(STORE, partial(self._store, self.stores))
        if self.stores < self.store_deaths:
            store.at_step[self.store_rng.randint(*STORE_FALLS_AT)] = [partial(self._end_store, store)]
        self.stores += 1

    def _store(self, term: int) -> None:
        Store(self.machine.listen(*ADDRESS), TOKEN, "members", machine=self.machine, term=term).run()

    def _end_store(self, store: Actor) -> None:
        if not self._happens(f"death {self.stores} of the store"):
            return
        self.fell_s.append(self.baton.now_s)
        self.baton.kill(store)
        self.machine.network.close_all(store)
        self.baton.after(self.store_rng.uniform(*STORE_AGAIN_S), self._start_store)

    def client(self, *, early: bool) -> StoreClient:
        """A connection to the store; `early`: it may not have started yet."""
        returns = self.store_deaths > 0
        return StoreClient(ADDRESS, TOKEN, self.timeout_s, early=early, returns=returns, machine=self.machine)

    def open(self, rank: int) -> Communicator:
        """That of all ranks the job begins with, on `rank`."""
        group = Group(rank, self.ranks, self.client(early=True), timeout_s=self.timeout_s)
        try:
            opened = TcpTransport(group, self.timeout_s)
        except BaseException:
            group.abandon()
            raise
        communicator = Communicator(opened, ranks_here=self.ranks, hosts=group.hosts, closes=(opened, group))
        communicator.tuning.adopt(MODEL, "simulated")
        return communicator

    def _happens(self, what: str) -> bool:
        """Whether an event befalls this job: it is noted."""
        if what in self.without:
            return False
        self.events.append(what)
        self.baton.note(f"event: {what}")
        return True

    def _come(self, name: str, place: int) -> None:
        if not self.baton.is_over and self._happens(f"{name} comes after {self.baton.now_s:.3f} s"):
            self._begin(name, place)

    def _begin(self, name: str, place: int, *, joins: bool = True) -> None:
        if len(self.processes) == MOST_PROCESSES or self.baton.is_over:
            return
        process = GrowingProcess(name, place)
        self.processes.append(process)
        process.actor = self.baton.start(name, partial(GrowingProgram(self, process).run, joins=joins))
        self._keep_apart()
        for kind, likely in FALLS.items():
            first, soon, last = FALLS_AT
            step = self.rng.randint(first, soon if self.rng.random() < EARLY else last)
            if self.rng.random() < likely:
                process.actor.at_step.setdefault(step, []).append(partial(self._befall, process, kind))

    def _befall(self, process: GrowingProcess, kind: str) -> None:
        baton, rng, actor = self.baton, self.rng, process.actor
        assert actor is not None
        if not self._happens(f"{kind} of {process.name}"):
            return
        process.befallen = process.befallen or kind
        self.fell_s.append(baton.now_s)
        if kind == "kill":
            baton.kill(actor)
            self.machine.network.close_all(actor)
            if rng.random() < AGAIN:
                baton.after(rng.uniform(*AGAIN_S), partial(self._begin, f"{process.name}'", process.place))
        elif kind == "freeze":
            actor.stopped_s = baton.now_s + rng.uniform(*FROZEN_S)
        else:
            others = [each for each in self.processes if each is not process and each.actor is not None]
            one_way = self.cut_rng.random() < ONE_WAY_PART
            self._cut(process, rng.choice([*others, None]), rng.uniform(*CUT_S), one_way=one_way)

    def _cut(self, one: GrowingProcess, other: GrowingProcess | None, lasting_s: float, *, one_way: bool) -> None:
        """Cut the path from a process to another, None: to the store, and, but `one_way`, back."""
        one.befallen = one.befallen or "cut"
        if other is not None:
            other.befallen = other.befallen or "cut"
        there = STORE if other is None else other.name
        self.machine.network.cut(one.name, there, self.baton.now_s + lasting_s, one_way=one_way)

    def _cut_for_long(self) -> None:
        rng, one_way = self.cut_rng, self.lasting.endswith("one way")
        if self.baton.is_over or not self._happens(f"lasting cut: {self.lasting}"):
            return
        self.fell_s.append(self.baton.now_s)
        lasting_s = rng.uniform(*LASTING_S)
        if self.lasting.startswith("host"):
            self._apart_until_s = self.baton.now_s + lasting_s
            self._keep_apart()
        else:
            one = rng.choice(self.processes)
            other = rng.choice([*(each for each in self.processes if each is not one), None])
            self._cut(one, other, lasting_s, one_way=one_way)

    def _keep_apart(self) -> None:
        """While the store's host is cut off: from all that there are now."""
        if self._apart_until_s <= self.baton.now_s:
            return
        there = [STORE, *(each.name for each in self.processes if each.name.startswith(STORE_HOST))]
        for process in self.processes:
            process.befallen = process.befallen or "cut"
            for name in there if process.name not in there else ():
                one_way = self.lasting.endswith("one way")
                self.machine.network.cut(name, process.name, self._apart_until_s, one_way=one_way)


class GrowingProgram:
    """What a process of a growing job does, from its start to its end.

    Args:
        world: the job. process: what comes of it is noted there.
    """

    def __init__(self, world: GrowingWorld, process: GrowingProcess) -> None:
        self._world = world
        self._baton = world.baton
        self._process = process

    def run(self, *, joins: bool) -> None:
        """All of it; `joins`: it asks to be taken in, else it is there from the start."""
        try:
            self._work(self._join() if joins else self._world.open(self._process.place), joins)
        except Killed:
            raise
        except BaseException as error:
            self._baton.note(f"ends with {type(error).__name__}: {error}")
            self._process.error = error

    def _join(self) -> Communicator:
        self._process.asked_s = self._baton.now_s
        while True:
            client = self._world.client(early=False)
            try:
                group, agreed = Group.taken_in(client, TERMS, LIMIT_S / 4, self._world.timeout_s, self._process.place)
            except BaseException as error:
                client.close()
                # As init(join=...): whoever was to be taken in beside it may have died.
                if isinstance(error, PeerFailed) or (isinstance(error, StoreLost) and client.returns):
                    continue
                raise
            found = enter(group, open_named(agreed.transport), Communicator._of_epoch, self._world.timeout_s)
            if found is not None:
                self._process.entered_s = self._baton.now_s
                return found

    def _work(self, communicator: Communicator, is_new: bool) -> None:
        world, process = self._world, self._process
        agreed, step_s = False, world.rng.uniform(*STEP_S)
        process.knows = not is_new
        with communicator:
            while True:
                try:
                    if not agreed:
                        self._note_group(communicator)
                        self._agree(communicator)
                        process.knows = agreed = True
                    if process.steps == world.steps:
                        world.over_s = world.over_s or self._baton.now_s
                        return
                    if world.agrees:
                        self._agreed_step(communicator)
                    else:
                        self._step(communicator)
                    world.machine.sleep(step_s)
                    after = communicator.grow(TERMS.model)
                    agreed = after is communicator
                except TransportError as error:
                    self._note_error(error)
                    after, agreed = communicator.shrink(), False
                communicator = after

    def _note_error(self, error: TransportError) -> None:
        self._baton.note(f"gets {type(error).__name__}: {error}")
        if not isinstance(error, ElsewhereError):
            self._process.told.append(error)
        if isinstance(error, PeerFailed) and error.reason.startswith("store "):
            self._world.problems.append(f"blamed: {self._process.name}: {error}")

    def _note_group(self, communicator: Communicator) -> None:
        self._baton.note(f"is rank {communicator.rank} of {communicator.ranks}, epoch {communicator.epoch}")
        key = communicator.epoch, communicator.communicator_id
        self._process.groups.append((key, communicator.rank, communicator.ranks))

    def _agree(self, communicator: Communicator) -> None:
        """Have the state of whoever is furthest; where all that had one have fallen, begin anew."""
        process = self._process
        told: Any = np.empty((communicator.world_size, 3))
        communicator.all_gather(np.array([process.knows, process.steps, process.total]), told)
        known = told[told[:, 0] == 1]
        if not len(known):
            here, _, _ = process.groups[-1]
            live = [each.name for each in self._world.processes if self._has_state_elsewhere(each, here)]
            if live:
                self._world.problems.append(f"lost: {process.name}: nobody here knows the state of {live}")
            return
        for steps in set(known[:, 1]):
            if len(set(known[known[:, 1] == steps, 2])) > 1:
                self._world.problems.append(f"apart: {process.name}: states after step {steps:g} are {known[:, 2]}")
        furthest = known[known[:, 1].argmax()]
        process.steps, process.total = int(furthest[1]), float(furthest[2])

    def _has_state_elsewhere(self, process: GrowingProcess, here: tuple[int, int]) -> bool:
        """Whether it has what others could go on with, lives, and is not in the communicator `here`."""
        goes_on = process.knows and not process.befallen and process.steps < self._world.steps
        return goes_on and any(key != here for key, _, _ in process.groups[-1:])

    def _agreed_step(self, communicator: Communicator) -> None:
        """A step, and whether all that live have done it.

        Raises:
            TransportError: what it failed with here.
            ElsewhereError: it did not fail here, but on another one.
        """
        process, failure = self._process, None
        try:
            self._step(communicator)
        except TransportError as error:
            failure = error
        drawn = self._world.agree_rng.getrandbits(DRAWN_BITS) & ~DONE
        key = communicator.epoch, communicator.communicator_id
        which = key, sum(key == other for other, _ in process.gave)
        process.gave[which] = drawn | (DONE if failure is None else 0)
        process.got[which] = communicator.agree(process.gave[which])
        if failure is not None:
            raise failure
        if not process.got[which] & DONE:
            raise ElsewhereError("the step failed elsewhere")

    def _step(self, communicator: Communicator) -> None:
        process = self._process
        give, out = process.steps + 1.0, np.full(500, -1.0)
        communicator.all_reduce(np.full(500, give), out, algorithm="ring")
        if not (out == give * communicator.world_size).all():
            self._world.problems.append(f"wrong: {process.name}: step {process.steps} gave {out[0]:g}")
        process.steps, process.total = process.steps + 1, process.total + float(out[0])


def judge_growth(world: GrowingWorld) -> Iterator[str]:
    """What did not hold of what has to."""
    seen: dict[tuple[tuple[int, int], int], str] = {}
    ranks: dict[tuple[int, int], tuple[int, ...]] = {}
    yield from judge_agreements(world)
    for process in world.processes:
        actor = process.actor
        assert actor is not None
        if actor.error is not None:
            yield f"crash: {process.name}: {type(actor.error).__name__}: {actor.error}"
        if process.error is not None and not isinstance(process.error, LanterneError):
            yield f"crash: {process.name}: {type(process.error).__name__}: {process.error}"
        if any(why in str(process.error) for why in NEVER_REFUSED):
            yield f"refused: {process.name}: {process.error}"
        for key, rank, members in process.groups:
            other = seen.setdefault((key, rank), process.name)
            if other != process.name:
                yield f"twice: {process.name} and {other} are rank {rank} of communicator {key}"
            if ranks.setdefault(key, members) != members:
                yield f"apart: {process.name} has ranks {members} in {key}, others {ranks[key]}"
        if not process.befallen:
            yield from _judge_end(world, process)
            left = [sock for sock in world.machine.network.by_fd.values() if sock.owner is actor]
            if left and not actor.is_killed:
                yield f"descriptors: {process.name} leaves {len(left)} of {left[0].peer_name} open"


def judge_agreements(world: GrowingWorld) -> Iterator[str]:
    """All that got an agreement have got the same: the bits that all of them gave, and of the dead all or none."""
    for which in sorted({which for process in world.processes for which in process.got}):
        got = {process.name: process.got[which] for process in world.processes if which in process.got}
        gave = {process.name: process.gave[which] for process in world.processes if which in process.gave}
        told, *others = set(got.values())
        dead = [flags for name, flags in gave.items() if name not in got]
        of_all = reduce(and_, (gave[name] for name in got))
        counted = chain.from_iterable(combinations(dead, number) for number in range(len(dead) + 1))
        possible = {reduce(and_, each, of_all) for each in counted}
        if others or told not in possible:
            yield f"disagree: agreement {which}: gave {gave}, got {got}"


def _judge_end(world: GrowingWorld, process: GrowingProcess) -> Iterator[str]:
    """Whom nothing befell gets to the end; whoever asked in time is taken in."""
    error = f"{type(process.error).__name__}: {process.error}"
    if process.asked_s is None or process.groups:
        # Before all had joined a death ends the job, as ever.
        if process.error is not None and process.groups:
            yield f"gave up: {process.name}: {error}"
    elif process.place != SPARE and world.over_s is not None:
        quiet = not any(each.befallen in ("cut", "freeze") for each in world.processes)
        last_s = max([process.asked_s, *(at_s for at_s in world.fell_s if at_s < world.over_s)])
        # Somebody else may stand in for it.
        quiet = quiet and not any(each.place < 0 and each.groups for each in world.processes)
        if quiet and world.over_s - last_s > PROMPT_S and any(each.groups for each in world.processes):
            yield f"left out: {process.name} was not taken in: {error}"


def run(seed: int, *, without: frozenset[str] = frozenset(), traced: bool = False) -> GrowthOutcome:
    """What comes of a seed, where the events with names in `without` do not come: the same each time."""
    gc.disable()
    try:
        return GrowingWorld(seed, without=without, traced=traced).run()
    finally:
        gc.enable()
