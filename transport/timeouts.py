"""Timeouts of waits, in seconds: the default, and what can be one."""

import os
from typing import TypeVar

from lanterne.errors import InputError

# The longest timeout: some 11 days; poll takes at most 24.
LONGEST_S = 1e6

TimeoutS = TypeVar("TimeoutS", bound=float | None)


def _default_timeout_s(text: str) -> float:
    """Seconds of LANTERNE_TIMEOUT_S, which says `text`."""
    try:
        timeout_s = float(text)
    except ValueError:
        timeout_s = 0.0
    if not 0 < timeout_s <= LONGEST_S:
        raise InputError(f"LANTERNE_TIMEOUT_S: got {text!r}, expected a positive number of seconds")
    return timeout_s


DEFAULT_TIMEOUT_S = _default_timeout_s(os.environ.get("LANTERNE_TIMEOUT_S", "60"))


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
