"""The tables of `./run evaluate lab-peers`, for a terminal and as Markdown, from the same records."""

import shlex
import statistics
from collections.abc import Iterable
from typing import Any

from evaluation.peers.peer_case import PeerCase, case_of
from evaluation.peers.team import CONTENDERS
from lanterne.bench.output import report
from lanterne.bench.output.units import format_nbytes

# PeerCase -> (bar, aim) of auto: what this project wants to reach.
BARS: dict[tuple[int, int, float, int, int | str], tuple[float, float]] = {
    (8, 4 << 20, 1.1, 1, 1): (1.12, 1.05),
    (8, 16 << 20, 1.1, 1, 1): (1.08, 1.04),
    (8, 64 << 20, 1.1, 1, 1): (1.08, 1.04),
    (8, 16 << 20, 0.9, 1, 1): (1.10, 1.05),
    (8, 16 << 20, 0.7, 1, 1): (1.28, 1.20),
    (8, 16 << 20, 0.45, 1, 1): (1.50, 1.40),
    (8, 16 << 20, 0, 1, 1): (1.82, 1.77),
    (4, 16 << 20, 1.1, 1, 1): (1.07, 1.04),
    (8, 4 << 20, 1.1, 8, 1): (1.15, 1.05),
    (8, 4 << 20, 0.5, 8, 1): (1.45, 1.32),
    (8, 4 << 20, 0, 8, 1): (1.82, 1.77),
    (2, 8 << 20, 0, 1, 4): (1.12, 1.05),
    (2, 8 << 20, 1.1, 1, 4): (1.12, 1.05),
    (4, 8 << 20, 0, 1, 2): (1.60, 1.55),
    (4, 8 << 20, 1.1, 1, 2): (1.12, 1.05),
}
HEAD = """# The late rank on the emulated cluster

x: multiples of s/rate from the late rank's call to the last completion on any host, medians; without a late rank: from
the common call. Float32 sum, one rank on each host, or as many as its row says, {rate:g} Mbit/s each way (nominal: a
stream reaches some 197), so 1 is the time in which the late rank's own buffer leaves it. D: the last rank's delay, in
the same multiples. A size 8 x 4 MiB: eight calls started one after the other, then waited for; s is all eight buffers,
the call the first. `auto` is told nothing, our other algorithms are told who is late. All took turns and every element
of every result was checked. Columns: a name is one of our algorithms, or a peer's all_reduce; *best peer* is the least
x of the peers in this row; *bar* is what `auto` has to reach at that size and delay, *aim* what it would like to, as
this project set them before they were measured (1.77 is the best peer without a late rank; "-": none was set for the
case).

Made by `{command}`
on {cpus} cores ({platform}).
"""


def table(document: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """(columns, rows) of texts: a row per case, a column per contender or algorithm."""
    results = [record for record in document["results"] if record["x"]]
    makers = list(dict.fromkeys((record["contender"], record["algorithm"]) for record in results))
    makers.sort(key=lambda maker: list(CONTENDERS).index(maker[0]))
    cases = list(dict.fromkeys(case_of(record) for record in results))
    found = {(case_of(record), (record["contender"], record["algorithm"])): record for record in results}
    titles = [algorithm or CONTENDERS[name].title for name, algorithm in makers]
    rows = []
    for case in cases:
        delay = case.delay
        mine = [found.get((case, maker)) for maker in makers]
        peers = [_x(record) for record, (name, _) in zip(mine, makers, strict=True) if record and name != "lanterne"]
        bars = [f"{value:.2f}" for value in BARS[case]] if case in BARS else ["-", "-"]
        cells = [f"{_x(record):.2f}" if record else "-" for record in mine]
        best = f"{min(peers):.2f}" if peers else "-"
        rows.append([_hosts(case), _size(case), f"{delay:g}" if delay else "none", *cells, best, *bars])
    return ["hosts", "size", "D", *titles, "best peer", "bar", "aim"], rows


def _hosts(case: PeerCase) -> str:
    return case.shape.replace("*", " x ")


def _size(case: PeerCase) -> str:
    size = format_nbytes(case.nbytes)
    return size if case.calls == 1 else f"{case.calls} x {size}"


def _x(record: dict[str, Any]) -> float:
    return statistics.median(record["x"])


def cpu_note(results: Iterable[dict[str, Any]]) -> str:
    """What each contender's calls took of the cores, waits included; "" where nothing is known."""
    per_gb: dict[str, list[float]] = {}
    for record in results:
        case = case_of(record)
        sent = 2 * (case.num_ranks - 1) * case.calls * case.nbytes
        name = record["algorithm"] or CONTENDERS[record["contender"]].title
        per_gb.setdefault(name, []).extend(cpu_s * 1e9 / sent for cpu_s in record.get("cpu_s", ()))
    texts = [f"{name} {statistics.median(values):.1f}" for name, values in per_gb.items() if values]
    return f"CPU seconds per GB that a rank of an ordinary ring sends: {', '.join(texts)}" if texts else ""


def notes(document: dict[str, Any]) -> list[str]:
    """Lines about who took part, who is missing and what failed."""
    lines = [f"{CONTENDERS[name].title}: {version}" for name, version in document["versions"].items()]
    for name, command in document["missing"].items():
        lines.append(f"{CONTENDERS[name].title} is missing; install it with: {command}")
    lines += [f"failed: {text}" for text in document["failed"].values()]
    wrong = sum(record["wrong"] for record in document["results"])
    turns = sum(len(record["x"]) for record in document["results"])
    sessions = f"in {document['sessions']} starts of the cluster"
    if cpu := cpu_note(document["results"]):
        lines.append(cpu)
    return [*lines, f"{turns} calls counted {sessions}, {wrong} wrong elements; code {document['code']}"]


def print_results(document: dict[str, Any]) -> None:
    """The table for people."""
    titles, rows = table(document)
    report.print_table([(title, "") for title in titles], rows, notes=notes(document), left=(1,))


def markdown(document: dict[str, Any]) -> str:
    """The whole report."""
    titles, rows = table(document)
    environment = document["environment"]
    head = HEAD.format(
        rate=document["rate_bytes_per_s"] * 8 / 1e6,
        command=shlex.join(document["argv"]),
        cpus=environment["cpus"],
        platform=environment["platform"],
    )
    lines = [
        head,
        *(f"- {note}" for note in notes(document)),
        "",
        _line(titles),
        _line(["---"] * len(titles)),
        *map(_line, rows),
    ]
    spread = [
        [
            *_texts(record),
            str(len(record["x"])),
            *(f"{value:.2f}" for value in (min(record["x"]), _x(record), max(record["x"]))),
        ]
        for record in document["results"]
        if record["x"]
    ]
    columns = ["hosts", "size", "D", "who", "turns", "min x", "median x", "max x"]
    lines += ["", "## Spread", "", _line(columns), _line(["---"] * len(columns)), *map(_line, spread)]
    return "\n".join(lines) + "\n"


def _texts(record: dict[str, Any]) -> list[str]:
    delay = f"{record['delay']:g}" if record["delay"] else "none"
    who = record["algorithm"] or CONTENDERS[record["contender"]].title
    case = case_of(record)
    return [_hosts(case), _size(case), delay, who]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
