"""What the ranks of a communicator tell each other beside the data: who is in which call, and why somebody failed.

A call that goes well says nothing here, so this costs nothing. A rank that has waited for stall_s tells all others its
call and the one before it (number and signature), and looks what they told. Two ranks in the same call with different
signatures: both raise InputError. A rank that is through its call already, as a root is, compares in the background
(Engine.attend). A rank that fails tells why, and the others raise the same error instead of waiting for their own
timeout. Whoever times out names the ranks that never came to the call; if all did, it follows what they told of whom
they wait for, to those that have fallen silent.

Nothing received is evaluated: a notice is a struct and text. A rank tells another at most ten times a second, and every
rank reads at least once a second while it makes calls, so reports do not pile up before a rank that is always late.
"""

import contextlib
import struct
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError, LanterneError, PeerFailed, Revoked, TransportError, TransportTimeout
from lanterne.transport.base import Recv, Request, Send, Transport
from lanterne.transport.waiting import MOVED, Moved, never, wait

NOTICE_NBYTES = 512
# kind, how many ranks it is about, number of the call; then those ranks, then text, padded with zeros.
HEADER = struct.Struct("<iiq")
# That many ranks are told at most: the text needs room too.
MAX_RANKS = 32
IN_CALL, MISMATCH, TIMEOUT, PEER_FAILED, FAILED, REVOKED = range(6)


STALL_S = 0.1  # chosen: longer than a call of small arrays
READ_EVERY_S = 1.0
HISTORY = 1024  # calls that ranks may be apart
# How long a rank that failed waits for its notices to leave.
FAREWELL_S = 0.2
# A rank that waits tells so, and for whom, so often in the time that it waits at most; one of which nothing came in
# a third of that is silent.
TELLS_PER_LIMIT = 8
SILENT_LIMITS = 1 / 3


class Report(NamedTuple):
    """What a rank has told: the number and signature of its call, the transport ranks that it waits for; and when."""

    number: int
    signature: str
    waits_for: tuple[int, ...]
    heard_s: float


# A posted receive of a notice, and where it will be.
Expected: TypeAlias = tuple[Request, NDArray[np.uint8]]


class Control:
    """The control lane of one rank of a communicator.

    Args:
        transport: a transport with tags.
        ranks: transport rank of every member.
        rank: this one's index in `ranks`.
        tag: of the lane.

    Attributes: `number`, of the first call that is not complete here.
    """

    def __init__(self, transport: Transport, ranks: tuple[int, ...], rank: int, tag: int) -> None:
        self.number: int = 0
        self._transport = transport
        self._ranks = ranks
        self._rank = rank
        self._tag = tag
        self._receives: dict[int, Expected] = {}
        self._sends: deque[Request] = deque()
        # By peer: of which call it was told and when; what it has told.
        self._told: dict[int, tuple[int, float]] = {}
        self._reports: dict[int, Report] = {}
        # Signatures of this rank's latest calls, by number.
        self._calls: OrderedDict[int, str] = OrderedDict()
        self._next_read_s = self._transport.machine.now_s() + READ_EVERY_S

    def begin(self, number: int, signature: str) -> None:
        """This rank starts its call `number` (rising) with `signature`; those before it may be under way.

        Raises:
            InputError, PeerFailed, TransportTimeout, TransportError: another rank told so.

        Cost: 0.2 us; once a second, a microsecond per member.
        """
        self._calls[number] = signature
        if len(self._calls) > HISTORY:
            self._calls.popitem(last=False)
        if self._transport.machine.now_s() > self._next_read_s:
            self.read()

    def report(self, waits_for: Sequence[int], limit_s: float) -> None:
        """Tell the others in which call this rank is and for which transport ranks it waits, and read what they told.

        Args:
            limit_s: of the wait.

        Raises:
            InputError: another rank is in the same call with a different signature.
            PeerFailed, TransportTimeout, TransportError: another rank told so.
        """
        number, signature = self.number, self._calls.get(self.number, "")
        now_s = self._transport.machine.now_s()
        again_s = max(STALL_S, limit_s / TELLS_PER_LIMIT)
        for peer in self._others():
            told_number, told_s = self._told.get(peer, (-1, -inf))
            if now_s - told_s >= (STALL_S if told_number != number else again_s):
                self._told[peer] = number, now_s
                # Two ranks that were roots of one call have read nothing in it: only the next one stops.
                before = self._calls.get(number - 1)
                if told_number != number and before is not None:
                    self._send(peer, IN_CALL, (), number - 1, before)
                self._send(peer, IN_CALL, waits_for, number, signature)
        self.read()

    def read(self) -> None:
        """Take in what the others have told. Raises as `report`."""
        self._next_read_s = self._transport.machine.now_s() + READ_EVERY_S
        for peer in self._others():
            if peer not in self._receives:
                # What a rank has told before it left is there all the same: whoever was late then learns why.
                if self._transport.capabilities.connects_late and not self._lives(peer):
                    continue
                self._receives[peer] = self._receive(peer)
            request, buffer = self._receives[peer]
            while request.test():
                kind, count, number = HEADER.unpack_from(buffer.data)
                told = struct.Struct(f"<{min(max(count, 0), MAX_RANKS)}i")
                ranks = told.unpack_from(buffer.data, HEADER.size)
                text = buffer[HEADER.size + told.size :].tobytes().rstrip(b"\0").decode(errors="replace")
                request, buffer = self._receives[peer] = self._receive(peer)
                if kind != IN_CALL:
                    raise _error(kind, ranks, text)
                self._reports[peer] = Report(number, text, ranks, self._transport.machine.now_s())
                self._compare()
        while self._sends and self._sends[0].test():
            self._sends.popleft()
        self._compare()

    def absent(self) -> list[int]:
        """Transport ranks that have not told of the current call, or a later one."""
        return [
            self._ranks[peer]
            for peer in self._others()
            if peer not in self._reports or self._reports[peer].number < self.number
        ]

    def silent(self, waits_for: Sequence[int], limit_s: float) -> list[int]:
        """Transport ranks for which, over others, `waits_for` wait, and which told nothing of late; else those."""
        since_s = self._transport.machine.now_s() - limit_s * SILENT_LIMITS
        index = {rank: peer for peer, rank in enumerate(self._ranks)}
        own, found = self._ranks[self._rank], set[int]()
        seen, ahead = {own}, list(waits_for)
        while ahead:
            rank = ahead.pop()
            if rank in seen:
                continue
            seen.add(rank)
            report = self._reports.get(index[rank])
            if report is None or report.heard_s < since_s:
                found.add(rank)
            else:
                ahead += (other for other in report.waits_for if other in index)
        return sorted(found) or list(waits_for)

    def tell_failure(self, error: LanterneError) -> None:
        """Tell all others that this rank failed with `error`; returns once that has left, or after farewell_s."""
        kind, ranks = _kind(error, self._ranks[self._rank])
        for peer in self._others():
            self._send(peer, kind, ranks, 0, str(getattr(error, "reason", error)))
        wait(self._have_left, FAREWELL_S, self._transport.pauses)

    def listen(self, limit_s: float) -> None:
        """Read for up to `limit_s`: whoever caused what this rank suffers from may have told so. Raises as `report`."""
        wait(never, limit_s, self._transport.pauses, lambda _now_s: self.read())

    def _have_left(self) -> bool | Moved:
        """Whether nothing is on its way any more; MOVED: something has left."""
        before = len(self._sends)
        while self._sends:
            try:
                if not self._sends[0].test():
                    break
            except TransportError:
                pass  # It never leaves.
            self._sends.popleft()
        return not self._sends or (MOVED if len(self._sends) < before else False)

    def _compare(self) -> None:
        for peer, (number, theirs, _, _) in self._reports.items():
            # Calls before one that is another's are brought to their end.
            mine = self._calls.get(number) if number <= self.number else None
            if mine is not None and mine != theirs:
                (first, one), (second, other) = sorted([(self._rank, mine), (peer, theirs)])
                raise InputError(
                    f"call {number}: rank {first} got {one}, rank {second} got {other}, expected the same on every rank"
                )

    def _others(self) -> Iterator[int]:
        return (peer for peer in range(len(self._ranks)) if peer != self._rank)

    def _lives(self, peer: int) -> bool:
        try:
            self._transport.check_peers((self._ranks[peer],))
        except PeerFailed:
            return False
        except TransportError:
            pass  # The store is lost: nobody knows.
        return True

    def _send(self, peer: int, kind: int, ranks: Sequence[int], number: int, text: str) -> None:
        if not self._lives(peer):
            return
        buffer = np.zeros(NOTICE_NBYTES, np.uint8)
        told = ranks[:MAX_RANKS]
        notice = HEADER.pack(kind, len(told), number) + struct.pack(f"<{len(told)}i", *told) + text.encode()
        notice = notice[:NOTICE_NBYTES]
        buffer[: len(notice)] = np.frombuffer(notice, np.uint8)
        region = self._transport.register(buffer)
        # A peer that is gone by now needs no telling.
        with contextlib.suppress(TransportError):
            self._sends.append(self._transport.post((Send(region, 0, NOTICE_NBYTES, self._ranks[peer], self._tag),)))

    def _receive(self, peer: int) -> Expected:
        buffer = np.zeros(NOTICE_NBYTES, np.uint8)
        region = self._transport.register(buffer)
        return self._transport.post((Recv(region, 0, NOTICE_NBYTES, self._ranks[peer], self._tag),)), buffer


def _kind(error: LanterneError, rank: int) -> tuple[int, tuple[int, ...]]:
    """(kind, ranks) of the notice that stands for `error` of transport rank `rank`."""
    if isinstance(error, InputError):
        return MISMATCH, ()
    if isinstance(error, Revoked):
        return REVOKED, ()
    if isinstance(error, TransportTimeout):
        return TIMEOUT, error.peers
    if isinstance(error, PeerFailed):
        return PEER_FAILED, (error.rank,)
    if error.told or getattr(error, "rank_unknown", False):
        return FAILED, ()
    return PEER_FAILED, (rank,)


def _error(kind: int, ranks: tuple[int, ...], text: str) -> LanterneError:
    """The error that a notice stands for; `told` on it says that another rank has it to show."""
    error = _of_notice(kind, ranks, text)
    error.told = True
    return error


def _of_notice(kind: int, ranks: tuple[int, ...], text: str) -> LanterneError:
    if kind == MISMATCH:
        return InputError(text)
    if kind == REVOKED:
        return Revoked(text)
    if kind == TIMEOUT:
        return TransportTimeout(text, ranks)
    if kind == PEER_FAILED and ranks:
        return PeerFailed(ranks[0], text)
    error = TransportError(text)
    error.rank_unknown = True
    return error
