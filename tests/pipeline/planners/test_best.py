"""best: the proved optima, never worse than another scheduler, valid, deterministic; robust and re-planning modes."""

import dataclasses
import json
import os
import random
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_problems import placements, problems

from lanterne.errors import InputError, ScheduleError
from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.placement import PLACEMENTS, make_placement
from lanterne.pipeline.plan.problem import TIMES, Problem
from lanterne.pipeline.planners.annealing import anneal, orders_of, score_words, scratch, simulate_words
from lanterne.pipeline.planners.best import best
from lanterne.pipeline.planners.bounds import lower_bound
from lanterne.pipeline.planners.crosspipe import crosspipe
from lanterne.pipeline.planners.loops import compile_in_background
from lanterne.pipeline.planners.moves import index_words, is_feasible
from lanterne.pipeline.planners.schedulers import SCHEDULERS, plan
from lanterne.pipeline.planners.words import (
    letters_of,
    plan_of,
    with_message_words,
    words_of,
)
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

CASES = {
    case["id"]: case for case in json.loads((Path(__file__).parents[1] / "data" / "cases.json").read_text())["cases"]
}
# One link too slow for the memory: no scheduler that it starts from meets the bound.
HARD = Problem(6, 12, [100, 120, 90, 110, 100, 130], 113, 87, [50, 0, 170, 0, 90], max_inflight_activations=5)


def makespan(made, problem):
    return simulate(check(made, problem), problem).makespan


def timed(words, letters):
    return simulate_words(letters, orders_of(words), 0, *scratch(letters))


@pytest.mark.parametrize("case", CASES)
def test_meets_the_proved_optimum(case):
    problem = Problem.from_dict(CASES[case])
    made = best(problem)
    assert made.scheduler == "best" and made.placement.name == "unidirectional"
    assert makespan(made, problem) == made.proved_bound == CASES[case]["optimum"]


@settings(deadline=None, max_examples=40)
@given(st.data(), problems(stages=5, microbatches=9))
def test_valid_and_never_worse_than_any_other(data, problem):
    placement = data.draw(placements(problem))
    made = best(problem, placement=placement, effort=0.1)
    assert made.placement == placement
    found = makespan(made, problem)
    assert lower_bound(problem, placement) <= made.proved_bound <= found * (1 + 1e-9)
    others = [crosspipe(problem, placement=placement, weight_parts=parts) for parts in (1, 4)]
    for name in SCHEDULERS:
        if name not in ("best", "optimal"):
            try:
                other = plan(problem, name)
                check(other, problem)
            except InputError:
                continue
            if other.placement == placement:
                others.append(other)
    assert found <= min(simulate(other, problem).makespan for other in others) * (1 + 1e-9)


def test_the_search_improves_on_all_it_starts_from():
    only_compared, searched = (makespan(best(HARD, effort=effort), HARD) for effort in (0, 1))
    assert searched < only_compared


def test_same_arguments_same_plan():
    first, again = (best(HARD, effort=0.3, seed=7).words() for _ in range(2))
    assert first == again


def test_bad_options():
    for options, message in (
        ({"effort": -1}, "effort: got -1"),
        ({"effort": float("nan")}, "effort: got nan"),
        ({"seed": 1.5}, "seed: got 1.5"),
        ({"jitter": "much"}, "jitter: got 'much'"),
        ({"robust": 0}, "robust: got 0"),
        ({"robust": "median"}, "robust: got 'median', expected mean or a quantile"),
        ({"time_limit_s": 0}, "time_limit_s: got 0"),
        ({"placement": "spiral"}, "placement: got 'spiral'"),
    ):
        with pytest.raises(InputError, match=message):
            best(HARD, **options)
    with pytest.raises(ScheduleError, match="expected the problem's 12"):
        best(HARD, start=crosspipe(Problem(6, 11, 1, 1, 1)))
    with pytest.raises(ScheduleError, match="start: got a plan on the wave placement"):
        best(HARD, start=crosspipe(HARD, placement="wave"))


def test_replanning_is_never_worse_than_going_on():
    slower = dataclasses.replace(HARD, link_latency=[50, 0, 170, 0, 300])
    running = best(HARD)
    again = best(slower, start=running)
    assert makespan(again, slower) < makespan(running, slower)
    assert makespan(best(slower, start=running, effort=0), slower) <= makespan(running, slower)


def test_planning_against_jitter_improves_the_sampled_quantile():
    """On latencies that were not planned with, and over all of them the mean."""

    def spans(made):
        source, found = random.Random(1), []
        for _ in range(100):
            delays = [delay * source.gammavariate(4, 0.25) for delay in HARD.link_latency]
            found.append(simulate(made, dataclasses.replace(HARD, link_latency=delays)).makespan)
        return sorted(found)

    plain, careful, average = (best(HARD, robust=robust, jitter=0.5) for robust in (None, 0.9, "mean"))
    check(careful, HARD), check(average, HARD)
    assert len(anneal.signatures) == 1, "the search was compiled again for sampled latencies"
    assert spans(careful)[89] < spans(plain)[89]
    assert sum(spans(average)) < sum(spans(plain))


@pytest.mark.timing
def test_a_robust_plan_ends_within_its_time_limit():
    problem = Problem(8, 32, 10, 11, 8, [0, 0, 0, 25, 0, 0, 0], max_inflight_activations=12)
    began = time.monotonic()
    best(problem, placement="any", robust=0.9, duration_jitter=0.2, time_limit_s=3.0)
    assert time.monotonic() - began < 4.5


@settings(deadline=None, max_examples=25)
@given(problem=problems(stages=3, microbatches=5), data=st.data())
def test_microbatches_of_unequal_lengths(problem, data):
    """Planned by all but the solver, none below the bound; and as many times as long all together is no difference."""
    lengths = data.draw(st.lists(st.integers(1, 4), min_size=problem.microbatches, max_size=problem.microbatches))
    uneven = dataclasses.replace(problem, microbatch_lengths=lengths)
    assert Problem.from_dict(uneven.to_dict()) == uneven
    placement = make_placement(data.draw(st.sampled_from(["unidirectional", "wave"])), problem.stages)
    made = best(uneven, placement=placement, effort=0.01)
    took = simulate(check(made, uneven), uneven)
    assert made.proved_bound <= took.makespan * (1 + 1e-9)
    usual = simulate(check(made, problem), problem)
    actions = [action for rank in made.ranks for action in rank]
    factor = np.array([lengths[action.microbatch] for action in actions])
    assert took.end - took.start == pytest.approx((usual.end - usual.start) * factor)
    twice = dataclasses.replace(problem, microbatch_lengths=[2.0] * problem.microbatches)
    times = {key: [2 * each for each in getattr(problem, key)] for key in TIMES}
    double = dataclasses.replace(problem, **times)
    assert simulate(made, twice).makespan == pytest.approx(simulate(made, double).makespan)


def test_whole_actions_only():
    """On this problem W in pieces are better."""
    problem = Problem(3, 6, 10, 13, 10, [3, 0], max_inflight_activations=2)
    pieces, whole = (best(problem, placement="wave", effort=0, whole=each) for each in (False, True))
    assert any(action.parts > 1 for rank in pieces.ranks for action in rank)
    assert all(action.parts == 1 for rank in whole.ranks for action in rank)
    assert makespan(pieces, problem) < makespan(whole, problem)
    with pytest.raises(InputError, match="whole: got a start with actions in pieces"):
        best(problem, placement="wave", start=pieces, whole=True)


@pytest.mark.timing
def test_the_solver_polishes_what_is_left():
    problem = Problem(4, 8, [100, 120, 90, 110], 113, 87, [50, 0, 170], max_inflight_activations=3)
    compared, polished = best(problem, effort=0), best(problem, effort=0, time_limit_s=20)
    assert polished.proved_bound == makespan(polished, problem) < makespan(compared, problem)


@settings(deadline=None, max_examples=40)
@given(st.data(), problems(stages=4, microbatches=6))
def test_every_neighbour_is_timed_and_limited_as_the_checker_says(data, problem):
    """A word with two letters exchanged at random is feasible exactly where the checker finds its plan so."""
    placement = data.draw(placements(problem))
    table = costs(problem, placement)
    letters = letters_of(table)
    words = words_of(crosspipe(problem, placement=placement, weight_parts=1), letters)
    rank = data.draw(st.integers(0, len(words) - 1))
    size = int((words[rank] >= 0).sum())
    i, j = (data.draw(st.integers(0, size - 1)) for _ in range(2)) if size else (0, 0)
    words[rank, [i, j]] = words[rank, [j, i]]
    spelt = plan_of(words, table, "")
    turn, place = np.zeros(words.shape, np.int64), np.zeros((len(letters.total), problem.microbatches), np.int64)
    index_words(words, letters, turn, place, np.zeros(words.shape))
    fits = not size or is_feasible(words[rank, :size], turn[rank], size, letters, 0.0)
    ordered = with_message_words(words, letters)
    span = timed(ordered, letters) if fits and len(ordered) == len(letters.capacity) else 1e300
    try:
        check(spelt, problem)
    except ScheduleError:
        assert span == 1e300
        return
    assert span == pytest.approx(simulate(spelt, problem).makespan)


@pytest.mark.parametrize("placement", PLACEMENTS)
@settings(deadline=None, max_examples=10)
@given(problem=problems(stages=4, microbatches=6, data_parallel=False))
def test_words_with_messages_are_timed_as_the_plan_that_they_spell(placement, problem):
    placement = make_placement(placement, problem.stages)
    table = costs(problem, placement)
    letters = letters_of(table)
    if not table.shared:
        return
    words = words_of(crosspipe(problem, placement=placement, weight_parts=1), letters)
    ordered = with_message_words(words, letters)
    found = [makespan(plan_of(rows, table, "words"), problem) for rows in (words, ordered)]
    assert found == pytest.approx([timed(ordered, letters)] * 2)


def test_a_wave_with_little_memory_is_grown_from_few_microbatches():
    """9769 is proved by CP-SAT. A search of the whole alone, and of letters alone, ends 3 % above it on average.

    13273 is the best known, twice as many microbatches as are searched for; the same ended 8 % above it.
    """
    times = [98, 100, 99, 102], [103, 96, 95, 103], [99, 103, 95, 99]
    problem = Problem(4, 12, *times, [0, 100, 300], max_inflight_activations=2)
    assert makespan(best(problem, placement="wave"), problem) <= 9769 * 1.01
    times = [97, 102, 101, 97, 103], [98, 102, 103, 100, 102], [96, 97, 102, 103, 96]
    problem = Problem(5, 12, *times, [100, 400, 0, 100], max_inflight_activations=2)
    assert makespan(best(problem, placement="wave"), problem) <= 13273 * 1.03


def test_the_first_plan_on_a_machine_does_not_wait_for_compiling_where_it_is_near_the_bound(monkeypatch):
    asked = []
    near = Problem(4, 12, 102, 100, 97, [0, 90, 0], max_inflight_activations=4)
    later = best(near)
    monkeypatch.setattr("lanterne.pipeline.planners.best.are_compiled", lambda: False)
    monkeypatch.setattr("lanterne.pipeline.planners.best.compile_in_background", lambda: asked.append(True))
    with monkeypatch.context() as patch:
        patch.setattr("lanterne.pipeline.planners.best.improve", lambda *args, **options: pytest.fail("it waited"))
        made = best(near, wait=False)
    assert asked and made.proved_bound < makespan(made, near) <= 1.01 * makespan(later, near)


@settings(deadline=None, max_examples=15)
@given(st.data(), problems(stages=5, microbatches=9))
def test_a_plan_hardly_depends_on_whether_the_search_is_compiled(data, problem):
    """Whether it must wait or not."""
    placement = data.draw(placements(problem))
    later = best(problem, placement=placement, effort=0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lanterne.pipeline.planners.best.are_compiled", lambda: False)
        patch.setattr("lanterne.pipeline.planners.best.compile_in_background", lambda: None)
        first = best(problem, placement=placement, effort=0.1, wait=False)
    assert makespan(first, problem) <= 1.01 * makespan(later, problem) * (1 + 1e-9)


# Over all placements 0.6 % behind the wave: once each was searched less than by itself.
BEHIND = Problem(8, 32, 100, 110, 80, [0, 0, 0, 200, 0, 0, 0], max_inflight_activations=8)


def test_over_all_placements_it_is_not_behind_any_of_them():
    alone = [makespan(best(BEHIND, placement=name), BEHIND) for name in ("unidirectional", "wave", "loop")]
    assert makespan(best(BEHIND, placement="any"), BEHIND) <= min(alone) * (1 + 1e-9)


def test_one_process_compiles_at_a_time(monkeypatch, tmp_path):
    """Plans that are made before the loops are there ask for them; whoever compiles holds the lock until it ends."""
    started = []

    def start(_command, pass_fds, **_options):
        started.append(os.dup(pass_fds[0]))

    monkeypatch.setattr(score_words._cache, "_cache_path", str(tmp_path / "cache"))
    monkeypatch.setattr("lanterne.pipeline.planners.loops.subprocess.Popen", start)
    for expected in (1, 1):
        compile_in_background()
        assert len(started) == expected, expected
    os.close(started[0])
    compile_in_background()
    assert len(started) == 2
    os.close(started[1])
