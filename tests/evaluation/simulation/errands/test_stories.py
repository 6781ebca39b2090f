"""Errands: all that seeds stand for hold, each replays, and what is not as it must be is seen."""

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.simulation.errands import hosts
from evaluation.simulation.errands.errand import run_errand
from evaluation.simulation.errands.stories import ERRANDS, run
from evaluation.simulation.simulate import quiet
from lanterne.transport.board.sequencer import Sequencer
from lanterne.transport.rank_group import Group
from lanterne.transport.store.membership.admissions import Admissions
from lanterne.transport.store.membership.together import Votes


def problems_of(name, seeds):
    """What is wrong with one errand, in `seeds`."""
    with quiet():
        return [line for seed in seeds for line in run_errand(seed, [(name, ERRANDS[name])], traced=False).problems]


@pytest.mark.parametrize("name", ERRANDS)
def test_all_is_well(name):
    assert problems_of(name, range(12)) == []


def test_seeds_take_all_errands_in_turn_and_replay():
    with quiet():
        assert {run(seed).name for seed in range(len(ERRANDS))} == {*ERRANDS}
        assert run(7).digest == run(7, traced=True).digest != run(7 + len(ERRANDS)).digest


# Of each: what is broken, as it would be by a fault, and the errand that sees it.
FAULTS = {
    "claims": (Admissions, "_placed", lambda *_: []),
    "votes": (Votes, "is_gone", lambda *_: None),
    "calls": (Sequencer, "lose", lambda *_: []),
    "goodbyes": (Group, "_leave_at_exit", lambda group: group.abandon()),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_seen(name, monkeypatch):
    monkeypatch.setattr(*FAULTS[name])
    assert any(line.startswith(f"{name}: ") for line in problems_of(name, range(12)))


def test_a_store_that_does_not_end_is_seen(monkeypatch):
    monkeypatch.setattr("evaluation.simulation.errands.errand.ENDS_S", 0.5)
    assert any("a store ends 1 s after its last client" in line for line in problems_of("votes", range(2)))


# Hosts that decide were lost, ranks have met since, the store that leads is lost, and one more host with it.
@pytest.mark.parametrize("seed", [10, 12, 21, 41, 49])
def test_a_host_that_is_lost_with_the_store_is_told_at_once_although_ranks_have_met_before(seed):
    with quiet():
        assert run_errand(seed, [("losses", hosts.losses)], traced=False).problems == ()


def test_the_commands(capsys):
    assert EVALUATE.main(["simulate", "--errands", "--seeds", "5", "--jobs", "1"]) == 0
    assert "5 seeds, 0 fail" in capsys.readouterr().out
    assert EVALUATE.main(["replay", "8", "--errands", "--last", "2"]) == 0
    said = capsys.readouterr().out
    assert "seed 8: the errand between" in said and "all is well after" in said


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "--errands", "--grow"],
        ["simulate", "--errands", "--transport", "tcp"],
        ["replay", "a.json", "--errands"],
        ["replay", "4", "--errands", "--shrink"],
    ],
    ids=" ".join,
)
def test_what_the_commands_refuse(words, capsys):
    assert EVALUATE.main(words) == 2
    assert (error := capsys.readouterr().err).startswith("lanterne: --grow") and error.count("\n") == 1


def test_the_command_says_which_seed_fails(monkeypatch, capsys):
    monkeypatch.setattr(Votes, "is_gone", lambda *_: None)
    assert EVALUATE.main(["simulate", "--errands", "--seeds", "200", "--jobs", "1"]) == 1
    assert " --errands` shows the first step by step" in capsys.readouterr().out
