"""The inner loops of the search, twice from one text: compiled, and as plain Python while that is not made yet.

Compiling takes some 15 s once per machine; the compiled loops then come from Numba's cache. Whoever cannot wait plans
with the plain ones, some hundred times slower, and has the others made in the background meanwhile.
"""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import CellType, FunctionType
from typing import Any, NamedTuple

import numpy as np

from lanterne.pipeline.simulate.compiled import is_compiled


class Loops(NamedTuple):
    """The functions of list_rules, annealing and periods that the search calls."""

    list_words: Callable[..., bool]
    simulate_words: Callable[..., float]
    orders_of: Callable[..., Any]
    scratch: Callable[..., Any]
    score: Callable[..., tuple[float, float]]
    anneal: Callable[..., Any]
    repeat_period: Callable[..., float]


MODULES = (
    "simulate.compiled",
    "planners.moves",
    "planners.annealing",
    "planners.list_rules",
    "planners.growth.periods",
)


def _namespaces() -> list[dict[str, Any]]:
    return [vars(import_module(f"lanterne.pipeline.{name}")) for name in MODULES]


def compiled_loops() -> Loops:
    """The compiled loops; their first call compiles them where that was not done on this machine."""
    known: dict[str, Any] = {}
    for names in _namespaces():
        known |= names
    return _loops(known)


def readable_loops() -> Loops:
    """Return the same as plain Python functions, which call each other."""
    known: dict[str, Any] = {}
    for names in _namespaces():
        # A module's functions may call those of the modules before it.
        plain = known | names
        for name, function in names.items():
            written = getattr(function, "py_func", None)
            if not isinstance(written, FunctionType):
                continue
            if written.__closure__:
                # The event loop, which calls what it was made with.
                made_with = [plain.get(getattr(cell.cell_contents, "__name__", "")) for cell in written.__closure__]
                cells = tuple(map(CellType, made_with))
                plain[name] = FunctionType(written.__code__, written.__globals__, name, written.__defaults__, cells)
            elif written.__module__ == names["__name__"]:
                plain[name] = FunctionType(written.__code__, plain, name, written.__defaults__)
            else:
                plain[name] = known[name]
        known |= plain
    return _loops(known)


def _loops(known: Mapping[str, Any]) -> Loops:
    loops = Loops(**{name: known[name] for name in Loops._fields})
    return loops if hasattr(loops.anneal, "py_func") else loops._replace(anneal=_wrapping(loops.anneal))


def _wrapping(anneal: Callable[..., Any]) -> Callable[..., Any]:
    """`anneal` in plain Python, whose random numbers are to wrap around as machine words do."""

    def wrapped(*args: Any) -> Any:
        with np.errstate(over="ignore"):
            return anneal(*args)

    return wrapped


def are_compiled() -> bool:
    """Whether the compiled loops are in this process, or in Numba's cache and as old as their text."""
    return all(is_compiled(function) for function in compiled_loops())


def compile_in_background() -> None:
    """Let another process compile the loops, at low priority, if none does so; it outlives this one."""
    folder = compiled_loops().score._cache.cache_path  # type: ignore[attr-defined]
    try:
        os.makedirs(folder, exist_ok=True)
        lock = os.open(os.path.join(folder, "compiling.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    except OSError:
        return  # What was compiled could not be kept.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return
    words = "import os; os.nice(10); from lanterne.pipeline.planners.best import load_search; load_search()"
    none = subprocess.DEVNULL
    command = [sys.executable, "-P", "-c", words]
    try:
        # The lock is the open file's, so that process holds it until it ends.
        subprocess.Popen(command, stdin=none, stdout=none, stderr=none, start_new_session=True, pass_fds=(lock,))
    finally:
        os.close(lock)
