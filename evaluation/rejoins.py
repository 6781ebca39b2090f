"""Benchmark jobs that outlive a death: a rank is killed (SIGKILL) at any point of any call, and comes back.

Each seed is a job of 2 to 8 ranks of its own on this host, over tcp or ucx, which makes collective calls without end.
One rank kills itself at an instant that the seed draws; the others shrink and go on, it is started again, and taken
in. In one job of five it kills the job's store instead, and all shrink and go on. Exit code 1 if a rank hangs, an
element is wrong, a survivor names another rank or none, or a bar is missed: from the kill to the survivors' first right
all_reduce 1 s, from the start of the new process to its own 5 s. With --hosts each rank is on an emulated host of its
own (lanterne lab; root), no store is killed, and the first of these bars is 3 s.

  ./run evaluate rejoins --seeds 20
  ./run evaluate rejoins --seeds 200 --json rejoins.json
  ./run evaluate rejoins --seeds 10 --hosts 8
"""

import argparse
import io
import json
import os
import random
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, TextIO

from lanterne.bench.output import report
from lanterne.bench.output.units import chosen, format_time, whole
from lanterne.errors import PeerFailed, TransportError, TransportTimeout
from lanterne.transport.own_python import own_python

TRANSPORTS = {"tcp": "", "ucx": ""}
RANKS, KILLED_AFTER_S = (2, 8), (0.0, 1.5)
# Of jobs, whose store is killed.
STORE_SHARE = 0.2
COUNTS = (1, 100, 5_000, 100_000)
SURVIVE_S, HOSTS_SURVIVE_S, REJOIN_S = 1.0, 3.0, 5.0
# Of waits in a job, and of the job.
TIMEOUT_S, JOB_S = 20.0, 90.0
# Of the links between hosts.
RATE = "200mbit"
# Steps after the rank is back.
MORE_STEPS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=whole(1), default=20, metavar="N", help="how many jobs (default 20)")
    parser.add_argument("--first", type=whole(0), default=0, metavar="SEED", help="the first of them (default 0)")
    parser.add_argument("--transport", default="tcp,ucx", metavar="A,B", help="tcp, ucx or both in turn (default both)")
    parser.add_argument("--hosts", type=whole(2), metavar="N", help="emulated ones, a rank on each (root)")
    parser.add_argument("--no-bars", action="store_true", help="of time: for a machine that has other work")
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    names = chosen(args.transport, "--transport", TRANSPORTS)
    results = []
    for number in range(args.first, args.first + args.seeds):
        report.progress(f"job {number - args.first + 1} of {args.seeds}")
        results.append(run_job(number, names[number % len(names)], args.hosts))
    report.progress("")
    for result in results:
        result["problems"] += [] if args.no_bars else missed(result)
    report.tell(args.json, report.envelope(results=results), print_results)
    return int(any(result["problems"] for result in results))


def run_job(seed: int, transport: str, hosts: int | None = None) -> dict[str, Any]:
    """One job, on `hosts` emulated ones or this: what its ranks tell, and what was wrong with it."""
    rng = random.Random(f"rejoins {seed}")
    ranks = hosts or rng.randint(*RANKS)
    victim, after_s = rng.randrange(ranks), rng.uniform(*KILLED_AFTER_S)
    is_store = not hosts and rng.random() < STORE_SHARE
    with tempfile.TemporaryDirectory() as folder:
        words = [str(seed), str(victim), str(after_s), str(int(is_store)), folder]
        problems = _on_hosts(words, ranks, transport) if hosts else _on_this_host(words, ranks, transport)
        told = [json.loads(Path(folder, name).read_text()) for name in sorted(os.listdir(folder))]
    kill_s = next((each["killed_s"] for each in told if "killed_s" in each), None)
    ended = [each for each in told if "wrong" in each]
    problems += [f"wrong: rank {each['rank']}: {each['wrong']} elements" for each in ended if each["wrong"]]
    survivors = [each for each in ended if not each["is_new"]]
    for each in survivors:
        if each["named"] != (expected := [] if is_store else [victim]):
            problems.append(f"named: rank {each['rank']} named {each['named']}, expected {expected}")
    if kill_s is None:
        problems.append("kill: nothing was killed")
    if len(ended) != ranks:
        problems.append(f"ended: {len(ended)} of {ranks} ranks")
    survive_s = [each["went_on_s"] - kill_s for each in survivors if each["went_on_s"] and kill_s]
    rejoin_s = [each["whole_s"] - each["began_s"] for each in ended if each["is_new"]]
    return {
        "seed": seed,
        "transport": transport,
        "hosts": hosts,
        "ranks": ranks,
        "victim": "store" if is_store else victim,
        "killed_after_s": after_s,
        "survive_s": max(survive_s, default=None),
        "rejoin_s": max(rejoin_s, default=None),
        "problems": problems,
    }


def _command(function: str, words: Sequence[str]) -> list[str]:
    """What calls a function of this module."""
    code = f"import sys; from evaluation.rejoins import {function}; {function}(*sys.argv[1:])"
    return [*own_python(), "-c", code, *words]


def _on_this_host(words: Sequence[str], ranks: int, transport: str) -> list[str]:
    """Run a job of `rank_main`s; what was wrong."""
    from lanterne.transport.job.launch import launch

    # The launcher reports deaths and returns: no news here.
    with redirect_stderr(io.StringIO()) as said:
        try:
            variables = {"LANTERNE_TRANSPORT": transport}
            command = _command("rank_main", words)
            exit_code = launch(command, ranks, "direct", JOB_S, variables, restarts=1, goes_on=True)
        except TransportTimeout as error:
            return [f"hang: {error}"]
    return [f"exit code {exit_code}: {said.getvalue()[-500:]}"] if exit_code else []


def _on_hosts(words: Sequence[str], hosts: int, transport: str) -> list[str]:
    """The same, each on an emulated host of its own."""
    lab = [*own_python(), "-m", "lanterne", "lab", "--hosts", str(hosts), "--rate", RATE, "--"]
    command = [*lab, *_command("host_main", [*words, transport])]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=JOB_S)
    except subprocess.TimeoutExpired:
        return [f"hang: not done after {JOB_S:g} s"]
    return [f"exit code {done.returncode}: {done.stderr[-500:]}"] if done.returncode else []


def host_main(*words: str) -> None:
    """What a host of a job runs: its rank, and again if that was killed, to join the others."""
    *words_of_rank, transport = words
    command = _command("rank_main", words_of_rank)
    code = subprocess.call([*command, transport])
    if code == -signal.SIGKILL:
        code = subprocess.call([*command, transport, f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"])
    raise SystemExit(code)


def missed(result: dict[str, Any]) -> list[str]:
    """The bars of time that a job missed."""
    survive_s = HOSTS_SURVIVE_S if result["hosts"] else SURVIVE_S
    return [
        f"slow: {name} {format_time(result[name])}, expected {format_time(bar_s)}"
        for name, bar_s in (("survive_s", survive_s), ("rejoin_s", REJOIN_S))
        if result[name] is not None and result[name] > bar_s
    ]


def print_results(document: dict[str, Any], file: TextIO) -> None:
    """A table of transports, and all problems."""
    rows = []
    for transport in TRANSPORTS:
        own = [each for each in document["results"] if each["transport"] == transport]
        if own:
            cells = [transport, str(len(own)), str(sum(bool(each["problems"]) for each in own))]
            for name in ("survive_s", "rejoin_s"):
                times_s = [each[name] for each in own if each[name] is not None]
                cells += [format_time(statistics.median(times_s)), format_time(max(times_s))] if times_s else ["-", "-"]
            rows.append(cells)
    columns = [("transport", ""), ("jobs", ""), ("fail", ""), ("go on", "median"), ("", "max"), ("rejoin", "median")]
    report.print_table([*columns, ("", "max")], rows, left=(0,), file=file)
    for each in document["results"]:
        for problem in each["problems"]:
            print(f"seed {each['seed']} ({each['transport']}, {each['ranks']} ranks): {problem}", file=file)


def rank_main(
    seed: str,
    victim: str,
    after_s: str,
    is_store: str,
    folder: str,
    transport: str | None = None,
    join: str | None = None,
) -> None:
    """One rank of a job; rank `victim` kills itself, or the store. `join`: where the job is that it was in."""
    began_s = time.monotonic()
    import lanterne

    comm = lanterne.init(transport, timeout_s=TIMEOUT_S, join=join)
    is_new = comm.epoch > 0
    if not is_new and comm.rank == int(victim):
        threading.Thread(target=_fall, args=(float(after_s), is_store == "1", folder), daemon=True).start()
    found: dict[str, Any] = {"rank": comm.rank, "is_new": is_new, "began_s": began_s, "wrong": 0}
    found |= {"named": [], "went_on_s": None, "whole_s": None}
    step, more, fell = -1 if is_new else 0, MORE_STEPS, False
    while more:
        try:
            step = _agree(comm, step) + 1
            if fell and not found["went_on_s"]:
                found["went_on_s"] = time.monotonic()
            if comm.epoch and not found["whole_s"]:
                found["whole_s"] = time.monotonic()
            found["wrong"] += _call(comm, random.Random(f"{seed} {step}"))
            more -= bool(comm.epoch) or (fell and is_store == "1")
            comm = comm.grow()
        except TransportError as error:
            fell = True
            named: tuple[int, ...] = error.peers if isinstance(error, TransportTimeout) else ()
            named = (error.rank,) if isinstance(error, PeerFailed) else named
            before, comm = comm, comm.shrink()
            # Whom another's shrink ended learns from its own who is missing.
            named = named or tuple(set(before.ranks) - set(comm.ranks))
            found["named"] = sorted({*found["named"], *named})
    Path(folder, f"{os.environ['RANK']}-end").write_text(json.dumps(found))
    comm.close()


def _fall(after_s: float, is_store: bool, folder: str) -> None:
    from lanterne.transport.job.guard import descendants

    pid = os.getpid()
    if is_store:
        # Below the launcher, as is the guard that is our parent.
        launcher = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
        words = {each: Path(f"/proc/{each}/cmdline").read_bytes() for each in descendants(launcher)}
        (pid,) = (each for each, said in words.items() if b"store.server" in said)
    time.sleep(after_s)
    Path(folder, f"{os.environ['RANK']}-killed").write_text(json.dumps({"killed_s": time.monotonic()}))
    os.kill(pid, signal.SIGKILL)


def _agree(comm: Any, step: int) -> int:
    """The step of whoever is furthest, by an all_reduce."""
    import numpy as np

    furthest = np.empty(1, np.int64)
    comm.all_reduce(np.array([step]), furthest, "max")
    return int(furthest[0])


def _call(comm: Any, rng: random.Random) -> int:
    """One call that `rng` draws; how many elements of its result are wrong."""
    import numpy as np

    count, size = rng.choice(COUNTS), comm.world_size
    mine = np.arange(count, dtype=np.int64) + comm.rank
    every = np.arange(count)[None] + np.arange(size)[:, None]
    match rng.choice(("all_reduce", "ring", "all_gather", "reduce_scatter", "broadcast", "barrier", "started")):
        case "all_reduce":
            comm.all_reduce(mine, out := np.empty_like(mine))
            expected = every.sum(0)
        case "ring":
            comm.all_reduce(mine, out := np.empty_like(mine), algorithm="ring")
            expected = every.sum(0)
        case "all_gather":
            comm.all_gather(mine, out := np.empty((size, count), np.int64))
            expected = every
        case "reduce_scatter":
            comm.reduce_scatter(np.tile(mine, size), out := np.empty_like(mine))
            expected = every.sum(0)
        case "broadcast":
            comm.broadcast(mine, root=size - 1)
            out, expected = mine, every[-1]
        case "started":
            comm.start_all_reduce(mine, out := np.empty_like(mine)).wait()
            expected = every.sum(0)
        case _:
            comm.barrier()
            return 0
    return int((out != expected).sum())
