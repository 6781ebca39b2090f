"""The detectors to compare with: right on what they are made for, wrong where the notes say so."""

import pytest
from series import series

from evaluation.detector.bocd import LONGEST_RUN, BocdTracker
from evaluation.detector.breakpoints import APART, BreakpointDetector
from evaluation.detector.drawn_jobs import easy_job
from evaluation.detector.score import judge
from evaluation.detector.sliding import SlidingMedian
from lanterne.errors import InputError

DETECTORS = [SlidingMedian, BocdTracker, BreakpointDetector]


def events(make, times):
    detector = make()
    for time_s in times:
        detector.update(time_s)
    return [(e.kind, e.index) for e in detector.events]


@pytest.mark.parametrize("make", DETECTORS)
def test_a_clean_incident(make):
    found = events(make, series((350, 1.0), (60, 1.5), (60, 1.0)))
    assert [kind for kind, _ in found] == ["onset", "relief"]
    assert [abs(index - row) <= 2 for (_, index), row in zip(found, (350, 410), strict=True)] == [True, True]


@pytest.mark.parametrize("make", DETECTORS)
def test_a_healthy_job(make):
    assert events(make, series((600, 1.0))) == []


def test_jitters_fool_bocd_without_verification_alone():
    times = series((350, 1.0), (3, 1.5), (100, 1.0))
    assert events(lambda: BocdTracker(verify=0.0), times) != []
    assert [events(make, times) for make in DETECTORS] == [[], [], []]


@pytest.mark.parametrize("make", DETECTORS)
@pytest.mark.parametrize("slow", [False, True])
def test_easy_jobs(make, slow):
    """As the paper's figures show them; of no seed that a table judges."""
    for seed in range(10):
        job, detector = easy_job(seed, slow=slow), make()
        assert len(job.labels) == 2 * slow
        for time_s in job.seconds:
            detector.update(time_s)
        assert judge(job, detector.events).right, seed


def test_breakpoints_are_told_at_the_end_and_apart():
    detector = BreakpointDetector()
    for time_s in series((100, 1.0), (60, 1.5), (60, 1.0)):
        assert detector.update(time_s) is None
    told = [(event.index, event.confirmed_at) for event in detector.events]
    assert told == [(100, 219), (160, 219)]
    assert [event.ratio for event in detector.events] == pytest.approx([1.5, 1 / 1.5], rel=0.01)
    # A spell that is too short for two breakpoints, and a series that is too short for one.
    assert events(BreakpointDetector, series((100, 1.0), (APART - 2, 1.5), (100, 1.0))) == []
    assert events(BreakpointDetector, series((10, 1.0))) == []


def test_steps_below_a_tenth_are_missed_by_breakpoints_as_the_paper_says():
    assert events(BreakpointDetector, series((100, 1.0), (60, 1.07), (60, 1.14))) == []


def test_dropping_long_runs_would_make_changes():
    """Merged into the last bin, they make none, however often the longest run is reached."""
    assert events(BocdTracker, series((4 * LONGEST_RUN, 1.0))) == []


def test_posterior_is_a_distribution():
    import numpy as np

    detector = BocdTracker()
    for time_s in series((300, 1.0), (50, 2.0)):
        detector.update(time_s)
    assert np.exp(detector._log_run).sum() == pytest.approx(1.0)
    assert len(detector._log_run) <= LONGEST_RUN


@pytest.mark.parametrize("make", DETECTORS)
@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan")])
def test_bad_time(make, bad):
    with pytest.raises(InputError, match="iteration 0"):
        make().update(bad)
