"""When the job of `lanterne demo` is to change, and what has happened to it: a list of steps, from what it measured."""

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from lanterne.bench.output.units import format_time
from lanterne.failslow.detect.events import LevelEvent
from lanterne.failslow.detect.tracker import Tracker
from lanterne.pipeline.adapt.decide import Change
from lanterne.pipeline.adapt.injection import InjectedEvent, ends
from lanterne.pipeline.adapt.suspect import Suspect

# The first iterations are not counted: caches fill, connections open, undisturbed times get measured. In a run that
# short the detector would take that for the job's ways.
HEALTHY = 8
# What follows a change is known from so many iterations.
SETTLED = 6
Steps: TypeAlias = list[dict[str, Any]]


class Observer:
    """Follows the job on rank 0: when a change is due, and what has happened, as steps.

    Attributes: `steps` so far; `holds`: nothing is to be changed now.

    The decisions are those of Tracker and Adapter. It knows when the link is slowed, for the record alone.
    """

    def __init__(self, work: dict[str, Any]) -> None:
        self.event: InjectedEvent = InjectedEvent.from_dict(work["event"])
        self.hold: int = work["hold"]
        self.link: str = "{}-{}".format(*ends(self.event.links[0]))
        self.tracker: Tracker = Tracker()
        self.steps: Steps = []
        self.holds: bool = True
        self._times_s: list[float] = []
        self._delays_s: dict[str, list[float]] = {}
        self._due: dict[str, int] = {}
        self._onset: int | None = None
        self._healed = False

    def begins(self, iteration: int) -> Steps:
        """The steps before `iteration`: what is done to the link, by us."""
        if iteration == self.event.first:
            delay = format_time(self.event.latency_s)
            return self._step("slowed", iteration, f"injected, by us: messages of link {self.link} take {delay} more")
        if iteration == self.event.last:
            return self._step("healed", iteration, f"by us: link {self.link} is as it was")
        return []

    def ended(self, record: dict[str, Any], found: Mapping[Suspect, int], changes: Iterable[Change]) -> Steps:
        """The steps that an iteration gave; `found` and `changes` are the Adapter's."""
        iteration, time_s = record["iteration"], record["time_s"]
        self._times_s.append(time_s)
        steps: Steps = []
        for change in changes:
            steps += self._changed(change)
        if iteration >= HEALTHY:
            steps += self._tracked(iteration, self.tracker.update(time_s))
        slow = sorted(name for name, sign in found.items() if sign > 0)
        if self._onset is not None and slow and not self._has("located"):
            steps += self._step("located", iteration, self._evidence(slow, record), found=slow)
        self._hold(iteration, found)
        if not self._has("slowed"):
            for link, delay_s in record["link_delay_s"].items():
                self._delays_s.setdefault(link, []).append(delay_s)
        for name, at in list(self._due.items()):
            if iteration == at:
                del self._due[name]
                steps += self._result(name, iteration)
        return steps

    def _hold(self, iteration: int, found: Mapping[Suspect, int]) -> None:
        """Changes are due once a slow job's place is known and the slow stretch was long enough, and when it is well.

        `hold` iterations from the Tracker's onset on are left slow on purpose, to measure them.
        """
        if self._has("swapped"):
            links = next(step["links"] for step in self.steps if step["name"] == "swapped")
            # Once is enough: on a crowded machine the next iterations may show nothing for certain.
            self._healed |= any(found.get(Suspect.link(*pair)) == -1 for pair in links)
            self.holds = self._has("reverted") or not self._healed
        else:
            self.holds = self._onset is None or not self._has("located") or iteration + 2 < self._onset + self.hold

    def _changed(self, change: Change) -> Steps:
        if "calibrated" in change.findings:
            words = f"undisturbed links and stages measured; an iteration should take {format_time(change.predicted_s)}"
            return self._step("calibrated", change.running_from, words)
        plan = f"plan {change.scheduler}" if change.scheduler else "the same plan"
        ways = ", ".join("{}-{}".format(*pair) for pair in change.slow_links)
        words = f"{plan}, {f'delegates for {ways}' if ways else 'no delegates'}"
        before, after = format_time(change.predicted_before_s), format_time(change.predicted_s)
        words += f", made in {format_time(change.planning_s)}; predicted {before} -> {after}"
        name = "swapped" if ways else "reverted"
        if self._has(name):
            return self._step("changed", change.running_from, words)
        self._due["recovered" if ways else "restored"] = change.running_from + SETTLED - 1
        return self._step(name, change.running_from, words, links=change.slow_links)

    def _tracked(self, iteration: int, event: LevelEvent | None) -> Steps:
        """What the Tracker says, until the place is known; an alarm without a place has no consequence."""
        if event is None or event.ratio < 1 or event.kind == "relief" or self._has("located"):
            return []
        onset = event.index + HEALTHY
        words = f"iterations take {event.ratio - 1:.0%} longer since iteration {onset}"
        if event.confirmed_at is None:
            return self._step("suspected", iteration, f"perhaps {words}", onset=onset)
        self._onset = onset
        return self._step("noticed", iteration, words, onset=onset)

    def _evidence(self, slow: Sequence[Suspect], record: dict[str, Any]) -> str:
        told = []
        for name in slow:
            if not name.is_rank:
                which = "{}-{}".format(*name.ends)
                usual = format_time(statistics.median(self._delays_s.get(which, [0.0])))
                told.append(f"{name}: its messages take {format_time(record['link_delay_s'][which])}, before {usual}")
            else:
                told.append(f"{name} computes longer")
        others = "" if any(name.is_rank for name in slow) else "; no rank computes longer"
        return "; ".join(told) + others

    def _result(self, name: str, iteration: int) -> Steps:
        """Throughput behind a change, beside that before anything was slow."""
        healthy_s = statistics.median(self._times_s[HEALTHY : self._at("slowed", iteration)])
        now_s = statistics.median(self._times_s[-SETTLED:])
        words = f"{healthy_s / now_s:.0%} of the healthy throughput"
        if name == "recovered":
            first, last = self._at("slowed", 0), self._at("swapped", iteration)
            slow_s = statistics.median(self._times_s[first:last] or [now_s])
            words += f", {slow_s / now_s:.2f} times that of the slow stretch"
        return self._step(name, iteration, words)

    def _has(self, name: str) -> bool:
        return any(step["name"] == name for step in self.steps)

    def _at(self, name: str, default: int) -> int:
        return next((step["iteration"] for step in self.steps if step["name"] == name), default)

    def _step(self, name: str, iteration: int, text: str, **more: Any) -> Steps:
        step = {"kind": "step", "name": name, "iteration": iteration, "at_s": time.monotonic(), "text": text, **more}
        self.steps.append(step)
        return [step]
