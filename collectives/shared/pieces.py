"""What a rank copies and folds in a collective through shared memory. Pure data.

Each rank has slots that all can read. Data go through them in pieces: a rank writes one into a slot of its own, and
reads those of others once they have been seen to be there. What is a rank's own it takes from its input. Sums are
folded in the order of ranks: the same bits wherever that is done.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lanterne.errors import InputError
from lanterne.kernels.cpu.meet import IN, OUT


class PieceCopy(NamedTuple):
    """`nbytes` from a place, `start` bytes from its beginning, to another.

    Places: the slot of a rank, by its number; this rank's arrays: IN, OUT.
    """

    to: int
    at: int
    source: int
    start: int
    nbytes: int


class SharedFold(NamedTuple):
    """`elements` at `out` of the output, and where those of every rank are: (place, bytes from its beginning)."""

    out: int
    elements: int
    sources: tuple[tuple[int, int], ...]


class SharedPiece(NamedTuple):
    """One piece: copies into this rank's slot, and, once all are there, out of slots."""

    writes: tuple[PieceCopy, ...]
    reads: tuple[PieceCopy, ...]
    fold: SharedFold | None


class Way(NamedTuple):
    """How a collective goes through memory.

    Attributes: `spread`, the input has a part for each rank; `gathers`, so has the output; `folds`; `from_root`, only
    the root writes; `to_root`, only the root reads.
    """

    spread: bool = False
    gathers: bool = False
    folds: bool = False
    from_root: bool = False
    to_root: bool = False


WAYS: dict[str, Way] = {
    "all_reduce": Way(folds=True),
    "reduce": Way(folds=True, to_root=True),
    "reduce_scatter": Way(spread=True, folds=True),
    "all_gather": Way(gathers=True),
    "broadcast": Way(from_root=True),
    "all_to_all": Way(spread=True, gathers=True),
    "barrier": Way(gathers=True),
}


class SharedProgram(NamedTuple):
    """The pieces of a rank, and the ranks whose slots it reads: `sources` from `first` on.

    There are `num_pieces` like `full`, each `step` bytes on in input and output, the last of which is `last`.
    """

    full: SharedPiece
    last: SharedPiece
    num_pieces: int
    step: int
    first: int
    sources: int


def shared_program(
    collective: str,
    world_size: int,
    rank: int,
    root: int | None,
    part_nbytes: int,
    itemsize: int,
    slot_nbytes: int,
    *,
    in_place: bool = False,
    direct: bool = True,
) -> SharedProgram:
    """The SharedProgram of `rank` for parts (schedule/contracts.py) of `part_nbytes`.

    Args:
        in_place: this rank's part of the output is where its input is.
        direct: what it folds of its own it takes from its input; not where the output is written before that is read.

    Raises:
        InputError: not even one element of every part fits in a slot.
    """
    way = WAYS[collective]
    at_root = rank == root
    direct = direct or not way.folds
    # The parts for others, in the order in which they lie in the slot, its own last.
    receivers = [(rank + 1 + i) % world_size for i in range(world_size)] if way.spread else [0]
    if way.spread and direct:
        receivers.pop()
    if (way.from_root and not at_root) or (way.to_root and at_root and direct):
        receivers = []
    reads = not at_root if way.from_root else at_root or not way.to_root
    parts = max(1, world_size - direct) if way.spread else 1
    unit = itemsize if way.folds else 1
    most = slot_nbytes // parts // unit * unit
    if not most:
        most_ranks = slot_nbytes // unit + direct
        raise InputError(f"shared {collective}: got {world_size} ranks, expected {most_ranks} at most")

    def source(other: int, nbytes: int) -> tuple[int, int]:
        """Where what `other` has for this rank is."""
        if other == rank and direct:
            return IN, rank * part_nbytes * way.spread
        return other, (rank - other - 1) % world_size * nbytes * way.spread

    def piece(nbytes: int) -> SharedPiece:
        if not nbytes:
            return SharedPiece((), (), None)
        sent = [PieceCopy(rank, i * nbytes, IN, part * part_nbytes, nbytes) for i, part in enumerate(receivers)]
        if not reads:
            return SharedPiece(_joined(sent), (), None)
        if way.folds:
            sources = tuple(source(other, nbytes) for other in range(world_size))
            return SharedPiece(_joined(sent), (), SharedFold(0, nbytes // itemsize, sources))
        others = [root or 0] if way.from_root else [r for r in range(world_size) if r != rank or not in_place]
        got = [PieceCopy(OUT, r * part_nbytes * way.gathers, *source(r, nbytes), nbytes) for r in others]
        return SharedPiece(_joined(sent), tuple(got), None)

    count = max(1, -(-part_nbytes // most))
    first, sources = (root or 0, 1) if way.from_root else (0, world_size)
    last = piece(part_nbytes - (count - 1) * most)
    return SharedProgram(piece(most) if count > 1 else last, last, count, most, first, sources if reads else 0)


def _joined(copies: Sequence[PieceCopy]) -> tuple[PieceCopy, ...]:
    """`copies`, those that go on where the one before ended in one."""
    joined: list[PieceCopy] = []
    for copy in copies:
        before = joined[-1] if joined else None
        if before and copy[:4] == (before.to, before.at + before.nbytes, before.source, before.start + before.nbytes):
            joined[-1] = before._replace(nbytes=before.nbytes + copy.nbytes)
        else:
            joined.append(copy)
    return tuple(joined)
