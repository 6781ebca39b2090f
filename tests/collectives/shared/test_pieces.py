"""What ranks copy and fold through shared memory, against NumPy: no threads, no processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.collectives.call.sizes import _PARTS
from lanterne.collectives.shared.pieces import WAYS, shared_program
from lanterne.errors import InputError


def expected(collective, inputs, n, root):
    """The output of each rank, None where it has none."""
    parts = [x.reshape(n, -1) if WAYS[collective].spread else x for x in inputs]
    total = np.sum(inputs, axis=0)
    return {
        "all_reduce": lambda me: total,
        "reduce": lambda me: total if me == root else None,
        "reduce_scatter": lambda me: total.reshape(n, -1)[me],
        "all_gather": lambda me: np.concatenate(inputs),
        "broadcast": lambda me: inputs[root],
        "all_to_all": lambda me: np.concatenate([part[me] for part in parts]),
        "barrier": lambda me: None,
    }[collective]


def run(programs, inputs, outputs, slot_nbytes):
    """Piece by piece: all write, then all read. Arrays of int32."""
    n = len(programs)
    slots = np.zeros((n, slot_nbytes), np.uint8)
    of, to = ([a.view(np.uint8) for a in arrays] for arrays in (inputs, outputs))
    for pieces in zip(*(program.pieces for program in programs), strict=True):
        for rank, piece in enumerate(pieces):
            for target, source, nbytes in piece.writes:
                slots[rank, target : target + nbytes] = of[rank][source : source + nbytes]
        for rank, piece in enumerate(pieces):
            read_from = range(programs[rank].first, programs[rank].first + programs[rank].sources)
            for peer, (target, source, nbytes) in piece.reads:
                assert peer in read_from
                to[rank][target : target + nbytes] = slots[peer, source : source + nbytes]
            if piece.fold is not None:
                assert programs[rank].sources == n
                target, source, count = piece.fold
                summed = slots[:, source : source + 4 * count].copy().view(np.int32).sum(axis=0, dtype=np.int32)
                to[rank][target : target + 4 * count] = summed.view(np.uint8)


@given(
    st.sampled_from([name for name in WAYS if name != "barrier"]), st.integers(2, 6), st.integers(0, 40),
    st.integers(0, 5), st.integers(6, 20), st.booleans(), st.randoms(use_true_random=False),
)  # fmt: skip
def test_every_rank_has_its_result(collective, n, count, root, slot_words, in_place, random):
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
        shared_program(collective, n, me, of_root, 4 * count, 4, 4 * slot_words, in_place=in_place) for me in range(n)
    ]
    run(programs, inputs, outputs, 4 * slot_words)
    for me in range(n):
        if wanted[me] is not None:
            assert (outputs[me] == wanted[me]).all()


def test_a_barrier_is_a_piece_that_all_wait_for():
    program = shared_program("barrier", 3, 1, None, 0, 1, 64)
    assert len(program.pieces) == 1
    assert (program.first, program.sources) == (0, 3)


def test_a_slot_holds_an_element_of_each_part():
    assert shared_program("reduce_scatter", 8, 0, None, 80, 8, 64).pieces[0].writes[1] == (8, 80, 8)
    with pytest.raises(InputError, match="got 9 ranks, expected 8 at most"):
        shared_program("reduce_scatter", 9, 0, None, 80, 8, 64)
