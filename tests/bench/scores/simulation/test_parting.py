"""Simulated jobs that lose a minority of their hosts: the others go on, and a fault in who may is found."""

import pytest

from lanterne.bench import cli
from lanterne.bench.scores.simulation.parting import run
from lanterne.bench.scores.simulation.simulate import quiet
from lanterne.transport.store import heirs

PORTIONS = [
    pytest.param(range(first, first + 5), marks=[pytest.mark.slow] if first >= 5 else (), id=f"{first}-{first + 4}")
    for first in range(0, 100, 5)
]


@pytest.mark.parametrize("portion", PORTIONS)
def test_all_is_well(portion):
    with quiet():
        assert [each for each in map(run, portion) if each.problems] == []


def test_the_command(capsys):
    assert cli.main(["simulate", "--part", "--seeds", "1", "--first", "5", "--jobs", "1"]) == 0
    assert "1 seeds, 0 fail" in capsys.readouterr().out
    assert cli.main(["simulate", "--part", "--grow"]) == 2


@pytest.mark.slow
def test_that_a_store_decides_without_a_majority_is_found(monkeypatch):
    monkeypatch.setattr(heirs, "is_backed", lambda log, known, by: True)
    with quiet():
        assert any(run(seed).problems for seed in range(40))
