"""Checked values of a problem file: each function returns a plain value or an InputError that begins with the key."""

import difflib
import reprlib
from collections.abc import Callable, Collection, Sequence
from functools import partial
from numbers import Real
from typing import Any, TypeAlias, TypeVar

from lanterne.errors import InputError

# More stages or microbatches than anybody has; a slip of the keyboard must not fill the memory.
MOST = 2**20
# Sums and products of numbers up to this stay finite.
LARGEST = 1e100

Value = TypeVar("Value")
# What there is for each pair of ranks: of neighbours, (stages - 1,), or by [source][destination], (stages, stages).
PerPair: TypeAlias = tuple[Value, ...] | tuple[tuple[Value, ...], ...]
Pairs: TypeAlias = tuple[tuple[tuple[int, int], ...], ...]


def as_count(key: str, value: Any) -> int:
    """`value` as an int of at least 1 and at most MOST."""
    if not _is_number(value) or value != int(value) or value < 1:
        raise InputError(f"{key}: got {reprlib.repr(value)}, expected a whole number of at least 1")
    if value > MOST:
        raise InputError(f"{key}: got {value:g}, expected at most {MOST}")
    return int(value)


def as_number(key: str, value: Any, *, positive: bool = False, signed: bool = False) -> float:
    """`value` as a float of at most LARGEST, at least 0 unless `signed`, more than 0 if `positive`."""
    expected = "a number" if signed else "a number above 0" if positive else "a number of at least 0"
    if not _is_number(value):
        raise InputError(f"{key}: got {reprlib.repr(value)}, expected {expected}")
    if not signed and (value < 0 or (positive and value == 0)):
        raise InputError(f"{key}: got {value:g}, expected {expected}")
    return float(value)


def _is_number(value: Any) -> bool:
    kind = type(value)
    return issubclass(kind, Real) and not issubclass(kind, bool) and bool(abs(value) <= LARGEST)


as_positive: Callable[[str, Any], float] = partial(as_number, positive=True)
as_signed: Callable[[str, Any], float] = partial(as_number, signed=True)


def or_none(read: Callable[[str, Any], float]) -> Callable[[str, Any], float | None]:
    """`read`, but None is left as it is."""
    return lambda key, value: None if value is None else read(key, value)


def as_numbers(key: str, value: Any, length: int, read: Callable[[str, Any], Value]) -> tuple[Value, ...]:
    """What `read` makes of `length` values: of one, which stands for all, or of a list of that length."""
    if not is_list(value):
        value = [value] * length
    if len(value) != length:
        raise InputError(f"{key}: got {len(value)} values, expected {length}")
    return tuple(read(f"{key}[{i}]", item) for i, item in enumerate(value))


def as_per_pair(key: str, value: Any, stages: int, read: Callable[[str, Any], Value], here: Value) -> PerPair[Value]:
    """What `read` makes of a value per pair, given so or as one that stands for all; `here` from a rank to itself."""
    if not (is_list(value) and value and all(map(is_list, value))):
        return as_numbers(key, value, stages - 1, read)
    if len(value) != stages:
        raise InputError(f"{key}: got {len(value)} rows, expected {stages}, one per source")
    rows = []
    for src, row in enumerate(value):
        if len(row) != stages:
            raise InputError(f"{key}[{src}]: got {len(row)} values, expected {stages}, one per destination")
        # Nobody sends to itself, so the diagonal may hold anything.
        rows.append(tuple(here if src == dst else read(f"{key}[{src}][{dst}]", x) for dst, x in enumerate(row)))
    return tuple(rows)


def as_pairs(key: str, value: Any, stages: int) -> Pairs:
    """Groups of (source, destination) pairs of ranks, each pair in one group at most."""
    if not is_list(value):
        raise InputError(f"{key}: got {value!r}, expected a list of lists of [source, destination]")
    seen: set[tuple[int, int]] = set()
    groups = []
    for i, group in enumerate(value):
        if not is_list(group) or not all(is_list(pair) and len(pair) == 2 for pair in group):
            raise InputError(f"{key}[{i}]: got {group!r}, expected a list of [source, destination]")
        pairs = [(pair[0], pair[1]) for pair in group]
        for pair in pairs:
            valid = all(isinstance(rank, int) and 0 <= rank < stages for rank in pair) and pair[0] != pair[1]
            if not valid or pair in seen:
                problem = "twice" if valid else f"of {stages} ranks"
                raise InputError(
                    f"{key}[{i}]: got pair {list(pair)} {problem}, expected each pair of different ranks once at most"
                )
            seen.add(pair)
        groups.append(tuple(pairs))
    return tuple(groups)


def check_keys(what: str, document: Any, known: Collection[str], required: Collection[str]) -> None:
    """Raise unless `document` is an object with all `required` keys and no misspelt one of `known`."""
    if not isinstance(document, dict):
        raise InputError(
            f"{what}: got {type(document).__name__}, expected an object with {', '.join(required or known)}"
        )
    for key in document:
        absent = [name for name in known if name not in document and key not in known]
        close = difflib.get_close_matches(str(key), absent, 1, 0.8) or [
            name for name in absent if name.startswith(str(key))
        ]
        if close:
            raise InputError(f"{what}: got the unknown key {key!r}, expected {close[0]!r}")
    missing = [key for key in required if key not in document]
    if missing:
        raise InputError(f"{what}: {missing[0]} is missing")


def is_list(value: object) -> bool:
    """Whether `value` is a list or tuple rather than one value."""
    return isinstance(value, Sequence) and not isinstance(value, str)
