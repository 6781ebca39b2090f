"""Ids of the communicators of a transport on one rank: which are taken, and which of several threads asks first."""

import threading

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError
from lanterne.transport.base import COMMUNICATOR_BITS

# What is known of an id; of none, 0.
CLOSED, OPEN = 1, 2


class CommunicatorIds:
    """The ids of a transport's communicators, which share this.

    Threads may agree with other ranks on an id at once, each on a communicator of its own: of those the one with the
    lowest id asks in earnest, the others offer nothing and ask again. So no two of them agree on the same.

    Attributes: `used`, by id 0, CLOSED or OPEN. The last id belongs to the transports.
    """

    def __init__(self) -> None:
        self.used: bytearray = bytearray(1 << COMMUNICATOR_BITS)
        self._asking: set[int] = set()
        self._offering: int | None = None
        self._lock = threading.Lock()

    def offer(self, asking: int) -> NDArray[np.uint8]:
        """What this rank says in the agreement of communicator `asking`; the greatest of all ranks goes to `take`."""
        with self._lock:
            self._asking.add(asking)
            if self._offering is None and asking == min(self._asking):
                self._offering = asking
                return np.frombuffer(self.used, np.uint8).copy()
        return np.full(1 << COMMUNICATOR_BITS, OPEN, np.uint8)

    def take(self, asking: int, offered: NDArray[np.uint8]) -> int | None:
        """The id that communicator `asking` has agreed on, the same on all ranks; None: it has to ask again.

        Raises:
            InputError: there is none.
        """
        with self._lock:
            if self._offering == asking:
                self._offering = None
            if offered[-1] == OPEN:
                return None
            free = first_free(offered)
            self.used[free] = OPEN
        return free

    def ask_no_more(self, asking: int) -> None:
        """Communicator `asking` has agreed, or failed to."""
        with self._lock:
            self._asking.discard(asking)
            if self._offering == asking:
                self._offering = None


def first_free(used: NDArray[np.uint8]) -> int:
    """An id that nobody uses, by the table of all that somebody has used."""
    # That of a closed one comes last: a notice (see execute/control.py) that nobody has read may still be on its way
    # there.
    free = int(used[:-1].argmin())
    if used[free] == OPEN:
        raise InputError(f"split: got no free communicator id, expected fewer than {len(used) - 1} open communicators")
    return free
