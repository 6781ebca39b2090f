"""What is suspected, blamed and acquitted: counts of iterations in a row, since nothing is judged by one."""

from collections import deque
from collections.abc import Mapping, Sequence
from math import isnan
from statistics import median
from typing import Any, NamedTuple

from lanterne.failslow.evidence.comparison import MIN_STEPS
from lanterne.failslow.mitigate.baseline import Evidence, in_words
from lanterne.failslow.mitigate.decision import ControllerSettings, blamed
from lanterne.failslow.mitigate.strategies import WELL, Slowness
from lanterne.pipeline.adapt.suspect import Suspect

# Iterations until a suspect is examined again of which an examination could not say whether it is slow; times what a
# suspect was acquitted of that make it one again at once.
UNSURE, MUCH_WORSE = 3, 3.0


class Acquittal(NamedTuple):
    """Until which iteration a suspect is left alone, for how many in all, and the excess that it was acquitted of."""

    until: int
    patience: int
    excess: float


class Suspicion:
    """Counts what Evidence says, and keeps what is blamed.

    Attributes: `slow`, what is blamed now; `incidents`, dicts: what, first suspected, named, ended (None while it
    lasts), severity.
    """

    def __init__(self, settings: ControllerSettings) -> None:
        self.slow: Slowness = WELL
        self.incidents: list[dict[str, Any]] = []
        self._settings = settings
        # Iterations in a row that it was slow, or well.
        self._slow: dict[Suspect, int] = {}
        self._well: dict[Suspect, int] = {}
        self._recent: dict[Suspect, deque[float]] = {}
        self._acquitted: dict[Suspect, Acquittal] = {}

    def __bool__(self) -> bool:
        """Whether the latest iteration showed anything that may become a suspect."""
        return bool(self._slow)

    def count(self, evidence: Evidence) -> None:
        """Take the Evidence of one more iteration."""
        known = blamed(self.slow)
        self._slow = {name: self._slow.get(name, 0) + 1 for name, (_, slow) in evidence.found.items() if slow}
        for name in self._slow:
            self._recent.setdefault(name, deque(maxlen=MIN_STEPS)).append(evidence.found[name][0])
        for name in self._recent.keys() - self._slow.keys() - set(known):
            del self._recent[name]
        # What was not seen keeps its count.
        self._well = {
            name: 0 if name in evidence.found else self._well.get(name, 0) + (name in evidence.well) for name in known
        }

    def suspects(self, evidence: Evidence, iteration: int, *, alarmed: bool) -> tuple[Suspect, ...]:
        """Return what is to be examined now; `alarmed`: iterations are known to be slow."""
        known, enough = blamed(self.slow), self._settings.onset if alarmed else self._settings.persistent
        return tuple(
            name
            for name in evidence.found
            if (self._is_other(name, known[name]) if name in known else self._slow.get(name, 0) >= enough)
            and not self._is_acquitted(name, iteration)
        )

    def _is_other(self, name: Suspect, before: float) -> bool:
        """Whether a blamed rank is slow, but not as slow as was planned for. Of links only an examination knows."""
        ratio = median(self._recent[name]) / before
        return name.is_rank and self._slow.get(name, 0) >= MIN_STEPS and not 0.7 < ratio < 1.4

    def confirmed(
        self, suspects: Sequence[Suspect], found: Mapping[Suspect, float], iteration: int, unit_s: float
    ) -> list[Suspect]:
        """Return those of `suspects` that an examination in `iteration` found slow.

        The others are acquitted: left alone, each time for twice as long; at first for some iterations only if that
        was not sure.

        Args:
            found: severities, as Controller.validated has them.
            unit_s: what severities of links are measured in.
        """
        slow = []
        for name in suspects:
            least = self._settings.slow_rank if name.is_rank else self._settings.slow_link * unit_s
            severity = found.get(name, 0.0)
            if isnan(severity) or severity < least:
                first = UNSURE if isnan(severity) else self._settings.acquitted
                patience = max(2 * self._acquitted[name].patience, first) if name in self._acquitted else first
                excess = _excess(name, median(self._recent[name]))
                self._acquitted[name] = Acquittal(iteration + patience, patience, excess)
                continue
            slow.append(name)
            if not name.is_rank:
                self._recent[name] = deque([severity], maxlen=MIN_STEPS)
        return slow

    def _is_acquitted(self, name: Suspect, iteration: int) -> bool:
        """Whether `name` is left alone: it looks as it did when it was found well, or not much worse."""
        last, now = self._acquitted.get(name), _excess(name, median(self._recent.get(name, [0.0])))
        return last is not None and iteration < last.until and now < MUCH_WORSE * last.excess

    def blame(self, suspects: Sequence[Suspect], iteration: int, known: Mapping[int, float] | None = None) -> None:
        """Blame `suspects` too, or as badly as is known now; `known`: rank -> factor, where counts do not tell it."""
        ranks, links = dict(self.slow.ranks), dict(self.slow.links)
        for rank, factor in (known or {}).items():
            self._recent[Suspect.rank(rank)] = deque([factor], maxlen=MIN_STEPS)
        for name in suspects:
            severity = median(self._recent[name])
            if name not in blamed(self.slow):
                since = iteration - self._slow.get(name, 1) + 1
                incident = {"what": name, "suspected": since, "named": iteration, "ended": None, "severity": severity}
                self.incidents.append(incident)
            if name.is_rank:
                ranks[name.ends[0]] = severity
            else:
                links[name.pair()] = severity
        self.slow = Slowness(ranks, links)

    def relieve(self, iteration: int) -> bool:
        """Blame no more what has been well for long enough; whether something is."""
        over = [name for name, count in self._well.items() if count >= self._settings.relief]
        for name in over:
            del self._well[name]
            self._recent.pop(name, None)
            next(each for each in self.incidents[::-1] if each["what"] == name)["ended"] = iteration
        self.slow = Slowness(
            {rank: value for rank, value in self.slow.ranks.items() if Suspect.rank(rank) not in over},
            {(a, b): value for (a, b), value in self.slow.links.items() if Suspect.link(a, b) not in over},
        )
        return bool(over)

    def words(self, suspects: Sequence[Suspect]) -> str:
        """Return in words how badly each of `suspects` is slow."""
        return in_words({name: median(self._recent[name]) for name in suspects}, suspects)


def _excess(name: Suspect, severity: float) -> float:
    """Return what a severity is beyond health: that of a rank is a factor."""
    return severity - 1 if name.is_rank else severity
