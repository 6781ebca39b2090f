"""Ranks that somebody else numbered meet at her store; see joined_rank.py for what they then do."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import lanterne
from lanterne.errors import InputError

JOB = Path(__file__).with_name("joined_rank.py")


@pytest.mark.skipif(find_spec("ucxx") is None, reason="ucxx is not installed (extra ucx)")
def test_ranks_that_joined(tmp_path):
    environment = os.environ | {"LANTERNE_TRIALS": "off"}
    ranks = [
        subprocess.Popen([sys.executable, JOB, tmp_path, str(rank)], stdout=-1, stderr=-1, text=True, env=environment)
        for rank in range(3)
    ]
    try:
        ends = [rank.communicate(timeout=100) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [end[0] for end in ends] == ["fine\n"] * 3, ends


def test_a_rank_that_cannot_be_is_refused():
    with pytest.raises(InputError, match="got rank 3 of 3"):
        lanterne.join({}, 3, 3)  # type: ignore[arg-type]
