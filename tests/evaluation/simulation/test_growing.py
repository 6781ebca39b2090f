"""Simulated jobs that shrink and grow: they hold, replay step by step, and a fault in how they grow is found."""

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.simulation import growing
from evaluation.simulation.growing import GrowingWorld, run
from evaluation.simulation.simulate import quiet
from lanterne.collectives import growth
from lanterne.transport.rank_group import Group
from lanterne.transport.store.membership.meetings import Meetings

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
    assert EVALUATE.main(["simulate", "--grow", "--seeds", "2", "--first", "3", "--jobs", "1"]) == 0
    assert "2 seeds, 0 fail" in (said := capsys.readouterr().out) and "ranks were taken in" in said
    assert EVALUATE.main(["simulate", "--grow", "--out", "."]) == 2


def test_a_seed_replays():
    with quiet():
        assert run(4).digest == run(4).digest != run(7).digest


# Seeds of each kind of lasting cut.
LASTING = {
    "pair": "a path between two is cut for long",
    "one way": "nothing passes in one direction for long",
    "host": "the store's host is cut off",
    "host one way": "nothing comes from the store's host",
}


@pytest.mark.parametrize("kind", LASTING, ids=LASTING.values())
def test_who_is_cut_off_for_long_ends_or_goes_on(kind):
    seed = next(seed for seed in range(100) if GrowingWorld(seed).lasting == kind)
    with quiet():
        outcome = run(seed)
        quieter = run(seed, without=frozenset(outcome.events))
    assert outcome.problems == () and f"lasting cut: {kind}" in outcome.events
    assert quieter.problems == () and not set(quieter.events) & set(outcome.events)


def test_a_newcomer_begins_anew_where_all_that_had_a_state_have_died():
    """Two of three ranks are dead when the third dies, too, as it takes in the first, which was started again."""
    with quiet():
        assert run(878).problems == ()


def test_that_a_state_is_lost_which_somebody_has_is_found(monkeypatch):
    with quiet():
        monkeypatch.setattr(growing.GrowingProgram, "_has_state_elsewhere", lambda program, process, here: True)
        assert any(line.startswith("lost: ") for line in run(878).problems)


def test_a_seed_that_fails_shrinks_to_the_events_that_it_takes(monkeypatch, capsys):
    judge = growing.judge_growth

    def judged(world):
        yield from judge(world)
        yield from ("wrong: on purpose" for event in world.events if event.startswith("lasting"))

    monkeypatch.setattr(growing, "judge_growth", judged)
    seed = next(seed for seed in range(100) if GrowingWorld(seed).lasting == "pair")
    assert EVALUATE.main(["replay", str(seed), "--grow", "--shrink", "--last", "3"]) == 1
    said = capsys.readouterr().out
    assert "events: lasting cut: pair\nwrong: on purpose" in said and len(said.split("\n\n")[0].splitlines()) == 3


@pytest.mark.parametrize("words", [["a.json", "--grow"], ["4", "--grow", "--out", "a.json"]])
def test_a_seed_of_a_job_that_grows_is_a_number(words, capsys):
    assert EVALUATE.main(["replay", *words]) == 2
    assert "expected a number, without --out" in (error := capsys.readouterr().err) and error.count("\n") == 1


def some_fail(seeds):
    with quiet():
        return any(run(seed).problems for seed in seeds)


def test_that_ranks_wait_for_each_other_at_two_meetings_is_found(monkeypatch):
    answer = Meetings._answer

    def patient(meetings, key, meeting, last):
        """As if a meeting to grow waited for all, whatever has become of them."""
        return [] if last == b"" and meetings._absent(meeting) else answer(meetings, key, meeting, last)

    # Short jobs in which nearly everybody is killed: others shrink while some wait to grow.
    for name, given in {"FALLS": {"kill": 0.9}, "STEPS": (10, 20), "LASTING": ("",), "STORE_DEATHS": (0,)}.items():
        monkeypatch.setattr(growing, name, given)
    seeds = (62, 389, 515, 641, 699, 800)
    assert not some_fail(seeds)
    monkeypatch.setattr(Meetings, "_answer", patient)
    assert some_fail(seeds)


def test_that_an_epoch_begins_without_somebody_is_found(monkeypatch):
    monkeypatch.setattr(Group, "begin", lambda group, limit_s: True)
    assert some_fail([24, *range(60)])


def test_that_ranks_agree_on_different_numbers_is_found(monkeypatch):
    survivors = Group.survivors

    def apart(group, name, ranks, cut, payload, limit_s):
        """As if what the last rank brings did not count."""
        came = survivors(group, name, ranks, cut, payload, limit_s)
        return came if "/agree/" not in name else {rank: came[rank] for rank in came if rank != group.world_size - 1}

    monkeypatch.setattr(Group, "survivors", apart)
    agreeing = [seed for seed in range(20) if GrowingWorld(seed).agrees]
    with quiet():
        assert any("disagree" in line for seed in agreeing for line in run(seed).problems)


def test_that_a_newcomer_knows_other_links_is_found(monkeypatch):
    monkeypatch.setattr(growth.KnownLinks, "told", lambda *_, **__: b"")
    assert some_fail(range(20))
