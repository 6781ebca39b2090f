"""How long a message takes over links that carry nothing, seen in passing: nobody waits for it.

Messages are as large as the work's: a link that has little bandwidth left delays no small one. The next ones go once
the last have come, so that they do not pile up before a link that is slower than they come.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.message_lanes import Lane
from lanterne.failslow.validate.links import Link

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.collectives.execute.requests import MessageRequest

# Sent at the beginning of an iteration, and after each of its next actions: a rank that looks late does so once.
MESSAGES = 4


@dataclass(slots=True, eq=False)
class _Expected:
    """A message over `link` that is to come, and when it had not come yet."""

    link: Link
    request: MessageRequest
    message: NDArray[np.float64]
    after_s: float = -inf


class LinkProbes:
    """One rank's end. All ranks have the same clock, as on one host.

    Args:
        comm: a Communicator over what the work goes over.
        nbytes: of the work's messages.
    """

    def __init__(self, comm: Communicator, nbytes: int = 8) -> None:
        self.comm = comm
        self._count = max(1, nbytes // 8)
        self._link: Link | None = None
        self._left = 0
        self._pending: list[_Expected] = []
        self._came: dict[Link, tuple[float, float]] = {}
        # Link -> the word that the messages sent last have come, to be received.
        self._told: dict[Link, MessageRequest] = {}

    def begin(self, link: Link | None) -> None:
        """An iteration begins, in which the first rank of `link` sends to the second; both call it. None: no link."""
        self._link = link
        self._left = 0
        here = self.comm.rank
        if link is not None and here == link[0] and (link not in self._told or self._told[link].test()):
            self._told[link] = self.comm.start_recv(np.empty(1), link[1], tag=Lane.LINK_ARRIVAL)
            self._left = MESSAGES
        if link is not None and here == link[1] and all(expected.link != link for expected in self._pending):
            for _ in range(MESSAGES):
                message = np.empty(self._count)
                self._pending.append(
                    _Expected(link, self.comm.start_recv(message, link[0], tag=Lane.LINK_MESSAGE), message)
                )
        self.look()

    def look(self) -> None:
        """An action has ended: send the next one, and look which have come. Cost: some microseconds where none is."""
        if self._left and self._link is not None:
            self._left -= 1
            message = np.zeros(self._count)
            message[0] = time.monotonic()
            self.comm.start_send(message, self._link[1], tag=Lane.LINK_MESSAGE)
        before, self._pending = self._pending, [expected for expected in self._pending if not self._has_come(expected)]
        for link in {expected.link for expected in before} - {expected.link for expected in self._pending}:
            self.comm.start_send(np.empty(1), link[0], tag=Lane.LINK_ARRIVAL)

    def _has_come(self, expected: _Expected) -> bool:
        link, message = expected.link, expected.message
        looked_s = time.monotonic()
        if not expected.request.test():
            expected.after_s = looked_s
            return False
        least_s, most_s = self._came.get(link, (inf, inf))
        # What delays a message besides the link only adds.
        self._came[link] = min(least_s, expected.after_s - message[0]), min(most_s, time.monotonic() - message[0])
        return True

    def finish(self) -> None:
        """Send what is still to be sent: the iteration has ended, with however few actions."""
        while self._left:
            self.look()

    def take(self) -> tuple[Link, tuple[float, float]] | None:
        """(link, (least, most) seconds of a message) of a link of which messages have come; None if none has."""
        return self._came.popitem() if self._came else None
