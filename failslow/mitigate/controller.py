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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite, isnan
from typing import Any

from lanterne.failslow.detect.tracker import Tracker
from lanterne.failslow.mitigate.baseline import Baseline, baseline, blamed_and_idle, evidence, in_words
from lanterne.failslow.mitigate.decision import ControllerSettings, Decision, Seen, blamed
from lanterne.failslow.mitigate.ski_rental import MitigationPlanner, paper_strategies
from lanterne.failslow.mitigate.strategies import Arrangement, Forecaster, Slowness, arrange
from lanterne.failslow.mitigate.suspicion import Suspicion
from lanterne.failslow.validate.links import Link
from lanterne.pipeline.adapt.suspect import Suspect

# Healthy iterations that prime a Tracker when the job is home again.
REMEMBERED = 32
# Iterations after which a provisional alarm that was never confirmed is over, and after which one that is, is reported
# if nobody is to blame.
PROVISIONAL, UNEXPLAINED = 8, 5
# Times the forecast that an iteration may take while something is blamed: more is an alarm.
LONGER = 1.15
# S2 to S4.
COSTLY = ("rebalance", "topology", "restart")
WELL = Slowness({}, {})


class Controller:
    """The core.

    Args:
        home: what runs in health.
        make_forecaster: a function of ((places,) seconds of work on a microbatch, seconds of the gradients' all-reduce)
            that makes a Forecaster.

    Attributes: `now`, what runs; `slow`, what is blamed; `decisions`, all so far; `forecaster`, None until it is known
    what is healthy; `incidents`, dicts: what, first suspected, named, ended (None while it lasts), severity; `saved_s`:
    what iterations took less than they would have at home, by the forecast of that.
    """

    def __init__(
        self,
        home: Arrangement,
        make_forecaster: Callable[[Sequence[float], float], Forecaster],
        settings: ControllerSettings | None = None,
    ) -> None:
        self.home = home
        self.now: Arrangement = home
        self.settings: ControllerSettings = settings or ControllerSettings()
        self._make_forecaster = make_forecaster
        self.slow: Slowness = WELL
        self.decisions: list[Decision] = []
        self.incidents: list[dict[str, Any]] = []
        self.forecaster: Forecaster | None = None
        self._usual: Baseline | None = None
        self._model_s = 1.0
        self._first: list[Seen] = []
        self._healthy: deque[float] = deque(maxlen=REMEMBERED)
        self._tracker = Tracker()
        self._alarm_at: int | None = None
        self._unknown = False
        self._suspicion = Suspicion(self.settings)
        self._planner: MitigationPlanner | None = None
        # The suspects that are to be validated, and what made them suspects.
        self._waits: tuple[tuple[Suspect, ...], Seen] | None = None
        self.saved_s: float = 0.0
        # What is slow, and what an iteration would take then at home.
        self._at_home: tuple[Slowness, float] = WELL, 0.0
        self._costs_s: dict[str, float] = {name: getattr(self.settings, f"{name}_s") for name in COSTLY}

    @property
    def probes(self) -> tuple[Link, ...]:
        """Links that are blamed and carry nothing now: their delays are to be measured by themselves."""
        return blamed_and_idle(self.now, self.slow)

    @property
    def heeds_links(self) -> bool:
        """Whether the next iteration's messages may matter: else a Seen may lack them, which spares most of it."""
        learns = self.forecaster is None
        return learns or bool(self.slow.links) or bool(self._suspicion) or self._alarm_at is not None

    def update(self, seen: Seen) -> Decision | None:
        """The Decision that `seen` leads to, or None."""
        if not isfinite(seen.iteration_s) or seen.iteration_s <= 0:
            return None
        if self.forecaster is None or self._usual is None:
            self._calibrate(seen)
            return None
        self._count_saved(seen)
        found = evidence(seen, self._usual, self.now, self.slow, self.settings)
        self._suspicion.count(found, blamed(self.slow))
        self._track(seen)
        if self._waits is not None:
            return None
        if self._relieved(seen):
            return self._rearrange(seen, "relief")
        alarmed = self._alarm_at is not None or (bool(self.slow) and seen.iteration_s > self._expected_s())
        suspects = self._suspicion.suspects(found, seen.iteration, blamed(self.slow), alarmed)
        if suspects:
            self._unknown = False
            if not self.settings.validates:
                return self._blame(suspects, seen)
            self._waits = suspects, seen
            return self._decided(Decision("validate", seen.iteration, suspects, evidence=self._words(suspects)))
        if self.slow:
            return self._more(seen)
        return self._nobody(seen)

    def validated(self, measured: Mapping[Suspect, float]) -> Decision | None:
        """What the validation of the suspects found; the Decision that it leads to, or None.

        Args:
            measured: severities, as Evidence has them; what is absent could not be tested, nor blamed, and where it
                is nan, that cannot be said yet.
        """
        assert self._waits is not None and self._usual is not None
        suspects, seen = self._waits
        self._waits = None
        confirmed = []
        for name in suspects:
            least = self.settings.slow_rank if name.is_rank else self.settings.slow_link * self._usual.unit_s
            found = measured.get(name, 0.0)
            if isnan(found) or found < least:
                self._suspicion.acquit(name, seen.iteration, is_sure=not isnan(found))
                continue
            confirmed.append(name)
            if not name.is_rank:
                self._suspicion.measured(name, measured[name])
        return self._blame(tuple(confirmed), seen) if confirmed else None

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

    @property
    def usual_s(self) -> float | None:
        """What an iteration takes in health; None until that is known."""
        return None if self._usual is None else self._usual.iteration_s

    def _count_saved(self, seen: Seen) -> None:
        if not self.slow or self.now == self.home:
            return
        if self._at_home[0] != self.slow:
            self._at_home = self.slow, self._forecast_s(self.home, self.slow)
        self.saved_s += self._at_home[1] - seen.iteration_s

    # -- what is healthy

    def _calibrate(self, seen: Seen) -> None:
        self._first.append(seen)
        self._tracker.update(seen.iteration_s)
        self._healthy.append(seen.iteration_s)
        if len(self._first) < self.settings.calibrate + 2:
            return
        usual = baseline(self._first[2:], self.home)
        if usual is None:
            self._first.pop(0)  # Some rank reports nothing, and nobody knows what is healthy: wait.
            return
        self._usual = usual
        self.forecaster = self._make_forecaster(usual.work_s, max(usual.group_s))
        self._model_s = usual.iteration_s / self.forecaster.iteration_s(self.home, WELL)
        self._first = []

    # -- tracking

    def _track(self, seen: Seen) -> None:
        if self.slow:
            return
        event = self._tracker.update(seen.iteration_s)
        if event is not None and event.kind == "onset":
            self._alarm_at = seen.iteration
        elif event is not None and event.kind == "relief":
            self._alarm_at = None
        if self._alarm_at is not None and not self._tracker.slow and seen.iteration - self._alarm_at > PROVISIONAL:
            self._alarm_at = None
        if self._alarm_at is None and not self._suspicion:
            self._healthy.append(seen.iteration_s)

    def _restart_tracker(self) -> None:
        self._tracker = Tracker()
        self._alarm_at = None
        for time_s in self._healthy:
            self._tracker.update(time_s)

    # -- blame, and what follows

    def _blame(self, suspects: Sequence[Suspect], seen: Seen) -> Decision | None:
        ranks, links = dict(self.slow.ranks), dict(self.slow.links)
        for name in suspects:
            found = self._suspicion.severity(name)
            if name not in blamed(self.slow):
                since = self._suspicion.since(name, seen.iteration)
                incident = {"what": name, "suspected": since, "named": seen.iteration, "ended": None, "severity": found}
                self.incidents.append(incident)
            if name.is_rank:
                ranks[name.ends[0]] = found
            else:
                links[name.pair()] = found
        self.slow = Slowness(ranks, links)
        return self._rearrange(seen, self._words(suspects))

    def _relieved(self, seen: Seen) -> bool:
        """Whether something that was blamed is well again."""
        over = self._suspicion.take_relieved()
        if not over:
            return False
        for name in over:
            next(each for each in self.incidents[::-1] if each["what"] == name)["ended"] = seen.iteration
        self.slow = Slowness(
            {rank: value for rank, value in self.slow.ranks.items() if Suspect.rank(rank) not in over},
            {(a, b): value for (a, b), value in self.slow.links.items() if Suspect.link(a, b) not in over},
        )
        return True

    def _rearrange(self, seen: Seen, because: str) -> Decision | None:
        """Something is blamed or relieved: as high a strategy as before, for what is slow now."""
        if not self.slow:
            self._planner = None
            self._restart_tracker()
            return self._go_home(seen, because) if self.now != self.home else None
        before, costs_s = self._planner, self._costs_s
        strategies = paper_strategies(**{f"{name}_s": cost_s for name, cost_s in costs_s.items()})
        self._planner = planner = MitigationPlanner(strategies, self.slow.cause)
        if before is not None:
            done = [costs_s[name] for name in before.applied if name in ("rebalance", "topology")]
            planner.lost_s = max([before.lost_s, *done[-1:]])
        return self._more(seen, because)

    def _go_home(self, seen: Seen, because: str) -> Decision:
        self.now = self.home
        predicted_s = self._forecast_s(self.home, WELL)
        return self._decided(
            Decision("revert", seen.iteration, (), None, self.home, seen.iteration_s, predicted_s, because)
        )

    def _more(self, seen: Seen, because: str = "") -> Decision | None:
        """One more slow iteration: the strategy whose time has come."""
        planner, forecaster = self._planner, self.forecaster
        assert planner is not None and forecaster is not None
        healthy_s, now_s = self._forecast_s(self.home, WELL), self._forecast_s(self.now, self.slow)
        made: dict[str, Arrangement | None] = {}
        if planner.lost_s + max(now_s - healthy_s, 0.0) >= planner.next_cost_s:
            made = {name: arrange(name, forecaster, self.home, self._base(name), self.slow) for name in self._costs_s}
        forecast_s = {name: self._forecast_s(to, self.slow) if to else float("inf") for name, to in made.items()}
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

    def _forecast_s(self, arrangement: Arrangement, slow: Slowness) -> float:
        assert self.forecaster is not None
        return self._model_s * self.forecaster.iteration_s(arrangement, slow)

    def _expected_s(self) -> float:
        """What an iteration may take, with what is blamed, before something else must be suspected."""
        return LONGER * self._forecast_s(self.now, self.slow)

    def _base(self, strategy: str) -> Arrangement:
        """S2 leaves ranks where they are, the others begin from home."""
        return self.now if strategy == "rebalance" and len(self.now.ranks) == len(self.home.ranks) else self.home

    def _nobody(self, seen: Seen) -> Decision | None:
        """The job is slow for certain, and nobody is to blame: say so, once."""
        if not self._tracker.slow:
            self._unknown = False
        elif not self._unknown and self._alarm_at is not None and seen.iteration - self._alarm_at >= UNEXPLAINED:
            self._unknown = True
            words = "iterations are slow, but no rank, link or all-reduce is slower than it was, or all are alike"
            return self._decided(Decision("report", seen.iteration, before_s=seen.iteration_s, evidence=words))
        return None

    def _decided(self, decision: Decision) -> Decision:
        self.decisions.append(decision)
        return decision

    def _words(self, suspects: Sequence[Suspect]) -> str:
        return in_words({name: self._suspicion.severity(name) for name in suspects}, suspects)
