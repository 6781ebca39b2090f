"""Work queued on an NCCL channel: when it is done, for how long it may take, and the thread that looks after it."""

import threading
import time
import weakref

from lanterne.errors import TransportError, TransportTimeout
from lanterne.transport.base import Request, timeout_error

# How often the watch looks, and how often it asks NCCL for asynchronous errors.
LOOK_S = 0.02


class Pending:
    """`size` pieces of work on a channel: `entry` and `done` are events, `peers` whom it needs, `what` it is."""

    __slots__ = ("done", "entered_s", "entry", "is_done", "peers", "regions", "size", "what")

    def __init__(self, entry, done, peers, what, regions, size):
        self.entry, self.done, self.peers, self.what, self.regions = entry, done, peers, what, regions
        self.entered_s, self.size = None, size
        self.is_done = False


class ChannelWatch:
    """A daemon thread that ends a channel whose work takes too long, or of which NCCL reports an error.

    The clock of a call starts when the stream reaches it: what was queued before may take as long as it likes.

    Attributes: `queued`, pieces of work that were not done when somebody last looked.
    """

    def __init__(self, channel):
        self._channel = weakref.ref(channel)
        self._pending, self._lock, self.queued = [], threading.Lock(), 0
        self._stopped = threading.Event()
        self._thread = None

    def add(self, pending):
        with self._lock:
            self._pending.append(pending)
            self.queued += pending.size
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, daemon=True, name="lanterne-nccl-watch")
                self._thread.start()

    def look(self):
        """`queued`, as of now.

        Raises:
            TransportError: work on the device has failed.
        """
        self._look()
        return self.queued

    def settle(self, limit_s, most=0):
        """Return once at most `most` pieces of work are queued, or the channel has failed: after `limit_s`, it does."""
        deadline, channel = time.monotonic() + limit_s, self._channel()
        try:
            while (oldest := self._look()) is not None and self.queued > most and channel.failure is None:
                if time.monotonic() > deadline:
                    channel.fail(self.overdue(oldest.what, limit_s), raised=False)
                time.sleep(1e-4)
        except TransportError as error:
            channel.fail(error, raised=False)

    def overdue(self, what, limit_s):
        """The error of `what`, which its stream has not reached within `limit_s`, or which is not done.

        That stream may wait for an earlier call, and so for other ranks: those are named then.
        """
        channel, oldest = self._channel(), self._look()
        if channel.failure is not None:
            # The watch was faster, and what it has freed looks done.
            return channel.failure
        if oldest is not None and channel.runtime.is_done(oldest.entry):
            return timeout_error(channel.transport, oldest.peers, limit_s)
        return stuck_stream(channel.transport, what, limit_s)

    def stop(self, limit_s):
        """End the thread, and wait for that, `limit_s` at most."""
        self._stopped.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(limit_s)

    def _run(self):
        channel = self._channel()
        if channel is None:
            return
        # On another device than its own this thread would take memory of that one.
        channel.runtime.adopt_thread()
        del channel
        while not self._stopped.wait(LOOK_S):
            if not self._watch_once():
                return

    def _watch_once(self):
        """Look, and fail the channel for what is wrong; False if there is no channel to watch any more."""
        channel = self._channel()
        if channel is None or channel.failure is not None:
            return False
        # The error is raised on the caller's thread, at its next call or wait.
        try:
            if self._look() is not None:
                channel.check(raised=False)
        except TransportError as error:
            channel.fail(error, raised=False)
        return True

    def _look(self):
        """The Pending of the oldest work, or None if there is none left. Fails the channel when its time is over."""
        channel = self._channel()
        with self._lock:
            while self._pending and _is_done(channel.runtime, self._pending[0]):
                self.queued -= self._pending.pop(0).size
            if not self._pending:
                return None
            pending, now_s = self._pending[0], time.monotonic()
        if pending.entered_s is None:
            if channel.runtime.is_done(pending.entry):
                pending.entered_s = now_s
        elif now_s - pending.entered_s > channel.transport.timeout_s and channel.failure is None:
            channel.fail(timeout_error(channel.transport, pending.peers, channel.transport.timeout_s), raised=False)
        return pending


def _is_done(runtime, pending):
    if not pending.is_done and runtime.is_done(pending.done):
        pending.is_done = True
        pending.regions = ()
    return pending.is_done


class ChannelRequest(Request):
    """The completion of work queued on a channel."""

    __slots__ = ("_channel", "_pending")

    def __init__(self, channel, pending):
        self._channel, self._pending = channel, pending

    @property
    def transport(self):
        return self._channel.transport

    def test(self):
        if _is_done(self._channel.runtime, self._pending) and self._channel.failure is None:
            return True
        self._channel.check()
        return False

    def pending_peers(self):
        return [] if self._pending.is_done else list(self._pending.peers)

    def wait(self, timeout_s=None):
        """As Request.wait; whatever it raises ends the channel, since NCCL takes nothing back.

        Raises:
            TransportTimeout: also where this rank's own stream has not reached the call: the message says so.
        """
        limit_s = self.transport.timeout_s if timeout_s is None else timeout_s
        try:
            super().wait(limit_s)
        except TransportTimeout as error:
            if self._channel.runtime.is_done(self._pending.entry):
                raise self._channel.fail(error) from None
            raise self._channel.fail(self._channel.overdue(self._pending.what, limit_s)) from error
        except TransportError as error:
            raise self._channel.fail(error) from None


def stuck_stream(transport, what, limit_s):
    """The error of a rank whose own stream hangs: the other ranks are not to blame."""
    return TransportTimeout(
        f"{transport.name} rank {transport.rank}: its own stream has not reached {what} within {limit_s:g} s; look at "
        "what was queued on it before",
        (transport.rank,),
    )
