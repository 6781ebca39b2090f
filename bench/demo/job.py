"""What the ranks of `lanterne demo` do: train, be slowed, notice, find the place, change the plan, and go back.

Rank 0 tells what happens, as it happens, line by line in a file; the View of picture.py reads that.
"""

import argparse
import json
import time
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import numpy as np

from lanterne.bench.demo.picture import Gathered, trace
from lanterne.bench.demo.steps import Observer
from lanterne.bench.train.adapt import Disturbed, observed_plane
from lanterne.bench.train.job import Setup, add_model_arguments, make_setup
from lanterne.collectives.communicator import Communicator
from lanterne.pipeline.adapt.estimate import pair_delays
from lanterne.pipeline.adapt.injection import InjectedEvent
from lanterne.pipeline.adapt.profile import Profile
from lanterne.pipeline.execute.measured import gather
from lanterne.pipeline.model.text import read_text
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.train import trainer as own_text
from lanterne.pipeline.train.trainer import Iteration, Trainer

MICROBATCHES = 8
MODEL = f"--width 32 --heads 2 --length 32 --rows 2 --microbatches {MICROBATCHES}".split()
SCHEDULER = "zb_h1"


def run_demo(comm: Communicator, work: dict[str, Any]) -> dict[str, Any] | None:
    """Train on this rank; what was measured on rank 0, None on the others. `work` as command.py makes it."""
    job = _Job(comm, work)
    until_s = time.monotonic() + work["limit_s"]
    try:
        for _ in range(work["iterations"]):
            job.iteration()
            if said_by_first(comm, time.monotonic() > until_s):
                break
        return job.found()
    finally:
        job.close()


def said_by_first(comm: Communicator, is_so: bool) -> bool:
    """Return what rank 0 says; every rank calls it."""
    said = np.array([is_so], np.int64)
    comm.broadcast(said)
    return bool(said[0])


def nominal(ranks: int, pace_s: float) -> Problem:
    """The Problem that the job begins with."""
    return Problem(ranks, MICROBATCHES, pace_s, pace_s, pace_s)


def setup_of(words: Sequence[str], comm: Communicator, seed: int) -> Setup:
    """Return the Setup of a small GPT on this library's own source text; `words` are its options."""
    parser = argparse.ArgumentParser()
    add_model_arguments(parser, "1")
    parser.set_defaults(seed=seed)
    return make_setup(parser.parse_args(words), comm.world_size, read_text(own_text.__file__))


def make_trainer(comm: Communicator, work: dict[str, Any]) -> tuple[Trainer, int]:
    """(Trainer, tokens of an iteration) of a small GPT on this library's own source text, one block a stage."""
    setup = setup_of([*MODEL, "--blocks", str(comm.world_size)], comm, work["seed"])
    problem = nominal(comm.world_size, work["pace_s"])
    trainer = setup.trainer(comm, own_text.plans(problem, SCHEDULER), layout=setup.layout, plane=observed_plane)
    return trainer, MICROBATCHES * setup.settings.rows * setup.settings.length


class _Job:
    """One rank."""

    def __init__(self, comm: Communicator, work: dict[str, Any]) -> None:
        self.comm = comm
        self.work = work
        self.trainer, self.tokens = make_trainer(comm, work)
        self.disturbed = Disturbed(self.trainer, [InjectedEvent.from_dict(work["event"])], adapts=True)
        for stage in self.disturbed.stages.values():
            stage.pace_s = work["pace_s"]
        assert self.disturbed.adapter is not None
        self.adapter = self.disturbed.adapter
        self.timelines: list[Gathered] = []
        self.records: list[dict[str, Any]] = []
        self.observer = Observer(work) if comm.rank == 0 else None
        self.feed: TextIO | None = open(work["feed"], "a", encoding="utf-8") if comm.rank == 0 else None  # noqa: SIM115 (closed at the end)

    def iteration(self) -> None:
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

    def found(self) -> dict[str, Any] | None:
        """All that is known at the end, on rank 0."""
        if not self.observer:
            return None
        changes = [change._asdict() for change in self.adapter.changes]
        found: dict[str, Any] = {
            "results": self.records,
            "steps": self.observer.steps,
            "changes": changes,
            "tokens": self.tokens,
        }
        if self.timelines:
            found["trace"] = trace(self.timelines, self.records, self.observer.steps)
        return found

    def close(self) -> None:
        if self.feed:
            self.feed.close()
        self.disturbed.close()

    def _tell(self, records: Iterable[dict[str, Any]]) -> None:
        assert self.feed is not None
        for record in records:
            self.feed.write(json.dumps(record) + "\n")
        self.feed.flush()


def iteration_record(done: Iteration, tokens: int, settle_s: float, profile: Profile | None) -> dict[str, Any]:
    """What is told of an Iteration, with the delays and the work that the last Profile showed."""
    links: dict[str, float] = {}
    busy: list[float] = []
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
