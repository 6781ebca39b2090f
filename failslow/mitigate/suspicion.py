"""How many iterations in a row something has been slow, and how many well: nothing is judged by one."""

from collections import deque
from collections.abc import Collection, Mapping
from math import isnan
from statistics import median
from typing import NamedTuple

from lanterne.failslow.mitigate.baseline import Evidence
from lanterne.failslow.mitigate.decision import ControllerSettings
from lanterne.pipeline.adapt.suspect import Suspect

RECENT = 5  # chosen: iterations whose severities are kept of each
# chosen: iterations until a suspect is examined again of which an examination could not say whether it is slow
UNSURE = 3
MUCH_WORSE = 3.0  # chosen: times what a suspect was acquitted of that make it one again at once


class Acquittal(NamedTuple):
    """Until which iteration a suspect is left alone, for how many in all, and the excess that it was acquitted of."""

    until: int
    patience: int
    excess: float


class Suspicion:
    """Counts of what Evidence said."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        # Iterations in a row that it was slow, or well.
        self._slow: dict[Suspect, int] = {}
        self._well: dict[Suspect, int] = {}
        self._recent: dict[Suspect, deque[float]] = {}
        self._acquitted: dict[Suspect, Acquittal] = {}

    def __bool__(self) -> bool:
        """Whether the latest iteration showed anything that may become a suspect."""
        return bool(self._slow)

    def count(self, evidence: Evidence, blamed: Collection[Suspect]) -> None:
        """Take the Evidence of one more iteration; `blamed`: what is blamed by now."""
        self._slow = {name: self._slow.get(name, 0) + 1 for name, (_, slow) in evidence.found.items() if slow}
        for name in self._slow:
            self._recent.setdefault(name, deque(maxlen=RECENT)).append(evidence.found[name][0])
        for name in self._recent.keys() - self._slow.keys() - set(blamed):
            del self._recent[name]
        # What was not seen keeps its count.
        self._well = {
            name: 0 if name in evidence.found else self._well.get(name, 0) + (name in evidence.well) for name in blamed
        }

    def suspects(
        self, evidence: Evidence, iteration: int, blamed: Mapping[Suspect, float], alarmed: bool
    ) -> tuple[Suspect, ...]:
        """What is to be examined now.

        Args:
            blamed: the severity of what is blamed by now.
            alarmed: whether iterations are known to be slow.
        """
        enough = self._settings.onset if alarmed else self._settings.persistent
        return tuple(
            name
            for name in evidence.found
            if (self._is_other(name, blamed[name]) if name in blamed else self._slow.get(name, 0) >= enough)
            and not self._is_acquitted(name, iteration)
        )

    def _is_other(self, name: Suspect, blamed: float) -> bool:
        """Whether a blamed rank is slow, but not as slow as was planned for. Of links only an examination knows."""
        return (
            name.is_rank and self._slow.get(name, 0) >= RECENT and not 0.7 < median(self._recent[name]) / blamed < 1.4
        )

    def severity(self, name: Suspect) -> float:
        """Of a suspect, the median of the latest iterations."""
        return median(self._recent[name])

    def since(self, name: Suspect, iteration: int) -> int:
        """The iteration since which a suspect of `iteration` has been slow."""
        return iteration - self._slow.get(name, 1) + 1

    def acquit(self, name: Suspect, iteration: int, *, is_sure: bool) -> None:
        """An examination in `iteration` found `name` well: leave it alone, each time for twice as long.

        If that was not sure, at first for some iterations only.
        """
        first = self._settings.acquitted if is_sure else UNSURE
        patience = max(2 * self._acquitted[name].patience, first) if name in self._acquitted else first
        self._acquitted[name] = Acquittal(iteration + patience, patience, _excess(name, self.severity(name)))

    def _is_acquitted(self, name: Suspect, iteration: int) -> bool:
        """Whether `name` is left alone: it looks as it did when it was found well, or not much worse."""
        last = self._acquitted.get(name)
        return (
            last is not None
            and iteration < last.until
            and _excess(name, self.severity(name)) < MUCH_WORSE * last.excess
        )

    def measured(self, name: Suspect, severity: float) -> None:
        """An examination knows the severity of `name` better."""
        self._recent[name] = deque([severity], maxlen=RECENT)

    def confirmed(
        self, suspects: Collection[Suspect], found: Mapping[Suspect, float], iteration: int, unit_s: float
    ) -> tuple[Suspect, ...]:
        """Those of `suspects` that an examination in `iteration` found slow; the others are acquitted.

        Args:
            found: severities, as Controller.validated has them.
            unit_s: what severities of links are measured in.
        """
        slow = []
        for name in suspects:
            least = self._settings.slow_rank if name.is_rank else self._settings.slow_link * unit_s
            severity = found.get(name, 0.0)
            if isnan(severity) or severity < least:
                self.acquit(name, iteration, is_sure=not isnan(severity))
                continue
            slow.append(name)
            if not name.is_rank:
                self.measured(name, severity)
        return tuple(slow)

    def take_relieved(self) -> list[Suspect]:
        """What was blamed and has been well for long enough; it is forgotten."""
        over = [name for name, count in self._well.items() if count >= self._settings.relief]
        for name in over:
            del self._well[name]
            self._recent.pop(name, None)
        return over


def _excess(name: Suspect, severity: float) -> float:
    """What a severity is beyond health: that of a rank is a factor."""
    return severity - 1 if name.is_rank else severity
