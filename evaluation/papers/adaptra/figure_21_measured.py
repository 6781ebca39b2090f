"""ADAPTRA figure 21 on eight processes: the events of table 3 while plans stay, adapt by what is measured, or know all.

Nothing tells the adapting pipeline of an event but the delay of its messages. Iterations and times are a tenth and a
fourth of the paper's, 12 microbatches; the delays keep their ratio to the durations of adaptra-21.
"""

import statistics
from collections.abc import Sequence

from evaluation.papers.adaptra import setting
from evaluation.papers.adaptra.figure_21 import DEAD_NIC_AT, EVENTS, ITERATIONS, PAPER_MIN, QUIET, REASON, RESTART_S
from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from lanterne.bench.output.bars import Bar, at_least
from lanterne.bench.output.units import format_count
from lanterne.bench.pipeline.adaptation import ADAPT, FIXED, KNOWN, Mode
from lanterne.bench.pipeline.adaptation_report import bars as document_bars
from lanterne.bench.pipeline.adaptation_report import draw as draw_document
from lanterne.bench.pipeline.adaptation_report import run_with_events
from lanterne.pipeline.adapt.injection import InjectedEvent
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check

SHORTER, FASTER = 10, 4
UNIT_S = 1e-3 / FASTER
PROBLEM = Problem(8, 12, QUIET.forward[0] * UNIT_S, QUIET.backward_input[0] * UNIT_S, QUIET.backward_weight[0] * UNIT_S)
# --quick stops behind the fifth event.
QUICK_ITERATIONS = 560 // SHORTER
# The links of the stage whose NIC dies.
DEAD_LINKS = (1, 2)
# Name -> scheduler, kind, name in the paper.
SYSTEMS: dict[str, tuple[str, str, str | None]] = {
    "1F1B": ("1f1b", FIXED, "1F1B"),
    "ZB": (setting.ZERO_BUBBLE, FIXED, "ZB"),
    "adapting": (setting.ZERO_BUBBLE, ADAPT, "ADAPTRA"),
    "full knowledge": (setting.ZERO_BUBBLE, KNOWN, None),
}
FIGURE_INCHES = (11, 4.5)
NOTES = """
iterations: their time, which is what `over adapting` compares; the schedules that stay lose as many of them to a
restart after the dead NIC as in adaptra-21
between: agreeing, planning, starting delegates for slow links: seconds whatever the job's scale, so beside events that
are 40 times shorter than the paper's they weigh 40 times as much as in its job
"""
COLUMNS: Columns = [
    ("system", ""),
    ("iterations", "s"),
    ("over adapting", ""),
    ("paper", ""),
    ("between", "s"),
    ("undisturbed", "ms"),
    ("disturbed", "ms"),
    ("changes", ""),
]


def events() -> tuple[InjectedEvent, ...]:
    """The Events, shorter and faster."""
    found = [
        InjectedEvent(first // SHORTER, last // SHORTER, links, latency * UNIT_S)
        for first, last, links, latency in EVENTS
    ]
    return (*found, InjectedEvent(DEAD_NIC_AT // SHORTER, links=DEAD_LINKS, down=True))


def run(quick: bool) -> list[Record]:
    """One record per system."""
    iterations = QUICK_ITERATIONS if quick else ITERATIONS // SHORTER
    modes = [
        Mode(
            name,
            kind,
            check(plan(PROBLEM, scheduler), PROBLEM),
            options=setting.IN_ORDER,
            delegates=setting.DELEGATES,
        )
        for name, (scheduler, kind, _) in SYSTEMS.items()
        if not (quick and name == "1F1B")
    ]
    happened = [event for event in events() if event.first < iterations]
    document = run_with_events(modes, happened, iterations, "mpi", 60.0)
    assert document is not None
    records = document.pop("results")
    quiet_s = records[0]["undisturbed_s"]
    for record in records:
        stays = SYSTEMS[record["mode"]][1] == FIXED and any(event.down for event in happened)
        restart_s = RESTART_S / (QUIET_S_OF_PAPER * SHORTER) * quiet_s if stays else 0.0
        record.update(document, restart_s=restart_s, iterations_s=sum(record["iteration_s"]) + restart_s)
        record["between_s"] = sum(record["settle_s"])
    adapting_s = next(record["iterations_s"] for record in records if record["kind"] == ADAPT)
    return [record | {"over_adapting": record["iterations_s"] / adapting_s} for record in records]


# Seconds of an iteration in adaptra-21 without events, by which RESTART_S becomes a number of iterations.
QUIET_S_OF_PAPER = 1.56


def row(record: Record) -> list[object]:
    """One line of the table."""
    name = SYSTEMS[record["mode"]][2]
    paper = PAPER_MIN[name] if name else None
    return [
        record["mode"],
        f"{record['iterations_s']:.1f}",
        f"{record['over_adapting']:.2f}",
        "-" if paper is None else f"{paper / PAPER_MIN['ADAPTRA']:.2f}",
        f"{record['between_s']:.1f}",
        f"{record['undisturbed_s'] * 1e3:.0f}",
        f"{record['disturbed_s'] * 1e3:.0f}",
        len(record["changes"]),
    ]


def findings(records: Sequence[Record]) -> list[str]:
    """What adapting reached per event, and in all."""
    outcomes = next(record["outcomes"] for record in records if record["kind"] == ADAPT)
    lines = []
    for outcome in outcomes:
        links = ", ".join(f"{link}-{link + 1}" for link in outcome["links"])
        change = outcome["change"]
        lag = format_count(outcome["lag"], "iteration")
        when = f"after {lag}: {change['scheduler'] or 'same plan'}" if change else "no change"
        lines.append(
            f"# iterations {outcome['first']} to {outcome['last']}, links {links}: {when}; "
            f"{outcome['before_s'] * 1e3:.0f} then {outcome['after_s'] * 1e3:.0f} ms, "
            f"{outcome['share_of_known']:.1%} of the throughput with full knowledge"
        )
    return lines


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """How many times ADAPTRA's minutes the schedules that stay take."""
    found = {SYSTEMS[record["mode"]][2]: record["over_adapting"] for record in records}
    return [
        PaperValue(f"{name} over ADAPTRA", found[name], PAPER_MIN[name] / PAPER_MIN["ADAPTRA"], REASON)
        for name in ("1F1B", "ZB")
        if name in found
    ]


def bars(records: Sequence[Record]) -> list[Bar]:
    """How soon a new plan runs, and what it reaches."""
    outcomes = next(record["outcomes"] for record in records if record["kind"] == ADAPT)
    median = statistics.median(outcome["share_of_known"] for outcome in outcomes)
    return [*document_bars(records, must_change=True), at_least("the same, median", median, 0.9, "{:.1%}")]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Time over iterations."""
    draw_document(figure.subplots(), {**records[0], "results": records})
