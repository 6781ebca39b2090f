"""The score of healthy work: a short run is right, and one in which nothing ran is not."""

import pytest

from evaluation.operators import healthy_hour

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("runs", [True, False])
def test_a_short_run(runs, monkeypatch):
    pytest.importorskip("mpi4py")
    monkeypatch.setattr(healthy_hour, "PAUSE_S", 0.5)
    if not runs:
        monkeypatch.setattr(healthy_hour, "PROGRAM", "")
    found = healthy_hour.watched(2, 3, 1)
    assert (found["code"], found["right"], found["iterations"] > 0) == (0, runs, runs), found
