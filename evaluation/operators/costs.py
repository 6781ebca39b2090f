"""What operators' parts cost, against their bars: scrape, page, update of the detector, locate, memory.

scrape    /metrics of a job of 1,024 ranks with 64 incidents and 16 hosts, over HTTP (bar 50 ms)
page      its page, the same way (bar 50 ms)
update    an update of the detector, the mean over the jobs of detector.update_cost (bar 5 us)
status    what a status of a watched job takes, made and written (64 ranks), once a second while somebody asks (bar
          5 ms: 0.5 %); and a look, once a second, where nobody does (bar 0.5 ms)
memory    what watching keeps of a job of 1,000,000 iterations, 1,000 slow spells and ever new communicators, by a ring
          of 1,024 calls and a clock that is made up (bar 50 MB), and what of it its last quarter adds (bar 1 MB)
locate    `lanterne locate` on 1,000,000 rows of a trace, and on as many lines of NCCL Inspector (bars 10 s, 1 GB)
serve     resident memory of `lanterne serve` after 200 pages (bar 200 MB)

What is read or shown is checked: every rank is in the metrics, the slow worker or rank is named. How much slower a loop
is beside the whole of watch: `./run evaluate failslow`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from lanterne.bench.output import report
from lanterne.bench.output.load import busy_note
from lanterne.bench.output.units import whole
from lanterne.collectives.auto.load_meter import LoadMeter
from lanterne.failslow.operate.publisher import Publisher
from lanterne.failslow.operate.status_server import Address, StatusServer
from lanterne.transport.job.launch import start_child

RANKS, INCIDENTS, HOSTS = 1024, 64, 16
SLOW_REPLICA, SLOW_STAGE, SLOW_RANK = 3, 1, 5
ROWS = 1_000_000
# Of an endless job: iterations from one slow spell to the next, of one, between two looks, and with a new communicator.
SPELL, SLOW, LOOK, NEW = 1000, 50, 250, 10


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 1 if a bar is missed or something is wrong."""
    parser = argparse.ArgumentParser(
        prog="./run evaluate operators.costs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help="only these")
    words = "of locate, and iterations of memory (default 1,000,000)"
    parser.add_argument("--rows", type=whole(1000), default=ROWS, metavar="N", help=words)
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")
    args = parser.parse_args(arguments)
    meter = LoadMeter()
    records = [record for part in args.only for record in PARTS[part](args)]
    if args.json:
        report.write_json(args.json, report.envelope(foreign_cores=meter.foreign_cores(), results=records))
    rows = [
        [r["what"], f"{r['value']:.4g} {r['unit']}", f"{r['bar']:g} {r['unit']}", "" if r["met"] else "missed"]
        for r in records
    ]
    file = sys.stderr if args.json == "-" else sys.stdout
    report.print_table([("what", ""), ("measured", ""), ("bar", ""), ("", "")], rows, file=file)
    if note := busy_note(meter.foreign_cores()):
        print(note, file=sys.stderr)
    return int(not all(record["met"] for record in records))


def _record(what: str, value: float, unit: str, bar: float, *, right: bool) -> dict[str, Any]:
    return {"what": what, "value": value, "unit": unit, "bar": bar, "right": right, "met": right and value <= bar}


def large_status() -> dict[str, Any]:
    """The status of a job of RANKS ranks of which many are blamed."""
    draw = random.Random(0)
    rank = {"host": "node", "gpu": "0", "nic": "eth0", "pid": 1, "state": "runs", "frames": [], "text": "at x.py:1"}
    incident = {"kind": "slow", "time": "", "text": "slow", "evidence": ["late"], "telemetry": [], "remedy": "see"}
    telemetry = {
        "pressure": {"cpu": 0.1, "memory": 0.0, "io": 0.0},
        "nics": {f"eth{i}": {"rx_bytes": 1, "tx_bytes": 1, "errors": 0, "downs": 0, "state": "up"} for i in range(8)},
        "gpus": [{"index": i, "sm_mhz": 1980, "celsius": 60, "reasons": [], "throttled": False} for i in range(8)],
        "absent": [],
    }
    return {
        **{"schema_version": 1, "run": "r", "program": "train.py", "host": "node0", "began": "", "time": ""},
        **{"ended": False, "ranks": RANKS, "reported": RANKS, "notes": [], "thresholds": {"patience_s": 30.0}},
        "iterations": {
            **{"count": 9999, "total_s": 1e4, "last_s": 1.0, "median_s": 1.0, "usual_s": 0.5, "ratio": 2.0},
            **{"slow": True, "recent": [[i, draw.uniform(0.9, 1.1)] for i in range(256)]},
        },
        "late": [
            {"rank": i, "host": f"node{i // 64}", "late_s": draw.random(), "last": i, "waited_s": 1.0}
            for i in range(RANKS)
        ],
        "counts": {"slow": INCIDENTS},
        "incidents": [
            {
                **incident,
                **{"id": str(i), "lasts": i > INCIDENTS // 2, "ranks": [rank | {"rank": 8 * i + k} for k in range(8)]},
                "iterations": {"onset": 9800 + i, "relief": None if i > INCIDENTS // 2 else 9990, "ratio": 2.0},
            }
            for i in range(INCIDENTS)
        ],
        "telemetry": {f"node{i}": telemetry for i in range(HOSTS)},
    }


def _timed_s(ask: Callable[[], object], times: int) -> float:
    samples = []
    for _ in range(times):
        start_s = time.perf_counter()
        ask()
        samples.append(time.perf_counter() - start_s)
    return median(samples)


def _read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def _scrapes(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    status = large_status()
    with closing(StatusServer(lambda: [status], Address("127.0.0.1", 0, True))) as server:
        for what, path, word in (("scrape", "metrics", "lanterne_rank_late_seconds{"), ("page", "", "<article")):
            right = _read(server.url + path).count(word) == (RANKS if path else 50)
            took_s = _timed_s(partial(_read, server.url + path), 15)
            yield _record(f"{what}, {RANKS} ranks", 1e3 * took_s, "ms", 50, right=right)


def _updates(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from evaluation.detector.update_cost import measure

    report.progress("updates of the detector")
    for record in measure(39, 0):
        if record["kind"] == "plain":
            yield _record("update, plain jobs, mean", 1e6 * record["mean_s"], "us", 5, right=True)
            yield _record("update, plain jobs, median", 1e6 * record["median_s"], "us", 5, right=True)


def _looks(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from lanterne.failslow.record.call_ring import RingWriter
    from lanterne.failslow.record.job_ledger import JobLedger, about_run
    from lanterne.failslow.record.job_log import JobLog

    ranks, iterations = 64, 120
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank in range(ranks):
            header = {"rank": rank, "pid": 1, "host": "h", "boot": "b", "world_size": ranks}
            writer = RingWriter(folder / f"rank-{rank}-1.calls", header, 4096)
            for i in range(iterations):
                late_s = 0.05 if rank == 3 and i > 80 else 0.0
                writer.channel("all_reduce", ranks, 0)(8, i + late_s, i + 0.1)
        job = JobLog(folder, ranks)
        publisher = Publisher(file=folder / "job.status")
        ledger = JobLedger(job, about_run(["x"]), None, publisher=publisher)
        job.poll()
        written = (folder / "job.status").stat().st_ino
        look_s = _timed_s(ledger.look, 50)
        # Nobody asks: it is not written again, which would make another file of it.
        right = (folder / "job.status").stat().st_ino == written
        yield _record(f"a look at {ranks} ranks, nobody asks", 1e3 * look_s, "ms", 0.5, right=right)
        took_s = _timed_s(lambda: publisher.publish(ledger.status()), 50)
        right = len(json.loads((folder / "job.status").read_text())["late"]) == ranks
        yield _record(f"a status of {ranks} ranks", 1e3 * took_s, "ms", 5, right=right)


def _remembers(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from lanterne.failslow.record.call_ring import RingWriter
    from lanterne.failslow.record.job_ledger import JobLedger, about_run
    from lanterne.failslow.record.job_log import JobLog

    report.progress(f"memory: {args.rows} iterations")
    draw, ranks, now_s, resident = random.Random(0), 2, 0.0, list[int]()
    with tempfile.TemporaryDirectory() as name:
        folder, before = Path(name), _resident_nbytes()
        headers = [{"rank": rank, "pid": 1, "host": "h", "boot": "b", "world_size": ranks} for rank in range(ranks)]
        writers = [RingWriter(folder / f"rank-{h['rank']}-1.calls", h, 1024) for h in headers]
        job = JobLog(folder, ranks)
        ledger = JobLedger(job, about_run(["x"]), None, publisher=Publisher())
        usual = [(writer.channel("all_reduce", ranks, 0), writer.channel("barrier", ranks, 0)) for writer in writers]
        for i in range(args.rows):
            late_s = 0.5 if i % SPELL >= SPELL - SLOW else 0.0
            end_s = now_s + 1.0 + late_s + 0.01 * draw.random()
            for rank, (reduces, barriers) in enumerate(usual):
                reduces(4096, now_s + 0.9 + late_s * rank, end_s - 0.01)
                barriers(-1, end_s - 0.01, end_s)
                if i % NEW == 0:
                    writers[rank].channel("broadcast", ranks, i + 1)(8, end_s, end_s)
            now_s = end_s
            if (i + 1) % LOOK == 0:
                for notice in job.poll():
                    ledger.notice(notice)
                ledger.look()
                resident.append(_resident_nbytes())
        right = ledger.incidents.counts["slow"] == args.rows // SPELL
    yield _record(f"memory, {args.rows} iterations", (resident[-1] - before) / 1e6, "MB", 50, right=right)
    last = resident[-1] - resident[3 * len(resident) // 4]
    yield _record("of it the last quarter", last / 1e6, "MB", 1, right=right)


def _resident_nbytes(process: int | str = "self") -> int:
    text = Path(f"/proc/{process}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) * 1024


def _locates(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for what, write in (("rows", _write_rows), ("Inspector lines", _write_lines)):
        report.progress(f"locate: writing {args.rows} {what}")
        with tempfile.TemporaryDirectory() as name:
            count, rank = write(Path(name), args.rows)
            report.progress(f"locate: {count} {what}")
            start_s = time.perf_counter()
            command = [sys.executable, "-c", MEASURED, str(next(Path(name).iterdir()))]
            result = subprocess.run(command, capture_output=True, text=True, check=True)
            took_s = time.perf_counter() - start_s
        document, _, peak = result.stdout.rpartition("PEAK ")
        verdicts = json.loads(document)["verdicts"]
        right = any(rank in verdict["ranks"] for verdict in verdicts)
        yield _record(f"locate, {count} {what}", took_s, "s", 10 * count / ROWS, right=right)
        yield _record("its memory", int(peak) * 1024 / 1e6, "MB", 1000, right=right)
    report.progress("")


# Not ru_maxrss: in a child that is what its parent had, if that was more.
MEASURED = """
import sys
from pathlib import Path
from lanterne.bench.cli import main
main(["locate", sys.argv[1], "--json", "-"])
print("PEAK", Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
"""


def _write_rows(folder: Path, count: int) -> tuple[int, int]:
    """A trace of about `count` rows in a file; (rows, the slow rank)."""
    from evaluation.operators.trace_set import csv_of
    from evaluation.trace_jobs import make_trace

    replicas, stages, microbatches = 16, 4, 8
    each = replicas * (2 * microbatches * (stages + 2 * (stages - 1)) + stages)
    steps = max(10, -(-count // each))
    columns = make_trace(replicas, stages, microbatches, steps, workers={(SLOW_REPLICA, SLOW_STAGE): 1.8}, seed=1)
    (folder / "trace.csv").write_bytes(csv_of(columns))
    return len(columns["step"]), SLOW_REPLICA * stages + SLOW_STAGE


def _write_lines(folder: Path, count: int) -> tuple[int, int]:
    """Lines of NCCL Inspector of 16 ranks in a file; (lines, the slow rank)."""
    ranks, draw = 16, random.Random(1)
    calls = -(-count // ranks)
    with open(folder / "inspector.log", "w") as file:
        for call in range(calls):
            late = {rank: 1e3 * draw.random() for rank in range(ranks)} | {SLOW_RANK: 20e3}
            end_us = 1e6 + call * 50e3
            for rank, late_us in late.items():
                start_us = end_us - 21e3 + late_us
                about = {"hostname": f"h{rank}", "pid": rank, "dump_timestamp_us": int(end_us)}
                done = {"coll": "AllReduce", "coll_sn": call, "coll_msg_size_bytes": 4096}
                begun = {"coll_start_ts": int(start_us)}
                done |= {"coll_exec_time_us": int(end_us - start_us), "event_trace_ts": begun}
                header = {"id": "0x1", "rank": rank, "n_ranks": ranks}
                file.write(json.dumps({"header": header, "metadata": about, "coll_perf": done}) + "\n")
    return calls * ranks, SLOW_RANK


def _serves(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from lanterne.bench.failslow.watch import STATUS_FILE

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, f"lanterne-watch-{os.getuid()}-1")
        folder.mkdir()
        (folder / STATUS_FILE).write_text(json.dumps(large_status()))
        process = start_child(
            [sys.executable, "-m", "lanterne", "serve", "--listen", "0"], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "TMPDIR": name},
        )  # fmt: skip
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            right = all("<article" in _read(url) for _ in range(200))
            resident = _resident_nbytes(process.pid)
        finally:
            process.terminate()
            process.wait(20)
            assert process.stdout is not None
            process.stdout.close()
        yield _record("serve, after 200 pages", resident / 1e6, "MB", 200, right=right)


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "scrape": _scrapes,
    "update": _updates,
    "status": _looks,
    "memory": _remembers,
    "locate": _locates,
    "serve": _serves,
}


if __name__ == "__main__":
    sys.exit(main())
