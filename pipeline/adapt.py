"""Keeps a running pipeline on a plan that suits its links: measures, watches, plans again, swaps between iterations.

    delegates = lambda pair: make_plane("delegate", comm, pairs=[pair])
    plane = ObservedPlane(comm.rank, make_plane("inline", comm), delegates)
    with Adapter(comm, checked, plane, problem) as adapter:
        for inputs, targets in batches:
            adapter.execute(adapter.checked, stages, comm, inputs, targets)
            for stage in stages.values():
                stage.step()
            adapter.agree()

After each iteration every rank reports what it measured to the coordinator and waits for its verdict: go on, or a new
plan, and which links go by delegates. All take it at once, so each iteration runs under one plan.

Paper: Wu et al. 2025 (ADAPTRA), sections 4.2 and 6. Differs: triggered by measured delays against equation 1, not by a
detector of slow iterations; a new plan must be predicted to gain; a link that heals gives the first plan back.
"""

import dataclasses
import json
import time
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from .best import best, load_search
from .check import CheckedPlan, check
from .clocks import clock_offsets, share_a_clock
from .estimate import estimate, planned_delay, with_links_of
from .execute import execute
from .plan import Plan
from .problem import Problem
from .profile import Profiler, make_profile, report_length, worst
from .schedulers import SCHEDULERS
from .schedulers import plan as make_plan
from .simulate import simulate
from .verdicts import Agreement
from .watch import ONSET, RELIEF, Noise, Watch, findings, pair_tolerances

# Delays that differ by less than this share of the time of one F and one B, or than this many seconds, are noise.
FLOOR_SHARE, FLOOR_S = 0.1, 300e-6
# A link has healed, and goes back to the usual plane to show it there, if no more than this share of its worst delay is
# left: the rest may be the delegates' own.
HEALED_SHARE = 0.25
# How long the other ranks wait for the coordinator's compiler.
COMPILE_S = 600.0
# Iterations after which the clocks of several hosts are compared again: they drift, some 50 us a second at most.
CLOCKS_EVERY = 50


@dataclasses.dataclass(frozen=True)
class AdaptSettings:
    """How an Adapter decides.

    Attributes:
        scheduler: who makes the new plans; best starts from the running one.
        effort: of best; None for its own for re-planning.
        min_gain: a plan is swapped if it is predicted to save this share of the iteration.
        min_divert_gain: a link is taken off the usual plane if that, with a plan for it, is predicted to save as much.
        onset, relief: iterations in a row that must show that a link is slow, or well again.
        calibrate: iterations to measure the undisturbed problem from, behind the first, where none is given.
        divert: whether slow links are taken off the usual data plane.
    """

    scheduler: str = "best"
    effort: float | None = None
    min_gain: float = 0.02
    min_divert_gain: float = 0.05
    onset: int = ONSET
    relief: int = RELIEF
    calibrate: int = 6
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
        copy: of the pipeline.
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
    copy: int = 0


class Adapter:
    """Runs iterations and adapts; every rank of a job makes one.

    Args:
        comm: the Communicator of all ranks that change together: a pipeline's, or those of all its copies and parts.
        plans: the CheckedPlan to begin with, or a tuple with that of each copy of the pipeline.
        plane: the ObservedPlane on the ranks of this pipeline; closed by its owner.
        problem: the undisturbed Problem in seconds; None to measure it in the first iterations.
        settings: AdaptSettings.
        where: (copy, place, part) of this rank: which copy of the pipeline, its rank there, and which of those that
            share the work of that rank; None: it is one pipeline of `comm`'s ranks.
        durations_s, held_nbytes: of the Profiler.

    Attributes:
        plans: (copies,) CheckedPlans of the next iteration; `checked`, that of this rank's copy.
        iteration: its number, from 0.
        changes: the Changes so far, on every rank.
        profiles: on the coordinator, per copy the Profiles of the iterations of which all reports have come.
        clocks: on the coordinator, the Offsets of the ranks' clocks; None where all are on one host.
    """

    def __init__(self, comm, plans, plane, problem=None, settings=None, where=None, durations_s=None, held_nbytes=None):
        self.comm, self.plane, self.settings = comm, plane, settings or AdaptSettings()
        self.plans = (plans,) if isinstance(plans, CheckedPlan) else tuple(plans)
        self.copy, _, _ = mine = (0, comm.rank, 0) if where is None else where
        self.iteration, self.changes, self.profiles = 0, [], [[] for _ in self.plans]
        self._slow, self._dead = set(), set()
        self.profiler = Profiler(plane, durations_s, held_nbytes)
        everyone = np.empty((comm.world_size, 3), np.int64)
        comm.all_gather(np.array(mine, np.int64), everyone.reshape(-1))
        self._where = [tuple(row) for row in everyone.tolist()]
        first = self._where.index((0, self.plans[0].plan.placement.stage_to_rank[0], 0))
        self.agreement = Agreement(comm.split(0, comm.rank), first)
        self._lengths, self._ran, self._deciders = None, {}, []
        if self.agreement.is_root:
            for checked in self.plans:
                own = problem and dataclasses.replace(problem, microbatches=checked.plan.microbatches)
                self._deciders.append(Decider(checked, own, self.settings, plane.in_order))
            if self.settings.scheduler == "best":
                load_search()
        self.agreement.comm.barrier(timeout_s=COMPILE_S)  # Else they would wait in the middle of the first iteration.
        self.clocks, self._shares_a_clock = None, share_a_clock(self.agreement.comm)
        self._compare_clocks()

    @property
    def checked(self):
        return self.plans[self.copy]

    @property
    def found(self):
        """On the coordinator: what the last Profiles confirm, per copy name -> +1 or -1; also what is held back."""
        return [decider.found for decider in self._deciders]

    def hold(self, holds):
        """On the coordinator: whether to go on measuring but change nothing, as somebody else says when it is due."""
        for decider in self._deciders:
            decider.holds = holds

    def execute(self, checked, stages, comm, inputs=None, targets=None, *, plane=None, timeout_s=None, after=None):
        """One iteration, as pipeline.execute.execute, of this rank's plan (`checked`) over its plane; and a report."""
        self.profiler.begin()

        def ended(action):
            self.profiler.after(action)
            if after is not None:
                after(action)

        measured = execute(
            checked, stages, comm, inputs, targets, plane=plane or self.plane, timeout_s=timeout_s, after=ended
        )
        if self._lengths is None:
            self._lengths = [report_length(self.plans[copy], place) for copy, place, _ in self._where]
        self.agreement.report(self.profiler.report(checked, measured, self.iteration), self._lengths)
        return measured

    def agree(self):
        """The Changes for the next iteration, a list, on all ranks alike; they hold once this has returned."""
        payload = self.agreement.verdict(self._decide() if self.agreement.is_root else None)
        self.iteration += 1
        if self.iteration % CLOCKS_EVERY == 0:
            self._compare_clocks()
        if not payload:
            return []
        plans, changes = list(self.plans), []
        for verdict in json.loads(payload):
            changes.append(Change(**verdict["change"]))
            if verdict["plan"]:
                made = check(Plan.from_dict(verdict["plan"]), Problem.from_dict(verdict["problem"]))
                plans[changes[-1].copy] = made
        self.plans, self._lengths = tuple(plans), None
        self.agreement.comm.barrier()  # Nobody is in the iteration before any more: what is not needed can be closed.
        for change in changes:
            if change.copy == self.copy:
                self._slow = set(map(tuple, change.slow_links))
                self.plane.divert(self._slow | self._dead)
        self.changes += changes
        return changes

    def avoid(self, pairs):
        """Between iterations: the usual path between these pairs of ranks is dead; every rank is told so alike."""
        if self._dead != set(pairs):
            self._dead = set(pairs)
            self.agreement.comm.barrier()
            self.plane.divert(self._slow | self._dead)

    def close(self):
        """Release what the agreement holds; not the plane."""
        self.agreement.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def _decide(self):
        self._ran[self.iteration] = self.plans
        verdicts = {}
        for reports in self.agreement.collect():
            plans = self._ran.pop(int(reports[0][0]))
            for copy, decider in enumerate(self._deciders):
                profile = self._profile(reports, plans[copy], copy)
                self.profiles[copy].append(profile)
                if verdict := decider.after(profile, self.iteration + 1):
                    verdict["change"]["copy"] = copy
                    verdicts[copy] = verdict
        return json.dumps(list(verdicts.values())).encode() if verdicts else b""

    def _compare_clocks(self):
        if not self._shares_a_clock:
            self.clocks = clock_offsets(self.agreement.comm, self.agreement.root)

    def _profile(self, reports, checked, copy):
        """The Profile of one copy; of what several ranks share, the worst."""
        parts = {}
        offsets_s = np.zeros(len(reports)) if self.clocks is None else self.clocks.offset_s
        for (its, place, part), report, offset_s in zip(self._where, reports, offsets_s, strict=True):
            if its == copy:
                parts.setdefault(part, {})[place] = report, offset_s
        assumed, profiles = self._deciders[copy].occupancy_s, []
        for by in parts.values():
            own, own_offsets_s = zip(*(by[place] for place in sorted(by)), strict=True)
            profiles.append(make_profile(checked, own, own_offsets_s, assumed))
        return worst(profiles)


class Decider:
    """What the coordinator decides; it sends nothing."""

    def __init__(self, checked, problem, settings, in_order):
        self.running, self.initial, self.settings, self.in_order = checked, checked, settings, in_order
        self.watch = Watch(settings.onset, settings.relief)
        self.base = self.assumed = problem
        self.slow_links, self.predicted_s, self.found, self.holds = [], None, {}, False
        self._since, self._recent, self._noise = 0, [], problem and Noise(_floor_s(problem))
        self._worst_s = {}

    def occupancy_s(self, source, destination):
        """Of a message of this pair, as the running plan assumes it."""
        return planned_delay(self.assumed, source, destination)[1] if self.assumed else 0.0

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
            seen = findings(profile, self.base, self.assumed, self._tolerances(), self._noise)
            found = self.watch.update(profile.iteration, seen)
            if not found:
                self._noise.add(profile)
        self.found = found
        if self.holds and "calibrated" not in found:
            return None
        return self._change(profile.iteration, next_iteration, found, began_s) if found else None

    def _calibrate(self):
        """Take the undisturbed problem from the first iterations; {"calibrated": 1} once it is known."""
        if len(self._recent) <= self.settings.calibrate:
            return {}
        profiles, nominal = self._recent[1:], self.initial.problem
        timed = estimate(profiles, nominal, nominal, lambda pair: float("inf"))
        self._noise = Noise(_floor_s(timed))
        for profile in profiles:
            self._noise.add(profile)
        self.base = estimate(profiles, timed, timed, self._noise.delay_s)
        self._recent, self.assumed = profiles, self.base
        return {"calibrated": 1}

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
        problem = estimate(self._recent, self.base, self.assumed, self._noise.delay_s)
        slow = self._slow(problem, _unusual(problem, self.base))
        healed = [pair for pair in self.slow_links if tuple(pair) not in slow]
        if healed:
            problem = with_links_of(self.base, problem, healed)
        delays_s = _unusual(problem, self.base)
        links = [list(pair) for pair in slow] if settings.divert else []
        before_s = self._predicted(self.running.plan, problem, slow, self.slow_links)
        plan = self.initial.plan if problem == self.base and "calibrated" not in found else self._plan(problem)
        after_s = self._predicted(plan, problem, slow, links)
        kept_s = self._predicted(self.running.plan, problem, slow, links)
        goes_back = plan is self.initial.plan and after_s <= kept_s * (1 + settings.min_gain)
        swaps = plan is not self.running.plan and (after_s < kept_s * (1 - settings.min_gain) or goes_back)
        if min(kept_s, after_s) > before_s * (1 - settings.min_divert_gain) and not healed and links != self.slow_links:
            links = self.slow_links
            kept_s, after_s = before_s, self._predicted(plan, problem, slow, links)
            swaps = plan is not self.running.plan and after_s < kept_s * (1 - settings.min_gain)
        self.assumed = problem
        self.watch.restart()
        self._recent = []
        for name in found:
            if name != "calibrated":
                self._noise.forget(name)
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
        plan = self.running.plan.to_dict() if swaps else None
        return {"change": change._asdict(), "plan": plan, "problem": self.running.problem.to_dict()}

    def _slow(self, problem, delays_s):
        """The pairs whose delays are worth a path of their own: half the shortest action, and more than was healed."""
        half_s = min(*self.base.forward, *self.base.backward_input) / 2
        excess_s = {}
        for pair, delay_s in delays_s.items():
            key = tuple(sorted(pair))
            excess_s[key] = max(excess_s.get(key, 0.0), delay_s - sum(planned_delay(self.base, *pair)))
        slow = []
        for pair, value in excess_s.items():
            worst_s = self._worst_s.get(pair, 0.0) if list(pair) in self.slow_links else 0.0
            if value > max(half_s, HEALED_SHARE * worst_s):
                slow.append(pair)
                self._worst_s[pair] = max(value, worst_s)
        return sorted(slow)

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
