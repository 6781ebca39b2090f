"""The decisions that close the loop: noticed, profiled, validated, mitigated, and back when it is over.

A pure core: it is told what every iteration showed (Seen) and answers with what to do (Decision); closed_loop.py does
it. So every order of events can be played through without a job.

1. *Tracking*: Tracker, on the time of iterations. It says that something is wrong, not what.
2. *Profiling*: whose computing takes longer than it did, against what the others' does; which messages, and which
   all-reduces of gradients, take longer than they did (baseline.py). Nothing is suspected unless it is so several times
   in a row while the job is slow (suspicion.py).
3. *Validation* of the suspects alone, and only once. What passes is not blamed.
4. *Mitigation* by the ski-rental rule: what costs more is done once as much has been lost.
5. *Relief*: what was slow is as it was, several times in a row: home.

Paper: Wu et al. (GREYHOUND), sections 4 and 5; differs: evidence before blame in every step.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import exp, isfinite
from typing import Any

from lanterne.failslow.detect.tracker import WINDOW_ROWS, Tracker
from lanterne.failslow.evidence.series import SHIFT
from lanterne.failslow.mitigate.baseline import (
    NOBODY,
    Evidence,
    Health,
    MakeForecaster,
    blamed_and_idle,
    evidence,
    pipeline_links,
)
from lanterne.failslow.mitigate.decision import ControllerSettings, Decision, Seen, blamed
from lanterne.failslow.mitigate.ski_rental import MitigationPlanner, paper_strategies
from lanterne.failslow.mitigate.strategies import WELL, Arrangement, Slowness, arrange
from lanterne.failslow.mitigate.suspicion import Suspicion
from lanterne.failslow.validate.links import Link
from lanterne.pipeline.adapt.suspect import Suspect

# S2 to S4.
COSTLY = ("rebalance", "topology", "restart")


class Controller:
    """The core.

    Args:
        home: what runs in health.
        make_forecaster: makes the Forecaster once it is known what is healthy.
        before: rank -> factor of those that were slow when the job had other ranks: they may be so from the start.
        planned_s: (places,) of work on a microbatch by the plan, where `before` names any.
        adapts: whether the schedule follows slow links between neighbours of a pipeline by itself: none is suspected.
            May be set.

    Attributes: `now`, what runs; `decisions`, all so far; `health`, the Health; `saved_s`: what iterations took less
    than they would have at home, by the forecast of that.
    """

    def __init__(
        self,
        home: Arrangement,
        make_forecaster: MakeForecaster,
        settings: ControllerSettings | None = None,
        *,
        before: Mapping[int, float] = NOBODY,
        planned_s: Sequence[float] = (),
        adapts: bool = False,
    ) -> None:
        self.home = home
        self.now: Arrangement = home
        self.settings: ControllerSettings = settings or ControllerSettings()
        self.health: Health = Health(home, make_forecaster, self.settings.calibrate, before, planned_s)
        self._before = before
        self.adapts: bool = adapts
        self.decisions: list[Decision] = []
        self._tracker = Tracker()
        # What primes a Tracker when the job is home again.
        self._healthy: deque[float] = deque(maxlen=WINDOW_ROWS)
        # Iterations in a row that are slow without a suspect.
        self._unexplained = 0
        self._suspicion = Suspicion(self.settings)
        self._planner: MitigationPlanner | None = None
        # The suspects that are to be validated, and what made them suspects.
        self._waits: tuple[tuple[Suspect, ...], Seen] | None = None
        self.saved_s: float = 0.0
        # What is slow, and what an iteration would take then at home.
        self._at_home: tuple[Slowness, float] = WELL, 0.0
        self._costs_s: dict[str, float] = {name: getattr(self.settings, f"{name}_s") for name in COSTLY}

    @property
    def slow(self) -> Slowness:
        """What is blamed."""
        return self._suspicion.slow

    @property
    def slow_ranks(self) -> Mapping[int, float]:
        """rank -> factor of those that are blamed; until it is known what is healthy, of those that were before."""
        return self._before if self.health.usual is None else self.slow.ranks

    @property
    def incidents(self) -> list[dict[str, Any]]:
        """What was blamed so far: what, first suspected, named, ended (None while it lasts), severity."""
        return self._suspicion.incidents

    @property
    def probes(self) -> tuple[Link, ...]:
        """Links that are blamed and carry nothing now: their delays are to be measured by themselves."""
        return blamed_and_idle(self.now, self.slow)

    @property
    def heeds_links(self) -> bool:
        """Whether the next iteration's messages may matter: else a Seen may lack them, which spares most of it."""
        return self.health.usual is None or bool(self.slow.links) or bool(self._suspicion) or self._is_alarmed

    @property
    def _is_alarmed(self) -> bool:
        """Whether iterations take longer, or may do."""
        return self._tracker.slow or self._tracker.doubtful

    def update(self, seen: Seen) -> Decision | None:
        """The Decision that `seen` leads to, or None."""
        if not isfinite(seen.iteration_s) or seen.iteration_s <= 0:
            return None
        usual = self.health.usual
        if usual is None:
            return self._learn(seen)
        self._count_saved(seen)
        found = evidence(seen, usual, self.now, self.slow, self.settings)
        planned_for = self._planned_for(found)
        found = found._replace(found={name: each for name, each in found.found.items() if name not in planned_for})
        self._suspicion.count(found)
        if not self.slow:
            self._tracker.update(seen.iteration_s)
            if not self._is_alarmed and not self._suspicion:
                self._healthy.append(seen.iteration_s)
        if self._waits is not None:
            return None
        if self._suspicion.relieve(seen.iteration):
            return self._rearrange(seen, "relief")
        # While something is blamed, an iteration that takes clearly longer than the forecast.
        limit_s = exp(SHIFT) * self.health.forecast_s(self.now, self.slow) if self.slow else float("inf")
        alarmed = self._is_alarmed or seen.iteration_s > limit_s
        suspects = self._suspicion.suspects(found, seen.iteration, alarmed=alarmed)
        if suspects:
            self._unexplained = 0
            if not self.settings.validates:
                return self._blame(suspects, seen)
            self._waits = suspects, seen
            words = self._suspicion.words(suspects)
            return self._decided(Decision("validate", seen.iteration, suspects, evidence=words))
        if self.slow:
            return self._more(seen)
        if planned_for or seen.for_slow_links:
            self._unexplained = 0
            return None
        return self._nobody(seen)

    def _planned_for(self, found: Evidence) -> set[Suspect]:
        """Return the slow links that are left to the schedule."""
        hops = pipeline_links(self.now) if self.adapts else set()
        return {name for name in found.found if not name.is_rank and name.pair() in hops - self.slow.links.keys()}

    def validated(self, measured: Mapping[Suspect, float]) -> Decision | None:
        """What the validation of the suspects found; the Decision that it leads to, or None.

        Args:
            measured: severities, as Evidence has them; what is absent could not be tested, nor blamed, and where it
                is nan, that cannot be said yet.
        """
        assert self._waits is not None and self.health.usual is not None
        suspects, seen = self._waits
        self._waits = None
        confirmed = self._suspicion.confirmed(suspects, measured, seen.iteration, self.health.usual.unit_s)
        return self._blame(confirmed, seen) if confirmed else None

    def took(self, strategy: str, seconds: float) -> None:
        """What carrying out a strategy cost: the next decision goes by it."""
        if strategy in self._costs_s:
            self._costs_s[strategy] = seconds

    def state(self) -> dict[str, Any]:
        """All that is known now, as JSON: what is slow, what runs, what was decided."""
        return {
            "slow": [{"what": name, "severity": found} for name, found in blamed(self.slow).items()],
            "arrangement": asdict(self.now),
            "incidents": self.incidents,
            "decisions": [decision.to_dict() for decision in self.decisions],
        }

    def _count_saved(self, seen: Seen) -> None:
        if self.slow and self.now != self.home:
            if self._at_home[0] != self.slow:
                self._at_home = self.slow, self.health.forecast_s(self.home, self.slow)
            self.saved_s += self._at_home[1] - seen.iteration_s

    def _learn(self, seen: Seen) -> Decision | None:
        """Of the first iterations: learn what is healthy, and blame who was slow before and is so still."""
        self._tracker.update(seen.iteration_s)
        self._healthy.append(seen.iteration_s)
        slow = self.health.learn(seen)
        if not slow:
            return None
        self._tracker = Tracker()
        self._healthy.clear()
        return self._blame([*map(Suspect.rank, slow)], seen, slow)

    def _blame(
        self, suspects: Sequence[Suspect], seen: Seen, known: Mapping[int, float] | None = None
    ) -> Decision | None:
        self._suspicion.blame(suspects, seen.iteration, known)
        return self._rearrange(seen, self._suspicion.words(suspects))

    def _rearrange(self, seen: Seen, because: str) -> Decision | None:
        """Something is blamed or relieved: as high a strategy as before, for what is slow now."""
        if not self.slow:
            self._planner = None
            self._tracker = Tracker()
            for time_s in self._healthy:
                self._tracker.update(time_s)
            if self.now == self.home:
                return None
            self.now = self.home
            well_s = self.health.forecast_s(self.home, WELL)
            home = Decision("revert", seen.iteration, (), None, self.home, seen.iteration_s, well_s, because)
            return self._decided(home)
        before, costs_s = self._planner, self._costs_s
        strategies = paper_strategies(**{f"{name}_s": cost_s for name, cost_s in costs_s.items()})
        self._planner = planner = MitigationPlanner(strategies, self.slow.cause)
        if before is not None:
            done = [costs_s[name] for name in before.applied if name in ("rebalance", "topology")]
            planner.lost_s = max([before.lost_s, *done[-1:]])
        return self._more(seen, because)

    def _more(self, seen: Seen, because: str = "") -> Decision | None:
        """One more slow iteration: the strategy whose time has come."""
        planner, forecaster = self._planner, self.health.forecaster
        assert planner is not None and forecaster is not None
        healthy_s, now_s = self.health.forecast_s(self.home, WELL), self.health.forecast_s(self.now, self.slow)
        made: dict[str, Arrangement | None] = {}
        if planner.lost_s + max(now_s - healthy_s, 0.0) >= planner.next_cost_s:
            bases = {name: _base(name, self.now, self.home) for name in self._costs_s}
            made = {name: arrange(name, forecaster, self.home, base, self.slow) for name, base in bases.items()}
        forecast_s = {name: self.health.forecast_s(to, self.slow) if to else float("inf") for name, to in made.items()}
        while (strategy := planner.observe(now_s, healthy_s, forecast_s)) is not None:
            to = made.get(strategy.name)
            if to is None or to == self.now or forecast_s[strategy.name] > (1 - self.settings.gain) * now_s:
                healthy_s = now_s  # Counted once only.
                continue
            self.now = to
            return self._decided(
                Decision(
                    "mitigate", seen.iteration, tuple(blamed(self.slow)), strategy.name, to, seen.iteration_s,
                    forecast_s[strategy.name], because,
                )
            )  # fmt: skip
        return None

    def _nobody(self, seen: Seen) -> Decision | None:
        """The job is slow for certain, and nobody is to blame: say so, once."""
        self._unexplained = self._unexplained + 1 if self._tracker.slow else 0
        if self._unexplained != self.settings.persistent + 1:
            return None
        words = "iterations are slow, but no rank, link or all-reduce is slower than it was, or all are alike"
        return self._decided(Decision("report", seen.iteration, before_s=seen.iteration_s, evidence=words))

    def _decided(self, decision: Decision) -> Decision:
        self.decisions.append(decision)
        return decision


def _base(strategy: str, now: Arrangement, home: Arrangement) -> Arrangement:
    """S2 leaves ranks where they are, the others begin from home."""
    return now if strategy == "rebalance" and len(now.ranks) == len(home.ranks) else home
