"""The rows that are held back as suspects, the votes on them, and the last rows of any kind. All in log scale."""

from collections import deque
from collections.abc import Sequence
from math import exp

from lanterne.failslow.detect.bursts import NoiseDensity
from lanterne.failslow.detect.events import LevelEvent
from lanterne.failslow.detect.evidence import back_vote, level_start
from lanterne.failslow.detect.level import Level
from lanterne.failslow.detect.votes import MIN_RATE, PROVISIONAL, VoteRun, median, vote

WINDOW_ROWS = 64
# Rows held back in doubt, and rows of an incident before its level is voted on.
DOUBTFUL_ROWS = 16
# Rows before the suspects among which a level may have begun already.
LOOK_BACK = 16


class HeldRows:
    """Suspects, until votes clear them or make an event certain.

    Attributes: `rows`: the suspects in order; `recent`: the last 64 rows, suspects or not; `up`, `down`, `back`: the
    VoteRun of a slower level, a faster one, and of the level before an incident.
    """

    __slots__ = ("_last", "back", "down", "recent", "rows", "up")

    def __init__(self) -> None:
        self.rows: list[float] = []
        self.recent: deque[float] = deque(maxlen=WINDOW_ROWS)
        self.up: VoteRun = VoteRun(MIN_RATE)
        self.down: VoteRun = VoteRun(MIN_RATE)
        self.back: VoteRun = VoteRun(MIN_RATE)
        self._last = 0.0

    @property
    def strongest(self) -> float:
        """The highest score of a run."""
        return max(self.up.score, self.down.score, self.back.score)

    def see(self, y: float) -> float:
        """Remember row `y`; return the row before it that was voted on."""
        last, self._last = self._last, y
        return last

    def count(self, y: float, row: int, level: Level) -> None:
        """Let `y` vote on levels above and below `level`; one against is none where there is nothing to take back."""
        z, shift = y - level.median, level.shift
        if self.up.score or 2 * z > shift:
            self.up.add(vote(z, level.spread2, shift), row)
        if self.down.score or -2 * z > shift:
            self.down.add(vote(-z, level.spread2, shift), row)

    def count_back(
        self, y: float, last: float, row: int, was: tuple[float, NoiseDensity], now: tuple[float, NoiseDensity]
    ) -> None:
        """Let `y` vote on the level before an incident, `was`, against that of the incident, `now`."""
        self.back.add(back_vote(y, last, was, now, self.up.rate), row)

    def of(self, run: VoteRun, row: int) -> list[float]:
        """The suspects since `run` began."""
        return self.rows[run.start - row - 1 :]

    def clear(self) -> None:
        """No run is alive and no row held back any more."""
        self.rows = []
        for run in (self.up, self.down, self.back):
            run.clear()

    def suspected(self, row: int, level: Level, rise: str) -> LevelEvent | None:
        """The event that `row` makes provisional; `rise`: what a slower level is called."""
        for run, sign, kind in ((self.back, -1, "relief"), (self.up, 1, rise), (self.down, -1, "change")):
            if run.score and run.suspected == row:
                ratio = exp(median(self.of(run, row)) - level.median)
                if sign * (ratio - 1) > 0:
                    return LevelEvent(kind, run.start, row, None, ratio)
        return None

    def is_stale(self, row: int) -> bool:
        """Whether suspects have been held back for too long; in a noisy job a run is often alive and means nothing."""
        doubtful = max(self.up.score, self.down.score) < PROVISIONAL
        long = len(self.rows) >= (DOUBTFUL_ROWS if doubtful else WINDOW_ROWS)
        return long and (self.back.score == 0.0 or self.back.start <= row - WINDOW_ROWS // 2)

    def place(self, suspects: Sequence[float], since: int, level: Level, rate: float) -> tuple[list[float], int]:
        """The last rows, `suspects` among them, and where in them another level than `level` began.

        Args:
            since: rows since the last event; rows before are of yet another level.
            rate: the share of rows that begin a burst.
        """
        rows = list(self.recent)[-min(len(suspects) + LOOK_BACK, since) :]
        return rows, level_start(rows, level.median, level.core_scale, rate)
