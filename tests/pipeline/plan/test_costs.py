"""The flat tables say the same as `dependencies`, the problem and the placement say one by one."""

import pytest
from problems import PLACEMENTS

from lanterne.pipeline.plan.action import FUSED, KINDS, Action, dependencies
from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.problem import Problem

PROBLEM = Problem(
    3,
    4,
    [3, 6, 9],
    12,
    6,
    link_latency=[[0, 1, 2], [3, 0, 4], [5, 6, 0]],
    link_bandwidth=[[None, 1, 2], [4, None, None], [1, 2, None]],
    message_nbytes=[8, 4],
    memory={"forward": 6, "backward_input": -3, "backward_weight": -3},
    data_parallel={"kind": "zero1", "reduce_scatter": 6, "all_gather": [6, 12, 18]},
)


def all_actions(placement):
    for kind in KINDS:
        for stage in range(placement.num_stages):
            for microbatch in range(PROBLEM.microbatches):
                yield Action(kind, stage, microbatch)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_slots_are_the_dependencies_on_other_stages(name):
    placement = PLACEMENTS[name](3)
    table = costs(PROBLEM, placement)

    def ident(action):
        return table.id(KINDS.index(action.kind), action.stage, action.microbatch)

    for action in all_actions(placement):
        slot = table.slot[ident(action)]
        needed = [need for need in dependencies(action, placement) if need.stage != action.stage]
        assert (slot != table.always) == bool(needed), action
        filled_by = {other for other in all_actions(placement) if needed and table.target[ident(other)] == slot}
        wholes = [whole for whole, pieces in FUSED.items() if needed and needed[0].kind in pieces]
        assert filled_by == {*needed, *(needed[0]._replace(kind=whole) for whole in wholes)}, action


@pytest.mark.parametrize("name", PLACEMENTS)
def test_costs_are_those_of_the_rank_divided_over_its_stages(name):
    placement = PLACEMENTS[name](3)
    table = costs(PROBLEM, placement)
    for action in all_actions(placement):
        i = table.id(KINDS.index(action.kind), action.stage, action.microbatch)
        rank, share = placement.stage_to_rank[action.stage], placement.shares()[action.stage]
        assert table.duration[i] == PROBLEM.durations[action.kind][rank] / share, action
        taken = {"F": (6, 0), "B": (0, 3), "W": (0, 3), "BW": (0, 6)}[action.kind]
        assert (table.alloc[i] * share, table.free[i] * share) == pytest.approx(taken), action
        step = +1 if action.kind == "F" else -1
        to = placement.step(action.stage, step) if action.kind != "W" else None
        if to is None or placement.stage_to_rank[to] == rank:
            assert (table.latency[i], table.occupancy[i], table.link[i]) == (0, 0, -1), action
        else:
            dst = placement.stage_to_rank[to]
            assert table.latency[i] == PROBLEM.latency(rank, dst), action
            assert table.occupancy[i] == PROBLEM.occupancy(rank, dst, 8 if action.kind == "F" else 4), action
            assert (table.link[i] >= 0) == (table.occupancy[i] > 0), action
    assert table.all_gather.sum() == (36 if name != "bidirectional" else 72)
