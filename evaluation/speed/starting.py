"""Score what comes before a first call: a rank's own part of a schedule of many ranks, and the first init on a host.

  ./run evaluate speed.starting [--only own,init] [-n 4] [--runs 5] [--json FILE]

`own`: for algorithms whose ranks make their own part alone, with a late rank where they know one: CPU seconds in which
one of 4,096 ranks makes, checks and compiles its part, and by how much its memory grows (the most of a process of its
own). `init`: seconds of lanterne.init() of the slowest of `-n` ranks on this host, each run with an empty cache, but
with Python's bytecode, as an installation has it: where PYTHONDONTWRITEBYTECODE is set, in a folder of this process.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from lanterne.bench.output import report
from lanterne.bench.output.units import format_nbytes, format_time, whole
from lanterne.errors import InputError, one_of
from lanterne.transport.own_python import own_python

WORLD_SIZE, RANK, NBYTES = 4096, 1234, 64 << 20
ALGORITHMS = ("ring", "rhd", "late_join", "late_chain")
PARTS = ("own", "init")
LIMIT_S = 120.0
MODULE = "evaluation.speed.starting"


def own_part(algorithm: str) -> dict[str, Any]:
    """CPU seconds and bytes that RANK's part of `algorithm` takes in this process, once its modules are loaded."""
    from lanterne.collectives.algorithms.catalogue import find_algorithm, make_schedule
    from lanterne.collectives.execute.compile_program import compile_program
    from lanterne.collectives.schedule.check_own import OwnSchedule

    late = WORLD_SIZE - 1 if find_algorithm("all_reduce", algorithm).late else None
    before_nbytes, began_s = _most_nbytes(), time.process_time()
    made = make_schedule("all_reduce", algorithm, WORLD_SIZE, late_rank=late, only=RANK)
    program = compile_program(OwnSchedule(made, RANK), RANK, NBYTES // 4, 4, segment_nbytes=NBYTES)
    took_s = time.process_time() - began_s
    grown_nbytes = _most_nbytes() - before_nbytes
    return {"algorithm": algorithm, "cpu_s": took_s, "grown_nbytes": grown_nbytes, "actions": len(program.actions)}


def first_init(ranks: int) -> float:
    """Seconds of the first init on this host, as the slowest of `ranks` has it, with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        launch = ["-m", "lanterne", "launch", "-n", str(ranks)]
        said = _child([*launch, "--", *own_python(), "-m", MODULE, "--rank"], cache)
    times_s = [float(line.split()[-1]) for line in said.splitlines() if line.startswith("init ")]
    if len(times_s) != ranks:
        raise InputError(f"init: got {len(times_s)} of {ranks} ranks' times in {said!r}")
    return max(times_s)


def _child(arguments: list[str], cache: str) -> str:
    """What a Python of this environment prints."""
    environment = os.environ | {"LANTERNE_CACHE": cache}
    if environment.pop("PYTHONDONTWRITEBYTECODE", ""):
        environment.setdefault("PYTHONPYCACHEPREFIX", _bytecode())
    command = [*own_python(), *arguments]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=LIMIT_S, check=True)
    return done.stdout.decode()


@functools.cache
def _bytecode() -> str:
    """A folder for what Python compiles: each rank would compile 300 modules otherwise, in 0.6 s."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return folder.name


def _most_nbytes() -> int:
    """The most memory that this process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _be_rank() -> None:
    import lanterne

    began_s = time.perf_counter()
    comm = lanterne.init()
    took_s = time.perf_counter() - began_s
    comm.close()
    # One write, also where Python does not buffer: the ranks share the pipe.
    sys.stdout.write(f"init {took_s:.6f}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=str(__doc__).split("\n\n")[2])
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,...", help=f"of {', '.join(PARTS)}")
    parser.add_argument("-n", type=whole(2), default=4, metavar="N", help="ranks of init (default 4)")
    parser.add_argument("--runs", type=whole(1), default=5, metavar="K", help="of init (default 5)")
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")
    parser.add_argument("--part", choices=ALGORITHMS, help=argparse.SUPPRESS)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.part or args.rank:
        print(json.dumps(own_part(args.part))) if args.part else _be_rank()
        return 0
    parts = args.only.split(",")
    for part in parts:
        if part not in PARTS:
            raise InputError(f"--only: {one_of(part, PARTS)}")
    document = report.envelope()
    if "own" in parts:
        document["own"] = [json.loads(_child(["-m", MODULE, "--part", name], "off")) for name in ALGORITHMS]
    if "init" in parts:
        document["init_s"] = [first_init(args.n) for _ in range(args.runs)]
    report.tell(args.json, document, print_document)
    return 0


def print_document(document: dict[str, Any], file: Any) -> None:
    """The tables of the document."""
    if found := document.get("own"):
        rows = [
            (row["algorithm"], format_time(row["cpu_s"]), format_nbytes(row["grown_nbytes"]), row["actions"])
            for row in found
        ]
        columns = [(f"part of {WORLD_SIZE} ranks", ""), ("CPU", ""), ("memory", "grown by"), ("actions", "")]
        report.print_table(columns, rows, left=(0,), file=file)
    if times_s := document.get("init_s"):
        median, worst = format_time(statistics.median(times_s)), format_time(max(times_s))
        print(f"first init: {median} (median of {len(times_s)} runs, worst {worst})", file=file)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        sys.exit(main())
