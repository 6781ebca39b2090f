"""How long a link takes that carries nothing: one small message beside an iteration, which nobody waits for."""

import time

import numpy as np

TAG = 26


class ProbeMessage:
    """A message from the first rank of `link` to the second, which looks now and then whether it has come.

    Every rank of `comm` makes one, calls `look` when it likes, and `end` at last. Clocks must agree, as on one host.
    """

    def __init__(self, comm, link):
        self.link, self._request = tuple(link), None
        self._stamp, self._after_s, self._before_s = np.array([time.monotonic()]), -np.inf, None
        if comm.rank == self.link[0]:
            comm.start_send(self._stamp, self.link[1], tag=TAG)
        elif comm.rank == self.link[1]:
            self._request = comm.start_recv(self._stamp, self.link[0], tag=TAG)

    def look(self):
        """Note whether the message has come by now."""
        if self._request is None or self._before_s is not None:
            return
        now_s = time.monotonic()
        if self._request.test():
            self._before_s = now_s
        else:
            self._after_s = now_s

    def end(self):
        """(least, most) seconds that the message took, on the rank that received it, once it has come; else nan."""
        if self._request is None:
            return np.nan, np.nan
        if self._before_s is None:
            self._request.wait()
            self._before_s = time.monotonic()
        return self._after_s - self._stamp[0], self._before_s - self._stamp[0]
