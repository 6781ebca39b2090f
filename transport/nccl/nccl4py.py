"""NCCL through NVIDIA's own binding, nccl4py, with the names of CuPy's that a channel uses.

Its communicators do not block: a call that has to wait for other ranks returns at once, and NCCL is asked until it is
over, or the communicator is aborted; so no thread is left behind in NCCL, whatever the others do. A process may so be
told of a failure in the middle of a start-up, and revoke, shrink, grow or abort what it has.
LANTERNE_NCCL=nccl4py chooses it; CuPy's is the default until this one has run on a device.
"""

import threading
from collections.abc import Sequence
from importlib import import_module
from math import inf
from typing import Any

from lanterne.errors import TransportError, TransportTimeout, Unavailable
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.nccl.versions import Versions, asked
from lanterne.transport.waiting import wait

# ncclResult_t.
SUCCESS, IN_PROGRESS = 0, 7
# How long an orderly end, or a smaller communicator, may take.
END_S = 5.0


class Nccl4py:
    """What stands in for the module cupy.cuda.nccl.

    Args:
        core, bindings: the modules nccl.core and nccl.bindings.nccl, or stand-ins.
    """

    def __init__(self, core: Any, bindings: Any) -> None:
        self.core: Any = core
        self.bindings: Any = bindings
        self._local = threading.local()

    def get_version(self) -> int:
        return int(self.bindings.get_version())

    def get_unique_id(self) -> bytes:
        return bytes(self.core.get_unique_id())

    def start(self, world_size: int, unique_id: bytes, rank: int, limit_s: float) -> "Nccl4pyCommunicator":
        """The communicator of `rank`, once all ranks have called this.

        Raises:
            TransportTimeout: not within `limit_s` seconds; nothing is left behind.
        """
        made = self.core.Communicator.init(
            world_size, rank, self.core.UniqueId.from_bytes(unique_id), self.core.NCCLConfig(blocking=False)
        )
        return Nccl4pyCommunicator(self, made).started(limit_s)

    def come_in(self, world_size: int, growth_id: bytes, place: int, limit_s: float) -> "Nccl4pyCommunicator":
        """The communicator that others grow by this process, their rank `place`; see Nccl4pyCommunicator.grow."""
        core = self.core
        made = core.Communicator().grow(
            world_size, core.UniqueId.from_bytes(growth_id), place, core.NCCLConfig(blocking=False)
        )
        return Nccl4pyCommunicator(self, made).started(limit_s)

    def groupStart(self) -> None:
        self._local.touched = []
        self.bindings.group_start()

    def groupEnd(self) -> None:
        touched, self._local.touched = self._local.touched, None
        self.bindings.group_end()
        for communicator in dict.fromkeys(touched):
            communicator.settle()

    def touch(self, communicator: "Nccl4pyCommunicator") -> None:
        """`communicator` was given something to do: it settles at the end of the group, or now."""
        touched: list[Nccl4pyCommunicator] | None = getattr(self._local, "touched", None)
        if touched is None:
            communicator.settle()
        else:
            touched.append(communicator)


class Nccl4pyCommunicator:
    """A communicator with the names of CuPy's NcclCommunicator, and what else nccl4py can.

    Args:
        made: nccl.core's.
    """

    def __init__(self, library: Nccl4py, made: Any) -> None:
        self._library = library
        self._made = made
        self._handle = library.bindings.Comm(made.ptr)
        # Whoever asks, and whoever aborts, take turns: NCCL frees in an abort what it is asked about.
        self._asking = threading.Lock()
        self._ended = False

    def send(self, address: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._library.bindings.send(address, count, datatype, peer, self._handle, stream)
        self._library.touch(self)

    def recv(self, address: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._library.bindings.recv(address, count, datatype, peer, self._handle, stream)
        self._library.touch(self)

    def allReduce(self, source: int, target: int, count: int, datatype: int, op: int, stream: int) -> None:
        self._library.bindings.all_reduce(source, target, count, datatype, op, self._handle, stream)
        self._library.touch(self)

    def check_async_error(self) -> None:
        """Raise what NCCL reports, if it does."""
        self._state()

    def settle(self, limit_s: float | None = None) -> None:
        """Return once NCCL has taken in what it was given, after `limit_s` at most.

        Raises:
            TransportError: NCCL reports an error, or somebody has aborted the communicator.
            TransportTimeout: it takes longer.
        """
        is_over = lambda: self._state() != IN_PROGRESS  # noqa: E731
        if not wait(is_over, inf if limit_s is None else limit_s, THIS_MACHINE.pauses()):
            raise TransportTimeout(f"NCCL: still in progress after {limit_s:g} s")

    def _state(self) -> int:
        with self._asking:
            if self._ended:
                raise TransportError("NCCL: the communicator was aborted")
            state = int(self._made.get_async_error())
            if state in (SUCCESS, IN_PROGRESS):
                return state
            detail = self._made.get_last_error()
        raise TransportError(f"NCCL: {self._library.core.get_error_string(state)}{detail and ': '}{detail}")

    def started(self, limit_s: float) -> "Nccl4pyCommunicator":
        """This one, once all its ranks have begun it; aborted where that fails.

        Raises:
            TransportTimeout, TransportError: as `settle`.
        """
        try:
            self.settle(limit_s)
        except TransportError:
            self.abort()
            raise
        return self

    def revoke(self) -> None:
        """End what is under way, and free the streams; `shrink` can follow, or `abort`.

        Raises:
            TransportError, TransportTimeout: as `settle`.
        """
        self._made.revoke()
        self.settle(END_S)

    def shrink(self, absent: Sequence[int], limit_s: float) -> "Nccl4pyCommunicator":
        """The communicator of all its ranks but those `absent`, who do not call this; what is under way is ended.

        Raises:
            TransportError, TransportTimeout: as `settle`.
        """
        core = self._library.core
        made = self._made.shrink(list(absent), core.NCCLConfig(blocking=False), core.CommShrinkFlag.ABORT)
        # It has no address before its parent is done with it.
        self.settle(limit_s)
        return Nccl4pyCommunicator(self._library, made).started(limit_s)

    def growth_id(self) -> bytes:
        """What newcomers come in by, in the next `grow`; one rank asks for it."""
        return bytes(self._made.get_unique_id())

    def grow(self, world_size: int, growth_id: bytes, limit_s: float) -> "Nccl4pyCommunicator":
        """The communicator of all its ranks, in their order, and of those that `come_in` behind them.

        Nothing may be under way; this one stays. `growth_id`: on the rank that has made it, else empty.

        Raises:
            TransportError, TransportTimeout: as `settle`.
        """
        core = self._library.core
        known = core.UniqueId.from_bytes(growth_id) if growth_id else None
        made = self._made.grow(world_size, known, None, core.NCCLConfig(blocking=False))
        # It has no address before its parent is done with it.
        self.settle(limit_s)
        return Nccl4pyCommunicator(self._library, made).started(limit_s)

    def abort(self) -> None:
        with self._asking:
            ended, self._ended = self._ended, True
        if not ended:
            self._made.abort()

    def destroy(self) -> None:
        """Finish what is queued, and let go of it; see NcclChannel.close for the limit."""
        self._made.finalize()
        try:
            self.settle(END_S)
        finally:
            with self._asking:
                self._ended = True
        self._made.destroy()


def load_nccl4py() -> Nccl4py:
    """nccl4py, and what it stands on.

    Raises:
        Unavailable: it is not installed, or finds no NCCL.
    """
    try:
        library = Nccl4py(import_module("nccl.core"), import_module("nccl.bindings.nccl"))
    except ImportError as error:
        raise Unavailable(f"nccl4py: {error}; install lanterne[nccl4py] beside [cuda12] or [cuda13]") from error
    return library


def versions_of(library: Nccl4py, driver: int | None) -> Versions:
    """The Versions beside nccl4py; `driver` as Versions has it."""
    try:
        found = library.core.get_version()
        name, header = f"nccl4py {found.nccl4py}", _number(found.nccl_bindings)
        cuda = found.libnccl and found.libnccl.cuda_variant
    except Exception:  # of an installation that is broken, in whichever way
        name, header, cuda = "nccl4py", None, None
    return Versions(driver, asked(library.get_version), cuda.major if cuda else None, name, None, header)


def _number(version: Any) -> int:
    """NCCL's number of a version that people write 2.30.7."""
    return int(version.major) * 10000 + int(version.minor) * 100 + int(version.micro)
