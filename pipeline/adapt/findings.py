"""When the plan that runs no longer suits what is measured: a link is slower than it tolerates, or has healed.

What counts is the delay of messages, not the time of iterations: a plan tolerates a delay up to equation 1 of ADAPTRA,
and one message that comes later says so at once, whatever else the iteration was busy with. So that noise does not make
plans flap, a finding must recur in several iterations in a row; relief in more than onset, and in more and more where
findings took turns before.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TypeAlias

import numpy as np

from lanterne.pipeline.adapt.estimate import pair_delays, planned_delay
from lanterne.pipeline.adapt.link_delay import Pair
from lanterne.pipeline.adapt.profile import Profile
from lanterne.pipeline.adapt.suspect import Suspect
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.adaptra import tolerances, warmups_of
from lanterne.pipeline.simulate.check_plan import CheckedPlan

# +1: slower than planned for, -1: faster.
Findings: TypeAlias = dict[Suspect, int]

# A delay or a duration has changed if it differs by this share of what is assumed, a delay also by the floor.
CHANGED = 0.25
# Iterations in a row that show an onset or a relief. The latter doubles, to that many at most, with each onset within
# CALM iterations of the last relief.
ONSET, RELIEF, MOST_RELIEF, CALM = 2, 3, 48, 60
# Of IterationNoise: iterations that it goes back, and that it needs; Gaussian noise would exceed 4 sigma this way.
REMEMBERED, LEARNED, SPREAD, STEPS = 40, 4, 3.0, 2.5


def pair_tolerances(checked: CheckedPlan, problem: Problem) -> dict[Pair, float]:
    """(rank, rank) -> the delay, mean of both ways, that a plan absorbs, in the problem's unit.

    Equation 1 is about one stage per rank; with other placements nothing is taken to be absorbed.
    """
    if checked.plan.placement.name != "unidirectional":
        return {}
    found = tolerances(problem, warmups_of(checked.plan))
    return {(link, link + 1): max(tolerance, 0.0) for link, tolerance in enumerate(found)}


def findings(
    profile: Profile, base: Problem, assumed: Problem, tolerance: Mapping[Pair, float], noise: "IterationNoise"
) -> Findings:
    """What one iteration shows that differs from what the running plan is for.

    Args:
        base, assumed: the Problem, in seconds, when nothing is slow, and that which the plan is for.
        tolerance: of pair_tolerances; a smaller one where sends block computing.
    """
    found: Findings = {}
    for one, other in sorted({(min(pair), max(pair)) for pair in profile.links}):
        ways, floor_s = pair_delays(profile, one, other), noise.delay_s((one, other))
        planned = [planned_delay(assumed, *pair) for pair in ((one, other), (other, one))]
        assumed_s = sum(map(sum, planned)) / 2
        healed_s = sum(sum(planned_delay(base, *pair)) for pair in ((one, other), (other, one))) / 2 + floor_s / 2
        low_s = sum(max(way.low_s, 0.0) for way in ways) / 2
        high_s = sum(way.high_s for way in ways) / 2
        queues_s = max(way.occupancy_s - occupancy_s for way, (_, occupancy_s) in zip(ways, planned, strict=True))
        most_s = max(tolerance.get((one, other), 0.0), assumed_s * (1 + CHANGED)) + floor_s
        if low_s > most_s or queues_s > max(floor_s, CHANGED * assumed_s):
            found[Suspect.link(one, other)] = +1
        elif high_s < max(assumed_s * (1 - CHANGED) - floor_s, healed_s if assumed_s > healed_s else 0.0):
            found[Suspect.link(one, other)] = -1
    durations = zip(assumed.forward, assumed.backward_input, strict=True)
    for rank, (forward_s, backward_s) in enumerate(durations):
        ratio = busy_s(profile, rank) / (forward_s + backward_s)
        changed = 1 + max(CHANGED, noise.duration(rank))
        if ratio > changed:
            found[Suspect.rank(rank)] = +1
        elif ratio < 1 / changed:
            found[Suspect.rank(rank)] = -1
    return found


def busy_s(profile: Profile, rank: int) -> float:
    """Seconds of one F and one B of a rank; nan where they are not known apart."""
    return float(profile.durations_s["F"][rank] + profile.durations_s["B"][rank])


class IterationNoise:
    """How much delays, durations and iterations vary from iteration to iteration while nothing happens.

    Durations: as the middle half of the last iterations varies, times SPREAD; a step shows there only when it is no
    news any more. Delays: as most neighbouring iterations differ, times STEPS; a step is one of those, also where it is
    no finding, because the plan absorbs it. Iterations: as half of the neighbouring ones differ.

    Args:
        floor_s: of delays, at least.
    """

    def __init__(self, floor_s: float) -> None:
        self.floor_s = floor_s
        self._seen: dict[Pair | int | str, deque[float]] = {}

    def add(self, profile: Profile) -> None:
        """Learn from an iteration."""
        for pair in {(min(pair), max(pair)) for pair in profile.links}:
            ways = pair_delays(profile, *pair)
            # Bounds vary with where this rank happened to look, and say nothing of the link.
            if all(way.is_seen for way in ways):
                self._add(pair, sum(max(way.low_s, 0.0) for way in ways) / 2)
        for rank in range(len(profile.began_s)):
            if (seconds := busy_s(profile, rank)) > 0:
                self._add(rank, float(np.log(seconds)))
        self._add("iteration", profile.iteration_s)

    def forget(self, name: Suspect) -> None:
        """What `findings` calls `name` has changed for good: its noise is to be learned again."""
        self._seen.pop(name.ends[0] if name.is_rank else name.pair(), None)

    def delay_s(self, pair: Pair) -> float:
        """Delays of a pair of ranks that differ by less are the same."""
        seen = self._seen.get((min(pair), max(pair)), ())
        if len(seen) < LEARNED:
            return self.floor_s
        return max(self.floor_s, STEPS * _step(seen))

    def duration(self, rank: int) -> float:
        """The share by which durations of a rank vary."""
        seen = self._seen.get(rank, ())
        if len(seen) < LEARNED:
            return 0.0
        low, high = np.quantile(seen, (0.25, 0.75))
        return SPREAD * float(high - low)

    def iteration_s(self) -> float:
        """By how much the time of an iteration varies."""
        seen = self._seen.get("iteration", ())
        return _step(seen, 0.5) if len(seen) >= LEARNED else 0.0

    def _add(self, key: Pair | int | str, value: float) -> None:
        self._seen.setdefault(key, deque(maxlen=REMEMBERED)).append(value)


def _step(values: Sequence[float], share: float = 0.75) -> float:
    """By how much that share of neighbouring values differs, at most; one step among them never counts."""
    return float(np.quantile(np.abs(np.diff(values)), share, method="lower"))


class FindingWatch:
    """Confirms findings over iterations: ONSET or RELIEF of them in a row."""

    def __init__(self) -> None:
        # By name: the sign and how many iterations in a row had it; how many a relief takes; when the last relief was;
        # how many a finding that was put off takes.
        self._count: dict[Suspect, tuple[int, int]] = {}
        self._needed: dict[Suspect, int] = {}
        self._relieved: dict[Suspect, int] = {}
        self._deferred: dict[Suspect, int] = {}

    def update(self, iteration: int, found: Mapping[Suspect, int]) -> Findings:
        """The findings, out of `found` of this iteration, that are confirmed by it: name -> +1 or -1."""
        self._count = {
            name: (sign, self._count[name][1] + 1 if self._count.get(name, (0, 0))[0] == sign else 1)
            for name, sign in found.items()
        }
        self._deferred = {name: least for name, least in self._deferred.items() if self.count([name]) > 1}
        confirmed = {name: sign for name, (sign, count) in self._count.items() if count >= self._enough(name, sign)}
        for name, sign in confirmed.items():
            if name not in self._deferred:
                self._note(iteration, name, sign)
        return confirmed

    def count(self, names: Iterable[Suspect]) -> int:
        """Iterations in a row, up to the last, that showed one of `names`, the one that most did."""
        return max(self._count.get(name, (0, 0))[1] for name in names)

    def defer(self, names: Set[Suspect], iterations: int) -> bool:
        """Confirm `names` again once so many iterations in a row have shown them. Returns whether any was not yet."""
        is_new = not names <= self._deferred.keys()
        self._deferred |= dict.fromkeys(names, iterations)
        return is_new

    def _enough(self, name: Suspect, sign: int) -> int:
        """A slow link comes first: to plan for it gains most, and its delay is the surest that is measured."""
        usual = ONSET if sign > 0 and not name.is_rank else self._needed.get(name, RELIEF)
        return self._deferred.get(name, usual)

    def _note(self, iteration: int, name: Suspect, sign: int) -> None:
        if sign < 0:
            self._relieved[name] = iteration
        elif iteration - self._relieved.get(name, -np.inf) < CALM:
            self._needed[name] = min(2 * self._needed.get(name, RELIEF), MOST_RELIEF)
        else:
            self._needed.pop(name, None)

    def restart(self, names: Iterable[Suspect]) -> None:
        """What is assumed of `names` has changed: what was counted of them is about the old assumptions."""
        for name in names:
            self._count.pop(name, None)
            self._deferred.pop(name, None)
