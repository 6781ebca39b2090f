"""Messages that tell their tag and size ahead, so that a receive may take those of any rank, any tag, any smaller size.

A message is a header on one lane and, unless it is empty, its bytes on another. What is received out of order lets the
bytes before it into memory of this rank's own first.
"""

# So that help() says `Array`, not all that it may be.
from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lanterne.collectives.execute.arguments import check_whole
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.execute.requests import CollectiveRequest, MessageRequest
from lanterne.collectives.message_lanes import DATA_LANE, HEADER_LANE
from lanterne.collectives.point_to_point import StartedMessages
from lanterne.errors import InputError
from lanterne.kernels.arrays import Array, HostArray, numpy_array
from lanterne.transport.base import Recv, Region, Request, Send, make_tag, timeout_error

# Tag and bytes.
HEADER = struct.Struct("<qq")


class Received(NamedTuple):
    """A message: the rank `source` sent `nbytes` bytes with `tag`."""

    source: int
    tag: int
    nbytes: int


class Mailbox:
    """Messages of host memory between the ranks of a communicator: its `mailbox()`.

    What is sent here is received here, and neither by the communicator's `recv` nor in the order of its messages.
    Messages from one rank that a receive could take come in the order in which they were started.
    Errors are as those of its messages; a receive from any rank also fails if one of them dies, or all have left.
    """

    def __init__(self, comm: CommunicatorBase, messages: StartedMessages) -> None:
        self._comm = comm
        self._messages = messages
        self._peers: dict[int, _Announcements] = {}
        self._waiting: list[MailRequest] = []
        self._announced = 0
        comm.transport.kept.append(self)  # Its receives stay posted.

    def send(self, array: Array, peer: int, *, tag: int = 0, timeout_s: float | None = None) -> None:
        """Send `array`, of any shape and dtype, to rank `peer`, with any tag from 0 to 2**63 - 1."""
        self.start_send(array, peer, tag=tag)._wait_as_call("send", timeout_s)

    def start_send(self, array: Array, peer: int, *, tag: int = 0) -> MessageRequest:
        """As `send`, but returns a request."""
        comm = self._comm
        comm.check_open()
        check_whole("send: got peer", peer, 0, comm.world_size - 1)
        check_whole("send: got tag", tag, 0, 2**63 - 1)
        region = comm.transport.register(np.ascontiguousarray(numpy_array(array, "send")))
        header = comm.transport.register(bytearray(HEADER.pack(tag, region.nbytes)))
        ends = comm.ranks[peer]
        ops = [Send(header, 0, HEADER.size, ends, make_tag(comm.communicator_id, HEADER_LANE))]
        if region.nbytes:
            ops.append(Send(region, 0, region.nbytes, ends, make_tag(comm.communicator_id, DATA_LANE)))
        return self._messages.post(ops)

    def recv(
        self, out_array: Array, peer: int | None = None, *, tag: int | None = None, timeout_s: float | None = None
    ) -> Received:
        """Receive the next message from rank `peer` (None: any) with `tag` (None: any); returns which that was.

        Args:
            out_array: of at least as many bytes as the message; what is beyond stays as it is.

        Raises:
            InputError: the message is longer; it can still be received.
        """
        request = self.start_recv(out_array, peer, tag=tag)
        request._wait_as_call("recv", timeout_s)
        assert request.received is not None, "it is done"
        return request.received

    def start_recv(self, out_array: Array, peer: int | None = None, *, tag: int | None = None) -> MailRequest:
        """As `recv`, but returns a request; receives take messages in the order in which they were started."""
        self._check("recv", peer, tag)
        array = numpy_array(out_array, "recv")
        if not array.flags.writeable:
            raise InputError("recv: got a read-only array, expected a writable one")
        request = MailRequest(self, array, peer, tag)
        # The engine's thread may look through those that wait.
        with self._comm.lock, self._comm.failing:
            self._waiting.append(request)
            self._comm.mail = self._progress
            self._progress()
        return request

    def probe(self, peer: int | None = None, *, tag: int | None = None) -> Received | None:
        """The next message that such a `recv` would take, if one is announced by now; None: not yet."""
        self._check("probe", peer, tag)
        with self._comm.lock, self._comm.failing:
            self._listen(peer)
            self._progress()
        found = self._next(peer, tag)
        return None if found is None else found.received

    def _check(self, what: str, peer: int | None, tag: int | None) -> None:
        self._comm.check_open()
        if peer is not None:
            check_whole(f"{what}: got peer", peer, 0, self._comm.world_size - 1)
        if tag is not None:
            check_whole(f"{what}: got tag", tag, 0, 2**63 - 1)

    def _listen(self, peer: int | None) -> None:
        """Be ready for the headers of `peer`, or of all."""
        comm = self._comm
        for source in range(comm.world_size) if peer is None else (peer,):
            if source not in self._peers:
                self._peers[source] = _Announcements(comm, source)

    def _progress(self) -> None:
        """Take in what was announced, and begin to receive what somebody waits for."""
        for request in self._waiting:
            self._listen(request._peer)
        for announcements in self._peers.values():
            self._announced = announcements.read(self._announced)
        for request in list(self._waiting):
            found = self._next(request._peer, request._tag)
            if found is not None:
                self._waiting.remove(request)
                request._take(found, self._peers[found.received.source])
        if not self._waiting:
            self._comm.mail = None

    def _next(self, peer: int | None, tag: int | None) -> _Announced | None:
        """The first announced message that a receive with these takes."""
        queues = self._peers.values() if peer is None else [self._peers[peer]] if peer in self._peers else []
        fitting = (
            next((message for message in queue.messages if tag in (None, message.received.tag)), None)
            for queue in queues
        )
        return min((message for message in fitting if message is not None), key=lambda each: each.number, default=None)


class _Announced:
    """A message whose header has come; `request` receives its bytes into `memory`, once somebody has asked for it."""

    __slots__ = ("memory", "number", "received", "request")

    def __init__(self, received: Received, number: int) -> None:
        self.received = received
        self.number = number
        self.request: Request | None = None
        self.memory: HostArray | None = None


class _Announcements:
    """What one rank has announced and nobody has received, in order."""

    def __init__(self, comm: CommunicatorBase, source: int) -> None:
        self._comm = comm
        self._source = source
        self.messages: list[_Announced] = []
        self._listen()

    def _post(self, region: Region, nbytes: int, lane: int) -> Request:
        comm = self._comm
        tag = make_tag(comm.communicator_id, lane)
        return comm.transport.post((Recv(region, 0, nbytes, comm.ranks[self._source], tag),))

    def _listen(self) -> None:
        self._header = bytearray(HEADER.size)
        self._request = self._post(self._comm.transport.register(self._header), HEADER.size, HEADER_LANE)

    def read(self, number: int) -> int:
        """Take in the headers that have come, numbered from `number` on; returns the next number."""
        while self._request.test():
            tag, nbytes = HEADER.unpack(self._header)
            self.messages.append(_Announced(Received(self._source, tag, nbytes), number))
            number += 1
            self._listen()
        return number

    def take(self, message: _Announced, out: HostArray | None) -> None:
        """Begin to receive `message`, into `out` if that is still possible and not None; nobody else gets it."""
        for before in self.messages[: self.messages.index(message)]:
            self._receive(before, None)
        self.messages.remove(message)
        self._receive(message, out)

    def _receive(self, message: _Announced, out: HostArray | None) -> None:
        nbytes = message.received.nbytes
        if message.request is not None or not nbytes:
            return
        message.memory = np.empty(nbytes, np.uint8) if out is None else None
        region = self._comm.transport.register(message.memory if out is None else out)
        message.request = self._post(region, nbytes, DATA_LANE)


class MailRequest(CollectiveRequest):
    """A receive of a Mailbox.

    Attributes: `received`, the Received, once it is done.
    """

    __slots__ = ("_array", "_box", "_message", "_peer", "_tag", "received")

    def __init__(self, box: Mailbox, array: HostArray, peer: int | None, tag: int | None) -> None:
        super().__init__(box._comm)
        self.received: Received | None = None
        self._box = box
        self._array: HostArray | None = array
        self._peer = peer
        self._tag = tag
        self._message: _Announced | None = None

    def _take(self, message: _Announced, queue: _Announcements) -> None:
        """Receive `message`, unless it is longer than the array."""
        assert self._array is not None
        self._message = message
        if message.received.nbytes <= self._array.nbytes:
            queue.take(message, self._array if self._array.flags.c_contiguous else None)

    def _poll(self) -> bool:
        if self.done:
            return True
        with self._communicator.lock, self._communicator.failing:
            if self._message is None:
                self._box._progress()
            message, array = self._message, self._array
            if message is None or array is None:
                return False
            nbytes = message.received.nbytes
            fits = nbytes <= array.nbytes
            if fits and message.request is not None and not message.request.test():
                return False
        if not fits:
            source, tag, _ = message.received
            raise InputError(
                f"recv: got a message of {nbytes} bytes from rank {source} with tag {tag}, expected at most "
                f"{array.nbytes}"
            )
        if message.memory is not None:
            _lay(array, message.memory)
        self.received = message.received
        self._message = self._array = None
        self.done: bool = True
        return True

    def _awaited(self) -> MailRequest:
        return self

    def _pending_peers(self) -> Sequence[int]:
        ranks, message = self._communicator.ranks, self._message
        if message is not None:
            return [ranks[message.received.source]]
        if self._peer is not None:
            return [ranks[self._peer]]
        # Those that have left send nothing more, the others may.
        left = self._communicator.transport.membership.left
        staying = [rank for rank in ranks if rank not in left]
        return staying if len(staying) > 1 else ranks

    def _expire(self, limit_s: float) -> None:
        communicator = self._communicator
        peers = communicator.control.silent(self._pending_peers(), limit_s)
        raise timeout_error(communicator.transport, peers, limit_s)


def _lay(array: HostArray, memory: HostArray) -> None:
    """Put the bytes `memory` at the start of `array`, of any layout."""
    if array.flags.c_contiguous:
        array.reshape(-1).view(np.uint8)[: memory.size] = memory
        return
    whole = np.ascontiguousarray(array)
    whole.reshape(-1).view(np.uint8)[: memory.size] = memory
    np.copyto(array, whole)
