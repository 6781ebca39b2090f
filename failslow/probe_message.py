"""How long a message takes over links that carry nothing, seen in passing: nobody waits for it."""

import time
from math import inf

import numpy as np

TAG = 26
# Sent at the beginning of an iteration, and after each of its next actions: who is late with looking is so once.
MESSAGES = 4


class LinkProbes:
    """One rank's end. All ranks have the same clock, as on one host.

    Args:
        comm: a Communicator over what the work goes over.
    """

    def __init__(self, comm):
        self.comm = comm
        self._link, self._left, self._pending, self._came = None, 0, [], {}

    def begin(self, link):
        """An iteration begins, in which the first rank of `link` sends to the second; both call it. None: no link."""
        self._link, self._left = link, MESSAGES if link is not None and self.comm.rank == link[0] else 0
        if link is not None and self.comm.rank == link[1]:
            for _ in range(MESSAGES):
                stamp = np.empty(1)
                self._pending.append([link, self.comm.start_recv(stamp, link[0], tag=TAG), stamp, -inf])
        self.look()

    def look(self):
        """An action has ended: send the next one, and look which have come. Cost: some microseconds where none is."""
        if self._left:
            self._left -= 1
            self.comm.start_send(np.array([time.monotonic()]), self._link[1], tag=TAG)
        self._pending = [expected for expected in self._pending if not self._has_come(expected)]

    def _has_come(self, expected):
        link, request, stamp, after_s = expected
        looked_s = time.monotonic()
        if not request.test():
            expected[-1] = looked_s
            return False
        least_s, most_s = self._came.get(link, (inf, inf))
        # What delays a message besides the link only adds.
        self._came[link] = min(least_s, after_s - stamp[0]), min(most_s, time.monotonic() - stamp[0])
        return True

    def finish(self):
        """Send what is still to be sent: the iteration has ended, with however few actions."""
        while self._left:
            self.look()

    def take(self):
        """(link, (least, most) seconds of a message) of a link of which messages have come; None if none has."""
        return self._came.popitem() if self._came else None
