"""What comes of what iterations showed: when a change is worth it, which links go by delegates, which plan runs.

Pure but for the clock: the coordinator's Adapter hands in Profiles and sends on what comes out.
Paper: Wu et al. 2025 (ADAPTRA), section 4.2; differs as adapter.py says.
"""

import dataclasses
import math
import time
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from lanterne.errors import InputError, one_of
from lanterne.pipeline.adapt.estimate import estimate, planned_delay, with_links_of, within_memory
from lanterne.pipeline.adapt.findings import (
    ONSET,
    RELIEF,
    REMEMBERED,
    Findings,
    FindingWatch,
    IterationNoise,
    findings,
    pair_tolerances,
)
from lanterne.pipeline.adapt.link_delay import EXACT_S, Pair
from lanterne.pipeline.adapt.profile import Profile
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.best import best
from lanterne.pipeline.planners.schedulers import SCHEDULERS
from lanterne.pipeline.planners.schedulers import plan as make_plan
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check
from lanterne.pipeline.simulate.simulate import simulate

# Delays that differ by less than this share of the time of one F and one B, or than what a look is off, are noise.
FLOOR_SHARE = 0.1
# A link has healed, and goes back to the usual plane to show it there, if no more than this share of its worst delay is
# left: the rest may be the delegates' own.
HEALED_SHARE = 0.25


# What a change must be predicted to save of an iteration: another plan, and a link taken off the usual plane.
MIN_GAIN, MIN_DIVERT_GAIN = 0.02, 0.05
# Iterations to measure the undisturbed problem from, behind the first, where none is given.
CALIBRATED = 6


@dataclasses.dataclass(frozen=True)
class AdaptSettings:
    """Settings of an Adapter.

    Attributes:
        scheduler: makes the new plans; best starts from the running one.
        divert: whether slow links are taken off the usual data plane.
    """

    scheduler: str = "best"
    divert: bool = True

    def __post_init__(self) -> None:
        if self.scheduler not in SCHEDULERS:
            raise InputError(f"scheduler: {one_of(self.scheduler, SCHEDULERS)}")


class Change(NamedTuple):
    """A verdict that changed something; seconds.

    Attributes:
        noticed: the iteration whose reports decided.
        running_from: the first iteration under it.
        findings: name of what was found -> +1 (slower) or -1; {"calibrated": 1}: what is usual.
        delays_s: "source-destination" -> latency + occupancy of a message that is planned for, where not as usual.
        slow_links: pairs of ranks whose messages are off the usual plane.
        scheduler: that of the new plan; None: the plan stays.
        predicted_before_s, predicted_s: of an iteration under the measured conditions, as it was and now.
        planning_s: what deciding took.
        copy: of the pipeline.
    """

    noticed: int
    running_from: int
    findings: dict[str, int]
    delays_s: dict[str, float]
    slow_links: list[list[int]]
    scheduler: str | None
    predicted_before_s: float
    predicted_s: float
    planning_s: float
    copy: int = 0


class Held(NamedTuple):
    """What was found and is not acted on yet, as iterations vary more than it would save; seconds.

    Attributes:
        noticed, findings, delays_s, copy: as Change has them.
        gain_s: what a change is predicted to save of an iteration.
        varies_s: by how much the time of an iteration varies.
        needed: it is acted on once so many iterations in a row have shown it.
    """

    noticed: int
    findings: dict[str, int]
    delays_s: dict[str, float]
    gain_s: float
    varies_s: float
    needed: int
    copy: int = 0


class Decider:
    """What the coordinator decides; it sends nothing.

    Attributes:
        running, initial: the CheckedPlan that runs, and the one for undisturbed links.
        base, assumed: the undisturbed Problem, and what `running` is for; there once it is calibrated.
        slow_links: pairs of ranks whose messages are off the usual plane.
        predicted_s: of an iteration.
    """

    base: Problem
    assumed: Problem
    _noise: IterationNoise

    def __init__(
        self,
        checked: CheckedPlan,
        problem: Problem | None,
        settings: AdaptSettings,
        in_order: int | None,
        memory_nbytes: float | None = None,
    ) -> None:
        self.running: CheckedPlan = checked
        self.initial: CheckedPlan = checked
        self.settings = settings
        self.in_order = in_order
        self.watch: FindingWatch = FindingWatch()
        self.slow_links: list[list[int]] = []
        self.predicted_s: float | None = None
        self._memory_nbytes = memory_nbytes
        self._since = 0
        self._recent: list[Profile] = []
        self._worst_s: dict[Pair, float] = {}
        self._is_calibrated = problem is not None
        if problem is not None:
            self.base = self.assumed = problem
            self._noise = IterationNoise(_floor_s(problem))

    def occupancy_s(self, source: int, destination: int) -> float:
        """Of a message of this pair, as the running plan assumes it."""
        return planned_delay(self.assumed, source, destination)[1] if self._is_calibrated else 0.0

    def after(self, profile: Profile, next_iteration: int) -> dict[str, Any] | None:
        """The verdict, for JSON, on `profile`, to hold from `next_iteration` on; None if nothing changes."""
        if profile.iteration < self._since:
            return None  # Of before the last change took effect.
        began_s = time.monotonic()
        self._recent.append(profile)
        if not self._is_calibrated:
            return self._change(profile.iteration, next_iteration, None, began_s) if self._calibrate() else None
        while len(self._recent) > max(ONSET, RELIEF):
            # What is not confirmed by now was noise.
            self._noise.add(self._recent.pop(0))
        seen = findings(profile, self.base, self.assumed, self._tolerances(), self._noise)
        for part in _apart(self.watch.update(profile.iteration, seen)):
            verdict = self._change(profile.iteration, next_iteration, part, began_s)
            if verdict or not self._recent:
                return verdict
        return None

    def _calibrate(self) -> bool:
        """Take the undisturbed problem from the first iterations; True once it is known."""
        if len(self._recent) <= CALIBRATED:
            return False
        profiles, nominal = self._recent[1:], self.initial.problem
        timed = estimate(profiles, nominal, nominal, lambda pair: float("inf"))
        self._noise = IterationNoise(_floor_s(timed))
        for profile in profiles:
            self._noise.add(profile)
        self.base = estimate(profiles, timed, timed, self._noise.delay_s)
        if self._memory_nbytes is not None:
            self.base = within_memory(self.base, profiles, self.initial, self._memory_nbytes)
        self._recent = profiles
        self.assumed = self.base
        self._is_calibrated = True
        return True

    def _tolerances(self) -> dict[Pair, float]:
        """What the plan absorbs, per pair; on a plane whose sends block, not more than the shortest action."""
        found = pair_tolerances(self.running, self.assumed)
        if self.in_order is None or not self.settings.divert:
            return found
        shortest_s = min(*self.assumed.forward, *self.assumed.backward_input)
        slow = self.slow_links
        return {pair: most_s if list(pair) in slow else min(most_s, shortest_s) for pair, most_s in found.items()}

    def _change(
        self, noticed: int, next_iteration: int, found: Findings | None, began_s: float
    ) -> dict[str, Any] | None:
        """The verdict on what was `found`; None: the undisturbed problem was, which is planned for anew."""
        calibrated = found is None
        # Nothing that is not confirmed comes along. Iterations before those that show it are of another state: the
        # quickest of their messages would pass for that of a slow link.
        shown = len(self._recent) if found is None else self.watch.count(found)
        problem = estimate(self._recent[-shown:], self.base, self.assumed, self._noise.delay_s, found)
        slow = self._slow(_unusual(problem, self.base))
        healed = [pair for pair in self.slow_links if tuple(pair) not in slow]
        if healed:
            problem = with_links_of(self.base, problem, healed)
        goes_home = problem == self.base and not calibrated
        plan = self.initial.plan if goes_home else _plan(problem, self.settings, self.running.plan)
        before_s = self._predicted(self.running.plan, problem, slow, self.slow_links)
        links, swaps, predicted_s = self._choose(plan, problem, slow)
        gain_s, still = before_s - predicted_s, [pair for pair in links if pair in self.slow_links]
        is_new = links != still or (swaps and plan is not self.initial.plan)
        if is_new and (needed := self._needed(gain_s)) > shown:
            if needed <= REMEMBERED and found is not None and +1 in found.values():
                return self._hold_back(noticed, found, problem, gain_s, int(needed))
            links, swaps = still, False
            predicted_s = self._predicted(self.running.plan, problem, slow, links)
        self.assumed, self.predicted_s = problem, predicted_s
        self.watch.restart(found or ())
        self._recent = []
        for name in found or ():
            self._noise.forget(name)
        if swaps:
            self.running = self.initial if plan is self.initial.plan else check(plan, problem)
        if calibrated:
            self.initial = self.running
        if not swaps and links == self.slow_links and not calibrated:
            return None
        self.slow_links, self._since = links, next_iteration
        delays_s = _named(_unusual(problem, self.base))
        scheduler = self.running.plan.scheduler if swaps else None
        planning_s = time.monotonic() - began_s
        told = {"calibrated": 1} if found is None else _told(found)
        change = Change(noticed, next_iteration, told, delays_s, links, scheduler, before_s, predicted_s, planning_s)
        made = self.running.plan.to_dict() if swaps else None
        base = self.base.to_dict() if calibrated else None
        return {"change": change._asdict(), "plan": made, "problem": self.running.problem.to_dict(), "base": base}

    def _choose(self, plan: Plan, problem: Problem, slow: Collection[Pair]) -> tuple[list[list[int]], bool, float]:
        """(links off the usual plane, whether `plan` is worth running, seconds of an iteration predicted then)."""
        settings, running = self.settings, self.running.plan
        still = [pair for pair in self.slow_links if tuple(pair) in slow]
        links = [list(pair) for pair in slow] if settings.divert else []
        times_s = self._times_s(plan, problem, slow, links)
        for pair in links.copy():
            # Each link that is not off it yet has to be worth it.
            without = [other for other in links if other != pair]
            without_s = self._times_s(plan, problem, slow, without)
            if pair not in still and min(times_s) >= min(without_s) * (1 - MIN_DIVERT_GAIN):
                links, times_s = without, without_s
        kept_s, after_s = times_s
        goes_back = plan is self.initial.plan and after_s <= kept_s * (1 + MIN_GAIN)
        swaps = plan is not running and (goes_back or after_s < kept_s * (1 - MIN_GAIN))
        return links, swaps, after_s if swaps else kept_s

    def _times_s(
        self, plan: Plan, problem: Problem, slow: Collection[Pair], links: Collection[list[int]]
    ) -> tuple[float, float]:
        """Seconds predicted of an iteration with these links off the usual plane, of the running plan and of `plan`."""
        running_s = self._predicted(self.running.plan, problem, slow, links)
        return running_s, self._predicted(plan, problem, slow, links)

    def _needed(self, gain_s: float) -> float:
        """Iterations in a row that must show why, for what a change saves to be no noise.

        ONSET of them if one varies by no more than that; noise falls with the square root of their number.
        """
        return math.ceil(ONSET * (self._noise.iteration_s() / gain_s) ** 2) if gain_s > 0 else math.inf

    def _hold_back(
        self, noticed: int, found: Findings, problem: Problem, gain_s: float, needed: int
    ) -> dict[str, Any] | None:
        """Wait for more iterations that show `found`; tells so, for JSON, when it does so first, else None."""
        if not self.watch.defer(found.keys(), needed):
            return None
        delays_s = _named(_unusual(problem, self.base))
        return {"held": Held(noticed, _told(found), delays_s, gain_s, self._noise.iteration_s(), needed)._asdict()}

    def _slow(self, delays_s: Mapping[Pair, float]) -> list[Pair]:
        """The pairs whose delays are worth a path of their own: half the shortest action, and more than was healed."""
        half_s = min(*self.base.forward, *self.base.backward_input) / 2
        excess_s: dict[Pair, float] = {}
        for pair, delay_s in delays_s.items():
            key = min(pair), max(pair)
            excess_s[key] = max(excess_s.get(key, 0.0), delay_s - sum(planned_delay(self.base, *pair)))
        slow: list[Pair] = []
        for pair, value in excess_s.items():
            worst_s = self._worst_s.get(pair, 0.0) if list(pair) in self.slow_links else 0.0
            if value > max(half_s, HEALED_SHARE * worst_s):
                slow.append(pair)
                self._worst_s[pair] = max(value, worst_s)
        return sorted(slow)

    def _predicted(
        self, plan: Plan, problem: Problem, slow: Collection[Pair], delegated: Collection[list[int]]
    ) -> float:
        """Seconds of an iteration; slow links that are on a plane whose sends block do so in the simulator."""
        predicted_s = simulate(plan, problem).makespan
        if self.in_order is None or all(list(pair) in delegated for pair in slow):
            return predicted_s
        blocking = with_links_of(self.base, problem, delegated)
        blocked_s = simulate(plan, blocking, in_order=True, queue=self.in_order).makespan
        return predicted_s + blocked_s - simulate(plan, blocking).makespan


def _plan(problem: Problem, settings: AdaptSettings, running: Plan) -> Plan:
    """The scheduler's plan for `problem`; of "best", searched from the `running` one on."""
    if settings.scheduler == "best":
        return best(problem, placement=running.placement, start=running)
    return make_plan(problem, settings.scheduler)


def _floor_s(problem: Problem) -> float:
    pairs = zip(problem.forward, problem.backward_input, strict=True)
    return max(EXACT_S, FLOOR_SHARE * min(forward + backward for forward, backward in pairs))


def _apart(found: Findings) -> list[Findings]:
    """The findings that are judged together, so that what going back saves is no reason to leave another link.

    Slow links come first, as to plan for them gains most; then what is well again; ranks that are slower.
    """
    parts: tuple[Findings, Findings, Findings] = ({}, {}, {})
    for name, sign in found.items():
        parts[1 if sign < 0 else 2 if name.is_rank else 0][name] = sign
    return [part for part in parts if part]


def _told(found: Findings) -> dict[str, int]:
    """Findings by name."""
    return {str(suspect): sign for suspect, sign in found.items()}


def _named(delays: Mapping[Pair, float]) -> dict[str, float]:
    """The delays, by pair of ranks, with keys for JSON."""
    return {f"{one}-{other}": delay_s for (one, other), delay_s in delays.items()}


def _unusual(problem: Problem, base: Problem) -> dict[Pair, float]:
    """(source, destination) -> the delay of a message, of pairs where that is not the one of `base`."""
    ranks = range(base.stages)
    delays: dict[Pair, float] = {}
    for pair in ((one, other) for one in ranks for other in ranks if one != other):
        delay = planned_delay(problem, *pair)
        if delay != planned_delay(base, *pair):
            delays[pair] = sum(delay)
    return delays
