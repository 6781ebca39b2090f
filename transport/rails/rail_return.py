"""Rails that come back: a dead one is made anew in the background, while messages go over the others.

Of the two ends the lower rank connects again, as at first, after retry_s, and after twice as long each time the same
rail dies or cannot be made; the other accepts. Who waits for that is a thread of the delegate, for connecting and
proving block; its loop gets rails that are proven by both ends, so that they carry messages both ways.
Paper: ADAPTRA, section 5.3, whose delegates choose a network card that works; differs: they return to the first.
"""

import heapq
import socket
from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from lanterne.errors import TransportError
from lanterne.transport.door import Door
from lanterne.transport.machine import Machine, Wakeup
from lanterne.transport.rails.rail import GREETING, SILENT_MS, Addresses, Greeting, Proven, Rail, connect
from lanterne.transport.wire import configure

# (peer, index of the rail).
Key: TypeAlias = tuple[int, int]


# Before a dead rail is tried again, at first and at most; and for connecting and proving.
RETRY_S = 0.5
MOST_S = 60.0
LIMIT_S = 2.0  # a handshake takes milliseconds


class RailReturn:
    """Makes the dead rails of one delegate anew.

    Args:
        listeners, hosts, addresses, rank, token, machine: as rail.join has them; the listeners are closed with the
            process.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        hosts: Sequence[str | None],
        addresses: Addresses,
        rank: int,
        token: str,
        machine: Machine,
    ) -> None:
        self.machine = machine
        self._listeners = listeners
        self._hosts = hosts
        self._addresses = addresses
        self._rank = rank
        self._token = token
        self._lost: deque[tuple[int, int, int]] = deque()  # (peer, index, life) of what is to be made
        self._found: deque[Rail] = deque()
        self._poke: Wakeup = machine.wakeup()
        self._wakeup: Wakeup = machine.wakeup()
        machine.thread("rail-return", self._run)

    def fileno(self) -> int:
        """Readable once a rail is back."""
        return self._wakeup.fileno()

    def lost(self, rail: Rail) -> None:
        """A rail is dead; called at both ends."""
        if rail.peer > self._rank:
            self._lost.append((rail.peer, rail.index, rail.life + 1))
            self._poke.set()

    def take(self) -> list[Rail]:
        """The Rails that are back."""
        self._wakeup.clear()
        return [self._found.popleft() for _ in range(len(self._found))]

    def _run(self) -> None:
        due: list[tuple[float, Key, int]] = []  # (when, which, life), a heap
        tries: dict[Key, int] = {}  # how often it was tried
        door = Door(self._listeners, self._token, self.machine, GREETING)
        watched: list[Door | Wakeup] = [door, self._poke]
        while True:
            waits_s = [max(0.0, due[0][0] - self.machine.now_s())] if due else []
            waits_s += [] if door.patience_s is None else [door.patience_s]
            ready = self.machine.readable(watched, min(waits_s, default=None))
            if self._poke in ready:
                self._poke.clear()
                for _ in range(len(self._lost)):
                    peer, index, life = self._lost.popleft()
                    self._schedule(due, tries, (peer, index), life)
            for sock, (peer, index, life), seals in door.look(0.0):
                self._give(Proven(sock, seals), peer, index, life)
            while due and due[0][0] <= self.machine.now_s():
                _, key, life = heapq.heappop(due)
                if not self._connect(*key, life):
                    self._schedule(due, tries, key, life)

    def _schedule(self, due: list[tuple[float, Key, int]], tries: dict[Key, int], key: Key, life: int) -> None:
        """Try the rail `key` after a while, which doubles from try to try."""
        tries[key] = tries.get(key, -1) + 1
        heapq.heappush(due, (self.machine.now_s() + min(RETRY_S * 2 ** tries[key], MOST_S), key, life))

    def _connect(self, peer: int, index: int, life: int) -> bool:
        """Whether a rail could be made anew."""
        greeting = Greeting(self._rank, index, life)
        address = self._addresses[peer][index]
        assert address is not None  # There was such a rail.
        try:
            proven = connect(address, self._hosts[index], self._token, greeting, LIMIT_S, self.machine)
        except TransportError:
            return False
        self._give(proven, peer, index, life)
        return True

    def _give(self, proven: Proven, peer: int, index: int, life: int) -> None:
        configure(proven.sock, lost_ms=SILENT_MS, may_stand=True)
        self._found.append(Rail(proven.sock, peer, index, life, proven.seals))
        self._wakeup.set()
