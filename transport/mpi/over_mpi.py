"""Ranks as MPI processes, through mpi4py over any MPI."""

import atexit
import os
import sys
import warnings
from collections.abc import Collection, Iterable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from lanterne.errors import InputError, TransportError, Unavailable
from lanterne.transport.base import (
    COMMUNICATOR_BITS,
    LANE_BITS,
    Capabilities,
    Operation,
    PostedOperation,
    Recv,
    Region,
    Request,
    Send,
    Transport,
)
from lanterne.transport.mpi.library import is_cuda_aware, unlink_segments
from lanterne.transport.pauses import Pauses
from lanterne.transport.rank_group import Group
from lanterne.transport.timeouts import LONGEST_S, NOTICE_S
from lanterne.transport.waiting import never, wait

if TYPE_CHECKING:
    from mpi4py import MPI
# MPI messages of up to 2^31-1 bytes work everywhere; MPI 4 lifts the limit.
INT_MAX = 2**31 - 1


# MPI tells nobody that something has come.
LOOK_S = 1e-3  # MPI wakes nobody
# How long a process waits at its end for the others once one of them did not come in time.
PATIENCE_S = 2.0


def load_mpi() -> ModuleType:
    """`mpi4py.MPI`, set up so that a dead peer cannot hang our exit.

    MPI_Finalize waits for every rank, a dead one included, so it must not run after a failure. Where MPI is not loaded
    yet we finalize it ourselves; where the user loaded it, mpi4py will, unless the process leaves before.

    Raises:
        Unavailable: mpi4py or an MPI library is missing.
    """
    global _loaded  # noqa: PLW0603 (MPI is initialised once a process)
    if _loaded is None:
        ours = "mpi4py.MPI" not in sys.modules
        try:
            import mpi4py

            if ours:
                mpi4py.rc.finalize = False
            with warnings.catch_warnings():
                # check_mpi_world says it once and as an error, not a warning from every rank.
                warnings.filterwarnings("ignore", "suspicious MPI execution environment", RuntimeWarning)
                from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise Unavailable(
                f"mpi: cannot load mpi4py ({reason}); install it with: pip install mpi4py mpich"
            ) from error
        atexit.register(_at_exit, MPI, ours)
        _loaded = MPI
    return _loaded


_loaded: ModuleType | None = None
_failed = False


def skip_finalize() -> None:
    """A peer died: nobody can finalize MPI any more. Leave the process without it."""
    global _failed  # noqa: PLW0603 (MPI ends once a process)
    _failed = True


def finalize_with(group: Group) -> None:
    """Finalize MPI at exit only if every rank of `group` is able to."""
    group.ends_together = True
    if group not in _groups:
        _groups.append(group)


_groups: list[Group] = []


def _at_exit(MPI: Any, ours: bool) -> None:
    willing = not _failed and not hasattr(sys, "last_value")
    limit_s = {group: PATIENCE_S if group.ends_soon else LONGEST_S for group in _groups}
    together = all([group.end_together(willing, limit_s[group]) for group in _groups]) if _groups else willing
    if together and ours and not MPI.Is_finalized():
        MPI.Finalize()
    if not together and not ours:
        # The only way past mpi4py's own MPI_Finalize.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


class MpiTransport(Transport):
    """Point to point over a duplicate of MPI.COMM_WORLD.

    Args:
        group: it tells who died, since MPI never does. None: nobody tells.
        timeout_s: the default of every wait.

    Raises:
        Unavailable: no MPI here, or its world is not the group's: a launcher that gave worlds of size 1.
    """

    name = "mpi"
    shares_memory = True

    def __init__(self, group: Group | None = None, timeout_s: float | None = None) -> None:
        MPI = load_mpi()
        world = MPI.COMM_WORLD
        if group is not None:
            group.check_mpi_world(world.size)
            finalize_with(group)
        super().__init__(int(world.rank), int(world.size), group, timeout_s=timeout_s)
        self._mpi = MPI
        self._comm = world.Dup()
        # MPI uses the memory of these, whether or not anybody holds their requests.
        self._under_way: set[PostedOperation] = set()
        unlink_segments()
        self._lane_bits = _lane_bits(self._comm.Get_attr(MPI.TAG_UB))
        large = MPI.Get_version() >= (4, 0)
        self.capabilities: Capabilities = Capabilities(
            device_memory=is_cuda_aware(),
            max_message_nbytes=2**63 - 1 if large else INT_MAX,
            # Not the exact eager limit, which differs between MPIs, but a size that all of them send by rendezvous.
            receiver_paced_nbytes=1 << 20,
            lane_bits=self._lane_bits,
        )
        self.pauses: Pauses = self.machine.pauses(group.ranks_here if group is not None else world.size)
        if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
            self.background_s: float | None = LOOK_S

    def _post(self, ops: Sequence[Operation]) -> Request:
        comm, under_way = self._comm, self._under_way
        started: list[PostedOperation] = []
        tags = [self._fold_tag(op.tag) for op in ops]
        try:
            for op, tag in zip(ops, tags, strict=True):
                region, offset, nbytes, peer, _ = op
                start = comm.Isend if type(op) is Send else comm.Irecv
                operation = PostedOperation(op, start(self._memory(region, offset, nbytes), peer, tag))
                started.append(operation)
                under_way.add(operation)
        except self._mpi.Exception as error:  # a longer message is there already
            self.explain(error, {op.peer for op in ops})
        return Request(self, started)

    def _is_done(self, operation: PostedOperation) -> bool:
        if operation.error is not None:
            raise operation.error
        if operation.done:
            return True
        op, status = operation.op, self._mpi.Status()
        try:
            if not operation.request.Test(status):
                return False
        except self._mpi.Exception as error:
            self.explain(error, {op.peer})
        self._under_way.discard(operation)
        if type(op) is Recv and operation.misfits("mpi", status.count):
            return self._is_done(operation)  # which raises the error
        operation.done = True
        return True

    def _memory(self, region: Region, offset: int, nbytes: int) -> Any:
        """What mpi4py takes for `nbytes` of `region` from `offset`."""
        if region.device:
            return self._mpi.buffer.fromaddress(region.address + offset, nbytes)
        assert region.buffer is not None
        return region.buffer[offset : offset + nbytes]

    def _fold_tag(self, tag: int) -> int:
        """MPI's tag: it matches the source itself; communicator and lane share what it offers."""
        lane = tag & ((1 << LANE_BITS) - 1)
        if lane >> self._lane_bits:
            raise InputError(f"mpi: got lane {lane}, expected less than {1 << self._lane_bits} (MPI_TAG_UB)")
        return tag >> LANE_BITS << self._lane_bits | lane

    @property
    def mpi_communicator(self) -> "MPI.Intracomm":
        """The mpi4py communicator under this transport, for MPI's own collectives."""
        return self._comm

    def check_peers(self, peers: Iterable[int]) -> None:
        try:
            self.membership.check_peers(peers)
        finally:
            # A rank that left in order still calls MPI_Finalize; a dead one does not.
            if self.membership.failed():
                skip_finalize()

    def abandon(self, peer: int, requests: Sequence[Request]) -> None:
        # A dead path would keep MPI_Finalize waiting. What is half-way in may still be written, if the path revives.
        skip_finalize()
        for operation in [each for each in self._under_way if each.op.peer == peer and type(each.op) is Recv]:
            if operation.request:
                operation.request.Cancel()
                operation.request.Test()

    def explain(self, error: "MPI.Exception", peers: Collection[int]) -> NoReturn:
        """Raise what the MPI error in an exchange with `peers` means: often the first sign of a death."""
        skip_finalize()
        wait(never, NOTICE_S, self.pauses, lambda _now_s: self.membership.check_peers(peers))
        # MPICH appends its call stack, a line each.
        text = error.Get_error_string().splitlines()[0].removesuffix(", error stack:")
        raise TransportError(f"mpi rank {self.rank}, with rank {', '.join(map(str, sorted(peers)))}: {text}") from error

    def close(self) -> None:
        # Freeing the communicator would be collective: a dead peer would hang it, and the process ends soon.
        self.closed = True


def _lane_bits(tag_ub: int) -> int:
    """How many bits of an MPI tag are left for the lane."""
    bits = (tag_ub + 1).bit_length() - 1 - COMMUNICATOR_BITS
    if bits < 8:
        raise Unavailable(f"mpi: got MPI_TAG_UB {tag_ub}, expected at least {(1 << COMMUNICATOR_BITS + 8) - 1}")
    return min(bits, LANE_BITS)
