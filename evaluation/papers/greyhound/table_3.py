"""GREYHOUND table 3: detectors on 392 single-node jobs, 6 of which have a rank that computes slowly.

The paper's traces are not public; these jobs are drawn (scores/detector/drawn_jobs.py, fixed seeds) with as many
slow ones, in the noise of real series (spikes, jitters, heavy tails), which the paper's figures do not show. So its
method does worse.
"""

from collections.abc import Callable, Mapping, Sequence

from evaluation.detector.bocd import BocdTracker
from evaluation.detector.drawn_jobs import HEALTHY, make_job
from evaluation.detector.score import Detector, judge
from evaluation.detector.sliding import SlidingMedian
from evaluation.papers.experiment import Columns, Figure, Record
from lanterne.bench.output import report
from lanterne.failslow.detect.tracker import Tracker

# Jobs, those with fail-slow, the kinds that these are of, and the first seed: of no other set of jobs.
JOBS, SLOW, QUICK_SHARE = 392, 6, 4
SLOW_KINDS = ("step", "short", "ramp")
FIRST_SEED = 5_000_000
DETECTORS: dict[str, Callable[[], Detector]] = {
    "sliding median of 9": SlidingMedian,
    "BOCD": lambda: BocdTracker(verify=0.0),
    "BOCD+V": BocdTracker,
    "tracker (ours)": Tracker,
}
# Accuracy, false positives and false negatives, %.
PAPER = {"sliding median of 9": (99.5, 0.0, 25.0), "BOCD": (77.8, 18.39, 0.0), "BOCD+V": (100.0, 0.0, 0.0)}
NOTES = """
right: jobs where all was found and nothing else was reported; FPR: false alarms over those and the healthy jobs; FNR:
onsets missed over those and the slow jobs: so the paper's fractions read
"""
COLUMNS: Columns = [
    ("detector", ""), ("jobs", ""), ("right", "%"), ("paper", ""), ("FPR", "%"), ("paper", ""), ("FNR", "%"),
    ("paper", ""),
]  # fmt: skip
FIGURE_INCHES = (8, 3.5)


def run(quick: bool) -> list[Record]:
    """A record per detector."""
    return evaluate(JOBS, SLOW, SLOW_KINDS, FIRST_SEED, PAPER, quick)


def evaluate(
    count: int,
    slow: int,
    slow_kinds: Sequence[str],
    first_seed: int,
    paper: Mapping[str, tuple[float, float, float]],
    quick: bool,
) -> list[Record]:
    """A record per detector, on `count` jobs of which `slow` are of `slow_kinds`, in turn."""
    if quick:
        count, slow = count // QUICK_SHARE, max(len(slow_kinds), slow // QUICK_SHARE)
    kinds = [slow_kinds[i % len(slow_kinds)] for i in range(slow)]
    kinds += [HEALTHY[i % len(HEALTHY)] for i in range(count - slow)]
    jobs = [make_job(kind, first_seed + i) for i, kind in enumerate(kinds)]
    records = []
    for name, make in DETECTORS.items():
        report.progress(f"{name}: {len(jobs)} jobs")
        right = alarms = missed = 0
        for job in jobs:
            detector = make()
            for time_s in job.seconds:
                detector.update(time_s)
            verdict = judge(job, detector.events)
            right, alarms, missed = right + verdict.right, alarms + verdict.alarm, missed + verdict.missed
        records.append(
            {
                "detector": name,
                "jobs": count,
                "slow": slow,
                "right": right,
                "alarms": alarms,
                "missed": missed,
                "accuracy": right / count,
                "fpr": alarms / (count - slow + alarms),
                "fnr": missed / (slow + missed),
                "paper": paper.get(name),
            }
        )
    return records


def row(record: Record) -> list[object]:
    """One line of the table."""
    paper = record["paper"] or ("-",) * 3
    ours = [f"{100 * record[key]:.1f}" for key in ("accuracy", "fpr", "fnr")]
    return [record["detector"], record["jobs"], *(cell for pair in zip(ours, paper, strict=True) for cell in pair)]


def draw(figure: Figure, records: Sequence[Record]) -> None:
    """Bars of the three shares, crosses where the paper's are."""
    shares = {"accuracy": "jobs right", "fpr": "false positives", "fnr": "false negatives"}
    for index, (axes, (key, title)) in enumerate(zip(figure.subplots(1, 3), shares.items(), strict=True)):
        at = range(len(records))
        axes.bar(list(at), [100 * record[key] for record in records], color=[f"C{i}" for i in at])
        told = [(x, record["paper"][index]) for x, record in zip(at, records, strict=True) if record["paper"]]
        axes.plot([x for x, _ in told], [y for _, y in told], "kx", label="paper")
        # Two words a line: names stand side by side.
        axes.set_xticks(list(at), [record["detector"].replace(" ", "\n", 1) for record in records], fontsize=7)
        axes.set_title(f"{title}, %", loc="left", fontsize=10)
        axes.legend(frameon=False, fontsize=8, loc="upper right", bbox_to_anchor=(1, 1.12))
