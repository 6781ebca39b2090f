"""Trials: who is tried, for how long, what becomes of the factors, and that all ranks find the same."""

import numpy as np
import pytest

from lanterne.collectives.auto import trials as module
from lanterne.collectives.auto.predict import Factor, candidates, goes_through_memory, predictions
from lanterne.collectives.auto.trials import TRIED_NBYTES, measure_factors, time_calls, try_again, usual_s
from lanterne.collectives.jobs import spawn
from lanterne.collectives.schedule.cost import CostModel

MODEL = CostModel(1e-5, 1e-9, 1e-10)


def took(seconds_of):
    """A stand-in for a round of trials: every call is made, and took `seconds_of(its place, the round's number)`."""

    def _round(communicator, calls, number, pause_s=0):
        for call in calls:
            call()
        return np.array([seconds_of(place, number) for place in range(len(calls))])

    return _round


def test_those_that_are_predicted_to_be_near_are_tried_and_the_others_not_favoured(monkeypatch):
    monkeypatch.setattr(module, "_round", took(lambda place, number: (place + 1) * 1e-3))
    monkeypatch.setattr(module, "MAX_TRIED", 2)
    monkeypatch.setattr(module, "MOST_S", 60.0)
    monkeypatch.setattr(module, "TRIALS", 2)
    results = spawn(3, lambda comm: measure_factors(comm, MODEL))
    assert results[0] == results[1] == results[2]
    for nbytes in TRIED_NBYTES:
        rows = predictions("all_reduce", 3, nbytes, MODEL)
        factors = {row.algorithm: row.factor for row in results[0] if row.nbytes == nbytes}
        assert set(factors) == {line.name for line in candidates("all_reduce", 3)}, nbytes
        assert factors[rows[0][0]] == pytest.approx(1e-3 / rows[0][2]), nbytes
        assert {factors[name] for name, *_ in rows[2:]} == {max(factors.values())}, nbytes


def test_no_job_waits_for_long_and_later_ones_try_what_is_left(monkeypatch):
    monkeypatch.setattr(module, "_round", took(lambda place, number: 0.02))

    def jobs(comm):
        known, added = (), []
        while (found := measure_factors(comm, MODEL, known)) != known:
            assert found[: len(known)] == known
            added.append({row.nbytes for row in found} - {row.nbytes for row in known})
            known = found
        return added

    added = spawn(2, jobs)[0]
    assert len(added) > 2 and all(len(sizes) <= 2 for sizes in added)
    # What is predicted to take longer than a job may try is never tried.
    tried = [nbytes for sizes in added for nbytes in sizes]
    assert sorted(tried) == [nbytes for nbytes in sorted(TRIED_NBYTES) if nbytes <= max(tried)]
    assert max(tried) < max(TRIED_NBYTES)


def test_what_goes_through_memory_is_not_tried(monkeypatch):
    monkeypatch.setattr(module, "_round", took(lambda place, number: 0.02))

    def tried(comm):
        return {row.nbytes for row in measure_factors(comm, MODEL, shares_memory=True)}

    found = spawn(3, tried)[0]
    assert found and not any(goes_through_memory("all_reduce", 3, nbytes, 1e-3) for nbytes in found)


def test_slow_networks_are_not_tried_for_long():
    assert spawn(3, lambda comm: measure_factors(comm, CostModel(1.0, 1e-3))) == [()] * 3


def test_who_is_far_behind_is_out_and_disturbed_calls_do_not_count(monkeypatch):
    called = []
    names = ["quick", "near", "far"]
    usual_s = {"quick": 1e-3, "near": 1.1e-3, "far": 2e-3}

    def _round(communicator, calls, number, pause_s=0):
        # One round of three is disturbed tenfold.
        return np.array([usual_s[call()] * (10 if number % 3 == 1 else 1) for call in calls])

    monkeypatch.setattr(module, "_round", _round)
    monkeypatch.setattr(module, "TRIALS_S", 60.0)
    took_s, _ = module._contest(None, [lambda name=name: called.append(name) or name for name in names])
    assert took_s == pytest.approx([1e-3, 1.1e-3, 2e-3])
    assert called.count("far") == 2 + min(module.CUTS) and called.count("near") == 2 + module.TRIALS


def test_of_long_calls_who_is_behind_is_out_sooner_and_one_alone_is_not_called_again(monkeypatch):
    called = []
    usual_s = {"quick": 0.2, "near": 0.21, "far": 0.28}
    monkeypatch.setattr(module, "_round", lambda comm, calls, *_: np.array([usual_s[c()] for c in calls]))
    monkeypatch.setattr(module, "LONGEST_S", 60.0)
    calls = [lambda name=name: called.append(name) or name for name in usual_s]
    module._contest(None, calls)
    assert called.count("far") == 1 + min(module.LONG_CUTS)
    assert called.count("quick") == called.count("near") == 1 + module.FEWEST_TRIALS
    called.clear()
    usual_s["near"] = 0.4
    module._contest(None, calls)
    assert called.count("quick") == 1 + min(module.LONG_CUTS)


def test_long_calls_are_not_tried_often(monkeypatch):
    called = []
    monkeypatch.setattr(module, "_round", took(lambda place, number: 1.0))
    module._contest(None, [lambda: called.append(1)])
    assert len(called) == 1 + module.LEAST_REPEATS
    assert time_calls(None, [lambda: None], 5).shape == (module.LEAST_REPEATS, 1)


def test_a_call_is_compared_with_the_others_of_its_round():
    true_s, rng = np.array([1.0, 1.08, 1.2, 2.0]), np.random.default_rng(0)
    right = np.zeros(2)
    for _ in range(200):
        # Rounds differ by far more than the calls of one.
        rounds_s = true_s * np.exp(rng.normal(0, 0.5, (20, 1)) + rng.normal(0, 0.1, (20, 4)))
        right += usual_s(rounds_s).argmin() == 0, np.nanmedian(rounds_s, axis=0).argmin() == 0
    assert right[0] >= 190 and right[1] < 180
    assert usual_s([[1.0, 2.0, 4.0], [10.0, 20.0, np.nan], [1.0, 2.0, np.nan]]) == pytest.approx([1.0, 2.0, 4.0])


def test_trying_again_turns_the_factors_and_lowers_all_of_a_size_where_less_was_taken(monkeypatch):
    predicted = predictions("all_reduce", 3, 1 << 10, MODEL)
    (first, _, first_s, _), (second, _, second_s, _), *_ = predicted
    # Only the first two are near each other.
    before = tuple(
        Factor("all_reduce", name, 1 << 10, {first: 2.0, second: 2.0 * first_s / second_s}.get(name, 20.0))
        for name, *_ in predicted
    )

    def changes(first_took, second_took):
        times = 2.0 * first_s * first_took, 2.0 * first_s * second_took
        monkeypatch.setattr(module, "_round", took(lambda place, number: times[place]))
        results = spawn(3, lambda comm: try_again(comm, MODEL, before))
        assert results[0] == results[1] == results[2]
        found = {row.algorithm: row.factor / old.factor for row, old in zip(results[0], before, strict=True)}
        return [found.pop(first), found.pop(second), min(found.values()), max(found.values())]

    # Both took half of what was known: so do the others of this size, which were not tried.
    assert changes(0.5, 0.5) == pytest.approx([0.5] * 4)
    # All took more than ever, one of them twice as much as the other: it is favoured less, but nothing is slower.
    gain = 2 ** (module.AGAIN_WEIGHT / 2)
    assert changes(6.0, 3.0) == pytest.approx([gain, 1 / gain, 1.0, 1.0])


def test_a_round_calls_each_once_in_an_order_of_its_own():
    def orders(comm):
        found = []
        for number in range(8):
            order = []
            samples = module._round(comm, [lambda i=i, o=order: o.append(i) for i in range(4)], number)
            assert samples.shape == (4,) and (samples > 0).all() and sorted(order) == [0, 1, 2, 3], number
            found.append((tuple(order), tuple(samples)))
        return found

    results = spawn(2, orders)
    assert results[0] == results[1] and len({order for order, _ in results[0]}) > 4
