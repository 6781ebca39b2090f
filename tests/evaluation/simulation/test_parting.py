"""Simulated jobs that lose a minority of their hosts: the others go on, and a fault in who may is found."""

from functools import partial

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.simulation import growing
from evaluation.simulation.growing import GrowingWorld
from evaluation.simulation.parting import run
from evaluation.simulation.simulate import quiet
from lanterne.transport.store import heirs

PORTIONS = [
    pytest.param(range(first, first + 5), marks=[pytest.mark.slow] if first >= 5 else (), id=f"{first}-{first + 4}")
    for first in range(0, 100, 5)
]


@pytest.mark.parametrize("portion", PORTIONS)
def test_all_is_well(portion):
    with quiet():
        assert [each for each in map(run, portion) if each.problems] == []


# Seeds of cuts of one direction: the store's host hears nobody, or not those of one host; and others.
ONE_WAY = [
    *(pytest.param([seed], id=str(seed)) for seed in (1, 5)),
    *(pytest.param([*range(first, first + 10)], marks=pytest.mark.slow, id=f"{first}-") for first in range(0, 100, 10)),
]


@pytest.mark.parametrize("seeds", ONE_WAY)
def test_paths_are_cut_in_one_direction(seeds):
    with quiet():
        assert [each for each in map(partial(run, one_way=True), seeds) if each.problems] == []


def test_who_reaches_most_hosts_goes_on_alone_where_all_others_have_ended_in_init(monkeypatch):
    monkeypatch.setattr(growing, "AGREEING_PART", 0)
    with quiet():
        assert run(32, one_way=True).problems == ()


def test_agreements_do_not_make_longer_what_stores_tell_each_other(monkeypatch):
    decide, lengths = heirs.Heirs.decide, []

    def decides(store, what, over=()):
        decided = decide(store, what, over)
        lengths.append((store.decisions.own.length, len(store.decisions.own.log)))
        return decided

    monkeypatch.setattr(heirs.Heirs, "decide", decides)
    seed = next(seed for seed in range(20) if GrowingWorld(seed).agrees and GrowingWorld(seed).steps > 20)
    with quiet():
        assert run(seed).problems == ()
    longest, kept = map(max, zip(*lengths, strict=True))
    assert longest > 20 and kept < 12


@pytest.mark.parametrize("more", [[], ["--one-way"]], ids=["both", "one way"])
def test_the_command(capsys, more):
    assert EVALUATE.main(["simulate", "--part", *more, "--seeds", "1", "--first", "9", "--jobs", "1"]) == 0
    assert "1 seeds, 0 fail" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--part", "--grow"], ["--one-way"], ["--one-way", "--grow"]], ids=" ".join)
def test_what_the_command_refuses(words):
    assert EVALUATE.main(["simulate", *words]) == 2


def test_that_a_store_which_hears_nobody_decides_who_has_died_is_found(monkeypatch):
    monkeypatch.setattr(heirs.DecisionLog, "hears_a_majority", lambda store: True)
    with quiet():
        assert "gave up: rank" in str(run(1, one_way=True).problems)


@pytest.mark.slow
def test_that_a_store_decides_without_a_majority_is_found(monkeypatch):
    monkeypatch.setattr(heirs, "is_backed", lambda log, known, by: True)
    with quiet():
        assert any(run(seed).problems for seed in range(40))
