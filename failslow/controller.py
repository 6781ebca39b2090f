"""The decisions that close the loop: noticed, profiled, validated, mitigated, and back when it is over.

A pure core: it is told what every iteration showed (Seen) and answers with what to do (Decision); closed_loop.py does
it. So every order of events can be played through without a job.

1. *Tracking*: Tracker, on the time of iterations. It says that something is wrong, not what.
2. *Profiling*: whose computing takes longer than it did, against what the others' does; which messages, and which
   all-reduces of gradients, take longer than they did. Nobody is suspected but who is so several times in a row while
   the job is slow.
3. *Validation* of the suspects alone, and only once. Who passes is not blamed.
4. *Mitigation* by the ski-rental rule: what costs more is done once as much has been lost.
5. *Relief*: what was slow is as it was, several times in a row: home.

Paper: Wu et al. (GREYHOUND), sections 4 and 5; differs: evidence before blame in every step.
"""

from collections import deque
from dataclasses import asdict, dataclass, field
from math import isfinite
from statistics import median

from .mitigate import Arrangement, Slowness, arrange
from .ski_rental import MitigationPlanner, paper_strategies
from .track import Tracker

# Healthy iterations that prime a Tracker when the job is home again.
REMEMBERED = 32


@dataclass(frozen=True)
class Settings:
    """How a Controller decides.

    Attributes:
        calibrate: iterations that tell what is healthy, behind the first two.
        onset, relief: iterations in a row that make a suspect, and that acquit it.
        persistent: iterations in a row that make a suspect although the Tracker, in noise, says nothing yet.
        slow_rank, well_rank: factors of a rank's computing from which it is slow, and up to which it is well again.
        slow_link, well_link: the same for messages, in parts of the mean work on a microbatch of a stage.
        gain: share of an iteration that a mitigation must be predicted to gain.
        validates: whether suspects are validated; acquitted ones are left alone for `acquitted` iterations.
        rebalance_s, topology_s, restart_s: what S2 to S4 cost; the measured cost takes the place of the first guess.
    """

    calibrate: int = 10
    onset: int = 2
    relief: int = 3
    persistent: int = 4
    slow_rank: float = 1.25
    well_rank: float = 1.12
    slow_link: float = 0.6
    well_link: float = 0.3
    gain: float = 0.02
    validates: bool = True
    acquitted: int = 20
    rebalance_s: float = 0.01
    topology_s: float = 0.3
    restart_s: float = 10.0


@dataclass(frozen=True)
class Seen:
    """What one iteration showed.

    Attributes:
        iteration: its number.
        iteration_s: the longest of any rank.
        compute_s: rank -> seconds of its work on a microbatch; ranks that reported nothing are absent, or nan.
        links: (a, b), a < b -> seconds of a message, (least, most) as far as known.
        gradients_s: rank -> (began, ended) of its wait for gradients, seconds of one clock.
    """

    iteration: int
    iteration_s: float
    compute_s: dict
    links: dict = field(default_factory=dict)
    gradients_s: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """What is to be done before the next iteration.

    Attributes:
        kind: "validate" the `suspects`, "mitigate", "revert", or "report": something is wrong, and nobody is to blame.
        iteration: whose Seen led to it.
        suspects: names: "rank 3", "link 1-2".
        strategy, arrangement: of a mitigation.
        before_s, predicted_s: of an iteration, measured now and expected.
        evidence: in words.
    """

    kind: str
    iteration: int
    suspects: tuple = ()
    strategy: str | None = None
    arrangement: Arrangement | None = None
    before_s: float | None = None
    predicted_s: float | None = None
    evidence: str = ""

    def to_dict(self):
        """As JSON."""
        return asdict(self)


class Controller:
    """The core.

    Args:
        home: the Arrangement in health.
        make_forecaster: a function of ((places,) seconds of work on a microbatch, seconds of the gradients' all-reduce)
            that makes a Forecaster.
        settings: Settings.

    Attributes: `now`, the Arrangement that runs; `slow`, the Slowness that is blamed; `decisions`, all so far;
    `incidents`, dicts: what, first suspected, named, ended (None while it lasts), severity.
    """

    def __init__(self, home, make_forecaster, settings=None):
        self.home = self.now = home
        self.settings, self._make_forecaster = settings or Settings(), make_forecaster
        self.slow, self.decisions, self.incidents = Slowness({}, {}), [], []
        self.forecaster, self._work_s, self._link_s, self._group_s = None, {}, 0.0, {}
        self._first, self._healthy = [], deque(maxlen=REMEMBERED)
        self._tracker, self._alarm_at = Tracker(), None
        self._counts, self._well, self._acquitted, self._unknown = {}, {}, {}, False
        self._recent, self._blamed_at, self._planner, self._waits = {}, {}, None, None
        self._costs_s = {name: getattr(self.settings, f"{name}_s") for name in ("rebalance", "topology", "restart")}
        self._model_s = 1.0

    @property
    def probes(self):
        """Links that are blamed and carry nothing now: their delays are to be measured by themselves."""
        seats, used = self.now.seats(), set()
        for a, b in self.slow.links:
            if a in seats and b in seats and self._carries(seats[a], seats[b]):
                used.add((a, b))
        return tuple(link for link in self.slow.links if link not in used)

    def update(self, seen):
        """The Decision that `seen` leads to, or None."""
        if not isfinite(seen.iteration_s) or seen.iteration_s <= 0:
            return None
        if self.forecaster is None:
            self._calibrate(seen)
            return None
        evidence = self._evidence(seen)
        self._count(evidence, seen)
        self._track(seen)
        if self._waits is not None:
            return None
        if self._relieved(seen):
            return self._rearrange(seen, "relief")
        suspects = tuple(name for name in evidence if self._is_suspect(name, seen))
        if suspects:
            self._unknown = False
            if not self.settings.validates:
                return self._blame(suspects, seen)
            self._waits = suspects, seen
            return self._decided(Decision("validate", seen.iteration, suspects, evidence=self._words(suspects)))
        if self.slow:
            return self._more(seen)
        return self._nobody(seen)

    def validated(self, measured):
        """What the validation of the suspects found; the Decision that it leads to, or None.

        Args:
            measured: name -> severity, as Seen's evidence has it; what is absent could not be tested, nor blamed.
        """
        suspects, seen = self._waits
        self._waits = None
        unit_s = sum(self._work_s.values()) / len(self._work_s)
        confirmed = []
        for name in suspects:
            severity = measured.get(name, 0.0)
            if severity >= (self.settings.slow_rank if name.startswith("rank") else self.settings.slow_link * unit_s):
                confirmed.append(name)
                if name.startswith("link"):
                    self._recent[name] = deque([severity], maxlen=5)
            else:
                self._acquitted[name] = seen.iteration + self.settings.acquitted
        return self._blame(tuple(confirmed), seen) if confirmed else None

    def took(self, strategy, seconds):
        """What carrying out a strategy cost: the next decision goes by it."""
        if strategy in self._costs_s:
            self._costs_s[strategy] = seconds

    def state(self):
        """All that is known now, as JSON: what is slow, what runs, what was decided."""
        return {
            "slow": [{"what": name, "severity": self._severity(name)} for name in _names(self.slow)],
            "arrangement": asdict(self.now),
            "incidents": self.incidents,
            "decisions": [decision.to_dict() for decision in self.decisions],
        }

    # -- what is healthy

    def _calibrate(self, seen):
        self._first.append(seen)
        self._tracker.update(seen.iteration_s)
        self._healthy.append(seen.iteration_s)
        if len(self._first) < self.settings.calibrate + 2:
            return
        seen, places = self._first[2:], len(self.home.ranks[0])
        seats = self.home.seats()
        for place in range(places):
            values = [
                one.compute_s[rank]
                for one in seen
                for rank in seats
                if seats[rank][1] == place and _known(one.compute_s, rank)
            ]
            groups = [self._group(one, place, self.home) for one in seen]
            known = [value for value in groups if value is not None]
            self._work_s[place] = median(values) if values else None
            self._group_s[place] = median(known) if known else 0.0
        if any(value is None for value in self._work_s.values()):
            self._first.pop(0)  # A rank reports nothing: who knows what is healthy? Wait.
            return
        delays = [low for one in seen for low, _ in one.links.values() if isfinite(low)]
        self._link_s = max(median(delays), 0.0) if delays else 0.0
        work_s = tuple(self._work_s[place] for place in range(places))
        self.forecaster = self._make_forecaster(work_s, max(self._group_s.values()))
        measured_s = median(one.iteration_s for one in seen)
        self._model_s = measured_s / self.forecaster.iteration_s(self.home, self.slow)
        self._first = []

    def _group(self, seen, place, arrangement):
        """Seconds of the all-reduce of a place's gradients from when the last rank came; None if that is not known."""
        waits = [seen.gradients_s.get(rank, (float("nan"),) * 2) for rank in arrangement.group(place)]
        took_s = max(ended for _, ended in waits) - max(began for began, _ in waits)
        return took_s if len(waits) > 1 and all(isfinite(time_s) for wait in waits for time_s in wait) else None

    # -- tracking

    def _track(self, seen):
        if self.slow:
            return
        event = self._tracker.update(seen.iteration_s)
        if event is not None and event.kind == "onset":
            self._alarm_at = seen.iteration
        elif event is not None and event.kind == "relief":
            self._alarm_at = None
        if self._alarm_at is not None and not self._tracker.slow and seen.iteration - self._alarm_at > 8:
            self._alarm_at = None  # Provisional, and never confirmed.
        if self._alarm_at is None and not self._counts:
            self._healthy.append(seen.iteration_s)

    # -- profiling

    def _evidence(self, seen):
        """Name -> (severity, is it slow enough for an onset) of all that is slower than in health."""
        found, seats, settings = {}, self.now.seats(), self.settings
        ratios = {
            rank: seen.compute_s[rank] / self._work_s[place]
            for rank, (_, place) in seats.items()
            if _known(seen.compute_s, rank)
        }
        # All slow alike: that is not a rank's fault.
        usual = max(1.0, sorted(ratios.values())[(len(ratios) - 1) // 2]) if len(ratios) > 1 else 1.0
        for rank, ratio in ratios.items():
            if ratio / usual > settings.well_rank:
                found[f"rank {rank}"] = ratio / usual, ratio / usual >= settings.slow_rank
        unit_s = sum(self._work_s.values()) / len(self._work_s)
        for (a, b), (low_s, high_s) in seen.links.items():
            extra_s = low_s - self._link_s
            if isfinite(high_s) and high_s - self._link_s < settings.well_link * unit_s:
                continue
            if extra_s > settings.well_link * unit_s or f"link {a}-{b}" in _names(self.slow):
                found[f"link {a}-{b}"] = extra_s, extra_s >= settings.slow_link * unit_s
        for place, base_s in self._group_s.items():
            group_s = self._group(seen, place, self.now)
            if group_s is None or group_s - base_s <= settings.slow_link * unit_s:
                continue
            for a, b in self._links_of(place):
                name, each_s = f"link {a}-{b}", (group_s - base_s) / 2
                found.setdefault(name, (self.slow.links.get((a, b), each_s), True))
        return found

    def _links_of(self, place):
        """The links in the group of a place; where nothing is validated, only of two: more cannot be told apart."""
        group = sorted(self.now.group(place))
        if len(group) > 2 and not self.settings.validates:
            return []
        return [(a, b) for i, a in enumerate(group) for b in group[i + 1 :]]

    def _count(self, evidence, seen):
        blamed = _names(self.slow)
        self._counts = {name: self._counts.get(name, 0) + 1 for name, (_, slow) in evidence.items() if slow}
        for name, (severity, slow) in evidence.items():
            if slow:
                self._recent.setdefault(name, deque(maxlen=5)).append(severity)
        for name in list(self._recent):
            if name not in self._counts and name not in blamed:
                del self._recent[name]
        visible = {f"rank {rank}" for rank in seen.compute_s if _known(seen.compute_s, rank)}
        visible |= {f"link {a}-{b}" for a, b in seen.links} | self._group_links(seen)
        self._well = {
            name: self._well.get(name, 0) + (name in visible) if name not in evidence else 0 for name in blamed
        }

    def _group_links(self, seen):
        """The links of groups whose gradients were timed."""
        found = set()
        for place in self._group_s:
            if self._group(seen, place, self.now) is not None:
                found |= {f"link {a}-{b}" for a, b in self._links_of(place)}
        return found

    def _is_suspect(self, name, seen):
        settings = self.settings
        if seen.iteration < self._acquitted.get(name, -1):
            return False
        count = self._counts.get(name, 0)
        if name in _names(self.slow):
            # As slow as was planned for? Of links only a validation knows.
            if name.startswith("link"):
                return False
            blamed, now = self._severity(name), median(self._recent.get(name, [0.0]))
            return self._counts.get(name, 0) >= 5 and now > 0 and not 0.7 < now / blamed < 1.4
        known = self._alarm_at is not None or bool(self.slow)
        return count >= (settings.onset if known else settings.persistent)

    # -- blame, and what follows

    def _blame(self, names, seen):
        ranks, links = dict(self.slow.ranks), dict(self.slow.links)
        for name in names:
            severity = median(self._recent[name])
            if name not in _names(self.slow):
                # Nobody is blamed for one and the same link under several names.
                self.incidents.append(
                    {
                        "what": name,
                        "suspected": seen.iteration - self._counts.get(name, 1) + 1,
                        "named": seen.iteration,
                        "ended": None,
                        "severity": severity,
                    }
                )
            kind, which = name.split()
            if kind == "rank":
                ranks[int(which)] = severity
            else:
                links[tuple(map(int, which.split("-")))] = severity
        self.slow = Slowness(ranks, links)
        return self._rearrange(seen, self._words(names))

    def _relieved(self, seen):
        """Whether something that was blamed is well again."""
        over = [name for name, count in self._well.items() if count >= self.settings.relief]
        for name in over:
            self._well.pop(name)
            self._recent.pop(name, None)
            next(each for each in self.incidents[::-1] if each["what"] == name)["ended"] = seen.iteration
        if not over:
            return False
        keep = [name for name in _names(self.slow) if name not in over]
        self.slow = Slowness(
            {rank: value for rank, value in self.slow.ranks.items() if f"rank {rank}" in keep},
            {(a, b): value for (a, b), value in self.slow.links.items() if f"link {a}-{b}" in keep},
        )
        return True

    def _rearrange(self, seen, evidence):
        """Something is blamed or relieved: as high a strategy as before, for what is slow now."""
        applied = self._planner.applied if self._planner else []
        if not self.slow:
            self._planner = None
            self._restart_tracker()
            if self.now == self.home:
                return None
            before_s, self.now = seen.iteration_s, self.home
            predicted_s = self._model_s * self.forecaster.iteration_s(self.home, self.slow)
            return self._decided(
                Decision("revert", seen.iteration, (), None, self.home, before_s, predicted_s, evidence)
            )
        lost_s = self._planner.lost_s if self._planner else 0.0
        strategies = paper_strategies(**{f"{name}_s": cost_s for name, cost_s in self._costs_s.items()})
        self._planner = MitigationPlanner(strategies, self.slow.cause)
        self._planner.lost_s = lost_s
        for name in applied[::-1]:
            if name in ("rebalance", "topology"):
                self._planner.lost_s = max(lost_s, self._costs_s[name])
                break
        return self._more(seen, evidence)

    def _more(self, seen, evidence=""):
        """One more slow iteration: the strategy whose time has come."""
        healthy_s = self._model_s * self.forecaster.iteration_s(self.home, Slowness({}, {}))
        choices = {}
        now_s = self._model_s * self.forecaster.iteration_s(self.now, self.slow)
        if self._planner.lost_s + max(now_s - healthy_s, 0.0) >= self._planner.next_cost_s:
            for name in self._costs_s:
                made = arrange(name, self.forecaster, self.home, self._base(name), self.slow)
                choices[name] = made
        forecast_s = {
            name: self._model_s * self.forecaster.iteration_s(made, self.slow) if made else float("inf")
            for name, made in choices.items()
        }
        while (strategy := self._planner.observe(now_s, healthy_s, forecast_s)) is not None:
            made = choices.get(strategy.name)
            if made is None or forecast_s[strategy.name] > (1 - self.settings.gain) * now_s or made == self.now:
                healthy_s = now_s  # Counted once only.
                continue
            self.now = made
            return self._decided(
                Decision(
                    "mitigate", seen.iteration, _names(self.slow), strategy.name, made,
                    seen.iteration_s, forecast_s[strategy.name], evidence,
                )
            )  # fmt: skip
        return None

    def _base(self, strategy):
        """S2 leaves ranks where they are, the others begin from home."""
        return self.now if strategy == "rebalance" and len(self.now.ranks) == len(self.home.ranks) else self.home

    def _nobody(self, seen):
        """The job is slow for certain, and nobody is to blame: say so, once."""
        if not self._tracker.slow:
            self._unknown = False
        elif not self._unknown and self._alarm_at is not None and seen.iteration - self._alarm_at >= 5:
            self._unknown = True
            words = "iterations are slow, but no rank, link or all-reduce is slower than it was, or all are alike"
            return self._decided(Decision("report", seen.iteration, before_s=seen.iteration_s, evidence=words))
        return None

    def _restart_tracker(self):
        self._tracker, self._alarm_at = Tracker(), None
        for time_s in self._healthy:
            self._tracker.update(time_s)

    def _decided(self, decision):
        self.decisions.append(decision)
        return decision

    def _severity(self, name):
        kind, which = name.split()
        return self.slow.ranks[int(which)] if kind == "rank" else self.slow.links[tuple(map(int, which.split("-")))]

    def _words(self, names):
        told = []
        for name in names:
            severity = median(self._recent[name])
            told.append(
                f"{name} computes {severity:.2f} times as long as its peers"
                if name.startswith("rank")
                else f"{name} takes {severity * 1e3:.3g} ms more"
            )
        return "; ".join(told)

    def _carries(self, one, other):
        """Whether the ranks of two seats exchange messages."""
        (copy, place), (other_copy, other_place) = one, other
        return (copy == other_copy and abs(place - other_place) == 1) or (place == other_place)


def _known(values, rank):
    return rank in values and isfinite(values[rank])


def _names(slow):
    return tuple([f"rank {rank}" for rank in slow.ranks] + [f"link {a}-{b}" for a, b in slow.links])
