"""What ordinary rows teach about a job: its level, how often it has spikes anyway, when its warm-up is over."""

from lanterne.failslow.detect.decisions import MAX_WARM_UP_ROWS, SKIPPED_ROWS, JobState
from lanterne.failslow.detect.held_rows import WINDOW_ROWS
from lanterne.failslow.detect.level import REVIEW_ROWS
from lanterne.failslow.detect.votes import SHIFT, median


class Learning:
    """Puts ordinary rows into what is known of `job`."""

    def __init__(self, job: JobState) -> None:
        self.job = job
        self._pushes = 0
        self._forget = 1 / 64

    def skip(self, y: float, row: int) -> None:
        """Take one of the first rows, which are of no level yet."""
        job = self.job
        job.level.push(y)
        job.reference.drop(job.level.median)
        if row + 1 == SKIPPED_ROWS:
            job.level.review()
            job.weighing.bursts.pass_rows(SKIPPED_ROWS)
            for value in job.level.window.values:
                job.weighing.bursts.see(value - job.reference.anchor, job.level.core_scale)

    def push(self, y: float) -> bool:
        """Let an ordinary row into the level; whether it is time for a review."""
        self.job.level.push(y)
        self._pushes += 1
        return self._pushes % REVIEW_ROWS == 0

    def learn(self, value: float) -> None:
        """Learn from a suspect that was cleared; among them rows that are none by themselves."""
        level, held, bursts = self.job.level, self.job.held, self.job.weighing.bursts
        z = value - level.median
        if self.job.slow:
            if value - self.job.reference.base < SHIFT / 2:
                held.back.set_rate(min(held.back.rate + 1 / 64, 0.2))
        elif 2 * z < level.shift:
            bursts.end()
        else:
            bursts.see(z, level.core_scale)
        if abs(z) > max(SHIFT / 2, 2 * level.scale):
            run = held.up if z > 0.0 else held.down
            run.set_rate(run.rate + self._forget)

    def review(self, row: int) -> None:
        """Every 8 samples: refresh the spread, forget old spikes, end the warm-up."""
        job = self.job
        job.level.review()
        if not job.slow:
            job.weighing.bursts.pass_rows(REVIEW_ROWS)
        self._forget = 1 / min(64 + self._pushes, 256)
        job.held.up.forget(REVIEW_ROWS * self._forget)
        job.held.down.forget(REVIEW_ROWS * self._forget)
        if not job.warm:
            self._review_warm_up(row)

    def _review_warm_up(self, row: int) -> None:
        """Warm-up is over once two successive half windows agree; until then the reference follows downwards."""
        level = self.job.level
        self.job.reference.drop(level.median)
        if len(level.window) < SKIPPED_ROWS:
            return
        values = list(level.window.values)
        older, newer = median(values[:8]), median(values[8:16])
        if row >= MAX_WARM_UP_ROWS or abs(newer - older) < max(0.01, 2 * level.error(8, 8)):
            self.job.warm = True
            level.window.capacity = WINDOW_ROWS
