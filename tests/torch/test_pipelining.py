"""torch.distributed.pipelining runs our plans from their CSV, and learns what a Trainer learns from them."""

import json

import pytest
from torch_jobs import needs_torch

from evaluation.__main__ import EVALUATE
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.plan.torch_csv import parse_rows, to_torch_csv
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.torch_messages import check_rows, place_messages

pytestmark = needs_torch


def test_the_same_plans_give_the_same_losses(tmp_path):
    """Computing alone, and with our messages; interleaved_1f1b has two stages on each rank."""
    names = ["1f1b", "zb_h1", "interleaved_1f1b", "best"]
    options = ["--ranks", "2", "--schedulers", ",".join(names), "--width", "16", "--blocks", "1", "--iterations", "2"]
    assert EVALUATE.main(["torch-pipelining", *options, "--json", str(tmp_path / "found.json")]) == 0
    results = json.loads((tmp_path / "found.json").read_text())["results"]
    assert [record["scheduler"] for record in results] == names
    assert all({"csv", "comms", "lanterne"} <= set(record["losses"]) for record in results)
    assert all(record["difference"] < 1e-4 and record["ratio"] > 0 for record in results)


@pytest.mark.parametrize("name", ["1f1b", "interleaved_1f1b", "zb_v"])
def test_messages_that_torch_places_are_read_and_ours_block_none(name):
    from torch.distributed.pipelining import schedules

    problem = Problem(4, 8, 2, 2, 2, 1)
    made = plan(problem, name)
    computing = [
        [schedules._Action.from_str(word) for word in line.split(",")] for line in to_torch_csv(made).splitlines()
    ]
    stage_to_rank = made.placement.stage_to_rank
    lowered = schedules._add_send_recv(dict(enumerate(computing)), stage_to_rank.__getitem__, len(stage_to_rank))
    if hasattr(schedules, "_add_wait_send"):
        lowered = schedules._add_wait_send(lowered)
    text = "".join(",".join(map(str, lowered[rank])) + "\n" for rank in range(problem.stages))
    theirs = check_rows(parse_rows(text), problem)
    ours = check_rows(place_messages(made, problem), problem)
    assert theirs.messages == ours.messages > 0
    assert theirs.waits == hasattr(schedules, "_add_wait_send")
    assert theirs.blocked > 0 == ours.blocked
    assert theirs.makespan > ours.makespan
