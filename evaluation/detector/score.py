"""Score detectors of fail-slow on labelled synthetic jobs.

  ./run evaluate detector.score                           the 1,008 jobs of seed 0 upwards
  ./run evaluate detector.score --detector tracker --jobs 10080 --seed 70000000
  ./run evaluate detector.score --oracle --jobs 420       how well any detector could do (0.1 s a job)
  ./run evaluate detector.score --families --jobs 1200    noise of other makes (noise_families.py)
  ./run evaluate detector.score --world --jobs 5000 --oracle --real FOLDER --detector tracker
                    as hard as clusters' (world_jobs.py), beside an oracle that knows noise and levels; every fourth job
                    on a real series of FOLDER, and what the series themselves, outside of their labels, alarm by

Rules. A label is found when a confirmed event of its direction (slower or faster) has an index within the label's
tolerance; one that is told of while the spell lasts, but placed outside, counts as missed, too. A job is entirely
right when every label but optional ones is found and no confirmed event is left over. Optional are single steps below
10 %; left over may be changes inside an incident that fluctuates or ramps. Latency counts the rows from the labelled
index to the confirmation, both included. An alarm is a confirmed event that says "slower". In brackets: 95 %
confidence (Wilson): that none of n was seen says that the rate is below about 3.8 / n.

With --world a label must also be told of within 30 rows, and only jobs are scored on whose labels two readers agree;
its oracle is judged as detectors are. Of other jobs the oracle (oracle.py) knows each job's noise and healthy level; of
it is told what it misses when it may alarm in as many healthy jobs as the bar allows, 0.5 %. It need not name the row
of an onset, nor see reliefs.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import quantiles
from typing import Any, Protocol

from evaluation.detector import drawn_jobs, noise_families, real_series, world_jobs
from evaluation.detector.drawn_jobs import DrawnJob
from evaluation.detector.real_series import RealSeries
from evaluation.detector.world_jobs import WorldJob
from lanterne.bench.output import report
from lanterne.bench.output.units import format_count
from lanterne.failslow.detect.events import LevelEvent

HELD_OUT_SEED = 1_000_000
# The bar on alarms of healthy jobs.
ALLOWED = 0.005


class Detector(Protocol):
    """What is compared: it is given one iteration after the other, and reports events."""

    @property
    def events(self) -> Sequence[LevelEvent]:
        """Those so far, in order."""
        ...

    def update(self, time_s: float) -> LevelEvent | None:
        """Take the next iteration's time in seconds; return the event that it confirms, or None."""
        ...


@dataclass(frozen=True)
class DetectorVerdict:
    """How a detector did on one job; latencies in rows, of the onsets and reliefs that it found.

    `misplaced_15`: those of `missed_15` that it told of while the spell lasted, but placed too early or too late.
    """

    right: bool
    alarm: bool
    onsets: int
    missed: int
    missed_15: int
    misplaced_15: int
    latencies: tuple[int, ...]
    provisional: tuple[int, ...]


def judge(job: DrawnJob, events: Iterable[LevelEvent]) -> DetectorVerdict:
    """Compare confirmed `events` with the labels of `job`."""
    left = [event for event in events if event.confirmed_at is not None]
    right, missed, missed_15, misplaced_15, onsets = True, 0, 0, 0, 0
    latencies, provisional = [], []
    ends = [*(label.index for label in job.labels), len(job.seconds)][1:]
    for label, end in zip(job.labels, ends, strict=True):
        onsets += label.kind == "onset"
        near = [e for e in left if label.is_met_by(e)]
        if near:
            event = min(near, key=lambda e: abs(e.index - label.index))
            left.remove(event)
            if label.kind in ("onset", "relief") and not job.loose:
                latencies.append(_told_at(event) - label.index + 1)
                provisional.append(event.provisional_at - label.index + 1)
        elif label.kind != "step":
            right = False
            missed += label.kind == "onset"
            if label.kind == "onset" and label.ratio >= 1.15:
                missed_15 += 1
                misplaced_15 += any(e.ratio > 1 and label.index <= _told_at(e) and e.index < end for e in left)
    if job.loose and job.labels:
        first, last = job.labels[0], job.labels[-1]
        end = last.index + last.tolerance if last.ratio < 1 else len(job.seconds)
        left = [e for e in left if not first.index - first.tolerance <= e.index <= end]
    alarm = any(event.ratio > 1 for event in left)
    return DetectorVerdict(
        right and not left, alarm, onsets, missed, missed_15, misplaced_15, tuple(latencies), tuple(provisional)
    )


def _told_at(event: LevelEvent) -> int:
    """The row at which a confirmed event was confirmed."""
    assert event.confirmed_at is not None
    return event.confirmed_at


def detectors() -> dict[str, Callable[[], Detector]]:
    """Name -> function that makes a detector with `update(seconds)` and `events`."""
    from evaluation.detector.bocd import BocdTracker
    from evaluation.detector.sliding import SlidingMedian
    from lanterne.failslow.detect.tracker import Tracker

    return {"tracker": Tracker, "sliding_median_9": SlidingMedian, "bocd": BocdTracker}


def score(make: Callable[[], Detector], jobs: Sequence[DrawnJob]) -> dict[str, Any]:
    """Run a fresh detector over each job and sum up: a record of plain numbers."""
    verdicts, rows, spent_s = [], 0, 0.0
    for job in jobs:
        detector = make()
        update = detector.update
        start = time.perf_counter()
        for seconds in job.seconds:
            update(seconds)
        spent_s += time.perf_counter() - start
        rows += len(job.seconds)
        verdicts.append(judge(job, detector.events))
    return summary(jobs, verdicts) | {"update_s": spent_s / max(rows, 1), "rows": rows}


def summary(jobs: Sequence[DrawnJob], verdicts: Sequence[DetectorVerdict]) -> dict[str, Any]:
    """Shares over jobs and onsets; latencies as median and 90th percentile."""
    healthy = [v for job, v in zip(jobs, verdicts, strict=True) if not job.labels]
    onsets = sum(v.onsets for v in verdicts)
    strong = sum(label.kind == "onset" and label.ratio >= 1.15 for job in jobs for label in job.labels)
    latencies = sorted(x for v in verdicts for x in v.latencies)
    provisional = sorted(x for v in verdicts for x in v.provisional)
    by_kind: dict[str, list[bool]] = {}
    for job, verdict in zip(jobs, verdicts, strict=True):
        by_kind.setdefault(job.kind, []).append(verdict.right)
    return {
        "jobs": len(jobs),
        "right": sum(v.right for v in verdicts) / max(len(jobs), 1),
        "right_interval": interval(sum(v.right for v in verdicts), len(jobs)),
        "healthy_jobs": len(healthy),
        "healthy_with_alarm": sum(v.alarm for v in healthy) / max(len(healthy), 1),
        "healthy_with_alarm_interval": interval(sum(v.alarm for v in healthy), len(healthy)),
        "alarms_per_1000_rows": 1e3 * sum(v.alarm for v in healthy) / max(_healthy_rows(jobs), 1),
        "alarms_per_1000_rows_at_most": 1e3 * interval(sum(v.alarm for v in healthy), _healthy_rows(jobs))[1],
        "onsets": onsets,
        "onsets_missed": sum(v.missed for v in verdicts) / max(onsets, 1),
        "onsets_missed_interval": interval(sum(v.missed for v in verdicts), onsets),
        "strong_onsets": strong,
        "strong_onsets_missed": sum(v.missed_15 for v in verdicts) / max(strong, 1),
        "strong_onsets_missed_interval": interval(sum(v.missed_15 for v in verdicts), strong),
        "strong_onsets_misplaced": sum(v.misplaced_15 for v in verdicts) / max(strong, 1),
        "latency_rows_p50": _quantile(latencies, 50),
        "latency_rows_p90": _quantile(latencies, 90),
        "provisional_rows_p50": _quantile(provisional, 50),
        "right_by_kind": {kind: sum(rights) / len(rights) for kind, rights in sorted(by_kind.items())},
        "wrong_jobs": [job.name for job, verdict in zip(jobs, verdicts, strict=True) if not verdict.right],
    }


def _healthy_rows(jobs: Sequence[DrawnJob]) -> int:
    return sum(len(job.seconds) for job in jobs if not job.labels)


def interval(hits: int, count: int) -> list[float]:
    """Wilson's 95 % interval of a share of `hits` of `count`: [low, high]; [0, 1] of nothing."""
    if not count:
        return [0.0, 1.0]
    z = 1.96
    share, spread = hits / count, z * z / count
    middle, half = share + spread / 2, sqrt(spread * (share * (1 - share) + spread / 4))
    return [max(middle - half, 0.0) / (1 + spread), min(middle + half, 1 + spread) / (1 + spread)]


def _quantile(ordered: Sequence[float], percent: int) -> float | None:
    return quantiles(ordered, n=100, method="inclusive")[percent - 1] if len(ordered) > 1 else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--jobs", type=int, default=1008, metavar="N", help="number of jobs (default 1008)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the first job (default 0)")
    parser.add_argument("--held-out", action="store_true", help=f"the same as --seed {HELD_OUT_SEED}")
    parser.add_argument("--families", action="store_true", help="jobs whose noise is of another make")
    parser.add_argument("--world", action="store_true", help="jobs as hard as those of clusters")
    parser.add_argument("--real", metavar="FOLDER", help="with --world: labelled real series (real_series.py)")
    parser.add_argument("--oracle", action="store_true", help="also how well any detector could do")
    parser.add_argument(
        "--detector", action="append", metavar="NAME", help="tracker, sliding_median_9, bocd (default: all)"
    )
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    """Score and print; exit code 0."""
    from lanterne.errors import InputError, one_of

    known = detectors()
    names = args.detector or list(known)
    if unknown := set(names) - set(known):
        raise InputError(f"--detector: {one_of(sorted(unknown)[0], known)}")
    if args.jobs < 1:
        raise InputError(f"--jobs: got {args.jobs}, expected at least 1")
    if args.families and (args.oracle or args.world):
        raise InputError("--families: expected without --oracle and without --world")
    if args.real and not args.world:
        raise InputError("--real: expected with --world")
    if args.seed < 0:
        raise InputError(f"--seed: got {args.seed}, expected 0 or more")
    seed = HELD_OUT_SEED if args.held_out else args.seed
    real = real_series.read_folder(args.real) if args.real else []
    drawn = world_jobs.make_jobs(args.jobs, seed, real_series.backgrounds(real)) if args.world else []
    make_jobs = (noise_families if args.families else drawn_jobs).make_jobs
    jobs = [one.job for one in drawn] if args.world else make_jobs(args.jobs, seed)
    records = []
    for name in names:
        report.progress(f"{name}: {args.jobs} jobs")
        on_real = real_score(known[name], real) if real else {}
        records.append({"detector": name, **score(known[name], jobs), **on_real})
    if args.oracle and args.world:
        report.progress(f"oracle: {args.jobs} jobs")
        records.append({"detector": "oracle", **_world_oracle(drawn)})
    bounds = _oracle(jobs) if args.oracle and not args.world else None
    report.progress("")
    if args.json:
        document = report.envelope(seed=seed, families=args.families, world=args.world, results=records, oracle=bounds)
        report.write_json(args.json, document)
    if args.json != "-":
        _print(records)
        if bounds:
            _print_oracle(bounds)
    return 0


def real_score(make: Callable[[], Detector], series: Sequence[RealSeries]) -> dict[str, Any]:
    """What a fresh detector says of each of `series`: incidents found and alarms."""

    def detect(seconds: Iterable[float]) -> Sequence[LevelEvent]:
        detector = make()
        for time_s in seconds:
            detector.update(time_s)
        return detector.events

    return {"real": asdict(real_series.judge(series, detect))}


def _world_oracle(drawn: Sequence[WorldJob]) -> dict[str, Any]:
    from evaluation.detector import level_oracle

    verdicts = [judge(one.job, events) for one, events in zip(drawn, level_oracle.events(drawn), strict=True)]
    return summary([one.job for one in drawn], verdicts) | {"update_s": None}


def _oracle(jobs: Sequence[DrawnJob]) -> dict[str, float]:
    from evaluation.detector import oracle

    report.progress(f"oracle: {len(jobs)} jobs")
    return asdict(oracle.bound(jobs, oracle.probabilities(jobs), ALLOWED))


def _print_oracle(bound: dict[str, float]) -> None:
    shares = [f"{100 * bound[key]:.2f}" for key in ("alarms", "missed", "missed_15")]
    latency = f"{bound['latency_rows_p50']:.0f} / {bound['latency_rows_p90']:.0f}"
    print(f"\n# oracle: {shares[0]} % of healthy jobs with an alarm, {shares[1]} % of onsets missed,")
    print(f"# {shares[2]} % of those of >= 15 %, latency {latency} rows")


def _print(records: Sequence[dict[str, Any]]) -> None:
    columns = [
        ("detector", ""),
        ("jobs", ""),
        ("right", "%"),
        ("healthy+alarm", "%"),
        ("onsets missed", "%"),
        ("of >=15%", "%"),
        ("latency p50", "rows"),
        ("p90", "rows"),
        ("provisional", "rows"),
        ("update", "us"),
    ]
    rows = []
    for r in records:
        shares = [_share(r, key) for key in ("right", "healthy_with_alarm", "onsets_missed", "strong_onsets_missed")]
        ranks = [
            f"{r[key]:.0f}" if r[key] is not None else "-"
            for key in ("latency_rows_p50", "latency_rows_p90", "provisional_rows_p50")
        ]
        rows.append([r["detector"], r["jobs"], *shares, *ranks, f"{1e6 * r['update_s']:.2f}" if r["update_s"] else "-"])
    report.print_table(columns, rows)
    for r in records:
        keys = ("strong_onsets_missed", "strong_onsets_misplaced")
        missed, off = (round(r[key] * r["strong_onsets"]) for key in keys)
        steps = f"{missed} of {r['strong_onsets']} steps of >= 15 % missed"
        print(f"# {r['detector']}: {steps}, {off} of them told, but placed off")
        rate, most = r["alarms_per_1000_rows"], r["alarms_per_1000_rows_at_most"]
        print(f"# {r['detector']}: {rate:.4f} jobs with an alarm per 1,000 rows of healthy ones (at most {most:.4f})")
        if real := r.get("real"):
            found = f"{real['found']} of {real['incidents']} incidents, {real['alarms']} false alarms"
            print(f"# {r['detector']}: on {format_count(real['rows'], 'row')} of real series {found}")
    kinds = list(records[0]["right_by_kind"])
    print()
    report.print_table(
        [("jobs entirely right, %", "")] + [(r["detector"], "") for r in records],
        [[kind, *(f"{100 * r['right_by_kind'][kind]:.1f}" for r in records)] for kind in kinds],
    )


def _share(record: dict[str, Any], key: str) -> str:
    low, high = record[f"{key}_interval"]
    return f"{100 * record[key]:.2f} ({100 * low:.2f}-{100 * high:.2f})"


def main() -> int:
    """Entry point of `python -m`."""
    from lanterne.errors import LanterneError

    parser = argparse.ArgumentParser(
        prog="./run evaluate detector.score",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except LanterneError as error:
        print(f"lanterne: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 1


if __name__ == "__main__":
    sys.exit(main())
