"""Labelled jobs whose noise is of another make than that of drawn_jobs: what a detector was not built for.

Each family is a healthy series in log scale: sequence lengths that alternate or vary, levels that wander, swing with
the day or hop, timers and markers that round, miss or split iterations, pauses at fixed intervals, spread that comes
and goes. Half of the jobs are healthy; the others have one slow spell, of at least 8 times the spread of medians of 16
iterations of that very series, so that it stands clear of whatever the family does.
"""

from collections.abc import Callable
from math import exp, log
from typing import TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from evaluation.detector.drawn_jobs import SEED, DrawnJob, Label

# (rows,) log levels of a healthy job.
Series: TypeAlias = NDArray[np.float64]


def _heavy(rng: Generator, rows: int) -> Series:
    """Extremes without end in both directions: Student t with 1.2 degrees of freedom."""
    return rng.uniform(0.003, 0.02) * rng.standard_t(1.2, size=rows)


def _bursty(rng: Generator, rows: int) -> Series:
    """A spread that triples for some 30 iterations at a time."""
    loud = np.repeat(rng.random(rows // 30 + 1) < 0.4, 30)[:rows]
    return rng.uniform(0.004, 0.02) * np.where(loud, 3.0, 1.0) * rng.normal(size=rows)


def _skewed(rng: Generator, rows: int) -> Series:
    """Iterations as long as their data: gamma distributed, with a long upper tail."""
    return np.log1p(rng.uniform(0.02, 0.1) * rng.gamma(2.0, 1.0, size=rows))


def _alternating(rng: Generator, rows: int) -> Series:
    """Two sequence lengths in turn, or at random."""
    long = np.arange(rows) % 2 == 0 if rng.random() < 0.5 else rng.random(rows) < rng.uniform(0.2, 0.8)
    return rng.uniform(0.15, 0.6) * long + rng.uniform(0.002, 0.01) * rng.normal(size=rows)


def _rounded(rng: Generator, rows: int) -> Series:
    """A timer that rounds to 1 to 4 % of an iteration."""
    exact = np.exp(rng.uniform(0.002, 0.01) * rng.standard_t(2, size=rows).clip(-3, 30))
    step = rng.uniform(0.01, 0.04)
    return np.log(np.maximum(np.round(exact / step), 1) * step)


def _markers(rng: Generator, rows: int) -> Series:
    """Iterations whose marker was lost, and are counted as one of twice the time, or was found twice, half way."""
    y = rng.uniform(0.003, 0.015) * rng.standard_t(3, size=rows).clip(-5, 30)
    y[rng.random(rows) < 0.02] += log(2)
    halves = np.flatnonzero(rng.random(rows - 1) < 0.01)
    y[halves] -= log(2)
    y[halves + 1] -= log(2)
    return y


def _pauses(rng: Generator, rows: int) -> Series:
    """Garbage collection every few iterations, a checkpoint every hundred or so."""
    y = rng.uniform(0.002, 0.01) * rng.standard_t(2, size=rows).clip(-3, 30)
    y[int(rng.integers(5)) :: int(rng.integers(4, 12))] += rng.uniform(0.05, 0.5)
    checkpoint = np.arange(int(rng.integers(50, 200)), rows, int(rng.integers(50, 200)))
    y[checkpoint] += np.log1p(rng.uniform(2, 9, size=len(checkpoint)))
    return y


def _daily(rng: Generator, rows: int) -> Series:
    """A swing of 2 to 5 % up and down with the day's load."""
    swing = rng.uniform(0.01, 0.025) * np.sin(2 * np.pi * (np.arange(rows) / rng.uniform(250, 800) + rng.random()))
    return swing + rng.uniform(0.003, 0.012) * rng.standard_t(2, size=rows).clip(-3, 30)


def _wander(rng: Generator, rows: int) -> Series:
    """A level that wanders by 1 to 2.5 % (standard deviation), forgetting itself over some 100 iterations."""
    keep = exp(-1 / rng.uniform(50, 150))
    level, last = np.empty(rows), rng.normal()
    for row, shock in enumerate(rng.normal(size=rows)):
        last = level[row] = keep * last + (1 - keep * keep) ** 0.5 * shock
    return rng.uniform(0.01, 0.025) * level + rng.uniform(0.003, 0.012) * rng.standard_t(2, size=rows).clip(-3, 30)


def _hopping(rng: Generator, rows: int) -> Series:
    """Another job on the same network: 2 to 4.5 % more while it runs, some 40 iterations at a time."""
    hops = np.cumsum(rng.random(rows) < 1 / 40) % 2
    return rng.uniform(0.02, 0.045) * hops + rng.uniform(0.002, 0.01) * rng.standard_t(2, size=rows).clip(-3, 30)


def _slow_start(rng: Generator, rows: int) -> Series:
    """The first 20 to 100 iterations are up to three times as slow: compilation, caches, data."""
    start = rng.uniform(0.2, 2.0) * np.exp(-3 * np.arange(rows) / rng.uniform(20, 100))
    return np.log1p(start) + rng.uniform(0.003, 0.02) * rng.standard_t(2, size=rows).clip(-3, 30)


def _averaged(rng: Generator, rows: int) -> Series:
    """Every logged time is the mean of 10 iterations, of which one may be a checkpoint."""
    times = np.exp(rng.uniform(0.005, 0.03) * rng.standard_t(2, size=(rows, 10)).clip(-3, 30))
    times[:, 0] += (rng.random(rows) < rng.uniform(0.02, 0.12)) * rng.uniform(0.5, 8.0, size=rows)
    return np.log(times.mean(axis=1))


def _evaluations(rng: Generator, rows: int) -> Series:
    """Two to four iterations at fixed intervals that take longer: an evaluation among them, or samples drawn."""
    y = rng.uniform(0.002, 0.02) * rng.standard_t(2, size=rows).clip(-3, 30)
    every, length, height = int(rng.integers(25, 150)), int(rng.integers(2, 5)), float(rng.uniform(0.15, 1.2))
    y[(np.arange(rows) - int(rng.integers(every))) % every < length] += height
    return y


_FAMILIES: dict[str, Callable[[Generator, int], Series]] = {
    "heavy": _heavy, "bursty": _bursty, "skewed": _skewed, "alternating": _alternating, "rounded": _rounded,
    "markers": _markers, "pauses": _pauses, "daily": _daily, "wander": _wander, "hopping": _hopping,
    "slow_start": _slow_start, "averaged": _averaged, "evaluations": _evaluations,
}  # fmt: skip
FAMILIES: tuple[str, ...] = tuple(_FAMILIES)
# Rows before the spell may begin, and after its end.
MARGIN_ROWS = 120


def make_job(family: str, seed: int, slow: bool) -> DrawnJob:
    """The job of that family and seed, with a spell where `slow`: a pure function of all three."""
    rng = np.random.default_rng([SEED, seed, 1000 + FAMILIES.index(family)])
    rows = int(rng.integers(500, 1500))
    y = _FAMILIES[family](rng, rows)
    labels: tuple[Label, ...] = ()
    if slow:
        length = int(rng.integers(20, 200))
        start = int(rng.integers(MARGIN_ROWS, rows - length - MARGIN_ROWS))
        medians = np.median(y[MARGIN_ROWS : MARGIN_ROWS + (rows - MARGIN_ROWS) // 16 * 16].reshape(-1, 16), axis=1)
        amount = max(log(1 + float(rng.choice([0.15, 0.2, 0.3, 0.4, 0.6, 1.0]))), 8 * float(np.std(medians)))
        y[start : start + length] += amount
        labels = (Label("onset", start, exp(amount), 8), Label("relief", start + length, exp(-amount), 8))
    seconds = rng.uniform(0.2, 20.0) * np.exp(np.clip(y, -4.0, 5.0))
    return DrawnJob(f"{family}-{seed}", family, tuple(seconds.tolist()), labels)


def make_jobs(count: int, first_seed: int = 0) -> list[DrawnJob]:
    """`count` jobs of all families in turn, healthy ones and slow ones alternating."""
    turns = [(i // len(FAMILIES), FAMILIES[i % len(FAMILIES)]) for i in range(count)]
    return [make_job(family, first_seed + i, turn % 2 == 1) for i, (turn, family) in enumerate(turns)]
