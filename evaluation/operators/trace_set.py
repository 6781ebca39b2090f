"""A labelled set of traces for anybody's program that names what is slow: write it, and score answers to it.

  ./run evaluate operators.trace_set --write FOLDER            60 traces and labels.json
  ./run evaluate operators.trace_set --score FOLDER            `lanterne locate` on them
  ./run evaluate operators.trace_set --score FOLDER --answers answers.json

A trace is a CSV file as `lanterne locate --help` describes it, of 1 to 16 replicas and 1 to 6 stages over 10 to 40
steps; the causes are those of `locate_score`. Of every third trace a tenth of the rows is missing.
labels.json says for each: `file`, `sha256`, `kind`, `missing` (the share of rows), `workers` (ranks that were slowed),
`links` (both ends), `needed` and `allowed` ("stage", "data": what else must, and what may be named). It is made by seed
and number alone: --digest prints one digest of all files, to be quoted beside a score.

Answers: a JSON object, {file: [{"cause": "worker"|"link"|"stage"|"data"|"none", "ranks": [...]}, ...]}. A trace is
right when exactly the workers and links that were slowed are named, and of stages and data only what is uneven; blamed,
when a healthy worker or link was named; a file without an answer is wrong.
"""

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluation.locate_score import SEED, LabelledTrace, judge, make_cases
from lanterne.bench.output import report
from lanterne.errors import InputError, LanterneError
from lanterne.failslow.locate.locate import Verdict, locate
from lanterne.failslow.locate.trace import read_trace

LABELS = "labels.json"
MISSING, EVERY = 0.1, 3
CAUSES = ("worker", "link", "stage", "data", "none")
Columns = Mapping[str, NDArray[Any]]


def csv_of(columns: Columns) -> bytes:
    """A trace as CSV; times in seconds with 6 digits behind the point."""
    names = list(columns)
    values = [
        [f"{value:.6f}" for value in columns[name]] if name in ("start_ts", "duration") else columns[name].tolist()
        for name in names
    ]
    rows = (",".join(map(str, row)) for row in zip(*values, strict=True))
    return ("\n".join([",".join(names), *rows]) + "\n").encode()


def make_set(count: int, seed: int) -> list[tuple[dict[str, Any], bytes]]:
    """The labels and CSV files of `count` traces, a pure function of both."""
    from evaluation.trace_jobs import make_trace

    made = []
    for number, case in enumerate(make_cases(count, seed)):
        columns: Columns = make_trace(**case.options)
        missing = MISSING if number % EVERY == EVERY - 1 else 0.0
        kept = np.random.default_rng([seed, number, 1]).random(len(columns["step"])) >= missing
        data = csv_of({name: values[kept] for name, values in columns.items()})
        label = {
            "file": f"trace-{number:03}.csv",
            "sha256": hashlib.sha256(data).hexdigest(),
            "kind": case.kind,
            "missing": missing,
            "workers": sorted(case.workers),
            "links": sorted(map(list, case.links)),
            "needed": sorted(case.needed),
            "allowed": sorted(case.allowed),
        }
        made.append((label, data))
    return made


def digest(labels: Sequence[Mapping[str, Any]]) -> str:
    """One digest of all files and labels."""
    text = "\n".join(f"{one['file']} {one['sha256']} {one['workers']} {one['links']}" for one in labels)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_labels(folder: Path) -> list[dict[str, Any]]:
    """The labels of a set, whose files must be as they were written.

    Raises:
        InputError: they are not.
    """
    labels: list[dict[str, Any]] = report.read_json(folder / LABELS)["traces"]
    for one in labels:
        path = folder / one["file"]
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != one["sha256"]:
            raise InputError(f"{path}: is not the file that {LABELS} names, expected it as it was written")
    return labels


def read_answers(path: str | Path) -> dict[str, list[Verdict]]:
    """Somebody's answers.

    Raises:
        InputError: they have another form.
    """
    document = report.read_json(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: got {type(document).__name__}, expected an object of files")
    return {file: [_verdict(one, f"{path}: {file}") for one in _listed(some, path)] for file, some in document.items()}


def _listed(value: object, path: str | Path) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{path}: got {type(value).__name__} for a file, expected a list of verdicts")
    return value


def _verdict(one: Any, where: str) -> Verdict:
    cause, ranks = (one.get("cause"), one.get("ranks", [])) if isinstance(one, dict) else (None, None)
    if cause not in CAUSES or not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
        raise InputError(f'{where}: got {one!r}, expected {{"cause": one of {", ".join(CAUSES)}, "ranks": [...]}}')
    # Both ends of a link, in order.
    return Verdict(cause, tuple(sorted(ranks) if cause == "link" else ranks), None, 0.0)


def own_answers(folder: Path, labels: Sequence[Mapping[str, Any]]) -> dict[str, list[Verdict]]:
    """Those of `lanterne locate`; none for a trace that it refuses."""
    found = {}
    for number, one in enumerate(labels):
        report.progress(f"trace {number + 1} of {len(labels)}")
        try:
            found[one["file"]] = list(locate(read_trace(folder / one["file"])))
        except LanterneError:
            continue
    report.progress("")
    return found


def score(labels: Sequence[Mapping[str, Any]], answers: Mapping[str, Sequence[Verdict]]) -> list[dict[str, Any]]:
    """A record for each kind, and one for all: traces, shares right, and with a healthy one blamed."""
    found: dict[str, list[tuple[str, bool, bool]]] = {}
    for one in labels:
        case = LabelledTrace(
            one["kind"], {}, frozenset(one["workers"]), frozenset(map(tuple, one["links"])),
            frozenset(one["needed"]), frozenset(one["allowed"]),
        )  # fmt: skip
        given = answers.get(one["file"])
        right, blamed = (False, False) if given is None else judge(case, given)
        for kind in (one["kind"], "with rows missing" if one["missing"] else "whole", "all"):
            found.setdefault(kind, []).append((one["file"], right, blamed))
    last = ("whole", "with rows missing", "all")
    return [
        {
            "kind": kind,
            "traces": len(rows),
            "right": sum(right for _, right, _ in rows) / len(rows),
            "blamed": sum(blamed for _, _, blamed in rows) / len(rows),
            "wrong": [file for file, right, _ in rows if not right],
        }
        for kind, rows in sorted(found.items(), key=lambda item: last.index(item[0]) if item[0] in last else -1)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(
        prog="./run evaluate operators.trace_set",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", metavar="FOLDER", help="write the set into a new or empty folder")
    what.add_argument("--score", metavar="FOLDER", help="score answers to the set in it")
    what.add_argument("--digest", action="store_true", help="print the set's digest")
    parser.add_argument("--answers", metavar="FILE", help="with --score: whose (default: `lanterne locate`'s)")
    parser.add_argument("--traces", type=int, default=60, metavar="N", help="with --write, --digest (default 60)")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help=f"of the set (default {SEED})")
    parser.add_argument("--json", metavar="FILE", help="with --score: write everything ('-' for standard output)")
    args = parser.parse_args(arguments)
    try:
        return _run(args)
    except LanterneError as error:
        print(f"trace_set: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    if args.score is not None:
        labels = read_labels(Path(args.score))
        answers = read_answers(args.answers) if args.answers else own_answers(Path(args.score), labels)
        records = score(labels, answers)
        if args.json:
            report.write_json(args.json, report.envelope(digest=digest(labels), results=records))
        rows = [[r["kind"], r["traces"], f"{100 * r['right']:.1f}", f"{100 * r['blamed']:.1f}"] for r in records]
        columns = [("kind", ""), ("traces", ""), ("right", "%"), ("blamed", "%")]
        file = sys.stderr if args.json == "-" else sys.stdout
        report.print_table(columns, rows, title=f"set {digest(labels)}", file=file)
        return 0
    if not 1 <= args.traces <= 1000:
        raise InputError(f"--traces: got {args.traces}, expected 1 to 1000")
    folder = Path(args.write or ".")
    if args.write is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"--write: got {folder}, which is there, expected a new or empty folder")
    made = make_set(args.traces, args.seed)
    labels = [label for label, _ in made]
    if args.write is not None:
        folder.mkdir(parents=True, exist_ok=True)
        for label, data in made:
            (folder / label["file"]).write_bytes(data)
        document = {"schema_version": 1, "seed": args.seed, "digest": digest(labels), "traces": labels}
        report.write_json(folder / LABELS, document)
    print(digest(labels))
    return 0


if __name__ == "__main__":
    sys.exit(main())
