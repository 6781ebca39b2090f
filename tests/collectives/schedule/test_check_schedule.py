"""The checker: each rule with its own message, naming the place."""

import pytest

from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.ir import COPY, REDUCE, ScheduleBuilder
from lanterne.errors import ScheduleError


def all_reduce(*rounds, world_size=2, **labels):
    build = ScheduleBuilder("all_reduce", "test", world_size, 1, **labels)
    for transfers in rounds:
        build.round(*transfers)
    return build.build()


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (all_reduce([(0, 1, 2, REDUCE)]), "round 0, transfer 0->1 chunk 2: got chunk 2, expected 0 to 0"),
        (all_reduce([(0, 1, 0, 7)]), "round 0, transfer 0->1 chunk 0: got op 7, expected 0 to 1"),
        (all_reduce([(1, 1, 0, COPY)]), "transfer 1->1 chunk 0: a rank sends to itself"),
        (
            all_reduce([(0, 1, 0, REDUCE)], [(0, 1, 0, REDUCE)]),
            "round 1, transfer 0->1 chunk 0: rank 1 already contains rank 0's",
        ),
        (
            all_reduce([(0, 1, 0, REDUCE), (0, 1, 0, REDUCE)]),
            "round 0, transfer 0->1 chunk 0: rank 1 already contains rank 0's",
        ),
        (all_reduce([(0, 1, 0, REDUCE), (0, 1, 0, COPY)]), "rank 1 is written twice in chunk 0"),
        (
            all_reduce([(0, 2, 0, REDUCE), (1, 2, 0, REDUCE)], world_size=3),
            "transfer 1->2 chunk 0: rank 2 receives 2 messages, expected at most 1",
        ),
        (all_reduce([(0, 1, 0, REDUCE)]), "at the end rank 0 chunk 0 lacks the contribution of rank 1"),
        (all_reduce([(0, 1, 0, REDUCE), (1, 0, 0, REDUCE)], world_size=3), "lacks the contribution of rank 2"),
        (all_reduce(), "at the end rank 0 chunk 0 lacks its result"),
    ],
)
def test_each_rule_names_the_place(schedule, message):
    with pytest.raises(ScheduleError, match=message):
        check(schedule)


def test_an_exchange_passes():
    assert check(all_reduce([(0, 1, 0, REDUCE), (1, 0, 0, REDUCE)])).scratch_chunks == 1
