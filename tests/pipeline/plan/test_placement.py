"""Stages on ranks, and the routes through them."""

import pytest
from problems import PLACEMENTS

from lanterne.errors import InputError
from lanterne.pipeline.plan.placement import Placement, bidirectional, loop, unidirectional, wave


@pytest.mark.parametrize(
    ("placement", "stage_to_rank"),
    [
        (unidirectional(3), (0, 1, 2)),
        (loop(3), (0, 1, 2, 0, 1, 2)),
        (wave(3), (0, 1, 2, 2, 1, 0)),
        (wave(2, 3), (0, 1, 1, 0, 0, 1)),
        (bidirectional(3), (0, 1, 2, 2, 1, 0)),
    ],
)
def test_stages_on_ranks(placement, stage_to_rank):
    assert placement.stage_to_rank == stage_to_rank


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_every_microbatch_passes_each_rank_and_steps_are_undone(name, ranks):
    placement = PLACEMENTS[name](ranks)
    for microbatch in range(4):
        route = [stage for stage in range(placement.num_stages) if microbatch in placement.microbatches_of(stage, 4)]
        assert {placement.stage_to_rank[stage] for stage in route} == set(range(ranks)), microbatch
        assert placement.step(route[0], -1) is None and placement.step(route[-1], +1) is None, microbatch
        for stage in route[:-1]:
            assert placement.step(placement.step(stage, +1), -1) == stage, (microbatch, stage)
    assert sum(len(placement.stages_of(rank)) for rank in range(ranks)) == placement.num_stages


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("custom", 2, ()), "got 0 stages on 1 routes"),
        (("custom", 2, (0, 1, 0), 2), "got 3 stages on 2 routes"),
        (("custom", 2, (0, 2)), r"got stages on ranks \[0, 2\], expected each of 0 to 1"),
        (("custom", 3, (0, 1)), r"got stages on ranks \[0, 1\], expected each of 0 to 2"),
    ],
)
def test_what_is_no_placement_is_said(arguments, message):
    with pytest.raises(InputError, match=message):
        Placement(*arguments)
