"""What a rank copies and folds in a collective through shared memory. Pure data.

Each rank has slots that all can read. Data go through them in pieces: a rank writes one into a slot of its own, and
reads those of others once they have been seen to be there. Sums are folded from the slots of all ranks, in their order:
the same bits wherever that is done.
"""

from typing import NamedTuple, TypeAlias

from lanterne.errors import InputError

# (to, from, bytes): offsets.
Copy: TypeAlias = tuple[int, int, int]


class SharedPiece(NamedTuple):
    """One piece.

    Attributes:
        writes: from the input into this rank's slot.
        reads: (rank, copy) from the slot of a rank into the output.
        fold: (offset in the output, in every rank's slot, elements), or None.
    """

    writes: tuple[Copy, ...]
    reads: tuple[tuple[int, Copy], ...]
    fold: tuple[int, int, int] | None


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
    """The pieces of a rank, and the ranks whose slots it reads: `sources` from `first` on."""

    pieces: tuple[SharedPiece, ...]
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
    in_place: bool = False,
) -> SharedProgram:
    """The SharedProgram of `rank` for parts (schedule/contracts.py) of `part_nbytes`.

    Args:
        in_place: this rank's part of the output is where its input is.

    Raises:
        InputError: not even one element of every part fits in a slot.
    """
    way = WAYS[collective]
    writes, reads = not way.from_root or rank == root, not way.to_root or rank == root
    if way.from_root and rank == root:
        reads = False
    parts = world_size if way.spread else 1
    unit = itemsize if way.folds else 1
    most = slot_nbytes // parts // unit * unit
    if not most:
        raise InputError(f"shared {collective}: got {world_size} ranks, expected {slot_nbytes // unit} at most")
    pieces = []
    for start in range(0, max(part_nbytes, 1), most):
        nbytes = min(most, part_nbytes - start)
        sent = [(part * nbytes, part * part_nbytes + start, nbytes) for part in range(parts)] if writes else []
        if parts > 1 and nbytes == part_nbytes and writes:
            sent = [(0, 0, parts * nbytes)]
        mine = rank * nbytes if way.spread else 0
        got: list[tuple[int, Copy]] = []
        if reads and not way.folds:
            sources = [root or 0] if way.from_root else [r for r in range(world_size) if r != rank or not in_place]
            got = [(r, (start + r * part_nbytes if way.gathers else start, mine, nbytes)) for r in sources]
        fold = (start, mine, nbytes // itemsize) if reads and way.folds else None
        pieces.append(
            SharedPiece(
                tuple(copy for copy in sent if copy[2]),
                tuple(read for read in got if read[1][2]),
                fold if fold and fold[2] else None,
            )
        )
    first, count = (root or 0, 1) if way.from_root else (0, world_size)
    return SharedProgram(tuple(pieces), first, count if reads else 0)
