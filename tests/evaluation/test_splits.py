"""The benchmark of splits: a small run, and that it sees calls that are not made."""

import json
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from evaluation import splits


@pytest.mark.slow
def test_a_small_run():
    command = [sys.executable, "-m", "evaluation", "splits", "--splits", "1100", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert [(each["rank"], each["splits"], each["wrong"]) for each in results] == [(0, 1100, 0), (1, 1100, 0)]


def test_a_call_that_is_not_made_is_wrong():
    wrong = []
    mute = SimpleNamespace(split=lambda color: nullcontext(SimpleNamespace(all_reduce=lambda x, out: None)))
    splits._split(mute, 3, wrong)
    assert wrong[-2:] == [1, 2]
