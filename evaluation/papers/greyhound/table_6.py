"""GREYHOUND table 6 and figure 20: a job with 2 communication and 10 compute events, with and without mitigation.

Scaled down: 8 ranks, 4 copies x 2 stages, instead of 256 GPUs; iterations of some 0.2 s instead of 1.6 s, so what an
event costs besides weighs 8 times as much; events of 40 iterations. The whole takes some 6 minutes. The job trains (a
small MLP whose actions are paced, so that 8 ranks on 2 cores behave as on 8), the schedule of events is unknown to it,
and all that is done to it is measured. The paper prints no factors: weak, medium and severe are 1.5, 2.3 and 3.5 times
here, chosen to lose as much throughput without mitigation as its events do, iterations 1.98 times as long; what they
did lose is printed.
"""

import statistics
from collections.abc import Sequence
from math import nan

from evaluation.mitigation_job import outcomes, run_job, same_losses
from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from lanterne.bench.output.bars import Bar, at_least
from lanterne.bench.output.units import format_time
from lanterne.pipeline.adapt.injection import InjectedEvent
from lanterne.pipeline.adapt.suspect import Suspect

COPIES, PLACES, MICROBATCHES = 4, 2, 48
WEAK, MEDIUM, SEVERE = range(3)
FACTORS = (1.5, 2.3, 3.5)
MEDIUM_LINK_S, PACE_S = 80e-3, 5e-3
FIRST, LENGTH, GAP, REST = 20, 40, 4, 4
# (rank, severity) in turn; a link from LEAD iterations before the third and the eighth until they end: compound.
LEAD = 10
COMPUTE = (
    (3, MEDIUM), (0, WEAK), (5, MEDIUM), (6, SEVERE), (1, MEDIUM),
    (4, WEAK), (7, MEDIUM), (2, MEDIUM), (3, SEVERE), (6, WEAK),
)  # fmt: skip
LINKS = {2: (0, 2), 7: (5, 7)}
PAPER = {"healthy": 37.4, "plain": 18.9, "mitigated": 29.8}
# Throughput over that without mitigation, and iterations from an event's beginning until it is named.
BAR, PAPER_GAIN, PAPER_NAMED = 1.5, 1.58, 10.56 * 37.4 / 60
FITTED = "the paper prints no severities; those of greyhound-table-6 are chosen for this value"
PHASES = "the paper's are 3.7 s until its detector fires and 6.86 s of profiling and validating"
SMALL = "8 ranks and 4 copies instead of 256 and 16, iterations 8 times shorter"
FIGURE_INCHES = (10, 5)
NOTES = """
named, over: iterations from its beginning until it was named, and from its end until the job was as before
paper: 37.4 iterations a minute, 18.9 with events, 29.8 mitigated: 1.58 times; all 12 named after 10.56 s or some 6.6
iterations
"""
COLUMNS: Columns = [
    ("what", ""),
    ("severity", ""),
    ("from", "iteration"),
    ("to", ""),
    ("named", "after"),
    ("over", "after"),
    ("strategy", ""),
    ("without", "iteration"),
    ("mitigated", "iteration"),
    ("gain", ""),
]


def schedule(quick: bool, factors: tuple[float, float, float] = FACTORS) -> list[InjectedEvent]:
    """The Events, in order; `factors` of weak, medium and severe ones."""
    events, first = [], FIRST
    for index, (rank, severity) in enumerate(COMPUTE[:3] if quick else COMPUTE):
        if index in LINKS:
            events.append(InjectedEvent(first, first + LEAD + LENGTH, links=(LINKS[index],), latency_s=MEDIUM_LINK_S))
            first += LEAD
        events.append(InjectedEvent(first, first + LENGTH, rank=rank, slowdown=factors[severity]))
        first += LENGTH + GAP
    return events


def run(quick: bool) -> list[Record]:
    """One record per event, and one of the whole run, which comes last."""
    return measure(schedule(quick))


def measure(events: Sequence[InjectedEvent]) -> list[Record]:
    """The records of a job with `events`."""
    iterations = int(max(event.last for event in events)) + REST
    job = COPIES, PLACES, MICROBATCHES
    plain, mitigated = (run_job(*job, events, iterations, acts=acts, pace_s=PACE_S) for acts in (False, True))
    healthy_s = sorted(plain["iteration_s"][4:FIRST])[(FIRST - 4) // 2]
    total = {
        "what": "all",
        "first": 0,
        "last": iterations,
        "plain_s": sum(plain["iteration_s"]) / iterations,
        "mitigated_s": sum(mitigated["iteration_s"]) / iterations,
        "healthy_s": healthy_s,
        "same_losses": same_losses(plain, mitigated),
        "plain": plain,
        "mitigated": mitigated,
    }
    return [*outcomes(events, plain, mitigated), total]


def row(record: Record) -> list[object]:
    """One line of the table."""
    gain = f"{record['plain_s'] / record['mitigated_s']:.2f}"
    times = format_time(record["plain_s"]), format_time(record["mitigated_s"]), gain
    if record["what"] == "all":
        return ["all", "", record["first"], record["last"], "", "", "", *times]
    is_rank = Suspect(record["what"]).is_rank
    severity = f"{record['severity']:g}x" if is_rank else format_time(record["severity"])
    after = [record[key] if record[key] is not None else "-" for key in ("named_after", "ended_after")]
    strategies = ", ".join(record["strategies"]) or "-"
    return [record["what"], severity, record["first"], record["last"], *after, strategies, *times]


def findings(records: Sequence[Record]) -> list[str]:
    """The throughput of the whole run, beside the paper's."""
    *events, total = records
    rates = {key: 60 / total[f"{key}_s"] for key in ("healthy", "plain", "mitigated")}
    gain = total["plain_s"] / total["mitigated_s"]
    named = sum(record["named_after"] is not None for record in events)
    lost, paper_lost = rates["healthy"] / rates["plain"], PAPER["healthy"] / PAPER["plain"]
    return [
        f"without mitigation iterations are {lost:.2f} times as long as in health (paper {paper_lost:.2f})",
        f"iterations a minute: {rates['healthy']:.0f} in health, {rates['plain']:.0f} with the events, "
        f"{rates['mitigated']:.0f} mitigated: {gain:.2f} times (paper {PAPER_GAIN})",
        f"{named} of {len(events)} events named; losses {'the same' if total['same_losses'] else 'NOT THE SAME'}",
    ]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """What the events cost, what is gained and left of that, and when they were named, in iterations."""
    *events, total = records
    named = [record["named_after"] for record in events if record["named_after"] is not None]
    healthy_s, plain_s, mitigated_s = (total[f"{key}_s"] for key in ("healthy", "plain", "mitigated"))
    return [
        PaperValue("iterations without mitigation", plain_s / healthy_s, PAPER["healthy"] / PAPER["plain"], FITTED),
        PaperValue("iterations mitigated", mitigated_s / healthy_s, PAPER["healthy"] / PAPER["mitigated"], SMALL),
        PaperValue("gain", plain_s / mitigated_s, PAPER_GAIN, SMALL),
        PaperValue("events named", len(named) / len(events), 1.0, "some were not"),
        PaperValue("named after", statistics.mean(named) if named else nan, PAPER_NAMED, PHASES),
    ]


def bars(records: Sequence[Record]) -> list[Bar]:
    """The gain, and that all events are named."""
    *events, total = records
    named = sum(record["named_after"] is not None for record in events)
    return [
        at_least("throughput over that without mitigation", total["plain_s"] / total["mitigated_s"], BAR),
        at_least("events named", named, len(events), "{:.0f}"),
    ]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Throughput over iterations, events shaded, what was done marked."""
    *events, total = records
    axes = figure.subplots()
    for record in events:
        is_rank = Suspect(record["what"]).is_rank
        axes.axvspan(
            record["first"],
            record["last"],
            ymax=0.95 if is_rank else 1,
            color="0.93" if is_rank else "C3",
            alpha=1 if is_rank else 0.15,
            lw=0,
        )
    for name, label, style in (("plain", "without mitigation", "C7"), ("mitigated", "mitigated", "C0")):
        times_s = total[name]["iteration_s"]
        rates = [
            60 / (sum(times_s[max(0, i - 2) : i + 3]) / len(times_s[max(0, i - 2) : i + 3]))
            for i in range(len(times_s))
        ]
        axes.plot(rates, style, lw=1.3, label=label)
    marks = {"rebalance": "v", "topology": "^", "restart": "s"}
    for strategy, mark in marks.items():
        at = [act["at"] for act in total["mitigated"]["acted"] if act["strategy"] == strategy]
        if at:
            axes.plot(at, [30] * len(at), mark, label=strategy)
    axes.set(xlabel="iteration (grey: a rank is slow; red: a link is slow too)", ylabel="iterations per minute")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, ncols=5, loc="upper center", bbox_to_anchor=(0.5, 1.1))
