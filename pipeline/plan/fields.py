"""Checked values of a problem file: each function returns a plain value or an InputError that begins with the key."""

import difflib
import reprlib
from collections.abc import Sequence
from numbers import Real

from lanterne.errors import InputError

# More stages or microbatches than anybody has; a slip of the keyboard must not fill the memory.
MOST = 2**20
# Sums and products of numbers up to this stay finite.
LARGEST = 1e100


def as_count(key, value):
    """`value` as an int of at least 1 and at most MOST."""
    number = isinstance(value, Real) and not isinstance(value, bool) and abs(value) <= LARGEST
    if not number or value != int(value) or value < 1:
        raise InputError(f"{key}: got {reprlib.repr(value)}, expected a whole number of at least 1")
    if value > MOST:
        raise InputError(f"{key}: got {value:g}, expected at most {MOST}")
    return int(value)


def as_number(key, value, positive=False, signed=False):
    """`value` as a float of at most LARGEST, at least 0 unless `signed`, more than 0 if `positive`."""
    expected = "a number" if signed else "a number above 0" if positive else "a number of at least 0"
    if isinstance(value, bool) or not isinstance(value, Real) or not abs(value) <= LARGEST:
        raise InputError(f"{key}: got {reprlib.repr(value)}, expected {expected}")
    if not signed and (value < 0 or (positive and value == 0)):
        raise InputError(f"{key}: got {value:g}, expected {expected}")
    return float(value)


def as_numbers(key, value, length, positive=False, signed=False, or_none=False):
    """A tuple of `length` floats from one number, which stands for all, or a list of that length."""
    if not is_list(value):
        value = [value] * length
    if len(value) != length:
        raise InputError(f"{key}: got {len(value)} values, expected {length}")
    return tuple(
        None if or_none and item is None else as_number(f"{key}[{i}]", item, positive, signed)
        for i, item in enumerate(value)
    )


def as_per_pair(key, value, stages, positive=False, or_none=False):
    """(stages - 1,) floats for neighbours, or (stages, stages) by [source][destination], from either or one number."""
    if not (is_list(value) and value and all(map(is_list, value))):
        return as_numbers(key, value, stages - 1, positive, or_none=or_none)
    if len(value) != stages:
        raise InputError(f"{key}: got {len(value)} rows, expected {stages}, one per source")
    rows = []
    for src, row in enumerate(value):
        if len(row) != stages:
            raise InputError(f"{key}[{src}]: got {len(row)} values, expected {stages}, one per destination")
        # Nobody sends to itself, so the diagonal may hold anything.
        rows.append(
            tuple(
                0.0
                if src == dst
                else None
                if or_none and item is None
                else as_number(f"{key}[{src}][{dst}]", item, positive)
                for dst, item in enumerate(row)
            )
        )
    return tuple(rows)


def as_pairs(key, value, stages):
    """Groups of (source, destination) pairs of ranks, each pair in one group at most."""
    if not is_list(value):
        raise InputError(f"{key}: got {value!r}, expected a list of lists of [source, destination]")
    seen, groups = set(), []
    for i, group in enumerate(value):
        if not is_list(group) or not all(is_list(pair) and len(pair) == 2 for pair in group):
            raise InputError(f"{key}[{i}]: got {group!r}, expected a list of [source, destination]")
        for pair in map(tuple, group):
            valid = all(isinstance(rank, int) and 0 <= rank < stages for rank in pair) and pair[0] != pair[1]
            if not valid or pair in seen:
                problem = "twice" if valid else f"of {stages} ranks"
                raise InputError(
                    f"{key}[{i}]: got pair {list(pair)} {problem}, expected each pair of different ranks once at most"
                )
            seen.add(pair)
        groups.append(tuple(map(tuple, group)))
    return tuple(groups)


def check_keys(what, document, known, required):
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


def is_list(value):
    """Whether `value` is a list or tuple rather than one value."""
    return isinstance(value, Sequence) and not isinstance(value, str)
