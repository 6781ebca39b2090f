"""Timeouts of waits, in seconds: the default, and what can be one."""

import os
from typing import TypeVar

from lanterne.errors import InputError

# The longest timeout: some 11 days; poll takes at most 24.
LONGEST_S = 1e6

# How long the job may take to tell of a peer's death once the path to it is lost: it takes some 0.3 s.
NOTICE_S = 1.0
# How long the end of a transport waits for what was sent to arrive.
FAREWELL_S = 2.0
# How long ranks may take to connect to each other, in a large job on a busy machine.
SETUP_S = 30.0
# Pause between two tries to reach a process that may not be there yet.
RETRY_S = 0.05

TimeoutS = TypeVar("TimeoutS", bound=float | None)


def _seconds(variable: str, default: float, least: float = 0.0) -> float:
    """Return the seconds that an environment variable sets.

    Raises:
        InputError: it is no number, not above 0, or below `least`.
    """
    text = os.environ.get(variable)
    try:
        seconds = default if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not (0 < seconds <= LONGEST_S and seconds >= least):
        expected = f"at least {least:g} seconds" if least else "a positive number of seconds"
        raise InputError(f"{variable}: got {text!r}, expected {expected}")
    return seconds


DEFAULT_TIMEOUT_S = _seconds("LANTERNE_TIMEOUT_S", 60.0)
# How long a path may be silent before the host behind it counts as lost. TCP sends again after 0.2 s, 0.4 s, 0.8 s and
# so on: what is sent while a path is cut for 10 s arrives within 21 s.
SILENT_S = min(_seconds("LANTERNE_SILENT_S", 25.0, least=2.0), max(2.0, DEFAULT_TIMEOUT_S))


def check_timeout_s(timeout_s: TimeoutS) -> TimeoutS:
    """`timeout_s` itself, seconds or None.

    Raises:
        InputError: it is neither None nor a number from 0 to LONGEST_S.
    """
    try:
        good = timeout_s is None or 0 <= timeout_s <= LONGEST_S
    except (TypeError, ValueError):
        good = False
    if not good:
        raise InputError(f"timeout_s: got {timeout_s!r}, expected seconds from 0 to {LONGEST_S:g}, or None")
    return timeout_s
