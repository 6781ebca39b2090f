"""The data plane of common frameworks: the computing rank itself sends, in order, and waits when its queue is full."""

from collections import deque

import numpy as np

from ..errors import InputError


class Inline:
    """Sends messages in the order in which they are handed over.

    Args:
        comm: the Communicator.
        tag: of the messages.
        queue: sends that may not be done while the rank goes on computing; 0: it waits for each.
    """

    def __init__(self, comm, tag, queue=1):
        if queue < 0:
            raise InputError(f"queue: got {queue}, expected at least 0 sends")
        self.comm, self.tag, self.queue = comm, tag, queue
        self._sends, self._free = deque(), {}

    def lend(self, shape, dtype):
        """A buffer to compute a message in; `send` gives it back."""
        free = self._free.get((shape, dtype))
        return free.pop() if free else np.empty(shape, dtype)

    def send(self, buffer, peer, timeout_s=None):
        """Send a lent buffer to rank `peer`; returns once at most `queue` sends are not done.

        Raises:
            TransportTimeout, PeerFailed: as the communicator's messages.
        """
        self._sends.append((self.comm.start_send(buffer, peer, tag=self.tag), buffer))
        self._wait(self.queue, timeout_s)

    def finish(self, timeout_s=None):
        """Return once all sends are done. Raises as `send`."""
        self._wait(0, timeout_s)

    def _wait(self, left, timeout_s):
        while self._sends and (len(self._sends) > left or self._sends[0][0].test()):
            request, buffer = self._sends[0]
            request.wait(timeout_s)
            self._sends.popleft()
            self._free.setdefault((buffer.shape, buffer.dtype), []).append(buffer)
