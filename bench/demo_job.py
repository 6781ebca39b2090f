"""What the ranks of `lanterne demo` do: train, be slowed, notice, find the place, change the plan, and go back.

Rank 0 tells what happens, as it happens, line by line in a file; who shows it reads that (demo_view.py).
"""

import argparse
import dataclasses
import json
import statistics
import time

import numpy as np

from ..failslow.track import Tracker
from ..kernels.delay import wait_until
from ..pipeline import train as own_text
from ..pipeline.best import best
from ..pipeline.estimate import pair_delays
from ..pipeline.injection import Event, SlowStage
from ..pipeline.measured import gather, timeline
from ..pipeline.problem import Problem
from ..pipeline.text import read_text
from ..pipeline.trace import chrome_trace
from .train_adapt import Disturbed, observed_plane
from .train_setup import add_model_arguments, make_setup
from .units import format_time

MICROBATCHES = 8
MODEL = f"--width 32 --heads 2 --length 32 --rows 2 --microbatches {MICROBATCHES}".split()
SCHEDULER = "zb_h1"
# The first iterations are not counted: caches fill, connections open, undisturbed times get measured.
HEALTHY = 8
# What follows a change is known from so many iterations.
SETTLED = 6


def load_planner(problem):
    """Compile what re-planning needs, once per machine, and load it: else a job waits for that in the middle.

    Cost: some 15 s the first time, then half a second per process.
    """
    ranks, unit_s = range(problem.stages), problem.forward[0]
    latency_s = tuple(tuple((1 + min(a, b)) * unit_s if abs(a - b) == 1 else 0.0 for b in ranks) for a in ranks)
    best(dataclasses.replace(problem, link_latency=latency_s), effort=0.05)


class PacedStage(SlowStage):
    """A stage that computes, and whose every action then lasts `pace_s`, as if on a device of its own."""

    def __init__(self, stage, pace_s):
        super().__init__(stage)
        self.pace_s = pace_s

    def _slowly(self, work, *args):
        began_s = time.monotonic()
        result = super()._slowly(work, *args)
        wait_until(began_s + self.pace_s / (args[-1] if args else 1))
        return result


def run_demo(comm, work):
    """Train on this rank; what was measured on rank 0, a dict, None on the others. `work` as demo.py makes it."""
    job = _Job(comm, work)
    try:
        for _ in range(work["iterations"]):
            job.iteration()
        return job.found()
    finally:
        job.close()


def nominal(ranks, pace_s):
    """The Problem that the job begins with."""
    return Problem(ranks, MICROBATCHES, pace_s, pace_s, pace_s)


def make_trainer(comm, work):
    """The Trainer of a small GPT that learns this library's own source text, one block a stage."""
    parser = argparse.ArgumentParser()
    add_model_arguments(parser, str(MICROBATCHES))
    parser.set_defaults(seed=work["seed"])
    setup = make_setup(
        parser.parse_args([*MODEL, "--blocks", str(comm.world_size)]), comm.world_size, read_text(own_text.__file__)
    )
    problem = nominal(comm.world_size, work["pace_s"])
    if comm.rank == 0:
        load_planner(problem)
    trainer = setup.trainer(comm, own_text.plans(problem, SCHEDULER), layout=setup.layout, plane=observed_plane)
    return trainer, MICROBATCHES * setup.settings.rows * setup.settings.length


class _Job:
    """One rank."""

    def __init__(self, comm, work):
        self.comm, self.work = comm, work
        self.trainer, self.tokens = make_trainer(comm, work)
        self.disturbed = Disturbed(self.trainer, [Event.from_dict(work["event"])], adapts=True)
        replay = self.disturbed.replay
        replay.stages = {number: PacedStage(stage.stage, work["pace_s"]) for number, stage in replay.stages.items()}
        self.adapter, self.timelines, self.records = self.disturbed.adapter, [], []
        self.observer = Observer(work) if comm.rank == 0 else None
        self.feed = open(work["feed"], "a", encoding="utf-8") if comm.rank == 0 else None

    def iteration(self):
        """One iteration and what comes of it; rank 0 tells."""
        before = self.trainer.plans[0]
        self.disturbed.begin()
        if self.observer:
            self.adapter.hold(self.observer.holds)
            self._tell(self.observer.begins(self.trainer.iterations))
        done = self.trainer.iteration()
        began_s = time.monotonic()
        changes = self.disturbed.end()
        settle_s = time.monotonic() - began_s
        if self.work["trace"]:
            self.timelines.append((before, gather(done.measured, before, self.comm)))
        if self.observer:
            profiles = self.adapter.profiles[0]
            record = iteration_record(done, self.tokens, settle_s, profiles[-1] if profiles else None)
            self.records.append(record)
            self._tell([record, *self.observer.ended(record, self.adapter.found[0], changes)])

    def found(self):
        """All that is known at the end, on rank 0."""
        if not self.observer:
            return None
        changes = [change._asdict() for change in self.adapter.changes]
        found = {"results": self.records, "steps": self.observer.steps, "changes": changes, "tokens": self.tokens}
        if self.timelines:
            found["trace"] = trace(self.timelines, self.records, self.observer.steps)
        return found

    def close(self):
        if self.feed:
            self.feed.close()
        self.disturbed.close()
        self.trainer.close()

    def _tell(self, records):
        for record in records:
            self.feed.write(json.dumps(record) + "\n")
        self.feed.flush()


def iteration_record(done, tokens, settle_s, profile):
    """What is told of an Iteration, with the delays and the work that the last Profile showed."""
    links, busy = {}, []
    if profile is not None:
        pairs = sorted({(min(pair), max(pair)) for pair in profile.links})
        for one, other in pairs:
            delay_s = sum(max(way.low_s, 0.0) for way in pair_delays(profile, one, other)) / 2
            links[f"{one}-{other}"] = delay_s
        work_s = sum(np.nan_to_num(profile.durations_s[kind]) for kind in ("F", "B", "W", "BW")) * MICROBATCHES
        busy = np.minimum(work_s / profile.iteration_s, 1.0).tolist()
    return {
        "kind": "iteration",
        "iteration": done.number,
        "ended_s": time.monotonic() - settle_s,
        "time_s": done.seconds,
        "settle_s": settle_s,
        "tokens_per_s": tokens / done.seconds,
        "loss": done.loss,
        "link_delay_s": links,
        "busy": busy,
    }


class Observer:
    """Follows the job on rank 0: when a change is due, and what has happened, as steps.

    Attributes: `steps`, dicts so far; `holds`: nothing is to be changed now.

    The decisions are those of Tracker and Adapter. It knows when the link is slowed, for the record alone.
    """

    def __init__(self, work):
        self.event, self.hold = Event.from_dict(work["event"]), work["hold"]
        self.link = "{}-{}".format(self.event.links[0], self.event.links[0] + 1)
        self.tracker, self.steps, self.holds = Tracker(), [], True
        self._times_s, self._delays_s, self._due, self._onset = [], {}, {}, None

    def begins(self, iteration):
        """The steps before `iteration`: what is done to the link, by us."""
        if iteration == self.event.first:
            delay = format_time(self.event.latency_s)
            return self._step("slowed", iteration, f"injected, by us: messages of link {self.link} take {delay} more")
        if iteration == self.event.last:
            return self._step("healed", iteration, f"by us: link {self.link} is as it was")
        return []

    def ended(self, record, found, changes):
        """The steps that an iteration gave, as dicts; `found` and `changes` are the Adapter's."""
        iteration, time_s = record["iteration"], record["time_s"]
        self._times_s.append(time_s)
        steps = []
        for change in changes:
            steps += self._changed(change)
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

    def _hold(self, iteration, found):
        """Changes are due once a slow job's place is known and the slow stretch was long enough, and when it is well.

        `hold` iterations from the Tracker's onset on are left slow on purpose, to measure them.
        """
        if self._has("swapped"):
            links = next(step["links"] for step in self.steps if step["name"] == "swapped")
            healed = any(found.get("link {}-{}".format(*pair)) == -1 for pair in links)
            self.holds = self._has("reverted") or not healed
        else:
            self.holds = not self._has("located") or iteration + 2 < self._onset + self.hold

    def _changed(self, change):
        if "calibrated" in change.findings:
            words = f"undisturbed links and stages measured; an iteration should take {format_time(change.predicted_s)}"
            return self._step("calibrated", change.running_from, words)
        plan = f"plan {change.scheduler}" if change.scheduler else "the same plan"
        ways = ", ".join("{}-{}".format(*pair) for pair in change.slow_links)
        words = f"{plan}, {f'delegates for {ways}' if ways else 'no delegates'}, made in {format_time(change.planning_s)}"
        words += f"; predicted {format_time(change.predicted_before_s)} -> {format_time(change.predicted_s)}"
        name = "swapped" if ways else "reverted"
        if self._has(name):
            return self._step("changed", change.running_from, words)
        self._due["recovered" if ways else "restored"] = change.running_from + SETTLED - 1
        return self._step(name, change.running_from, words, links=change.slow_links)

    def _tracked(self, iteration, event):
        """What the Tracker says, until the place is known; an alarm without a place has no consequence."""
        if event is None or event.ratio < 1 or event.kind == "relief" or self._has("located"):
            return []
        words = f"iterations take {event.ratio - 1:.0%} longer since iteration {event.index}"
        if event.confirmed_at is None:
            return self._step("suspected", iteration, f"perhaps {words}", onset=event.index)
        self._onset = event.index
        return self._step("noticed", iteration, words, onset=event.index)

    def _evidence(self, slow, record):
        told = []
        for name in slow:
            kind, which = name.split()
            if kind == "link":
                usual = format_time(statistics.median(self._delays_s.get(which, [0.0])))
                told.append(f"{name}: its messages take {format_time(record['link_delay_s'][which])}, before {usual}")
            else:
                told.append(f"{name} computes longer")
        others = "" if any(name.startswith("rank") for name in slow) else "; no rank computes longer"
        return "; ".join(told) + others

    def _result(self, name, iteration):
        """Throughput behind a change, beside that before anything was slow."""
        healthy_s = statistics.median(self._times_s[HEALTHY : self._at("slowed", iteration)])
        now_s = statistics.median(self._times_s[-SETTLED:])
        words = f"{healthy_s / now_s:.0%} of the healthy throughput"
        if name == "recovered":
            first, last = self._at("slowed", 0), self._at("swapped", iteration)
            slow_s = statistics.median(self._times_s[first:last] or [now_s])
            words += f", {slow_s / now_s:.2f} times that of the slow stretch"
        return self._step(name, iteration, words)

    def _has(self, name):
        return any(step["name"] == name for step in self.steps)

    def _at(self, name, default):
        return next((step["iteration"] for step in self.steps if step["name"] == name), default)

    def _step(self, name, iteration, text, **more):
        step = {"kind": "step", "name": name, "iteration": iteration, "at_s": time.monotonic(), "text": text, **more}
        self.steps.append(step)
        return [step]


def trace(timelines, records, steps):
    """The whole run in the Chrome trace format: actions and messages of all ranks, steps, throughput and delays."""
    start_s = min(float(gathered["start_s"].min()) for _, gathered in timelines)
    events, arrows = [], 0
    for number, (checked, gathered) in enumerate(timelines):
        shift_us = (float(gathered["start_s"].min()) - start_s) * 1e6
        ids = 0
        shown = chrome_trace(timeline(gathered, checked, checked.problem, 1.0), 1e6)
        for event in shown["traceEvents"]:
            if event["ph"] == "C" or (event["ph"] == "M" and number):
                continue
            moved = event | ({"ts": round(event["ts"] + shift_us, 1)} if "ts" in event else {})
            if "id" in event:
                moved["id"] += arrows
                ids = max(ids, event["id"] + 1)
            events.append(moved)
        arrows += ids
    for record in records:
        at_us = (record["ended_s"] - start_s) * 1e6
        values = {"tokens/s": record["tokens_per_s"]}
        values |= {f"link {link} ms": delay_s * 1e3 for link, delay_s in record["link_delay_s"].items()}
        events += [
            {"ph": "C", "name": name, "pid": 0, "tid": 0, "ts": at_us, "args": {name: value}}
            for name, value in values.items()
        ]
    for step in steps:
        at_us = max(step["at_s"] - start_s, 0.0) * 1e6
        events.append({"ph": "i", "s": "g", "name": f"{step['name']}: {step['text']}", "pid": 0, "tid": 0, "ts": at_us})
    return {"displayTimeUnit": "ms", "traceEvents": events}
