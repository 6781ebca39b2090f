"""StragglAR appendix C, figure 8b: who is late and how late, in the published log of four A100 that fine-tune a model.

The log (github.com/arjundevraj/stragglar, motivation/log) has 50 iterations of Llama-3.2-3B; four_a100.csv holds its
times. The last rank to call has the shortest all-reduce, the delay is how much longer the next one's is. What each
all-reduce would have cost is priced with those delays, over links fitted to the least time that it took.
"""

import csv
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from evaluation.papers.experiment import Columns, Figure, PaperValue, Record
from evaluation.papers.stragglar.gpu_servers import ALPHA_S, makespan_s
from lanterne.collectives.schedule.cost import CostModel

LOG = Path(__file__).with_name("four_a100.csv")
# Of the gradients, by the log.
NBYTES = 12_549_804 * 1024
ALGORITHMS = ("ring", "stragglar", "late_join")
NINE = "the paper's are of nine runs, of which the log of one is published; its median is more than this"
FIGURE_INCHES = (10, 4.5)
NOTES = """
who is late, and by how much: of the log; the paper, over nine runs: one rank in 98 % of iterations, mean 9.45 ms
priced: the all-reduce of the rank that is mostly late expected to be, the compute of the log beside it
"""
COLUMNS: Columns = [("what", ""), ("log, priced", ""), ("paper", "")]


def run(quick: bool) -> list[Record]:
    """One record per finding; its samples are in the first."""
    took = _all_reduce_ms()
    late = [min(times, key=times.__getitem__) for times in took]
    usual, count = Counter(late).most_common(1)[0]
    delays = [ordered[1] - ordered[0] for ordered in map(sorted, (list(times.values()) for times in took))]
    # Ring: 2 (n - 1) messages of a n-th each.
    ranks = len(took[0])
    least_s = 1e-3 * min(min(times.values()) for times in took)
    shares = 2 * (ranks - 1)
    model = CostModel(ALPHA_S, (least_s - shares * ALPHA_S) * ranks / shares / NBYTES)
    whole_ms = _priced_ms(took, usual, model)
    rest_ms = _iteration_ms() - statistics.mean(max(times.values()) for times in took[1:])
    records: list[Record] = [
        {"what": "the same rank late", "found": count / len(took), "paper": 0.98, "form": "{:.0%}"},
        {"what": "mean delay but for the first, ms", "found": statistics.mean(delays[1:]), "paper": 9.45},
        {"what": "median delay, ms", "found": statistics.median(delays), "paper": 8.0},
        {"what": "links, GB/s", "found": 1e-9 / model.beta_s_per_byte, "paper": None, "form": "{:.0f}"},
    ]
    ring = rest_ms + whole_ms["ring"]
    for name in ALGORITHMS[1:]:
        gained = ring / (rest_ms + whole_ms[name]) - 1
        what = f"{name}: iterations faster than with the ring"
        records.append({"what": what, "found": gained, "paper": None, "form": "{:+.2%}"})
    records[0] |= {"delays_ms": delays, "late": late}
    return records


def _rows() -> list[dict[str, float]]:
    with LOG.open(newline="") as file:
        return [{key: float(value) for key, value in line.items()} for line in csv.DictReader(file)]


def _all_reduce_ms() -> list[dict[int, float]]:
    """Of each iteration {rank: how long its all-reduce took}."""
    found: dict[int, dict[int, float]] = {}
    for line in _rows():
        found.setdefault(int(line["step"]), {})[int(line["rank"])] = line["all_reduce_ms"]
    return [found[step] for step in sorted(found)]


def _iteration_ms() -> float:
    """The mean of the iterations but for the first, which warms up."""
    return statistics.mean(line["iteration_ms"] for line in _rows() if line["step"] >= 1)


def _priced_ms(took: Sequence[dict[int, float]], usual: int, model: CostModel) -> dict[str, float]:
    """{algorithm: from the first rank's call to the end, mean but for the first}, when each calls as in the log."""
    found = {}
    for name in ALGORITHMS:
        times = []
        for each in took[1:]:
            order = [rank for rank in sorted(each) if rank != usual] + [usual]
            first = max(each.values())
            times.append(makespan_s(name, NBYTES, model, [1e-3 * (first - each[rank]) for rank in order]))
        found[name] = 1e3 * statistics.mean(times)
    return found


def row(record: Record) -> list[object]:
    """One line of the table."""
    form, paper = record.get("form", "{:.2f}"), record["paper"]
    return [record["what"], form.format(record["found"]), "-" if paper is None else form.format(paper)]


def paper_values(records: Sequence[Record]) -> list[PaperValue]:
    """Who is late and by how much."""
    return [PaperValue(r["what"], r["found"], r["paper"], NINE) for r in records if r["paper"] is not None]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """How often a delay is at most so long, and who is late how often."""
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    delays = sorted(records[0]["delays_ms"])
    left.step(delays, [(i + 1) / len(delays) for i in range(len(delays))], where="post")
    left.set(xlabel="delay of the late rank (ms)", ylabel="share of iterations", xscale="log")
    counts: Counter[int] = Counter(records[0]["late"])
    right.bar([str(rank) for rank in sorted(counts)], [counts[rank] for rank in sorted(counts)])
    right.set(xlabel="rank", ylabel="iterations in which it is late")
