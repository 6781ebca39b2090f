"""Score of what comes before a first call: parts of many ranks are measured, runs of init shown."""

import io

import pytest

from evaluation.speed import starting
from lanterne.errors import InputError


@pytest.mark.parametrize("algorithm", starting.ALGORITHMS)
def test_a_rank_makes_its_own_part(algorithm, monkeypatch):
    monkeypatch.setattr(starting, "WORLD_SIZE", 128)
    monkeypatch.setattr(starting, "RANK", 5)
    found = starting.own_part(algorithm)
    assert found["cpu_s"] > 0 and found["grown_nbytes"] >= 0 and found["actions"] > 7
    text = io.StringIO()
    starting.print_document({"own": [found], "init_s": [1.5, 1.0, 1.1]}, text)
    assert algorithm in text.getvalue() and "first init: 1.1 s (median of 3 runs, worst 1.5 s)" in text.getvalue()


def test_parts_are_known():
    with pytest.raises(InputError, match="--only: got 'nothing', expected one of own, init"):
        starting.main(["--only", "nothing"])
