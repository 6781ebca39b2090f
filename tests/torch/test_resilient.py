"""run_resilient and run_resilient_sharded: ranks die and come back; nothing is lost but a step."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch_jobs import HANGS_S, needs_torch

JOB, SHARDED = (Path(__file__).with_name(name) for name in ("resilient_rank.py", "sharded_rank.py"))
pytestmark = needs_torch


def run_job(size, *words):
    """Return how a job of `size` ranks ended, and what each wrote."""
    launch = [sys.executable, "-P", "-m", "lanterne", "launch", "-n", str(size), "--restarts", "1", "--"]
    variables = os.environ | {"RANKS": str(size), "OMP_NUM_THREADS": "1"}
    command = [*launch, sys.executable, "-P", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=False, env=variables)
    return ended, [json.loads(line) for line in ended.stdout.splitlines()]


@pytest.mark.parametrize("kind", ["cpu", "lag"])
def test_the_weights_are_those_of_one_process(kind):
    if kind == "lag" and shutil.which("g++") is None:
        pytest.skip("no g++, which builds the device")
    ended, found = run_job(3, JOB, kind)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("SIGKILL") == 2, ended.stderr
    assert len(found) == 3, found
    assert all(each["difference"] < 2e-6 for each in found), found
    # Rank 0 has seen all steps, and two deaths: the first made it do a step again, the second at most.
    most = max(each["calls"] for each in found)
    assert 24 < most <= 26, found


@pytest.mark.parametrize(("shape", "size", "deaths"), [("fsdp", 3, "3+1"), ("hsdp", 4, "2:1")])
def test_the_shards_are_those_of_one_process(shape, size, deaths):
    """AdamW, and sizes that the ranks do not divide; the bound is AdamW's, whose steps do not shrink with gradients."""
    ended, found = run_job(size, SHARDED, shape, deaths)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("SIGKILL") == 1, ended.stderr
    assert len(found) == size, ended.stderr
    assert all(each["difference"] < 3e-5 and each["seen"] == 20 for each in found), found
    assert [each["calls"] for each in found if each["is_first"]] == [21] * (size - 1), found


def test_a_process_may_have_another_place_among_as_many_ranks():
    """Rank 1 is rank 0 of two without rank 0, and, once that one is back and rank 2 is dead, rank 1 of two."""
    ended, found = run_job(3, SHARDED, "fsdp", "2:0,17:2")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("SIGKILL") == 2, ended.stderr
    assert all(each["difference"] < 3e-5 for each in found), found


@pytest.mark.parametrize(
    ("size", "deaths", "words"),
    [
        (3, "4:1,4:2", "the state after step 4 is lost: a rank has died with the one that had the copy of its part"),
        (3, "1:1,1:2", "the state after step 1 is lost"),
        # Rank 0 comes back, and the only one that has the state dies before it has sent it.
        (2, "3:0,make3:1", "the state after step "),
        (3, "unreadable", "got a state_dict or param_groups with other values than tensors"),
    ],
)
def test_state_that_is_lost_or_cannot_be_read_is_named(size, deaths, words):
    ended, found = run_job(size, SHARDED, "fsdp", deaths)
    assert ended.returncode != 0
    assert not found
    assert words in ended.stderr


@pytest.mark.parametrize(("steps", "words"), [(-1, "got -1 steps"), (2, "got no step of the optimizer in step 0")])
def test_what_cannot_be_is_refused(steps, words):
    import torch

    import lanterne.torch

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match=words):
        lanterne.torch.run_resilient(lambda _model, _step: None, model, optimizer, steps=steps)


def test_state_that_no_rank_has_is_named():
    """Two ranks that are new to a job, whose others have died meanwhile."""
    import torch

    import lanterne
    from lanterne.torch.resilient import _NEW, _share

    def share(comm):
        with pytest.raises(lanterne.LanterneError, match="the state is lost: all ranks that had it have died"):
            _share(comm, _NEW, [torch.nn.Linear(2, 2)])
        return _share(comm, 3 if comm.rank else _NEW, [torch.nn.Linear(2, 2)])

    assert lanterne.spawn(2, share) == [3, 3]
