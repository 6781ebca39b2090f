"""Delegates: processes that send and receive for a rank through shared memory, so that it never waits for a send.

A rank has one delegate per queue; the messages to and from a peer go to the queues in turn. What is to be sent is
written into the shared arena by whoever makes it, so handing it over is one note in a ring: nothing is copied and
nothing waits. Receives are given early, and come into the arena too; from a rank of this host they are read where the
sender wrote them, until they are released. Between ranks the delegates have rails
(rail.py); when one dies, in whatever moment, its messages go over the next, none lost and none twice (failover.py).
Paper: ADAPTRA, section 5.2 and 5.3.
"""

import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from .. import __file__ as front_door
from ..errors import InputError, PeerFailed, TransportError
from .bootstrap import address_of, listen_address
from .delegate_memory import RING_WORDS, Arena, Ring, check_machine, make_memory, map_memory
from .delegate_process import (
    CLOSE,
    DROPPED,
    LOST,
    MISFIT,
    OWN,
    RECEIVE,
    RECEIVED,
    RELEASE,
    SEND,
    SENT,
    SETUP_S,
)
from .group import host_identity
from .rail import MEMORY, listen

# Names of rails beside addresses and interfaces: "memory", between ranks of one host; "tcp", the address of this host.
TCP = "tcp"
DEFAULT_RAILS = (MEMORY, TCP)
MAX_QUEUES = 64
# How long delegates may take to end.
END_S = 3.0


def queues_needed(produced_per_s, carried_per_s):
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
        peers: the other ranks that have delegates for this one.
        exchange: a function that all ranks call alike: bytes -> the bytes of every rank, a list; called twice.
        queues: delegates, the same number on every rank.
        rails: names, the first that lives being used; as many on every rank.
        memory_nbytes: of the arena, at most.
        on_sent: called with what was given to `send` beside a message once its memory may change.

    Attributes: `addresses`, of the rails here; `arena`, and by peer `arenas`, those of the peers of this host, as
        memoryviews; `under_way`, how many messages handed over have not come yet; `dropped`, a list of (peer, queue,
        rail, time.monotonic()) of the rails that died.

    Raises:
        InputError: queues or rails that cannot be.
        Unavailable: this machine cannot share memory.
        TransportError: a delegate did not start, or found no rail to a peer.
    """

    def __init__(self, rank, peers, exchange, queues=1, rails=DEFAULT_RAILS, memory_nbytes=1 << 30, on_sent=id):
        check_machine()
        if not 1 <= queues <= MAX_QUEUES:
            raise InputError(f"queues: got {queues}, expected 1 to {MAX_QUEUES}")
        if not rails or len(set(rails)) < len(rails):
            raise InputError(f"rails: got {', '.join(rails) or 'none'}, expected different names, at least one")
        self.rank, self.peers, self.dropped, self._on_sent = rank, tuple(sorted(peers)), [], on_sent
        self.arena = Arena(memory_nbytes, "room for all messages that a rank sends and receives in an iteration")
        self.arenas, self.under_way = {}, 0
        self._flows = {peer: [_Flow() for _ in range(queues)] for peer in self.peers}
        self._closed = False
        self.addresses, self._processes, self._sends, self._receives = [], [], {}, {}
        try:
            self._start(exchange, queues, tuple(rails))
        except BaseException:
            self.close()
            raise

    def _start(self, exchange, queues, rails):
        error = None
        try:
            own = {"host": network_host(), "rails": list(rails), "peers": list(self.peers), "queues": queues}
            own["token"] = os.urandom(16).hex()
            every = [json.loads(told) for told in exchange(json.dumps(own).encode())]
            _check_agreed(every)
            several_hosts = len({other["host"] for other in every}) > 1
            if self.peers:
                self.addresses = [bind_address(name, several_hosts) for name in rails]
            token = every[0]["token"]
            if self.peers:
                for queue in range(queues):
                    self._processes.append(_Process(self.rank, queue, self.arena.fd, token, self.addresses))
            listening = [process.hear()["listen"] for process in self._processes]
        except Exception as failure:
            error, listening = failure, []
        # A failure is told, so that no rank waits for one that will not come.
        told = {"listen": listening, "error": str(error) if error else ""}
        every_told = [json.loads(data) for data in exchange(json.dumps(told).encode())]
        if error:
            raise error
        for rank, other in enumerate(every_told):
            if other["error"]:
                raise TransportError(f"delegate: rank {rank}: {other['error']}")
        for queue, process in enumerate(self._processes):
            process.say(**{str(peer): _rails_to(every, every_told, self.rank, peer, queue) for peer in self.peers})
        for process in self._processes:
            while "pid" not in (told := process.hear()):
                self.arenas[told["arena"]] = map_memory(told["fd"], os.fstat(told["fd"]).st_size)
                os.close(told["fd"])
            process.pid = told["pid"]
        # By peer, without end: what is under way in a queue, and its delegate, whose turn it is.
        for peer, flows in self._flows.items():
            pairs = list(zip(flows, self._processes, strict=True))
            self._sends[peer] = cycle([(flow.sends, process) for flow, process in pairs])
            self._receives[peer] = cycle([(flow.receives, process) for flow, process in pairs])

    def send(self, offset, nbytes, peer, departure_s, message):
        """Send `nbytes` bytes at `offset` of the arena to rank `peer`; `message` is for `on_sent`.

        Cost: 4 us, or 10 if the delegate must be woken; several times as much where the caches hold nothing of ours.
        """
        waiting, process = next(self._sends[peer])
        waiting.append(message)
        self.under_way += 1
        process.put(SEND, peer, offset, nbytes, int(departure_s * 1e9))

    def receive(self, offset, nbytes, peer, done):
        """Receive the next message from `peer` at `offset`.

        Once it is there `done(departure_s, None)` is called, or `done(departure_s, Lying)` if it is in the arena of the
        peer, where it stays as it is until `release`.
        """
        waiting, process = next(self._receives[peer])
        waiting.append(done)
        process.put(RECEIVE, peer, offset, nbytes)

    def release(self, lying):
        """A message in a peer's arena is not read any more. The peer is told at leisure; `hurry` makes it soon."""
        self._processes[lying.queue].put(RELEASE, lying.peer, lying.number, 0, hurried=False)

    def hurry(self):
        """See to it that what was released is told now."""
        for process in self._processes:
            process.hurry()

    def progress(self):
        """Call `on_sent`, or the receive's `done`, for all that is done by now; True if something is.

        Raises:
            TransportError: a delegate has died, or a message has another size than its receive.
            PeerFailed: a peer's delegates are gone.
        """
        moved = False
        for queue, process in enumerate(self._processes):
            while (note := process.back.take()) is not None:
                moved = True
                self._hear(queue, *note)
        return moved

    def _hear(self, queue, kind, peer, first, second, number):
        flow = self._flows[peer][queue]
        if kind == SENT:
            self.under_way -= first
            for _ in range(second):
                self._on_sent(flow.sends.popleft())
        elif kind == RECEIVED:
            lying = None if second == OWN else Lying(peer, queue, number, second)
            flow.receives.popleft()(first / 1e9, lying)
        elif kind == DROPPED:
            self.dropped.append((peer, queue, first, time.monotonic()))
        elif kind == LOST:
            raise PeerFailed(peer, "its delegates have left" if first else "its delegates are gone, on every rail")
        elif kind == MISFIT:
            raise TransportError(f"delegate: got a message of {first} bytes from rank {peer}, expected {second}")

    def check(self):
        """Raise TransportError if a delegate has died."""
        for process in self._processes:
            process.check(self.rank)

    @property
    def pids(self):
        """Of the delegates, by queue."""
        return [process.pid for process in self._processes]

    def close(self):
        """End the delegates, once what they have to say has left; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for process in self._processes:
            process.close()
        deadline_s = time.monotonic() + END_S
        for process in self._processes:
            process.end(deadline_s)
        self.arena.close()


class Lying(NamedTuple):
    """A message in the arena of a peer: where, and which it is of the flow in `queue`."""

    peer: int
    queue: int
    number: int
    offset: int


class _Flow:
    """What is under way with one peer in one queue, oldest first: messages, and what to call when one has come."""

    __slots__ = ("receives", "sends")

    def __init__(self):
        self.sends, self.receives = deque(), deque()


class _Process:
    """One delegate as its rank sees it."""

    def __init__(self, rank, queue, arena_fd, token, rails):
        self.queue, self.pid = queue, None
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        ring_fd = make_memory(16 * RING_WORDS)
        words = map_memory(ring_fd, 16 * RING_WORDS).cast("q")
        self._ring, self.back = Ring(words[:RING_WORDS]), Ring(words[RING_WORDS:])
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = (theirs.fileno(), self._wakeup, arena_fd, ring_fd)
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.delegate_process", *map(str, fds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=fds,
            cwd=Path(front_door).parents[1],
            start_new_session=True,
        )
        theirs.close()
        os.close(ring_fd)
        self._poll = select.poll()
        self._poll.register(self._control, select.POLLHUP)
        self.say(rank=rank, queue=queue, token=token, rails=rails)

    def say(self, **content):
        with suppress(OSError):  # it has ended; `hear` says so
            self._control.sendall(json.dumps(content).encode())

    def hear(self):
        """What the delegate says while it is set up, a dict; with `fd` if it hands over a file."""
        self._control.settimeout(2 * SETUP_S)
        try:
            data, fds, _, _ = socket.recv_fds(self._control, 1 << 20, 1)
        except TimeoutError:
            raise TransportError(f"delegate {self.queue}: not ready within {2 * SETUP_S:g} s") from None
        if not data:
            raise TransportError(f"delegate {self.queue}: {self._ended()} before it was ready")
        told = json.loads(data)
        if "error" in told:
            raise TransportError(told["error"])
        return told | {"fd": fd for fd in fds}

    def put(self, kind, peer, first, second, third=0, hurried=True):
        """Give the delegate a note; if it sleeps wake it, or leave that to the next one or to `hurry`."""
        ring = self._ring
        while not ring.put(kind, peer, first, second, third):
            # It takes notes at once, so this only lasts if it is stopped.
            self._wake()
            time.sleep(1e-4)
            if self._poll.poll(0):
                return  # `check` says why
        if hurried and ring.sleeps():
            self._wake()

    def hurry(self):
        """Wake the delegate if there are notes that it sleeps over."""
        if self._ring.sleeps():
            self._wake()

    def _wake(self):
        os.eventfd_write(self._wakeup, 1)

    def check(self, rank):
        """Raise TransportError if the delegate has died."""
        if self._poll.poll(0):
            raise TransportError(f"rank {rank}: its delegate {self.queue} {self._ended()}")

    def _ended(self):
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(END_S)
            if code >= 0:
                return f"ended with code {code}"
            return f"was killed by signal {-code} ({signal.Signals(-code).name})"
        return "does not answer"

    def close(self):
        """Tell the delegate to end."""
        if self.pid is None:
            self._control.close()
        else:
            self._ring.put(CLOSE, 0)
            self._wake()

    def end(self, deadline_s):
        """Return once it has ended, of itself or killed."""
        try:
            self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._control.close()
        os.close(self._wakeup)


def network_host():
    """Equal where memory is shared, and is to be used: not between the hosts of an emulated cluster."""
    return f"{host_identity()} {os.readlink('/proc/self/ns/net')}"


def bind_address(name, several_hosts):
    """What a delegate listens on for the rail `name`: MEMORY or an address."""
    if name == MEMORY:
        return MEMORY
    address = listen_address(several_hosts) if name == TCP else address_of(name)
    try:
        listen(address)[0].close()
    except OSError as error:
        raise InputError(
            f"rails: got {name!r}, expected memory, tcp, or an interface or address of this host ({error.strerror})"
        ) from error
    return address


def _check_agreed(every):
    """Raise InputError, the same on every rank, if what the ranks ask for does not fit together."""
    for rank, other in enumerate(every):
        for what in ("queues", "rails"):
            got, expected = (len(told[what]) if what == "rails" else told[what] for told in (other, every[0]))
            if got != expected:
                raise InputError(f"delegate: got {got} {what} on rank {rank}, expected {expected} as on rank 0")
        for peer in other["peers"]:
            if rank not in every[peer]["peers"]:
                raise InputError(f"delegate: got delegates on rank {rank} for rank {peer}, expected them on both")
            if not any(_joined(other, every[peer])):
                raise InputError(
                    f"rails: got {', '.join(other['rails'])} on rank {rank} and {', '.join(every[peer]['rails'])} on "
                    f"rank {peer}, expected one that joins them: memory needs a common host"
                )


def _joined(here, there):
    """Whether each rail joins two ranks, a list."""
    return [
        here["host"] == there["host"] if mine == theirs == MEMORY else MEMORY not in (mine, theirs)
        for mine, theirs in zip(here["rails"], there["rails"], strict=True)
    ]


def _rails_to(every, every_told, rank, peer, queue):
    """The address of each rail to `peer`; None where there is none."""
    addresses = every_told[peer]["listen"][queue]
    joined = _joined(every[rank], every[peer])
    return [address if is_joined else None for address, is_joined in zip(addresses, joined, strict=True)]
