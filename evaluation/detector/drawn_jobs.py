"""Labelled jobs for comparing detectors: iteration times of every kind met in real ones, from fixed seeds.

Noise as found in real series of large training jobs: a core of 0.02 to 7 % (median 1 %), Student-t with 1 or 2
degrees of freedom, lag-1 autocorrelation up to 0.7, 0 to 13 % of spikes (up to x9), jitters of 1 to 3 iterations,
warm-up of +10 to 35 % over 100 to 300 iterations, drifts of up to 5 %. Slow spells are 10 % to x5, 6 iterations to
the rest of the job.

A label stands for what an expert would mark in a plot: where the drawn severity would drown in the drawn noise, it is
raised until the shift is six standard errors of a median (eight in spells of fewer than 16 iterations),
autocorrelation included, over at most 16 iterations (`discernible`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from lanterne.failslow.detect.events import LevelEvent

HEALTHY = ("plain", "warm_up", "jitter", "spiky", "drift", "correlated", "bump", "periodic")
SEED = 20260


@dataclass(frozen=True)
class Label:
    """The level changes at row `index` (give or take `tolerance` rows) by `ratio`; `kind` as in failslow.events.

    `patience`: rows after the last such row within which that must be told; None without a limit.
    """

    kind: str
    index: int
    ratio: float
    tolerance: int = 4
    patience: int | None = None

    def is_met_by(self, event: LevelEvent) -> bool:
        """Whether a confirmed `event` tells of it: its direction, in time, and near enough."""
        late = (event.confirmed_at or 0) - self.index - self.tolerance
        near = abs(event.index - self.index) <= self.tolerance
        return (event.ratio > 1) == (self.ratio > 1) and near and (self.patience is None or late <= self.patience)


@dataclass(frozen=True)
class JobNoise:
    """How a job's noise was drawn: quartiles of a Gaussian of `sigma`, spikes a row, jitters in all."""

    sigma: float
    dof: int
    correlation: float
    spike_rate: float
    jitters: int


@dataclass(frozen=True)
class Truth:
    """What only an oracle knows: the noise, and the log level of every row as it would be without slow spells."""

    noise: JobNoise
    healthy: tuple[float, ...]


@dataclass(frozen=True)
class DrawnJob:
    """One series. `loose`: it fluctuates inside its incident, so that extra changes there are no mistake."""

    name: str
    kind: str
    seconds: tuple[float, ...]
    labels: tuple[Label, ...] = ()
    loose: bool = False
    truth: Truth | None = None


def _draw_noise(rng: Generator, kind: str) -> JobNoise:
    # Median 1 %; the extremes, 0.02 and 7 %, lie 2.4 standard deviations below and above in log scale.
    deviate = rng.normal()
    sigma = min(max(10 ** (-2.0 + deviate * (0.35 if deviate > 0 else 0.7)), 0.0002), 0.07)
    correlation = (
        rng.uniform(0.3, 0.7) if kind == "correlated" else rng.uniform(0.0, 0.7) if rng.random() < 0.6 else 0.0
    )
    rate = (
        rng.uniform(0.04, 0.13) if kind.startswith("spiky") else rng.uniform(0.0, 0.08) if rng.random() < 0.6 else 0.0
    )
    jitters = int(rng.integers(4, 9)) if kind == "jitter" else int(rng.integers(0, 5))
    if kind == "adding_up":
        sigma = min(sigma, 0.008)
    # Real jobs of much noise have it in their spread, not in their tails.
    dof = int(rng.integers(1, 3)) if sigma < 0.03 else 2
    return JobNoise(sigma, dof, correlation, rate, jitters)


def _core(rng: Generator, rows: int, noise: JobNoise) -> NDArray[np.float64]:
    """Student-t noise with autocorrelation: a Gaussian AR(1), each value over its own chi.

    So the marginal is exactly a t and the sign lingers, while an extreme value is extreme alone, as in real series.
    Quartiles are those of a Gaussian of `sigma`. Iterations cannot take much less than usual: the low tail ends at 3
    sigma.
    """
    shocks = rng.normal(size=rows) * sqrt(1 - noise.correlation**2)
    gauss = np.empty(rows)
    last = rng.normal()
    for row in range(rows):
        last = gauss[row] = noise.correlation * last + shocks[row]
    student = gauss / np.sqrt(rng.chisquare(noise.dof, size=rows) / noise.dof)
    quartile = {1: 1.0, 2: 0.8165}[noise.dof]
    return np.clip(noise.sigma * 0.6745 / quartile * student, -3 * noise.sigma, None)


def discernible(noise: JobNoise, severity: float, rows: int) -> float:
    """`severity` (log ratio), raised to 6 standard errors of a median of `rows` samples; 8 below 16 rows."""
    inflation = (1 + noise.correlation) / (1 - noise.correlation)
    errors = 6 if rows >= 16 else 8
    return max(severity, errors * 1.25 * noise.sigma * sqrt(inflation / min(rows, 16)))


def _severity(rng: Generator) -> float:
    return log(
        1
        + float(
            rng.choice(
                [0.12, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0, 2.0, 4.0], p=[0.12, 0.16, 0.18, 0.14, 0.14, 0.1, 0.08, 0.05, 0.03]
            )
        )
    )


class _JobBuilder:
    """Log levels of a job under construction, and the labels that follow from them."""

    def __init__(self, rng: Generator, rows: int, noise: JobNoise) -> None:
        self.rng = rng
        self.rows = rows
        self.noise = noise
        self.level: NDArray[np.float64] = np.zeros(rows)
        self.labels: list[Label] = []

    def shift(self, row: int, amount: float) -> None:
        self.level[row:] += amount

    def label(self, kind: str, row: int, amount: float, tolerance: int = 4) -> None:
        """Label a change of `amount`; the best split of noisy levels is off by some (noise / amount)^2 rows."""
        inflation = (1 + self.noise.correlation) / (1 - self.noise.correlation)
        blur = 8 * inflation * (1.25 * self.noise.sigma / amount) ** 2
        self.labels.append(Label(kind, row, exp(amount), tolerance + min(round(blur), 20)))

    def spell(self, start: int, stop: int | None, amount: float, tolerance: int = 4) -> None:
        """A slow spell of rows [start, stop); open-ended where `stop` is None."""
        self.shift(start, amount)
        self.label("onset", start, amount, tolerance)
        if stop is not None:
            self.shift(stop, -amount)
            self.label("relief", stop, -amount, tolerance)

    def amount(self, rows: int, at_least: float = 0.0) -> float:
        return discernible(self.noise, max(_severity(self.rng), at_least), rows)


def _warm_up(build: _JobBuilder) -> None:
    length = build.rng.uniform(100, 300)
    build.level += np.log1p(build.rng.uniform(0.10, 0.35) * np.exp(-3 * np.arange(build.rows) / length))


def _drift(build: _JobBuilder) -> None:
    walk = np.cumsum(np.repeat(build.rng.choice([-1.0, 1.0], size=build.rows // 100 + 1), 100)[: build.rows])
    build.level += build.rng.uniform(0.02, 0.05) * walk / max(np.ptp(walk), 1)


def _plain(build: _JobBuilder) -> None:
    return None


def _bump(build: _JobBuilder) -> None:
    """Small lasting steps of 2 to 4 %, less than a third of what counts."""
    for first in (0.15, 0.55)[: int(build.rng.integers(1, 3))]:
        start = int(build.rows * build.rng.uniform(first, first + 0.2))
        size = build.rng.uniform(0.02, 0.04)
        build.shift(start, size)
        build.shift(start + int(build.rng.integers(20, 60)), -size)


def _periodic(build: _JobBuilder) -> None:
    """An evaluation or a checkpoint of 1 to 3 iterations, every 20 to 60."""
    period, length = int(build.rng.integers(20, 60)), int(build.rng.integers(1, 4))
    for start in range(period, build.rows - length, period):
        build.level[start : start + length] += log(build.rng.uniform(1.5, 4.0))


def _step(build: _JobBuilder) -> None:
    length = int(build.rng.integers(40, 250))
    start = int(build.rng.integers(60, build.rows - length - 40))
    build.spell(start, start + length, build.amount(length))


def _permanent(build: _JobBuilder) -> None:
    start = int(build.rng.integers(60, build.rows - 60))
    build.spell(start, None, build.amount(60))


def _short(build: _JobBuilder) -> None:
    length = int(build.rng.integers(6, 16))
    start = int(build.rng.integers(60, build.rows - 60))
    build.spell(start, start + length, build.amount(length, log(1.15)))


def _repeated(build: _JobBuilder) -> None:
    row = int(build.rng.integers(60, 120))
    for _ in range(int(build.rng.integers(2, 5))):
        length = int(build.rng.integers(20, 90))
        if row + length + 40 > build.rows:
            break
        build.spell(row, row + length, build.amount(length))
        row += length + int(build.rng.integers(40, 150))


def _adding_up(build: _JobBuilder) -> None:
    """Two or three steps of 5.5 to 7 % in low noise; with the second the level is 10 % above the start."""
    row, total, steps = int(build.rng.integers(80, 160)), 0.0, int(build.rng.integers(2, 4))
    for _ in range(steps):
        size = log(1 + build.rng.uniform(0.055, 0.07))
        build.shift(row, size)
        before, total = total, total + size
        if before < log(1.10) <= total:
            build.label("onset", row, total, 8)
        else:
            build.label("step", row, size, 8)
        row += int(build.rng.integers(40, 120))
    if row + 60 < build.rows:
        build.shift(row, -total)
        build.label("relief", row, -total, 8)


def _ladder(build: _JobBuilder) -> None:
    start = int(build.rng.integers(60, build.rows - 260))
    first, second = build.amount(40), build.amount(40, log(1.2))
    build.shift(start, first)
    build.label("onset", start, first)
    middle = start + int(build.rng.integers(40, 100))
    build.shift(middle, second)
    build.label("change", middle, second)
    end = middle + int(build.rng.integers(40, 100))
    build.shift(end, -first - second)
    build.label("relief", end, -first - second)


def _noisy(build: _JobBuilder) -> None:
    """A natural incident: the level wanders between healthy and several times as slow, mostly slow."""
    length = int(build.rng.integers(16, 80))
    start = int(build.rng.integers(60, build.rows - length - 60))
    amount = build.amount(length, log(1.3))
    factor = build.rng.beta(2.0, 1.2, size=length) * 1.5
    factor[:4] = factor[:4].clip(0.6)
    factor[-4:] = factor[-4:].clip(0.6)
    build.level[start : start + length] += amount * factor
    build.label("onset", start, amount, 6)
    build.label("relief", start + length, -amount, 12)


def _ramp(build: _JobBuilder) -> None:
    """Throttling: the slowdown builds up over 10 to 40 iterations and stays a while."""
    length, rise = int(build.rng.integers(80, 200)), int(build.rng.integers(10, 40))
    start = int(build.rng.integers(60, build.rows - length - 60))
    amount = build.amount(60, log(1.25))
    build.level[start : start + length] += amount * np.minimum(np.arange(length) / rise, 1.0)
    build.label("onset", start + rise // 2, amount, rise // 2 + 6)
    build.label("relief", start + length, -amount)


def _faster(build: _JobBuilder) -> None:
    row = int(build.rng.integers(340, build.rows - 60))
    amount = build.amount(60, log(1.15))
    build.shift(row, -amount)
    build.label("change", row, -amount)


def _weak(build: _JobBuilder) -> None:
    """A long spell of 10 to 12 % only."""
    length = int(build.rng.integers(60, 250))
    start = int(build.rng.integers(60, build.rows - length - 40))
    build.spell(start, start + length, discernible(build.noise, log(build.rng.uniform(1.10, 1.12)), 16), 6)


def _quiet_short(build: _JobBuilder) -> None:
    """Six to nine iterations of 15 to 40 % in a quiet job: long for a jitter, short for a window."""
    length = int(build.rng.integers(6, 10))
    start = int(build.rng.integers(60, build.rows - 60))
    build.spell(start, start + length, discernible(build.noise, log(build.rng.uniform(1.15, 1.4)), length))


# What each kind puts under the noise; jitter, spiky and correlated jobs differ by their noise.
_SHAPES: dict[str, Callable[[_JobBuilder], None]] = {
    "plain": _plain, "jitter": _plain, "spiky": _plain, "correlated": _plain, "warm_up": _warm_up, "drift": _drift,
    "bump": _bump, "step": _step, "permanent": _permanent, "short": _short, "repeated": _repeated,
    "adding_up": _adding_up, "ladder": _ladder, "noisy": _noisy, "ramp": _ramp, "faster": _faster, "weak": _weak,
    "quiet_short": _quiet_short, "periodic": _periodic, "spiky_step": _step, "spiky_repeated": _repeated,
}  # fmt: skip
KINDS: tuple[str, ...] = tuple(_SHAPES)


def _add_spikes(build: _JobBuilder) -> None:
    """Spikes and jitters, but not within 8 rows of a label or a jitter: nobody could tell those apart."""
    free = np.ones(build.rows, bool)
    free[0] = False
    for label in build.labels:
        free[max(label.index - 8, 0) : label.index + 8] = False
    rng = build.rng
    spikes = (rng.random(build.rows) < build.noise.spike_rate) & free
    sizes = np.log1p(np.minimum(rng.lognormal(-0.7, 0.9, spikes.sum()), 8.0))
    for _ in range(build.noise.jitters):
        start, length = int(rng.integers(20, build.rows - 20)), int(rng.integers(1, 4))
        if free[start - 8 : start + length + 8].all():
            build.level[start : start + length] += log(rng.uniform(1.2, 3.0))
            free[start - 8 : start + length + 8] = False
    build.level[spikes] += np.where(free[spikes], sizes, 0.0)


def make_job(kind: str, seed: int) -> DrawnJob:
    """The job of that kind and seed: a pure function of both."""
    rng = np.random.default_rng([SEED, seed, KINDS.index(kind)])
    rows = int(rng.integers(500, 1500))
    noise = _draw_noise(rng, kind)
    build = _JobBuilder(rng, rows, noise)
    _SHAPES[kind](build)
    # A faster job is no slow spell: that it became faster is known, too.
    healthy = build.level.copy() if kind in (*HEALTHY, "faster") else np.zeros(rows)
    if kind not in HEALTHY and rng.random() < 0.1 and min(label.index for label in build.labels) > 330:
        before = build.level.copy()
        _warm_up(build)
        healthy += build.level - before
    _add_spikes(build)
    core = _core(rng, rows, noise)
    unit_s = rng.uniform(0.2, 20.0)
    seconds = unit_s * np.exp(np.clip(build.level + core, -2.0, 4.0))
    seconds[0] *= rng.uniform(1.0, 6.0)
    truth = Truth(noise, tuple((healthy + log(unit_s)).tolist()))
    loose = kind in ("noisy", "ramp")
    return DrawnJob(f"{kind}-{seed}", kind, tuple(seconds.tolist()), tuple(build.labels), loose, truth)


def easy_job(seed: int, *, slow: bool) -> DrawnJob:
    """A job as the figures of the GREYHOUND paper show them: Gaussian noise of 1 %, no spikes, one long slow spell."""
    rng = np.random.default_rng([SEED, seed])
    build = _JobBuilder(rng, 400, JobNoise(0.01, 2, 0.0, 0.0, 0))
    if slow:
        start, length = int(rng.integers(80, 150)), int(rng.integers(60, 200))
        build.spell(start, start + length, log(rng.uniform(1.2, 1.8)))
    seconds = np.exp(build.level + rng.normal(0.0, build.noise.sigma, build.rows))
    return DrawnJob(f"easy-{seed}", "easy", tuple(seconds.tolist()), tuple(build.labels))


def make_jobs(count: int, first_seed: int = 0) -> list[DrawnJob]:
    """`count` jobs of all kinds in turn; other values of `first_seed` give other jobs of the same distribution."""
    return [make_job(KINDS[i % len(KINDS)], first_seed + i) for i in range(count)]
