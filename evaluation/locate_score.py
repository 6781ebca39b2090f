"""Score `lanterne locate` on traces with a known cause: `./run evaluate locate_score`.

Traces of 1 to 16 replicas and 1 to 6 stages, 10 to 40 steps, in which a worker, two workers, a link, a stage, the data
or nothing is slow: by 1.2 to 3, in all operations, in forwards alone, or in a part of the steps; among noise, stalls,
uneven stages and uneven data. A trace is right when exactly the workers and links that were slowed are named, and of
stages and data only what is uneven. `blamed` counts traces in which a healthy worker or link was named.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from lanterne.bench.output import report
from lanterne.failslow.locate.locate import Verdict

SEED = 41


@dataclass(frozen=True)
class LabelledTrace:
    """A trace to be made and its answer.

    Attributes: `options`: of trace_jobs.make_trace; `workers`, `links`: ranks that are slow, of a link both ends in
    order; `needed`, `allowed`: structural causes that must and that may be named as well.
    """

    kind: str
    options: dict[str, Any]
    workers: frozenset[int] = frozenset()
    links: frozenset[tuple[int, ...]] = frozenset()
    needed: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()


def _shape(rng: Generator, most_replicas: int = 16, least_stages: int = 1) -> dict[str, Any]:
    return {
        "replicas": int(rng.choice([r for r in (2, 3, 4, 8, 16) if r <= most_replicas])),
        "stages": int(rng.integers(least_stages, 7)),
        "microbatches": int(rng.integers(4, 9)),
        "steps": int(rng.integers(10, 40)),
        "noise": float(rng.choice([0.005, 0.02, 0.05])),
        "seed": int(rng.integers(1 << 30)),
    }


def _slowed(rng: Generator, kind: str, options: dict[str, Any], count: int = 1, **how: Any) -> LabelledTrace:
    """`options` with `count` slow workers of different stages or replicas, and the LabelledTrace that asks for them."""
    from evaluation.trace_jobs import SlowWorker

    places = [(r, s) for r in range(options["replicas"]) for s in range(options["stages"])]
    chosen = [places[i] for i in rng.choice(len(places), count, replace=False)]
    workers = {place: SlowWorker(float(rng.uniform(1.2, 3.0)), **how) for place in chosen}
    ranks = frozenset(r * options["stages"] + s for r, s in chosen)
    return LabelledTrace(kind, {**options, "workers": workers}, workers=ranks)


def _healthy(rng: Generator) -> LabelledTrace:
    return LabelledTrace("healthy", {**_shape(rng), "noise": float(rng.uniform(0.0, 0.1))})


def _stalls(rng: Generator) -> LabelledTrace:
    return LabelledTrace("stalls", {**_shape(rng), "stalls": float(rng.uniform(0.005, 0.03))})


def _worker(rng: Generator) -> LabelledTrace:
    return _slowed(rng, "worker", _shape(rng))


def _worker_among_stalls(rng: Generator) -> LabelledTrace:
    return _slowed(rng, "worker among stalls", {**_shape(rng, most_replicas=8), "stalls": 0.003})


def _two_workers(rng: Generator) -> LabelledTrace:
    # Of two replicas nobody can say which one is slow where both are.
    options = {**_shape(rng), "replicas": int(rng.choice([4, 8, 16]))}
    return _slowed(rng, "two workers", options, count=2)


def _forward_only(rng: Generator) -> LabelledTrace:
    return _slowed(rng, "forward only", _shape(rng), kinds="F")


def _some_steps(rng: Generator) -> LabelledTrace:
    options = _shape(rng)
    first = int(rng.integers(0, options["steps"] // 2))
    return _slowed(rng, "some steps", options, first=first, stop=first + max(options["steps"] // 2, 6))


def _most_steps(rng: Generator) -> LabelledTrace:
    return _slowed(rng, "nine steps of ten", {**_shape(rng), "steps": 40}, share=0.92)


def _rare_steps(rng: Generator) -> LabelledTrace:
    """Long, but in one step of six: no evidence for blame."""
    case = _slowed(rng, "rare steps", {**_shape(rng), "steps": 36}, share=0.15)
    return LabelledTrace(case.kind, case.options)


def _link(rng: Generator) -> LabelledTrace:
    options = _shape(rng, least_stages=2)
    replica, boundary = int(rng.integers(options["replicas"])), int(rng.integers(options["stages"] - 1))
    first = replica * options["stages"] + boundary
    options["links"] = {(replica, boundary): float(rng.uniform(10, 60))}
    return LabelledTrace("link", options, links=frozenset({(first, first + 1)}))


def _stage(rng: Generator) -> LabelledTrace:
    # With few microbatches an uneven stage costs next to nothing.
    options = _shape(rng, least_stages=3)
    options["microbatches"] = 2 * options["stages"]
    options["stage_factors"] = {int(rng.integers(options["stages"])): float(rng.uniform(1.3, 2.0))}
    return LabelledTrace("stage", options, needed=frozenset({"stage"}))


def _data(rng: Generator) -> LabelledTrace:
    options = {**_shape(rng, least_stages=2), "uneven": float(rng.uniform(0.2, 0.6))}
    return LabelledTrace("data", options, needed=frozenset({"data"}), allowed=frozenset({"stage"}))


def _long_replica(rng: Generator) -> LabelledTrace:
    """One replica always gets the longer sequences: all its stages are slower, none of its workers is."""
    options = {**_shape(rng, least_stages=2), "uneven": float(rng.uniform(0.2, 0.4))}
    options["long_replicas"] = {int(rng.integers(options["replicas"])): float(rng.uniform(1.2, 1.6))}
    return LabelledTrace("long replica", options, needed=frozenset({"data"}), allowed=frozenset({"stage"}))


def _worker_and_data(rng: Generator) -> LabelledTrace:
    options = {**_shape(rng), "uneven": float(rng.uniform(0.1, 0.3)), "steps": 40, "replicas": 8}
    case = _slowed(rng, "worker and data", options)
    return LabelledTrace(case.kind, case.options, case.workers, allowed=frozenset({"data", "stage"}))


def _worker_and_stage(rng: Generator) -> LabelledTrace:
    options = _shape(rng, least_stages=3)
    options["stage_factors"] = {int(rng.integers(options["stages"])): float(rng.uniform(1.3, 1.8))}
    case = _slowed(rng, "worker and stage", options)
    return LabelledTrace(case.kind, case.options, case.workers, allowed=frozenset({"stage"}))


KINDS: tuple[Callable[[Generator], LabelledTrace], ...] = (
    _healthy, _stalls, _worker, _worker_among_stalls, _two_workers, _forward_only, _some_steps, _most_steps,
    _rare_steps, _link, _stage, _data, _long_replica, _worker_and_data, _worker_and_stage,
)  # fmt: skip


def make_cases(count: int, seed: int = SEED) -> list[LabelledTrace]:
    """`count` cases of all kinds in turn, a pure function of `seed`."""
    return [KINDS[i % len(KINDS)](np.random.default_rng([seed, i])) for i in range(count)]


def judge(case: LabelledTrace, verdicts: Sequence[Verdict]) -> tuple[bool, bool]:
    """(right, blamed): whether the answer is the right one, and whether someone healthy was named."""
    workers = frozenset(rank for v in verdicts if v.cause == "worker" for rank in v.ranks)
    links = frozenset(v.ranks for v in verdicts if v.cause == "link")
    structure = {v.cause for v in verdicts} & {"stage", "data"}
    blamed = not (workers <= case.workers and links <= case.links)
    named = workers == case.workers and links == case.links
    return named and case.needed <= structure <= case.needed | case.allowed, blamed


def score(cases: Sequence[LabelledTrace]) -> list[dict[str, Any]]:
    """A record per kind, and one for all: traces, shares right and with a healthy one blamed."""
    from evaluation.trace_jobs import make_trace
    from lanterne.failslow.locate.locate import locate
    from lanterne.failslow.locate.trace import build_trace

    found: dict[str, list[tuple[int, bool, bool]]] = {}
    for number, case in enumerate(cases):
        report.progress(f"trace {number + 1} of {len(cases)}")
        answer = judge(case, locate(build_trace(make_trace(**case.options))))
        for kind in (case.kind, "all"):
            found.setdefault(kind, []).append((number, *answer))
    report.progress("")
    return [
        {
            "kind": kind,
            "traces": len(rows),
            "right": sum(right for _, right, _ in rows) / len(rows),
            "blamed": sum(blamed for _, _, blamed in rows) / len(rows),
            "wrong": [number for number, right, _ in rows if not right],
        }
        for kind, rows in sorted(found.items(), key=lambda item: item[0] == "all")
    ]


def main() -> int:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(
        prog="./run evaluate locate_score",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--traces", type=int, default=300, metavar="N", help="number of traces (default 300)")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help=f"of the traces (default {SEED})")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON ('-' for standard output)")
    args = parser.parse_args()
    if args.traces < 1:
        parser.error(f"--traces: got {args.traces}, expected at least 1")
    records = score(make_cases(args.traces, args.seed))
    if args.json:
        report.write_json(args.json, report.envelope(seed=args.seed, results=records))
    if args.json != "-":
        rows = [[r["kind"], r["traces"], f"{100 * r['right']:.1f}", f"{100 * r['blamed']:.1f}"] for r in records]
        report.print_table([("kind", ""), ("traces", ""), ("right", "%"), ("blamed", "%")], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
