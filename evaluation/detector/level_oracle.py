"""An oracle for world_jobs: a detector that knows each job's noise, healthy level, spikes, and the levels there are.

It does not know when the job is at which level. The forward recursion of a hidden Markov model gives the probability of
each level at a row from the rows up to it; a level other than the last one told of is told of once its probability is
above a limit, and placed where the rows part best. So it is judged as a detector is. One level is always among those
that it expects, +12 %: without it no healthy job could deceive it.
"""

from collections.abc import Sequence
from math import lgamma, log, pi

import numpy as np

from evaluation.detector.world_jobs import Array, Known, WorldJob
from lanterne.failslow.detect.events import LevelEvent

SURE = 0.998
STAYS = 1 - 1 / 150
DECOY = log(1.12)
BATCH = 128
# Distance within which levels count as one.
TOGETHER = 0.06
# Rows over which a level is placed.
PLACED_ROWS = 64


def events(jobs: Sequence[WorldJob]) -> list[list[LevelEvent]]:
    """For each job what the oracle tells of it."""
    order = sorted(range(len(jobs)), key=lambda i: len(jobs[i].job.seconds))
    found: dict[int, list[LevelEvent]] = {}
    for first in range(0, len(jobs), BATCH):
        batch = order[first : first + BATCH]
        for i, told in zip(batch, _tell([jobs[i] for i in batch]), strict=True):
            found[i] = told
    return [found[i] for i in range(len(jobs))]


def _tell(jobs: Sequence[WorldJob]) -> list[list[LevelEvent]]:
    rows = max(len(job.job.seconds) for job in jobs)
    heights = [_heights(job.known) for job in jobs]
    states = max(len(pairs) for pairs in heights)
    middle, wide = np.full((len(jobs), states), 9.0), np.zeros((len(jobs), states))
    prior = np.zeros((len(jobs), states))
    for i, pairs in enumerate(heights):
        for state, (low, high) in enumerate(pairs):
            middle[i, state], wide[i, state], prior[i, state] = (low + high) / 2, (high - low) / 2, 1 / len(pairs)
    z, known = np.zeros((len(jobs), rows)), np.zeros((len(jobs), rows), bool)
    for i, job in enumerate(jobs):
        count = len(job.job.seconds)
        z[i, :count] = np.log(job.job.seconds) - job.known.healthy
        known[i, :count] = ~job.known.spikes
    scale = np.array([job.known.scale for job in jobs])[:, None, None]
    rho = np.array([job.known.correlation for job in jobs])[:, None, None]
    dof = np.array([float(job.known.dof) for job in jobs])[:, None, None]
    stays, moves = STAYS * np.eye(states)[None], (1 - STAYS) * prior[:, None, :]
    belief, beliefs = prior.copy(), np.zeros((rows, len(jobs), states))
    alone = np.zeros((rows, len(jobs), states))
    for row in range(rows):
        rest = z[:, row, None] - middle
        marginal = _density(rest[:, None, :], scale / np.sqrt(1 - rho**2), dof, wide[:, None, :])
        alone[row] = np.log(marginal[:, 0] + 1e-12)
        if row:
            before = np.where(known[:, row - 1, None], z[:, row - 1, None] - middle, np.nan)
            # The state before (axis 1) and now (axis 2).
            follows = rest[:, None, :] - rho * np.nan_to_num(before)[:, :, None]
            linked = np.isfinite(before)[:, :, None] & (wide[:, :, None] == 0.0)
            density = np.where(linked, _density(follows, scale, dof, wide[:, None, :]), marginal)
            density = np.where(known[:, row, None, None], density + 1e-12, 1.0)
            belief = np.einsum("js,jst->jt", belief, (stays + moves) * density)
        elif known[:, 0].any():
            belief = belief * np.where(known[:, 0, None], marginal[:, 0] + 1e-12, 1.0)
        belief = belief / belief.sum(axis=1, keepdims=True)
        beliefs[row] = belief
    return [
        _read(beliefs[: len(job.job.seconds), i], np.where(known[i, :, None], alone[:, i], 0.0), middle[i])
        for i, job in enumerate(jobs)
    ]


def _heights(known: Known) -> list[tuple[float, float]]:
    """(lowest, highest) log height of each state: healthy, the decoy, and those of the job, each once."""
    own = sorted(set(known.levels))
    decoy = [] if any(low <= DECOY + 0.1 and high >= DECOY - 0.1 for low, high in own) else [(DECOY, DECOY)]
    return [(0.0, 0.0), *decoy, *own]


def _density(rest: Array, scale: Array, dof: Array, wide: Array) -> Array:
    """Of a Student t around a level, or of one spread evenly over twice `wide`."""
    factor = np.exp(_log_gamma((dof + 1) / 2) - _log_gamma(dof / 2)) / np.sqrt(dof * pi) / scale
    around: Array = factor * (1 + (rest / scale) ** 2 / dof) ** (-(dof + 1) / 2)
    even = (np.abs(rest) < wide + 2 * scale) / (2 * wide + 4 * scale)
    found: Array = np.where(wide > 0.0, even, around)
    return found


def _log_gamma(values: Array) -> Array:
    return np.vectorize(lgamma)(values)


def _read(beliefs: Array, alone: Array, middle: Array) -> list[LevelEvent]:
    """The changes that `beliefs` (rows, states) tell of; `alone`: log density of each row in each state."""
    told: list[LevelEvent] = []
    # What the first rows show is the level that the job has, and no event.
    current = int(np.argmax(np.where(middle == DECOY, 0.0, beliefs[min(15, len(beliefs) - 1)])))
    near = (np.abs(middle[:, None] - middle[None]) <= TOGETHER).astype(float)
    # Levels that lie together are one.
    together = beliefs @ near
    last, row = 0, 16
    while row < len(beliefs):
        others = near[current] == 0.0
        away = np.minimum(together[row:, others].max(axis=1, initial=0.0), beliefs[row:, others].sum(axis=1)) > SURE
        if not away.any():
            break
        row += int(np.argmax(away))
        state = int(np.argmax(np.where(others, beliefs[row], -1.0)))
        first = max(last, row + 1 - PLACED_ROWS)
        new, old = (alone[first : row + 1, near[s] > 0.0].max(axis=1) for s in (state, current))
        last = first + int(np.argmin(np.concatenate([[0.0], np.cumsum(new - old)[:-1]])))
        kind = "relief" if state == 0 else "onset" if current == 0 else "change"
        told.append(LevelEvent(kind, last, last, row, float(np.exp(middle[state] - middle[current]))))
        current = state
    return told
