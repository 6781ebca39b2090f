"""Labelled jobs as hard as those of clusters: what detectors met on jobs that nobody had tuned them to.

Noise of 1 to 7 % (a quarter of the jobs: 0.1 to 1 %), a Student t with 2 to 8 degrees of freedom, as often as not
autocorrelated; spikes and jitters, also inside spells. Slow spells are of unequal severities, begin with the job or
end it, have levels of unequal height, come on in ramps of 5 to 600 iterations or in many small consecutive steps, come
and go, or have no level at all. With `backgrounds`, real series carry the same spells.

Nothing is raised until it can be seen. Instead a job is scored only where two readers agree on its labels: the one who
drew it, and one with a ruler, who sees the rows but not what was drawn (`agreed`). What such readers do not agree on,
nobody can be right about: a step of 9 or of 11 %, a step that drowns in the noise, noise that looks like a step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import TypeAlias

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from evaluation.detector.drawn_jobs import DrawnJob, Label

Array: TypeAlias = NDArray[np.float64]
SEED = 26_000
# Quartiles of the standard Student t with that many degrees of freedom.
_QUARTILES = {2: 0.8165, 3: 0.7649, 4: 0.7407, 8: 0.7064}
# Rows in which a step must be told of, after the last at which it may be placed.
PATIENCE_ROWS = 30
# What lies between is neither surely a step of 10 % nor surely none.
DISPUTED = (log(1.075), log(1.115))
# Standard errors by which readers see a step, and rows that they look at on either side.
SEEN_ERRORS, SEEN_ROWS = 6.0, 16
# A median of 12 rows that is off by so much is marked by someone.
MARKED, MARKED_ROWS = 0.075, 12


@dataclass(frozen=True)
class Known:
    """What an oracle is told: the noise, the healthy log level and the spikes of every row, and which levels there are.

    `levels`: (lowest, highest) log height over the healthy level of each state that the job is in at some time.
    """

    scale: float
    dof: int
    correlation: float
    healthy: Array
    spikes: NDArray[np.bool_]
    levels: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class WorldJob:
    """A labelled job, what is known of it, and whether two readers agree on its labels."""

    job: DrawnJob
    known: Known
    agreed: bool


class _Drawing:
    """A job being drawn: log height of the slow spells (`slow`), of what is healthy, labels, levels."""

    def __init__(self, rng: Generator, rows: int, sigma: float, correlation: float) -> None:
        self.rng = rng
        self.rows = rows
        self.error: float = 1.25 * sigma * sqrt((1 + correlation) / (1 - correlation))
        self.slow: Array = np.zeros(rows)
        self.healthy: Array = np.zeros(rows)
        self.labels: list[Label] = []
        self.levels: list[tuple[float, float]] = []
        self.loose = False

    def severity(self, least: float = 0.12, most: float = 7.0) -> float:
        """A log ratio; many are small, some are a multiple."""
        return log(1 + least * (most / least) ** (self.rng.random() ** 1.5))

    def between(self, low: float, high: float) -> int:
        """A whole number, small ones as likely as large ones by their ratio."""
        return round(exp(self.rng.uniform(log(low), log(high))))

    def level(self, first: int, end: int | None, amount: float) -> None:
        """Rows [first, end) lie `amount` above the healthy level."""
        self.slow[first:end] = amount
        self.levels.append((amount, amount))

    def mark(self, kind: str, row: int, amount: float, slack: int = 0) -> None:
        """Label a step of `amount`, which noise blurs by some (noise / amount)^2 rows."""
        blur = min(round(8 * (self.error / amount) ** 2), 12)
        self.labels.append(Label(kind, row, exp(amount), 4 + blur + slack, PATIENCE_ROWS))

    def mark_slope(self, kind: str, first: int, last: int, amount: float) -> None:
        """Label a change that may be said to happen anywhere in rows [first, last]."""
        half = (last - first) // 2
        self.labels.append(Label(kind, first + half, exp(amount), half + 8, PATIENCE_ROWS))

    def spell(self, first: int, end: int | None, amount: float) -> None:
        """A slow spell of one level in rows [first, end); open-ended where `end` is None."""
        self.level(first, end, amount)
        self.mark("onset", first, amount)
        if end is not None:
            self.mark("relief", end, -amount)


def _plain(d: _Drawing) -> None:
    return None


def _warm_up(d: _Drawing) -> None:
    """+10 to 35 %, gone after 100 to 300 rows; or up to x3, gone after 20 to 100."""
    height, rows = (d.rng.uniform(0.1, 0.35), 300) if d.rng.random() < 0.6 else (d.rng.uniform(0.2, 2.0), 100)
    d.healthy += np.log1p(height * np.exp(-3 * np.arange(d.rows) / d.rng.uniform(rows / 5, rows)))


def _hump(d: _Drawing) -> None:
    """Routing of experts that settles: up and down again by 10 to 35 % within the first 30 rows."""
    rows = d.rng.uniform(5, 14)
    at = np.arange(d.rows) / rows
    d.healthy += d.rng.uniform(0.1, 0.35) * at * np.exp(1 - at)


def _drift(d: _Drawing) -> None:
    """A level that swings or wanders by up to 5 % in all, over hundreds of rows."""
    wave = np.sin(2 * np.pi * (np.arange(d.rows) / d.rng.uniform(300, 900) + d.rng.random()))
    d.healthy += d.rng.uniform(0.005, 0.025) * wave


def _bumps(d: _Drawing) -> None:
    """Lasting steps of 2 to 4 %."""
    for _ in range(int(d.rng.integers(1, 4))):
        first = int(d.rng.integers(30, d.rows - 60))
        d.healthy[first : first + d.between(20, 300)] += d.rng.uniform(0.02, 0.035)
    d.healthy = np.minimum(d.healthy, 0.045)


def _step(d: _Drawing) -> None:
    rows = d.between(16, 400)
    first = int(d.rng.integers(40, max(d.rows - rows - 30, 41)))
    end = first + rows
    d.spell(first, end if end + 30 <= d.rows else None, d.severity())


def _short(d: _Drawing) -> None:
    rows = int(d.rng.integers(6, 16))
    first = int(d.rng.integers(40, d.rows - rows - 30))
    d.spell(first, first + rows, d.severity(0.15))


def _border(d: _Drawing) -> None:
    """It begins soon after the job, or so late that the job ends with it."""
    if d.rng.random() < 0.5:
        first = int(d.rng.integers(20, 45))
        d.spell(first, first + d.between(16, 200), d.severity())
    else:
        d.spell(d.rows - int(d.rng.integers(10, 40)), None, d.severity())


def _from_start(d: _Drawing) -> None:
    """Slow with the first row, back at once or in two steps; as often as not a second spell follows."""
    amount = d.severity(0.2)
    # A shorter and lower one might as well be a warm-up.
    end = min(d.between(24 if amount > log(1.4) else 36, 420), d.rows - 60)
    d.level(0, end, amount)
    if amount > log(1.5) and end > 80 and d.rng.random() < 0.4:
        first, left = end - d.between(20, 50), amount * d.rng.uniform(0.4, 0.7)
        d.level(first, end, left)
        d.mark("change", first, left - amount)
        amount = left
    d.mark("relief", end, -amount)
    if d.rng.random() < 0.5 and end + 160 < d.rows:
        first = int(d.rng.integers(end + 70, d.rows - 60))
        d.spell(first, None, d.severity())


def _several(d: _Drawing) -> None:
    row = int(d.rng.integers(40, 120))
    for _ in range(int(d.rng.integers(2, 6))):
        rows = d.between(10, 120)
        if row + rows + 30 > d.rows:
            break
        d.spell(row, row + rows, d.severity())
        row += rows + d.between(30, 150)


def _levels(d: _Drawing) -> None:
    """Two to five levels of unequal height within one spell, up or down."""
    row, height = int(d.rng.integers(40, 200)), 0.0
    for i in range(int(d.rng.integers(2, 6))):
        rows = d.between(24, 150)
        if row + rows + 40 > d.rows:
            break
        new = d.severity(0.15)
        while abs(new - height) < log(1.13) and i:
            new = d.severity(0.15)
        d.mark("change" if i else "onset", row, new - height)
        d.level(row, None, new)
        row, height = row + rows, new
    if d.rng.random() < 0.8 and height:
        d.slow[row:] = 0.0
        d.mark("relief", row, -height)


def _stairs(d: _Drawing) -> None:
    """Two to five steps of 12 to 25 % up, and down by other steps, or at once."""
    row, height, up = int(d.rng.integers(40, 120)), 0.0, int(d.rng.integers(2, 6))
    while row + 50 < d.rows:
        amount = log(1 + d.rng.uniform(0.12, 0.25))
        new = height + amount if up > 0 else max(height - 1.5 * amount, 0.0)
        new = 0.0 if new < log(1.12) or (up <= 0 and d.rng.random() < 0.4) else new
        d.mark("relief" if new == 0.0 else "change" if height else "onset", row, new - height)
        d.level(row, None, new)
        row, height, up = row + d.between(14, 120), new, up - 1
        if new == 0.0:
            break


def _rise(d: _Drawing, first: int, amount: float, heights: Array) -> None:
    """Rows from `first` have `heights`, which end at `amount`, where they stay; then, mostly, back at once."""
    d.loose = True
    rows = len(heights)
    d.slow[first : first + rows] = heights
    d.slow[first + rows :] = amount
    surely = int(np.argmax(d.slow >= min(amount, log(1.18)) - 1e-9))
    d.mark_slope("onset", first, max(surely, first), amount)
    d.levels += [(low, low + 0.05) for low in np.arange(0.05, amount, 0.05)] + [(amount, amount)]
    end = first + rows + d.between(40, 300)
    down = d.between(5, 200) if d.rng.random() < 0.3 else 0
    if end + down + 30 <= d.rows:
        d.slow[end:] = 0.0
        d.slow[end : end + down] = amount * (1 - np.arange(1, down + 1) / (down + 1))
        if down > 4:
            d.mark_slope("relief", end, end + down, -amount)
        else:
            d.mark("relief", end, -amount)


def _ramp(d: _Drawing) -> None:
    """A slowdown that builds up over 5 to 600 rows."""
    rows = min(d.between(5, 600), d.rows - 200)
    amount = log(1 + d.rng.uniform(0.25, 1.2))
    _rise(d, int(d.rng.integers(60, d.rows - rows - 60)), amount, amount * np.arange(1, rows + 1) / rows)


def _small_steps(d: _Drawing) -> None:
    """Two to six consecutive steps of 4 to 9 %, each of which lasts; 13 % or more together."""
    sizes = np.log1p(d.rng.uniform(0.04, 0.09, size=int(d.rng.integers(2, 7))))
    while sizes.sum() < log(1.13):
        sizes = np.append(sizes, log(1.05))
    length = d.between(16, 150)
    lasts = [d.between(max(length / 2, 12), length * 1.5) for _ in sizes]
    heights = np.repeat(np.cumsum(sizes), lasts)
    heights = heights[: d.rows - 160]
    if heights[-1] < log(1.13):
        heights = np.append(heights, np.full(20, sizes.sum()))
    _rise(d, int(d.rng.integers(60, d.rows - len(heights) - 50)), float(heights[-1]), heights)


def _coming_and_going(d: _Drawing) -> None:
    d.loose = True
    row, amount = int(d.rng.integers(40, 150)), d.severity(0.2)
    first = end = row
    for _ in range(int(d.rng.integers(2, 6))):
        rows = d.between(10, 40)
        if row + rows + 40 > d.rows:
            break
        end = row + rows
        d.level(row, end, amount)
        row = end + d.between(8, 40)
    d.mark("onset", first, amount)
    d.mark("relief", end, -amount)


def _ragged(d: _Drawing) -> None:
    """Six to forty rows of x1.5 to x5, no two alike."""
    d.loose = True
    rows = d.between(6, 40)
    first = int(d.rng.integers(40, d.rows - rows - 30))
    d.slow[first : first + rows] = d.rng.uniform(log(1.5), log(5.0), size=rows)
    d.levels.append((log(1.5), log(5.0)))
    d.mark("onset", first, log(2.0), 2)
    d.mark("relief", first + rows, -log(2.0), 8)


_HEALTHY: dict[str, Callable[[_Drawing], None]] = {
    "plain": _plain, "warm_up": _warm_up, "hump": _hump, "drift": _drift, "bumps": _bumps
}  # fmt: skip
_SLOW: dict[str, Callable[[_Drawing], None]] = {
    "step": _step, "short": _short, "border": _border, "from_start": _from_start, "several": _several,
    "levels": _levels, "stairs": _stairs, "ramp": _ramp, "small_steps": _small_steps,
    "coming_and_going": _coming_and_going, "ragged": _ragged,
}  # fmt: skip
_SHAPES = _HEALTHY | _SLOW
KINDS: tuple[str, ...] = tuple(_SHAPES)
# What real series may carry: their own level changes little ones.
_ON_REAL = ("plain", "plain", "step", "short", "from_start", "levels", "ramp", "ragged", "small_steps")


def draw(kind: str, seed: int) -> WorldJob:
    """The job of that kind and seed, agreed on or not: a pure function of both."""
    rng = np.random.default_rng([SEED, seed, KINDS.index(kind)])
    rows = int(rng.integers(400, 1500))
    sigma = exp(rng.uniform(log(0.01), log(0.07)) if rng.random() < 0.75 else rng.uniform(log(0.001), log(0.01)))
    correlation = rng.uniform(0.0, 0.7) if rng.random() < 0.6 else 0.0
    dof = int(rng.choice(list(_QUARTILES)))
    d = _Drawing(rng, rows, sigma, correlation)
    _SHAPES[kind](d)
    if kind in _SLOW and rng.random() < 0.15:
        _drift(d)
    scale = sigma * 0.6745 / _QUARTILES[dof] * sqrt(1 - correlation**2)
    noise = np.maximum(_autoregressive(scale * rng.standard_t(dof, size=rows), correlation), -3 * sigma)
    spikes, heights = _draw_spikes(d)
    y = log(rng.uniform(0.2, 20.0)) + d.healthy + d.slow + noise + heights
    y[0] += rng.uniform(0.0, 1.8)
    spikes[0] = True
    # The level of a job that begins slow is not a warm-up.
    known = Known(scale, dof, correlation, y - d.slow - noise - heights, spikes, tuple(d.levels))
    return _finish(d, f"{kind}-{seed}", kind, y, known, noise + d.healthy if kind in ("drift", "bumps") else noise)


def draw_on(background: Sequence[float], kind: str, seed: int) -> WorldJob:
    """A spell of that kind over a part of `background`, a healthy real series in seconds."""
    rng = np.random.default_rng([SEED, seed, 1000 + KINDS.index(kind)])
    rows = min(int(rng.integers(400, 1500)), len(background))
    first = int(rng.integers(0, len(background) - rows + 1))
    y = np.log(np.asarray(background[first : first + rows]))
    level = _running_median(y, 101)
    rest = y - level
    scale = float(np.subtract(*np.quantile(rest, [0.75, 0.25]))) / (2 * _QUARTILES[2])
    clipped = np.clip(rest, -4 * scale, 4 * scale)
    correlation = min(max(float(np.corrcoef(clipped[1:], clipped[:-1])[0, 1]), 0.0), 0.7)
    d = _Drawing(rng, rows, scale * _QUARTILES[2] / 0.6745, correlation)
    _SHAPES[kind](d)
    scale *= sqrt(1 - correlation**2)
    known = Known(scale, 2, correlation, level, rest > 6 * scale, tuple(d.levels))
    return _finish(d, f"real_{kind}-{seed}", f"real_{kind}", y + d.slow, known, rest)


def _finish(d: _Drawing, name: str, kind: str, y: Array, known: Known, noise: Array) -> WorldJob:
    labels = tuple(sorted(d.labels, key=lambda label: label.index))
    job = DrawnJob(name, kind, tuple(np.exp(np.clip(y, -6.0, 6.0)).tolist()), labels, d.loose)
    return WorldJob(job, known, agreed(d.slow + noise, d.slow, labels, known, d.error))


def _autoregressive(shocks: Array, correlation: float) -> Array:
    """Lag-1 autocorrelation: each value is a part of the one before and a shock of its own."""
    if correlation:
        for row in range(1, len(shocks)):
            shocks[row] += correlation * shocks[row - 1]
    return shocks


def _draw_spikes(d: _Drawing) -> tuple[NDArray[np.bool_], Array]:
    """Rows with a spike or within a jitter of one to three rows, and log heights; jitters lie far from labels."""
    rng = d.rng
    rate = rng.choice([0.0, rng.uniform(0.0, 0.08), rng.uniform(0.04, 0.13)], p=[0.35, 0.45, 0.2])
    spikes = rng.random(d.rows) < rate
    heights = np.where(spikes, np.log1p(np.minimum(rng.lognormal(-0.7, 0.9, d.rows), 8.0)), 0.0)
    free = np.ones(d.rows, bool)
    for label in d.labels:
        free[max(label.index - 16, 0) : label.index + 16] = False
    for _ in range(int(rng.integers(0, 7))):
        first, rows = int(rng.integers(20, d.rows - 20)), int(rng.integers(1, 4))
        if free[first - 8 : first + rows + 8].all():
            heights[first : first + rows] += log(rng.uniform(1.2, 3.0))
            spikes[first : first + rows] = True
            free[first - 8 : first + rows + 8] = False
    return spikes, heights


def _running_median(values: Array, rows: int) -> Array:
    padded = np.pad(values, rows // 2, mode="edge")
    found: Array = np.median(np.lib.stride_tricks.sliding_window_view(padded, rows), axis=1)
    return found


def agreed(y: Array, slow: Array, labels: Sequence[Label], known: Known, error: float) -> bool:
    """Whether a reader of `y` (log heights, spikes and healthy swings apart) comes to `labels`, and to nothing else.

    Args:
        y, slow: (rows,) what a reader sees, and what was drawn of it.
        error: standard error of the median of one row, autocorrelation included.
    """
    rest = _running_median(np.where(known.spikes, 0.0, y - slow), MARKED_ROWS + 1)
    if np.abs(rest).max() > MARKED:
        return False
    edges = [0, *(label.index for label in labels), len(y)]
    for i, label in enumerate(labels):
        amount = log(label.ratio)
        slope = label.tolerance > 24
        before = _clear_rows(y, known, max(edges[i], label.index - label.tolerance - SEEN_ROWS), label.index)
        after = _clear_rows(y, known, label.index, min(edges[i + 2], label.index + label.tolerance + SEEN_ROWS))
        if min(len(before), len(after)) < 5 or DISPUTED[0] < abs(amount) < DISPUTED[1]:
            return False
        if slope:
            continue
        count = 1 / min(len(before), SEEN_ROWS) + 1 / min(len(after), SEEN_ROWS)
        if label.kind != "step" and abs(amount) < SEEN_ERRORS * error * sqrt(count):
            return False
        if (known.levels and known.levels[0][0] != known.levels[0][1]) or len(known.levels) > 6:
            # Ramps and ragged spells have no level of their own.
            continue
        old, new = float(np.median(before[-SEEN_ROWS:])), float(np.median(after[:SEEN_ROWS]))
        if abs(new - old - amount) > 0.35 * abs(amount):
            return False
        rows = np.concatenate([before, after])
        nearer = np.where(np.abs(rows - old) < np.abs(rows - new), -1, 1)
        # Most rows from there on are nearer to the new level, most before to the old one.
        placed = int(np.argmin(np.concatenate([[0], np.cumsum(nearer)])))
        if abs(placed - len(before)) > label.tolerance:
            return False
    return True


def _clear_rows(y: Array, known: Known, first: int, end: int) -> Array:
    return y[first:end][~known.spikes[first:end]]


def make_jobs(count: int, first_seed: int = 0, backgrounds: Sequence[Sequence[float]] = ()) -> list[WorldJob]:
    """`count` jobs of all kinds in turn on whose labels readers agree; with `backgrounds` every fourth is on one."""
    found: list[WorldJob] = []
    seed = first_seed
    for i in range(count):
        real = bool(backgrounds) and i % 4 == 3
        turn = i // 4 if real else i - (i // 4 if backgrounds else 0)
        while True:
            drawn = (
                draw_on(backgrounds[seed % len(backgrounds)], _ON_REAL[turn % len(_ON_REAL)], seed)
                if real
                else draw(KINDS[turn % len(KINDS)], seed)
            )
            seed += 1
            if drawn.agreed:
                break
        found.append(drawn)
    return found
