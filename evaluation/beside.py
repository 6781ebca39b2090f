"""Jobs beside busy processes, scored: what `loop_score` and `validate_score` share."""

import argparse
import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from lanterne.bench.output import report
from lanterne.bench.output.units import whole
from lanterne.transport.job.guard import set_parent_death_signal

COPIED_NBYTES, LONGEST_BURST_S = 16 << 20, 1.0


def score_jobs(
    name: str,
    doc: str | None,
    kinds: Collection[str],
    score: Callable[[str, int], dict[str, Any]],
    columns: Sequence[tuple[str, str]],
    row: Callable[[str, list[dict[str, Any]]], Sequence[object]],
    title: str,
    arguments: Sequence[str] | None = None,
    *,
    seeded: bool = False,
    asked: Collection[str] = (),
) -> int:
    """The command line of a score: run jobs, print a table; 1 if a job was not right.

    Args:
        name, doc: of the module that is run; its second paragraph is the help.
        kinds: of jobs, by name.
        score: gives the record of one job of a kind, with "kind" and "right"; its second argument counts the jobs.
        columns, row, title: of the table; row(kind, records) is a line of it.
        asked: kinds of jobs that are run only where they are asked for.
        seeded: whether that count is the job's seed, which --seed may let begin elsewhere than at 0.
    """
    parser = argparse.ArgumentParser(prog=f"python -m evaluation.{name}", description=str(doc).split("\n\n")[1])
    parser.add_argument(
        "--kinds", nargs="+", choices=[*kinds, *asked], default=list(kinds), metavar="KIND", help="only these"
    )
    parser.add_argument("--jobs", type=whole(1), default=1, metavar="N", help="of each kind (default 1)")
    if seeded:
        parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of the first job (default 0)")
    parser.add_argument("--beside", type=whole(0), default=0, metavar="N", help="busy processes beside (default 0)")
    parser.add_argument("--json", metavar="FILE", help="write the records ('-' for standard output)")
    args = parser.parse_args(arguments)
    records: list[dict[str, Any]] = []
    first = args.seed if seeded else 0
    with busy(args.beside):
        for number in range(args.jobs):
            for kind in args.kinds:
                report.progress(f"{kind}, job {number + 1} of {args.jobs}")
                records.append(score(kind, first + len(records)))
    report.progress("")
    if args.json:
        report.write_json(args.json, report.envelope(beside=args.beside, results=records))
    if args.json != "-":
        rows = [row(kind, [one for one in records if one["kind"] == kind]) for kind in args.kinds]
        report.print_table(columns, rows, title=f"{title} beside {args.beside} busy processes")
    return int(not all(one["right"] for one in records))


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """`count` processes while the block runs: most compute, every third copies memory or sleeps, in bursts."""
    works = [_burst if number % 3 == 2 else _compute for number in range(count)]
    others = [
        multiprocessing.get_context("spawn").Process(target=_tied, args=(work, os.getpid()), daemon=True)
        for work in works
    ]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def _tied(work: Callable[[], None], parent: int) -> None:
    set_parent_death_signal(signal.SIGKILL, parent)
    work()


def _compute() -> None:
    while True:
        sum(range(100_000))


def _burst() -> None:
    draw, some, other = random.Random(0), bytearray(COPIED_NBYTES), bytearray(COPIED_NBYTES)
    while True:
        until_s = time.monotonic() + draw.uniform(0, LONGEST_BURST_S)
        while time.monotonic() < until_s:
            other[:] = some
        time.sleep(draw.uniform(0, LONGEST_BURST_S))
