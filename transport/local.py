"""Ranks as threads of one process: for tests, notebooks and `lanterne.spawn`.

Every message is a rendezvous: whoever posts second copies straight from the sender's memory into the receiver's.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

import numpy as np

from lanterne.errors import InputError, PeerFailed, TransportError
from lanterne.transport.base import LANE_BITS, Capabilities, Operation, PostedOperation, Request, Send, Transport
from lanterne.transport.board.seat import LocalBoards, LocalSeat
from lanterne.transport.machine import THIS_MACHINE, Machine
from lanterne.transport.membership import Membership
from lanterne.transport.pauses import Pauses
from lanterne.transport.rank_group import LEFT_GRACE_S
from lanterne.transport.store.meeting_names import ends
from lanterne.transport.waiting import wait

# Above this size the copy goes through NumPy, which lets other threads run meanwhile.
COPY_UNLOCKED_NBYTES = 32 * 1024
# Why a rank is gone that has ended in order.
LEFT = "closed its transport"

# An operation, whose it is, whether it sends.
_Unmatched: TypeAlias = "tuple[PostedOperation, LocalTransport, bool]"


@dataclass
class _Meeting:
    end_s: float
    came: dict[int, bytes] = field(default_factory=dict)
    answer: dict[int, bytes] = field(default_factory=dict)
    is_over: bool = False


class LocalWorld:
    """What the ranks of one process share. Make one, then `transport(rank)` once for each rank."""

    def __init__(self, world_size: int, machine: Machine = THIS_MACHINE) -> None:
        if not isinstance(world_size, int) or world_size < 1:
            raise InputError(f"local world: got {world_size!r} ranks, expected at least 1")
        self.world_size = world_size
        self.machine = machine
        self.lock: threading.Lock = threading.Lock()
        # By (source, destination, tag), all sends or all receives, oldest first.
        self.unmatched: defaultdict[tuple[int, int, int], deque[_Unmatched]] = defaultdict(deque)
        # Rank -> (why it left, when others are to know, on the machine's clock).
        self.gone: dict[int, tuple[str, float]] = {}
        self.boards: LocalBoards = LocalBoards(machine)
        # By name: what the ranks that came bring; when the first one's time is over; what was agreed.
        self.meetings: dict[bytes, _Meeting] = {}

    def transport(self, rank: int, timeout_s: float | None = None) -> "LocalTransport":
        """The transport of `rank`; `timeout_s` is the default of its waits."""
        return LocalTransport(self, rank, timeout_s)


class LocalMembership(Membership):
    """What one thread of a LocalWorld knows of the others."""

    def __init__(self, world: LocalWorld, rank: int) -> None:
        self._world = world
        self._rank = rank

    def open_board(self, key: str, rank: int, world_size: int) -> LocalSeat:
        return LocalSeat(self._world.boards, key, rank, world_size)

    def check_peers(self, peers: Iterable[int] | None = None, done: Collection[int] | None = None) -> None:
        gone = self._world.gone
        if gone:
            # The others may have gone on without this one.
            for peer in (self._rank, *(list(gone) if peers is None else peers)):
                reason, from_s = gone.get(peer, ("", inf))
                if self._world.machine.now_s() >= from_s:
                    raise PeerFailed(peer, reason)

    @property
    def left(self) -> Collection[int]:
        # Other threads may leave meanwhile.
        return [rank for rank, (reason, _) in list(self._world.gone.items()) if reason == LEFT]

    def survivors(
        self, name: str, ranks: Sequence[int], cut: Sequence[int], payload: bytes, limit_s: float
    ) -> dict[int, bytes]:
        world, now_s, key = self._world, self._world.machine.now_s, name.encode()
        with world.lock:
            if self._rank in world.gone:
                raise PeerFailed(self._rank, world.gone[self._rank][0])
            meeting = world.meetings.setdefault(key, _Meeting(now_s() + limit_s))
            meeting.came[self._rank] = payload

        def look() -> bool:
            with world.lock:
                if not meeting.is_over:
                    meeting.is_over = any(
                        ends(other, key) and each.came.keys() & {*ranks} for other, each in world.meetings.items()
                    )
                if not meeting.is_over:
                    absent = [rank for rank in ranks if rank not in meeting.came and rank not in world.gone]
                    if absent and now_s() >= meeting.end_s:
                        why = f"it did not come when the others went on, within {limit_s:g} s"
                        world.gone.update((rank, (why, now_s())) for rank in absent)
                        absent = []
                    if not absent:
                        came = meeting.came
                        meeting.answer = {rank: came[rank] for rank in ranks if rank in came and rank not in world.gone}
                        meeting.is_over = True
                return meeting.is_over

        wait(look, inf, world.machine.pauses(world.world_size))
        with world.lock:
            # Those that are left out come no more.
            world.meetings.pop(key, None)
        if self._rank in world.gone and self._rank not in meeting.answer:
            raise PeerFailed(self._rank, world.gone[self._rank][0])
        return meeting.answer


class LocalTransport(Transport):
    """One thread's end of a LocalWorld."""

    name = "local"
    capabilities: Capabilities = Capabilities(receiver_paced_nbytes=0, shrinks=True)

    def __init__(self, world: LocalWorld, rank: int, timeout_s: float | None = None) -> None:
        if not 0 <= rank < world.world_size:
            raise InputError(f"local transport: got rank {rank}, expected 0 to {world.world_size - 1}")
        membership = LocalMembership(world, rank)
        super().__init__(rank, world.world_size, membership, machine=world.machine, timeout_s=timeout_s)
        self.world = world
        self.pauses: Pauses = world.machine.pauses(world.world_size)

    def _post(self, ops: Sequence[Operation]) -> Request:
        pending = [PostedOperation(op) for op in ops]
        matches: list[tuple[PostedOperation, PostedOperation, bool]] = []
        world = self.world
        with world.lock:
            for mine in pending:
                op = mine.op
                sending = type(op) is Send
                key = (self.rank, op.peer, op.tag) if sending else (op.peer, self.rank, op.tag)
                queue = world.unmatched[key]
                if queue and queue[0][2] != sending:
                    matches.append((mine, queue.popleft()[0], sending))
                    if not queue:
                        del world.unmatched[key]
                else:
                    queue.append((mine, self, sending))
        for mine, other, sending in matches:
            send, recv = (mine, other) if sending else (other, mine)
            _move(send, recv)
        return Request(self, pending)

    def _is_done(self, operation: PostedOperation) -> bool:
        if operation.error is not None:
            raise operation.error
        return operation.done

    def retire(self, communicator_id: int, *, orderly: bool) -> bool:
        world = self.world
        with world.lock:
            mine = [key for key in world.unmatched if key[2] >> LANE_BITS == communicator_id]
            if orderly and any(key[0] == self.rank and world.unmatched[key][0][2] for key in mine):
                return False
            for key in mine:
                kept = deque(entry for entry in world.unmatched[key] if entry[1] is not self)
                if kept:
                    world.unmatched[key] = kept
                else:
                    del world.unmatched[key]
        return True

    def abandon(self, peer: int, requests: Sequence[Request]) -> None:
        world = self.world
        posted = [each for request in requests for each in request._pending]
        with world.lock:
            for key in [key for key in world.unmatched if {key[0], key[1]} == {self.rank, peer}]:
                kept = deque(entry for entry in world.unmatched[key] if entry[0] not in posted)
                if kept:
                    world.unmatched[key] = kept
                else:
                    del world.unmatched[key]

    def fail(self, reason: str, grace_s: float = 0.0) -> None:
        """Leave the world because this rank's thread failed; the others' waits on it raise PeerFailed with `reason`.

        Args:
            grace_s: seconds for which they do not yet.
        """
        if not self.closed:
            self.closed = True
            self.world.gone[self.rank] = reason, self.machine.now_s() + grace_s

    def close(self) -> None:
        # Who is about to ask may have got this rank's last message since it looked.
        self.fail(LEFT, LEFT_GRACE_S)


def _move(send: PostedOperation, recv: PostedOperation) -> None:
    """Copy one matched message, and note that it is done; or the error if the sizes differ."""
    nbytes = send.op.nbytes
    if nbytes != recv.op.nbytes:
        send.error = recv.error = TransportError(
            f"local: rank {recv.op.peer} sent {nbytes} bytes to rank {send.op.peer}, which expected {recv.op.nbytes}"
        )
    elif nbytes < COPY_UNLOCKED_NBYTES:
        recv.view[:] = send.view
    else:
        np.copyto(np.frombuffer(recv.view, np.uint8), np.frombuffer(send.view, np.uint8))
    send.done = recv.done = True
