"""Simulated jobs that shrink and grow: they hold, replay step by step, and a fault in how they grow is found."""

import pytest

from lanterne.bench import cli
from lanterne.bench.scores.simulation.growing import run
from lanterne.bench.scores.simulation.simulate import quiet
from lanterne.collectives import growth
from lanterne.transport.rank_group import Group
from lanterne.transport.store.meetings import Meetings

# Ten at a time.
PORTIONS = [
    pytest.param(range(first, first + 10), marks=[pytest.mark.slow] if first >= 20 else (), id=f"{first}-{first + 9}")
    for first in range(0, 200, 10)
]


@pytest.mark.parametrize("portion", PORTIONS)
def test_all_is_well(portion):
    with quiet():
        outcomes = [run(seed) for seed in portion]
    assert [each for each in outcomes if each.problems] == []
    assert sum(each.taken_in for each in outcomes) >= 3


def test_the_command_tells_how_many_were_taken_in(capsys):
    assert cli.main(["simulate", "--grow", "--seeds", "2", "--first", "3", "--jobs", "1"]) == 0
    assert "2 seeds, 0 fail" in (said := capsys.readouterr().out) and "ranks were taken in" in said
    assert cli.main(["simulate", "--grow", "--out", "."]) == 2


def test_a_seed_replays():
    with quiet():
        assert run(4).digest == run(4).digest != run(7).digest


def some_fail(seeds):
    with quiet():
        return any(run(seed).problems for seed in seeds)


def test_that_ranks_wait_for_each_other_at_two_meetings_is_found(monkeypatch):
    answer = Meetings._answer

    def patient(meetings, key, meeting, last):
        """As if a meeting to grow waited for all, whatever has become of them."""
        return [] if last == b"" and meetings._absent(meeting) else answer(meetings, key, meeting, last)

    monkeypatch.setattr(Meetings, "_answer", patient)
    assert some_fail([87, *range(60)])


def test_that_an_epoch_begins_without_somebody_is_found(monkeypatch):
    monkeypatch.setattr(Group, "begin", lambda group, limit_s: True)
    assert some_fail([24, *range(60)])


def test_that_a_newcomer_knows_other_links_is_found(monkeypatch):
    monkeypatch.setattr(growth, "known_to", lambda *_, **__: b"")
    from lanterne.collectives import communicator

    monkeypatch.setattr(communicator, "known_to", growth.known_to)
    assert some_fail(range(20))
