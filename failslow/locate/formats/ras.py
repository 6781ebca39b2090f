"""NCCL RAS: what `ncclras` says of a job's communicators at one moment, as JSON (`-f json`), text, or events.

Format: NVIDIA/nccl, src/ras/client_support.cc, and docs.nvidia.com, NCCL user guide, "RAS" (JSON since 2.28.7):
`communicators`, each with `hash`, `size`, `ranks` (rank in it, host, pid, cuda_dev, `status`, `collective_counts`) and
`missing_ranks` (`status`: unresponsive, considered_dead). NCCL 2.28.9 leaves out a comma before a missing rank's
`status`. The text names the ranks of each warning: "Rank 3 -- GPU 3 managed by process 503 on node 10.0.0.1".

A rank whose fields report an error is named. Counts are progress (evidence/progress.py): a rank that has launched the
fewest calls of a communicator has not come, unless counts move from document to document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lanterne.failslow.evidence.progress import Progress, stall
from lanterne.failslow.locate.formats.foreign_calls import CallBuilder, Process, rank_told, size_told, whole
from lanterne.failslow.locate.formats.identity import Member, global_ranks

NAME = "NCCL RAS"
# Of the first end of a line: else many empty lines would take the square of their number.
MISSING_COMMA = re.compile(r'([\w"}\]])([^\S\n]*\n\s*"status"\s*:)')
# ncclResult_t, nccl.h; 7 is a call in progress.
ERRORS = {
    1: "unhandled CUDA error", 2: "unhandled system error", 3: "internal error", 4: "invalid argument",
    5: "invalid usage", 6: "remote error",
}  # fmt: skip
REMOTE = f"({ERRORS[6]})"
TEXT_RANK = re.compile(r"^\s*Rank (\d+)(?: --)? .*?GPU (\d+) managed by process (\d+) on node (\S+)")
TEXT_WARNING = re.compile(r"^#(\d+-\d+) \(([0-9a-f]+)\) (\w+)")
TEXT_COUNT = re.compile(r"^\s*(\d+) ranks? ha(?:s|ve) launched up to operation (\d+)")
TEXT_ERROR = re.compile(r"considered dead|(?:did|has|have) not respond|unresponsive|incomplete|async(?:hronous)? error|abort", re.I)


class RasRank(NamedTuple):
    """A rank of a communicator: its `count` of calls, None where it does not answer; `error` in words, or ""."""

    rank: int
    host: str
    pid: int
    gpu: int
    count: int | None
    error: str


def mended(text: str) -> Any:
    """Return the content of a document of NCCL 2.28.9; raise ValueError where more than its comma is missing."""
    return json.loads(MISSING_COMMA.sub(r"\1,\2", text))


def is_document(content: Any) -> bool:
    """Return whether what was read from a file is RAS's."""
    return isinstance(content, dict) and isinstance(content.get("communicators"), list)


def from_text(text: str) -> dict[str, Any] | None:
    """Return a document like those of JSON from the default text of `ncclras`; None of any other text."""
    if not text.startswith("NCCL version") or "Communicators..." not in text:
        return None
    found: dict[str, dict[str, Any]] = {}
    sizes = [line.split() for line in text.partition("Communicators...")[2].splitlines()]
    size = max((whole(row[4], 0) for row in sizes if len(row) >= 8 and all(map(str.isdigit, row[:6]))), default=0)
    communicator: dict[str, Any] = {}
    operation, trouble = -1, ""
    most = 0
    for line in text.splitlines():
        if (warning := TEXT_WARNING.match(line)) is not None:
            communicator = found.setdefault(warning.group(2), {"hash": warning.group(2), "size": size, "ranks": []})
            operation, trouble = -1, ""
        elif (count := TEXT_COUNT.match(line)) is not None:
            operation, trouble = int(count.group(2)), ""
            most = max(most, operation)
            communicator["most"] = max(communicator.get("most", 0), operation)
        elif (rank := TEXT_RANK.match(line)) is not None and communicator:
            number, gpu, pid = (int(rank.group(i)) for i in (1, 2, 3))
            about = {"rank": number, "host": rank.group(4), "pid": pid, "cuda_dev": gpu, "trouble": trouble}
            communicator["ranks"].append(about | ({"collective_counts": {"": operation}} if operation >= 0 else {}))
        elif TEXT_ERROR.search(line):
            operation, trouble = -1, line.strip()
    return {"communicators": [*found.values()], "text": True}


def read_all(documents: Sequence[Mapping[str, Any]], into: CallBuilder) -> None:
    """Take all documents of a job, the oldest first: which ranks are behind, dead, in error, or did not answer."""
    sizes: dict[str, int] = {}
    members: dict[str, dict[int, Member]] = {}
    errors: dict[tuple[str, int], str] = {}
    history: dict[str, list[dict[int, int]]] = {}
    for document in documents:
        for communicator in document["communicators"]:
            if not isinstance(communicator, dict):
                into.skipped["a RAS communicator that is no record"] += 1
                continue
            name = f"{communicator.get('hash')}/{communicator.get('secondary_hash')}"
            sizes[name] = max(sizes.get(name, 0), size_told(communicator.get("size")))
            counts: dict[int, int] = {}
            for one in _ranks(communicator, into):
                known, member = members.setdefault(name, {}), Member(one.host, one.pid, one.gpu)
                if known.get(one.rank, member) != member:
                    into.skipped["a RAS process whose rank another has"] += 1
                known[one.rank] = member
                into.used[NAME] += 1
                if one.error:
                    errors[name, one.rank] = one.error
                if one.count is not None:
                    counts[one.rank] = one.count
            # The text names only those that are apart.
            if document.get("text") and counts:
                rest = range(sizes[name])
                counts = dict.fromkeys(rest, communicator.get("most", 0)) | counts
            if counts:
                history.setdefault(name, []).append(counts)
    ranks, jobs = global_ranks({name: (sizes[name], known) for name, known in members.items()}, into)
    into.jobs = into.jobs or jobs
    for (name, local), rank in ranks.items():
        about = members[name][local]
        into.processes.setdefault(rank, Process(about.host or None, about.pid, about.gpu if about.gpu >= 0 else None))
    into.expected.update(range(max(sizes.values(), default=0)))
    # A remote error is that of another rank, if another one has an error.
    own = {key: text for key, text in errors.items() if REMOTE not in text} or errors
    if own is not errors or 2 * len(own) <= len(ranks):
        into.behind.update({ranks[key]: text for key, text in own.items() if key in ranks})
    for name, seen in history.items():
        lost = {local for other, local in errors if other == name}
        for local, text in _behind(seen, lost).items():
            rank = ranks.get((name, local), local)
            into.behind.setdefault(rank, text)
            if len(seen) == 1 and max(seen[0].values()) - seen[0][local] < 2:
                # It may be a matter of the moment.
                into.doubtful[rank] = "another RAS document some seconds later"


def _ranks(communicator: Mapping[str, Any], into: CallBuilder) -> Iterator[RasRank]:
    for key in ("ranks", "missing_ranks"):
        told = communicator.get(key)
        for rank in told if isinstance(told, list) else ():
            if not isinstance(rank, dict) or (number := rank_told(rank.get("rank"))) < 0:
                into.skipped["a RAS rank without a number"] += 1
                continue
            status = rank["status"] if isinstance(rank.get("status"), dict) else rank
            told_counts = rank.get("collective_counts")
            count = sum(max(0, whole(v, 0)) for v in told_counts.values()) if isinstance(told_counts, dict) else None
            error = _missing(status) if key == "missing_ranks" else _error(status)
            place = str(rank.get("host", "")), whole(rank.get("pid")), whole(rank.get("cuda_dev"))
            yield RasRank(number, *place, None if key == "missing_ranks" else count, error)


def _missing(status: Mapping[str, Any]) -> str:
    return "NCCL considers it dead" if status.get("considered_dead") else "it does not answer NCCL's RAS"


def _error(status: Mapping[str, Any]) -> str:
    """Return in words what the fields of a rank report, "" where they report nothing."""
    if status.get("trouble"):
        return f"NCCL's RAS says: {status['trouble']}"
    for key, words in (("async_error", "an asynchronous error"), ("init_state", "an error of initialisation")):
        if (code := whole(status.get(key), 0)) in ERRORS:
            return f"NCCL reports {words} of it: {code} ({ERRORS[code]})"
    if status.get("abort_flag") is True:
        return "its communicator is aborted"
    return ""


def _behind(seen: Sequence[Mapping[int, int]], lost: set[int]) -> dict[int, str]:
    """Return the ranks of a communicator that have launched fewer calls than the rest of it, and launch none."""
    last = {rank: count for rank, count in seen[-1].items() if rank not in lost}
    if len(set(last.values())) < 2 or any(seen[0].get(rank, count) != count for rank, count in last.items()):
        return {}
    most = max(last.values())
    # A rank with the most calls is inside its last one.
    found = stall({rank: Progress(count - (count == most), count) for rank, count in last.items()}, {})
    if found is None or found.kind != "missing":
        return {}
    still = ", and makes none" if len(seen) > 1 else ""
    return {rank: f"it has made {last[rank]} of the {most} calls that others have{still}" for rank in found.behind}
