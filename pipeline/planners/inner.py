"""How the search's helpers that make no arrays are compiled."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

# Numba's types do not know the second.
OPTIONS: dict[str, Any] = {"cache": True, "_nrt": False}
Helper = TypeVar("Helper", bound=Callable[..., Any])


def inner(helper: Helper) -> Helper:
    """`helper` compiled without counting references to arrays; Numba refuses it if it makes one.

    Counting takes two atomic additions each time that an array is read out of a NamedTuple: four fifths of the time of
    the list rules.
    """
    compiled: Any = njit(**OPTIONS)(helper)
    return cast("Helper", compiled)
