"""Benchmark how soon survivors learn of a death: the last rank is killed (SIGKILL) amid large messages.

Every trial is a job of its own under our launcher; a survivor waits for message after message and must raise an error
that names the dead rank, within 2 s where ranks share a host and 5 s where they do not. Where `hosts` is `own`, each
rank believes that it is alone on its host: ucx then talks over TCP. Exit code 1 if one named another rank or none;
with --check if one was too late, too.

  ./run evaluate deaths                                  mpi and ucx, three ranks, three trials of each
  ./run evaluate deaths --transport ucx --trials 10 --json deaths.json
"""

import argparse
import io
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from lanterne.bench.output import report
from lanterne.bench.output.units import chosen, format_time, parse_sizes, whole
from lanterne.errors import InputError, PeerFailed, TransportTimeout
from lanterne.transport.own_python import own_python

# What a survivor tells: `named`, the rank that its error names, None if none, and `noticed_s`.
Survivor: TypeAlias = dict[str, Any]
# transport -> (launcher, whether ranks may have hosts of their own).
TRANSPORTS = {"mpi": ("mpi", False), "ucx": ("direct", True)}
DIRECTIONS = ("receiving", "sending")
BAR_S = {False: 2.0, True: 5.0}
# Long enough to see by how much a bar was missed.
LIMIT_S = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--ranks", type=whole(2), default=3, metavar="N", help="ranks, the victim included (default 3)"
    )
    parser.add_argument("--transport", default="mpi,ucx", metavar="A,B", help="mpi, ucx or both (default both)")
    parser.add_argument("--bytes", default="256M", metavar="SIZE", help="of the message (default 256M)")
    parser.add_argument("--trials", type=whole(1), default=3, metavar="K", help="of each, in turn (default 3)")
    parser.add_argument("--check", action="store_true", help="print the bars; exit code 1 if one is missed, too")
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")


def run(args: argparse.Namespace) -> int:
    nbytes = max(parse_sizes(args.bytes, "--bytes", copies=4 * args.ranks))
    names = chosen(args.transport, "--transport", TRANSPORTS)
    if nbytes < 1:
        raise InputError(f"--bytes: got {args.bytes}, expected at least 1")
    cases = [
        (name, own_hosts, direction)
        for name in names
        for own_hosts in ((False, True) if TRANSPORTS[name][1] else (False,))
        for direction in DIRECTIONS
    ]
    outcomes: dict[tuple[str, bool, str], list[list[Survivor]]] = {case: [] for case in cases}
    for trial in range(args.trials):
        for case in cases:
            report.progress(f"{' '.join(map(str, case))} {trial + 1}/{args.trials}")
            outcomes[case].append(run_trial(args.ranks, nbytes, *case))
    report.progress("")
    document = report.envelope(results=[record(args.ranks, nbytes, *case, outcomes[case]) for case in cases])
    report.tell(args.json, document, partial(print_records, with_bars=args.check))
    return int(any(result["wrong"] or (args.check and result["missed"]) for result in document["results"]))


def run_trial(ranks: int, nbytes: int, name: str, own_hosts: bool, direction: str) -> list[Survivor]:
    """One job; what each survivor tells."""
    from lanterne.transport.job.launch import launch

    with tempfile.TemporaryDirectory() as folder:
        code = "import sys; from evaluation.deaths import rank_main; rank_main(*sys.argv[1:])"
        command = [*own_python(), "-c", code, name, str(int(own_hosts)), direction, str(nbytes), folder]
        # The launcher reports each death; that is no news here, unless a survivor has nothing to report.
        with redirect_stderr(io.StringIO()) as said:
            launch(command, ranks, launcher=TRANSPORTS[name][0], timeout_s=4 * LIMIT_S)
        nothing = {"named": None, "noticed_s": LIMIT_S}
        files = [Path(folder, str(rank)) for rank in range(ranks - 1)]
        if not all(file.exists() for file in files):
            sys.stderr.write(said.getvalue())
        return [json.loads(file.read_text()) if file.exists() else nothing for file in files]


def rank_main(name: str, own_hosts: str, direction: str, message: str, folder: str) -> None:
    """One rank of a trial, whose messages have `message` bytes."""
    import numpy as np

    from lanterne.transport.base import Recv, Send
    from lanterne.transport.job.bootstrap import connect
    from lanterne.transport.registry import open_transport

    if int(own_hosts):
        os.environ["LANTERNE_HOST_ID"] = f"host of rank {os.environ['RANK']}"
    nbytes = int(message)
    group = connect()
    assert group.store is not None
    transport = open_transport(name, group)
    victim = group.world_size - 1
    regions = [transport.register(np.ones(nbytes, np.uint8)) for _ in range(victim if group.rank == victim else 1)]
    transport.barrier()
    if group.rank == victim:
        kind: type[Send | Recv] = Send if direction == "receiving" else Recv
        request = transport.post(tuple(kind(region, 0, nbytes, peer) for peer, region in enumerate(regions)))
        for _ in range(3):
            request.test()
        group.store.set("deaths/killed", repr(time.monotonic()).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    kind = Recv if direction == "receiving" else Send
    named = None
    try:
        while True:
            transport.post((kind(regions[0], 0, nbytes, victim),)).wait(LIMIT_S)
    except PeerFailed as error:
        named = error.rank
    except TransportTimeout as error:
        named = error.peers[0]
    noticed_s = time.monotonic() - float(group.store.get("deaths/killed"))
    Path(folder, str(group.rank)).write_text(json.dumps({"named": named, "noticed_s": noticed_s}))
    transport.close()
    group.close()


def record(
    ranks: int, nbytes: int, name: str, own_hosts: bool, direction: str, trials: list[list[Survivor]]
) -> dict[str, Any]:
    """What a case's trials show; `wrong` counts survivors that named another rank or none, `missed` late ones too."""
    survivors = [survivor for trial in trials for survivor in trial]
    return {
        "transport": name,
        "own_hosts": own_hosts,
        "survivors": direction,
        "ranks": ranks,
        "nbytes": nbytes,
        "noticed_s": [survivor["noticed_s"] for survivor in survivors],
        "named": [survivor["named"] for survivor in survivors],
        "wrong": sum(survivor["named"] != ranks - 1 for survivor in survivors),
        "bar_s": BAR_S[own_hosts],
        "missed": sum(
            survivor["named"] != ranks - 1 or survivor["noticed_s"] > BAR_S[own_hosts] for survivor in survivors
        ),
    }


def print_records(document: dict[str, Any], file: TextIO, *, with_bars: bool = False) -> None:
    """The table of a deaths document; `with_bars`: beside what it has to reach."""
    columns = [("transport", ""), ("hosts", ""), ("survivors", ""), ("#wrong", ""), ("of", "")]
    columns += [("noticed", "median"), ("max", "")] + [("bar", ""), ("#missed", "")] * with_bars
    rows = [
        (
            result["transport"],
            "own" if result["own_hosts"] else "one",
            result["survivors"],
            result["wrong"],
            len(result["noticed_s"]),
            format_time(statistics.median(result["noticed_s"])),
            format_time(max(result["noticed_s"])),
            *((format_time(result["bar_s"]), result["missed"]) if with_bars else ()),
        )
        for result in document["results"]
    ]
    report.print_table(columns, rows, left=(0, 1, 2), file=file)
