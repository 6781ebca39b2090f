"""GREYHOUND table 6 with the schedule that its artifact publishes: 8 compute and 3 communication events of an hour.

The schedule (github.com/wutianyuan1/Greyhound, detector/injection/injection.py, "Largescale, part1") has each event's
start, duration, copies, stage and seconds that a forward pass is delayed; it is not the one of the paper's table 6,
which has 10 and 2. Nothing of it is fitted. Measured as table 6 is, on 4 copies x 2 stages, an iteration of health for
8 s of the schedule: an event slows one copy of four, instead of one to three of 16. Beside it, simulated at full size:
16 copies x 2 stages, with and without the best that S2 and S3 give once an event has held for three iterations.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from evaluation.papers.experiment import PaperValue, Record
from evaluation.papers.greyhound.table_6 import (
    COLUMNS,
    COPIES,
    FIGURE_INCHES,
    MEDIUM_LINK_S,
    PAPER,
    PAPER_GAIN,
    PLACES,
    draw,
    measure,
    row,
)
from evaluation.papers.greyhound.table_6 import findings as measured_findings
from lanterne.failslow.mitigate.strategies import WELL, Arrangement, Forecaster, Slowness
from lanterne.pipeline.adapt.injection import InjectedEvent
from lanterne.pipeline.plan.problem import Problem


class PublishedEvent(NamedTuple):
    """An event of the schedule: copies whose forward passes of `stage` are delayed, or two whose link is congested."""

    start_s: int
    duration_s: int
    copies: tuple[int, ...]
    stage: int
    delay_s: float | None


# A congested link has no delay: another flow shares it.
SCHEDULE = (
    PublishedEvent(212, 97, (12,), 0, 0.2),
    PublishedEvent(510, 126, (11, 15), 0, 0.3),
    PublishedEvent(710, 1025, (0, 8), 1, None),
    PublishedEvent(1191, 140, (10,), 0, 0.4),
    PublishedEvent(1396, 108, (0, 1, 2), 0, 0.25),
    PublishedEvent(1612, 209, (10, 13), 1, 0.4),
    PublishedEvent(1868, 67, (10, 12, 13), 1, 0.3),
    PublishedEvent(2078, 339, (0, 8), 0, None),
    PublishedEvent(2504, 111, (0,), 0, 0.35),
    PublishedEvent(2785, 155, (1, 4, 7), 1, 0.4),
    PublishedEvent(3096, 507, (8, 12), 1, None),
)
QUICK_EVENTS = 2
# Copies, and microbatches of each: the artifact's global batch of 256 in pairs.
ALL_COPIES, OWN = 16, 8
# Of the paper's healthy iteration, (OWN + 1) forward and backward passes of a stage; a third of them each F, B and W.
WORK_S = 60 / PAPER["healthy"] / (OWN + PLACES - 1)
# Seconds of the schedule for an iteration of the measured job.
SCALE_S = 8.0
REACTION = 3
OTHER = "the published schedule is not the one of the paper's table 6"
FIRST, REST = 20, 4
NOTES = """
events: start and duration as published, a rank's factor by the published delay of a forward pass over 178 ms of a
healthy microbatch; links as in greyhound-table-6, whose severities alone are not published
"""

__all__ = ["COLUMNS", "FIGURE_INCHES", "NOTES", "draw", "findings", "paper_values", "row", "run", "schedule"]


def factor(delay_s: float) -> float:
    """Return how many times as long a microbatch takes with `delay_s` more in its forward pass."""
    return 1 + delay_s / WORK_S


def schedule(quick: bool) -> list[InjectedEvent]:
    """Return the events of the measured job; `quick`: the first ones."""
    found = []
    for event in SCHEDULE[:QUICK_EVENTS] if quick else SCHEDULE:
        first = FIRST + round((event.start_s - SCHEDULE[0].start_s) / SCALE_S)
        last = first + max(1, round(event.duration_s / SCALE_S))
        ranks = [PLACES * (copy * COPIES // ALL_COPIES) + event.stage for copy in event.copies]
        if event.delay_s is None:
            found.append(InjectedEvent(first, last, links=((ranks[0], ranks[1]),), latency_s=MEDIUM_LINK_S))
        else:
            found.append(InjectedEvent(first, last, rank=ranks[0], slowdown=factor(event.delay_s)))
    return found


def run(quick: bool) -> list[Record]:
    """Records as those of table 6."""
    return measure(schedule(quick))


def findings(records: Sequence[Record]) -> list[str]:
    """Those of table 6, then the schedule at full size by the simulator."""
    rates = simulated()
    gain, lost = rates["mitigated"] / rates["plain"], rates["healthy"] / rates["plain"]
    return [
        *measured_findings(records),
        f"simulated, {ALL_COPIES} copies x {PLACES} stages: {rates['healthy']:.1f} iterations a minute in health, "
        f"{rates['plain']:.1f} with the events (1 / {lost:.2f}), {rates['mitigated']:.1f} mitigated: {gain:.2f} times",
        f"the paper, with its other schedule: {PAPER['healthy']}, {PAPER['plain']}, {PAPER['mitigated']}: "
        f"{PAPER_GAIN} times",
    ]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Measured and simulated: what the events cost, and what is gained of that."""
    total = records[-1]
    rates = simulated()
    both = {
        "measured": (total["plain_s"] / total["healthy_s"], total["plain_s"] / total["mitigated_s"]),
        "simulated": (rates["healthy"] / rates["plain"], rates["mitigated"] / rates["plain"]),
    }
    lost = PAPER["healthy"] / PAPER["plain"]
    return [
        value
        for how, (ours, gain) in both.items()
        for value in (
            PaperValue(f"iterations without mitigation, {how}", ours, lost, OTHER),
            PaperValue(f"gain, {how}", gain, PAPER_GAIN, OTHER),
        )
    ]


def simulated() -> dict[str, float]:
    """Return iterations a minute over the whole schedule at full size: healthy, plain and mitigated."""
    forecaster = Forecaster(Problem(PLACES, OWN, WORK_S / 3, WORK_S / 3, WORK_S / 3), "1f1b")
    ranks = tuple(tuple((PLACES * copy + place,) for place in range(PLACES)) for copy in range(ALL_COPIES))
    home = Arrangement(ranks, (OWN,) * ALL_COPIES)
    healthy_s = forecaster.iteration_s(home, WELL)
    edges = sorted({0, *(edge for event in SCHEDULE for edge in (event.start_s, event.start_s + event.duration_s))})
    done = dict.fromkeys(("healthy", "plain", "mitigated"), 0.0)
    for start_s, end_s in pairwise(edges):
        slow = _slowness(start_s, healthy_s)
        plain_s = forecaster.iteration_s(home, slow)
        choices = (home, forecaster.rebalanced(ranks, OWN * ALL_COPIES, slow), forecaster.moved(home, slow))
        best_s = min(forecaster.iteration_s(each, slow) for each in choices)
        span_s = end_s - start_s
        # Until it is found, all is as without mitigation.
        late_s = min(span_s, REACTION * plain_s) if best_s < plain_s else 0.0
        done["healthy"] += span_s / healthy_s
        done["plain"] += span_s / plain_s
        done["mitigated"] += late_s / plain_s + (span_s - late_s) / best_s
    return {key: 60 * count / edges[-1] for key, count in done.items()}


def _slowness(time_s: float, healthy_s: float) -> Slowness:
    """Return what is slow at `time_s`; a congested link makes a healthy iteration twice as long, as in table 6."""
    held = [event for event in SCHEDULE if event.start_s <= time_s < event.start_s + event.duration_s]
    ranks: dict[int, float] = {}
    links: dict[tuple[int, int], float] = {}
    for event in held:
        own = [PLACES * copy + event.stage for copy in event.copies]
        if event.delay_s is None:
            # So many rounds has an all-reduce of 16 copies by halving and doubling.
            links[own[0], own[1]] = healthy_s / 8
        else:
            ranks |= dict.fromkeys(own, factor(event.delay_s))
    return Slowness(ranks, links)
