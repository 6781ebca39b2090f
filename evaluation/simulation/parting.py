"""Simulated jobs on three or more hosts, of which a minority falls or is cut off: the others go on, without a witness.

The store of rank 0's host leads, and on each other host one stands by (transport/store/heirs.py). Hosts are killed or
cut off for good, one alone or several together, that of the store too; so are single ranks and stores. In other seeds
(`one_way`) only paths are cut, each in one direction: nothing comes from hosts, or to them, or from one to one other.
A seed decides all, as in scenario.py.
"""

import gc
import random
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from math import inf

from evaluation.simulation.baton import Actor
from evaluation.simulation.growing import (
    ADDRESS,
    LIMIT_S,
    MODEL,
    TOKEN,
    GrowingProcess,
    GrowingProgram,
    GrowingWorld,
    GrowthOutcome,
    judge_growth,
)
from evaluation.simulation.judge import named
from evaluation.simulation.simulated_machine import guard
from lanterne.collectives.communicator import Communicator
from lanterne.errors import TransportError, TransportTimeout
from lanterne.transport.rank_group import Group
from lanterne.transport.store.connection import StoreLost
from lanterne.transport.store.server import Store
from lanterne.transport.tcp.over_tcp import TcpTransport

HOSTS, RANKS_OF_A_HOST = (3, 3, 4, 5), (1, 1, 2)
FIRST_PORT = 5000
# What befalls hosts, and the steps of one of their processes at which it does.
KINDS = "kill", "cut", "store", "rank"
FALLS_AT = 200, 6000
# What a path that is cut in one direction parts: hosts from all others, or one host from one other.
PATHS = "others", "others", "one"
CUT_AT = 200, 2000
# Of every wait then: long enough that who nothing comes from is found by that, and named.
PATIENT_S = 12.0


class PartingWorld(GrowingWorld):
    """A job as it happens.

    Args: `one_way`: paths are cut in one direction, and nothing else befalls anybody.

    Attributes: `hosts`, with `ranks_of_a_host` each; `actors`, by host: its store, then its ranks; `cut_off`, sets of
    hosts that a cut path has parted from the others; `parted`, pairs of hosts with a direction cut, or both.
    """

    def __init__(self, seed: int, *, one_way: bool = False, traced: bool = False) -> None:
        super().__init__(seed, traced=traced)
        self._one_way = one_way
        if one_way:
            self.timeout_s = PATIENT_S
        self.rng: random.Random = random.Random(f"parting one way {seed}" if one_way else f"parting {seed}")
        self.hosts: int = self.rng.choice(HOSTS)
        self.ranks_of_a_host: int = self.rng.choice(RANKS_OF_A_HOST)
        self.ranks: int = self.hosts * self.ranks_of_a_host
        self.store_deaths = 0
        self.actors: dict[int, list[Actor]] = {host: [] for host in range(self.hosts)}
        self.cut_off: list[set[int]] = []
        self.parted: set[frozenset[int]] = set()

    def run(self) -> GrowthOutcome:
        """All of it."""
        baton = self.baton
        with guard():
            for host in range(self.hosts):
                self.actors[host].append(baton.start(f"store {host}", partial(self._hold, host)))
            for rank in range(self.ranks):
                self._begin_rank(rank)
            if self._one_way:
                self._draw_one_way()
            else:
                self._draw()
            hanging = baton.run(LIMIT_S)
        self.problems.extend(f"hang: after {LIMIT_S:g} s: {place}" for place in hanging)
        self.problems.extend(judge_growth(self))
        self.problems.extend(judge_parting(self))
        steps = sum(actor.steps for actor in baton.actors)
        what = tuple(self.problems), baton.digest, self.ranks, 0, 0, baton.now_s, steps
        return GrowthOutcome(self.seed, *what, (), tuple(baton.trace))

    def _hold(self, host: int) -> None:
        address = (ADDRESS[0], FIRST_PORT + host) if host else ADDRESS
        Store(self.machine.listen(*address), TOKEN, "members", machine=self.machine, stands_by=host > 0).run()

    def _begin_rank(self, rank: int) -> None:
        process = GrowingProcess(f"rank {rank}", rank)
        self.processes.append(process)
        process.actor = self.baton.start(process.name, partial(GrowingProgram(self, process).run, joins=False))
        self.actors[rank // self.ranks_of_a_host].append(process.actor)

    def open(self, rank: int) -> Communicator:
        """As of GrowingWorld, with stores that stand by."""
        host, is_first = divmod(rank, self.ranks_of_a_host)
        group = Group(rank, self.ranks, self.client(early=True), timeout_s=self.timeout_s)
        hosts, group.hosts = group.hosts, tuple(f"host {each // self.ranks_of_a_host}" for each in range(self.ranks))
        try:
            group.name_heirs("" if is_first else f"{ADDRESS[0]}:{FIRST_PORT + host}", self.timeout_s)
            group.hosts = hosts
            opened = TcpTransport(group, self.timeout_s)
        except BaseException:
            group.abandon()
            raise
        communicator = Communicator(opened, ranks_here=self.ranks, hosts=hosts, closes=(opened, group))
        communicator.tuning.adopt(MODEL, "simulated")
        return communicator

    # -- what befalls them

    def _draw(self) -> None:
        """A minority of hosts falls."""
        falling = self.rng.sample(range(self.hosts), self.rng.randint(0, (self.hosts - 1) // 2))
        if len(falling) > 1 and self.rng.random() < 0.5:
            self._at(falling[0], partial(self._cut_off, set(falling)))
            return
        for host in falling:
            kind = self.rng.choice(KINDS)
            if kind == "cut":
                self._at(host, partial(self._cut_off, {host}))
            else:
                store, *ranks = self.actors[host]
                fallen = {"kill": [store, *ranks], "store": [store], "rank": [self.rng.choice(ranks)]}[kind]
                self._at(host, partial(self._kill, fallen))

    def _draw_one_way(self) -> None:
        """Paths to or from a minority of hosts are cut."""
        rng = self.rng
        falling = rng.sample(range(self.hosts), rng.randint(1, (self.hosts - 1) // 2))
        staying = sorted({*range(self.hosts)} - {*falling})
        for apart in [falling] if rng.random() < 0.5 else [[host] for host in falling]:
            others = {rng.choice(staying)} if rng.choice(PATHS) == "one" else {*range(self.hosts)} - {*apart}
            ends = [{*apart}, others]
            rng.shuffle(ends)
            actor = rng.choice(self.actors[apart[0]][1:])
            actor.at_step.setdefault(rng.randint(*CUT_AT), []).append(partial(self._cut_path, *ends))

    def _at(self, host: int, event: partial[None]) -> None:
        actor = self.rng.choice(self.actors[host])
        actor.at_step.setdefault(self.rng.randint(*FALLS_AT), []).append(event)

    def _kill(self, actors: list[Actor]) -> None:
        self.baton.note(f"event: {', '.join(actor.name for actor in actors)}: killed")
        self.fell_s.append(self.baton.now_s)
        self._befall_all(actors, "kill")
        for actor in actors:
            self.baton.kill(actor)
            self.machine.network.close_all(actor)

    def _cut_off(self, hosts: set[int]) -> None:
        self.baton.note(f"event: hosts {sorted(hosts)} are cut off")
        self.fell_s.append(self.baton.now_s)
        self.cut_off.append(hosts)
        self._part(hosts, self.actors.keys() - hosts)
        here = [actor for host in hosts for actor in self.actors[host]]
        others = [actor for host in self.actors.keys() - hosts for actor in self.actors[host]]
        self._befall_all(here, "cut")
        for one in here:
            for other in others:
                self.machine.network.cut(one.name, other.name, inf)

    def _cut_path(self, senders: set[int], receivers: set[int]) -> None:
        self.baton.note(f"event: nothing comes from hosts {sorted(senders)} to {sorted(receivers)}")
        self.fell_s.append(self.baton.now_s)
        self._part(senders, receivers)
        ends = [[actor for host in hosts for actor in self.actors[host]] for hosts in (senders, receivers)]
        for hosts, actors in zip((senders, receivers), ends, strict=True):
            # The others are most of them, but of one path both ends may be those that are left out.
            if len(hosts) <= (self.hosts - 1) // 2:
                self.cut_off.append(hosts)
                self._befall_all(actors, "cut")
        for one, other in product(*ends):
            self.machine.network.cut(one.name, other.name, inf, one_way=True)

    def _part(self, hosts: Iterable[int], others: Iterable[int]) -> None:
        self.parted |= {frozenset(pair) for pair in product(hosts, others)}

    def reach_most(self, hosts: set[int]) -> bool:
        """Whether `hosts`, with those between which and them no path is cut, are more than half."""
        others = self.actors.keys() - hosts
        reached = [other for other in others if all({host, other} not in self.parted for host in hosts)]
        return 2 * (len(hosts) + len(reached)) > self.hosts

    def _befall_all(self, actors: list[Actor], kind: str) -> None:
        for process in self.processes:
            if process.actor in actors:
                process.befallen = process.befallen or kind


def judge_parting(world: PartingWorld) -> Iterator[str]:
    """Who was cut off has not gone on without the others, and says that it was; the others name one that fell."""
    fallen = {process.place for process in world.processes if process.befallen}
    for process in world.processes:
        # A wait that ends by its own limit names who was waited for, which may itself have waited; where the store has
        # ended, no rank is to blame.
        known = [error for error in process.told if not isinstance(error, TransportTimeout | StoreLost)]
        for error in () if process.befallen else known:
            if not named(error) & fallen:
                yield f"nobody named: {process.name}: {type(error).__name__}: {error}; fell: {sorted(fallen)}"
    for hosts in world.cut_off:
        apart = {rank for rank in range(world.ranks) if rank // world.ranks_of_a_host in hosts}
        # Of a path between two hosts that ends their ranks' start, who had begun and reaches most hosts goes on alone.
        others = [each for each in world.processes if each.place not in apart and not each.befallen]
        may_lead = world.reach_most(hosts) and not any(each.groups for each in others)
        for process in world.processes:
            if process.place in apart and process.befallen == "cut":
                if any({*ranks} <= apart for _, _, ranks in process.groups) and not may_lead:
                    yield f"parted: {process.name} goes on in {process.groups[-1][2]}, and was cut off"
                if process.error is not None and not isinstance(process.error, TransportError):
                    yield f"crash: {process.name}: {type(process.error).__name__}: {process.error}"


def run(seed: int, *, one_way: bool = False, traced: bool = False) -> GrowthOutcome:
    """What comes of a seed: the same each time."""
    gc.disable()
    try:
        return PartingWorld(seed, one_way=one_way, traced=traced).run()
    finally:
        gc.enable()
