"""The sockets of a simulated world: streams in memory, between processes, with what befalls packets on the way.

They have the verbs of socket.socket that lanterne uses. A stream keeps its order; a lost packet comes later, a cut path
holds all up and, after the user timeout that wire.configure has set, ends the connection; without one, TCP_INFO tells
how long nothing was answered. A process that ends closes its sockets; one that leaves bytes unread resets them.
"""

import errno
import os
import select
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol, Self

from evaluation.simulation.baton import Actor, Baton
from lanterne.transport.machine import Wakeup
from lanterne.transport.tcp_info import ANSWERED_AT, RESENT_AT, UNACKED_AT

# Latencies of a packet, drawn between; when a path that takes nothing ends a connection that has no limit for it.
LATENCY_S = 2e-5, 3e-4
GIVEN_UP_S = 900.0
# How many bytes may be under way or unread, drawn between; below it, how often a part of them is taken all the same.
WINDOW_NBYTES = 1 << 9, 1 << 17
PARTLY = 0.1
# What a connection takes whole while nothing else is under way.
SURE_NBYTES = 256
FIRST_FD, FIRST_PORT = 10_000, 20_000
# What a poll sees.
POLLIN, POLLOUT = select.POLLIN, select.POLLOUT
FAILED_MASK = select.POLLERR | select.POLLHUP
FAILED = POLLIN | POLLOUT | FAILED_MASK


class Polled(Protocol):
    """What has a descriptor in this world.

    `events` is what a poll sees of it now, in bits of select.poll; `shut` closes it, by its owner or the owner's end;
    `peer_name`, the process at its other end.
    """

    owner: Actor
    # Those that have it registered, to be told when what a poll sees of it changes.
    watchers: "list[tuple[SimulatedPoller, int]]"

    @property
    def peer_name(self) -> str: ...
    def events(self) -> int: ...
    def shut(self) -> None: ...


class SimulatedNetwork:
    """All sockets of a world.

    Attributes: `opened`, every connected socket ever, in order; `listeners`, by (host, port); `by_fd`, all that has a
    descriptor; `cuts`: {(name of who sends, of who is not reached): until when, in simulated seconds}; `delays`, by
    name of who sends, by how many seconds its next packet is late; `window_nbytes`, how much of a stream is taken that
    nobody has read.
    """

    def __init__(self, baton: Baton) -> None:
        self.baton = baton
        self.opened: list[SimulatedSocket] = []
        self.listeners: dict[tuple[str, int], SimulatedListener] = {}
        self.by_fd: dict[int, Polled] = {}
        self.cuts: dict[tuple[str, str], float] = {}
        self.delays: dict[str, float] = {}
        self._fds = FIRST_FD
        self._ports = FIRST_PORT
        self.window_nbytes: int = round(2 ** baton.random.uniform(*(size.bit_length() for size in WINDOW_NBYTES)))

    def new_fd(self, sock: "Polled") -> int:
        """A descriptor for `sock`, until `forget`."""
        self._fds += 1
        self.by_fd[self._fds] = sock
        return self._fds

    def listen(self, host: str, port: int) -> "SimulatedListener":
        """A listener of the process that has the baton; `port` 0: any that is free. Raises OSError: it is taken."""
        if not port:
            self._ports += 1
            port = self._ports
        if (host, port) in self.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        listener = SimulatedListener(self, self._owner(), (host, port))
        self.listeners[host, port] = listener
        return listener

    def _owner(self) -> Actor:
        return self.baton.here

    def connect(self, address: tuple[str, int], limit_s: float) -> "SimulatedSocket":
        """The near end of a new connection, within `limit_s` simulated seconds, which its timeout then is.

        Raises:
            TimeoutError: the path is cut for longer.
            ConnectionRefusedError: nobody listens there.
        """
        baton, owner = self.baton, self._owner()
        baton.note(f"connects to {address[0]}:{address[1]}")
        until_s = baton.now_s + limit_s
        wait_s = 2 * baton.random.uniform(*LATENCY_S)
        while True:
            began_s = baton.now_s
            while baton.now_s < min(until_s, began_s + wait_s):
                baton.block(min(until_s, began_s + wait_s))
            wait_s = min(2 * wait_s, 0.2)
            listener = self.listeners.get((address[0], address[1]))
            if listener is None or not (self.is_cut(owner, listener.owner) or self.is_cut(listener.owner, owner)):
                break
            if baton.now_s >= until_s:
                raise TimeoutError(errno.ETIMEDOUT, "timed out")
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        here, there = (SimulatedSocket(self, end, listener.address) for end in (owner, listener.owner))
        here.peer, there.peer = there, here
        there.was_accepted = True
        self.opened += [here, there]
        listener.backlog.append(there)
        changed(listener)
        baton.wake(listener.owner)
        here.settimeout(limit_s)
        return here

    def is_cut(self, sender: Actor, receiver: Actor) -> bool:
        """Whether what `sender` sends now does not reach `receiver`."""
        return self.cuts.get((sender.name, receiver.name), 0.0) > self.baton.now_s

    def cut(self, sender: str, receiver: str, until_s: float, *, one_way: bool = False) -> None:
        """Nothing that the process `sender` sends reaches `receiver`, until then, nor, but `one_way`, the reverse."""
        for pair in [(sender, receiver)] if one_way else [(sender, receiver), (receiver, sender)]:
            self.cuts[pair] = max(self.cuts.get(pair, 0.0), until_s)

    def reset(self, one: Actor, other: Actor, which: float) -> None:
        """Reset one of the connections between two processes; `which`, of 1, chooses."""
        ends = [
            sock
            for sock in self.by_fd.values()
            if isinstance(sock, SimulatedSocket) and sock.owner is one and sock.peer.owner is other
        ]
        for end in ends[int(which * len(ends)) :][:1]:
            for each in (end, end.peer):
                each.fail(errno.ECONNRESET)

    def forget(self, fd: int) -> None:
        """Nothing is behind `fd` any more."""
        sock = self.by_fd.pop(fd, None)
        if sock is not None:
            changed(sock)

    def close_all(self, owner: Actor) -> None:
        """The process `owner` has ended."""
        for sock in list(self.by_fd.values()):
            if sock.owner is owner:
                sock.shut()


def changed(sock: Polled) -> None:
    """What a poll sees of `sock` may not be what it was."""
    for poller, fd in sock.watchers:
        poller.changed(fd)


class SimulatedWakeup(Wakeup):
    """See Wakeup."""

    peer_name = "itself"

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network
        self.owner: Actor = network.baton.here
        self.is_set: bool = False
        self.watchers: list[tuple[SimulatedPoller, int]] = []
        super().__init__(network.new_fd(self))

    def events(self) -> int:
        return POLLIN if self.is_set else 0

    def set(self) -> None:
        self.network.baton.step()
        self.is_set = True
        changed(self)
        self.network.baton.wake(self.owner)

    def clear(self) -> None:
        self.is_set = False
        changed(self)

    def shut(self) -> None:
        self.network.forget(self._fd)

    close = shut


class Passage:
    """What has left one end of a stream and not come to the other, in order, and what befalls it.

    Attributes: `held_since_s`: since when a cut path holds it up; None while it passes.
    """

    def __init__(self, end: "SimulatedSocket") -> None:
        self._end = end
        self._last_s = 0.0
        self._under_way: deque[Callable[[], object]] = deque()
        self.held_since_s: float | None = None
        self._unheard_since_s: float | None = None

    def deliver(self, event: Callable[[], object]) -> None:
        """Let `event` happen at the other end, after all that was sent before."""
        network, baton = self._end.network, self._end.baton
        delay_s = baton.random.uniform(*LATENCY_S) + network.delays.pop(self._end.owner.name, 0.0)
        self._last_s = max(self._last_s + 1e-9, baton.now_s + delay_s)
        self._under_way.append(event)
        baton.after(self._last_s - baton.now_s, self._pass)

    def _pass(self, again: bool = False) -> None:
        """The first of what is on its way comes; if the path is cut, all, in order, once it is not, or never."""
        end, peer, baton = self._end, self._end.peer, self._end.baton
        if self.held_since_s is not None and not again:
            return
        if not end.network.is_cut(end.owner, peer.owner):
            for _ in range(1 if self.held_since_s is None else len(self._under_way)):
                if self._under_way:
                    self._under_way.popleft()()
            self.held_since_s = None
            if end.network.is_cut(peer.owner, end.owner):
                self._miss()
            return
        if self.held_since_s is None:
            self.held_since_s = baton.now_s
        if baton.now_s > self.held_since_s + (end.user_timeout_s or GIVEN_UP_S):
            for each in (end, peer):
                each.fail(errno.ETIMEDOUT)
            return
        baton.after(0.05, lambda: self._pass(again=True))

    def _miss(self) -> None:
        """What was sent has come, but not to the sender that it has; its kernel gives up in the end."""
        if self._unheard_since_s is None:
            self._unheard_since_s = self._end.baton.now_s
            self._hear()

    def _hear(self) -> None:
        end, peer, baton = self._end, self._end.peer, self._end.baton
        assert self._unheard_since_s is not None
        if not end.network.is_cut(peer.owner, end.owner):
            self._unheard_since_s = None
        elif baton.now_s > self._unheard_since_s + (end.user_timeout_s or GIVEN_UP_S):
            end.fail(errno.ETIMEDOUT)
        else:
            baton.after(0.05, self._hear)

    @property
    def unsure_since_s(self) -> float | None:
        """Since when the sender has sent the same again and again."""
        since_s = [each for each in (self.held_since_s, self._unheard_since_s) if each is not None]
        return min(since_s, default=None)

    def tcp_info(self, nbytes: int) -> bytes:
        """TCP_INFO of the sender: how often the same bytes were sent again, and for how long nothing was answered."""
        info, since_s = bytearray(nbytes), self.unsure_since_s
        if since_s is not None and (unanswered_s := self._end.baton.now_s - since_s) >= 0.6:
            info[RESENT_AT], info[UNACKED_AT] = 2, 1
            struct.pack_into("<I", info, ANSWERED_AT, round(1e3 * unanswered_s))
        return bytes(info)


class SimulatedHandle:
    """What a process holds of the network: one end of a stream, or a listener. See socket.socket.

    Attributes: `is_closed`, by the process or by its end; `timeout_s`, of its verbs.
    """

    def __init__(self, network: SimulatedNetwork, owner: Actor, address: tuple[str, int]) -> None:
        self.network = network
        self.baton: Baton = network.baton
        self.owner = owner
        self.address = address
        self.is_closed: bool = False
        self.timeout_s: float | None = None
        self.watchers: list[tuple[SimulatedPoller, int]] = []
        self._fd = network.new_fd(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def peer_name(self) -> str:
        raise NotImplementedError

    def events(self) -> int:
        raise NotImplementedError

    def shut(self) -> None:
        """Close, by the process or by its end."""
        raise NotImplementedError

    def fileno(self) -> int:
        return -1 if self.is_closed else self._fd

    def getsockname(self) -> tuple[str, int]:
        return self.address

    def setblocking(self, flag: bool) -> None:
        self.timeout_s = None if flag else 0.0

    def settimeout(self, seconds: float | None) -> None:
        self.timeout_s = seconds

    def close(self) -> None:
        if not self.is_closed:
            self.baton.note(f"closes the connection with {self.peer_name}")
            self.shut()

    def until(self, is_ready: Callable[[], bool]) -> None:
        """Wait, as this handle's timeout allows, until `is_ready`."""
        self.baton.step()
        if self.is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if is_ready():
            return
        if self.timeout_s == 0.0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        self.baton.wait(is_ready, inf if self.timeout_s is None else self.baton.now_s + self.timeout_s)
        if not is_ready():
            raise TimeoutError("timed out")


class SimulatedListener(SimulatedHandle):
    """Takes connections. `backlog`: who has connected and was not accepted."""

    def __init__(self, network: SimulatedNetwork, owner: Actor, address: tuple[str, int]) -> None:
        super().__init__(network, owner, address)
        self.backlog: deque[SimulatedSocket] = deque()

    @property
    def peer_name(self) -> str:
        return "nobody"

    def events(self) -> int:
        return POLLIN if self.backlog else 0

    def accept(self) -> "tuple[SimulatedSocket, tuple[str, int]]":
        self.until(lambda: bool(self.backlog))
        self.baton.note("accepts")
        found = self.backlog.popleft()
        changed(self)
        return found, self.address

    def shut(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.network.forget(self._fd)
            self.network.listeners.pop(self.address, None)
            for waiting in self.backlog:
                waiting.shut()


class SimulatedSocket(SimulatedHandle):
    """One end of a stream.

    Attributes: `peer`, the other end, which whoever makes the two sets; `inbox`, what has come and was not read;
    `coming_nbytes`, what is under way to it; `sent`, all bytes ever, for who looks afterwards; `at_end`, whether
    nothing more comes; `error`, the errno of its failure; `user_timeout_s`, how long what is sent may stay unanswered,
    0: GIVEN_UP_S; `wakes_at_nbytes`, SO_RCVLOWAT: a poll tells of no fewer bytes, unless no more fit.
    """

    peer: "SimulatedSocket"

    def __init__(self, network: SimulatedNetwork, owner: Actor, address: tuple[str, int]) -> None:
        super().__init__(network, owner, address)
        self.inbox: bytearray = bytearray()
        self.coming_nbytes = 0
        self.sent: bytearray = bytearray()
        self.was_accepted = False
        self.at_end = False
        self.error: int | None = None
        self.user_timeout_s: float = 0.0
        self.wakes_at_nbytes: int = 1
        self.passage: Passage = Passage(self)

    @property
    def peer_name(self) -> str:
        return self.peer.owner.name

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if (level, option) == (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT):
            self.user_timeout_s = value / 1e3
        elif (level, option) == (socket.SOL_SOCKET, socket.SO_RCVLOWAT):
            self.wakes_at_nbytes = value
            changed(self)

    def getpeername(self) -> tuple[str, int]:
        return self.peer.address

    def getsockopt(self, _level: int, _option: int, nbytes: int) -> bytes:
        """TCP_INFO."""
        return self.passage.tcp_info(nbytes)

    # -- what a poll sees

    def events(self) -> int:
        if self.error:
            return FAILED
        is_enough = len(self.inbox) >= min(self.wakes_at_nbytes, self.network.window_nbytes)
        found = POLLIN if is_enough or self.at_end else 0
        return found | POLLOUT if self._room() > 0 else found

    def _room(self) -> int:
        return self.network.window_nbytes - len(self.peer.inbox) - self.peer.coming_nbytes

    # -- verbs

    def recv(self, nbytes: int) -> bytes:
        self.until(self._has_come)
        return bytes(self._take(nbytes))

    def recv_into(self, buffer: memoryview, nbytes: int = 0) -> int:
        self.until(self._has_come)
        taken = self._take(nbytes or buffer.nbytes)
        buffer[: len(taken)] = taken
        return len(taken)

    def _has_come(self) -> bool:
        return bool(self.inbox or self.at_end or self.error)

    def _take(self, nbytes: int) -> bytearray:
        """What has come, so much at most."""
        taken = self.inbox[:nbytes]
        if not taken:
            if self.error:
                raise _os_error(self.error)
            return taken
        del self.inbox[: len(taken)]
        changed(self)
        self.baton.note(f"reads {len(taken)} B of {self.peer_name}")
        changed(self.peer)  # It has room again.
        self.baton.wake(self.peer.owner)
        return taken

    def send(self, data: Any) -> int:
        self.until(self._takes)
        if self.error:
            raise _os_error(self.error)
        view, random = memoryview(data).cast("B"), self.baton.random
        taken = min(view.nbytes, self._room())
        is_idle = not self.peer.inbox and not self.peer.coming_nbytes
        if taken > (SURE_NBYTES if is_idle else 1) and random.random() < PARTLY:
            taken = random.randint(1, taken)
        chunk = bytes(view[:taken])
        self.baton.note(f"sends {taken} B to {self.peer_name}")
        self.sent += chunk
        self.peer.coming_nbytes += taken
        changed(self)
        self.passage.deliver(lambda: self._arrive(chunk))
        return taken

    def _takes(self) -> bool:
        return self._room() > 0 or self.error is not None

    def sendmsg(self, parts: Sequence[Any]) -> int:
        return self.send(b"".join(parts))

    def sendall(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[self.send(view) :]

    def shut(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self.network.forget(self._fd)
        # Bytes that nobody will read are answered by a reset.
        unread = bool(self.inbox)
        if not self.peer.is_closed:
            self.passage.deliver(lambda: self._end(errno.ECONNRESET if unread else None))

    # -- on the way

    def _arrive(self, chunk: bytes) -> None:
        peer = self.peer
        peer.coming_nbytes -= len(chunk)
        if peer.is_closed:
            # The answer comes after what the other end sent before it closed.
            peer.passage.deliver(lambda: self.fail(errno.EPIPE))
            changed(self)
            return
        peer.inbox += chunk
        changed(peer)
        self.baton.wake(peer.owner)

    def _end(self, error: int | None) -> None:
        peer = self.peer
        peer.at_end = True
        changed(peer)
        if error:
            peer.fail(error)
        self.baton.wake(peer.owner)

    def fail(self, error: int) -> None:
        """The connection has failed."""
        if not self.is_closed and self.error is None:
            self.error = error
            changed(self)
            self.baton.wake(self.owner)


def _os_error(code: int) -> OSError:
    return OSError(code, os.strerror(code))


class SimulatedPoller:
    """See select.poll. It looks again only at what has changed since it looked."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self._network = network
        # By descriptor, in the order in which they were registered.
        self._masks: dict[int, int] = {}
        self._order: dict[int, int] = {}
        self._count = 0
        self._dirty: set[int] = set()
        # What the last look found, by descriptor, and as it was told.
        self._ready: dict[int, int] = {}
        self._found: list[tuple[int, int]] = []

    def register(self, fd: Any, eventmask: int = POLLIN) -> None:
        number = _fd_of(fd)
        if number not in self._masks:
            self._count += 1
            self._order[number] = self._count
            sock = self._network.by_fd.get(number)
            if sock is not None:
                sock.watchers.append((self, number))
        self._masks[number] = eventmask
        self.changed(number)

    modify = register

    def unregister(self, fd: Any) -> None:
        number = _fd_of(fd)
        del self._masks[number]
        sock = self._network.by_fd.get(number)
        if sock is not None:
            sock.watchers.remove((self, number))
        self.changed(number)

    def changed(self, fd: int) -> None:
        """The next look may find something else of `fd`."""
        self._dirty.add(fd)

    def look(self) -> list[tuple[int, int]]:
        """What there is now."""
        if self._dirty:
            by_fd, masks, ready = self._network.by_fd, self._masks, self._ready
            for fd in self._dirty:
                events = 0
                if fd in masks:
                    sock = by_fd.get(fd)
                    events = select.POLLNVAL if sock is None else sock.events() & (masks[fd] | FAILED_MASK)
                if events:
                    ready[fd] = events
                elif fd in ready:
                    del ready[fd]
            self._dirty.clear()
            self._found = sorted(ready.items(), key=self._position) if len(ready) > 1 else list(ready.items())
        return self._found

    def _position(self, item: tuple[int, int]) -> int:
        return self._order[item[0]]

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        baton = self._network.baton
        baton.step()
        if timeout_ms != 0:
            baton.wait(self.look, inf if timeout_ms is None or timeout_ms < 0 else baton.now_s + timeout_ms / 1e3)
        return list(self.look())


class SimulatedEpoll(SimulatedPoller):
    """See Epoll."""

    peer_name = "an epoll"

    def __init__(self, network: SimulatedNetwork) -> None:
        super().__init__(network)
        self.owner: Actor = network.baton.here
        self.watchers: list[tuple[SimulatedPoller, int]] = []
        self._fd = -1

    def fileno(self) -> int:
        """Readable when one of its own is ready."""
        if self._fd < 0:
            self._fd = self._network.new_fd(self)
        return self._fd

    def events(self) -> int:
        return POLLIN if self.look() else 0

    def changed(self, fd: int) -> None:
        super().changed(fd)
        changed(self)

    def shut(self) -> None:
        self._network.forget(self._fd)

    close = shut


class SimulatedSelector(selectors.BaseSelector):
    """See selectors.DefaultSelector."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self._poller = SimulatedEpoll(network)
        self._keys: dict[int, selectors.SelectorKey] = {}

    def fileno(self) -> int:
        """As of an epoll, readable when one of its own is."""
        return self._poller.fileno()

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, _fd_of(fileobj), events, data)
        self._keys[key.fd] = key
        read, write = bool(events & selectors.EVENT_READ), bool(events & selectors.EVENT_WRITE)
        self._poller.register(key.fd, POLLIN * read | POLLOUT * write)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = next(key for key in self._keys.values() if key.fileobj is fileobj)
        self._poller.unregister(key.fd)
        return self._keys.pop(key.fd)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See selectors.BaseSelector."""
        found = self._poller.poll(None if timeout is None else timeout * 1e3)
        masks = [(self._keys[fd], events) for fd, events in found]
        read, write = selectors.EVENT_READ, selectors.EVENT_WRITE
        return [(key, read * bool(got & ~POLLOUT) | write * bool(got & POLLOUT)) for key, got in masks]

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[_fd_of(fileobj)]

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return {key.fileobj: key for key in self._keys.values()}

    def close(self) -> None:
        self._keys.clear()
        self._poller.close()


def _fd_of(fd: Any) -> int:
    number: int = fd if isinstance(fd, int) else fd.fileno()
    return number
