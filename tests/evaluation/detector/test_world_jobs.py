"""Jobs as hard as those of clusters: labels that rows bear out, and an oracle that finds them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from series import series

from evaluation.detector import level_oracle, real_series, score, world_jobs
from evaluation.detector.drawn_jobs import Label
from lanterne.errors import InputError
from lanterne.failslow.detect.events import LevelEvent

SLOW = [kind for kind in world_jobs.KINDS if world_jobs.draw(kind, 1).job.labels]


@pytest.mark.parametrize("kind", world_jobs.KINDS)
def test_jobs_are_a_function_of_kind_and_seed(kind):
    drawn, again, other = (world_jobs.draw(kind, seed) for seed in (7, 7, 8))
    assert drawn.job == again.job and drawn.job.seconds != other.job.seconds
    assert all(0.0 < time_s < float("inf") for time_s in drawn.job.seconds)
    assert bool(drawn.job.labels) == (kind in SLOW)
    assert [label.index for label in drawn.job.labels] == sorted(label.index for label in drawn.job.labels)


def test_most_jobs_are_agreed_on():
    shares = [sum(world_jobs.draw(kind, seed).agreed for seed in range(20)) / 20 for kind in world_jobs.KINDS]
    assert min(shares) >= 0.4
    assert np.mean(shares) < 1.0


KNOWN = world_jobs.Known(0.008, 4, 0.0, np.zeros(200), np.zeros(200, bool), ((0.3, 0.3),))


def agree(rows, labels, drawn=0.3, error=0.01):
    """Whether readers agree of a job that is slow by 0.3 in rows [80, 120), and was drawn as slow by `drawn` there."""
    slow, y = np.zeros(200), np.zeros(200)
    slow[80:120], y[rows] = drawn, 0.3
    return world_jobs.agreed(y, slow, labels, KNOWN, error)


LABELS = [Label("onset", 80, np.exp(0.3)), Label("relief", 120, np.exp(-0.3))]


def test_readers_agree_on_what_is_plain():
    assert agree(slice(80, 120), LABELS)


@pytest.mark.parametrize(
    ("rows", "labels", "more"),
    [
        (slice(90, 130), LABELS, {}),
        (slice(80, 80), LABELS, {}),
        (slice(40, 120), LABELS, {}),
        (slice(80, 120), [replace(label, index=label.index + 9) for label in LABELS], {}),
        (slice(80, 120), [replace(LABELS[0], ratio=1.1), LABELS[1]], {}),
        (slice(80, 120), LABELS, {"error": 0.2}),
    ],
    ids=["elsewhere", "nothing", "longer", "misplaced", "neither 10 % nor less", "drowned"],
)
def test_readers_disagree(rows, labels, more):
    assert not agree(rows, labels, **more)


@pytest.mark.parametrize("kind", world_jobs.KINDS)
def test_the_oracle_finds_what_is_there(kind):
    drawn = next(one for one in (world_jobs.draw(kind, seed) for seed in range(30, 60)) if one.agreed)
    (told,) = level_oracle.events([drawn])
    assert score.judge(drawn.job, told).right


def test_the_oracle_uses_no_later_row():
    drawn = next(one for one in (world_jobs.draw("several", seed) for seed in range(30)) if one.agreed)
    job, known = drawn.job, drawn.known
    cut = replace(
        drawn,
        job=replace(job, seconds=job.seconds[:250]),
        known=replace(known, healthy=known.healthy[:250], spikes=known.spikes[:250]),
    )
    (whole,), (prefix,) = level_oracle.events([drawn]), level_oracle.events([cut])
    assert [event for event in whole if event.confirmed_at < 250] == prefix


def test_what_is_told_too_late_is_missed():
    label = Label("onset", 100, 1.3, tolerance=4, patience=30)
    early, late = (LevelEvent("onset", 101, 110, row, 1.3) for row in (134, 135))
    assert label.is_met_by(early) and not label.is_met_by(late)
    assert replace(label, patience=None).is_met_by(late)


@pytest.fixture
def folder(tmp_path):
    """One real series of 900 rows with an incident at steps 501 to 540, logged from step 1."""
    times = series((500, 1.0), (40, 1.5), (460, 1.0))
    rows = "".join(f"{step},{time_s}\n" for step, time_s in enumerate(times, start=1))
    (tmp_path / "a.csv").write_text(f"step,seconds\n{rows}")
    labels = {"a": {"events": [{"onset_step": 501, "relief_step": 541, "ratio": 1.5}]}}
    (tmp_path / "labels.json").write_text(json.dumps(labels))
    return tmp_path


def test_real_series(folder):
    (one,) = real_series.read_folder(folder)
    assert (one.incidents, one.warm) == (((500, 540),), 300)
    (background,) = real_series.backgrounds([one])
    assert background == one.seconds[552:988]
    told = {"in": [500], "before": [420], "cold": [200], "faster": []}

    def detect(indices):
        return lambda seconds: [LevelEvent("onset", index, index, index + 4, 1.5) for index in indices]

    found = {name: real_series.judge([one], detect(indices)) for name, indices in told.items()}
    assert {name: (verdict.found, verdict.alarms) for name, verdict in found.items()} == {
        "in": (1, 0), "before": (0, 1), "cold": (0, 0), "faster": (0, 0)
    }  # fmt: skip


def test_every_fourth_job_is_on_a_real_series(folder):
    backgrounds = real_series.backgrounds(real_series.read_folder(folder))
    jobs = world_jobs.make_jobs(8, 3, backgrounds)
    assert [one.job.kind.startswith("real_") for one in jobs] == [False, False, False, True] * 2
    assert all(one.agreed for one in jobs)


def test_command(capsys, monkeypatch, folder):
    options = ["--world", "--jobs", "20", "--oracle", "--detector", "tracker", "--real", str(folder), "--json", "-"]
    monkeypatch.setattr("sys.argv", ["x", *options])
    assert score.main() == 0
    tracker, oracle = json.loads(capsys.readouterr().out)["results"]
    assert (tracker["detector"], oracle["detector"], oracle["jobs"]) == ("tracker", "oracle", 20)
    assert tracker["real"] == {"rows": 1000, "incidents": 1, "found": 1, "alarms": 0}


@pytest.mark.parametrize("make", [real_series.read_folder])
def test_a_folder_without_labels(tmp_path, make):
    with pytest.raises(InputError, match=r"labels\.json"):
        make(tmp_path)
