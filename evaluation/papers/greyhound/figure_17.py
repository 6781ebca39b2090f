"""GREYHOUND figure 17: seconds that the validation of a suspect group takes: computing and transfers.

A group of 4 ranks: validate() of all of it within 5 s, and of two suspects alone, as the closed loop does it between
two iterations; nothing slow, a rank that is slow on purpose, and an emulated slow link.
"""

import statistics
import time
from collections.abc import Sequence
from functools import partial
from math import isnan
from typing import Any

from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from lanterne.bench.output.units import format_time
from lanterne.bench.pipeline.measure import on_ranks
from lanterne.collectives.communicator import Communicator
from lanterne.failslow.validate.suspects import Examiner
from lanterne.failslow.validate.validate import Injected, validate
from lanterne.pipeline.adapt.suspect import Suspect
from lanterne.pipeline.planes.plane_makers import shaped
from lanterne.transport.shaped import Link

RANKS, LIMIT_S = 4, 5.0
# The paper's GPUs are slowed to 300 MHz: some 3.3 times.
SLOW_RANK, SLOWDOWN, SLOW_LINK, SLOW_BYTES_PER_S, SLOW_LATENCY_S = 1, 3.3, (0, 1), 2e8, 5e-3
CASES = ("healthy", "slow rank", "slow link")
# Computing: A10, A100, H800, healthy and slow; transfers: at most.
PAPER: dict[str, tuple[tuple[float, ...], float]] = {
    "healthy": ((0.59, 0.51, 0.24), 3.04),
    "slow rank": ((1.94, 1.23, 0.87), 3.04),
    "slow link": ((), 3.04),
}
PAPER_ALL_S = 5.0
CPUS = "ranks on CPU cores, which compute and transfer other amounts than the paper's GPUs"
COLUMNS: Columns = [
    ("group", ""), ("computing", ""), ("paper", "s"), ("transfers", ""), ("paper", "s at most"), ("validate", "in all"),
    ("found", ""), ("validate", "suspects"), ("severity", ""),
]  # fmt: skip
FIGURE_INCHES = (7, 4)
NOTES = """
computing, transfers: of the repetitions of one rank, of all links; paper: A10, A100, H800, and some 5 s in all
"""


def run(quick: bool) -> list[Record]:
    """A record per case."""
    work = {"limit_s": LIMIT_S / 2 if quick else LIMIT_S}
    return on_ranks(measure, work, RANKS, "mpi", 60.0)


def measure(comm: Communicator, work: dict[str, Any]) -> list[Record] | None:
    """The records, on rank 0 of a group."""
    records = []
    for case in CASES:
        links = {SLOW_LINK: Link(SLOW_LATENCY_S, SLOW_BYTES_PER_S)} if case == "slow link" else {}
        links |= {(b, a): link for (a, b), link in links.items()}
        slowdown = SLOWDOWN if case == "slow rank" and comm.rank == SLOW_RANK else 1.0
        under_test = shaped(comm, links)
        found = validate(under_test, limit_s=work["limit_s"], injected=Injected(slowdown))
        comm.barrier()
        examiner = Examiner(comm, under_test.transport, slowdown=partial(float, slowdown))
        comm.barrier()
        began_s = time.monotonic()
        severities = examiner.examine((Suspect.rank(SLOW_RANK), Suspect.link(*SLOW_LINK)))
        comm.barrier()
        examined_s = time.monotonic() - began_s
        examiner.close()
        alone = [r for r in found.compute if r["rank"] == SLOW_RANK and r["when"] == "alone"]
        records.append(
            {
                "case": case,
                "compute_s": sum(sum(r["wall_s"]) for r in alone),
                "transfer_s": sum(sum(r["time_s"]) for r in found.links) / 2,
                "took_s": found.took_s,
                "findings": [finding._asdict() for finding in found.findings],
                "examined_s": examined_s,
                # null: an Examiner is not sure of a suspect.
                "severities": {name: None if isnan(value) else value for name, value in severities.items()},
                "paper_s": PAPER[case],
            }
        )
    return records if comm.rank == 0 else None


def row(record: Record) -> list[object]:
    """One line of the table."""
    computing, transfers = record["paper_s"]
    severities = [_severity(name, value) for name, value in record["severities"].items()]
    found = [
        Suspect.rank(finding["ranks"][0]) if finding["ranks"] else Suspect.link(*finding["links"][0])
        for finding in record["findings"]
    ]
    return [
        record["case"],
        format_time(record["compute_s"]),
        "/".join(map(str, computing)) or "-",
        format_time(record["transfer_s"]),
        transfers,
        format_time(record["took_s"]),
        ", ".join(dict.fromkeys(found)) or "nothing",
        format_time(record["examined_s"]),
        ", ".join(severities),
    ]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Seconds in all and of transfers, and how many times as long a slow rank computes."""
    values, by_case = [], {record["case"]: record for record in records}
    for case, record in by_case.items():
        values.append(PaperValue(f"{case}, validate in all", record["took_s"], PAPER_ALL_S, CPUS))
        values.append(PaperValue(f"{case}, transfers", record["transfer_s"], record["paper_s"][1], CPUS))
    if {"healthy", "slow rank"} <= by_case.keys():
        ratio = by_case["slow rank"]["compute_s"] / by_case["healthy"]["compute_s"]
        papers = [a / b for a, b in zip(PAPER["slow rank"][0], PAPER["healthy"][0], strict=True)]
        values.append(PaperValue("computing, slow over healthy", ratio, statistics.mean(papers), "mean of three GPUs"))
    return values


def _severity(name: str, value: float | None) -> str:
    if value is None:
        return "unsure"
    return f"{value:.2f}x" if Suspect(name).is_rank else f"+{format_time(max(value, 0))}"


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Bars of computing, transfers and all."""
    axes = figure.subplots()
    for index, key in enumerate(("compute_s", "transfer_s", "took_s", "examined_s")):
        at = [x + 0.2 * index - 0.3 for x in range(len(records))]
        axes.bar(at, [record[key] for record in records], 0.18, label=key[:-2].replace("took", "validate in all"))
    means = [statistics.mean(record["paper_s"][0]) if record["paper_s"][0] else None for record in records]
    told = [(x - 0.3, mean) for x, mean in enumerate(means) if mean is not None]
    axes.plot([x for x, _ in told], [y for _, y in told], "kx", label="paper, mean of GPUs")
    axes.set_xticks(range(len(records)), [record["case"] for record in records])
    axes.set_ylabel("seconds")
    axes.legend(frameon=False)
