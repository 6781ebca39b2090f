"""Delegates: processes that send and receive for a rank through shared memory, so that it never waits for a send.

A rank has one delegate per queue; the messages to and from a peer go to the queues in turn. What is to be sent is
written into the shared arena by whoever makes it, so handing it over is one note in a ring: nothing is copied and
nothing waits. Receives are given early, and come into the arena too. Between ranks the delegates have rails (rail.py);
when one dies, in whatever moment, its messages go over the next, none lost and none twice (paths.py). Ranks of one
host that share memory need no delegate: they hand messages over where they lie (neighbours.py).
Paper: ADAPTRA, section 5.2 and 5.3; differs: within a host, as said.
"""

import json
import math
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from lanterne.errors import InputError, TransportError
from lanterne.transport.machine import THIS_MACHINE, Machine
from lanterne.transport.networks import refuse_if_encrypted
from lanterne.transport.rails.delegate_flows import DelegateFlows
from lanterne.transport.rails.delegate_handle import END_S, Handle, StartDelegate, start_process
from lanterne.transport.rails.delegate_memory import Arena, check_machine
from lanterne.transport.rails.neighbours import Done, Neighbours, meet
from lanterne.transport.rails.rail import MEMORY, Address, CheckDead, listen
from lanterne.transport.rails.rail_names import (
    TCP,
    Exchange,
    bind_address,
    check_agreed,
    joined,
    network_host,
    share_memory,
)
from lanterne.transport.timeouts import SETUP_S

DEFAULT_RAILS = (MEMORY, TCP)
MAX_QUEUES = 64


def queues_needed(produced_per_s: float, carried_per_s: float) -> int:
    """The number of queues that carry what is produced, if one carries `carried_per_s`, at least 1.

    Args:
        produced_per_s, carried_per_s: rates in one unit, messages or bytes.

    Raises:
        InputError: not positive, or more than MAX_QUEUES are needed.

    Paper: ADAPTRA, section 5.2.
    """
    if not produced_per_s >= 0 or not carried_per_s > 0:
        raise InputError(f"queues: got rates {produced_per_s} and {carried_per_s}, expected positive ones")
    count = max(1, math.ceil(produced_per_s / carried_per_s - 1e-9))
    if count > MAX_QUEUES:
        raise InputError(f"queues: got a need of {count}, expected at most {MAX_QUEUES}: the link is too slow")
    return count


class Delegates:
    """The delegates of one rank.

    Args:
        rank: this one's.
        peers: the other ranks that this one sends to or receives from.
        exchange: called twice.
        queues: delegates, the same number on every rank that needs them.
        rails: names, the first that lives being used; as many on every rank. With MEMORY the ranks of one host share
            memory, and need no other.
        memory_nbytes: of the arena, at most.
        on_sent: called with the offset of a message once its memory may change.
        machine: what it runs on; `start`, how it starts a delegate there.
        token: that both ends of a rail prove to know; None: one that is told by `exchange`.
        check_dead: called with `peers` while rails are made, raises PeerFailed if one is known to be dead.
        reached: as `connect_rails` has it.

    Attributes:
        senders: by peer a function f(nbytes, offset, departure_ns) that sends `nbytes` bytes at `offset` of the arena:
            in 1 us to a neighbour, else 4, or 10 if the delegate must be woken; some 15 more where the caches hold
            nothing of ours. With a ticket for the departure (delegate_memory.py) a device may be copying them there.
        addresses: of the rails here; None for MEMORY.
        arena: this rank's; `arenas`, by peer, of those that share memory.

    Raises:
        InputError: queues or rails that cannot be.
        Unavailable: this machine cannot share memory.
        TransportError: a delegate did not start, or found no rail to a peer.
        PeerFailed: one has died meanwhile.
    """

    def __init__(
        self,
        rank: int,
        peers: Iterable[int],
        exchange: Exchange,
        queues: int = 1,
        rails: Sequence[str] = DEFAULT_RAILS,
        memory_nbytes: int = 1 << 30,
        on_sent: Callable[[int], object] = id,
        machine: Machine = THIS_MACHINE,
        start: StartDelegate = start_process,
        token: str | None = None,
        check_dead: CheckDead | None = None,
        reached: str = "",
    ) -> None:
        check_machine()
        if not 1 <= queues <= MAX_QUEUES:
            raise InputError(f"queues: got {queues}, expected 1 to {MAX_QUEUES}")
        if not rails or len(set(rails)) < len(rails):
            raise InputError(f"rails: got {', '.join(rails) or 'none'}, expected different names, at least one")
        self.rank = rank
        self.peers: tuple[int, ...] = tuple(sorted(peers))
        self._on_sent = on_sent
        self._machine = machine
        self._start_delegate = start
        self._look_for_deaths: Callable[[], object] = lambda: None if check_dead is None else check_dead(self.peers)
        self.arena: Arena = Arena(memory_nbytes, "room for all messages that a rank sends and receives in an iteration")
        self.neighbours: Neighbours = Neighbours(machine)
        self._closed = False
        self.addresses: list[str | None] = []
        self._handles: list[Handle] = []
        self._flows = DelegateFlows(on_sent, machine)
        self.senders: dict[int, Callable[[int, int, int], object]] = {}
        try:
            self._start(exchange, queues, tuple(rails), token, reached)
        except BaseException:
            self.close()
            raise

    def _start(self, exchange: Exchange, queues: int, rails: tuple[str, ...], secret: str | None, reached: str) -> None:
        machine = self._machine
        own = {"host": network_host(), "rails": list(rails), "peers": list(self.peers), "queues": queues}
        own["token"] = os.urandom(16).hex()
        error: Exception | None = None
        listener: socket.socket | None = None
        told: dict[str, Any] = {"listen": [], "inbox": None, "error": ""}
        every = [json.loads(data) for data in exchange(json.dumps(own).encode())]
        token: str = secret or every[0]["token"]
        near: list[int] = []
        far: list[int] = []
        try:
            check_agreed(every)
            near = [peer for peer in self.peers if share_memory(own, every[peer])]
            far = [peer for peer in self.peers if peer not in near]
            several_hosts = len({other["host"] for other in every}) > 1
            if several_hosts:
                refuse_if_encrypted("rails of delegates")
            self.addresses = [
                None
                if name == MEMORY
                else bind_address(name, several_hosts=several_hosts, reached=reached, machine=machine)
                for name in rails
            ]
            if near:
                listener, told["inbox"] = listen(MEMORY)
            for queue in range(queues if far else 0):
                self._handles.append(
                    Handle(self.rank, queue, self.arena.fd, token, self.addresses, machine, self._start_delegate)
                )
            told["listen"] = [handle.hear(self._look_for_deaths)["listen"] for handle in self._handles]
        except Exception as failure:
            error, told["error"] = failure, str(failure)
        # A failure is told, so that no rank waits for one that will not come.
        every_told = [json.loads(data) for data in exchange(json.dumps(told).encode())]
        if error:
            raise error
        for rank, other in enumerate(every_told):
            if other["error"]:
                raise TransportError(f"delegate: rank {rank}: {other['error']}")
        for queue, handle in enumerate(self._handles):
            handle.say(**{str(peer): _rails_to(own, every[peer], every_told[peer]["listen"][queue]) for peer in far})
        if listener is not None:
            inboxes = {peer: every_told[peer]["inbox"] for peer in near}
            with listener:
                limit_s = SETUP_S
                meet(self.neighbours, self.rank, listener, inboxes, token, self.arena.fd, self._on_sent, limit_s)
        for handle in self._handles:
            handle.get_ready(self._look_for_deaths)
        for peer in far:
            self._flows.open(peer, self._handles)
            self.senders[peer] = partial(self._flows.send, peer)
        for peer, neighbour in self.neighbours.items():
            self.senders[peer] = neighbour.outbox.put

    @property
    def arenas(self) -> dict[int, memoryview]:
        """By neighbour its arena, as bytes."""
        return {peer: neighbour.arena for peer, neighbour in self.neighbours.items()}

    @property
    def dropped(self) -> list[tuple[int, int, int, float]]:
        """(peer, queue, rail, when: now_s of the machine) of the rails that died."""
        return self._flows.dropped

    @property
    def returned(self) -> list[tuple[int, int, int, float]]:
        """Reconnected rails, as in `dropped`."""
        return self._flows.returned

    @property
    def under_way(self) -> int:
        """How many messages handed over have not come yet."""
        return self._flows.under_way + sum(len(neighbour.outbox.backlog) for neighbour in self.neighbours.values())

    def receive(self, offset: int, nbytes: int, peer: int, done: Done) -> None:
        """Receive the next message from `peer`, at `offset` if it is no neighbour.

        Once it is there `done(departure_s, None)` is called; from a neighbour `done(departure_s, place)`: it lies at
        that offset of the peer's arena, and stays as it is until `release`.
        """
        if peer in self.neighbours:
            self.neighbours[peer].receive(nbytes, done)
            return
        self._flows.receive(peer, offset, nbytes, done)

    def release(self, peer: int, place: int) -> None:
        """A message in a peer's arena is not read any more."""
        self.neighbours[peer].release(place)

    def progress(self) -> bool:
        """Call `on_sent`, or the receive's `done`, for all that is done by now; True if something is.

        Raises:
            TransportError: a message has another size than its receive.
            PeerFailed: a peer's delegates are gone.
        """
        moved = self.neighbours.progress()
        for queue, handle in enumerate(self._handles):
            handle.flush()
            while (note := handle.back.take()) is not None:
                moved = True
                self._flows.hear(queue, *note)
        return moved

    def check(self) -> None:
        """Raise TransportError if a delegate has died, PeerFailed if a neighbour has."""
        for handle in self._handles:
            handle.check(self.rank)
        self._flows.check()
        self.neighbours.check()

    @property
    def pids(self) -> list[int | None]:
        """Of the delegates, by queue."""
        return [handle.pid for handle in self._handles]

    def close(self) -> None:
        """End the delegates, once what they have to say has left; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            for handle in self._handles:
                handle.close()
            self.neighbours.close()
            deadline_s = self._machine.now_s() + END_S
            for handle in self._handles:
                handle.end(deadline_s)
        finally:
            self.arena.close()


def _rails_to(own: Mapping[str, Any], other: Mapping[str, Any], addresses: Sequence[Address]) -> list[Address | None]:
    """The address of each rail to a peer that listens at `addresses`; None where there is none."""
    return [address if is_joined else None for address, is_joined in zip(addresses, joined(own, other), strict=True)]
