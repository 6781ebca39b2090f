"""What one update of the detector costs, for noise of every make: median, mean and the slowest single ones.

  ./run evaluate detector.update_cost
  ./run evaluate detector.update_cost --jobs 240 --seed 960000000

Jobs are those of noise_families, of 500 to 1,500 rows; "plain" are healthy jobs of drawn_jobs. Every update is
timed by itself, some 0.1 us for the clock included.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from evaluation.detector import drawn_jobs, noise_families
from lanterne.bench.output import report
from lanterne.errors import InputError
from lanterne.failslow.detect.tracker import Tracker


def costs_s(jobs: Sequence[drawn_jobs.DrawnJob]) -> dict[str, list[float]]:
    """{kind: seconds that every single update of a fresh Tracker over each of its `jobs` took, in ascending order}."""
    clock = time.perf_counter_ns
    spent_ns: dict[str, list[int]] = {job.kind: [] for job in jobs}
    for job in jobs:
        update, spent = Tracker().update, spent_ns[job.kind].append
        for time_s in job.seconds:
            start = clock()
            update(time_s)
            spent(clock() - start)
    return {kind: [ns / 1e9 for ns in sorted(spent)] for kind, spent in spent_ns.items()}


def measure(count: int, first_seed: int) -> list[dict[str, Any]]:
    """One record of plain numbers for plain jobs and for each family, of `count` jobs in all."""
    each = max(1, count // (1 + len(noise_families.FAMILIES)))
    jobs = noise_families.make_jobs(each * len(noise_families.FAMILIES), first_seed)
    # Kinds in turn: what disturbs the machine for a while disturbs them alike.
    for i in reversed(range(each)):
        jobs.insert(i * len(noise_families.FAMILIES), drawn_jobs.make_job("plain", first_seed + i))
    found = []
    for kind, spent in costs_s(jobs).items():
        found.append(
            {
                "kind": kind,
                "updates": len(spent),
                "median_s": spent[len(spent) // 2],
                "mean_s": sum(spent) / len(spent),
                "p99_9_s": spent[int(0.999 * len(spent))],
                "max_s": spent[-1],
            }
        )
    return sorted(found, key=lambda record: record["mean_s"])


def main() -> int:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=130, metavar="N", help="number of jobs (default 130)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the first job (default 0)")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON ('-' for standard output)")
    args = parser.parse_args()
    try:
        if args.jobs < 1 or args.seed < 0:
            raise InputError(f"--jobs {args.jobs} --seed {args.seed}: expected at least 1 job, and a seed of 0 or more")
        records = measure(args.jobs, args.seed)
        if args.json:
            report.write_json(args.json, report.envelope(seed=args.seed, results=records))
    except InputError as error:
        print(f"lanterne: {error}", file=sys.stderr)
        return 2
    if args.json != "-":
        columns = [("noise", ""), ("updates", "")] + [(name, "us") for name in ("median", "mean", "p99.9", "max")]
        keys = ("median_s", "mean_s", "p99_9_s", "max_s")
        report.print_table(
            columns, [[r["kind"], r["updates"], *(f"{1e6 * r[key]:.2f}" for key in keys)] for r in records]
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
