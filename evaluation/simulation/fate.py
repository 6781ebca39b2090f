"""What befalls simulated processes: the events of a scenario, each at its step."""

from evaluation.simulation.baton import Actor, Baton
from evaluation.simulation.delegates import DelegateStarter, SimulatedChild
from evaluation.simulation.scenario import STORE, Event, Scenario, name_of
from evaluation.simulation.services import SimulatedJob
from evaluation.simulation.simulated_machine import SimulatedMachine
from lanterne.errors import LanterneError
from lanterne.transport.rails.spare import HOWS, SpareTransport
from lanterne.transport.rank_group import Group


class Fate:
    """Lets the events of a scenario happen.

    Args:
        actors: by rank, or STORE.

    Attributes: `fallen`, (when, who) ended for the others, in order; `strange`, those that did before the store knew of
    them; `thawed_s`, of those that froze, when they went on; `spares`, by rank, what joins it to others by several
    paths; `problems`, a line each.
    """

    def __init__(
        self,
        scenario: Scenario,
        machine: SimulatedMachine,
        job: SimulatedJob,
        actors: dict[int, Actor],
        starter: DelegateStarter,
    ) -> None:
        self.scenario = scenario
        self.machine = machine
        self.baton: Baton = machine.baton
        self.actors = actors
        self.fallen: list[tuple[float, int]] = []
        self.strange: set[int] = set()
        self.thawed_s: dict[int, float] = {}
        self.spares: dict[int, SpareTransport] = {}
        self.problems: list[str] = []
        self._job = job
        self._starter = starter

    def arm(self, event: Event) -> None:
        """Let `event` happen at its step."""
        if self.scenario.transport == "local" and event.kind == "kill":
            return  # see fails_here
        if event.kind == "quit":
            return  # see World._serve
        actor = self.actors[event.rank]
        actor.at_step.setdefault(event.step, []).append(lambda: self._befall(event))

    def fails_here(self, rank: int, number: int) -> None:
        """Over local: the program of a rank that falls raises before this call."""
        if self.scenario.transport != "local":
            return
        for event in self.scenario.events:
            if event.kind == "kill" and event.rank == rank and event.step % len(self.scenario.calls) == number:
                self.fallen.append((self.baton.now_s, rank))
                raise RuntimeError("the program fails")

    def _befall(self, event: Event) -> None:
        baton, actor, network = self.baton, self.actors[event.rank], self.machine.network
        baton.note(f"event: {event}")
        if event.kind in ("kill", "restart"):
            self.fallen.append((baton.now_s, event.rank))
            if not self._job.has_joined(event.rank):
                self.strange.add(event.rank)
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
            network.cut(actor.name, name_of(event.other), baton.now_s + event.seconds, one_way=event.one_way)
        elif event.kind == "reset":
            carriers = self._starter.actors or self.actors
            if event.rank in carriers and event.other in carriers:
                network.reset(carriers[event.rank], carriers[event.other], event.seconds)
        elif event.kind == "delegate":
            if event.rank in self._starter.actors:
                self.fallen.append((baton.now_s, event.rank))
                SimulatedChild(self.machine, self._starter.actors[event.rank]).kill()
        elif event.kind == "path":
            if event.rank in self.spares:
                self.spares[event.rank].cut(event.other, HOWS[int(event.seconds * len(HOWS))])
        else:
            carrier = self._starter.actors.get(event.rank, actor)
            network.delays[carrier.name] = event.seconds

    def _restart(self, rank: int) -> None:
        def again() -> None:
            has_joined = self._job.has_joined(rank)
            try:
                Group(rank, self.scenario.ranks, self._job.connect(early=False), timeout_s=self._job.timeout_s)
            except LanterneError:
                return
            if has_joined:
                self.problems.append(f"restart: rank {rank} joined the job a second time")

        if not self.baton.is_over:
            self.baton.start(f"rank {rank} again", again)
