"""GREYHOUND figure 15: S2 with several slow copies (measured), several slow links gathered in one stage (simulated).

Left: 4 ranks, a copy each, of which 0 to 4 are slow; a job that trains. Right: 4 copies x 4 stages, whose ranks at the
ends of 1 to 3 congested links are slow: iterations by the pipeline simulator, gathered by exchanges (S3), and with
microbatches that suit that as well.
"""

from collections.abc import Sequence

from evaluation.mitigation_job import PACE_S
from evaluation.papers import mitigation_study
from evaluation.papers.experiment import Figure, PaperValue, Record
from evaluation.papers.mitigation_study import NEVER_S, SEVERITIES, row, spells
from lanterne.failslow.mitigate.grid import consolidate
from lanterne.failslow.mitigate.strategies import Arrangement, Forecaster, Slowness
from lanterne.pipeline.plan.problem import Problem

COPIES, MICROBATCHES, LENGTH, QUICK_LENGTH = 4, 48, 16, 12
# Right: stages, microbatches of a copy, and how slow the ends of a congested link are: 1.6 times the whole iteration.
STAGES, OWN, SLOW_END = 4, 12, 1.75
LINKS = ((0, 5), (10, 15), (3, 6))
PAPER_LEFT = {"1 of 4": (1.68, 1.06)}
PAPER_RIGHT = {1: (1.6, 1.3), 2: (1.7, 1.3), 3: (1.9, 1.7)}
COLUMNS = mitigation_study.COLUMNS
FIGURE_INCHES = (10, 4)
NOTES = """
left: ranks of one job; right: links of 4 copies x 4 stages, simulated, ranks at their ends slow
paper, left: 1.31 s to 0.83 s with one slow copy, less with more, nothing with four
"""

STAYS = (
    "a rank that is slow in each copy stays slow wherever it sits; the paper's links may be slow to some ranks alone"
)
CHOSEN = "the severities are our own: the paper prints none"

__all__ = ["COLUMNS", "FIGURE_INCHES", "NOTES", "draw", "findings", "paper_values", "row", "run"]


def run(quick: bool) -> list[Record]:
    """A record per number of slow copies, then one per number of slow links and strategy."""
    slow = {"slowdown": SEVERITIES["medium"]}
    cases = {f"{count} of {COPIES}": tuple({"rank": rank} | slow for rank in range(count)) for count in (1, 2, 3, 4)}
    settings = {"topology_s": NEVER_S, "restart_s": NEVER_S}
    length = QUICK_LENGTH if quick else LENGTH
    measured = spells("ranks", (COPIES, 1, MICROBATCHES), cases, length, settings, PAPER_LEFT)
    return measured + [record for count in (1, 2, 3) for record in gathered(count)]


def gathered(count: int) -> list[Record]:
    """With `count` slow links: slow ranks gathered, and gathered with microbatches that suit it."""
    forecaster = Forecaster(Problem(STAGES, OWN, PACE_S, PACE_S, PACE_S), "zb_h1")
    ranks = tuple(tuple((copy * STAGES + place,) for place in range(STAGES)) for copy in range(COPIES))
    home = Arrangement(ranks, (OWN,) * COPIES)
    slow = Slowness({end: SLOW_END for link in LINKS[:count] for end in link}, {})
    grid = consolidate(tuple(home.group(place) for place in range(STAGES)), slow.ranks)
    moved = tuple(tuple((rank,) for rank in copy) for copy in zip(*grid, strict=True))
    after = {"S3 alone": Arrangement(moved, home.microbatches), "S3 and S2": forecaster.moved(home, slow)}
    healthy_s, plain_s = (forecaster.iteration_s(home, what) for what in (Slowness({}, {}), slow))
    return [
        {
            "job": f"{count} links, simulated",
            "case": name,
            "healthy_s": healthy_s,
            "plain_s": plain_s,
            "mitigated_s": forecaster.iteration_s(arrangement, slow),
            "named_after": None,
            "strategies": [name],
            "paper": PAPER_RIGHT[count] if name == "S3 alone" else None,
        }
        for name, arrangement in after.items()
    ]


def _alone(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["strategies"] == ["S3 alone"]]


def findings(records: Sequence[Record]) -> list[str]:
    """That gathering slow ranks gains nothing by itself, which contradicts the paper's right half."""
    ours = ", ".join(f"{record['plain_s'] / record['mitigated_s']:.2f}" for record in _alone(records))
    papers = ", ".join(f"{slow / after:.2f}" for slow, after in PAPER_RIGHT.values())
    best = ", ".join(
        f"{record['plain_s'] / record['mitigated_s']:.2f}"
        for record in records
        if record["strategies"] == ["S3 and S2"]
    )
    return [
        f"contradicts the paper: gathered alone (S3), ranks at the ends of 1, 2 and 3 slow links gain {ours} times "
        f"(paper {papers}): a pipeline with one slow rank is as slow wherever it sits",
        f"with microbatches that suit the gathered ranks (S3 and S2): {best} times",
    ]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Left, one slow copy of four; right, slow links, before and after S3."""
    found = []
    for record in records:
        if record["paper"] is not None:
            reason = STAYS if record["strategies"] == ["S3 alone"] else CHOSEN
            where = f"{record['job'].partition(',')[0]}, {record['case']}"
            for name, paper in zip(("plain", "mitigated"), record["paper"], strict=True):
                ours = record[f"{name}_s"] / record["healthy_s"]
                found.append(PaperValue(f"{where}, {name.replace('plain', 'slow')}", ours, paper, reason))
    return found


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Both halves."""
    left, right = figure.subplots(1, 2)
    mitigation_study.draw(left, [r for r in records if r["job"] == "ranks"], "S2: several slow copies")
    mitigation_study.draw(right, [r for r in records if r["job"] != "ranks"], "S3: several slow links (simulated)")
