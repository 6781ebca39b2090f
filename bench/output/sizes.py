"""Sizes on command lines, checked against what the machine can hold."""

import os

from lanterne.bench.output.units import format_nbytes, parse_nbytes
from lanterne.errors import InputError


def parse_sizes(text, option, copies):
    """Sizes in bytes of a list like "8,1MiB", of which the benchmark holds `copies` at a time; a tuple.

    Raises:
        InputError: no sizes, or one of which the copies do not fit into this machine's memory.
    """
    sizes = tuple(parse_nbytes(part, option) for part in text.split(","))
    check_sizes(sizes, option, copies)
    return sizes


def check_sizes(sizes, option, copies):
    """Raise InputError if `copies` buffers of the largest of `sizes` do not fit into this machine's memory."""
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // copies
    if max(sizes) > limit:
        raise InputError(
            f"{option}: got {format_nbytes(max(sizes))}, expected at most {format_nbytes(limit)}: "
            f"this machine's memory over {copies} buffers"
        )
