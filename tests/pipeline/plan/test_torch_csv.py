"""Plans as torch.distributed.pipelining reads them; tests/torch/test_pipelining.py lets torch run them."""

import re

import pytest

from lanterne.errors import InputError, ScheduleError
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.plan.torch_csv import TORCH_KINDS, parse_rows, plan_of, to_text, to_torch_csv
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got no action, expected a line for each rank"),
        ("0F0,0B0\n1F0;1B0\n", "rank 1, cell 1: got '1F0;1B0', expected an action such as 2F0"),
        ("0F0,0X0\n", "rank 0, cell 2: got '0X0'"),
        ("0F0,0F\n", "rank 0, cell 2: got '0F'"),
        ("0F0,0UNSHARD3\n", "rank 0, cell 2: got '0UNSHARD3'"),
        ("0F0,0SEND_F0\n1RECV_F0,,1F0\n", "rank 1, cell 2: got an empty cell, expected none beside messages"),
        ("0F" + "9" * 30 + "\n", "rank 0, cell 1"),
        ('"' + "x" * 200_000 + '"\n', "is no CSV"),
    ],
)
def test_what_is_no_file_of_torch_is_refused(text, message):
    with pytest.raises(ScheduleError, match=message):
        parse_rows(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0\n0F1,0B1\n", r"stage 0: got its computing on ranks \[0, 1\]"),
        ("0F0,0B0\n2F0,2B0\n", "stage 1: got its computing on no rank"),
        ("0F0,0B0\n0SEND_F0\n", "got a rank that computes nothing"),
        ("0F0,0B0\n\n1F0,1B0\n", "got a rank that computes nothing"),
        ("999999999F0\n", "stage 0: got its computing on no rank|computes nothing"),
    ],
)
def test_stages_that_are_not_each_on_one_rank_are_refused(text, message):
    with pytest.raises(ScheduleError, match=message):
        plan_of(parse_rows(text))


def test_cells_that_torch_leaves_empty_and_pairs_of_actions_are_read():
    rows = parse_rows("0F0,,0F1,(0B0;0F2)OVERLAP_F_B\r\n,1F0,1B0\n")
    assert to_text(rows) == "0F0,0F1,0B0,0F2\n1F0,1B0\n"


def test_a_plan_of_two_routes_is_refused():
    with pytest.raises(InputError, match="got placement bidirectional, expected one route"):
        to_torch_csv(crosspipe(PROBLEM, placement="bidirectional"))
