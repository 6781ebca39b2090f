"""How many elements the arrays of a rank have in a call, and which of the two it has at all."""

import functools
import hashlib
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from lanterne.errors import InputError

# Elements of every rank's part; of gather and scatter, away from the root, also of this rank's alone.
Counts: TypeAlias = Sequence[int] | int
# Parts of the input and output array of a rank, by collective: of p ranks.
_PARTS: dict[str, Callable[[int], tuple[int, int]]] = {
    **dict.fromkeys(("all_reduce", "reduce", "broadcast", "scan", "exscan"), lambda p: (1, 1)),
    **dict.fromkeys(("all_gather", "gather", "barrier"), lambda p: (1, p)),
    **dict.fromkeys(("reduce_scatter", "scatter"), lambda p: (p, 1)),
    "all_to_all": lambda p: (p, p),
}
# Where parts may differ: all ranks know all counts, or the root does and each knows its own.
_COUNTED, _COUNTED_AT_ROOT = ("all_gather", "reduce_scatter"), ("gather", "scatter")
# Longer counts are told by a digest.
_MOST_TEXT = 48


class Sizes(NamedTuple):
    """Elements of a call's arrays on a rank.

    Attributes:
        in_count, out_count: of its arrays.
        in_parts, out_parts: parts that they have.
        part_count: of a part; 0 where parts differ.
        larger_count: elements of the larger of a rank's two arrays.
        before: of the parts of the ranks before this one, in the array that has a part for each.
        counts: where parts differ, elements of each, of all_to_all of both arrays (chunk_layout.uneven_parts); None
            where they do not.
        own: each rank knows the counts of its own parts only.
    """

    in_count: int
    out_count: int
    in_parts: int
    out_parts: int
    part_count: int
    larger_count: int
    before: int
    counts: tuple[int, ...] | None = None
    own: bool = False


def has_input(collective: str, rank: int, root: int | None) -> bool:
    """Whether `rank` gives an array."""
    return collective != "scatter" or rank == root


def has_output(collective: str, rank: int, root: int | None) -> bool:
    """Whether `rank` gets an array."""
    if collective in ("reduce", "gather"):
        return rank == root
    return collective != "exscan" or rank > 0


@functools.lru_cache(1024)
def even_sizes(collective: str, rank: int, world_size: int, in_count: int | None, out_count: int | None) -> Sizes:
    """The Sizes of a call with equal parts, whose arrays have so many elements; None: it has no such array.

    Raises:
        InputError: no multiple of the number of parts.
    """
    in_parts, out_parts = _PARTS[collective](world_size)
    if in_count is not None:
        what, count, parts = "in_array", in_count, in_parts
    else:
        what, count, parts = "out_array", out_count or 0, out_parts
    part_count, rest = divmod(count, parts)
    if rest:
        raise InputError(f"{collective}: got {what} of {count} elements, expected a multiple of {parts}")
    ours, larger = part_count * in_parts, part_count * max(in_parts, out_parts)
    return Sizes(ours, part_count * out_parts, in_parts, out_parts, part_count, larger, rank * part_count)


def uneven_sizes(collective: str, rank: int, world_size: int, root: int | None, counts: Any, out_counts: Any) -> Sizes:
    """The Sizes of a call with `counts` (of all_to_all those of the input array; `out_counts` of the output array).

    Raises:
        InputError: a collective whose parts are equal; not a number of elements for each rank.
    """
    in_parts, out_parts = _PARTS[collective](world_size)
    if collective == "all_to_all":
        given, got = (
            _each(f"all_to_all: got {name}", told, world_size)
            for name, told in (("in_counts", counts), ("out_counts", out_counts))
        )
        if given[rank] != got[rank]:
            raise InputError(
                f"all_to_all: got in_counts {given[rank]} and out_counts {got[rank]} of rank {rank} itself, "
                "expected the same"
            )
        total, other = sum(given), sum(got)
        return Sizes(total, other, in_parts, out_parts, 0, max(total, other), 0, given + got, True)
    at_root = collective in _COUNTED_AT_ROOT
    if collective not in _COUNTED and not at_root:
        raise InputError(f"{collective}: got counts, expected none: all parts are equal")
    if at_root and rank != root:
        own = counts if _is_whole(counts) else _each(f"{collective}: got counts", counts, world_size)[rank]
        known = tuple(int(own) if other == rank else 0 for other in range(world_size))
    else:
        known = _each(f"{collective}: got counts", counts, world_size)
    mine, everything = known[rank], sum(known)
    in_count, out_count = (mine if parts == 1 else everything for parts in (in_parts, out_parts))
    return Sizes(in_count, out_count, in_parts, out_parts, 0, everything, sum(known[:rank]), known, at_root)


def in_short(counts: Sequence[int]) -> str:
    """`counts` in a few words, equal where they are: of many a digest."""
    if not counts:
        return "each rank's own"
    text = "+".join(map(str, counts))
    if len(text) <= _MOST_TEXT:
        return text
    return f"{sum(counts)} as {hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"


def _is_whole(number: Any) -> bool:
    try:
        return operator.index(number) >= 0
    except TypeError:
        return False


def _each(what: str, counts: Any, world_size: int) -> tuple[int, ...]:
    """`counts`, a whole number for each rank, as a tuple."""
    try:
        numbers = tuple(map(operator.index, counts))
    except TypeError:
        raise InputError(f"{what} {counts!r}, expected {world_size} whole numbers") from None
    if len(numbers) != world_size or min(numbers, default=0) < 0:
        raise InputError(f"{what} {numbers}, expected {world_size} whole numbers, none negative")
    return numbers
