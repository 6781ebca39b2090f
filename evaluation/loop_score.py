"""Score the closed loop on jobs that train: `./run evaluate loop_score`.

Healthy jobs, in which every blame is a needless one and every examination costs time for nothing; and jobs in which
for 40 iterations a link is 20 ms slower, between neighbours in a pipeline or among those that all-reduce gradients, or
a rank computes twice as long: a job is right when that is named within 5 iterations and nothing else, something is done
about it, and the job is as it was within 5 iterations of the end. `--beside N` puts N busy processes beside each job.
"""

import sys
from collections.abc import Sequence
from typing import Any

from evaluation.beside import score_jobs
from evaluation.mitigation_job import run_job
from lanterne.bench.output.units import format_time
from lanterne.pipeline.adapt.injection import InjectedEvent

# (copies, places, microbatches of all copies): 4 or 8 ranks, iterations of some 60 to 100 ms.
SMALL, WIDE, DEEP = (2, 2, 16), (4, 2, 48), (2, 4, 16)
HEALTHY_ITERATIONS = 150
FIRST, LAST, REST = 24, 64, 12
WITHIN = 5
SLOW: dict[str, dict[str, Any]] = {
    "link 0-1": {"links": ((0, 1),), "latency_s": 20e-3},
    "link 0-2": {"links": ((0, 2),), "latency_s": 20e-3},
    "rank 1": {"rank": 1, "slowdown": 2.0},
}
# What is slow, of SLOW.
KINDS: dict[str, tuple[tuple[int, int, int], str | None]] = {
    "healthy 2 x 2": (SMALL, None),
    "healthy 4 x 2": (WIDE, None),
    "healthy 2 x 4": (DEEP, None),
    **{what: (SMALL, what) for what in SLOW},
}
COLUMNS = [
    ("job", ""),
    ("jobs", ""),
    ("right", ""),
    ("blamed", "needlessly"),
    ("examined", "times"),
    ("examining", "an iteration"),
    ("iteration", "median"),
    ("named", "after"),
    ("back", "after"),
]


def judge(run: dict[str, Any], wanted: str | None = None) -> dict[str, Any]:
    """A record of what run_job gave of a job in which `wanted`, of SLOW, or nothing, was slow."""
    found = [one for one in run["incidents"] if one["what"] == wanted and one["named"] >= FIRST]
    named, ended = (found[0]["named"], found[0]["ended"]) if found else (None, None)
    mitigated = any(act["kind"] == "mitigate" and wanted in act["suspects"] for act in run["acted"])
    needless = sum(one["what"] != wanted or one["named"] < FIRST for one in run["incidents"])
    examined_s = [act["seconds"] for act in run["acted"] if act["kind"] == "validate"]
    times_s = sorted(run["iteration_s"])
    named_after = None if named is None else named - FIRST + 1
    back_after = None if ended is None else ended - LAST + 1
    is_right = not needless and len(found) == bool(wanted)
    if wanted and is_right:
        is_right = mitigated and named_after is not None and named_after <= WITHIN
        is_right = is_right and back_after is not None and 0 < back_after <= WITHIN
    return {
        "right": is_right,
        "needless": needless,
        "examined": len(examined_s),
        "examining_s": sum(examined_s) / len(times_s),
        "iteration_s": times_s[len(times_s) // 2],
        "named_after": named_after,
        "back_after": back_after,
    }


def score(kind: str, _count: int) -> dict[str, Any]:
    """Run one job of a kind and judge it: a record."""
    layout, what = KINDS[kind]
    events = [InjectedEvent(FIRST, LAST, **SLOW[what])] if what else []
    run = run_job(*layout, events, LAST + REST if what else HEALTHY_ITERATIONS)
    return {"kind": kind, "job": run} | judge(run, what)


def row(kind: str, records: Sequence[dict[str, Any]]) -> list[object]:
    """One line of the table, of all records of a kind."""
    after = [
        ", ".join("-" if one[key] is None else str(one[key]) for one in records)
        for key in ("named_after", "back_after")
    ]
    return [
        kind,
        len(records),
        sum(one["right"] for one in records),
        sum(one["needless"] for one in records),
        sum(one["examined"] for one in records),
        format_time(sum(one["examining_s"] for one in records) / len(records)),
        format_time(sum(one["iteration_s"] for one in records) / len(records)),
        *(after if KINDS[kind][1] else ("", "")),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if a job was not right."""
    return score_jobs("loop_score", __doc__, KINDS, score, COLUMNS, row, "the closed loop", arguments)


if __name__ == "__main__":
    sys.exit(main())
