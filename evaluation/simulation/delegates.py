"""Simulated delegates: processes that carry messages for their ranks over rails, and the ranks that use them."""

import contextlib
import os
import select
import subprocess
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.simulation.baton import Actor
from evaluation.simulation.calls import RankOutcome
from evaluation.simulation.network import SimulatedNetwork, SimulatedPoller, SimulatedWakeup, changed
from evaluation.simulation.simulated_machine import SimulatedMachine
from lanterne.errors import TransportTimeout
from lanterne.transport.machine import Wakeup
from lanterne.transport.rails.delegate_process import serve
from lanterne.transport.rails.delegate_transport import Delegates
from lanterne.transport.rank_group import Group
from lanterne.transport.waiting import wait

ARENA_NBYTES = 1 << 22
# Messages to each peer, in a call and in one that hands over many before it waits.
MESSAGES, AHEAD = 3, 12
# Before calls: rails come back meanwhile.
PAUSES_S = 0.0, 0.2, 0.6
# What a sender writes over a message that has been received.
SCRAP = 255


class SimulatedChannel:
    """One end of a pair of sockets that keep messages apart (SOCK_SEQPACKET), between two processes of a host."""

    def __init__(self, network: SimulatedNetwork, owner: Actor) -> None:
        self.network = network
        self.owner = owner
        self.peer: SimulatedChannel | None = None
        self.inbox: deque[bytes] = deque()
        self.at_end = False
        self.watchers: list[tuple[SimulatedPoller, int]] = []
        self._timeout_s: float | None = None
        self._fd = network.new_fd(self)

    @property
    def peer_name(self) -> str:
        return "nobody" if self.peer is None else self.peer.owner.name

    def fileno(self) -> int:
        return self._fd

    def settimeout(self, seconds: float | None) -> None:
        self._timeout_s = seconds

    def events(self) -> int:
        return select.POLLIN * bool(self.inbox or self.at_end) | select.POLLHUP * self.at_end

    def sendall(self, data: bytes) -> None:
        self.network.baton.step()
        assert self.peer is not None
        if self.peer.at_end or self.at_end:
            raise BrokenPipeError("Broken pipe")
        self.peer.inbox.append(data)
        changed(self.peer)
        self.network.baton.wake(self.peer.owner)

    def recv(self, _nbytes: int) -> bytes:
        baton = self.network.baton
        baton.wait(self._has_come, inf if self._timeout_s is None else baton.now_s + self._timeout_s)
        if not self._has_come():
            raise TimeoutError("timed out")
        found = self.inbox.popleft() if self.inbox else b""
        changed(self)
        return found

    def _has_come(self) -> bool:
        return bool(self.inbox or self.at_end)

    def shut(self) -> None:
        if self.fileno() in self.network.by_fd and self.peer is not None:
            self.peer.at_end = True
            changed(self.peer)
            self.network.baton.wake(self.peer.owner)
        self.network.forget(self.fileno())

    close = shut


class SimulatedChild:
    """See subprocess.Popen."""

    def __init__(self, machine: SimulatedMachine, actor: Actor) -> None:
        self.machine = machine
        self.actor = actor

    def wait(self, timeout: float | None = None) -> int:
        until_s = inf if timeout is None else self.machine.baton.now_s + timeout
        while not self.actor.has_ended:
            if self.machine.baton.now_s >= until_s:
                raise subprocess.TimeoutExpired("delegate", timeout or 0.0)
            self.machine.sleep(1e-3)
        return -9 if self.actor.is_killed else 0

    def kill(self) -> None:
        self.machine.baton.kill(self.actor)
        self.machine.network.close_all(self.actor)


class DelegateStarter:
    """Starts delegates as simulated processes.

    Attributes: `actors`, by rank.
    """

    def __init__(self, machine: SimulatedMachine) -> None:
        self.actors: dict[int, Actor] = {}
        self._machine = machine
        self._fds: list[int] = []

    def start(self, rank: int, arena_fd: int, ring_fd: int) -> tuple[SimulatedChild, Any, Wakeup]:
        """See delegate_handle.StartDelegate."""
        machine, network = self._machine, self._machine.network
        fds = os.dup(arena_fd), os.dup(ring_fd)
        self._fds += fds
        here, wakeup = SimulatedChannel(network, machine.baton.here), SimulatedWakeup(network)
        there = SimulatedChannel(network, machine.baton.here)
        here.peer, there.peer = there, here
        actor = machine.baton.start(f"delegate {rank}", partial(_serve, there, wakeup, *fds, machine))
        self.actors[rank] = there.owner = wakeup.owner = actor
        return SimulatedChild(machine, actor), here, wakeup

    def close(self) -> None:
        """Give back what delegates share."""
        for fd in self._fds:
            os.close(fd)


def _serve(control: Any, wakeup: Wakeup, arena_fd: int, ring_fd: int, machine: SimulatedMachine) -> None:
    with contextlib.suppress(SystemExit):
        serve(control, wakeup, arena_fd, ring_fd, machine)
    machine.network.close_all(machine.baton.here)


@dataclass
class Carrier:
    """A rank with delegates: it sends messages that all know, and looks at each that comes."""

    group: Group
    machine: SimulatedMachine
    outcome: RankOutcome
    timeout_s: float

    def open(self, rails: tuple[str, ...], starter: DelegateStarter) -> Delegates:
        """Start them."""
        group = self.group
        self._sent = 0
        self._sizes: dict[int, int] = {}
        self._delegates = Delegates(
            group.rank,
            [rank for rank in range(group.world_size) if rank != group.rank],
            lambda told: group.exchange("lanterne/delegates", told),
            rails=rails,
            memory_nbytes=ARENA_NBYTES,
            on_sent=self._on_sent,
            machine=self.machine,
            start=partial(starter.start, group.rank),
            check_dead=group.check_peers,
        )
        return self._delegates

    def _on_sent(self, offset: int) -> None:
        """What is sent again after this would be wrong at its receiver."""
        nbytes = self._sizes.pop(offset)
        self._delegates.arena.view[offset : offset + nbytes] = bytes([SCRAP]) * nbytes
        self._delegates.arena.free(offset, nbytes)
        self._sent += 1

    def carry(self, number: int, kind: str, count: int) -> None:
        """Send messages to peers and receive theirs."""
        delegates, rank, size = self._delegates, self.group.rank, self.group.world_size
        self.machine.sleep(PAUSES_S[number % len(PAUSES_S)])
        after, before = [(rank + 1) % size], [(rank - 1) % size]
        if kind == "everybody":
            after = before = list(delegates.peers)
        messages = AHEAD if kind == "ahead" else MESSAGES
        self._sent, came = 0, [0]
        for index in range(messages):
            for peer in before:
                nbytes = _message(peer, rank, number, index, count).nbytes
                offset = delegates.arena.allocate(nbytes)
                delegates.receive(offset, nbytes, peer, self._done(came, offset, peer, number, index, count))
            for peer in after:
                message = _message(rank, peer, number, index, count)
                offset = delegates.arena.allocate(message.nbytes)
                delegates.arena.view[offset : offset + message.nbytes] = message.tobytes()
                self._sizes[offset] = message.nbytes
                delegates.senders[peer](message.nbytes, offset, round(self.machine.now_s() * 1e9))

        def look() -> bool:
            delegates.progress()
            return came[0] == messages * len(before) and self._sent == messages * len(after)

        def meanwhile(_now_s: float) -> None:
            delegates.check()
            self.group.check_peers(delegates.peers)

        if not wait(look, self.timeout_s, self.machine.pauses(), meanwhile):
            lacking = set(before) if came[0] < messages * len(before) else set(after)
            raise TransportTimeout(f"rank {rank}: messages of call {number} have not come", sorted(lacking))

    def _done(
        self, came: list[int], offset: int, peer: int, number: int, index: int, count: int
    ) -> Callable[[float, int | None], None]:
        def done(_departure_s: float, _place: int | None) -> None:
            expected = _message(peer, self.group.rank, number, index, count)
            got = np.frombuffer(self._delegates.arena.view[offset : offset + expected.nbytes], expected.dtype)
            if wrong := int((got != expected).sum()):
                self.outcome.wrong.append(f"call {number}: message {index} of rank {peer}: {wrong} wrong elements")
            self._delegates.arena.free(offset, expected.nbytes)
            came[0] += 1

        return done


def _message(source: int, to: int, number: int, index: int, count: int) -> NDArray[np.int64]:
    """What is sent, (count + index,) int64."""
    return np.arange(count + index, dtype=np.int64) * 7 + 10_000 * number + 1000 * index + 100 * source + to
