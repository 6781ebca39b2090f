"""What is blamed for a slow job now, and what was: since when, how badly, until when."""

from collections.abc import Sequence
from typing import Any

from lanterne.failslow.mitigate.baseline import in_words
from lanterne.failslow.mitigate.decision import blamed
from lanterne.failslow.mitigate.strategies import WELL, Slowness
from lanterne.failslow.mitigate.suspicion import Suspicion
from lanterne.pipeline.adapt.suspect import Suspect


class Accused:
    """The ranks and links that are blamed.

    Args:
        suspicion: knows how badly and since when each is slow.

    Attributes: `slow`, what is blamed now; `incidents`, dicts: what, first suspected, named, ended (None while it
    lasts), severity.
    """

    def __init__(self, suspicion: Suspicion) -> None:
        self.slow: Slowness = WELL
        self.incidents: list[dict[str, Any]] = []
        self._suspicion = suspicion

    def add(self, suspects: Sequence[Suspect], iteration: int) -> None:
        """Blame `suspects` too, or as badly as is known now."""
        ranks, links = dict(self.slow.ranks), dict(self.slow.links)
        for name in suspects:
            found = self._suspicion.severity(name)
            if name not in blamed(self.slow):
                since = self._suspicion.since(name, iteration)
                incident = {"what": name, "suspected": since, "named": iteration, "ended": None, "severity": found}
                self.incidents.append(incident)
            if name.is_rank:
                ranks[name.ends[0]] = found
            else:
                links[name.pair()] = found
        self.slow = Slowness(ranks, links)

    def relieve(self, iteration: int) -> bool:
        """Blame no more what is well again; whether something is."""
        over = self._suspicion.take_relieved()
        if not over:
            return False
        for name in over:
            next(each for each in self.incidents[::-1] if each["what"] == name)["ended"] = iteration
        self.slow = Slowness(
            {rank: value for rank, value in self.slow.ranks.items() if Suspect.rank(rank) not in over},
            {(a, b): value for (a, b), value in self.slow.links.items() if Suspect.link(a, b) not in over},
        )
        return True

    def words(self, suspects: Sequence[Suspect]) -> str:
        """How badly each of `suspects` is slow."""
        return in_words({name: self._suspicion.severity(name) for name in suspects}, suspects)
