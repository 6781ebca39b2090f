"""GREYHOUND figure 16: a congested link between two copies moved to where a pipeline hides it (S3), by severity.

Simulated on 16 ranks, 4 copies x 4 stages and 2 copies x 8 stages, as in the paper; measured on a job that trains on 8
ranks, 4 copies x 2 stages.
"""

from collections.abc import Sequence

from evaluation.mitigation_job import PACE_S
from evaluation.papers import mitigation_study
from evaluation.papers.experiment import Figure, PaperValue, Record
from evaluation.papers.mitigation_study import NEVER_S, row, spells
from lanterne.failslow.mitigate.strategies import Arrangement, Forecaster, Slowness
from lanterne.pipeline.plan.problem import Problem

OWN, WORLD_SIZE = 12, 16
# Added to a message, in work on a microbatch of a stage.
DELAYS = {"weak": 1.0, "medium": 2.0, "severe": 4.0}
MEASURED, LENGTH, QUICK_LENGTH = (4, 2, 48), 20, 14
# Gains under severe congestion, which is what the text prints.
PAPER_GAIN = {4: 1.23, 8: 1.14}
COLUMNS = mitigation_study.COLUMNS
FIGURE_INCHES = (10, 4)
NOTES = """
weak, medium, severe: 1, 2 and 4 times the work on a microbatch more for each message of the link
paper: gains of 1.23 with 4 stages and 1.14 with 8 under severe congestion
"""

__all__ = ["COLUMNS", "FIGURE_INCHES", "NOTES", "draw", "findings", "paper_values", "row", "run"]


def run(quick: bool) -> list[Record]:
    """Simulated records, then measured ones."""
    found = [simulated(stages, name, delay) for stages in PAPER_GAIN for name, delay in DELAYS.items()]
    copies, places, _ = MEASURED
    cases = {
        name: ({"links": ((0, places),), "latency_s": delay * 3 * PACE_S},)
        for name, delay in list(DELAYS.items())[1 if quick else 0 :]
    }
    length = QUICK_LENGTH if quick else LENGTH
    name = f"{copies} x {places}, measured"
    return found + spells(name, MEASURED, cases, length, {"restart_s": NEVER_S})


def simulated(stages: int, name: str, delay: float) -> Record:
    """One congested link of `delay` between the first ranks of two copies, and S3."""
    copies = WORLD_SIZE // stages
    forecaster = Forecaster(Problem(stages, OWN, PACE_S, PACE_S, PACE_S), "zb_h1")
    ranks = tuple(tuple((copy * stages + place,) for place in range(stages)) for copy in range(copies))
    home = Arrangement(ranks, (OWN,) * copies)
    slow = Slowness({}, {(0, stages): 3 * PACE_S * delay})
    return {
        "job": f"{copies} x {stages}, simulated",
        "case": name,
        "healthy_s": forecaster.iteration_s(home, Slowness({}, {})),
        "plain_s": forecaster.iteration_s(home, slow),
        "mitigated_s": forecaster.iteration_s(forecaster.moved(home, slow), slow),
        "named_after": None,
        "strategies": ["topology"],
        "paper": None,
    }


def findings(records: Sequence[Record]) -> list[str]:
    """The gains under severe congestion."""
    return [
        f"{record['job']}: {record['plain_s'] / record['mitigated_s']:.2f} times under severe congestion"
        for record in records
        if record["case"] == "severe"
    ] + [f"paper: {PAPER_GAIN[4]} with 4 stages, {PAPER_GAIN[8]} with 8"]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """The gains under severe congestion, simulated."""
    reason = "the severities are our own: the paper prints none"
    severe = [record for record in records if record["case"] == "severe" and "simulated" in record["job"]]
    return [
        PaperValue(
            f"{stages} stages, severe, gain", record["plain_s"] / record["mitigated_s"], PAPER_GAIN[stages], reason
        )
        for stages, record in zip(PAPER_GAIN, severe, strict=True)
    ]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Simulated and measured."""
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    for axes, word in ((left, "simulated"), (right, "measured")):
        mitigation_study.draw(axes, [r for r in records if word in r["job"]], f"S3, {word}")
