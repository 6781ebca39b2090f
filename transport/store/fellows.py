"""The connections of one store to those on the job's other hosts."""

from collections.abc import Iterable
from typing import Any

from lanterne.errors import TransportError
from lanterne.transport.machine import Machine
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.connection import StoreLost
from lanterne.transport.wire import Kind


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

    def __contains__(self, name: str) -> bool:
        """Whether there is a connection to it."""
        return name in self._clients

    def connect(self, name: str, limit_s: float) -> None:
        """Have a connection to it. Raises as StoreClient."""
        if name not in self._clients:
            self._clients[name] = StoreClient(_address(name), self._token, limit_s, machine=self._machine)

    def ask(
        self, name: str, kind: Kind, fields: Iterable[int | bytes], connect_s: float, limit_s: float
    ) -> list[Any] | None:
        """What it answers within `limit_s`, after `connect_s` if there was no connection; None: nothing."""
        if self._machine.now_s() < self._not_before_s.get(name, 0.0):
            return None
        try:
            self.connect(name, connect_s)
            return self._clients[name].call(kind, fields, limit_s)
        except TransportError as error:
            if not isinstance(error, StoreLost) or error.is_cut:
                self.silent.add(name)
            self._not_before_s[name] = self._machine.now_s() + self._rests_s
            if name in self._clients:
                self._clients.pop(name).close()
            return None

    def tell(self, kind: Kind, limit_s: float) -> None:
        """A word without an answer to each that there is a connection to; one that is gone misses it."""
        for client in self._clients.values():
            try:
                client.tell(kind, (), limit_s)
            except TransportError:
                continue

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()


def _address(name: str) -> tuple[str, int]:
    host, _, port = name.rpartition(":")
    return host, int(port)
