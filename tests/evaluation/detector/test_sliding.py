"""The two detectors to compare with: right on what they are made for, wrong where the notes say so."""

import pytest
from series import series

from evaluation.detector.bocd import LONGEST_RUN, BocdTracker
from evaluation.detector.sliding import SlidingMedian
from lanterne.errors import InputError

DETECTORS = [SlidingMedian, BocdTracker]


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


def test_jitters_fool_bocd_not_the_median():
    times = series((350, 1.0), (3, 1.5), (100, 1.0))
    assert events(BocdTracker, times) != []
    assert events(SlidingMedian, times) == []


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
