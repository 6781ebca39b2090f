"""Values of options: sizes like 64K, times like 50ms, rates like 200mbit, whole numbers, lists of names.

Sizes, times and rates are parsed and printed here only.
"""

import argparse
import os
import re
from collections.abc import Callable, Collection, Sequence
from math import inf, isnan

from lanterne.errors import InputError

# K, M, G alone are binary, as in nccl-tests; KB, MB, GB are decimal, KiB, MiB, GiB binary.
_SIZE: dict[str, int] = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _SIZE[_letter] = _SIZE[f"{_letter}IB"] = 1024**_power
    _SIZE[f"{_letter}B"] = 1000**_power
_TIME = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_RATE = {f"{prefix}bit": factor / 8 for prefix, factor in (("", 1), ("k", 1e3), ("m", 1e6), ("g", 1e9))}
_RATE |= {f"{prefix}bit/s": factor / 8 for prefix, factor in (("", 1), ("k", 1e3), ("m", 1e6), ("g", 1e9))}
_RATE |= {f"{prefix}b/s": factor for prefix, factor in (("", 1), ("k", 1e3), ("m", 1e6), ("g", 1e9), ("t", 1e12))}
_RATE |= {f"{prefix}ib/s": 1024.0**power for power, prefix in enumerate("kmgt", start=1)}

# Offsets into a buffer still fit into 64 bits, also over a thousand ranks.
_LARGEST_NBYTES = 2**60
# Clocks still take it.
_LONGEST_S = 1e9
# What has more digits is no count of anything: a loop over it would not end, an array of it would overflow.
MAX_DIGITS = 18

_NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([A-Za-zµ/]*)\s*")


def _split(text: str, what: str, expected: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if not match:
        raise InputError(f"{what}: got {text!r}, expected {expected}")
    return float(match[1]), match[2]


def parse_nbytes(text: str, what: str = "size") -> int:
    """Bytes of "1024", "64K", "64KiB", "1.5MB"; K, M, G alone are powers of 1024.

    Raises:
        InputError: no number, an unknown unit, negative, not whole, or above 1 EiB.
    """
    expected = "a size such as 64K, 16MiB or 1GB"
    number, unit = _split(text, what, expected)
    factor = _SIZE.get(unit.upper())
    if factor is not None and number * factor > _LARGEST_NBYTES:
        raise InputError(f"{what}: got {text!r}, expected at most {format_nbytes(_LARGEST_NBYTES)}")
    if factor is None or not number >= 0 or number * factor % 1:
        raise InputError(f"{what}: got {text!r}, expected {expected}")
    return int(number * factor)


def parse_sizes(text: str, option: str, copies: int) -> tuple[int, ...]:
    """Sizes in bytes of a list like "8,1MiB", of which the benchmark holds `copies` at a time; a tuple.

    Raises:
        InputError: no sizes, or one of which the copies do not fit into this machine's memory.
    """
    sizes = tuple(parse_nbytes(part, option) for part in text.split(","))
    check_sizes(sizes, option, copies)
    return sizes


def check_sizes(sizes: Sequence[int], option: str, copies: int) -> None:
    """Raise InputError if `copies` buffers of the largest of `sizes` do not fit into this machine's memory."""
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // copies
    if max(sizes) > limit:
        raise InputError(
            f"{option}: got {format_nbytes(max(sizes))}, expected at most {format_nbytes(limit)}: "
            f"this machine's memory over {copies} buffers"
        )


def parse_time_s(text: str, what: str = "time") -> float:
    """Seconds of "50ms", "3us", "1.5s", "2min" or "2m"; a bare number but 0 could be any of them, and is refused.

    Raises:
        InputError: no number, no unit or an unknown one, negative or above 1e9 s.
    """
    expected = "a time with its unit, such as 50ms, 3us or 1.5s"
    number, unit = _split(text, what, expected)
    factor = _TIME.get("s" if number == 0 and not unit else unit)
    if factor is None or not 0 <= number * factor <= _LONGEST_S:
        raise InputError(f"{what}: got {text!r}, expected {expected}")
    return number * factor


def are_bare(texts: Sequence[str], what: str) -> bool:
    """Whether `texts` are numbers in a unit of the user's own, rather than times such as 50ms; a 0 goes with either.

    Raises:
        InputError: some are the one, some the other, or neither.
    """
    bare = [text for text in texts if is_number(text) and float(text) != 0]
    others = [text for text in texts if not is_number(text)]
    for text in others:
        if not _NUMBER.fullmatch(text):
            raise InputError(f"{what}: got {text!r}, expected a number, or a time with its unit, such as 50ms or 1.5s")
        parse_time_s(text, what)
    if bare and others:
        raise InputError(f"{what}: got {bare[0]!r} beside {others[0]!r}, expected all with units or none")
    return not others


def is_number(text: str) -> bool:
    """Whether `text` is a number without a unit."""
    try:
        return not isnan(float(text))
    except ValueError:
        return False


def parse_times(text: str, option: str) -> tuple[list[float], Callable[[float], str]]:
    """(times of a list such as "1,1.6", as they are, or "80ms,90ms", in seconds; what turns one into text).

    Raises:
        InputError: one that is no positive time, or some with units and some without.
    """
    texts = text.split(",")
    bare = are_bare(texts, option)
    times = [float(each) if bare else parse_time_s(each, f"{option}[{i}]") for i, each in enumerate(texts)]
    for i, time in enumerate(times):
        if not 0 < time < inf:
            raise InputError(f"{option}[{i}]: got {texts[i]!r}, expected a time above 0")
    return times, "{:.4g}".format if bare else format_time


def parse_rate_bytes_per_s(text: str, what: str = "rate") -> float:
    """Bytes per second of "200mbit", "1gbit/s", "450GB/s", "12GiB/s".

    Raises:
        InputError: no number, an unknown unit, not positive or infinite.
    """
    expected = "a rate such as 200mbit or 450GB/s"
    number, unit = _split(text, what, expected)
    factor = _RATE.get(unit.lower())
    if factor is None or not 0 < number * factor < inf:
        raise InputError(f"{what}: got {text!r}, expected {expected}")
    return number * factor


def integer(text: str) -> int:
    """For argparse, in place of int: a whole number of at most MAX_DIGITS digits."""
    if len(text.strip().lstrip("+-")) > MAX_DIGITS:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of at most {MAX_DIGITS} digits")
    return int(text)


def whole(least: int) -> Callable[[str], int]:
    """For argparse: a function that turns text into an int of at least `least`."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and integer(text) >= least):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of at least {least}")
        return int(text)

    return parse


def chosen(text: str, option: str, known: Collection[str]) -> tuple[str, ...]:
    """The names in a list such as "mpi,ucx", each one of `known`; a tuple.

    Raises:
        InputError: another name, or none.
    """
    found = tuple(name.strip() for name in text.split(","))
    for name in found:
        if name not in known:
            raise InputError(f"{option}: got {name!r}, expected some of {', '.join(known)}")
    return found


def format_nbytes(nbytes: float) -> str:
    """Short binary form: 1536 -> "1.5 KiB", 1048576 -> "1 MiB"."""
    value, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


def format_time(time_s: float | None) -> str:
    """Three digits in the unit that suits: 0.0123 -> "12.3 ms"; None -> "-"."""
    if time_s is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        # What rounds up to one of the next unit is one.
        if abs(time_s) >= 0.9995 * factor:
            return f"{time_s / factor:.3g} {unit}" if abs(time_s) < 1000 * factor else f"{time_s / factor:.0f} {unit}"
    return f"{time_s / 1e-9:.3g} ns"


def format_rate(bytes_per_s: float) -> str:
    """Bits per second, as networks have them: 25e6 -> "200 Mbit/s"."""
    bits, unit = (8e-9 * bytes_per_s, "Gbit/s") if bytes_per_s >= 125e6 else (8e-6 * bytes_per_s, "Mbit/s")
    return f"{bits:.4g} {unit}"


def format_figure(value: float, unit: str, bar: str) -> str:
    """The value of a Figure of a GPU: seconds, a ratio, or a count, which has to be 0."""
    if unit == "s":
        return format_time(value)
    return f"{value:.0f}" if bar == "0" else f"{value:.3f}"


def format_count(number: int, word: str) -> str:
    """A number of what `word` names: 1 call, 2 calls."""
    return f"{number} {word}{'' if number == 1 else 's'}"
