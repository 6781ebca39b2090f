"""That a job has become slow, by the time of its iterations alone, and since when."""

from collections import deque

from lanterne.failslow.detect.tracker import Tracker
from lanterne.failslow.mitigate.decision import Seen

# Healthy iterations that prime a Tracker when the job is home again.
REMEMBERED = 32
# Iterations after which a provisional alarm that was never confirmed is over, and after which one that is, is reported
# if nobody is to blame.
PROVISIONAL, UNEXPLAINED = 8, 5


class Alarm:
    """What a Tracker says of a job in health.

    Attributes: `at`: the iteration since which something may be wrong; None: nothing is. `is_told`: it was said that
    nobody is to blame.
    """

    def __init__(self) -> None:
        self.at: int | None = None
        self.is_told: bool = False
        self._tracker = Tracker()
        self._healthy: deque[float] = deque(maxlen=REMEMBERED)

    def learn(self, iteration_s: float) -> None:
        """A healthy iteration."""
        self._tracker.update(iteration_s)
        self._healthy.append(iteration_s)

    def track(self, seen: Seen, *, is_suspicious: bool) -> None:
        """One more iteration; where something is suspected, what health is is not learned from it."""
        event = self._tracker.update(seen.iteration_s)
        if event is not None and event.kind == "onset":
            self.at = seen.iteration
        elif event is not None and event.kind == "relief":
            self.at = None
        if self.at is not None and not self._tracker.slow and seen.iteration - self.at > PROVISIONAL:
            self.at = None
        if self.at is None and not is_suspicious:
            self._healthy.append(seen.iteration_s)

    def restart(self) -> None:
        """The job is home again."""
        self._tracker = Tracker()
        self.at = None
        for time_s in self._healthy:
            self._tracker.update(time_s)

    def must_tell(self, iteration: int) -> bool:
        """Whether the job is slow for certain and has been for so long that somebody must know; True once."""
        if not self._tracker.slow:
            self.is_told = False
        elif not self.is_told and self.at is not None and iteration - self.at >= UNEXPLAINED:
            self.is_told = True
            return True
        return False
