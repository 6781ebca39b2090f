"""The request of a post over UCX: progress, completion, failure and waiting."""

import math
import os
import time

from lanterne.errors import TransportError
from lanterne.transport.base import Request, Send, check_timeout_s, timeout_error

# How long a wait spins, giving way to others, after the last thing that moved: waking up costs some 30 us. With four
# ranks a core it halves the time of small exchanges still; longer spins take the core from those that have work.
SPIN_S = 50e-6
# How long a wait sleeps at most before it looks for deaths and at the clock.
SLEEP_MS = 50


class UcxRequest(Request):
    """The UCX requests of one post. A failed or cancelled one raises; its memory is kept until UCX has let go of it.

    Args:
        pending: list of (UCXRequest, operation).
        everyone: the death of any rank fails the request, not only that of its peers.
    """

    __slots__ = ("_everyone", "_pending", "transport")

    def __init__(self, transport, pending, everyone=False):
        self.transport = transport
        self._pending = pending
        self._everyone = everyone

    def test(self):
        if self._reap():
            return True
        self._check_open()
        if self.transport.progress():
            return self._look()
        return self._reap()

    def _reap(self):
        """Drop the last operations, as far as they are complete; True if none is left."""
        pending = self._pending
        while pending:
            request, op = pending[-1]
            if not request.completed:
                return False
            self._finish(request, op)
            pending.pop()
        return True

    def _look(self):
        """As `test`, for all operations, those of dead peers included."""
        transport = self.transport
        # Drains what has come before it cancels the requests of a peer that closed: nothing that arrived is lost.
        transport._worker.progress()
        for request, op in self._pending:
            if request.completed:
                self._finish(request, op)
        self._pending[:] = [(request, op) for request, op in self._pending if not request.completed]
        if self._pending:
            transport.check_peers(range(transport.world_size) if self._everyone else self.pending_peers())
        return not self._pending

    def _finish(self, request, op):
        """Raise if a completed operation failed."""
        try:
            request.check_error()
        except self.transport._ucxx.UCXError as error:
            self._check_open()
            self.transport.check_peers((op.peer,))
            verb = "send to" if type(op) is Send else "receive from"
            raise TransportError(
                f"ucx rank {self.transport.rank}: {verb} rank {op.peer} of {op.nbytes} bytes failed: {error}"
            ) from error

    def _check_open(self):
        if self.transport.closed:
            raise TransportError(f"ucx rank {self.transport.rank}: closed before this request was complete")

    def pending_peers(self):
        return sorted({op.peer for request, op in self._pending if not request.completed})

    def wait(self, timeout_s=None):
        if self.test():
            return
        transport = self.transport
        limit_s = transport.timeout_s if timeout_s is None else check_timeout_s(timeout_s)
        quiet_from = time.monotonic()
        deadline = quiet_from + limit_s
        while not self.test():
            now = time.monotonic()
            if now >= deadline:
                if self._look():
                    return
                raise timeout_error(transport, self.pending_peers(), limit_s)
            if transport._moved:
                quiet_from = now
            elif now - quiet_from < SPIN_S:
                os.sched_yield()
            elif not self._look():
                transport._worker.progress_worker_event(min(SLEEP_MS, math.ceil((deadline - now) * 1e3)))

    def __del__(self):
        if self._pending and not self.transport.closed:
            self.transport.adopt(self._pending)
