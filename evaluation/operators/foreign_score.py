"""Score `lanterne locate` on traces as clusters write them: in each foreign format, with a tenth of the rows lost.

  ./run evaluate operators.foreign_score
  ./run evaluate operators.foreign_score --traces 45 --seed 7 --thin 0
  ./run evaluate operators.foreign_score --folder TRACES

Traces are those of `locate_score`, of another seed: a worker, two workers, a link, a stage, the data or nothing is
slow. Each is written in every format (PyTorch's Flight Recorder as pickle and as JSON without durations, NCCL Inspector
with and without beginnings, Kineto), with clocks a day apart from rank to rank, and read back; beside it the answer to
the whole trace in its own columns. Right and blamed are as there. With --folder FILES.parquet or .csv are written so,
whose causes nobody told: right is then to say what `locate` says of the whole file.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from evaluation.locate_score import judge, make_cases
from evaluation.operators.foreign_formats import DAY_S, WRITERS, Calls, calls_of
from lanterne.bench.output import report
from lanterne.bench.output.units import whole
from lanterne.errors import InputError, LanterneError
from lanterne.failslow.locate.calls_verdicts import diagnose
from lanterne.failslow.locate.formats.folder import TRACES, read_folder
from lanterne.failslow.locate.locate import Verdict, locate
from lanterne.failslow.locate.trace import build_trace, read_records

# Not that of locate_score, which the readers were made with.
SEED = 907
OWN = "its own columns, whole"

Columns: TypeAlias = Mapping[str, NDArray[Any]]
# (right, blamed) of verdicts.
Judge: TypeAlias = Callable[[Sequence[Verdict]], tuple[bool, bool]]


class KnownTrace(NamedTuple):
    """A trace's columns, its kind, and what is right to say of it."""

    kind: str
    columns: Columns
    judge: Judge


def made_traces(count: int, seed: int) -> Iterator[KnownTrace]:
    """`count` traces with known causes, a pure function of `seed`."""
    from evaluation.trace_jobs import make_trace

    for case in make_cases(count, seed):
        yield KnownTrace(case.kind, make_trace(**case.options), partial(judge, case))


def found_traces(folder: Path) -> Iterator[KnownTrace]:
    """The traces in a folder. Raises InputError where there are none."""
    files = sorted(file for file in folder.glob("*") if file.suffix in TRACES)
    if not files:
        raise InputError(f"--folder: got {folder}, which holds no trace, expected {' or '.join(TRACES)} files")
    for file in files:
        columns = read_records(file)
        expected = locate(build_trace(columns))
        yield KnownTrace(file.name, columns, partial(same, expected))


def named(verdicts: Sequence[Verdict]) -> frozenset[tuple[str, object]]:
    """What verdicts blame: workers and links by their ranks, a stage by its number, the data."""
    return frozenset((v.cause, v.ranks if v.cause in ("worker", "link") else v.stage) for v in verdicts)


def same(expected: Sequence[Verdict], verdicts: Sequence[Verdict]) -> tuple[bool, bool]:
    """(whether `verdicts` blame what is expected, whether they blame a worker or link that it does not)."""
    right, said = named(expected), named(verdicts)
    return said == right, any(cause in ("worker", "link") for cause, _ in said - right)


def in_format(name: str, calls: Calls) -> list[Verdict]:
    """What `locate` says of calls that were written in a format of WRITERS; nothing where it refuses them."""
    with tempfile.TemporaryDirectory() as folder:
        WRITERS[name](Path(folder), calls)
        try:
            return diagnose(read_folder(folder).calls)[0]
        except LanterneError:
            return []


def answers(trace: KnownTrace, thin: float, seed: int) -> Iterator[tuple[str, tuple[bool, bool]]]:
    """(format, (right, blamed)) of the whole trace in its own columns, and thinned in each format."""
    yield OWN, trace.judge(locate(build_trace(trace.columns)))
    ranks = np.unique(trace.columns["rank"]).tolist()
    calls = calls_of(trace.columns, thin, seed, {int(rank): DAY_S * int(rank) for rank in ranks})
    for name in WRITERS:
        yield name, trace.judge(in_format(name, calls))


def score(traces: Iterator[KnownTrace], thin: float, seed: int) -> list[dict[str, Any]]:
    """A record for each format and kind of trace, and for each format over all kinds: how many, right and blamed."""
    found: dict[tuple[str, str], list[tuple[int, bool, bool]]] = {}
    for number, trace in enumerate(traces):
        report.progress(f"trace {number}: {trace.kind}")
        for name, answer in answers(trace, thin, seed + number):
            for kind in (trace.kind, "all"):
                found.setdefault((name, kind), []).append((number, *answer))
    report.progress("")
    return [
        {
            "format": name,
            "kind": kind,
            "traces": len(rows),
            "right": sum(right for _, right, _ in rows) / len(rows),
            "blamed": sum(blamed for *_, blamed in rows) / len(rows),
            "wrong": [number for number, right, _ in rows if not right],
        }
        for (name, kind), rows in found.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 2 for options that cannot be."""
    parser = argparse.ArgumentParser(
        prog="./run evaluate operators.foreign_score",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--traces", type=whole(1), default=45, metavar="N", help="how many (default 45)")
    parser.add_argument("--seed", type=whole(0), default=SEED, metavar="N", help=f"of the traces (default {SEED})")
    parser.add_argument("--thin", type=float, default=0.1, metavar="X", help="share of rows lost (default 0.1)")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="score traces of this folder instead")
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")
    args = parser.parse_args(arguments)
    try:
        if not 0 <= args.thin < 1:
            raise InputError(f"--thin: got {args.thin:g}, expected at least 0 and less than 1")
        traces = made_traces(args.traces, args.seed) if args.folder is None else found_traces(args.folder)
        records = score(traces, args.thin, args.seed)
    except LanterneError as error:
        print(f"foreign_score: {error}", file=sys.stderr)
        return 2
    if args.json:
        report.write_json(args.json, report.envelope(seed=args.seed, thin=args.thin, results=records))
    if args.json != "-":
        columns = [("kind", ""), *((name, "right, %") for name in (OWN, *WRITERS))]
        kinds = list(dict.fromkeys(record["kind"] for record in records if record["kind"] != "all"))
        shares = {(r["kind"], r["format"]): f"{100 * r['right']:.0f}" for r in records}
        rows = [[kind, *(shares[kind, name] for name in (OWN, *WRITERS))] for kind in (*kinds, "all")]
        foreign = [r for r in records if r["kind"] == "all" and r["format"] != OWN]
        blamed = sum(r["blamed"] * r["traces"] for r in foreign)
        readings = sum(r["traces"] for r in foreign)
        notes = [f"healthy ones blamed in {blamed:.0f} of {readings} readings"]
        report.print_table(columns, rows, notes=notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
