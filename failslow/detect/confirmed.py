"""The events of a job that are certain, and the level that each began."""

from collections.abc import Sequence
from dataclasses import replace
from math import exp

from lanterne.failslow.detect.decisions import ACCEPT, JobState
from lanterne.failslow.detect.events import Incident, LevelEvent, incidents, latest
from lanterne.failslow.detect.held_rows import WINDOW_ROWS
from lanterne.failslow.detect.level import Level
from lanterne.failslow.detect.reference import Healthy
from lanterne.failslow.detect.votes import MIN_RATE, median

# Rows from one event on in which another of its direction is the same fact, better known.
SAME_FACT_ROWS = 8


class ConfirmedEvents:
    """What has become certain of a job; each event changes what is known of it.

    Attributes: `job`, whose level they are of; `events`, so far.
    """

    def __init__(self, job: JobState) -> None:
        self.job = job
        self.events: list[LevelEvent] = []

    @property
    def incidents(self) -> list[Incident]:
        """The incidents so far, the last one open where its `relief` is None; its `ratio` follows the level."""
        found = incidents(self.events)
        if found and found[-1].relief is None:
            now = exp(self.job.level.median - self.job.reference.anchor)
            single = self.events[-1].confirmed_at == found[-1].confirmed_at
            found[-1] = replace(found[-1], ratio=now if single else max(found[-1].ratio, now))
        return found

    def forget(self, keep: int) -> int:
        """Keep the latest events, at most `keep`, once there are twice as many; the incidents forgotten."""
        if len(self.events) <= 2 * keep:
            return 0
        known = len(incidents(self.events))
        self.events = latest(self.events, keep)
        return known - len(incidents(self.events))

    def is_same_fact(self, index: int, slower: bool) -> bool:
        """Whether the last event told of a change in that direction at `index` already."""
        last = self.job.last
        return last is not None and index < last.index + SAME_FACT_ROWS and slower == (last.ratio > 1)

    def confirm(
        self, kind: str, index: int, provisional_at: int, row: int, values: Sequence[float], old: float
    ) -> LevelEvent:
        """The event of that kind, which began at `index` from level `old` and is certain from `row` on.

        Args:
            values: the rows of the new level, logs of seconds.
        """
        job, new = self.job, median(values[-8:])
        small = kind == "change" and not job.slow and new - old > -ACCEPT
        if kind == "onset":
            job.reference.begin(Healthy(job.level, job.level.noise, job.held.up.rate, job.held.down.rate))
        self.restart(values)
        if kind == "relief":
            # What was known of the healthy job counts again.
            healthy = job.reference.healthy
            job.held.up.set_rate(healthy.up_rate)
            job.held.down.set_rate(healthy.down_rate)
            job.level = job.reference.recovered(job.level, values, WINDOW_ROWS, was_slow=job.slow)
        job.slow = kind == "onset" or (job.slow and kind != "relief")
        job.warm = True
        job.reference.told = job.level.median
        if not job.slow and not small:
            job.reference.drop(job.level.median)
        job.last = LevelEvent(kind, index, provisional_at, row, exp(new - old))
        self.events.append(job.last)
        return job.last

    def restart(self, values: Sequence[float]) -> None:
        """Begin a new level with `values`; the spread stays until there are enough samples for another."""
        job = self.job
        job.level = Level(WINDOW_ROWS, list(values), job.level)
        job.held.clear()
        job.held.back.set_rate(MIN_RATE)
