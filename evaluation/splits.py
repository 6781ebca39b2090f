"""Benchmark the memory of communicators that are split and closed, over and over, by two threads of each rank.

Two ranks over tcp on this host. Exit code 1 if a rank has grown by more than 5 MB since its first 1,000 splits, an
element is wrong, a thread fails, or ids run out. Ids are used again after 65,000 splits.

  ./run evaluate splits --splits 100000
  ./run evaluate splits --splits 5000 --by-line        # what is left, by the line that made it (slow)
"""

import argparse
import gc
import json
import os
import tempfile
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.units import format_nbytes, format_time, whole
from lanterne.transport.own_python import own_python

RANKS, THREADS, FIRST = 2, 2, 1000
MOST_NBYTES = 5e6
TOP = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--splits", type=whole(FIRST + 1), default=10_000, metavar="N", help="in all (default 10000)")
    parser.add_argument("--by-line", action="store_true", help="trace who has allocated what is left")
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    """Start the ranks, and print what they say."""
    from lanterne.transport.job.launch import launch

    with tempfile.TemporaryDirectory() as folder:
        code = "import sys; from evaluation.splits import rank_main; rank_main(*sys.argv[1:])"
        words = [*own_python(), "-c", code, str(args.splits), str(int(args.by_line)), folder]
        exit_code = launch(words, RANKS, "direct", env={"LANTERNE_TRANSPORT": "tcp"})
        if exit_code:
            return exit_code
        results = [json.loads(path.read_text()) for path in sorted(Path(folder).iterdir())]
    report.tell(args.json, report.envelope(results=results), print_results)
    # What is traced takes memory of its own.
    grown = not args.by_line and any(each["grown_nbytes"] > MOST_NBYTES for each in results)
    return int(grown or any(each["wrong"] for each in results))


def print_results(document: dict[str, Any], file: TextIO) -> None:
    """A row for each rank."""
    rows = [
        (
            str(each["rank"]),
            str(each["splits"]),
            format_time(each["split_s"]),
            format_nbytes(each["first_nbytes"]),
            f"{each['grown_nbytes'] / 1e6:.2f}",
            str(each["wrong"]),
        )
        for each in document["results"]
    ]
    columns = [("rank", ""), ("splits", ""), ("each", ""), (f"after {FIRST}", ""), ("grown", "MB"), ("#wrong", "")]
    report.print_table(columns, rows, file=file)
    for line in document["results"][0]["lines"]:
        print(line, file=file)


def rank_main(splits: str, by_line: str, folder: str) -> None:
    """One rank."""
    import lanterne

    wrong: list[int] = []
    with lanterne.init() as comm:
        parents = [comm.split(0) for _ in range(THREADS)]

        def split(count: int) -> None:
            with ThreadPoolExecutor(THREADS) as pool:
                for done in [pool.submit(_split, parent, count, wrong) for parent in parents]:
                    done.result()

        split(FIRST // THREADS)
        first_nbytes, begun_s = _resident(), time.monotonic()
        before = None
        if by_line == "1":
            tracemalloc.start(4)
            before = tracemalloc.take_snapshot()
        more = (int(splits) - FIRST) // THREADS
        split(more)
        taken_s, nbytes, lines = time.monotonic() - begun_s, _resident(), list[str]()
        if before is not None:
            lines = [str(each) for each in tracemalloc.take_snapshot().compare_to(before, "lineno")[:TOP]]
        found: dict[str, Any] = {"rank": comm.rank, "splits": FIRST + more * THREADS}
        found |= {"split_s": taken_s / (more * THREADS), "first_nbytes": first_nbytes}
        found |= {"grown_nbytes": nbytes - first_nbytes, "wrong": len(wrong), "lines": lines}
        Path(folder, f"{comm.rank}.json").write_text(json.dumps(found))


def _split(parent: Any, count: int, wrong: list[int]) -> None:
    import numpy as np

    out = np.empty(100)
    for number in range(count):
        with parent.split(0) as child:
            child.all_reduce(np.full(100, float(number)), out)
            if not (out == RANKS * number).all():
                wrong.append(number)


def _resident() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
