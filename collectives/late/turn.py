"""Where one call of a queue stands on this rank, and what comes next there: pure, so that every order can be tried.

Calls go ahead of those before them as far as they can: a rank says that it has come as soon as a call is started; once
those before it have little more to send, it says that it is ready, so that the board's word is there when they have
nothing more; then it begins without the late rank. What follows the late rank's arrival begins in the order of the
calls, each time once the one before has nothing more to send: the ends of some are under the beginnings of others. So
does what needs nobody to be late, but behind a join that is to be done.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from lanterne.transport.board.sequencer import ABORT, JOIN, NORMAL, SPREAD, TIMEOUT, WITHOUT, Record

# What a rank does next in a call: say that it has come, or that it is ready; begin without the late rank; run the rest
# of that; run all; end it, as the record says; go on by rounds, as far as that says.
ARRIVE, READY, BEGIN, RELEASE, RUN, END, GO_ON = range(7)
# How far it is: not announced; the board has not spoken; begun without the late rank; in its last part; ended early.
_NEW, _ASKED, _EARLY, _LAST, _OVER = range(5)

# How far a call is for those behind it: it is not begun, or has much to send that needs no late rank; has little of
# that left; has sent all that, or is in its last part; has sent what follows a late rank's arrival; has sent all, that
# being done; is complete. What they may do: say that they are ready from NEARLY on, begin without the late rank from
# WAITING on, join from ENDING on, begin with all from LEAVING on, end in an error once it is COMPLETE.
BUSY, NEARLY, WAITING, ENDING, LEAVING, COMPLETE = range(6)
_NEEDS = {WITHOUT: WAITING, SPREAD: WAITING, NORMAL: LEAVING, JOIN: ENDING, ABORT: COMPLETE}


# Not sooner than needed: one that the board has told to begin so does, whenever its turn is, though the rank may
# have come by then, which costs it the difference to the ordinary algorithm.
READY_LEFT = 0.25  # 8 hosts at 25 MB/s, eight calls of 4 MiB, late by half of them: the board answers in 1/30 of a call


class TurnStep(NamedTuple):
    """What to do (ARRIVE to END), and the Record that says so; of ARRIVE and READY None."""

    what: int
    record: Record | None = None


class Turn:
    """Call `number` with `signature`; `ready`: whether this rank has said that it is.

    Attributes: `at_once`, of a call that has nothing to wait for once the board has spoken: takes the record in place
    of `take`, unless that ends the call; else None.
    """

    __slots__ = ("_joins", "_records", "_state", "at_once", "number", "ready", "signature")

    def __init__(self, number: int, signature: str) -> None:
        self.number: int = number
        self.signature: str = signature
        self._state = _NEW
        self._joins = False
        self.ready: bool = False
        self.at_once: Callable[[Record], object] | None = None
        self._records: deque[Record] = deque()

    def take(self, record: Record) -> None:
        """The board has said `record`."""
        self._records.append(record)

    def free(self) -> None:
        """By the record of an earlier call all ranks run this one without asking, whether they have come or not."""
        self._state = _ASKED
        self._records.append(Record(self.number, NORMAL))

    def next(self, before: int, room: bool = True) -> TurnStep | None:
        """What to do now; None: nothing.

        Args:
            before: how far all the calls before it are, BUSY to COMPLETE.
            room: whether there is memory for it beside those.
        """
        if not self._records:
            ready = before >= NEARLY and room
            if self._state == _NEW:
                self._state, self.ready = _ASKED, ready
                return TurnStep(ARRIVE)
            if self._state == _ASKED and ready and not self.ready:
                self.ready = True
                return TurnStep(READY)
            return None
        record = self._records[0]
        joins = record.verdict == SPREAD and record.late < 0
        if record.verdict == SPREAD and self._state == _EARLY and not joins:
            return self._go_on()
        if (record.verdict, record.cause) != (ABORT, TIMEOUT) and (
            before < (ENDING if joins else _NEEDS[record.verdict])
            or not (room or record.verdict == WITHOUT or self._state == _EARLY)
        ):
            return None
        if record.verdict == SPREAD:
            return self._go_on()
        self._records.popleft()
        if record.verdict == ABORT:
            self._state = _OVER
            return TurnStep(END, record)
        if record.verdict == WITHOUT:
            self._state = _EARLY
            return TurnStep(BEGIN, record)
        begun, self._state = self._state == _EARLY, _LAST
        self._joins = record.verdict == JOIN
        return TurnStep(RELEASE if begun else RUN, record)

    def _go_on(self) -> TurnStep:
        """Take the SPREAD that comes next."""
        record = self._records.popleft()
        self._joins = record.late < 0
        self._state = _LAST if self._joins else _EARLY
        return TurnStep(GO_ON, record)

    @property
    def is_new(self) -> bool:
        """True until `next` has been asked, or the call is free."""
        return self._state == _NEW

    @property
    def waits(self) -> bool:
        """Whether it is the board's to speak, or the late rank's to come."""
        return not self._records and self._state in (_ASKED, _EARLY)

    @property
    def held(self) -> bool:
        """Whether this rank has begun without a late rank that is not known to have come."""
        return self._state == _EARLY and not self._records

    def progress(self, left: float, drained: bool) -> int:
        """How far it is, BUSY to LEAVING.

        Args:
            left: which part of the messages of what was begun is to be posted before a rank comes that is late.
            drained: or nothing of it is under way.
        """
        if self._state == _LAST:
            # Joins follow each other while all ports are busy. What all begin waits until one is done: each of its
            # messages needs the one before, and the late rank, which sends to all, would share its port among them.
            done = drained or not self._joins
            return (LEAVING if done else ENDING) if left <= 0 else WAITING
        if self._state == _OVER and drained:
            return LEAVING
        if self._state in (_EARLY, _OVER) and left <= READY_LEFT:
            return WAITING if left <= 0 else NEARLY
        return BUSY
