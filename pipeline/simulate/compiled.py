"""The event loop compiled by Numba, for planners: a hundred times as fast.

Numba compiles on the first call on a machine, which takes seconds, and keeps the result on disk.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

from lanterne.pipeline.simulate.event_loop import Operations, Orders, Pick, Progress, Times, event_loop

Helper = TypeVar("Helper", bound=Callable[..., Any])


def inner(helper: Helper) -> Helper:
    """Return `helper` compiled without counting references to arrays; Numba refuses it if it makes an array.

    Counting takes two atomic additions each time that an array is read out of a NamedTuple: four fifths of the time of
    the list rules.
    """
    # Numba's types do not know the second.
    options: dict[str, Any] = {"cache": True, "_nrt": False}
    compiled: Any = njit(**options)(helper)
    return cast("Helper", compiled)


@inner
def later(one: float, other: float) -> float:
    """Return the later of two times."""
    return max(one, other)


def loop_with(pick: Pick | None) -> Callable[..., int]:
    """Return the loop for rules that `pick` knows; it is kept on disk with what calls it, not by itself."""
    options: dict[str, Any] = {"_nrt": False}
    compiled: Any = njit(**options)(event_loop(later, pick))
    return cast("Callable[..., int]", compiled)


run = loop_with(None)


@njit(cache=True)
def run_in_order(operations: Operations, orders: Orders, times: Times, progress: Progress) -> int:
    """Run operations whose lanes are all IN_ORDER; see event_loop."""
    return run(operations, orders, times, progress, None, None)


def load() -> None:
    """Have the simulator use the compiled loop in this process; where it is not compiled that takes some seconds."""
    none, whole = np.zeros(0), np.zeros(0, np.int64)
    operations = Operations(whole, whole, whole, whole, none, whole, none, none, none)
    progress = Progress(whole, whole, none, none, np.zeros(0, np.bool_), whole, whole, none)
    run_in_order(operations, Orders(whole, whole, whole), Times(none, none, none), progress)


def is_compiled(function: Any) -> bool:
    """Return whether `function` is in this process, or in Numba's cache and as old as its text."""
    if not hasattr(function, "py_func") or function.signatures:
        return True  # With NUMBA_DISABLE_JIT there is nothing to compile.
    try:
        return bool(function._cache._cache_file._load_index())
    except (AttributeError, OSError, ValueError):
        return False


def is_ready() -> bool:
    """Return whether the compiled loop can be called without compiling it."""
    return hasattr(run_in_order, "py_func") and is_compiled(run_in_order)
