"""What `lanterne bench` tells a stranger, again and again: on a quiet machine, or beside busy processes.

Runs the main job as a user does, reads the verdict below its first table, and compares it with what its JSON holds.
Without busy processes a verdict is expected in 19 of 20 runs; a wrong one is expected never: one that says that auto
gains nothing over the emulated links, or any while others used the machine. `--busy 4` starts processes beside it.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from evaluation.beside import busy
from lanterne.bench.output import report
from lanterne.bench.output.units import format_time, whole
from lanterne.collectives.auto.load_meter import BUSY_CORES
from lanterne.transport.own_python import own_python

# Below its first table: what is said of auto, or that others were busy.
SAID = re.compile(r"^# (auto gains nothing here|auto gains|busy): ", re.M)
VERDICTS = 19 / 20
GAIN = 0.75
LIMIT_S = 300.0
COLUMNS = [("runs", ""), ("verdicts", ""), ("wrong", ""), ("auto / ring", "median"), ("auto / ring", "worst")]
COLUMNS += [("others' cores", "median"), ("run", "median"), ("run", "longest")]


def run(number: int) -> dict[str, Any]:
    """The record of one run: what it said, what it measured over its emulated links, and how long it took."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        start_s = time.monotonic()
        done = subprocess.run(
            [*own_python(), "-m", "lanterne", "bench", "--json", str(path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        lasted_s = time.monotonic() - start_s
        if done.returncode:
            return {"run": number, "failed": done.stderr.strip(), "lasted_s": lasted_s}
        results = [one for one in report.read_json(path)["results"] if one["emulated_bytes_per_s"] and one["late_s"]]
    said = SAID.search(done.stdout)
    late_s = {one["algorithm"]: one["late_s"] for one in results}
    ratios = [auto_s / ring_s for auto_s, ring_s in zip(late_s["auto"], late_s["ring"], strict=True)]
    return {
        "run": number,
        "failed": "" if said else "no verdict, and nothing on why",
        "said": said[1] if said else None,
        "ratio": statistics.median(ratios),
        "foreign_cores": results[0]["foreign_cores"],
        "lasted_s": lasted_s,
    }


def is_wrong(record: dict[str, Any]) -> bool:
    """Whether a run failed, or said what it may not."""
    if record["failed"]:
        return True
    if record["said"] == "busy":
        return False
    return bool(record["said"] != "auto gains" or record["ratio"] > GAIN or record["foreign_cores"] > BUSY_CORES)


def line(record: dict[str, Any]) -> str:
    """What is told of a run once it is over."""
    name, lasted = f"run {record['run'] + 1}", format_time(record["lasted_s"])
    if record["failed"]:
        return f"{name}: failed after {lasted}: {record['failed']}"
    ratio, cores = record["ratio"], record["foreign_cores"]
    return f"{name}: {record['said']}, {ratio:.2f} of ring's time, others used {cores:.1f} cores, {lasted}"


def row(records: list[dict[str, Any]]) -> list[object]:
    """The line of the table."""
    told = [one for one in records if not one["failed"]]
    ratios, cores = [one["ratio"] for one in told] or [0.0], [one["foreign_cores"] for one in told] or [0.0]
    lasted_s = [one["lasted_s"] for one in records]
    return [
        len(records),
        sum(one["said"] != "busy" for one in told),
        sum(map(is_wrong, records)),
        f"{statistics.median(ratios):.2f}",
        f"{max(ratios):.2f}",
        f"{statistics.median(cores):.1f}",
        format_time(statistics.median(lasted_s)),
        format_time(max(lasted_s)),
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run, print a table; 1 if a run was wrong, or too few of those on a quiet machine gave a verdict."""
    parser = argparse.ArgumentParser(
        prog="./run evaluate first_screen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=whole(1), default=20, metavar="N", help="how many (default 20)")
    parser.add_argument("--busy", type=whole(0), default=0, metavar="N", help="busy processes beside (default 0)")
    parser.add_argument("--json", metavar="FILE", help="write the records ('-' for standard output)")
    args = parser.parse_args(arguments)
    records = []
    with busy(args.busy):
        for number in range(args.runs):
            records.append(run(number))
            print(line(records[-1]), file=sys.stderr)
    document = report.envelope(busy=args.busy, results=records)
    title = f"lanterne bench, {'a quiet machine' if not args.busy else f'beside {args.busy} busy processes'}"
    rows = [row(records)]
    report.tell(args.json, document, lambda _, file: report.print_table(COLUMNS, rows, title=title, file=file))
    few = not args.busy and sum(not one["failed"] and one["said"] != "busy" for one in records) < VERDICTS * args.runs
    return int(few or any(map(is_wrong, records)))


if __name__ == "__main__":
    sys.exit(main())
