"""The world of an errand: one process that asks, with as many clients as it likes, of stores that are real."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from evaluation.simulation.baton import Actor, Baton
from evaluation.simulation.simulated_machine import SimulatedMachine, guard
from lanterne.errors import TransportError
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.heirs import POLICY as HEIRS
from lanterne.transport.store.server import Store
from lanterne.transport.wire import Frame, Kind, pack_frame, unpack_fields

TOKEN, HOST, PORT = "a simulated job's token", "127.0.0.1", 4444
# Until when an errand is to be over; what a store takes to answer all that was asked; and how long a client may wait.
LIMIT_S, ANSWERED_S, TIMEOUT_S = 400.0, 0.02, 5.0
# Stores end so soon after their last client; those that stand by wait for ranks of one that was lost.
ENDS_S = HEIRS.idle_s + 3.0
# The process that asks.
ASKER = "asker"


@dataclass(frozen=True)
class ErrandOutcome:
    """What came of the errand `name` of a seed.

    Attributes: `problems`, none if all is well; `digest`, of all steps; `clients`, how many asked.
    """

    seed: int
    name: str
    problems: tuple[str, ...]
    digest: int
    clients: int
    seconds: float
    steps: int
    trace: tuple[tuple[float, str, str], ...] = ()


class Errand:
    """One errand as it happens.

    Attributes: `rng`, what its story is drawn from; `problems`, a line each.
    """

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.baton: Baton = Baton(seed, traced=traced)
        self.machine: SimulatedMachine = SimulatedMachine(self.baton)
        self.rng: random.Random = random.Random(f"an errand of {seed}")
        self.problems: list[str] = []
        self.puppets: list[Puppet] = []
        self._over_s = 0.0  # when all clients were gone

    def expect(self, what: str, got: object, expected: object) -> None:
        """Note what is not as it must be."""
        if got != expected:
            self.problems.append(f"{what}: got {got!r}, expected {expected!r}")

    def start(self, name: str, program: Callable[[], object]) -> Actor:
        """Another process."""
        return self.baton.start(name, program)

    def start_store(self, *, port: int = PORT, term: int = 0, stands_by: bool = False) -> Actor:
        """A store, which ends after its last client."""
        hold = partial(self._hold, port, term, stands_by=stands_by)
        store = self.start(f"store {port}", hold)
        self.machine.sleep(ANSWERED_S)
        return store

    def _hold(self, port: int, term: int, *, stands_by: bool) -> None:
        listener = self.machine.listen(HOST, port)
        Store(listener, TOKEN, "members", machine=self.machine, term=term, stands_by=stands_by).run()

    def end(self, actor: Actor) -> None:
        """Kill a process."""
        self.baton.kill(actor)
        self.machine.network.close_all(actor)

    def puppet(self, name: str, port: int = PORT) -> "Puppet":
        """Another client, of the store at `port`."""
        self.puppets.append(Puppet(self, name, port))
        return self.puppets[-1]

    def settle(self) -> None:
        """All that was asked is answered, and heard."""
        self.machine.sleep(ANSWERED_S)
        for puppet in self.puppets:
            puppet.hear()

    def run(self, name: str, program: Callable[["Errand"], object]) -> None:
        """All of it."""
        with guard():
            actor = self.start(ASKER, partial(self._ask, program))
            hanging = self.baton.run(LIMIT_S)
        self.problems += [f"hang: after {LIMIT_S:g} s: {place}" for place in hanging]
        for each in self.baton.actors:
            if each.error is not None:
                self.problems.append(f"crash: {each.name}: {type(each.error).__name__}: {each.error}")
        if self.baton.now_s > self._over_s + ENDS_S:
            self.problems.append(f"late: a store ends {self.baton.now_s - self._over_s:.0f} s after its last client")
        left = [sock for sock in self.machine.network.by_fd.values() if sock.owner is actor]
        if left:
            self.problems.append(f"descriptors: {len(left)} of {left[0].peer_name} are left open after {name}")

    def _ask(self, program: Callable[["Errand"], object]) -> None:
        try:
            program(self)
            for puppet in self.puppets:
                puppet.hear()
                self.expect(f"requests of {puppet.name} that were answered twice", puppet.answered_twice, [])
        finally:
            for puppet in self.puppets:
                puppet.end()
            self._over_s = self.baton.now_s


class Puppet:
    """A client that asks what it is told to, and keeps what it hears.

    Attributes: `heard`, frames; `asked`, the number of its latest request; `is_lost`, its connection is.
    """

    def __init__(self, errand: Errand, name: str, port: int) -> None:
        self.name = name
        self.heard: list[Frame] = []
        self.is_lost: bool = False
        self.asked = 0
        self._errand = errand
        self._client = StoreClient((HOST, port), TOKEN, TIMEOUT_S, machine=errand.machine)

    def ask(self, kind: Kind, *fields: int | bytes) -> int:
        """Ask, without waiting for an answer; the request's number."""
        self.asked += 1
        frame = pack_frame(kind, self.asked, fields)
        self._client.connection.send(frame, self._errand.machine.now_s() + TIMEOUT_S)
        return self.asked

    def call(self, kind: Kind, *fields: int | bytes) -> str | list[Any] | None:
        """Ask, and hear what comes of it soon: fields of the answer, an error's text, or None."""
        number = self.ask(kind, *fields)
        self._errand.settle()
        return self.answer(number)

    def hear(self) -> None:
        """Take in what has come."""
        connection = self._client.connection
        try:
            while not self.is_lost:
                frame = connection.take()
                if frame is not None:
                    self.heard.append(frame)
                elif not connection.receive():
                    return
        except TransportError:
            self.is_lost = True

    def answer(self, number: int, types: str = "") -> str | list[Any] | None:
        """What was answered to a request: fields of `types` (none: its bytes), an error's text, or None: nothing."""
        for kind, request, body in self.heard:
            if request == number:
                if kind == Kind.ERROR:
                    return str(unpack_fields(body, "b")[0].decode())
                return unpack_fields(body, types) if types else [body]
        return None

    def list_of(self, number: int) -> list[bytes]:
        """The answer to a request, which is a list of bytes: none if there is no answer, or an error."""
        answer = self.answer(number, "b*")
        return answer if isinstance(answer, list) else []

    @property
    def answered_twice(self) -> list[int]:
        """Requests, by number, that got more than one answer."""
        answers = Counter(number for _, number, _ in self.heard if number)
        return [number for number, times in answers.items() if times > 1]

    def notices(self, kind: Kind, types: str) -> list[list[Any]]:
        """The fields of all notices of a kind that it has heard."""
        return [unpack_fields(body, types) for each, _, body in self.heard if each == kind]

    def end(self) -> None:
        """It is gone, without a word."""
        self.is_lost = True
        self._client.close()


def run_errand(seed: int, errands: Sequence[tuple[str, Callable[[Errand], object]]], *, traced: bool) -> ErrandOutcome:
    """What comes of the errand of a seed, one of those named."""
    name, program = errands[seed % len(errands)]
    errand = Errand(seed, traced=traced)
    errand.run(name, program)
    baton = errand.baton
    steps = sum(actor.steps for actor in baton.actors)
    problems = tuple(f"{name}: {line}" for line in errand.problems)
    what = seed, name, problems, baton.digest, len(errand.puppets), baton.now_s, steps
    return ErrandOutcome(*what, tuple(baton.trace))
