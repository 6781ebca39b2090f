"""One TCP connection between two ranks: frames both ways, messages sent from where they lie, received where they go.

A frame is a header, of kind, tag, number and nbytes; with seals its digest follows, which is checked before anything
that the frame says is acted upon. DATA has its message behind it: up to WHOLE_NBYTES as a part of the frame, more as
records with a digest each. LONG is DATA whose message is in records whatever its size. Bytes of a record are in the
receiver's memory before its digest has been checked; the message counts as received only afterwards.
"""

import hmac
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from lanterne.transport.seal import record_nbytes
from lanterne.transport.tls import TlsSocket
from lanterne.transport.wire import SEAL_NBYTES, FrameSeal, FrameSeals, send_parts

HEADER = struct.Struct("<qqqq")
# DATA: a message. GRANT: the receive of a large message is posted, send it. OFFER: there is such a message of nbytes,
# not granted yet. BYE: nothing else comes. Others, up to LAST_KIND, are the owner's.
DATA, GRANT, OFFER, BYE, LONG = range(1, 6)
LAST_KIND = 15


WHOLE_NBYTES = 1 << 10  # chosen: a copy costs less than a part of its own
# From this size up a message waits for its GRANT.
PACED_NBYTES = 16 << 10  # a grant costs a round trip
# Bytes read or written before others have their turn, and parts in one system call.
TURN_NBYTES = 8 << 20
PARTS = 16
# Records of a message that are made ready, or received, at once.
RECORDS = 2  # chosen: of 256 KiB to 1 MiB, which caches still hold when they leave
INBOX_NBYTES = 32 << 10  # headers of many small messages
# A poll tells of a message that comes once so much of it is there, or all.
# 8 hosts at 25 MB/s, ring, 16 MiB: 850 wakes a call became 370, 4.1 s of CPU a GB 2.5; 64 KiB: 510, 3.0
WAKE_NBYTES = 256 << 10


class Owner(Protocol):
    """Who is told what comes."""

    def on_place(self, tag: int, number: int, nbytes: int, /) -> memoryview:
        """Where the `nbytes` bytes of a message that begins to come are to go."""
        ...

    def on_frame(self, kind: int, tag: int, number: int, nbytes: int, message: memoryview | None, /) -> None:
        """A frame has come. DATA: whole; `message` has its bytes, None: they are where `on_place` said."""
        ...


class Garbled(Exception):
    """What has come is not what was sent."""


class Duplex:
    """One end of a connection.

    Args:
        sock: connected, both sides proven.
        seals: None: nothing is digested.
    """

    def __init__(self, sock: socket.socket | TlsSocket, owner: Owner, seals: FrameSeals | None) -> None:
        self.sock = sock
        self._owner = owner
        # What the connection has read and nobody has taken, and no poll tells of: of an encrypted one.
        self._pending: Callable[[], int] = getattr(sock, "pending", int)
        self._seals = seals
        # Bytes that are to leave next; messages and frames after them; what to call once so many bytes have left.
        self._ready: deque[memoryview] = deque()
        self._later: deque[_Outgoing] = deque()
        self._ends: deque[tuple[int, Callable[[], object]]] = deque()
        self._put_nbytes = self._sent_nbytes = 0
        self._inbox = memoryview(bytearray(INBOX_NBYTES))
        self._start = self._end = 0
        self._seal_nbytes = SEAL_NBYTES if seals else 0
        self._body: _Incoming | None = None
        self._wakes = _Wakes(sock)

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def idle(self) -> bool:
        """Whether all that was put has left this process."""
        return not self._ready and not self._later

    @property
    def taking(self) -> tuple[int, int] | None:
        """Tag and number of the message that is coming in; None between messages."""
        return None if self._body is None else (self._body.tag, self._body.number)

    # -- sending

    def put(
        self,
        kind: int,
        tag: int = 0,
        number: int = 0,
        nbytes: int = 0,
        payload: bytes | memoryview = b"",
        done: Callable[[], object] | None = None,
    ) -> None:
        """Send a frame after those before; see `flush`.

        Args:
            payload: at most whole_nbytes, which are copied.
            done: called once all of it has left; None: nobody asks.
        """
        frame = HEADER.pack(kind, tag, number, nbytes)
        if payload:
            frame += payload
        if self._seals:
            frame += self._seals.out.of_frame(frame)
        if self._later:
            self._later.append(_Outgoing(memoryview(frame), None, done))
        else:
            self._add(memoryview(frame))
            if done is not None:
                self._ends.append((self._put_nbytes, done))

    def put_message(
        self,
        tag: int,
        number: int,
        message: memoryview,
        done: Callable[[], object] | None = None,
        landed: Callable[[], int] | None = None,
    ) -> None:
        """Send a message of more than WHOLE_NBYTES, or, with `landed`, of any size but 0.

        Args:
            done: called once its memory may change.
            landed: returns how many bytes of the message are in memory by now; None: all are.
        """
        self.put(DATA if landed is None else LONG, tag, number, message.nbytes)
        self._later.append(_Outgoing(message, self._seals and self._seals.out, done, landed))

    def _refill(self) -> None:
        """Make the next bytes ready: frames, and some records of a message, or all of it."""
        later = self._later
        while later and len(self._ready) < 2 * RECORDS:
            first = later[0]
            if first.seal is None and first.landed is None:
                self._add(first.rest)
            else:
                if (part := first.take()) is None:
                    break
                self._add(part)
                if first.seal is not None:
                    self._add(memoryview(first.seal.of_record(part)))
                if first.rest:
                    continue
            later.popleft()
            if first.done is not None:
                self._ends.append((self._put_nbytes, first.done))

    def _add(self, data: memoryview) -> None:
        self._ready.append(data)
        self._put_nbytes += data.nbytes

    def flush(self) -> bool:
        """Write what the connection takes now; True if it took something. Raises OSError if the connection is dead."""
        moved, ready = 0, self._ready
        while moved < TURN_NBYTES:
            if self._later and len(ready) < 2:
                self._refill()
            if not ready:
                break
            try:
                moved += send_parts(self.sock, ready, PARTS)
            except BlockingIOError:
                break
        self._sent_nbytes += moved
        while self._ends and self._ends[0][0] <= self._sent_nbytes:
            self._ends.popleft()[1]()
        return moved > 0

    # -- receiving

    def read(self) -> bool:
        """Read what has come; True if something has.

        Raises:
            OSError, EOFError: the connection is dead.
            Garbled: something else has come than was sent.
        """
        moved, is_more = 0, True
        while is_more and (moved < TURN_NBYTES or self._pending()):
            body = self._body
            try:
                if body is None:
                    asked = INBOX_NBYTES - self._end
                    got = self.sock.recv_into(self._inbox[self._end :])
                elif body.seal is None:
                    asked = body.target.nbytes
                    got = self.sock.recv_into(body.target)
                else:
                    buffers = body.buffers()
                    asked = sum(buffer.nbytes for buffer in buffers)
                    got = self.sock.recvmsg_into(buffers)[0]
            except BlockingIOError:
                break
            if not got:
                raise EOFError("it was closed")
            moved += got
            is_more = got == asked
            if body is None:
                self._end += got
                self._parse()
            elif body.advance(got):
                self._finish(body)
        self._wakes.at(1 if self._body is None else min(self._body.rest_nbytes, WAKE_NBYTES))
        return moved > 0

    def _parse(self) -> None:
        """Take the whole frames out of the inbox, and the beginning of a message."""
        inbox, least = self._inbox, HEADER.size + self._seal_nbytes
        while self._end - self._start >= least:
            start = self._start
            kind, tag, number, nbytes = HEADER.unpack_from(inbox, start)
            if not DATA <= kind <= LAST_KIND or nbytes < 0:
                raise Garbled(f"got a frame of kind {kind} with {nbytes} bytes")
            within = nbytes if kind == DATA and nbytes <= WHOLE_NBYTES else 0
            if self._end - start < least + within:
                break
            after = start + HEADER.size + within
            if self._seals:
                seal = self._seals.into.of_frame(inbox[start:after])
                if not hmac.compare_digest(seal, inbox[after : after + SEAL_NBYTES]):
                    raise Garbled("got a frame that its digest does not fit")
            self._start = after + self._seal_nbytes
            if kind in (DATA, LONG) and not within and nbytes:
                self._begin(tag, number, nbytes)
            else:
                self._owner.on_frame(kind, tag, number, nbytes, inbox[after - within : after])
        if self._start:
            # The beginning of a frame goes to the front.
            left = self._end - self._start
            inbox[:left] = bytes(inbox[self._start : self._end])
            self._start, self._end = 0, left

    def _begin(self, tag: int, number: int, nbytes: int) -> None:
        """Receive a message, of which a part may be in the inbox."""
        place = self._owner.on_place(tag, number, nbytes)
        body = self._body = _Incoming(tag, number, nbytes, place, self._seals and self._seals.into)
        while self._start < self._end and self._body is not None:
            buffer = body.buffers()[0]
            took = min(buffer.nbytes, self._end - self._start)
            buffer[:took] = self._inbox[self._start : self._start + took]
            self._start += took
            if body.advance(took):
                self._finish(body)

    def _finish(self, body: "_Incoming") -> None:
        self._body = None
        self._owner.on_frame(DATA, body.tag, body.number, body.nbytes, None)

    def divert(self, is_over: Callable[[int], bool]) -> None:
        """What comes of a tag that is over goes elsewhere than where it was wanted, and what leaves is kept in copies.

        Nobody keeps its memory as it is any more, and a digest is of what it was.
        """
        if self._body is not None and is_over(self._body.tag):
            self._body.move()
        self._ready = deque(memoryview(bytes(data)) for data in self._ready)
        for outgoing in self._later:
            outgoing.rest = memoryview(bytes(outgoing.rest))

    def close(self) -> None:
        self.sock.close()


class _Wakes:
    """After how many bytes a poll tells of a connection. Of an encrypted one nobody knows what has come: of each."""

    def __init__(self, sock: socket.socket | TlsSocket) -> None:
        self._sock = None if isinstance(sock, TlsSocket) else sock
        self._nbytes = 1

    def at(self, nbytes: int) -> None:
        """Tell once so many have come, or the end."""
        if nbytes != self._nbytes and self._sock is not None:
            self._nbytes = nbytes
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, nbytes)


class _Outgoing:
    """A message that is to leave, or a frame behind one; `rest` of it is not ready yet. `done`: None for a frame."""

    __slots__ = ("_nbytes", "done", "landed", "rest", "seal")

    def __init__(
        self,
        rest: memoryview,
        seal: FrameSeal | None,
        done: Callable[[], object] | None,
        landed: Callable[[], int] | None = None,
    ) -> None:
        self.rest = rest
        self.seal = seal
        self.done = done
        self.landed = landed
        self._nbytes = rest.nbytes

    def take(self) -> memoryview | None:
        """Return the next part that may leave, a record if there is a seal; None while it is not in memory."""
        nbytes = self.rest.nbytes
        if self.seal is not None:
            nbytes = min(record_nbytes(self._nbytes), nbytes)
        if self.landed is not None:
            here = self.landed() - (self._nbytes - self.rest.nbytes)
            if here <= 0 or (self.seal is not None and here < nbytes):
                return None
            nbytes = min(nbytes, here)
        part, self.rest = self.rest[:nbytes], self.rest[nbytes:]
        return part


class _Incoming:
    """A message that comes; `target`: where its next bytes go, or with a seal those that no record is open for."""

    __slots__ = ("_open", "_parts", "_record_nbytes", "nbytes", "number", "seal", "tag", "target")

    def __init__(self, tag: int, number: int, nbytes: int, target: memoryview, seal: FrameSeal | None) -> None:
        self.tag = tag
        self.number = number
        self.nbytes = nbytes
        self.target = target
        self.seal = seal
        self._record_nbytes = record_nbytes(nbytes)
        # The next records, each with its digest, and what of all these has not come.
        self._open: deque[tuple[memoryview, memoryview]] = deque()
        self._parts: deque[memoryview] = deque()
        self._open_records()

    def _open_records(self) -> None:
        while self.seal is not None and self.target and len(self._open) < RECORDS:
            record, self.target = self.target[: self._record_nbytes], self.target[self._record_nbytes :]
            proof = memoryview(bytearray(SEAL_NBYTES))
            self._open.append((record, proof))
            self._parts += (record, proof)

    @property
    def rest_nbytes(self) -> int:
        """What has not come, without the digests of records that are not open."""
        return self.target.nbytes + sum(part.nbytes for part in self._parts)

    def move(self) -> None:
        """The rest goes to memory of its own."""
        self.target = memoryview(bytearray(self.target.nbytes))
        if self._parts:
            rest_nbytes, count = self._parts[0].nbytes, len(self._parts)
            self._open = deque((memoryview(bytearray(record)), proof) for record, proof in self._open)
            parts = [part for pair in self._open for part in pair][-count:]
            parts[0] = parts[0][parts[0].nbytes - rest_nbytes :]
            self._parts = deque(parts)

    def buffers(self) -> Sequence[memoryview]:
        """Where the next bytes go."""
        return [self.target] if self.seal is None else list(self._parts)

    def advance(self, nbytes: int) -> bool:
        """So many bytes have come; True once all have. Raises Garbled."""
        if self.seal is None:
            self.target = self.target[nbytes:]
            return not self.target
        parts = self._parts
        while nbytes >= parts[0].nbytes:
            nbytes -= parts.popleft().nbytes
            if len(parts) % 2 == 0:
                record, proof = self._open.popleft()
                if not hmac.compare_digest(self.seal.of_record(record), proof):
                    raise Garbled("got a message that its digest does not fit")
                self._open_records()
                if not parts:
                    return True
        parts[0] = parts[0][nbytes:]
        return False
