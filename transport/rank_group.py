"""Group of a job's ranks, and the messages between them that need no transport."""

import logging
import os
import socket
import sys
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, Self

from lanterne.errors import InputError, PeerFailed, TransportError, TransportTimeout, Unavailable
from lanterne.transport.board.seat import StoreSeat, unpack_record
from lanterne.transport.board.sequencer import Record
from lanterne.transport.machine import THIS_MACHINE, Machine
from lanterne.transport.membership import Membership
from lanterne.transport.store.connection import StoreLost
from lanterne.transport.store.terms import ANY, Terms, unpack
from lanterne.transport.timeouts import LONGEST_S
from lanterne.transport.wire import RANK_NBYTES, Kind, pack_ranks, unpack_fields, unpack_ranks

if TYPE_CHECKING:
    from lanterne.transport.store.client import StoreClient
    from lanterne.transport.store.process import StoreProcess

# Groups that a forked child must not use.
_open: "weakref.WeakSet[Group]" = weakref.WeakSet()
# As transport/store/membership/meetings.py has it.
BEGIN = "lanterne/begin"

log: logging.Logger = logging.getLogger(__name__)
# Interval of a waiting loop's looks at the control socket: each is a system call, of 1 us.
LOOK_S = 2e-3
# Messages that a rank sent before it left may still be on their way for this long.
LEFT_GRACE_S = 1.0
# A busy store answers a meeting within this after its limit.
ANSWER_S = 5.0


class Group(Membership):
    """Ranks of a job as one of them sees it; for one thread of each rank.

    Attributes:
        host: this host's identity; `hosts` has every rank's. Equal ones share a kernel, its memory and its network.
        store: None in a job of one rank.
        machine: the one of the store's client.
        epoch: 0, or how often the job has grown since; `newcomers`: ranks that were taken in then.
        ends_together: set before a call of `end_together`, so that `leave` keeps the connection for it.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: "StoreClient | None" = None,
        store_process: "StoreProcess | None" = None,
        timeout_s: float | None = None,
        *,
        epoch: int = 0,
        newcomers: Sequence[int] = (),
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.machine: Machine = THIS_MACHINE if store is None else store.machine
        self.host: str = host_identity()
        self.hosts: tuple[str, ...] = (self.host,)
        self.ends_together = False
        self.epoch = epoch
        self.newcomers: tuple[int, ...] = tuple(newcomers)
        self._store_process = store_process
        self._failed: dict[int, str] = {}
        self._left: dict[int, float] = {}
        self._gone: dict[int, str] = {}  # both, first one first
        # By the key of a board, as long as a seat is open there.
        self._records: weakref.WeakValueDictionary[bytes, deque[Record]] = weakref.WeakValueDictionary()
        self._next_look = 0.0
        self._closed = False
        self._pid = os.getpid()
        if store is not None:
            self._join(store, timeout_s)

    def _join(self, store: "StoreClient", timeout_s: float | None) -> None:
        try:
            if self.epoch:
                self._enter(store, timeout_s)
            else:
                store.call(Kind.JOIN, [self.rank, self.world_size], timeout_s)
            hosts = self.exchange("lanterne/hosts", self.host.encode(), timeout_s)
        except BaseException:
            store.close()
            raise
        self.hosts = tuple(host.decode(errors="replace") for host in hosts)
        self.machine.at_exit(self._leave_at_exit)
        _open.add(self)

    def _enter(self, store: "StoreClient", timeout_s: float | None) -> None:
        """Take part in this epoch, which is to begin."""
        try:
            store.call(Kind.ENTER, [self.epoch, self.rank], timeout_s)
        except TransportTimeout:
            raise
        except TransportError as refused:
            # A store that has taken over meanwhile knows of no such epoch: no rank is to blame for that.
            refused.rank_unknown = True
            raise

    @property
    def reached_from(self) -> str:
        """The own address by which this rank has reached the job's store; empty without one."""
        return "" if self.store is None else self.store.reached_from

    @property
    def ranks_here(self) -> int:
        """How many ranks share this host's cores. LANTERNE_RANKS_HERE says it where several hosts are one machine."""
        text = os.environ.get("LANTERNE_RANKS_HERE", "1")
        if not text.isdecimal():
            raise InputError(f"LANTERNE_RANKS_HERE: got {text!r}, expected a number of ranks")
        return max(self.hosts.count(self.host), int(text))

    def exchange(self, name: str, payload: bytes, timeout_s: float | None = None) -> list[bytes]:
        """Return each rank's bytes, by rank. All ranks call it with the same `name`, in the same order.

        Raises:
            TransportTimeout: ranks did not arrive in time; names them.
            PeerFailed: a rank died or left before it arrived.
        """
        if self.store is None:
            return [bytes(payload)]
        encoded = name.encode()
        self._look()
        self._check_all_present()
        try:
            return self.store.call(
                Kind.GATHER, [encoded, payload], timeout_s, f"exchange {name!r}", self._check_all_present
            )
        except TransportTimeout as error:
            absent = self.store.call(Kind.ABSENT, [encoded], 1.0)
            names = ", ".join(map(str, absent))
            refused = self.store.refused()
            raise TransportTimeout(
                f"{error}: rank {self.rank} waits for rank {names}" + (f"; {refused}" if refused else ""), absent
            ) from error

    def secret(self, purpose: bytes) -> bytes:
        """Return 32 bytes for `purpose`, the same on every rank of this job, and secret."""
        return os.urandom(32) if self.store is None else self.store.secret(purpose)

    def survivors(
        self, name: str, ranks: Sequence[int], cut: Sequence[int], payload: bytes, limit_s: float
    ) -> dict[int, bytes]:
        """Return the living of `ranks`, with the payload of each; all call it with the same `name` and `ranks`.

        It returns once all have arrived. Those that have not, `limit_s` after the first, are declared dead. So is one
        of two ranks with no path between them.

        Args:
            cut: the ranks that this one cannot reach.

        Returns:
            Nothing where the meeting is to agree, and one of its ranks shrinks the communicator instead.

        Raises:
            PeerFailed: of this rank: it is dead to the others.
            TransportError: the store is lost.
        """
        if self.store is None:
            return {self.rank: payload}
        key, until_s = name.encode(), self.machine.now_s() + limit_s
        fields: list[int | bytes] = [key, pack_ranks(ranks), pack_ranks(cut), payload, int(limit_s * 1e3)]
        while True:
            try:
                whole_s = limit_s + ANSWER_S
                answer = self.store.call(Kind.MEET, fields, whole_s, f"meet at {name!r}", self._check_alive)
                break
            except StoreLost as error:
                # The answer may be that late, too.
                self._come_back(error, until_s + ANSWER_S - self.machine.now_s())
            finally:
                self._check_alive()
        if not answer:
            return {}
        return {unpack_ranks(each[:RANK_NBYTES])[0]: each[RANK_NBYTES:] for each in answer}

    def _come_back(self, error: StoreLost, limit_s: float) -> None:
        """Go on at the store that takes over from the one that was lost.

        Raises:
            StoreLost: `error`, where the job ends with its store.
            TransportError: none took over, or this rank does not reach it.
        """
        assert self.store is not None
        lost, until_s = self.store, self.machine.now_s() + limit_s
        if lost.successor is None:
            raise error
        self._read_notices()
        while self.store is lost:
            left_s = max(0.0, until_s - self.machine.now_s())
            try:
                store = lost.successor(left_s)
            except TransportError as why:
                raise TransportError(f"rank {self.rank} is cut off from its job: {error}; {why}") from error
            try:
                store.call(Kind.ENTER, [self.epoch, self.rank], left_s)
                self.store = store
            except (StoreLost, TransportTimeout):
                store.close()  # It has ended as well.
            except BaseException:
                store.close()
                raise
        lost.close()
        # If it has ended as well, the next request finds the one after it.
        with suppress(StoreLost):
            self._look()

    def grow(self, name: str, ranks: Sequence[int], terms: Terms, limit_s: float) -> "Group | None":
        """Return this rank's Group in the next epoch, with the processes that waited; None where none did.

        All living ranks of the job call it, with the same `name`, and themselves as `ranks`. The next epoch is in
        force, and this one over, once all its ranks have called `begin`.

        Raises:
            InputError: ranks differ in their terms.
            PeerFailed: of this rank: it arrived too late, and is dead to the others.
            TransportError: the store is lost, or `ranks` are not all that live.
        """
        assert self.store is not None
        self._look()
        self.somebody_waits = False
        fields: list[int | bytes] = [name.encode(), pack_ranks(ranks), terms.pack(), int(limit_s * 1e3)]
        try:
            *came, roll = self.store.call(Kind.GROW, fields, limit_s + ANSWER_S, "grow", self._check_alive)
        finally:
            self._check_alive()
        for each in came:
            if why := unpack(each[RANK_NBYTES:]).refusal(terms):
                raise InputError(f"grow: rank {unpack_ranks(each[:RANK_NBYTES])[0]}: {why}")
        if not roll:
            # A rank has died meanwhile: the processes still wait.
            self.somebody_waits |= len(came) < len(ranks)
            return None
        epoch, world_size, *newcomers = unpack_ranks(roll)
        before = sorted(unpack_ranks(each[:RANK_NBYTES])[0] for each in came)
        others = [rank for rank in range(world_size) if rank not in newcomers]
        rank = others[before.index(self.rank)]
        store = self.store.again(limit_s)
        return Group(rank, world_size, store, timeout_s=limit_s, epoch=epoch, newcomers=newcomers)

    @staticmethod
    def taken_in(
        store: "StoreClient", terms: Terms, limit_s: float, place: int = ANY, number: int = -1
    ) -> "tuple[Group, Terms]":
        """Return the Group in the next epoch of a job that takes this process in, and its Terms; then call `begin`.

        Args:
            limit_s: for the ranks of the job, and of each step from then on.
            place: the rank that it was at the start of the job; or ANY.
            number: the one of its guard; -1 without a guard.

        Raises:
            TransportError: it is not taken in; says why.
        """
        fields: list[int | bytes] = [place, number, terms.pack(), int(limit_s * 1e3)]
        epoch, agreed, ranks = store.call(Kind.APPLY, fields, limit_s + ANSWER_S, "join")
        world_size, rank, *newcomers = unpack_ranks(ranks)
        group = Group(rank, world_size, store, timeout_s=limit_s, epoch=epoch, newcomers=newcomers)
        return group, unpack(agreed)

    def begin(self, limit_s: float) -> bool:
        """Return whether all ranks of this epoch are ready: then it is in force, and the one before is over.

        Else nothing has changed for the ranks that were there before. Raises as `survivors`.
        """
        return len(self.survivors(BEGIN, range(self.world_size), (), b"", limit_s)) == self.world_size

    def take_over(self, before: Membership) -> None:
        """Leave `before`, this rank's Group of the epoch before."""
        assert isinstance(before, Group)
        self._store_process, before._store_process = before._store_process, None
        before.leave()

    def barrier(self, name: str = "lanterne/barrier", timeout_s: float | None = None) -> None:
        """Return once every rank has called it. Raises as `exchange`."""
        self.exchange(name, b"", timeout_s)

    def check_peers(self, peers: Iterable[int] | None = None, done: Collection[int] | None = None) -> None:
        """Raise PeerFailed if a rank of `peers` (default: any) has died, or has left LEFT_GRACE_S ago. It never blocks.

        Args:
            done: the ranks of `peers` that send nothing more once they have left (default: all).

        Raises:
            TransportError: the store is lost, so deaths could no longer be noticed.

        Cost: some 0.2 us; one system call every LOOK_S.
        """
        try:
            if self.store is not None and not self._closed and self.machine.now_s() >= self._next_look:
                self._look()
                self._next_look = self.machine.now_s() + LOOK_S
        finally:
            # A death that was reported before the store was lost says more than that loss.
            if self._failed:
                self._check_alive()
                peers = self._failed if peers is None else frozenset(peers)
                # The first to die first: it may be why the others did.
                for rank, reason in self._failed.items():
                    if rank in peers:
                        raise PeerFailed(rank, reason)
        if self._left and peers is not None:
            done = frozenset(peers if done is None else done)
            # Again the first to go: this rank may have heard of all of them at once.
            for rank, left_s in self._left.items():
                if rank in done and self.machine.now_s() - left_s > LEFT_GRACE_S:
                    raise PeerFailed(rank, "it has left the job")

    def on_one_host(self, ranks: Iterable[int]) -> bool:
        return self.machine is THIS_MACHINE and len({self.hosts[rank] for rank in ranks}) == 1

    def open_board(self, key: str, rank: int, world_size: int) -> StoreSeat | None:
        if self.store is None:
            return None
        return StoreSeat(self.store, self._look, self._records, key, rank, world_size)

    @property
    def left(self) -> Collection[int]:
        return self._left.keys()

    def failed(self) -> dict[int, str]:
        return dict(self._failed)

    def check_mpi_world(self, size: int) -> None:
        """Raise Unavailable if MPI made a world of `size` ranks, not of ours: two MPI installations are mixed up.

        So that a user reads it once, the ranks other than 0 end quietly with the same exit code (3).
        """
        if size == self.world_size:
            return
        self.close()
        refuse_mixed_mpi(self.rank, size, self.world_size)

    def leave(self) -> None:
        """Say goodbye: the end of this process is no death from now on. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self.store is None or os.getpid() != self._pid:
            return
        self.machine.not_at_exit(self._leave_at_exit)
        # Without a store no rank would hear of it.
        with suppress(TransportError):
            if self._store_process is not None and (refused := self.store.refused()):
                log.warning("lanterne: %s", refused)
            self.store.call(Kind.LEAVE, timeout_s=5.0)
        if not self.ends_together:
            self.store.close()
        if self._store_process is not None:
            self._store_process.close()

    close = leave

    def end_together(self, willing: bool, limit_s: float = LONGEST_S) -> bool:
        """Return whether every rank is `willing` to end in order. MPI_Finalize would wait for ever for one that is not.

        Call it once, at the end of the process, also after `leave`. It returns False once one is not willing or has
        died, or after `limit_s`.
        """
        if self.store is None:
            return willing
        self._leave_at_exit()
        try:
            return willing and bool(self.store.call(Kind.END, [1], limit_s)[0])
        except TransportError:
            return False
        finally:
            self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _leave_at_exit(self) -> None:
        # A script that just ends has left. An uncaught exception, or an end after another's death, is a death.
        if self._failed or hasattr(sys, "last_value"):
            self.abandon()
        self.leave()

    def abandon(self) -> None:
        """End without goodbye: the others learn that this rank has died."""
        self._closed = True
        if self.store is not None:
            self.store.close()

    def _look(self) -> None:
        assert self.store is not None
        try:
            self.store.pump()
        finally:
            self._read_notices()

    def _read_notices(self) -> None:
        assert self.store is not None
        notices = self.store.notices
        while notices:
            try:
                kind, body = notices.popleft()
            except IndexError:
                return  # Another thread was quicker.
            if kind == Kind.DIED_NOTICE:
                rank, reason = unpack_fields(body, "ib")
                self._failed.setdefault(rank, reason.decode(errors="replace"))
                self._gone.setdefault(rank, self._failed[rank])
            elif kind == Kind.LEFT_NOTICE:
                (rank,) = unpack_fields(body, "i")
                self._left[rank] = self.machine.now_s()
                self._gone.setdefault(rank, "it has left the job")
            elif kind == Kind.WAITING_NOTICE:
                self.somebody_waits = True
            elif kind == Kind.RECORD_NOTICE:
                key, record = unpack_record(body)
                if (records := self._records.get(key)) is not None:
                    records.append(record)

    def _check_alive(self) -> None:
        """Raise PeerFailed of this rank if the others have gone on without it."""
        self._read_notices()
        if self.rank in self._failed:
            raise PeerFailed(self.rank, self._failed[self.rank])

    def _check_all_present(self) -> None:
        self._read_notices()
        # Who went first: others may have failed because of it.
        for rank, reason in self._gone.items():
            raise PeerFailed(rank, reason)


def _forget_in_child() -> None:
    for group in list(_open):
        group.abandon()


os.register_at_fork(after_in_child=_forget_in_child)


def host_identity() -> str:
    """Return a str that is equal for processes that share a kernel, its shared memory and its network (loopback).

    LANTERNE_HOST_ID overrides it.
    """
    if "LANTERNE_HOST_ID" in os.environ:
        return os.environ["LANTERNE_HOST_ID"]
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return " ".join((file.read().strip(), *map(os.readlink, ("/proc/self/ns/ipc", "/proc/self/ns/net"))))
    except OSError:
        return socket.gethostname()


def refuse_mixed_mpi(rank: int, size: int, expected: int) -> NoReturn:
    """Raise Unavailable on rank 0, end the others quietly: MPI made a world of `size` ranks, not of `expected`."""
    if rank != 0:
        sys.exit(3)
    if os.environ.get("LANTERNE_LAUNCHER") == "direct":
        raise Unavailable(
            "MPI: this job was launched without it; launch it with mpiexec, or use a transport that needs no MPI"
        )
    raise Unavailable(
        f"MPI: got a world of {size} ranks, expected {expected}: mpiexec and mpi4py use different MPIs; "
        "use the mpiexec of the one that `python -c 'from mpi4py import MPI; print(MPI.Get_library_version())'` names"
    )
