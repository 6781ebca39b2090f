"""An oracle for the jobs of drawn_jobs: how well any detector could do that sees the rows one by one.

It knows what no detector can: the noise of each job as it was drawn (spread, tails, autocorrelation, how often spikes
and jitters come and how high they are), the healthy level of every row (unit, warm-up, drifts, bumps, checkpoints) and
how spells are drawn. It does not know whether there is one, when, or how high. The forward recursion of a hidden
Markov model then gives the probability that the job is slow at a row given all rows up to it, and by the likelihood
ratio no other statement from these rows separates slow rows from healthy ones better; an alarm is a probability above
a limit. It need not name the onset's row, nor see reliefs or changes.

Not exact: the latent Gaussian has 20 values, heights 11 (a height between two is met by a wider spread), jitters
inside spells are single rows, and it does not use that no spike lies within 8 rows of a label.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, pi, sqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluation.detector.drawn_jobs import HEALTHY, DrawnJob, JobNoise, discernible

Array: TypeAlias = NDArray[np.float64]
HEIGHTS = 11
JITTER_ROWS = 3
# Per row: a spell begins, ends, changes its height.
BEGINS, ENDS, CHANGES = 1 / 800, 1 / 80, 1 / 40
_GRID = (0.04, 0.14, 0.27, 0.42, 0.6, 0.82, 1.08, 1.4, 1.8, 2.5)
BATCH = 128
# Where a spell's end is not seen at once, what speaks for it may still come.
AFTER_ROWS = 4


@dataclass(frozen=True)
class OracleBound:
    """What the oracle reaches where `limit` is the least probability that keeps alarms within those asked for."""

    limit: float
    alarms: float
    missed: float
    missed_15: float
    latency_rows_p50: float
    latency_rows_p90: float


def probabilities(jobs: Sequence[DrawnJob]) -> list[Array]:
    """For each job, the probability of every row that the job is slow, given the rows up to it: list of arrays."""
    # Jobs of like length together: a batch takes as long as its longest.
    order = sorted(range(len(jobs)), key=lambda i: len(jobs[i].seconds))
    found: dict[int, Array] = {}
    for first in range(0, len(jobs), BATCH):
        batch = order[first : first + BATCH]
        for i, slow in zip(batch, _filter([jobs[i] for i in batch]), strict=True):
            found[i] = slow
    return [found[i] for i in range(len(jobs))]


def bound(jobs: Sequence[DrawnJob], slow: Sequence[Array], alarms: float) -> OracleBound:
    """The OracleBound for a share `alarms` of healthy jobs, from `slow`, the probabilities of `jobs`."""
    peaks = sorted((p.max() for job, p in zip(jobs, slow, strict=True) if job.kind in HEALTHY), reverse=True)
    allowed = int(alarms * len(peaks))
    limit = peaks[allowed] if peaks else 0.5
    onsets = missed = strong = missed_15 = 0
    latencies = []
    for job, p in zip(jobs, slow, strict=True):
        for i, label in enumerate(job.labels):
            if label.kind != "onset":
                continue
            ends = [later.index for later in job.labels[i + 1 :] if later.kind == "relief"][:1]
            first = max(label.index - label.tolerance, 0)
            above = np.flatnonzero(p[first : (ends[0] + AFTER_ROWS if ends else None)] > limit)
            onsets += 1
            strong += label.ratio >= 1.15
            missed += len(above) == 0
            missed_15 += len(above) == 0 and label.ratio >= 1.15
            if len(above) and not job.loose:
                latencies.append(max(first + above[0] - label.index + 1, 1))
    p50, p90 = np.percentile(latencies, [50, 90]) if latencies else (float("nan"),) * 2
    share = sum(peak > limit for peak in peaks) / max(len(peaks), 1)
    return OracleBound(float(limit), share, missed / max(onsets, 1), missed_15 / max(strong, 1), float(p50), float(p90))


def _filter(jobs: Sequence[DrawnJob]) -> list[Array]:
    """The forward recursion over a batch of jobs at once; states are (job, height, latent Gaussian)."""
    rows = max(len(job.seconds) for job in jobs)
    z = np.zeros((len(jobs), rows))
    noises = []
    for i, job in enumerate(jobs):
        assert job.truth is not None
        z[i, : len(job.seconds)] = np.log(job.seconds) - np.array(job.truth.healthy)
        noises.append(job.truth.noise)
    z[:, 0] = 0.0
    model = _Model(noises, [len(job.seconds) for job in jobs])
    belief = np.zeros((*model.heights.shape, len(model.gauss)))
    belief[:, 0] = model.stationary
    slow = np.zeros((len(jobs), rows))
    for row in range(rows):
        if row:
            belief = model.next_height @ (belief @ model.next_gauss)
        belief *= model.emission(z[:, row])
        belief /= belief.sum(axis=(1, 2), keepdims=True)
        slow[:, row] = belief[:, 1 : 1 + HEIGHTS].sum(axis=(1, 2))
    return [slow[i, : len(job.seconds)] for i, job in enumerate(jobs)]


class _Model:
    """Arrays of the hidden Markov model, one leading row a job."""

    def __init__(self, noises: Sequence[JobNoise], rows: Sequence[int]) -> None:
        self.gauss = np.array([-g for g in reversed(_GRID)] + list(_GRID))
        width = np.gradient(self.gauss)
        self.stationary = np.exp(-(self.gauss**2) / 2) * width
        self.stationary /= self.stationary.sum()
        rho = np.array([noise.correlation for noise in noises])[:, None, None]
        step = (self.gauss[None, None, :] - rho * self.gauss[None, :, None]) ** 2 / (1 - rho**2)
        self.next_gauss = np.exp(-step / 2) * width
        self.next_gauss /= self.next_gauss.sum(axis=2, keepdims=True)
        self.sigma = np.array([noise.sigma for noise in noises])[:, None]
        self.core = np.array([n.sigma * 0.6745 / (1.0 if n.dof == 1 else 0.8165) for n in noises])[:, None]
        self.heavy = np.array([noise.dof == 1 for noise in noises])[:, None, None]
        self.spikes = np.array([noise.spike_rate for noise in noises])[:, None, None]
        lowest = [max(log(1.1), discernible(noise, 0.0, 16)) for noise in noises]
        spells = np.array([np.geomspace(low, max(log(6.0), 1.2 * low), HEIGHTS) for low in lowest])
        # Jitters have the heights of spells, so that nothing but how long they last tells the two apart.
        healthy = np.zeros((len(noises), 1))
        self.heights = np.concatenate([healthy, spells, np.repeat(spells, JITTER_ROWS, axis=1)], axis=1)
        # Heights between those of the grid are met by a wider spread.
        self.spread = np.maximum(self.core, 0.08 * self.heights)
        rates = [noise.jitters / count for noise, count in zip(noises, rows, strict=True)]
        self.next_height = np.array([_next_height(h, rate).T for h, rate in zip(spells, rates, strict=True)])

    def emission(self, z: Array) -> Array:
        """Density of `z`, one value a job, in every state: (jobs, heights, latent Gaussian)."""
        rest = z[:, None] - self.heights
        # Where the spread is that of the noise and no wider.
        low = np.where(self.spread == self.core, -3 * self.sigma, -np.inf)
        impossible, at_end = rest < 1.02 * low, rest < 0.98 * low
        spread, rest = self.spread[:, :, None], np.where(at_end, low, rest)[:, :, None]
        near = 0.5 * _GRID[0] * spread
        rest = np.where(np.abs(rest) < near, np.where(rest < 0, -near, near), rest)
        ratio = spread * self.gauss / rest
        w = np.maximum(ratio, 0.0)
        density = np.where(self.heavy, sqrt(2 / pi) * np.exp(-(w**2) / 2), 2 * w * np.exp(-(w**2))) * w / np.abs(rest)
        # The low tail ends at 3 sigma: what would lie below lies there.
        if at_end.any():
            w = w[at_end]
            heavy = np.broadcast_to(self.heavy[:, :, 0], at_end.shape)[at_end][:, None]
            width = 0.06 * np.broadcast_to(self.sigma, at_end.shape)[at_end][:, None]
            density[at_end] = np.where(heavy, _erf(w / sqrt(2)), 1 - np.exp(-(w**2))) / width
        density[impossible] = 0.0
        spike = _spike_density(z[:, None] - self.heights)[:, :, None]
        return (1 - self.spikes) * density + self.spikes * spike + 1e-12


def _next_height(heights: Array, jitter_rate: float) -> Array:
    """Chances from each state to each: healthy, a spell of each height, a jitter of each height and age."""
    states = 1 + HEIGHTS * (1 + JITTER_ROWS)
    chances = np.zeros((states, states))
    spells, jitters = slice(1, 1 + HEIGHTS), slice(1 + HEIGHTS, None, JITTER_ROWS)
    # Low spells are drawn more often; jitters have ratios of 1.2 to 3, all alike.
    prior = np.geomspace(4.0, 1.0, HEIGHTS)
    prior /= prior.sum()
    alike = np.exp(heights) * ((heights > log(1.15)) & (heights < log(3.2))) + 1e-3
    chances[0, spells] = BEGINS * prior
    chances[0, jitters] = jitter_rate * alike / alike.sum()
    chances[spells, spells] = CHANGES * prior
    chances[spells, 0] = ENDS
    for first in range(1 + HEIGHTS, states, JITTER_ROWS):
        chances[first, first + 1], chances[first + 1, first + 2] = 2 / 3, 1 / 2
        chances[first, 0], chances[first + 1, 0], chances[first + 2, 0] = 1 / 3, 1 / 2, 1.0
    return chances + np.diag(1 - chances.sum(axis=1))


def _spike_density(height: Array) -> Array:
    """Density of a spike's log height: log(1 + x) of a log-normal x."""
    x = np.expm1(np.maximum(height, 1e-3))
    return np.where(height > 0, np.exp(-((np.log(x) + 0.7) ** 2) / (2 * 0.81)) / (0.9 * sqrt(2 * pi)) * (1 + 1 / x), 0)


def _erf(x: Array) -> Array:
    """The error function of an array, within 5e-4 (Abramowitz and Stegun 7.1.27)."""
    return 1 - (1 + x * (0.278393 + x * (0.230389 + x * (0.000972 + x * 0.078108)))) ** -4
