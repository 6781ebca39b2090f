"""`lanterne demo`: a link, a rank, then another rank become slow, beside the same job that is left alone.

Four ranks train two copies of a pipeline of two stages, twice: left alone, and watched and mitigated by a ClosedLoop,
an iteration of each in turn. What is injected is known to nobody else; what is said of who, when and what was done is
what the loop found and did.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from lanterne.bench.output import report
from lanterne.bench.output.units import format_time
from lanterne.bench.train.job import Setup, add_model_arguments, make_setup
from lanterne.bench.train.mitigate import Mitigated
from lanterne.collectives.communicator import Communicator
from lanterne.pipeline.adapt.injection import InjectedEvent
from lanterne.pipeline.model.text import read_text
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.train import trainer as own_text

RANKS, STAGES, COPIES, MICROBATCHES = 4, 2, 2, 16
MODEL = f"--width 32 --heads 2 --length 32 --rows 1 --blocks 2 --microbatches {MICROBATCHES}".split()
SCHEDULER = "zb_h1"
# Above this share of the picture's height stand words only.
WORDS_FROM = 0.72
# Iterations: until the first blow, of each blow, between the first and the second, and after the last.
HEALTHY, BLOW, BETWEEN, AFTER = 40, 24, 12, 14
# The first that do not count: caches fill.
SKIPPED = 2
LATENCY_TIMES, SLOWDOWN = 6.0, 3.0
WORDS = {"rebalance": "fewer microbatches", "topology": "ranks change places", "restart": "restarted without it"}


def blows(pace_s: float, scale: float = 1.0) -> tuple[list[InjectedEvent], int]:
    """(the three InjectedEvents, iterations in all), of stretches `scale` times as long."""
    healthy, blow, between, after = (max(1, round(scale * count)) for count in (HEALTHY, BLOW, BETWEEN, AFTER))
    second = healthy + blow + between
    events = [
        InjectedEvent(healthy, healthy + blow, links=((0, 1),), latency_s=LATENCY_TIMES * pace_s),
        InjectedEvent(second, second + blow, rank=2, slowdown=SLOWDOWN),
        InjectedEvent(second + blow, second + 2 * blow, rank=1, slowdown=SLOWDOWN),
    ]
    return events, second + 2 * blow + after


def run_blows(comm: Communicator, work: dict[str, Any]) -> dict[str, Any] | None:
    """Train both on this rank, an iteration of each in turn; on rank 0 what was measured, None on the others.

    Args:
        work: as work_of makes it.
    """
    jobs = {name: _Job(comm, work, acts=acts) for name, acts in (("without", False), ("with", True))}
    ends_s = time.monotonic() + work["limit_s"]
    try:
        # What else the machine does disturbs both alike.
        for number in range(work["iterations"]):
            if _first_says(comm, time.monotonic() >= ends_s):
                break
            if comm.rank == 0:
                report.progress(f"iteration {number + 1} of {work['iterations']}, of both jobs in turn")
            for job in jobs.values():
                told = job.iteration()
                if comm.rank == 0:
                    report.say(told)
        return {name: job.found() for name, job in jobs.items()} if comm.rank == 0 else None
    finally:
        for job in jobs.values():
            job.mitigated.close()


def work_of(pace_s: float, seed: int, limit_s: float, scale: float = 1.0) -> dict[str, Any]:
    """The work of all ranks, as JSON; `limit_s`: after which a run ends wherever it is."""
    events, iterations = blows(pace_s, scale)
    about = {"pace_s": pace_s, "seed": seed, "iterations": iterations, "limit_s": limit_s}
    return about | {"events": [event.to_dict() for event in events]}


def _first_says(comm: Communicator, value: bool) -> bool:
    """Return the `value` of rank 0; every rank calls it."""
    told = np.array([value], np.int64)
    comm.broadcast(told)
    return bool(told[0])


def _setup(comm: Communicator, seed: int) -> Setup:
    """Return the Setup of a small GPT on this library's own source text."""
    parser = argparse.ArgumentParser()
    add_model_arguments(parser, "1")
    parser.set_defaults(seed=seed)
    words = [*MODEL, "--stages", str(STAGES), "--data-parallel", str(COPIES)]
    return make_setup(parser.parse_args(words), comm.world_size, read_text(own_text.__file__))


class _Job:
    """One of the two, on this rank; `acts`: whether it is watched and mitigated."""

    def __init__(self, comm: Communicator, work: Mapping[str, Any], *, acts: bool) -> None:
        setup = _setup(comm, work["seed"])
        problem = Problem(STAGES, MICROBATCHES // COPIES, *(work["pace_s"],) * 3)
        plans = own_text.plans(problem, SCHEDULER, setup.microbatches)
        events = [InjectedEvent.from_dict(event) for event in work["events"]]
        self.mitigated = Mitigated(comm, setup, plans, {"layout": setup.layout}, events, work["pace_s"], acts=acts)
        # Of an iteration.
        self.tokens: int = setup.settings.microbatches * setup.settings.rows * setup.settings.length
        self.results: list[dict[str, Any]] = []
        self.lines: list[str] = []

    def iteration(self) -> list[str]:
        """One more; what was done about it, in words."""
        began_s = time.monotonic()
        done = self.mitigated.iteration()
        took_s, loss = time.monotonic() - began_s, None if done is None else done.loss
        self.results.append({"iteration": len(self.results), "time_s": took_s, "loss": loss})
        told = self.mitigated.news()
        self.lines += told
        return told

    def found(self) -> dict[str, Any]:
        """On rank 0."""
        return {"results": self.results, "tokens": self.tokens, "lines": self.lines, **self.mitigated.summary()}


def summed_up(work: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """The document: for each blow who was named when, what was done, and what iterations took with and without it."""
    mitigated, alone = found["with"], found["without"]
    usual_s = _median_s(alone["results"], SKIPPED, work["events"][0]["first"])
    records = []
    for one in work["events"]:
        event = InjectedEvent.from_dict(one)
        what, first, last = event.suspect, event.first, int(event.last)
        named = [i for i in mitigated["incidents"] if i["what"] == what and first <= i["named"] < last + BETWEEN]
        done = [
            act
            for act in mitigated["acted"]
            if act["kind"] == "mitigate" and first <= act["iteration"] < last and what in act["suspects"]
        ]
        since = done[-1]["at"] if done else last
        records.append(
            {
                "what": what,
                "first": first,
                "last": last,
                "named": named[0]["named"] if named else None,
                "severity": named[0]["severity"] if named else None,
                "strategies": [act["strategy"] for act in done],
                "done_at": [act["at"] for act in done],
                "ended": named[0]["ended"] if named else None,
                "alone_s": _median_s(alone["results"], first, last),
                "mitigated_s": _median_s(mitigated["results"], since, last),
                "whole_s": _sum_s(mitigated["results"], first, last),
                "whole_alone_s": _sum_s(alone["results"], first, last),
            }
        )
    others = {i["what"] for i in mitigated["incidents"]} - {record["what"] for record in records}
    whole = all(len(run["results"]) == work["iterations"] for run in (alone, mitigated))
    seen = all(record["named"] is not None and record["strategies"] for record in records)
    return report.envelope(
        blows=records, usual_s=usual_s, wrong=sorted(others), cut_short=not whole, closed=whole and seen and not others,
        work=dict(work), **found,
    )  # fmt: skip


def _median_s(results: Sequence[Mapping[str, Any]], first: int, last: int) -> float | None:
    some = [one["time_s"] for one in results[first:last]]
    return statistics.median(some) if some else None


def _sum_s(results: Sequence[Mapping[str, Any]], first: int, last: int) -> float:
    return float(sum(one["time_s"] for one in results[first:last]))


COLUMNS = [
    *(("blow", ""), ("iterations", ""), ("named", "after"), ("what was done", ""), ("left alone", "iteration")),
    *(("mitigated", ""), ("usual", "")),
]


def print_blows(document: Mapping[str, Any], file: TextIO) -> None:
    """The table at the end."""
    rows = [
        [
            *(one["what"], f"{one['first']}-{one['last'] - 1}"),
            *("-" if one["named"] is None else one["named"] - one["first"] + 1, ", ".join(one["strategies"]) or "-"),
            *map(format_time, (one["alone_s"], one["mitigated_s"], document["usual_s"])),
        ]
        for one in document["blows"]
    ]
    report.print_table(COLUMNS, rows, left=(0, 3), file=file)
    alone_s, with_s = (sum(one[key] for one in document["blows"]) for key in ("whole_alone_s", "whole_s"))
    if alone_s and with_s:
        print(f"three blows in all: {format_time(alone_s)} left alone, {format_time(with_s)} mitigated", file=file)
    if document["cut_short"]:
        print("CUT SHORT: --limit was over before the last iteration", file=file)
    for what in document["wrong"]:
        print(f"WRONG PLACE: {what} was named, too", file=file)


def plot_blows(path: str, document: Mapping[str, Any]) -> None:
    """Draw the document: throughput, and as a grey line that of the job left alone.

    Raises:
        InputError: the file cannot be written, or its ending names no picture format.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from lanterne.bench.output.plots import in_style
    from lanterne.pipeline.simulate.gantt import save

    with in_style():
        figure, axes = plt.subplots(figsize=(10, 4.6), layout="constrained")
        tops = []
        for name, colour, width, label in (
            ("without", "0.65", 1.3, "the same job, left alone"),
            ("with", "#0072b2", 1.8, "watched and mitigated by lanterne"),
        ):
            run = document[name]
            rates = [run["tokens"] / one["time_s"] for one in run["results"]]
            axes.plot(range(len(rates)), rates, color=colour, linewidth=width, label=label)
            tops.append(sorted(rates)[int(0.95 * (len(rates) - 1))])
        top = 1.6 * max(tops)
        for number, one in enumerate(document["blows"]):
            shade = 0.08 + 0.05 * (number % 2)
            axes.axvspan(one["first"] - 0.5, one["last"] - 0.5, color="#d55e00", alpha=shade, linewidth=0)
            place: dict[str, Any] = {"textcoords": "offset points", "va": "top", "fontsize": 8}
            axes.annotate(_blow_words(document, number), (one["first"], 0.985 * top), (3, 0), **place)
            if one["named"] is not None:
                axes.axvline(one["named"], ymax=WORDS_FROM, color="#d55e00", linewidth=0.9, linestyle=":")
            for at in one["done_at"]:
                axes.axvline(at, ymax=WORDS_FROM, color="#009e73", linewidth=0.9, linestyle="--")
        axes.set_ylim(0, top)
        axes.set_xlabel("iteration (shaded: something is slow; dotted: named; dashed: work arranged anew)")
        axes.set_ylabel("tokens/s")
        axes.set_title("lanterne demo: three blows to a job of 2 copies x 2 stages", loc="left", fontsize=10)
        axes.legend(loc="upper left", fontsize=8, frameon=False)
        save(figure, path)


def _blow_words(document: Mapping[str, Any], number: int) -> str:
    """Who, when, what was done, what was gained; a few lines."""
    one, event = document["blows"][number], document["work"]["events"][number]
    slow = f"+{format_time(event['latency_s'])}" if event.get("links") else f"x{event['slowdown']:g}"
    lines = [f"{'it moves: ' if number == 2 else ''}{one['what']} {slow}"]
    if one["named"] is None:
        return "\n".join([*lines, "not named"])
    lines.append(f"named after {one['named'] - one['first'] + 1} iterations")
    lines += [str(WORDS.get(strategy, strategy)) for strategy in dict.fromkeys(one["strategies"])]
    if one["mitigated_s"] and one["alone_s"]:
        lines.append(f"then {one['alone_s'] / one['mitigated_s']:.2f} x as fast")
    return "\n".join(lines)
