"""The connections of one store to those on the job's other hosts."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeAlias

from lanterne.errors import TransportError
from lanterne.transport.machine import Lock, Machine
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.connection import StoreLost
from lanterne.transport.wire import Fields, Kind

# By name, what each answers; None: nothing.
Answers: TypeAlias = Mapping[str, "list[Any] | None"]


class Question:
    """What several stores are asked at once, each by a thread of its own: one that is dead costs the others no time.

    Attributes: `answers`, all of them once it `is_over`.
    """

    def __init__(self, machine: Machine, names: Iterable[str], ask: Callable[[str], list[Any] | None]) -> None:
        self.answers: dict[str, list[Any] | None] = dict.fromkeys(names)
        self._threads = [machine.thread(f"asks {name}", partial(self._put, name, ask)) for name in self.answers]

    def _put(self, name: str, ask: Callable[[str], list[Any] | None]) -> None:
        self.answers[name] = ask(name)

    @property
    def is_over(self) -> bool:
        """Whether each has answered, or its time is over."""
        return not any(thread.is_alive() for thread in self._threads)

    def wait(self) -> Answers:
        """The answers, once it is over."""
        for thread in self._threads:
            thread.join()
        return self.answers


class FellowStores:
    """The other hosts' stores, by name ("host:port"): one that says nothing is left out for a while.

    Args:
        token: the job's.
        rests_s: for how long one that did not answer is not asked again.

    Attributes: `silent`, names of those that have not answered, though nobody there says that they have ended.
    """

    def __init__(self, machine: Machine, token: str, rests_s: float) -> None:
        self.silent: set[str] = set()
        self._machine = machine
        self._token = token
        self._rests_s = rests_s
        self._clients: dict[str, StoreClient] = {}
        self._not_before_s: dict[str, float] = {}
        self._locks: dict[str, Lock] = {}  # of each name, for whoever asks it

    def __contains__(self, name: str) -> bool:
        """Whether there is a connection to it."""
        return name in self._clients

    def connect(self, name: str, limit_s: float) -> None:
        """Have a connection to it. Raises as StoreClient."""
        if name not in self._clients:
            self._clients[name] = StoreClient(_address(name), self._token, limit_s, machine=self._machine)

    def ask_all(
        self, names: Iterable[str], kind: Kind, fields: Callable[[str], Fields], connect_s: float, limit_s: float
    ) -> Question:
        """Ask them all at once, each with its own `fields`, for what it answers within `limit_s`, after `connect_s` if
        there was no connection. Those that rest are not asked."""
        names = [*names]
        for name in names:
            self._locks.setdefault(name, self._machine.lock())
        return Question(self._machine, names, lambda name: self._ask(name, kind, fields(name), connect_s, limit_s))

    def _ask(self, name: str, kind: Kind, fields: Fields, connect_s: float, limit_s: float) -> list[Any] | None:
        with self._locks[name]:
            if self._machine.now_s() < self._not_before_s.get(name, 0.0):
                return None
            try:
                self.connect(name, connect_s)
                return self._clients[name].call(kind, fields, limit_s)
            except TransportError as error:
                if not isinstance(error, StoreLost) or error.is_cut:
                    self.silent.add(name)
                self._not_before_s[name] = self._machine.now_s() + self._rests_s
                if lost := self._clients.pop(name, None):
                    lost.close()
                return None

    def rouse(self) -> None:
        """None rests any more."""
        self._not_before_s.clear()

    def tell(self, kind: Kind, limit_s: float) -> None:
        """A word without an answer to each that there is a connection to; one that is gone misses it."""
        for client in self._clients.values():
            try:
                client.tell(kind, (), limit_s)
            except TransportError:
                continue

    def close(self) -> None:
        """Close all connections; whoever is being asked has not answered."""
        while self._clients:
            self._clients.popitem()[1].close()


def _address(name: str) -> tuple[str, int]:
    host, _, port = name.rpartition(":")
    return host, int(port)
