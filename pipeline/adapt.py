"""Keeps a running pipeline on a plan that suits its links: measures, watches, plans again, swaps between iterations.

    delegates = lambda pair: make_plane("delegate", comm, pairs=[pair])
    plane = ObservedPlane(comm.rank, make_plane("inline", comm), delegates)
    with Adapter(comm, checked, plane, problem) as adapter:
        for inputs, targets in batches:
            measured = adapter.execute(stages, inputs, targets)
            for stage in stages.values():
                stage.step()

After each iteration every rank reports what it measured to the coordinator and waits for its verdict: go on, or a new
plan, and which links go by delegates. All take it at once, so each iteration runs under one plan.

Paper: Wu et al. 2025 (ADAPTRA), sections 4.2 and 6. Differs: triggered by measured delays against equation 1, not by a
detector of slow iterations; a new plan must be predicted to gain; a link that heals gives the first plan back.
"""

import dataclasses
import json
import time
from typing import NamedTuple

from ..errors import InputError
from .verdicts import Agreement
from .best import best
from .check import check
from .estimate import estimate, planned_delay
from .execute import execute
from .plan import Plan
from .problem import Problem
from .profile import Profiler, make_profile, report_length
from .schedulers import SCHEDULERS, plan as make_plan
from .simulate import simulate
from .watch import ONSET, RELIEF, Watch, findings, pair_tolerances

# Delays that differ by less than this share of the time of one F and one B, or than this many seconds, are noise.
FLOOR_SHARE, FLOOR_S = 0.1, 300e-6


@dataclasses.dataclass(frozen=True)
class AdaptSettings:
    """How an Adapter decides.

    Attributes:
        scheduler: who makes the new plans; best starts from the running one.
        effort: of best; None for its own for re-planning.
        min_gain: a plan is swapped if it is predicted to save this share of the iteration.
        onset, relief: iterations in a row that must show that a link is slow, or well again.
        calibrate: iterations to measure the undisturbed problem from, behind the first, where none is given.
        divert: whether slow links are taken off the usual data plane.
    """

    scheduler: str = "best"
    effort: float | None = None
    min_gain: float = 0.02
    onset: int = ONSET
    relief: int = RELIEF
    calibrate: int = 3
    divert: bool = True

    def __post_init__(self):
        if self.scheduler not in SCHEDULERS:
            raise InputError(f"scheduler: got {self.scheduler!r}, expected one of {', '.join(SCHEDULERS)}")
        for key in ("onset", "relief", "calibrate"):
            if getattr(self, key) < 1:
                raise InputError(f"{key}: got {getattr(self, key)}, expected at least 1 iteration")


class Change(NamedTuple):
    """A verdict that changed something; seconds.

    Attributes:
        noticed: the iteration whose reports decided.
        running_from: the first iteration under it.
        findings: what was found, name -> +1 (slower) or -1.
        delays_s: "source-destination" -> latency + occupancy of a message that is planned for, where not as usual.
        slow_links: pairs of ranks whose messages are off the usual plane.
        scheduler: that of the new plan; None: the plan stays.
        predicted_before_s, predicted_s: of an iteration under the measured conditions, as it was and now.
        planning_s: what deciding took.
    """

    noticed: int
    running_from: int
    findings: dict
    delays_s: dict
    slow_links: list
    scheduler: str | None
    predicted_before_s: float
    predicted_s: float
    planning_s: float


class Adapter:
    """Runs iterations and adapts; every rank of a pipeline makes one.

    Args:
        comm: the Communicator of the pipeline's ranks.
        checked: the CheckedPlan to begin with.
        plane: the ObservedPlane; closed by its owner.
        problem: the undisturbed Problem in seconds; None to measure it in the first iterations.
        settings: AdaptSettings.
        durations_s, held_nbytes: of the Profiler.

    Attributes:
        checked: the CheckedPlan of the next iteration.
        iteration: its number, from 0.
        changes: the Changes so far, on every rank.
        profiles: on the coordinator, the Profile of each iteration of which all reports have come.
        predicted_s: what an iteration is predicted to take under the running plan.
    """

    def __init__(self, comm, checked, plane, problem=None, settings=None, durations_s=None, held_nbytes=None):
        self.comm, self.checked, self.plane = comm, checked, plane
        self.settings = settings or AdaptSettings()
        self.iteration, self.changes, self.profiles = 0, [], []
        self.profiler = Profiler(plane, durations_s, held_nbytes)
        first = checked.plan.placement.stage_to_rank[0]
        self.agreement = Agreement(comm.split(0, comm.rank), first)
        self._lengths, self._plans = None, {}
        if self.agreement.is_root:
            self._decider = Decider(checked, problem, self.settings, plane.in_order)

    def execute(self, stages, inputs=None, targets=None, *, timeout_s=None, after=None):
        """One iteration, as pipeline.execute.execute, and what comes of it for the next one."""
        self.profiler.begin()

        def ended(action):
            self.profiler.after(action)
            if after is not None:
                after(action)

        measured = execute(
            self.checked, stages, self.comm, inputs, targets, plane=self.plane, timeout_s=timeout_s, after=ended
        )
        self._agree(measured)
        return measured

    def close(self):
        """Release what the agreement holds; not the plane."""
        self.agreement.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def _agree(self, measured):
        checked = self.checked
        if self._lengths is None:
            self._lengths = [report_length(checked, rank) for rank in range(self.comm.world_size)]
        self.agreement.report(self.profiler.report(checked, measured, self.iteration), self._lengths)
        payload = self._decide() if self.agreement.is_root else None
        payload = self.agreement.verdict(payload)
        self.iteration += 1
        if payload:
            self._take(json.loads(payload))

    def _decide(self):
        self._plans[self.iteration] = self.checked
        verdict = None
        for reports in self.agreement.collect():
            iteration = int(reports[0][0])
            self.profiles.append(make_profile(self._plans.pop(iteration), reports))
            verdict = self._decider.after(self.profiles[-1], self.iteration + 1) or verdict
        return json.dumps(verdict).encode() if verdict else b""

    def _take(self, verdict):
        self.changes.append(Change(**verdict["change"]))
        if verdict["plan"]:
            self.checked = check(Plan.from_dict(verdict["plan"]), Problem.from_dict(verdict["problem"]))
            self._lengths = None
        self.agreement.comm.barrier()  # Nobody is in the iteration before any more: what is not needed can be closed.
        self.plane.divert(verdict["change"]["slow_links"])


class Decider:
    """What the coordinator decides; it sends nothing."""

    def __init__(self, checked, problem, settings, in_order):
        self.running, self.initial, self.settings, self.in_order = checked, checked, settings, in_order
        self.watch = Watch(settings.onset, settings.relief)
        self.base = self.assumed = problem
        self.slow_links, self.predicted_s = [], None
        self._since, self._recent = 0, []
        if problem is not None:
            self._warm_up(problem)

    @property
    def floor_s(self):
        """Delays that differ by less are the same."""
        return _floor_s(self.base)

    def after(self, profile, next_iteration):
        """The verdict, for JSON, on `profile`, to hold from `next_iteration` on; None if nothing changes."""
        if profile.iteration < self._since:
            return None  # Of before the last change took effect.
        began_s = time.monotonic()
        self._recent.append(profile)
        if self.base is None:
            found = self._calibrate()
        else:
            del self._recent[: -max(self.settings.onset, self.settings.relief)]
            seen = findings(profile, self.base, self.assumed, self._tolerances(), self.floor_s)
            found = self.watch.update(profile.iteration, seen)
        return self._change(profile.iteration, next_iteration, found, began_s) if found else None

    def _calibrate(self):
        """Take the undisturbed problem from the first iterations; {"calibrated": 1} once it is known."""
        if len(self._recent) <= self.settings.calibrate:
            return {}
        profiles, nominal = self._recent[1:], self.initial.problem
        timed = estimate(profiles, nominal, nominal, float("inf"))
        self.base = estimate(profiles, timed, timed, _floor_s(timed))
        self.assumed = self.base
        self._warm_up(self.base)
        return {"calibrated": 1}

    def _warm_up(self, problem):
        """Let the planner load and compile what it needs before it is in a hurry: plan for some slow link."""
        slow = dataclasses.replace(problem, link_latency=3.0 * max(problem.forward))
        self._plan(slow)

    def _tolerances(self):
        """What the plan absorbs, per pair; on a plane whose sends block, not more than the shortest action."""
        found = pair_tolerances(self.running, self.assumed)
        if self.in_order is None or not self.settings.divert:
            return found
        shortest_s = min(*self.assumed.forward, *self.assumed.backward_input)
        slow = [tuple(pair) for pair in self.slow_links]
        return {pair: most_s if pair in slow else min(most_s, shortest_s) for pair, most_s in found.items()}

    def _change(self, noticed, next_iteration, found, began_s):
        settings = self.settings
        problem = estimate(self._recent, self.base, self.assumed, self.floor_s)
        delays_s = _unusual(problem, self.base)
        slow = sorted({tuple(sorted(pair)) for pair in delays_s})
        links = [list(pair) for pair in slow] if settings.divert else []
        before_s = self._predicted(self.running.plan, problem, slow, self.slow_links)
        plan = self.initial.plan if problem == self.base and "calibrated" not in found else self._plan(problem)
        after_s = self._predicted(plan, problem, slow, links)
        kept_s = self._predicted(self.running.plan, problem, slow, links)
        healed = plan is self.initial.plan and after_s <= kept_s * (1 + settings.min_gain)
        swaps = plan is not self.running.plan and (after_s < kept_s * (1 - settings.min_gain) or healed)
        self.assumed = problem
        self.watch.restart()
        self._recent = []
        self.predicted_s = after_s if swaps else kept_s
        if swaps:
            self.running = self.initial if plan is self.initial.plan else check(plan, problem)
        if "calibrated" in found:
            self.initial = self.running
        if not swaps and links == self.slow_links and "calibrated" not in found:
            return None
        self.slow_links, self._since = links, next_iteration
        change = Change(
            noticed, next_iteration, found, {f"{a}-{b}": value for (a, b), value in delays_s.items()}, links,
            self.running.plan.scheduler if swaps else None, before_s, self.predicted_s, time.monotonic() - began_s,
        )  # fmt: skip
        return {
            "change": change._asdict(),
            "plan": self.running.plan.to_dict() if swaps else None,
            "problem": self.running.problem.to_dict(),
        }

    def _plan(self, problem):
        settings, running = self.settings, self.running.plan
        if settings.scheduler == "best":
            return best(problem, placement=running.placement, start=running, effort=settings.effort)
        return make_plan(problem, settings.scheduler)

    def _predicted(self, plan, problem, slow, delegated):
        """Seconds of an iteration; where a slow link is on a plane whose sends block, they block in the simulator."""
        blocks = self.in_order is not None and any(list(pair) not in delegated for pair in slow)
        if blocks:
            return simulate(plan, problem, in_order=True, queue=self.in_order).makespan
        return simulate(plan, problem).makespan


def _floor_s(problem):
    pairs = zip(problem.forward, problem.backward_input, strict=True)
    return max(FLOOR_S, FLOOR_SHARE * min(forward + backward for forward, backward in pairs))


def _unusual(problem, base):
    """(source, destination) -> the delay of a message, of pairs where that is not the one of `base`."""
    ranks = range(base.stages)
    delays = {}
    for pair in ((one, other) for one in ranks for other in ranks if one != other):
        delay = planned_delay(problem, *pair)
        if delay != planned_delay(base, *pair):
            delays[pair] = sum(delay)
    return delays
