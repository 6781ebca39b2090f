"""The ranks of a job and what they can tell each other before, and beside, any transport."""

import logging
import os
import socket
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, Self

from lanterne.errors import InputError, PeerFailed, TransportError, TransportTimeout, Unavailable
from lanterne.transport.board.seat import StoreSeat, unpack_record
from lanterne.transport.board.sequencer import Record
from lanterne.transport.machine import THIS_MACHINE, Machine
from lanterne.transport.store.connection import StoreLost
from lanterne.transport.store.meeting_names import is_over
from lanterne.transport.store.succession import LEAST_ELECTORS
from lanterne.transport.store.terms import ANY, Terms, unpack
from lanterne.transport.timeouts import LONGEST_S
from lanterne.transport.wire import RANK_NBYTES, Kind, pack_frame, pack_ranks, unpack_fields, unpack_ranks

if TYPE_CHECKING:
    from lanterne.transport.store.client import StoreClient
    from lanterne.transport.store.process import StoreProcess

# Those that must not go on in a forked child.
_open: "weakref.WeakSet[Group]" = weakref.WeakSet()
# As transport/store/membership/meetings.py has it.
BEGIN = "lanterne/begin"

log: logging.Logger = logging.getLogger(__name__)


# A look at the control socket costs a system call, so waiting loops take one only so often.
LOOK_S = 2e-3  # a look is a system call, 1 us
# What a rank sent before it left may still be on its way; a wait on it that lasts longer will never end.
LEFT_GRACE_S = 1.0  # what was sent before leaving may be on its way
# A meeting's answer comes so much after its limit, at most.
ANSWER_S = 5.0  # a busy store answers within a second
# How long it looks for the store that takes over from one that was lost.
RETURN_S = 8.0  # chosen: a store starts in a second, under load in five
# The same where nothing answers from the store's host any more, which the kernel has tried for 4 s.
CUT_S = 0.5  # chosen: a last look, after 4 s of the kernel's
# The same where stores stand by, of which one takes over as soon as most of the others follow it.
HEIRS_S = 2.5  # chosen: five elections
# So many hosts' stores decide who lives.
ELECTORS = 7  # chosen: three may be lost at once
# How long each heir of the store is tried, and how long it may take to take over.
HEIR_S = 0.25  # chosen: many times a connection's
TAKES_OVER_S = 2.0  # chosen: a few times what seven stores take
# So many answers of meetings a rank remembers, for those whom a store that was lost did not reach.
MAX_ANSWERS = 16  # chosen: meetings between two losses of a store


class Group:
    """The ranks of a job as one of them sees it. For one thread of each rank.

    Attributes:
        host: this host's identity; `hosts` has every rank's. Equal: same kernel, shared memory and network.
        store: None in a job of one rank.
        machine: that of the store's client.
        epoch: 0, or how often the job has grown since; `newcomers`: ranks that came in then.
        somebody_waits: to be taken in, as far as is known without asking.
        ends_together: set by who will call `end_together`, so that `leave` keeps the connection for it.
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
        self.somebody_waits: bool = False
        self._store_process = store_process
        self._failed: dict[int, str] = {}
        self._left: dict[int, float] = {}
        self._gone: dict[int, str] = {}  # both, first one first
        # By the key of a board, as long as somebody has a seat there.
        self._records: weakref.WeakValueDictionary[bytes, deque[Record]] = weakref.WeakValueDictionary()
        # What another store has to know, if this one is lost.
        self._roll = b""
        self._begun = not epoch
        self._answers: OrderedDict[bytes, list[bytes]] = OrderedDict()
        self._next_look = 0.0
        self._closed = False
        self._pid = os.getpid()
        if store is not None:
            self._join(store, timeout_s)

    def _join(self, store: "StoreClient", timeout_s: float | None) -> None:
        try:
            if self.epoch:
                self._roll = self._enter(store, timeout_s)
            else:
                (self._roll,) = store.call(Kind.JOIN, [self.rank, self.world_size], timeout_s)
            hosts = self.exchange("lanterne/hosts", self.host.encode(), timeout_s)
        except BaseException:
            store.close()
            raise
        self.hosts = tuple(host.decode(errors="replace") for host in hosts)
        self.machine.at_exit(self._leave_at_exit)
        _open.add(self)

    def _enter(self, store: "StoreClient", timeout_s: float | None) -> bytes:
        """The roll of this epoch, which is to begin."""
        try:
            return store.call(Kind.ENTER, [self.epoch, self.rank], timeout_s)[0]
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
        """Give every rank each rank's bytes: a list by rank. All ranks call it with the same `name`, in the same order.

        Raises:
            TransportTimeout: a rank did not come in time; names those.
            PeerFailed: a rank died or left before it came.
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

    def name_heirs(self, own: str, limit_s: float | None = None) -> None:
        """Agree which stores may take over from the job's, should it be lost. All ranks call it.

        Args:
            own: "host:port" of the one that stands by on this host, of one of its ranks; empty: of none.

        Raises:
            InputError: there are too few hosts for a majority.
        """
        if self.store is None:
            return
        host, port = self.store.address
        own = f"{host}:{port}" if self.rank == 0 else own
        names = [name.decode() for name in self.exchange("lanterne/heirs", own.encode(), limit_s)]
        found = electors_of(names, self.hosts)[:ELECTORS]
        if len(found) < LEAST_ELECTORS:
            count = len(found)
            raise InputError(
                f"LANTERNE_WITNESS: got hosts, and {count} of them, expected {LEAST_ELECTORS} or more: of two, neither "
                "knows whether the other is dead or cut off; let a third machine be the witness (lanterne witness)"
            )
        if self.rank == 0:
            fields: list[int | bytes] = []
            for name, at in found:
                fields += [name.encode(), pack_ranks(rank for rank, host in enumerate(self.hosts) if host == at)]
            self.store.call(Kind.ELECTORS, fields, limit_s)
        self.barrier("lanterne/electors", limit_s)
        self.store.heirs = tuple((host, int(port)) for host, _, port in (name.rpartition(":") for name, _ in found))
        self.store.returns = True

    def secret(self, purpose: bytes) -> bytes:
        """32 bytes for `purpose`, the same on every rank of this job, which nobody else can make."""
        return os.urandom(32) if self.store is None else self.store.secret(purpose)

    def survivors(
        self, name: str, ranks: Sequence[int], cut: Sequence[int], payload: bytes, limit_s: float
    ) -> dict[int, bytes]:
        """Those of `ranks` that live, with what each brought; all of them call it with the same `name` and `ranks`.

        Returns once all have come; those that have not `limit_s` after the first are declared dead, and of two with no
        path between them one.

        Args:
            cut: those that this rank cannot reach.

        Returns:
            Nothing where they meet to agree, and one of them shrinks the communicator instead.

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
                # The answer may come so late, too.
                self._come_back(error, until_s + ANSWER_S - self.machine.now_s())
            finally:
                self._check_alive()
        if not answer:
            return {}
        for over in [other for other in self._answers if is_over(other, key)]:
            del self._answers[over]
        self._answers[key] = answer
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)
        return {unpack_ranks(each[:RANK_NBYTES])[0]: each[RANK_NBYTES:] for each in answer}

    def _come_back(self, error: StoreLost, limit_s: float) -> None:
        """To the store that has taken over from the one that was lost, with what that has told this rank.

        Raises:
            StoreLost: `error`, where none will.
            TransportError: none did, or this rank does not reach it.
        """
        assert self.store is not None
        cut_s = HEIRS_S if self.store.heirs else CUT_S
        returns_s = cut_s if error.is_cut else RETURN_S
        lost, until_s = self.store, self.machine.now_s() + min(limit_s, returns_s)
        self._read_notices()
        fields, why = self._knows(), str(error)
        while self.store is lost:
            left_s = until_s - self.machine.now_s()
            if not lost.returns or (left_s <= 0 and not lost.heirs):
                raise error
            if left_s <= 0:
                raise self._cut_off(error, why)
            try:
                store = lost.successor(min(left_s, HEIR_S) if lost.heirs else left_s)
            except (StoreLost, TransportTimeout) as none:
                if not lost.heirs:
                    raise self._cut_off(error, str(none)) from error
                self.machine.sleep(LOOK_S)
                continue
            try:
                asks_s = max(left_s, TAKES_OVER_S) if lost.heirs else left_s
                (self._roll,) = store.call(Kind.RETURN, fields, asks_s)
                self.store = store
            except (StoreLost, TransportTimeout) as another:
                store.close()
                if not lost.heirs and not isinstance(another, StoreLost):
                    raise
                why = str(another)
                self.machine.sleep(LOOK_S)
            except BaseException:
                store.close()
                raise
        lost.close()
        # It may have ended again by now: whoever asks it next comes back to the one after it.
        with suppress(StoreLost):
            self._look()

    def _knows(self) -> list[int | bytes]:
        """What this rank tells another store: who it is, and what it was told."""
        frames = [
            pack_frame(Kind.DIED_NOTICE, 0, [rank, why.encode()])
            if rank in self._failed
            else pack_frame(Kind.LEFT_NOTICE, 0, [rank])
            for rank, why in self._gone.items()
        ]
        frames += [pack_frame(Kind.REPLY, 0, [key, *answer]) for key, answer in self._answers.items()]
        return [self.epoch, self.rank, self._begun, self._roll, b"".join(frames)]

    def _cut_off(self, error: StoreLost, why: str) -> TransportError:
        text = f"rank {self.rank} is cut off from its job: {error}; {why}; whoever reaches the store goes on"
        return TransportError(text)

    def grow(self, name: str, ranks: Sequence[int], terms: Terms, limit_s: float) -> "Group | None":
        """This rank's Group in the next epoch, with those that waited to be taken in; None: there were none.

        All living ranks of the job call it, with the same `name`, and `ranks`, which are they. The epoch is in force,
        and this one over, once all of it have said that they are ready (`begin`).

        Raises:
            InputError: ranks differ in their terms.
            PeerFailed: of this rank: it came too late, and is dead to the others.
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
            return None
        epoch, world_size, *newcomers = unpack_ranks(roll)
        before = sorted(unpack_ranks(each[:RANK_NBYTES])[0] for each in came)
        others = [rank for rank in range(world_size) if rank not in newcomers]
        rank = others[before.index(self.rank)]
        store = self.store.again(limit_s)
        return Group(rank, world_size, store, timeout_s=limit_s, epoch=epoch, newcomers=newcomers)

    @staticmethod
    def taken_in(
        store: "StoreClient", terms: Terms, wait_s: float, limit_s: float, place: int = ANY, number: int = -1
    ) -> "tuple[Group, Terms]":
        """The Group in the next epoch, and the Terms, of a job that takes this process in; `begin` says whether it has.

        Args:
            wait_s: for the ranks of the job; `limit_s` is that of each step from then on.
            place: the rank that it was at the start of the job; ANY; or SPARE: only a dead one's.
            number: of its guard; -1: none.

        Raises:
            TransportError: it is not taken in, and why.
        """
        fields: list[int | bytes] = [place, number, terms.pack(), int(wait_s * 1e3)]
        epoch, agreed, ranks = store.call(Kind.APPLY, fields, wait_s + ANSWER_S, "join")
        world_size, rank, *newcomers = unpack_ranks(ranks)
        group = Group(rank, world_size, store, timeout_s=limit_s, epoch=epoch, newcomers=newcomers)
        return group, unpack(agreed)

    def begin(self, limit_s: float) -> bool:
        """Whether all ranks of this epoch are ready for it: then it is in force, and the one before is over.

        If not, nothing has changed for the ranks that were there before. Raises as `survivors`.
        """
        self._begun = len(self.survivors(BEGIN, range(self.world_size), (), b"", limit_s)) == self.world_size
        return self._begun

    def take_over(self, before: "Group") -> None:
        """`before` was this rank's in the epoch before: leave that."""
        self._store_process, before._store_process = before._store_process, None
        before.leave()

    def barrier(self, name: str = "lanterne/barrier", timeout_s: float | None = None) -> None:
        """Return once every rank has called it. Raises as `exchange`."""
        self.exchange(name, b"", timeout_s)

    def check_peers(self, peers: Iterable[int] | None = None, done: Collection[int] | None = None) -> None:
        """Raise PeerFailed if one of the ranks `peers` (default: any) has died, or left left_grace_s ago although it is
        still waited for. For waiting loops: it never blocks.

        Args:
            done: those of `peers` of which nothing more can come once they have left (default: all).

        Raises:
            TransportError: the store is lost, so deaths could no longer be noticed.

        Cost: some 0.2 us; one system call every look_s.
        """
        try:
            if self.store is not None and not self._closed and self.machine.now_s() >= self._next_look:
                self._look()
                self._next_look = self.machine.now_s() + LOOK_S
        finally:
            # A death that was told before the store was lost says more than that loss.
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

    def open_board(self, key: str, rank: int, world_size: int) -> StoreSeat | None:
        """The Seat of `rank` at the store's board `key`, at which `world_size` ranks meet; None without a store."""
        if self.store is None:
            return None
        return StoreSeat(self.store, self._look, self._records, key, rank, world_size)

    @property
    def left(self) -> Collection[int]:
        """The ranks that have left in order, as far as is known without asking."""
        return self._left.keys()

    def failed(self) -> dict[int, str]:
        """The dead ranks and why, as far as is known without asking: a dict, first death first."""
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
        # Without a store there is nobody to tell.
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
        """Whether every rank is `willing` to end in order. MPI_Finalize would wait for ever for one that is not.

        For the end of the process, once, also after `leave`. Returns when all have said so, or one has not or has died,
        or after `limit_s`: False.
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
    """What processes have in common that share a kernel, its shared memory and its network (loopback): a str.

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


def electors_of(names: Sequence[str], hosts: Sequence[str]) -> list[tuple[str, str]]:
    """(name of the store, its host) of those that decide: the first of each host, or one host were a majority.

    Args:
        names: by rank, of the store that it has started; empty: of none.
        hosts: by rank.
    """
    found: dict[str, str] = {}
    for name, host in zip(names, hosts, strict=True):
        if name:
            found.setdefault(host, name)
    return [(name, host) for host, name in found.items()]
