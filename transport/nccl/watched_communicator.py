"""One NCCL communicator: errors that are noticed, and an end that cannot hang."""

import atexit
import ctypes
import logging
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from lanterne.errors import LanterneError, TransportError
from lanterne.transport.base import Transport
from lanterne.transport.nccl.binding import LimitedCall, call_with_limit, reported
from lanterne.transport.nccl.watchdog import ChannelWatch

if TYPE_CHECKING:
    from lanterne.kernels.cuda.runtime import CudaRuntime

log: logging.Logger = logging.getLogger(__name__)


ABORT_S = 5.0  # chosen: far more than an abort takes
DESTROY_S = 5.0  # chosen: as an abort


class GraphHolder(Protocol):
    """What holds graphs of a communicator."""

    def drop_graphs(self) -> object: ...


class WatchedCommunicator:
    """An NCCL communicator that ends once, for one reason, and never holds its rank up with that.

    Args:
        transport: the NcclTransport.
        communicator: cupy's NcclCommunicator, or a stand-in.
        ranks: transport rank of every member.
        tag: of the meeting at which it was made; the same on all members.
        order: transport rank of every rank of NCCL's communicator, which numbers those it takes in last; None: `ranks`.

    Attributes: `failure`, the error that ended it, or None; `is_revoked`, whether it is left to `shrink`.
    """

    def __init__(
        self,
        transport: Transport,
        runtime: "CudaRuntime",
        communicator: Any,
        ranks: Sequence[int],
        tag: int,
        order: Sequence[int] | None = None,
    ) -> None:
        self.transport = transport
        self.runtime = runtime
        self.ranks: tuple[int, ...] = tuple(ranks)
        self.order: tuple[int, ...] = tuple(ranks if order is None else order)
        self.tag: int = tag
        self.is_revoked: bool = False
        self.failure: LanterneError | None = None
        # Whether it still has to be raised: the watch saw it, between calls.
        self._unraised = False
        self._abort: LimitedCall[object] | None = None
        self._aborted_by = 0.0
        self.closed: bool = False
        self._communicator = communicator
        # CuPy's object would destroy it once more when it goes, and hang where an abort or a destroy has hung: never.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(communicator))
        self._ending = threading.Lock()
        # They must go before the communicator does.
        self._graphs: weakref.WeakSet[GraphHolder] = weakref.WeakSet()
        self._hears: weakref.WeakMethod[Callable[[], None]] | None = None
        self._watch = ChannelWatch(self)

    def overdue(self, what: str, limit_s: float) -> LanterneError:
        """The error of `what`, which its stream has not reached within `limit_s`; see ChannelWatch.overdue."""
        return self._watch.overdue(what, limit_s)

    # -- failure

    def check_open(self) -> None:
        """Raise what ended the communicator, if anything did."""
        if self.failure is not None:
            self._unraised = False
            raise self.failure
        if self.closed:
            raise TransportError(f"{self._name()}: closed")

    def check(self, *, raised: bool = True) -> None:
        """Raise if the communicator has failed; asks NCCL. `raised`: as of `fail`."""
        try:
            # An abort on another thread frees what NCCL is asked about here: it comes before or after.
            with self._ending:
                if self.failure is None and not self.closed:
                    self._communicator.check_async_error()
        except Exception as error:
            self.fail(reported(self._name(), error), raised=raised)
        if raised:
            self.check_open()

    def fail(self, error: LanterneError, *, raised: bool = True) -> LanterneError:
        """End the communicator because of `error`, from any thread: frees its stream. Returns what ended it first.

        Args:
            raised: the caller raises it, once the stream is free. If not, whoever calls next does, or `settle`; if
                nobody does, it is logged at the end of the process.
        """
        with self._ending:
            if self.failure is not None or self.closed:
                # Whoever fails all channels of its own because of one raises that one's error.
                self._unraised = self._unraised and not raised
                if self.failure is not None:
                    # It may be what the first came from, and be raised in its place.
                    error.tell_arrays(self.failure.arrays)
                return self.failure or error
            # Before others see that it has failed.
            error.tell_arrays(self._watch.arrays())
            self.failure, self._unraised = error, not raised
        if not raised:
            atexit.register(self._log_unraised)
        self._aborted_by = self.transport.machine.now_s() + ABORT_S
        self._abort = LimitedCall(self._free, f"{self._name()} abort")
        # It frees the stream, and then waits until no graph holds the communicator.
        self._drop_graphs()
        if raised:
            self._await_abort(self._abort)
        return error

    def _free(self) -> None:
        """Free the stream: the communicator is revoked where the binding can that, else aborted."""
        revoke = getattr(self._communicator, "revoke", None)
        if revoke is not None:
            with suppress(Exception):
                revoke()
                self.is_revoked = True
                return
        self._communicator.abort()

    def shrink(self, ranks: Sequence[int], limit_s: float) -> Any:
        """The NCCL communicator of the transport ranks `ranks`, members of this one in its order, all of whom call it.

        Raises:
            TransportError, TransportTimeout: NCCL cannot; it is not revoked any more then.
        """
        absent = [place for place, rank in enumerate(self.order) if rank not in ranks]
        self.is_revoked = False
        try:
            return self._communicator.shrink(absent, limit_s)
        finally:
            self._communicator.abort()

    def _await_abort(self, abort: LimitedCall[object]) -> None:
        with suppress(TransportError):
            abort.result(max(0.0, self._aborted_by - self.transport.machine.now_s()))

    def hear_by(self, listener: Callable[[], None]) -> None:
        """Ask `listener`, a method, whether a rank has failed: NCCL does not say so of one on the same host.

        It is called from another thread while work is under way, and raises what it has heard.
        """
        self._hears = weakref.WeakMethod(listener)

    def hear(self) -> None:
        """Raise the failure that another rank has told of, if one has."""
        if self._hears is not None and (listener := self._hears()) is not None:
            listener()

    def keep_graphs(self, holder: GraphHolder) -> None:
        """Call `holder.drop_graphs()` before the communicator goes."""
        self._graphs.add(holder)

    def settle(self) -> None:
        """Wait for all that is queued; call it before the end, since nobody else may ask whether that went well.

        Raises:
            TransportError: it failed, or an earlier call has and nobody was told.
            TransportTimeout: it takes longer than the transport's timeout.
        """
        self._settle()
        if self._unraised:
            self.check_open()

    def close(self) -> None:
        """Finish what is queued, then destroy the communicator, each within a limit; else abort. Idempotent.

        Graphs go first: a graph that is dropped after its communicator hangs or crashes.
        """
        if self.closed:
            return
        self._settle()
        self._log_unraised()
        # Else it would keep this channel, and what it has, to the end of the process.
        atexit.unregister(self._log_unraised)
        self._drop_graphs()
        self.closed = True
        self._watch.stop(2 * ABORT_S)
        if self._abort is not None:
            self._await_abort(self._abort)
            if self.is_revoked:
                self.is_revoked = False
                with suppress(TransportError):
                    call_with_limit(self._communicator.abort, f"{self._name()} abort", ABORT_S)
        elif self.failure is None:
            with suppress(TransportError):
                call_with_limit(self._communicator.destroy, f"{self._name()} destroy", DESTROY_S)

    def _settle(self) -> None:
        if self.failure is None and not self.closed:
            self._watch.settle(self.transport.timeout_s)

    def _log_unraised(self) -> None:
        if self._unraised:
            self._unraised = False
            log.error("%s; %s", self.failure, self.failure and self.failure.arrays)

    def _drop_graphs(self) -> None:
        for holder in list(self._graphs):
            with suppress(TransportError):
                call_with_limit(holder.drop_graphs, f"{self._name()} end of graphs", ABORT_S, self.runtime)

    def _name(self) -> str:
        return f"nccl rank {self.transport.rank}"
