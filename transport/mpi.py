"""Ranks as MPI processes, through mpi4py over any MPI."""

import atexit
import sys

from ..errors import InputError, TransportError, Unavailable
from .base import COMMUNICATOR_BITS, LANE_BITS, Capabilities, Request, Send, Transport, check_ops

# MPI messages of up to 2^31-1 bytes work everywhere; MPI 4 lifts the limit.
INT_MAX = 2**31 - 1


def load_mpi():
    """`mpi4py.MPI`, initialised so that a dead peer cannot hang our exit.

    MPI_Finalize waits for every rank, a dead one included. So we call it ourselves at exit, and not at all after a failure.

    Raises:
        Unavailable: mpi4py or an MPI library is missing.
    """
    if "mpi4py.MPI" in sys.modules:
        return sys.modules["mpi4py.MPI"]
    try:
        import mpi4py

        mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise Unavailable(f"mpi: cannot load mpi4py ({error}); install it with: pip install mpi4py mpich") from error
    atexit.register(_finalize, MPI)
    return MPI


_failed = False


def skip_finalize():
    """A peer died: MPI can no longer be finalized by anyone. Leave the process without it."""
    global _failed
    _failed = True


def _finalize(MPI):
    if not _failed and not MPI.Is_finalized():
        MPI.Finalize()


class MpiTransport(Transport):
    """Point to point over a duplicate of MPI.COMM_WORLD.

    Args:
        group: the bootstrap.Group of this process; it tells who died, since MPI never does. None: nobody tells.
        timeout_s: the default of every wait.

    Raises:
        Unavailable: no MPI here, or its world is not the group's: a launcher that gave worlds of size 1.
    """

    name = "mpi"

    def __init__(self, group=None, timeout_s=None):
        MPI = load_mpi()
        world = MPI.COMM_WORLD
        if group is not None and world.size != group.world_size:
            raise Unavailable(
                f"mpi: got an MPI world of {world.size} ranks, expected {group.world_size}: "
                f"the launcher is not that of {MPI.Get_library_version().split(chr(10))[0].strip()}"
            )
        self._mpi = MPI
        self._group = group
        self._comm = world.Dup()
        self.rank = world.rank
        self.world_size = world.size
        self._lane_bits = _lane_bits(self._comm.Get_attr(MPI.TAG_UB))
        large = MPI.Get_version() >= (4, 0)
        self.capabilities = Capabilities(
            max_message_nbytes=2**63 - 1 if large else INT_MAX,
            # Not the exact eager limit, which differs between MPIs, but a size that all of them send by rendezvous.
            receiver_paced_nbytes=1 << 20,
        )
        if timeout_s is not None:
            self.timeout_s = timeout_s

    def post(self, ops):
        check_ops(self, ops)
        comm, lane_bits = self._comm, self._lane_bits
        requests = []
        for op in ops:
            region, offset, nbytes, peer, tag = op
            # MPI matches the source itself; communicator and lane share its tag.
            lane = tag & ((1 << LANE_BITS) - 1)
            if lane >> lane_bits:
                raise InputError(f"mpi: got lane {lane}, expected less than {1 << lane_bits} (MPI_TAG_UB)")
            tag = tag >> LANE_BITS << lane_bits | lane
            start = comm.Isend if type(op) is Send else comm.Irecv
            requests.append(start(region.buffer[offset : offset + nbytes], peer, tag))
        return MpiRequest(self, ops, requests)

    def check_peers(self, peers):
        if self._group is not None:
            try:
                self._group.check_peers(peers)
            except TransportError:
                skip_finalize()
                raise

    def close(self):
        # Freeing the communicator would be collective: a dead peer would hang it, and the process ends soon.
        self.closed = True


def _lane_bits(tag_ub):
    """How many bits of an MPI tag are left for the lane."""
    bits = (tag_ub + 1).bit_length() - 1 - COMMUNICATOR_BITS
    if bits < 8:
        raise Unavailable(f"mpi: got MPI_TAG_UB {tag_ub}, expected at least {(1 << COMMUNICATOR_BITS + 8) - 1}")
    return min(bits, LANE_BITS)


class MpiRequest(Request):
    """All MPI requests of one post."""

    __slots__ = ("_ops", "_requests", "_single", "transport")

    def __init__(self, transport, ops, requests):
        self.transport = transport
        self._ops = ops
        self._requests = requests
        self._single = requests[0] if len(requests) == 1 else None

    def test(self):
        MPI = self.transport._mpi
        try:
            if self._single is not None:
                return self._single.Test()
            return MPI.Request.Testall(self._requests)
        except MPI.Exception as error:
            skip_finalize()
            raise TransportError(f"mpi rank {self.transport.rank}: {error.Get_error_string()}") from error

    def pending_peers(self):
        return sorted({op.peer for op, request in zip(self._ops, self._requests, strict=True) if not request.Test()})
