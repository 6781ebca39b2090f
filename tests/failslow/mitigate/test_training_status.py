"""The status of training: what a Tracker finds in its times, and what a Controller blamed, did and saved."""

import json
import threading
from math import inf, nan
from types import SimpleNamespace

import pytest

from lanterne.failslow.mitigate import training_status
from lanterne.failslow.mitigate.decision import Decision
from lanterne.failslow.mitigate.training_status import TrainingStatus
from lanterne.failslow.operate import page
from lanterne.failslow.operate.metrics import job_metrics


class Blaming:
    """As much of a Controller as a status needs."""

    health, saved_s = SimpleNamespace(usual_s=0.1), 4.5
    decisions = (
        Decision("validate", 42, ("rank 3",), evidence="work takes 2.00 times as long"),
        Decision("mitigate", 44, ("rank 3",), "rebalance", None, 0.2, 0.12, "confirmed"),
        Decision("mitigate", 52, ("link 0-1",), "topology", None, 0.15, 0.11, ""),
    )
    incidents = (
        {"what": "rank 3", "suspected": 40, "named": 44, "ended": 70, "severity": 2.0},
        {"what": "link 0-1", "suspected": 50, "named": 52, "ended": None, "severity": 0.02},
    )


def filled(status, first=0, iterations=90):
    for i in range(first, first + iterations):
        status.add(i, 0.1 * (1.0 + 0.01 * (i % 3)) * (2.0 if i >= first + 60 else 1.0))
    return status


def names(document):
    return {metric.name: metric.samples[0][1] for metric in job_metrics(document)}


@pytest.mark.parametrize("first", [0, 500])
def test_times_alone(first):
    document = filled(TrainingStatus(4, ["train.py"], begun_early=lambda: 3), first).document()
    assert json.loads(json.dumps(document)) == document
    (incident,) = document["incidents"]
    assert incident["iterations"]["onset"] == first + 60 and incident["lasts"] and incident["ranks"] == []
    assert document["iterations"]["slow"] and document["iterations"]["ratio"] == pytest.approx(2.0, rel=0.05)
    assert document["iterations"]["count"] == first + 90 and document["begun_early"] == 3
    assert "lanterne_saved_seconds" not in names(document)
    assert "slow: 2" in page.body([document], [])


def test_what_a_controller_blamed_did_and_saved():
    status = filled(TrainingStatus(4, ["train.py"], Blaming()))
    document = status.document()
    rank, link = document["incidents"]
    assert (rank["lasts"], rank["iterations"]) == (False, {"onset": 40, "relief": 70, "ratio": 2.0})
    assert [one["rank"] for one in rank["ranks"]] == [3] and link["ranks"] == []
    assert rank["remedy"] == "done: rebalance at iteration 44" and "confirmed" in rank["evidence"]
    assert link["evidence"] == ["link 0-1: messages take 20 ms more"] and link["lasts"]
    found = names(document)
    assert (found["lanterne_saved_seconds"], found["lanterne_slow"]) == (4.5, 1)
    assert found["lanterne_iteration_usual_seconds"] == 0.1
    assert "saved by mitigation" in page.body([document], []) and "link 0-1 is slow" in page.body([document], [])
    again = status.document(ended=True)
    assert again["ended"] and [one["id"] for one in again["incidents"]] == [one["id"] for one in (rank, link)]
    assert [one["time"] for one in again["incidents"]] == [rank["time"], link["time"]]


@pytest.mark.parametrize("none", [0.0, inf, nan])
def test_iterations_without_a_time_shift_no_numbers(none):
    status = TrainingStatus(4, ["train.py"])
    for i in range(20):
        status.add(i, none)
    document = filled(status, 20).document()
    (incident,) = document["incidents"]
    assert incident["iterations"]["onset"] == 80 and document["iterations"]["count"] == 110
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_old_incidents_are_counted_and_not_kept(monkeypatch):
    monkeypatch.setattr(training_status, "LATEST", 16)
    monkeypatch.setattr(training_status, "KEPT", 4)
    status, spells = TrainingStatus(4, ["train.py"]), 12
    for i in range(100 * spells):
        status.add(i, 0.1 * (1.0 + 0.01 * (i % 3)) * (2.0 if i % 100 >= 70 else 1.0))
        if i % 10 == 0:
            document = status.document()
    assert document["counts"] == {"slow": spells} and len(status._tracker.events) <= 8
    onsets = [one["iterations"]["onset"] for one in document["incidents"]]
    assert onsets == [100 * spell + 70 for spell in range(spells - 3, spells)]


def test_who_asks_while_an_iteration_is_added_sees_all_of_it_or_none(monkeypatch):
    status, asked, asking = TrainingStatus(4, ["train.py"]), [], []

    def update(time_s):
        asking.append(threading.Thread(target=lambda: asked.append(status.document())))
        asking[0].start()
        asking[0].join(0.1)
        assert not asked

    monkeypatch.setattr(status._tracker, "update", update)
    status.add(0, 0.1)
    asking[0].join()
    assert asked[0]["iterations"]["count"] == 1


def test_before_the_first_iteration():
    document = TrainingStatus(4, ["train.py"]).document()
    assert document["iterations"]["count"] == 0 and names(document)["lanterne_iterations_total"] == 0
    assert "starting" in page.body([document], [])
