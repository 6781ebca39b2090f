"""A rail: one connection between two delegates, with framed messages, and how it is made.

A rail is a TCP connection; the same listeners and proofs join ranks of one host over Unix sockets (neighbours.py).
Whoever connects proves that it knows the job's token, as with the store (wire.py). Between hosts a digest follows each
frame, and each record of a message, unless LANTERNE_TRUSTED_NETWORK says that nobody else reaches the network.
"""

import contextlib
import hmac
import socket
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from lanterne.errors import TransportError
from lanterne.transport import wire
from lanterne.transport.door import Door
from lanterne.transport.duplex import LONG, Duplex
from lanterne.transport.machine import THIS_MACHINE, Machine
from lanterne.transport.networks import is_loopback, is_trusted
from lanterne.transport.tcp_info import tcp_info
from lanterne.transport.timeouts import NOTICE_S, RETRY_S
from lanterne.transport.waiting import never, wait

# What frames say beside DATA, LONG and BYE. DEPARTED: a zero, another, and the departure_ns of the message that
# follows. RECEIPT: a tag, its messages received and receives posted. SWITCH: index and life of a rail that was given
# up, and whether another transport still carries messages; GO answers it: index and life. PING: none; it is answered by
# SENT, a tag and its messages sent, and PONG.
DEPARTED, RECEIPT, SWITCH, GO, PING, SENT, PONG = range(LONG + 1, LONG + 8)
MEMORY = "memory"

GREETING = struct.Struct("<qqq")


# How often deaths are looked for while rails are made.
LOOK_S = 0.05
# A rail whose other end's kernel answers nothing for as long is left: where there is another, and the last one.
MUTE_MS = 500  # two timeouts, since one packet may be lost
SILENT_MS = 4000


class Greeting(NamedTuple):
    """What who connects says once it is proven: its rank, the rail's index, and how often that was made before."""

    rank: int
    rail: int
    life: int = 0


# Of a listener, as JSON tells it: of a rail of memory one name, of TCP host and port.
Address: TypeAlias = list[Any]
# Of each rail to a peer, None where there is none; by peer.
Addresses: TypeAlias = Mapping[int, Sequence[Address | None]]
# Raises PeerFailed if one of these ranks is known to be dead.
CheckDead: TypeAlias = Callable[[Iterable[int]], object]


class Proven(NamedTuple):
    """A connection whose ends have proven that they know the token, with its seals; None: nothing is sealed."""

    sock: socket.socket
    seals: wire.FrameSeals | None = None

    def rail(self, peer: int, index: int, life: int = 0) -> "Rail":
        """Return the Rail that this connection over TCP is; see there."""
        wire.configure(self.sock, lost_ms=SILENT_MS, may_stand=True)
        return Rail(self.sock, peer, index, life, self.seals)


class RailOwner(Protocol):
    """Part of whoever serves a rail that is told what comes; see Owner of duplex.py."""

    def on_rail_place(self, rail: "Rail", tag: int, number: int, nbytes: int, /) -> memoryview: ...
    def on_rail_frame(
        self, rail: "Rail", kind: int, tag: int, number: int, nbytes: int, message: memoryview | None, /
    ) -> None: ...


class Rail(Duplex):
    """One end of a connection, proven by both.

    Args:
        peer: the rank at the other end.
        index: of the rail among those of the two ranks.
        life: how often it was made again before.
        seals: of all that is said; None: nothing is sealed.

    Attributes: `owner`, whoever serves it; `departed_ns`, the departure of the message that comes, or 0.
    """

    owner: RailOwner
    departed_ns: int = 0

    def __init__(
        self, sock: socket.socket, peer: int, index: int, life: int = 0, seals: wire.FrameSeals | None = None
    ) -> None:
        super().__init__(sock, self, seals)
        self.peer = peer
        self.index = index
        self.life = life

    def on_place(self, tag: int, number: int, nbytes: int) -> memoryview:
        """See Owner."""
        return self.owner.on_rail_place(self, tag, number, nbytes)

    def on_frame(self, kind: int, tag: int, number: int, nbytes: int, message: memoryview | None) -> None:
        """See Owner."""
        self.owner.on_rail_frame(self, kind, tag, number, nbytes, message)

    def is_silent(self, limit_ms: int) -> bool:
        """Return whether the other end's kernel has answered nothing for so long; its process need do nothing."""
        return tcp_info(self.sock).is_silent(limit_ms)


class Meeting(NamedTuple):
    """Where a rank, or its delegate, makes its rails.

    Attributes:
        listeners, hosts: of this end's rails: sockets, and what `listen` was given.
        addresses: of the peers' rails.
    """

    listeners: Sequence[socket.socket]
    hosts: Sequence[str | None]
    addresses: Addresses
    rank: int
    token: str
    machine: Machine = THIS_MACHINE

    def close(self) -> None:
        """Close the listeners."""
        for sock in self.listeners:
            sock.close()


def listen(address: str, machine: Machine = THIS_MACHINE) -> tuple[socket.socket, Address]:
    """A socket that listens at `address`, MEMORY or the host of a TCP rail; and where peers connect to."""
    if address == MEMORY:
        sock = machine.listen_here()
        return sock, [sock.getsockname().decode("latin-1")]
    sock = machine.listen(address)
    return sock, list(sock.getsockname()[:2])


def connect(
    address: Address,
    source: str | None,
    token: str,
    greeting: Greeting,
    limit_s: float,
    machine: Machine = THIS_MACHINE,
    *,
    seals: bool = True,
    meanwhile: Callable[[], object] = lambda: None,
) -> Proven:
    """A connection to a listener's `address`, proven; says `greeting`.

    Args:
        source: this end's host on a TCP rail, which picks the network card.
        seals: whether frames are sealed between hosts; not of a connection that has seals of its own.
        meanwhile: called every look_s while the listener says nothing; ends it by raising.

    Raises:
        TransportError: nobody is there, or whoever is says nothing for `limit_s`, or does not know the token.
    """
    with contextlib.ExitStack() as opened:
        try:
            if len(address) == 1:
                sock = machine.connect_here(address[0].encode("latin-1"), limit_s)
            else:
                sock = machine.connect((address[0], address[1]), limit_s, source or "")
            opened.enter_context(sock)
            sealed = seals and len(address) > 1 and not (is_loopback(address[0]) or is_trusted())
            read = partial(_read, sock, machine, machine.now_s() + limit_s, meanwhile)
            proven = Proven(sock, _introduce(sock, read, address, token, greeting, sealed=sealed))
            sock.settimeout(limit_s)
        except OSError as error:
            raise TransportError(f"delegate: cannot connect to {_name(address)}: {error.strerror or error}") from error
        opened.pop_all()
    return proven


def _introduce(
    sock: socket.socket,
    read: Callable[[int], bytes],
    address: Address,
    token: str,
    greeting: Greeting,
    *,
    sealed: bool,
) -> wire.FrameSeals | None:
    """Prove to the listener, and let it prove, that both know the token; then greet it."""
    challenge = read(wire.CHALLENGE_NBYTES)
    answer, verdict, seals = wire.answer_challenge(wire.check_token(token), challenge, sealed=sealed)
    sock.sendall(answer)
    if not hmac.compare_digest(read(wire.VERDICT_NBYTES), verdict):
        raise TransportError(f"delegate: {_name(address)} does not know the job's token")
    sock.sendall(GREETING.pack(*greeting))
    return seals


def join(
    meeting: Meeting, limit_s: float, check_dead: CheckDead | None = None, *, seals: bool = True
) -> dict[tuple[int, int], Proven]:
    """Connect to the peers above this rank, let those below connect: (peer, index of the rail) -> connection.

    Args:
        check_dead: called with ranks, raises PeerFailed if one is known to be dead; None: nobody knows.
        seals: as `connect` has it.

    Raises:
        TransportError: a peer cannot be reached, or does not come within `limit_s` seconds; names it. None stays open.
        PeerFailed: one has died.
    """
    listeners, hosts, addresses, rank, token, machine = meeting

    def look_for_deaths(_now_s: float = 0.0) -> None:
        # Of any of them: all are needed.
        if check_dead is not None:
            check_dead(addresses)

    deadline_s = machine.now_s() + limit_s
    found: dict[tuple[int, int], Proven] = {}
    indexed = ((peer, index, at) for peer, theirs in addresses.items() for index, at in enumerate(theirs))
    expected = {(peer, index): at for peer, index, at in indexed if at is not None}
    with contextlib.ExitStack() as opened:
        for (peer, index), at in sorted(expected.items()):
            if peer > rank:
                try:
                    greeting = Greeting(rank, index)
                    proven = _connect_by(
                        machine, deadline_s, at, hosts[index], token, greeting, look_for_deaths, seals=seals
                    )
                except TransportError as error:
                    # Often the first sign of a death whose notice is on its way.
                    wait(never, NOTICE_S, machine.pauses(), look_for_deaths)
                    raise TransportError(f"rail to rank {peer}: {error}{_cure(peer, at)}") from error
                opened.enter_context(proven.sock)
                found[peer, index] = proven
        door = Door(listeners, token, machine, GREETING)
        opened.callback(door.close)
        while missing := expected.keys() - found.keys():
            left_s = deadline_s - machine.now_s()
            if left_s <= 0:
                refused = f"; refused were {wire.in_words(door.refused)}" if door.refused else ""
                cure = _cure(rank, [hosts[min(missing)[1]], 0])
                raise TransportError(
                    f"rail: rank {min(missing)[0]} did not connect within {limit_s:g} s{refused}{cure}"
                )
            for sock, (peer, index, _life), its_seals in door.look(min(left_s, LOOK_S)):
                if (key := (peer, index)) in missing:
                    sock.setblocking(True)
                    found[key] = Proven(opened.enter_context(sock), its_seals)
                else:
                    sock.close()
            look_for_deaths()
        opened.pop_all()
        door.close()
    return found


def _connect_by(
    machine: Machine,
    deadline_s: float,
    address: Address,
    source: str | None,
    token: str,
    greeting: Greeting,
    meanwhile: Callable[[], object],
    *,
    seals: bool,
) -> Proven:
    """As `connect`, again where the connection was lost: among a flood of strangers it may have had to make room."""
    while True:
        left_s = deadline_s - machine.now_s()
        try:
            limit_s = max(0.1, left_s)
            return connect(address, source, token, greeting, limit_s, machine, seals=seals, meanwhile=meanwhile)
        except TransportError as error:
            if left_s <= RETRY_S or not isinstance(error.__cause__, ConnectionResetError | BrokenPipeError):
                raise
        machine.sleep(RETRY_S)


def _read(sock: socket.socket, machine: Machine, until_s: float, meanwhile: Callable[[], object], nbytes: int) -> bytes:
    """So many bytes that come until then; the other end may be stopped, and be dead to the others by now."""
    data = b""
    while len(data) < nbytes:
        sock.settimeout(LOOK_S)
        try:
            got = sock.recv(nbytes - len(data))
        except TimeoutError:
            meanwhile()
            if machine.now_s() >= until_s:
                raise
            continue
        if not got:
            raise ConnectionResetError("it ended before it was proven")
        data += got
    return data


def _cure(rank: int, address: Address) -> str:
    """What to do where nobody reaches the `address` of rank `rank`."""
    if address[0] is None or len(address) == 1 or is_loopback(address[0]):
        return ""
    return f"; where {address[0]} is the wrong network, set LANTERNE_BIND on rank {rank} to an address that all reach"


def _name(address: Address) -> str:
    return "a peer on this host" if len(address) == 1 else f"{address[0]}:{address[1]}"
