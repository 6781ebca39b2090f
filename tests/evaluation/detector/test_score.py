"""The labelled jobs are what they say, the judge sees every kind of mistake, and the detectors score as claimed."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from evaluation.detector import drawn_jobs, noise_families, score, update_cost
from lanterne.failslow.detect.events import LevelEvent

LABELS = (drawn_jobs.Label("onset", 100, 1.3), drawn_jobs.Label("relief", 150, 1 / 1.3))
JOB = drawn_jobs.DrawnJob("x", "step", (1.0,) * 300, LABELS)
PERFECT = [LevelEvent("onset", 100, 101, 104, 1.3), LevelEvent("relief", 150, 151, 154, 0.77)]


def test_a_perfect_answer():
    verdict = score.judge(JOB, PERFECT)
    assert (verdict.right, verdict.alarm, verdict.missed) == (True, False, 0)
    assert (verdict.latencies, verdict.provisional) == ((5, 5), (2, 2))


@pytest.mark.parametrize(
    ("events", "missed", "alarm"),
    [
        ([], 1, False),
        (PERFECT[:1], 0, False),
        ([*PERFECT, LevelEvent("onset", 200, 201, 204, 1.2)], 0, True),
        ([*PERFECT, LevelEvent("change", 200, 201, 204, 0.8)], 0, False),
        ([replace(PERFECT[0], index=106), PERFECT[1]], 1, True),
        ([replace(PERFECT[0], ratio=0.7), PERFECT[1]], 1, False),
        ([replace(PERFECT[0], confirmed_at=None), PERFECT[1]], 1, False),
    ],
)
def test_every_mistake_is_seen(events, missed, alarm):
    verdict = score.judge(JOB, events)
    assert not verdict.right
    assert (verdict.missed, verdict.missed_15, verdict.alarm) == (missed, missed, alarm)


@pytest.mark.parametrize(("index", "confirmed_at", "misplaced"), [(110, 120, 1), (90, 99, 0), (151, 160, 0)])
def test_what_is_told_while_slow_but_placed_off_is_missed_and_counted(index, confirmed_at, misplaced):
    verdict = score.judge(JOB, [LevelEvent("onset", index, index, confirmed_at, 1.3)])
    assert (verdict.missed_15, verdict.misplaced_15) == (1, misplaced)


@pytest.mark.parametrize("name", ["spiky_step-1300006895", "spiky_step-1300007995", "ramp-1300011534"])
def test_spikes_blur_neither_the_noise_nor_where_a_level_begins(name):
    """Jobs of which a noise estimated from 64 rows, or the least distances to two medians, missed a plain step."""
    kind, seed = name.rsplit("-", 1)
    job = drawn_jobs.make_job(kind, int(seed))
    assert score.score(score.detectors()["tracker"], [job])["strong_onsets_missed"] == 0.0


def test_changes_inside_a_loose_incident_are_no_mistake():
    inside = [*PERFECT, LevelEvent("change", 120, 121, 124, 1.4)]
    assert not score.judge(JOB, inside).right
    assert score.judge(replace(JOB, loose=True), inside).right


def test_small_steps_are_optional():
    job = replace(JOB, labels=(*LABELS, drawn_jobs.Label("step", 200, 1.06)))
    assert score.judge(job, PERFECT).right
    assert score.judge(job, [*PERFECT, LevelEvent("change", 201, 202, 216, 1.06)]).right


@pytest.mark.parametrize("kind", drawn_jobs.KINDS)
def test_jobs_are_a_function_of_kind_and_seed(kind):
    job = drawn_jobs.make_job(kind, 5)
    assert job == drawn_jobs.make_job(kind, 5)
    assert job.seconds != drawn_jobs.make_job(kind, 6).seconds
    assert all(0.0 < seconds < float("inf") for seconds in job.seconds)
    assert bool(job.labels) != (kind in drawn_jobs.HEALTHY)
    for label in job.labels:
        assert 16 < label.index < len(job.seconds), label
        assert (label.ratio > 1) == (label.kind == "onset") or label.kind in ("change", "step"), label


def test_scores(capsys):
    """A quarter of the benchmark, on seeds of its own. The figures of the whole are in the report of the command."""
    jobs = drawn_jobs.make_jobs(252, 50_000)
    found = {name: score.score(make, jobs) for name, make in score.detectors().items() if name != "bocd"}
    assert found["tracker"]["right"] >= 0.975
    assert found["tracker"]["latency_rows_p50"] <= 5
    assert found["tracker"]["latency_rows_p90"] <= 8
    assert found["tracker"]["provisional_rows_p50"] <= 2
    assert 0.70 <= found["sliding_median_9"]["right"] <= 0.86


def test_command(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["x", "--jobs", "4", "--detector", "tracker", "--json", "-"])
    assert score.main() == 0
    (record,) = json.loads(capsys.readouterr().out)["results"]
    assert (record["detector"], record["jobs"], record["right"]) == ("tracker", 4, 1.0)


def test_command_with_oracle(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["x", "--jobs", "10", "--detector", "tracker", "--oracle", "--json", "-"])
    assert score.main() == 0
    document = json.loads(capsys.readouterr().out)
    assert document["oracle"]["missed_15"] <= 0.1


@pytest.mark.parametrize(
    ("hits", "count", "low", "high"),
    [(0, 0, 0, 1), (0, 384, 0, 0.0099), (384, 384, 0.9901, 1), (50, 100, 0.404, 0.596)],
)
def test_interval(hits, count, low, high):
    assert score.interval(hits, count) == pytest.approx([low, high], abs=5e-4)


@pytest.mark.parametrize("family", noise_families.FAMILIES)
def test_families(family):
    slow, healthy = (noise_families.make_job(family, 3, slow) for slow in (True, False))
    assert slow == noise_families.make_job(family, 3, True)
    assert [label.kind for label in slow.labels] == ["onset", "relief"] and healthy.labels == ()
    first, end = (label.index for label in slow.labels)
    assert sorted(slow.seconds[first:end])[(end - first) // 2] / sorted(slow.seconds[:first])[first // 2] > 1.1
    assert all(0.0 < seconds < float("inf") for seconds in slow.seconds + healthy.seconds)


def test_scores_of_other_makes():
    """Jobs of every family, healthy and slow; no threshold was chosen on them."""
    found = score.score(score.detectors()["tracker"], noise_families.make_jobs(96, 40_000))
    assert found["right"] >= 0.9
    assert found["onsets_missed"] <= 0.05


@pytest.mark.parametrize(
    "argv", [["--jobs", "0"], ["--detector", "oracle"], ["--seed", "-1"], ["--families", "--oracle"]]
)
def test_bad_options(capsys, monkeypatch, argv):
    monkeypatch.setattr("sys.argv", ["x", *argv])
    assert score.main() == 2
    assert argv[0] in capsys.readouterr().err


def test_costs(capsys, monkeypatch):
    """Every family is timed, and what is printed is in order."""
    monkeypatch.setattr("sys.argv", ["x", "--jobs", "1", "--json", "-"])
    assert update_cost.main() == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert {record["kind"] for record in results} == {"plain", *noise_families.FAMILIES}
    assert all(0.0 < r["median_s"] <= r["p99_9_s"] <= r["max_s"] and r["updates"] >= 500 for r in results)


def test_a_detector_that_finds_nothing_is_right_of_healthy_jobs_alone():
    jobs = drawn_jobs.make_jobs(42, 50_000)
    found = score.score(lambda: SimpleNamespace(update=lambda time_s: None, events=()), jobs)
    assert found["right"] == sum(not job.labels for job in jobs) / len(jobs) < 0.5
    assert (found["onsets_missed"], found["strong_onsets_missed"]) == (1.0, 1.0)
