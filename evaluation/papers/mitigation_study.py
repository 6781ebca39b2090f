"""Spells in which ranks or links of a job are slow, one after the other, with and without mitigation: their records."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.mitigation_job import run_job, same_losses
from evaluation.papers.experiment import Axes, Columns, Record
from lanterne.bench.output.units import format_time
from lanterne.pipeline.adapt.injection import InjectedEvent

FIRST, GAP = 16, 8
# What the mean of the paper's figure 14, 1.7, and 1.31 s of figure 15 after some 0.78 s, say of its severities.
SEVERITIES = {"weak": 1.3, "medium": 1.7, "severe": 2.1}
NEVER_S = 1e9
COLUMNS: Columns = [
    ("job", ""), ("slow", ""), ("healthy", ""), ("slow", "x"), ("mitigated", "x"), ("gain", ""), ("paper", ""),
    ("named", "after"), ("strategy", ""),
]  # fmt: skip


def spells(
    name: str,
    layout: tuple[int, int, int],
    cases: Mapping[str, Sequence[dict[str, Any]]],
    length: int,
    settings: dict[str, Any] | None = None,
    paper: Mapping[str, tuple[float, float]] | None = None,
) -> list[Record]:
    """A record per case.

    Args:
        name: of the job. layout: (copies, places, microbatches of all copies).
        cases: label -> tuple of dicts: what Events have beside first and last; one spell each.
        length: iterations of a spell.
        settings: of Settings, where not the default.
        paper: label -> (slow, mitigated) over healthy, as far as printed.
    """
    events: list[InjectedEvent] = []
    spans: list[tuple[int, int]] = []
    for index, slow in enumerate(cases.values()):
        first = FIRST + index * (length + GAP)
        spans.append((first, first + length))
        events += [InjectedEvent(first, first + length, **each) for each in slow]
    iterations = spans[-1][1] + GAP
    runs = {acts: run_job(*layout, events, iterations, acts=acts, settings=settings) for acts in (False, True)}
    healthy_s = statistics.median(runs[False]["iteration_s"][4:FIRST])
    records = []
    for label, (first, last) in zip(cases, spans, strict=True):
        acted = [act for act in runs[True]["acted"] if act["kind"] == "mitigate" and first <= act["iteration"] < last]
        named = [one["named"] for one in runs[True]["incidents"] if first <= one["named"] < last]
        # The second half: as it is once all has been done.
        plain_s, mitigated_s = (
            statistics.median(runs[acts]["iteration_s"][(first + last) // 2 : last]) for acts in (False, True)
        )
        records.append(
            {
                "job": name,
                "case": label,
                "healthy_s": healthy_s,
                "plain_s": plain_s,
                "mitigated_s": mitigated_s,
                "named_after": min(named) - first + 1 if named else None,
                "strategies": list(dict.fromkeys(act["strategy"] for act in acted)),
                "paper": (paper or {}).get(label),
                "same_losses": same_losses(runs[False], runs[True]),
            }
        )
    return records


def row(record: Record) -> list[object]:
    """One line of the table."""
    healthy_s, plain_s, mitigated_s = (record[f"{key}_s"] for key in ("healthy", "plain", "mitigated"))
    paper = record["paper"]
    return [
        record["job"],
        record["case"],
        format_time(healthy_s),
        f"{plain_s / healthy_s:.2f}",
        f"{mitigated_s / healthy_s:.2f}",
        f"{plain_s / mitigated_s:.2f}",
        f"{paper[0]:g} to {paper[1]:g}" if paper else "-",
        record["named_after"] or "-",
        ", ".join(record["strategies"]) or "-",
    ]


def draw(axes: Axes, records: Sequence[Record], title: str = "") -> None:
    """Bars of slow and mitigated iterations over healthy ones; crosses where the paper's are."""
    at = range(len(records))
    for shift, key, color in ((-0.2, "plain_s", "C7"), (0.2, "mitigated_s", "C0")):
        heights = [record[key] / record["healthy_s"] for record in records]
        axes.bar([x + shift for x in at], heights, 0.38, color=color, label=key[:-2].replace("plain", "without"))
    for index, shift in ((0, -0.2), (1, 0.2)):
        told = [(x + shift, r["paper"][index]) for x, r in zip(at, records, strict=True) if r["paper"]]
        label = "paper" if told and not index else None
        axes.plot([x for x, _ in told], [y for _, y in told], "kx", label=label)
    axes.axhline(1, color="0.6", lw=0.8, ls="--")
    labels = [f"{record['job'].partition(',')[0]}\n{record['case']}" for record in records]
    axes.set_xticks(list(at), labels, fontsize=7)
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylabel("iteration over a healthy one")
    axes.legend(frameon=False, fontsize=8, ncols=3, loc="upper right", bbox_to_anchor=(1, 1.1))
