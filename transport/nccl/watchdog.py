"""Work queued on an NCCL channel: when it is done, for how long it may take, and the thread that looks after it."""

import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from lanterne.errors import LanterneError, TransportError, TransportTimeout
from lanterne.transport.base import Request, Transport, timeout_error
from lanterne.transport.waiting import wait

if TYPE_CHECKING:
    from lanterne.kernels.cuda.runtime import CudaRuntime


# Of CuPy.
Event: TypeAlias = Any


# How often the watch looks, and how often it asks NCCL for asynchronous errors.
LOOK_S = 0.02
# And how often, while a call is under way, it listens to what other ranks tell of themselves.
HEAR_S = 0.2


class Watched(Protocol):
    """What this file needs of an NcclChannel."""

    @property
    def transport(self) -> Transport: ...
    @property
    def runtime(self) -> "CudaRuntime": ...
    @property
    def failure(self) -> LanterneError | None: ...
    def check(self, *, raised: bool = True) -> None: ...
    def fail(self, error: LanterneError, *, raised: bool = True) -> LanterneError: ...
    def overdue(self, what: str, limit_s: float) -> LanterneError: ...
    def hear(self) -> None: ...


@dataclass(slots=True, eq=False)
class Pending:
    """`size` pieces of work on a channel: events of its `entry` and of when it is `done`; `peers` whom it needs."""

    entry: Event
    done: Event
    peers: tuple[int, ...]
    what: str
    regions: Iterable[object]
    size: int
    entered_s: float | None = None
    is_done: bool = False


class ChannelWatch:
    """A daemon thread that ends a channel whose work takes too long, of which NCCL reports an error, or another rank.

    The clock of a call starts when the stream reaches it: what was queued before may take as long as it likes.

    Attributes: `queued`, pieces of work that were not done when somebody last looked.
    """

    def __init__(self, channel: Watched) -> None:
        self._channel = weakref.ref(channel)
        self._pending: list[Pending] = []
        self._lock = threading.Lock()
        self.queued: int = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._hear_s: float = 0.0

    def _its_channel(self) -> Watched:
        """The channel, asked for by itself."""
        channel = self._channel()
        assert channel is not None
        return channel

    def add(self, pending: Pending) -> None:
        """Look after it, too."""
        with self._lock:
            self._pending.append(pending)
            self.queued += pending.size
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="lanterne-nccl-watch")
                self._thread.start()

    def look(self) -> int:
        """`queued`, as of now.

        Raises:
            TransportError: work on the device has failed.
        """
        self._look()
        return self.queued

    def settle(self, limit_s: float, most: int = 0) -> None:
        """Return once at most `most` pieces of work are queued, or the channel has failed: after `limit_s`, it does."""
        channel = self._its_channel()

        def look() -> bool:
            return self._look() is None or self.queued <= most or channel.failure is not None

        try:
            if not wait(look, limit_s, channel.transport.pauses) and (oldest := self._look()) is not None:
                channel.fail(self.overdue(oldest.what, limit_s), raised=False)
        except TransportError as error:
            channel.fail(error, raised=False)

    def overdue(self, what: str, limit_s: float) -> LanterneError:
        """The error of `what`, which its stream has not reached within `limit_s`, or which is not done.

        That stream may wait for an earlier call, and so for other ranks: those are named then.
        """
        channel, oldest = self._its_channel(), self._look()
        if channel.failure is not None:
            # The watch was faster, and what it has freed looks done.
            return channel.failure
        if oldest is not None and channel.runtime.is_done(oldest.entry):
            return timeout_error(channel.transport, oldest.peers, limit_s)
        return stuck_stream(channel.transport, what, limit_s)

    def arrays(self) -> str:
        """What is known of the arrays of queued calls, without asking the device, which may have failed."""
        with self._lock:
            open_calls = [pending.what for pending in self._pending if not pending.is_done]
        if not open_calls:
            return "no call was under way on this rank's device: its arrays are whole"
        calls = open_calls[0] if len(open_calls) == 1 else f"{open_calls[0]} and {len(open_calls) - 1} after it"
        return f"under way on this rank's device: {calls}: their outputs are undefined, all others are whole"

    def stop(self, limit_s: float) -> None:
        """End the thread, and wait for that, `limit_s` at most."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(limit_s)

    def _run(self) -> None:
        channel = self._channel()
        if channel is None:
            return
        # On another device than its own this thread would take memory of that one.
        channel.runtime.adopt_thread()
        del channel
        while not self._stopped.wait(LOOK_S):
            if not self._watch_once():
                return

    def _watch_once(self) -> bool:
        """Look, and fail the channel for what is wrong; False if there is no channel to watch any more."""
        channel = self._channel()
        if channel is None or channel.failure is not None:
            return False
        # The error is raised on the caller's thread, at its next call or wait.
        try:
            if (oldest := self._look()) is not None:
                channel.check(raised=False)
                now_s = channel.transport.machine.now_s()
                if oldest.entered_s is not None and now_s >= self._hear_s:
                    self._hear_s = now_s + HEAR_S
                    channel.hear()
        except LanterneError as error:
            channel.fail(error, raised=False)
        return True

    def _look(self) -> Pending | None:
        """The Pending of the oldest work, or None if there is none left. Fails the channel when its time is over."""
        channel = self._its_channel()
        with self._lock:
            while self._pending and _is_done(channel.runtime, self._pending[0]):
                self.queued -= self._pending.pop(0).size
            if not self._pending:
                return None
            pending, now_s = self._pending[0], channel.transport.machine.now_s()
        if pending.entered_s is None:
            if channel.runtime.is_done(pending.entry):
                pending.entered_s = now_s
        elif now_s - pending.entered_s > channel.transport.timeout_s and channel.failure is None:
            channel.fail(timeout_error(channel.transport, pending.peers, channel.transport.timeout_s), raised=False)
        return pending


def _is_done(runtime: "CudaRuntime", pending: Pending) -> bool:
    if not pending.is_done and runtime.is_done(pending.done):
        pending.is_done = True
        pending.regions = ()
    return pending.is_done


class ChannelRequest(Request):
    """The completion of work queued on a channel."""

    __slots__ = ("_channel", "_queued")

    def __init__(self, channel: Watched, pending: Pending) -> None:
        self._channel = channel
        self._queued = pending

    @property
    def transport(self) -> Transport:
        return self._channel.transport

    def poll(self) -> bool:
        if _is_done(self._channel.runtime, self._queued) and self._channel.failure is None:
            return True
        self._channel.check()
        return False

    def pending_peers(self) -> list[int]:
        return [] if self._queued.is_done else list(self._queued.peers)

    def overdue(self, peers: Iterable[int], limit_s: float) -> TransportTimeout:
        """See Request; names this rank where its own stream has not reached the work."""
        if self._channel.runtime.is_done(self._queued.entry):
            return super().overdue(peers, limit_s)
        return stuck_stream(self.transport, self._queued.what, limit_s)

    def wait(self, timeout_s: float | None = None) -> None:
        """As Request.wait; whatever it raises ends the channel, since NCCL takes nothing back.

        Raises:
            TransportTimeout: also where this rank's own stream has not reached the call: the message says so.
        """
        limit_s = self.transport.timeout_s if timeout_s is None else timeout_s
        try:
            super().wait(limit_s)
        except TransportTimeout as error:
            if self._channel.runtime.is_done(self._queued.entry):
                raise self._channel.fail(error) from None
            raise self._channel.fail(self._channel.overdue(self._queued.what, limit_s)) from error
        except TransportError as error:
            raise self._channel.fail(error) from None


def stuck_stream(transport: Transport, what: str, limit_s: float) -> TransportTimeout:
    """The error of a rank whose own stream hangs: the other ranks are not to blame."""
    return TransportTimeout(
        f"{transport.name} rank {transport.rank}: its own stream has not reached {what} within {limit_s:g} s; look at "
        "what was queued on it before",
        (transport.rank,),
    )
