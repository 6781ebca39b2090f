"""ADAPTRA figures 4, 5 and 8: what a slow link costs by the slack between stages: iterations and bubbles, simulated.

Four stages, 30 microbatches, F, B and W of 10 ms each, as the paper has it; B and F strictly in turn, W last, and the
delay on the first link. The paper prints no figures but its theorem 1: up to (slack - 1) x 10 ms a delay costs no more
than itself, beyond it accumulates. Section 4.1 adds that the delay of several slow links is the sum of theirs; that is
simulated too, on two links.
"""

from collections.abc import Collection, Sequence

from evaluation.papers.experiment import AGREES, Columns, Figure, PaperValue, Record
from evaluation.papers.study import slowed
from lanterne.bench.output.bars import Bar, at_least, at_most
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.schedules.alternating import alternating
from lanterne.pipeline.simulate.analysis import bubble_rate
from lanterne.pipeline.simulate.simulate import simulate

MICROBATCHES, STAGES, ACTION_MS = 30, 4, 10.0
SLACKS, DELAYS_MS = (1, 2, 3, 4, 5, 6), (0, 10, 20, 30, 40, 50, 60)
# Slow together, by so much each.
TWO_LINKS, TWO_MS = (0, 2), 30
FIGURE_INCHES = (10, 4.5)
NOTES = """
cost: of the delay, over the same plan without; by theorem 1 the delay itself up to the threshold, (slack - 1) x 10 ms
"""
COLUMNS: Columns = [("slack", ""), ("threshold", "ms")]
COLUMNS = [*COLUMNS, *((f"{delay} ms", what) for delay in DELAYS_MS[1:] for what in ("cost", "bubbles"))]


def run(quick: bool) -> list[Record]:
    """One record per slack."""
    records: list[Record] = []
    for slack in SLACKS:
        plan = alternating(_problem(0), slack=slack)
        found = [simulate(plan, _problem(delay)) for delay in DELAYS_MS]
        places = (*((link,) for link in TWO_LINKS), TWO_LINKS)
        records.append(
            {
                "slack": slack,
                "threshold_ms": (slack - 1) * ACTION_MS,
                "makespan_ms": [each.makespan for each in found],
                "bubble_rate": [bubble_rate(each) for each in found],
                # Of each of TWO_LINKS, then of both.
                "two_links_cost_ms": [
                    simulate(plan, _problem(TWO_MS, links)).makespan - found[0].makespan for links in places
                ],
            }
        )
    return records


def _problem(delay_ms: float, slow: Collection[int] = (0,)) -> Problem:
    links = [delay_ms if link in slow else 0.0 for link in range(STAGES - 1)]
    return Problem(STAGES, MICROBATCHES, ACTION_MS, ACTION_MS, ACTION_MS, links)


def row(record: Record) -> list[object]:
    """One line of the table."""
    quiet, *slow = record["makespan_ms"]
    cells: list[object] = [record["slack"], f"{record['threshold_ms']:g}"]
    for makespan, bubbles in zip(slow, record["bubble_rate"][1:], strict=True):
        cells += [f"{makespan - quiet:g}", f"{bubbles:.0%}"]
    return cells


def findings(records: Sequence[Record]) -> list[str]:
    """Return a line for each slack at which two slow links do not cost the sum of what each costs."""
    lines = []
    for record in records:
        *alone, both = record["two_links_cost_ms"]
        if abs(both - sum(alone)) > AGREES * sum(alone):
            lines.append(
                f"slack {record['slack']}, {TWO_MS} ms on links {TWO_LINKS[0]} and {TWO_LINKS[1]}: {both:g} ms longer, "
                f"not the sum, {sum(alone):g} ms, as section 4.1 states: stages wait for both links at once"
            )
    return lines


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Figures 4 and 5: the same with 12 microbatches and a slack of 2."""
    quiet = Problem(STAGES, 12, ACTION_MS, ACTION_MS, ACTION_MS)
    plan, printed = alternating(quiet, slack=2), {0.0: 390.0, 10.0: 400.0, 20.0: 440.0}
    return [
        PaperValue(
            f"figure {5 if delay else 4}, {delay:g} ms", simulate(plan, slowed(quiet, {0: delay})).makespan, paper
        )
        for delay, paper in printed.items()
    ]


def bars(records: Sequence[Record]) -> list[Bar]:
    """Theorem 1, both ways."""
    costs: dict[bool, list[float]] = {True: [1.0], False: []}
    for record in records:
        quiet, *slow = record["makespan_ms"]
        for delay, makespan in zip(DELAYS_MS[1:], slow, strict=True):
            costs[delay <= record["threshold_ms"]].append((makespan - quiet) / delay)
    return [
        at_most("up to the threshold, cost over delay", max(costs[True]), 1.0),
        at_least("beyond the threshold, cost over delay", min(costs[False]), 1.25),
    ]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """What the delay costs, and bubbles."""
    left, right = figure.subplots(1, 2)
    for record in records:
        quiet = record["makespan_ms"][0]
        label = f"slack {record['slack']}"
        left.plot(DELAYS_MS, [makespan - quiet for makespan in record["makespan_ms"]], marker="o", label=label)
        right.plot(DELAYS_MS, [100 * rate for rate in record["bubble_rate"]], marker="o", label=label)
    left.plot(DELAYS_MS, DELAYS_MS, color="grey", linewidth=0.8)
    left.set(xlabel="delay of the first link (ms)", ylabel="longer than without (ms)")
    right.set(xlabel="delay of the first link (ms)", ylabel="bubbles (%)")
    left.legend(frameon=False)
