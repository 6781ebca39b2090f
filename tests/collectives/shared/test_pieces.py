"""What ranks copy and fold through shared memory, against NumPy: no threads, no processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_outputs import expected

from lanterne.collectives.call.sizes import _PARTS
from lanterne.collectives.shared.pieces import WAYS, PieceCopy, shared_program
from lanterne.errors import InputError
from lanterne.kernels.cpu.meet import IN, OUT


def shift(copy, nbytes):
    """`copy`, so many bytes on in input and output."""
    at, start = (offset + nbytes * (place < 0) for place, offset in ((copy.to, copy.at), (copy.source, copy.start)))
    return copy._replace(at=at, start=start)


def pieces_of(program):
    """(piece, bytes on) of all of `program`."""
    for index in range(program.num_pieces):
        yield program.last if index == program.num_pieces - 1 else program.full, index * program.step


def run(programs, inputs, outputs, slot_nbytes):
    """Piece by piece: all write, then all read. Arrays of int32."""
    n = len(programs)
    slots = np.zeros((n, slot_nbytes), np.uint8)
    of, to = ([a.view(np.uint8) for a in arrays] for arrays in (inputs, outputs))
    for pieces in zip(*map(pieces_of, programs), strict=True):
        for rank, (piece, on) in enumerate(pieces):
            for copy in piece.writes:
                target, at, source, start, nbytes = shift(copy, on)
                assert (target, source) == (rank, IN), (pieces, rank, piece, on, copy)
                assert at + nbytes <= slot_nbytes, (pieces, rank, piece, on, copy)
                slots[rank, at : at + nbytes] = of[rank][start : start + nbytes]
        for rank, (piece, on) in enumerate(pieces):
            places = {IN: of[rank], OUT: to[rank], **dict(enumerate(slots))}
            read_from = {IN, *range(programs[rank].first, programs[rank].first + programs[rank].sources)}
            for copy in piece.reads:
                target, at, source, start, nbytes = shift(copy, on)
                assert target == OUT, (pieces, rank, piece, on, copy)
                assert source in read_from, (pieces, rank, piece, on, copy)
                to[rank][at : at + nbytes] = places[source][start : start + nbytes]
            if piece.fold is not None:
                assert programs[rank].sources == n, (pieces, rank, piece, on)
                out, count, sources = piece.fold
                got = [places[p][x + on * (p < 0) :][: 4 * count].copy().view(np.int32) for p, x in sources]
                to[rank][out + on :][: 4 * count] = np.sum(got, axis=0, dtype=np.int32).view(np.uint8)


@given(
    st.sampled_from([name for name in WAYS if name != "barrier"]), st.integers(2, 6), st.integers(0, 40),
    st.integers(0, 5), st.integers(6, 20), st.booleans(), st.booleans(), st.randoms(use_true_random=False),
)  # fmt: skip
def test_every_rank_has_its_result(collective, n, count, root, slot_words, in_place, direct, random):
    root %= n
    in_parts, out_parts = _PARTS[collective](n)
    inputs = [np.array([random.randrange(1000) for _ in range(count * in_parts)], np.int32) for _ in range(n)]
    wanted = [expected(collective, inputs, n, root)(me) for me in range(n)]
    outputs = [np.full(count * out_parts, -1, np.int32) for _ in range(n)]
    in_place &= collective in ("all_reduce", "all_gather", "broadcast")
    if in_place or collective == "broadcast":
        for me in range(n):
            part = outputs[me].reshape(out_parts, -1)[me] if out_parts > 1 else outputs[me]
            part[:] = inputs[me]
        if in_place:
            inputs = [out.reshape(out_parts, -1)[me] if out_parts > 1 else out for me, out in enumerate(outputs)]
    of_root = root if collective in ("broadcast", "reduce") else None
    programs = [
        shared_program(collective, n, me, of_root, 4 * count, 4, 4 * slot_words, in_place=in_place, direct=direct)
        for me in range(n)
    ]
    run(programs, inputs, outputs, 4 * slot_words)
    for me in range(n):
        if wanted[me] is not None:
            assert (outputs[me] == wanted[me]).all(), me


def test_a_barrier_is_a_piece_that_all_wait_for():
    program = shared_program("barrier", 3, 1, None, 0, 1, 64)
    assert program.num_pieces == 1
    assert (program.first, program.sources) == (0, 3)


def test_what_is_a_ranks_own_goes_through_no_slot():
    piece = shared_program("reduce_scatter", 3, 1, None, 8, 8, 64).last
    assert piece.writes == (PieceCopy(1, 0, IN, 16, 8), PieceCopy(1, 8, IN, 0, 8))
    assert piece.fold.sources == ((0, 0), (IN, 8), (2, 8))
    assert shared_program("all_to_all", 2, 0, None, 8, 8, 64).last.writes == (PieceCopy(0, 0, IN, 8, 8),)
    assert shared_program("reduce", 2, 0, 0, 8, 8, 64).last.writes == ()


def test_copies_that_go_on_are_one():
    assert shared_program("all_to_all", 4, 0, None, 8, 8, 64).last.writes == (PieceCopy(0, 0, IN, 8, 24),)


def test_a_slot_holds_an_element_of_each_part():
    assert shared_program("reduce_scatter", 8, 0, None, 80, 8, 64).num_pieces == 10
    with pytest.raises(InputError, match="got 10 ranks, expected 9 at most"):
        shared_program("reduce_scatter", 10, 0, None, 80, 8, 64)
    with pytest.raises(InputError, match="got 9 ranks, expected 8 at most"):
        shared_program("reduce_scatter", 9, 0, None, 80, 8, 64, direct=False)
