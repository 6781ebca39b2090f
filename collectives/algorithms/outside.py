"""Algorithms that others bring, by name: the file of a schedule, "module:function", or what a package offers.

A function takes what its parameters name of `world_size` (always first), `num_chunks`, `root`, `late_rank` and `nodes`,
and returns a CollectiveSchedule, as every generator of this folder does. Packages offer theirs as entry points of the
group "lanterne.algorithms", whose names may then be used like those of the registry:

    [project.entry-points."lanterne.algorithms"]
    mine = "my_package.my_module:my_all_reduce"
"""

import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from lanterne.collectives.schedule.check_schedule import CheckedSchedule
from lanterne.collectives.schedule.ir import CollectiveSchedule
from lanterne.errors import InputError, ScheduleError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENTRY_POINTS = "lanterne.algorithms"
SUFFIXES = (".json", ".xml")
_FUNCTION = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)")

# What a call's `algorithm` may be: a name, or the schedule itself.
AnyAlgorithm: TypeAlias = str | CollectiveSchedule | CheckedSchedule
Generator: TypeAlias = Callable[..., Any]


def is_file(name: str) -> bool:
    """Whether `name` says a file: a path, or a name with the suffix of schedules."""
    return os.sep in name or name.lower().endswith(SUFFIXES)


@functools.cache
def offered(group: str = ENTRY_POINTS) -> tuple[str, ...]:
    """The names of the entry points of `group` that installed packages offer."""
    return tuple(sorted({point.name for point in _entry_points(group)}))


def _entry_points(group: str) -> "EntryPoints":
    # Imports a parser of mail.
    from importlib.metadata import entry_points

    return entry_points(group=group)


def find_outside(name: str) -> Generator | None:
    """The generator that `name` says; None where it is a name like those of the registry, and no package offers it.

    Raises:
        InputError: a module, function or file that is not there, or holds no schedule.
    """
    return file_generator(read_file(name)) if is_file(name) else find_function(name, ENTRY_POINTS, "algorithm")


def find_function(name: str, group: str, what: str) -> Generator | None:
    """The function that `name` says: "module:function", or an entry point of `group`; None where it says neither.

    Args:
        what: it is, for errors.

    Raises:
        InputError: a module or function that is not there.
    """
    if match := _FUNCTION.fullmatch(name):
        return _load(f"{what} {name}", match[1], match[2])
    if name in offered(group):
        point = next(point for point in _entry_points(group) if point.name == name)
        return _load(f"{what} {name} ({point.value})", point.module, point.attr)
    return None


def read_file(path: str) -> CollectiveSchedule:
    """The schedule of a file, read again only when it has changed.

    Raises:
        InputError: as read_schedule.
    """
    try:
        status = Path(path).stat()
    except OSError as error:
        raise InputError(f"algorithm {path}: {error.strerror}") from None
    return _read(path, status.st_mtime_ns, status.st_size, status.st_ino)


@functools.lru_cache(16)
def _read(path: str, *_: int) -> CollectiveSchedule:
    # A tenth of what a rank that asks for no file takes to import.
    from lanterne.collectives.schedule.formats.read_schedule import read_schedule

    return read_schedule(path)


def file_generator(schedule: CollectiveSchedule) -> Generator:
    """What makes `schedule`, for the number of ranks, and the root, that it has."""
    if schedule.root is None:
        return lambda world_size: schedule
    return lambda world_size, root: schedule


def parameters(generator: Generator, name: str) -> Collection[str]:
    """What `generator` takes, by name.

    Raises:
        InputError: Python cannot say.
    """
    try:
        return inspect.signature(generator).parameters
    except (TypeError, ValueError) as error:
        raise InputError(f"algorithm {name}: {error}") from None


def call(generator: Generator, name: str, world_size: int, options: Mapping[str, Any]) -> object:
    """What `generator` makes for `world_size`, with those of `options` that it takes.

    Raises:
        InputError: it takes others, too.
    """
    taken = {key: value for key, value in options.items() if key in parameters(generator, name)}
    try:
        inspect.signature(generator).bind(world_size, **taken)
    except TypeError as error:
        raise InputError(f"algorithm {name}: {error}") from None
    return generator(world_size, **taken)


def refuses_but(world_size: int) -> Callable[[int], str | None]:
    """What an algorithm for `world_size` ranks alone answers for other numbers."""
    return lambda ranks: None if ranks == world_size else f"its schedule is of {world_size} ranks"


def checked_made(made: object, name: str, collective: str, world_size: int, root: int | None) -> CollectiveSchedule:
    """`made`, by the algorithm `name`, if it is a schedule of what was asked for.

    Raises:
        ScheduleError: it is not.
    """
    schedule = made.schedule if isinstance(made, CheckedSchedule) else made
    if not isinstance(schedule, CollectiveSchedule):
        raise ScheduleError(f"algorithm {name}: got {type(made).__name__}, expected a CollectiveSchedule")
    for what, got, expected in (
        ("collective", schedule.collective, collective),
        ("world size", schedule.world_size, world_size),
        ("root", schedule.root, root),
    ):
        if got != expected:
            raise ScheduleError(f"algorithm {name}: got a schedule with {what} {got}, expected {expected}")
    return schedule


def import_outside(module: str) -> ModuleType:
    """Import `module`, of the current folder where nothing installed has that name.

    Raises:
        ImportError: there is none, or it fails.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise
    here = os.getcwd()
    sys.path.append(here)
    try:
        return import_module(module)
    finally:
        sys.path.remove(here)


def _load(name: str, module: str, attribute: str) -> Generator:
    found: Any
    try:
        found = import_outside(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{name}: {error}") from None
    if not callable(found):
        raise InputError(f"{name}: got {type(found).__name__}, expected a function")
    generator: Generator = found
    return generator
