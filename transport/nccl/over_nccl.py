"""Ranks as processes with a GPU each, through NCCL: device memory by NCCL's point to point, host memory beside it.

NCCL moves device memory only and has no tags. What the ranks tell each other besides (signatures, notices, the arrival
board, host arrays of the user's) goes over a host transport: mpi under an MPI launcher, else ucx, or TCP where that is
not installed. It also makes the rendezvous: NCCL's own start-up hangs if a rank does not come, so all ranks meet on the
host transport first, compare what could go wrong (devices, versions), and start together.
"""

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError, LanterneError, PeerFailed, TransportError, TransportTimeout, Unavailable
from lanterne.kernels.arrays import require_device
from lanterne.transport.base import Capabilities, Operation, Recv, Request, Send, Transport, make_tag
from lanterne.transport.local import LocalWorld
from lanterne.transport.nccl.binding import (
    HOST_VARIABLE,
    SHARED_GPU_VARIABLE,
    call_with_limit,
    check_devices,
    load_nccl,
    make_communicator,
    pose_as_host,
)
from lanterne.transport.nccl.channel import MEETING_LANE, NcclChannel
from lanterne.transport.nccl.versions import version_text
from lanterne.transport.pauses import Pauses
from lanterne.transport.rank_group import Group

if TYPE_CHECKING:
    from lanterne.kernels.cuda.runtime import CudaRuntime

# NCCL's point to point is erratic for sizes that are no multiple of a page (StragglAR, section 4.1). The paper pads the
# buffer; here chunks are of as many pages as there, from the start of the array, and only the last one ends where the
# array does: no copy, and the price is one message in world_size - 1 that may be no multiple.
ALIGNMENT_NBYTES = 4096
SLOT_NBYTES = 512
# Whether ranks may share GPUs, NCCL version, tag of the channel that this rank could shrink or grow (0: none), its
# place in that, or whether it can come in, length of the device's identity, of the unique id, of the id by which
# newcomers come in, of an error's text; then these.
_SEAT = struct.Struct("<?iQhHHHH")
_COMES_IN, _NO_PLACE = -1, -2
# What makes NCCL's communicator, and the transport's ranks in the order of NCCL's.
Start: TypeAlias = tuple[Callable[[], Any], Sequence[int]]
# Why there was no meeting, and of which rank; then text.
_ABSENCE = struct.Struct("<Bi")
_DIED, _ABSENT = 1, 2


# How long those listen for the reason that there is no meeting, who would else wait for their time to be over.
TOLD_S = 2.0  # chosen: the first rank tells one after the other
# How long ranks try to shrink, or to grow, what they have; then they begin anew.
REMAKE_S = 5.0  # they know of each other: it takes what a start-up takes


class NcclTransport(Transport):
    """NCCL between the GPUs of a job's ranks; to its host transport `hears_s` is what background_s is to others.

    Args:
        timeout_s: the default of every wait.
        host, runtime, library: the host transport, the device, and cupy.cuda.nccl; None: opened here. The device is
            LANTERNE_DEVICE, else the one whose number is this rank's among those of its host.
        before: this rank's NcclTransport of the epoch before, whose communicator NCCL may grow; it stays.

    Raises:
        Unavailable: no GPU, NCCL too old, or more ranks than GPUs without what that takes; on every rank alike.
        TransportTimeout, PeerFailed: a rank did not come.
    """

    name = "nccl"
    capabilities: Capabilities = Capabilities(
        device_memory=True, stream_ordered=True, device_alignment_nbytes=ALIGNMENT_NBYTES, max_message_nbytes=2**62
    )

    def __init__(
        self,
        group: Group,
        timeout_s: float | None = None,
        host: Transport | None = None,
        runtime: "CudaRuntime | None" = None,
        library: Any = None,
        before: "NcclTransport | None" = None,
    ) -> None:
        host = host or _open_host(group, timeout_s)
        super().__init__(group.rank, group.world_size, host.membership, timeout_s=timeout_s)
        self.host: Transport = host
        self.host_name: str = group.host
        self.capabilities = replace(
            type(self).capabilities,
            connects_late=host.capabilities.connects_late,
            shrinks=host.capabilities.shrinks,
            grows=host.capabilities.grows,
        )
        self.pauses: Pauses = host.pauses
        self.unreachable = host.unreachable
        self.hears_s: float | None = host.background_s
        if timeout_s is None:
            self.timeout_s: float = host.timeout_s
        if before is not None:
            runtime, library = before.runtime, before.library
        self._channels: list[NcclChannel] = []
        self.library: Any = library
        try:
            unavailable: LanterneError | None = None
            try:
                self.library = library or _open_library(group)
                self.runtime: CudaRuntime | None = runtime or _open_device(group)
            except LanterneError as error:
                unavailable = error
            self.channel: NcclChannel = self.open_channel(
                range(self.world_size),
                make_tag(0, MEETING_LANE),
                unavailable,
                None if before is None else _idle_channel(before, self.world_size - len(group.newcomers)),
            )
        except BaseException:
            self.close()
            raise

    def open_channel(
        self,
        ranks: Iterable[int],
        tag: int,
        unavailable: LanterneError | None = None,
        to_grow: NcclChannel | None = None,
    ) -> NcclChannel:
        """The NcclChannel of the transport ranks `ranks`, all of whom call this; they meet with `tag` first.

        Args:
            unavailable: the error for which this rank cannot; all then raise.
            to_grow: what NCCL may grow by those that have none; else it may shrink one of this transport's.
        """
        ranks = tuple(ranks)
        me = ranks.index(self.rank)
        parent = self._revoked(ranks) if to_grow is None else to_grow
        seat = _seat(self, me == 0, unavailable, parent)
        seats = [_unpack(slot) for slot in meet(self.host, ranks, me, tag, seat, self.timeout_s)]
        if unavailable is not None:
            raise unavailable
        for rank, found in zip(ranks, seats, strict=True):
            if found.error:
                raise Unavailable(f"nccl: rank {rank}: {found.error}")
        versions = {found.version for found in seats}
        if len(versions) > 1:
            raise Unavailable(
                f"nccl: got versions {', '.join(map(version_text, sorted(versions)))}, expected one on all"
            )
        devices = [found.device.partition("/") for found in seats]
        check_devices([(host, identity) for host, _, identity in devices], min(versions))
        self.shares_devices: bool = any(found.shares for found in seats)

        anew = partial(make_communicator, self.library, len(ranks), seats[0].unique_id, me, self.timeout_s)
        starts: list[Start] = [(anew, ranks)]
        if (made_of := _made_of(self, parent, ranks, seats)) is not None:
            starts.insert(0, made_of)
        communicator, failed = self._started(starts[0][0], ranks, me, tag)
        if failed is not None and len(starts) > 1:
            starts.pop(0)
            communicator, failed = self._started(starts[0][0], ranks, me, tag)
        if failed is not None:
            raise failed
        assert self.runtime is not None, "else it is unavailable"
        channel = NcclChannel(self, self.library, self.runtime, communicator, ranks, tag, starts[0][1])
        self._channels.append(channel)
        return channel

    def _revoked(self, ranks: Sequence[int]) -> NcclChannel | None:
        """The latest channel of these ranks and others that was revoked; None without any."""
        for channel in reversed(self._channels):
            if channel.is_revoked and set(ranks) <= set(channel.ranks):
                return channel
        return None

    def _started(
        self, start: Callable[[], Any], ranks: Sequence[int], me: int, tag: int
    ) -> tuple[Any, TransportError | None]:
        """(what `start()` made on all ranks, None), or (None, why it is not there on some)."""
        failed: TransportError | None = None
        communicator = None
        try:
            communicator = call_with_limit(start, f"nccl rank {self.rank} start-up", self.timeout_s, self.runtime)
        except TransportError as error:
            failed = error
        # NCCL's start-up may succeed on some ranks only.
        verdicts = meet(self.host, ranks, me, tag, str(failed or "").encode()[:SLOT_NBYTES], self.timeout_s)
        texts = [slot.rstrip(b"\0").decode(errors="replace") for slot in verdicts]
        if not any(texts):
            return communicator, None
        if communicator is not None:
            call_with_limit(communicator.abort, f"nccl rank {self.rank} abort", self.timeout_s)
        return None, failed or TransportError(next(filter(None, texts)))

    def _post(self, ops: Sequence[Operation]) -> Request:
        """Post host memory on the host's transport, device memory on all ranks' channel and the current stream.

        Raises:
            InputError: host and device memory in one batch.
        """
        if not any(op.region.device for op in ops):
            return self.host.post(ops)
        if not all(op.region.device for op in ops):
            raise InputError("nccl: got host and device memory in one post, expected one of them")
        return self.channel.post(ops)

    def take_in(self) -> bool:
        return self.host.take_in()

    def check_peers(self, peers: Iterable[int]) -> None:
        self.host.check_peers(peers)

    def retire(self, communicator_id: int, *, orderly: bool) -> bool:
        if not orderly:
            self.host.retire(communicator_id, orderly=False)
        return False

    def settle(self) -> None:
        for channel in self._channels:
            channel.settle()

    def close(self) -> None:
        self.closed = True
        for channel in self._channels:
            channel.close()
        self.host.close()


def meet(
    transport: Transport, ranks: Sequence[int], me: int, tag: int, payload: bytes, timeout_s: float
) -> list[bytes]:
    """Every member's `payload` (at most SLOT_NBYTES), by member: to the first of `ranks`, and from there to all.

    Raises:
        TransportTimeout, PeerFailed: a member did not come; the first one tells the others which.
    """
    n = len(ranks)
    # The last row says why there is no table.
    table = np.zeros((n + 1, SLOT_NBYTES), np.uint8)
    table[me, : len(payload)] = np.frombuffer(payload, np.uint8)
    region = transport.register(table)
    others = [member for member in range(n) if member != 0]
    whole = [Send(region, 0, table.nbytes, ranks[member], tag) for member in others]
    if me == 0:
        gather = tuple(Recv(region, member * SLOT_NBYTES, SLOT_NBYTES, ranks[member], tag) for member in others)
        try:
            transport.post(gather).wait(timeout_s)
        except TransportError as error:
            _tell_absence(transport, table[n], error, whole)
            raise
        transport.post(tuple(whole)).wait(timeout_s)
    else:
        transport.post((Send(region, me * SLOT_NBYTES, SLOT_NBYTES, ranks[0], tag),)).wait(timeout_s)
        transport.post((Recv(region, 0, table.nbytes, ranks[0], tag),)).wait(timeout_s + TOLD_S)
        told = table[n].tobytes()
        kind, rank = _ABSENCE.unpack_from(told)
        text = told[_ABSENCE.size :].rstrip(b"\0").decode(errors="replace")
        if kind == _DIED:
            raise PeerFailed(rank, text)
        if kind == _ABSENT:
            raise TransportTimeout(text, () if rank < 0 else (rank,))
    return [row.tobytes() for row in table[:n]]


def _tell_absence(
    transport: Transport, row: NDArray[np.uint8], error: TransportError, messages: Sequence[Operation]
) -> None:
    """Send the others, of whom some may be gone, the table whose last row says so."""
    if isinstance(error, PeerFailed):
        kind, rank, text = _DIED, error.rank, error.reason
    else:
        kind, rank, text = _ABSENT, next(iter(getattr(error, "peers", ())), -1), str(error)
    told = (_ABSENCE.pack(kind, rank) + text.encode())[:SLOT_NBYTES]
    row[: len(told)] = np.frombuffer(told, np.uint8)
    for message in messages:
        with suppress(TransportError):
            transport.post((message,)).wait(TOLD_S / len(messages))


class _Seat(NamedTuple):
    """What a rank says of itself at a meeting; see _SEAT."""

    shares: bool
    version: int
    parent: int
    place: int
    device: str
    unique_id: bytes
    growth_id: bytes
    error: str


def _seat(
    transport: NcclTransport, leads: bool, unavailable: LanterneError | None, parent: NcclChannel | None
) -> bytes:
    """This rank's seat as bytes; who `leads` brings the unique id; `parent`: what it could shrink or grow."""
    if unavailable is not None:
        text = str(unavailable).encode()[:300]
        return _SEAT.pack(False, 0, 0, _NO_PLACE, 0, 0, 0, len(text)) + text
    library, runtime = transport.library, transport.runtime
    assert runtime is not None
    device = f"{os.environ.get(HOST_VARIABLE, transport.host_name)}/{runtime.identity}".encode()[:200]
    unique_id = bytes(byte % 256 for byte in library.get_unique_id()) if leads else b""
    shares = os.environ.get(SHARED_GPU_VARIABLE) == "1"
    version = library.get_version()
    tag, place, growth_id = 0, _COMES_IN if hasattr(library, "come_in") else _NO_PLACE, b""
    if parent is not None:
        tag, place = parent.tag, parent.order.index(parent.transport.rank)
        growth_id = parent.growth_id() if place == 0 and not parent.is_revoked else b""
    lengths = len(device), len(unique_id), len(growth_id), 0
    return _SEAT.pack(shares, version, tag, place, *lengths) + device + unique_id + growth_id


def _unpack(slot: bytes) -> _Seat:
    shares, version, parent, place, device, unique_id, growth_id, text = _SEAT.unpack_from(slot)
    ends = accumulate((device, unique_id, growth_id, text), initial=_SEAT.size)
    name, whole, part, error = (slot[begin:end] for begin, end in pairwise(ends))
    return _Seat(shares, version, parent, place, name.decode(), whole, part, error.decode(errors="replace"))


def _order(ranks: Sequence[int], seats: Sequence[_Seat]) -> list[int]:
    """The ranks that have one and the same channel, as NCCL numbers them; empty where the others cannot come in."""
    parents = {seat.parent for seat in seats if seat.parent}
    others = {seat.place for seat in seats if not seat.parent}
    if len(parents) != 1 or not others <= {_COMES_IN}:
        return []
    placed = sorted((seat.place, rank) for rank, seat in zip(ranks, seats, strict=True) if seat.parent)
    return [rank for _, rank in placed]


def _idle_channel(transport: NcclTransport, world_size: int) -> NcclChannel | None:
    """The channel of `world_size` ranks, all that live, which has nothing to do any more; None: NCCL grows none."""
    found = [each for each in transport._channels if each.can_grow and len(each.ranks) == world_size]
    if not found:
        return None
    found[-1].settle()
    return found[-1]


def _made_of(
    transport: NcclTransport, parent: NcclChannel | None, ranks: Sequence[int], seats: Sequence[_Seat]
) -> Start | None:
    """How NCCL makes the communicator of what some of `ranks` have, this one `parent`; None: it cannot."""
    order, limit_s = _order(ranks, seats), min(REMAKE_S, transport.timeout_s)
    newcomers = [rank for rank in ranks if rank not in order]
    if order and not newcomers and parent is not None:
        return partial(parent.shrink, ranks, limit_s), order
    brings = next((seat.growth_id for seat in seats if seat.growth_id), b"")
    if not order or not brings:
        return None
    order += newcomers
    if parent is None:
        return partial(transport.library.come_in, len(ranks), brings, order.index(transport.rank), limit_s), order
    return partial(parent.grow, len(ranks), brings if order[0] == transport.rank else b"", limit_s), order


def _open_host(group: Group, timeout_s: float | None) -> Transport:
    """The transport for host memory."""
    from lanterne.transport.registry import host_transport, open_transport

    if group.world_size == 1:
        return LocalWorld(1).transport(0, timeout_s)
    return open_transport(host_transport(group, timeout_s), group, timeout_s)


def _open_library(group: Group) -> Any:
    library = load_nccl()
    pose_as_host(library.get_version(), group, require_device())
    return library


def _open_device(group: Group) -> "CudaRuntime":
    """The CudaRuntime of this rank's device; see own_device."""
    from lanterne.kernels.cuda.runtime import own_device

    return own_device(sum(host == group.host for host in group.hosts[: group.rank]))
