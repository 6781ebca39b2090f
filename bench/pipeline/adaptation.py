"""Pipelines of timed stages whose links become slow and heal while they run: with a plan that stays, that adapts, or
that was made with full knowledge of what is slow when.

All modes run the same iterations in turn, in one job, so what disturbs one disturbs all.
"""

import dataclasses
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lanterne.bench.collective.measure import agree_start_s
from lanterne.bench.output import report
from lanterne.bench.pipeline.measure import Document, emulated_links, on_ranks
from lanterne.collectives.communicator import Communicator
from lanterne.errors import InputError
from lanterne.kernels.cpu.delay import wait_until
from lanterne.pipeline.adapt.adapter import Adapter
from lanterne.pipeline.adapt.decide import Change
from lanterne.pipeline.adapt.estimate import link_fields
from lanterne.pipeline.adapt.injection import InjectedEvent, Replay, conditions
from lanterne.pipeline.adapt.link_delay import Pair
from lanterne.pipeline.execute.execute import execute
from lanterne.pipeline.execute.stage_timed import timed_stages
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.observed import ObservedPlane
from lanterne.pipeline.planes.plane_makers import make_plane
from lanterne.pipeline.planners.best import best
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check

FIXED, ADAPT, KNOWN = "fixed", "adapt", "known"


class Mode(NamedTuple):
    """How one of the pipelines side by side runs.

    Attributes:
        label: its name in tables.
        kind: FIXED, the plan stays; ADAPT; or KNOWN, planned anew when and as conditions change, without measuring.
        checked: the CheckedPlan to begin with; its problem is the undisturbed one, in seconds.
        plane: the usual data plane.
        options: of the usual data plane.
        delegates: options of those that slow links get.
    """

    label: str
    kind: str
    checked: CheckedPlan
    plane: str = "inline"
    options: dict[str, Any] = {}  # noqa: RUF012
    delegates: dict[str, Any] = {}  # noqa: RUF012

    def to_dict(self, events: Sequence[InjectedEvent], iterations: int) -> Document:
        """As JSON, for the ranks."""
        document = self._asdict() | {"plan": self.checked.plan.to_dict(), "problem": self.checked.problem.to_dict()}
        del document["checked"]
        return document | {"known": known_plans(self.checked, events, iterations) if self.kind == KNOWN else []}


class Ran(NamedTuple):
    """What was measured of a mode; seconds, one per iteration.

    Attributes:
        iteration_s: from the first start of an action to the last end on any rank.
        settle_s: what agreeing and changing took besides, the longest of any rank.
        changes: the Changes of an ADAPT mode, as dicts.
    """

    iteration_s: list[float]
    settle_s: list[float]
    changes: list[Document]

    @property
    def total_s(self) -> float:
        return sum(self.iteration_s) + sum(self.settle_s)


def in_seconds(problem: Problem, unit_s: float) -> Problem:
    """The Problem with its times in seconds, those it has being in units of `unit_s` seconds."""

    def scaled(value: Any, factor: float) -> Any:
        if isinstance(value, tuple):
            return tuple(scaled(each, factor) for each in value)
        return None if value is None else value * factor

    times: dict[str, Any] = {
        name: scaled(getattr(problem, name), unit_s) for name in ("forward", "backward_input", "backward_weight")
    }
    times |= {"link_latency": scaled(problem.link_latency, unit_s)}
    times |= {"link_bandwidth": scaled(problem.link_bandwidth, 1 / unit_s)}
    if problem.recompute is not None:
        times["recompute"] = problem.recompute._replace(time=scaled(problem.recompute.time, unit_s))
    return dataclasses.replace(problem, **times)


def disturbed(problem: Problem, events: Iterable[InjectedEvent], iteration: int) -> tuple[Problem, set[Pair]]:
    """(problem, pairs that are slow) under the conditions of an iteration: what there is to know."""
    links, slowdowns, down = conditions(events, iteration, emulated_links(problem, 1.0))
    nbytes = max(problem.message_nbytes)
    delays = {
        pair: (link.latency_s, nbytes / link.bandwidth_bytes_per_s if link.bandwidth_bytes_per_s else 0.0)
        for pair, link in links.items()
    }
    changes: dict[str, Any] = link_fields(problem, delays) if delays else {}
    for name in ("forward", "backward_input", "backward_weight") if slowdowns else ():
        times = getattr(problem, name)
        changes[name] = tuple(time_s * slowdowns.get(rank, 1.0) for rank, time_s in enumerate(times))
    slow = {(min(pair), max(pair)) for pair in links}
    return (dataclasses.replace(problem, **changes) if changes else problem), slow | down


def known_plans(checked: CheckedPlan, events: Sequence[InjectedEvent], iterations: int) -> list[list[Any]]:
    """[iteration, plan, slow pairs] wherever conditions change: the best plan for what then holds."""
    found: list[list[Any]] = []
    made, last = {checked.problem: checked.plan}, None
    for iteration in range(iterations):
        problem, slow = disturbed(checked.problem, events, iteration)
        if problem not in made:
            report.progress(f"planning for iteration {iteration}")
            made[problem] = best(problem, placement=checked.plan.placement)
        if (problem, slow) != last:
            found.append([iteration, made[problem].to_dict(), sorted(slow)])
        last = problem, slow
    report.progress("")
    return found


def run_modes(
    modes: Sequence[Mode],
    events: Sequence[InjectedEvent],
    iterations: int,
    transport: str = "mpi",
    timeout_s: float = 60.0,
) -> list[Ran] | None:
    """A Ran per mode; None on the ranks of a job but its first.

    Raises:
        InputError: events that have no effect on these pipelines, or on links that they do not have.
        LanterneError: a rank failed.
    """
    problem = modes[0].checked.problem
    if any(event.bandwidth_bytes_per_s for event in events) and not any(problem.message_nbytes):
        raise InputError("--slow-link: got a bandwidth and messages of no bytes, expected --message SIZE")
    work = {
        "modes": [mode.to_dict(events, iterations) for mode in modes],
        "events": [event.to_dict() for event in events],
        "iterations": iterations,
    }
    found = on_ranks(run_work, work, problem.stages, transport, timeout_s)
    return found and [Ran(**document) for document in found]


def run_work(comm: Communicator, work: Document) -> list[Document] | None:
    """The work on one rank; what was measured on rank 0, None on the others."""
    events = [InjectedEvent.from_dict(document) for document in work["events"]]
    runs = [_ModeRun(comm, document, events) for document in work["modes"]]
    measured: list[list[tuple[float, float]]] = [[] for _ in runs]
    try:
        for iteration in range(work["iterations"]):
            if comm.rank == 0:
                report.progress(f"iteration {iteration + 1} of {work['iterations']}")
            for run, rows in zip(runs, measured, strict=True):
                rows.append(run.iteration(iteration))
    finally:
        for run in runs:
            run.close()
    if comm.rank:
        return None
    report.progress("")
    return [
        {
            "iteration_s": [row[0] for row in rows],
            "settle_s": [row[1] for row in rows],
            "changes": [change._asdict() for change in run.changes],
        }
        for run, rows in zip(runs, measured, strict=True)
    ]


class _ModeRun:
    """One mode on one rank."""

    def __init__(self, comm: Communicator, document: Document, events: Sequence[InjectedEvent]) -> None:
        problem = Problem.from_dict(document["problem"])
        self.comm = comm
        self.kind = document["kind"]
        self.checked = check(Plan.from_dict(document["plan"]), problem, memory=False)
        links = emulated_links(problem, 1.0)
        usual, delegates = make_plane(document["plane"], comm, links, **document["options"]), document["delegates"]
        self.plane = ObservedPlane(
            comm.rank, usual, lambda pair: make_plane("delegate", comm, links, pairs=[pair], **delegates)
        )
        stages = timed_stages(problem, self.checked.plan.placement, comm.rank, 1.0)
        self.replay = Replay(events, self.plane.set_link, comm.rank, links)
        self.stages = self.replay.wrap(stages)
        self.known = {iteration: rest for iteration, *rest in document["known"]}
        self.adapter: Adapter | None = None
        if self.kind == ADAPT:
            self.adapter = Adapter(comm, self.checked, self.plane, problem)

    @property
    def changes(self) -> list[Change]:
        return self.adapter.changes if self.adapter else []

    def iteration(self, number: int) -> tuple[float, float]:
        """(seconds of the iteration, seconds to settle what comes of it), of all ranks together."""
        comm = self.comm
        down = self.replay.begin(number)
        before_s = time.monotonic()
        if self.adapter:
            self.adapter.avoid([down])
        if number in self.known:
            document, slow = self.known[number]
            self.checked = check(Plan.from_dict(document), self.checked.problem, memory=False)
            self.plane.divert([(one, other) for one, other in slow])
        changed_s = time.monotonic() - before_s
        comm.barrier()
        wait_until(agree_start_s(comm))
        run, checked = (self.adapter.execute, self.adapter.checked) if self.adapter else (execute, self.checked)
        measured = run(checked, self.stages, comm, plane=self.plane)
        if self.adapter:
            self.adapter.agree()
        mine = np.array([measured.start_s[0], measured.end_s[-1], time.monotonic(), changed_s])
        every = np.empty((comm.world_size, 4))
        comm.all_gather(mine, every.reshape(-1))
        # Who ends first waits for the verdict of who ends last; only what comes after that is lost.
        agreed_s = every[:, 2].max() - every[:, 1].max() if self.adapter else 0.0
        return float(every[:, 1].max() - every[:, 0].min()), float(agreed_s + every[:, 3].max())

    def close(self) -> None:
        if self.adapter:
            self.adapter.close()
        self.plane.close()


def outcomes(
    events: Iterable[InjectedEvent], mode: Mode, ran: Ran, known: Ran | None, iterations: int
) -> list[Document]:
    """Per event, a record of what an ADAPT mode made of it; `known` is the Ran of the KNOWN mode, or None.

    Keys: first, last; running_from and lag of the first change under the event, in iterations (None: nothing was
    worth changing); median seconds of an iteration before that and after it, those with full knowledge over the same
    iterations, and their ratio: the share of the throughput with full knowledge.
    """
    records = []
    for event in events:
        last = int(min(event.last, iterations))
        if event.down or event.first >= last:
            continue
        changes = [change for change in ran.changes if event.first <= change["noticed"] < last]
        change = next((change for change in changes if change["running_from"] < last), None)
        start = change["running_from"] if change else event.first
        after_s = statistics.median(ran.iteration_s[start:last])
        before = ran.iteration_s[event.first : start] or [after_s]
        record: Document = {
            "mode": mode.label,
            "first": event.first,
            "last": last,
            "links": list(event.links),
            "rank": event.rank,
            "running_from": change and change["running_from"],
            "lag": change and change["running_from"] - event.first,
            "change": change,
            "before_s": statistics.median(before),
            "after_s": after_s,
            "known_s": known and statistics.median(known.iteration_s[start:last]),
        }
        record["share_of_known"] = known and record["known_s"] / after_s
        records.append(record)
    return records
