"""How long a message takes over links that carry nothing, seen in passing: nobody waits for it.

Messages are as large as the work's: a link that has little bandwidth left delays no small one. The next ones go once
the last have come, so that they do not pile up before a link that is slower than they come.
"""

import time
from math import inf

import numpy as np

TAG, CAME_TAG = 26, 25
# Sent at the beginning of an iteration, and after each of its next actions: who is late with looking is so once.
MESSAGES = 4


class LinkProbes:
    """One rank's end. All ranks have the same clock, as on one host.

    Args:
        comm: a Communicator over what the work goes over.
        nbytes: of the work's messages.
    """

    def __init__(self, comm, nbytes=8):
        self.comm, self._count = comm, max(1, nbytes // 8)
        self._link, self._left, self._pending, self._came = None, 0, [], {}
        # Link -> the word that the messages sent last have come, to be received.
        self._told = {}

    def begin(self, link):
        """An iteration begins, in which the first rank of `link` sends to the second; both call it. None: no link."""
        self._link, self._left, here = link, 0, self.comm.rank
        if link is not None and here == link[0] and (link not in self._told or self._told[link].test()):
            self._told[link] = self.comm.start_recv(np.empty(1), link[1], tag=CAME_TAG)
            self._left = MESSAGES
        if link is not None and here == link[1] and all(expected[0] != link for expected in self._pending):
            for _ in range(MESSAGES):
                message = np.empty(self._count)
                self._pending.append([link, self.comm.start_recv(message, link[0], tag=TAG), message, -inf])
        self.look()

    def look(self):
        """An action has ended: send the next one, and look which have come. Cost: some microseconds where none is."""
        if self._left:
            self._left -= 1
            message = np.zeros(self._count)
            message[0] = time.monotonic()
            self.comm.start_send(message, self._link[1], tag=TAG)
        before, self._pending = self._pending, [expected for expected in self._pending if not self._has_come(expected)]
        for link in {expected[0] for expected in before} - {expected[0] for expected in self._pending}:
            self.comm.start_send(np.empty(1), link[0], tag=CAME_TAG)

    def _has_come(self, expected):
        link, request, message, after_s = expected
        looked_s = time.monotonic()
        if not request.test():
            expected[-1] = looked_s
            return False
        least_s, most_s = self._came.get(link, (inf, inf))
        # What delays a message besides the link only adds.
        self._came[link] = min(least_s, after_s - message[0]), min(most_s, time.monotonic() - message[0])
        return True

    def finish(self):
        """Send what is still to be sent: the iteration has ended, with however few actions."""
        while self._left:
            self.look()

    def take(self):
        """(link, (least, most) seconds of a message) of a link of which messages have come; None if none has."""
        return self._came.popitem() if self._came else None
