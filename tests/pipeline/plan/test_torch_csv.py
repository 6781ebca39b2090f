"""Plans as torch.distributed.pipelining reads them; tests/torch/test_pipelining.py lets torch run them."""

import re

import pytest

from lanterne.errors import InputError
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.plan.torch_csv import TORCH_KINDS, to_torch_csv
from lanterne.pipeline.planners.crosspipe import crosspipe
from lanterne.pipeline.planners.schedulers import plan

PROBLEM = Problem(3, 4, 2, 2, 1, [1, 1])


@pytest.mark.parametrize("scheduler", ["gpipe", "1f1b", "zb_h1", "interleaved_1f1b", "zb_v", "adaptra"])
def test_a_line_for_each_rank_with_every_action(scheduler):
    made = plan(PROBLEM, scheduler)
    lines = to_torch_csv(made).splitlines()
    ours = {theirs: kind for kind, theirs in TORCH_KINDS.items()}
    for line, actions in zip(lines, made.ranks, strict=True):
        read = [re.fullmatch(r"(\d+)([A-Z])(\d+)", word).groups() for word in line.split(",")]
        assert [(ours[kind], int(stage), int(microbatch)) for stage, kind, microbatch in read] == [
            (action.kind, action.stage, action.microbatch) for action in actions
        ], (line, actions)


def test_pieces_are_refused():
    with pytest.raises(InputError, match=r"got W\d\.\d\.1/4 on rank \d, expected whole actions"):
        to_torch_csv(crosspipe(PROBLEM, weight_parts=4))
