"""The oracle's model is a density, uses no later row, knows its noise, and finds what is there."""

from dataclasses import replace

import numpy as np
import pytest

from evaluation.detector import oracle
from evaluation.detector.drawn_jobs import DrawnJob, JobNoise, Label, Truth, make_job


def quiet(times, labels=(), **noise):
    """A job of 1 s an iteration, with the truth that belongs to it."""
    drawn = JobNoise(**({"sigma": 0.01, "dof": 2, "correlation": 0.3, "spike_rate": 0.01, "jitters": 2} | noise))
    return DrawnJob("x", "step" if labels else "plain", tuple(times), labels, truth=Truth(drawn, (0.0,) * len(times)))


def wavering(*parts):
    return [level * (1 + 0.004 * (-1) ** row) for rows, level in parts for row in range(rows)]


@pytest.mark.parametrize("noise", [{"dof": 1}, {"dof": 2}, {"sigma": 0.06}, {"spike_rate": 0.12}])
def test_emissions_are_densities(noise):
    model = oracle._Model([quiet([1.0], **noise).truth.noise], [1000])
    edges = np.concatenate([np.arange(-0.2, 0.3, 0.0005), np.geomspace(0.3, 8.0, 300)])
    densities = [model.emission(np.array([z]))[0, 0] @ model.stationary for z in (edges[1:] + edges[:-1]) / 2]
    # 20 values stand for a Gaussian.
    assert densities @ np.diff(edges) == pytest.approx(1.0, abs=0.1)


def test_chances_sum_to_one():
    chances = oracle._next_height(np.geomspace(0.1, 1.8, oracle.HEIGHTS), 0.004)
    assert chances.min() >= 0.0
    assert chances.sum(axis=1) == pytest.approx(1.0)


def test_no_later_row_is_used():
    job = make_job("step", 5)
    # How often jitters come would be told by the number of rows.
    job = replace(job, truth=replace(job.truth, noise=replace(job.truth.noise, jitters=0)))
    cut = replace(job, seconds=job.seconds[:200], truth=replace(job.truth, healthy=job.truth.healthy[:200]))
    (whole,), (prefix,) = oracle.probabilities([job]), oracle.probabilities([cut])
    assert whole[:200] == pytest.approx(prefix)


def test_a_step_is_found_and_a_jitter_is_not():
    labels = (Label("onset", 60, 1.2), Label("relief", 90, 1 / 1.2))
    step = quiet(wavering((60, 1.0), (30, 1.2), (30, 1.0)), labels)
    jitter = quiet(wavering((60, 1.0), (2, 1.2), (58, 1.0)))
    slow = oracle.probabilities([step, jitter])
    assert slow[0][65:88].min() > 0.99 and slow[0][94:].max() < 0.1
    assert slow[1][66:].max() < 0.1
    found = oracle.bound([step, jitter], slow, 0.0)
    assert (found.alarms, found.missed, found.missed_15) == (0.0, 0.0, 0.0)
    assert 2 <= found.latency_rows_p50 <= 6


def test_a_missed_spell_counts():
    labels = (Label("onset", 60, 1.2), Label("relief", 90, 1 / 1.2))
    healthy = quiet(wavering((120, 1.0)), labels)
    found = oracle.bound([healthy, quiet(wavering((120, 1.0)))], [np.zeros(120), np.zeros(120)], 0.0)
    assert (found.missed, found.missed_15) == (1.0, 1.0)
