"""The one way to wait: look, look elsewhere now and then, pause; until it is there or time is over."""

import enum
from collections.abc import Callable
from typing import Final, Literal, Protocol, TypeAlias

from lanterne.transport.pauses import NapClock

# Reading the clock costs as much as a look, so it is read after a nap, or after so many looks.
POLLS_PER_CHECK = 64  # a clock costs as much as a look
# What else there is to look at costs as much as some looks: so often at most.
CHECK_S = 1e-3  # a look at peers costs as much as some looks


class Moved(enum.Enum):
    """What a look says that has got on, but is not there yet. It counts as False."""

    MOVED = "moved"

    def __bool__(self) -> Literal[False]:
        return False


MOVED: Final = Moved.MOVED
# Makes progress, and says whether what is waited for is there.
Look: TypeAlias = Callable[[], bool | Moved]


class Pausing(Protocol):
    """What a wait does between looks: Pauses (pauses.py), or what a library or a descriptor has of its own."""

    @property
    def machine(self) -> NapClock:
        """Whose clock counts."""
        ...

    def pause(self, idle: int, due_s: float, /) -> bool:
        """See Pauses.pause."""
        ...


def wait(
    look: Look,
    limit_s: float,
    pauses: Pausing,
    meanwhile: Callable[[float], object] | None = None,
    due_s: Callable[[], float] | None = None,
) -> bool:
    """Return True as soon as look() does, False after `limit_s` seconds without it, and one more look then.

    Args:
        look: True: it is there; MOVED: not yet, but pauses begin anew.
        pauses: what to do while nothing moves.
        meanwhile: called with the time every check_s, and once more when time is over; ends the wait by raising,
            unless a last look() then says that it is there.
        due_s: when, on the machine's clock, it will be there; inf where nobody knows.

    Cost: some 0.2 us a look besides look() and the pause.
    """
    now = pauses.machine.now_s
    start_s, check_s, polls_per_check = now(), CHECK_S, POLLS_PER_CHECK
    until_s, next_s = start_s + limit_s, start_s + check_s
    polls = idle = 0
    while True:
        found = look()
        if found:
            return True
        polls += 1
        idle = 0 if found is MOVED else idle + 1
        napped = idle and pauses.pause(idle, until_s if due_s is None else min(until_s, due_s()))
        if not napped and polls % polls_per_check:
            continue
        now_s = now()
        is_over = now_s > until_s
        if meanwhile is not None and (is_over or now_s >= next_s):
            next_s = now_s + check_s
            try:
                meanwhile(now_s)
            except Exception:
                # It may have come since the last look, which is long ago where this process was stopped: then it does
                # not matter what has befallen others since.
                if look():
                    return True
                raise
        if is_over:
            return bool(look())


def never() -> bool:
    """The look of a wait that only its time or its `meanwhile` ends."""
    return False
