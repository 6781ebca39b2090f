"""run_resilient: ranks die amid a backward pass and behind a step, and come back; nothing is lost but a step."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from torch_jobs import HANGS_S, needs_torch

JOB = Path(__file__).with_name("resilient_rank.py")
pytestmark = needs_torch


@pytest.mark.parametrize("kind", ["cpu", "lag"])
def test_the_weights_are_those_of_one_process(kind):
    if kind == "lag" and shutil.which("g++") is None:
        pytest.skip("no g++, which builds the device")
    words = [sys.executable, "-P", "-m", "lanterne", "launch", "-n", "3", "--restarts", "1", "--", sys.executable, "-P"]
    ended = subprocess.run([*words, str(JOB), kind], capture_output=True, text=True, timeout=HANGS_S, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("SIGKILL") == 2, ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(found) == 3, found
    assert all(each["difference"] < 2e-6 for each in found), found
    # Rank 0 has seen all steps, and two deaths: the first made it do a step again, the second at most.
    most = max(each["calls"] for each in found)
    assert 24 < most <= 26, found


@pytest.mark.parametrize(("steps", "words"), [(-1, "got -1 steps"), (2, "got no step of the optimizer in step 0")])
def test_what_cannot_be_is_refused(steps, words):
    import torch

    import lanterne.torch

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match=words):
        lanterne.torch.run_resilient(lambda _model, _step: None, model, optimizer, steps=steps)
