"""Trials: who is tried, for how long, what becomes of the factors, and that all ranks find the same."""

import numpy as np
import pytest

from lanterne.collectives import trials as module
from lanterne.collectives.cost import CostModel
from lanterne.collectives.jobs import spawn
from lanterne.collectives.predict import Factor, candidates, predictions
from lanterne.collectives.trials import TRIED_NBYTES, measure_factors, time_calls, try_again

MODEL = CostModel(1e-5, 1e-9, 1e-10)


def took(seconds_of):
    """A stand-in for a round of trials: every call is made, and took `seconds_of(its place, the round's number)`."""

    def _round(communicator, calls, number):
        for call in calls:
            call()
        return np.array([seconds_of(place, number) for place in range(len(calls))])

    return _round


def test_those_that_are_predicted_to_be_near_are_tried_and_the_others_not_favoured(monkeypatch):
    monkeypatch.setattr(module, "_round", took(lambda place, number: (place + 1) * 1e-3))
    monkeypatch.setattr(module, "MAX_TRIED", 2)
    monkeypatch.setattr(module, "ENOUGH_S", 1.0)
    monkeypatch.setattr(module, "TRIALS", 2)
    results = spawn(3, lambda comm: measure_factors(comm, MODEL))
    assert results[0] == results[1] == results[2]
    for nbytes in TRIED_NBYTES:
        rows = predictions("all_reduce", 3, nbytes, MODEL)
        factors = {row.algorithm: row.factor for row in results[0] if row.nbytes == nbytes}
        assert set(factors) == {line.name for line in candidates("all_reduce", 3)}
        assert factors[rows[0][0]] == pytest.approx(1e-3 / rows[0][2])
        assert {factors[name] for name, _, _ in rows[2:]} == {max(factors.values())}


def test_trials_that_take_long_together_are_the_last(monkeypatch):
    monkeypatch.setattr(module, "_round", took(lambda place, number: 0.2))
    monkeypatch.setattr(module, "MOST_S", 2.0)
    sizes = {row.nbytes for row in spawn(2, lambda comm: measure_factors(comm, MODEL))[0]}
    assert sizes == set(TRIED_NBYTES[: len(sizes)]) and 1 <= len(sizes) < 3


def test_slow_networks_are_not_tried_for_long():
    assert spawn(3, lambda comm: measure_factors(comm, CostModel(1.0, 1e-3))) == [()] * 3


def test_who_is_far_behind_is_out_and_disturbed_calls_do_not_count(monkeypatch):
    called = []
    names = ["quick", "near", "far"]
    usual_s = {"quick": 1e-3, "near": 1.1e-3, "far": 2e-3}

    def _round(communicator, calls, number):
        # One round of three is disturbed tenfold.
        return np.array([usual_s[call()] * (10 if number % 3 == 1 else 1) for call in calls])

    monkeypatch.setattr(module, "_round", _round)
    monkeypatch.setattr(module, "TRIALS_S", 60.0)
    took_s, _ = module._contest(None, [lambda name=name: called.append(name) or name for name in names])
    assert took_s == pytest.approx([1e-3, 1.1e-3, 2e-3])
    assert called.count("far") == 2 + module.CUTS[0] and called.count("near") == 2 + module.TRIALS


def test_of_long_calls_who_is_behind_is_out_sooner_and_one_alone_is_not_called_again(monkeypatch):
    called = []
    usual_s = {"quick": 0.2, "near": 0.21, "far": 0.24}
    monkeypatch.setattr(module, "_round", lambda communicator, calls, number: np.array([usual_s[c()] for c in calls]))
    monkeypatch.setattr(module, "LONGEST_S", 60.0)
    calls = [lambda name=name: called.append(name) or name for name in usual_s]
    module._contest(None, calls)
    assert called.count("far") == 1 + module.LONG_CUTS[0]
    assert called.count("quick") == called.count("near") == 1 + module.FEWEST_TRIALS
    called.clear()
    usual_s["near"] = 0.4
    module._contest(None, calls)
    assert called.count("quick") == 1 + module.LONG_CUTS[0]


def test_long_calls_are_not_tried_often(monkeypatch):
    called = []
    monkeypatch.setattr(module, "_round", took(lambda place, number: 1.0))
    module._contest(None, [lambda: called.append(1)])
    assert len(called) == 1 + module.LEAST_REPEATS
    assert time_calls(None, [lambda: None], 5).shape == (1, module.LEAST_REPEATS)


def test_trying_again_lowers_the_factors_that_were_disturbed_and_no_others(monkeypatch):
    rows = predictions("all_reduce", 3, 1 << 10, MODEL)
    before = tuple(Factor("all_reduce", name, 1 << 10, 2.0) for name, _, _ in rows)
    monkeypatch.setattr(module, "_round", took(lambda place, number: rows[0][2] * (1.5 if place == 0 else 1e3)))
    for after in spawn(3, lambda comm: try_again(comm, MODEL, before)):
        factors = {row.algorithm: row.factor for row in after}
        assert factors.pop(rows[0][0]) == pytest.approx(1.5) and set(factors.values()) == {2.0}


def test_a_round_calls_each_once_in_an_order_of_its_own():
    def orders(comm):
        found = []
        for number in range(8):
            order = []
            samples = module._round(comm, [lambda i=i, o=order: o.append(i) for i in range(4)], number)
            assert samples.shape == (4,) and (samples > 0).all() and sorted(order) == [0, 1, 2, 3]
            found.append((tuple(order), tuple(samples)))
        return found

    results = spawn(2, orders)
    assert results[0] == results[1] and len({order for order, _ in results[0]}) > 4
