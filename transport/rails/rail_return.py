"""Rails that come back: a dead one is made again in the background, while messages go over the others.

Of the two ends the lower rank connects again, as at first, after retry_s, and after twice as long each time the same
rail dies or cannot be made; the other accepts. A thread does that, since connecting and proving block. It hands over
rails that both ends have proven, so that they carry messages both ways.
Paper: ADAPTRA, section 5.3, whose delegates choose a network card that works; differs: they return to the first.
"""

import heapq
from collections import deque
from typing import TypeAlias

from lanterne.errors import TransportError
from lanterne.transport.door import Door
from lanterne.transport.machine import Machine, Running, Wakeup
from lanterne.transport.rails.rail import GREETING, Greeting, Meeting, Proven, Rail, connect

# (peer, index of the rail).
Key: TypeAlias = tuple[int, int]


# Before a dead rail is tried again, at first and at most; and for connecting and proving.
RETRY_S = 0.5
MOST_S = 60.0
LIMIT_S = 2.0  # a handshake takes milliseconds


class RailReturn:
    """Makes the dead rails of one rank, or delegate, again.

    Args:
        meeting: as rail.join has it; closed with this.
    """

    def __init__(self, meeting: Meeting) -> None:
        self.machine: Machine = meeting.machine
        self._meeting = meeting
        self._is_closed = False
        self._lost: deque[tuple[int, int, int]] = deque()  # (peer, index, life) of what is to be made
        self._found: deque[Rail] = deque()
        self._poke: Wakeup = self.machine.wakeup()
        self._wakeup: Wakeup = self.machine.wakeup()
        self._thread: Running = self.machine.thread("rail-return", self._run)

    def fileno(self) -> int:
        """Readable once a rail is back."""
        return self._wakeup.fileno()

    def lost(self, rail: Rail) -> None:
        """Make a dead rail again; called at both ends."""
        if rail.peer > self._meeting.rank:
            self._lost.append((rail.peer, rail.index, rail.life + 1))
            self._poke.set()

    def take(self) -> list[Rail]:
        """Return the Rails that are back."""
        self._wakeup.clear()
        return [self._found.popleft() for _ in range(len(self._found))]

    def _run(self) -> None:
        due: list[tuple[float, Key, int]] = []  # (when, which, life), a heap
        tries: dict[Key, int] = {}  # how often it was tried
        door = Door(self._meeting.listeners, self._meeting.token, self.machine, GREETING)
        watched: list[Door | Wakeup] = [door, self._poke]
        while True:
            waits_s = [max(0.0, due[0][0] - self.machine.now_s())] if due else []
            waits_s += [] if door.patience_s is None else [door.patience_s]
            ready = self.machine.readable(watched, min(waits_s, default=None))
            if self._is_closed:
                break
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
        door.close()
        self._meeting.close()
        for rail in self._found:
            rail.close()
        self._poke.close()
        self._wakeup.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise TransportError("rail: closed before it was made again")

    def close(self) -> None:
        """Make no rail again, and close the listeners."""
        self._is_closed = True
        self._poke.set()
        self._thread.join(LIMIT_S)

    def _schedule(self, due: list[tuple[float, Key, int]], tries: dict[Key, int], key: Key, life: int) -> None:
        """Try the rail `key` after a while, which doubles from try to try."""
        tries[key] = tries.get(key, -1) + 1
        heapq.heappush(due, (self.machine.now_s() + min(RETRY_S * 2 ** tries[key], MOST_S), key, life))

    def _connect(self, peer: int, index: int, life: int) -> bool:
        """Return whether a rail could be made again."""
        meeting = self._meeting
        greeting = Greeting(meeting.rank, index, life)
        address = meeting.addresses[peer][index]
        assert address is not None  # There was such a rail.
        try:
            source, token, machine = meeting.hosts[index], meeting.token, self.machine
            proven = connect(address, source, token, greeting, LIMIT_S, machine, meanwhile=self._check_open)
        except TransportError:
            return False
        self._give(proven, peer, index, life)
        return True

    def _give(self, proven: Proven, peer: int, index: int, life: int) -> None:
        self._found.append(proven.rail(peer, index, life))
        self._wakeup.set()
