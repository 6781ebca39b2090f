"""Score `lanterne validate` on a busy machine: `./run evaluate validate_score`.

Jobs of 4 ranks that share this machine's cores with N busy processes (`--beside`): healthy ones, ones with a rank that
computes twice as long, and ones with a link 5 ms slower. Each is validated as a whole, and then its suspects alone,
among them a healthy rank and a healthy link. A job is right where what is slow is named and nothing else, by both.
"""

import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

from evaluation.beside import score_jobs
from evaluation.validate_job import measure
from lanterne.bench.output.units import format_time
from lanterne.bench.pipeline.measure import on_ranks
from lanterne.pipeline.adapt.suspect import Suspect

RANKS = 4
KINDS: dict[str, str | None] = {"healthy": None, "slow rank": Suspect.rank(1), "slow link": Suspect.link(0, 1)}
COLUMNS = [
    ("job", ""), ("jobs", ""), ("right", ""), ("named", ""), ("blamed", "needlessly"), ("not sure", "of"),
("validate", "median"), ("longest", ""), ("suspects", "named"), ("blamed", "needlessly"),
    ("examined", "median"),
]  # fmt: skip


def judge(kind: str, found: dict[str, Any]) -> dict[str, Any]:
    """A record of what `measure` gave of a job of that kind."""
    wanted = KINDS[kind]
    named = {name for finding in found["validation"]["findings"] for name in names(finding)}
    examined = {name for name, severity in found["severities"].items() if severity}
    return {
        "right": named == examined == ({wanted} if wanted else set()),
        "named": wanted in named,
        "needless": sorted(named - {wanted}),
        "unsure": sorted({name for finding in found["validation"]["unsure"] for name in names(finding)}),
        "examined": wanted in examined,
        "examined_needless": sorted(examined - {wanted}),
        "took_s": found["validation"]["took_s"],
        "examined_s": found["examined_s"],
    }


def names(finding: dict[str, Any]) -> list[str]:
    """What a Finding, as a dict, blames: "rank R", "link A-B", or "links of rank R"."""
    if finding["kind"] == "link":
        return [Suspect.link(*finding["links"][0])]
    return [("links of " if finding["kind"] == "links" else "") + f"rank {rank}" for rank in finding["ranks"]]


def row(kind: str, records: Sequence[dict[str, Any]]) -> list[object]:
    """One line of the table, of all records of a kind."""
    took_s, examined_s = (sorted(one[key] for one in records) for key in ("took_s", "examined_s"))
    middle = len(records) // 2
    lists = {key: ", ".join(chain.from_iterable(one[key] for one in records)) or "-" for key in ("needless", "unsure")}
    wanted = KINDS[kind] is not None
    return [
        kind,
        len(records),
        sum(one["right"] for one in records),
        sum(one["named"] for one in records) if wanted else "",
        lists["needless"],
        lists["unsure"],
        format_time(took_s[middle]),
        format_time(took_s[-1]),
        sum(one["examined"] for one in records) if wanted else "",
        ", ".join(chain.from_iterable(one["examined_needless"] for one in records)) or "-",
        format_time(examined_s[middle]),
    ]


def score(kind: str, _count: int) -> dict[str, Any]:
    """Run one job of a kind and judge it: a record."""
    found = on_ranks(measure, {"kind": kind}, RANKS, "mpi", 60.0)
    return {"kind": kind} | judge(kind, found) | found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 if a job was not right."""
    return score_jobs("validate_score", __doc__, KINDS, score, COLUMNS, row, "lanterne validate", arguments)


if __name__ == "__main__":
    sys.exit(main())
