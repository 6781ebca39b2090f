"""NCCL RAS: what `ncclras` says of a job's communicators at one moment, as JSON (`-f json`), text, or events.

Format: NVIDIA/nccl, src/ras/client_support.cc, and docs.nvidia.com, NCCL user guide, "RAS" (JSON since 2.28.7):
`communicators`, each with `hash`, `size`, `ranks` (rank in it, host, pid, cuda_dev, `status`, `collective_counts`) and
`missing_ranks` (`status`: unresponsive, considered_dead). NCCL 2.28.9 leaves out a comma before a missing rank's
`status`. The default text names the ranks of each warning: "Rank 3 -- GPU 3 managed by process 503 on node 10.0.0.1".
Events (`ncclras -m`, since 2.29) name processes: "[time] PEER_DEAD: Process 503 on node 10.0.0.1 managing GPU 3".

A rank whose fields report an error is named. Counts are progress (evidence/progress.py): a rank that has launched the
fewest calls of a communicator has not come, unless counts move from document to document.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lanterne.failslow.evidence.progress import Progress
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
REMOTE = ERRORS[6]
# How reasons begin that no waiting mends.
FINAL = ("NCCL ", "NCCL's RAS says", "its communicator is aborted")
TEXT_RANK = re.compile(r"^\s*Rank (\d+)(.*?) -- (?:GPU (\d+).*? managed by process (\d+) on node (\S+))?")
TEXT_SECTION = re.compile(r"^#(\d+)-\d+ \(([0-9a-f]+)\) (\w+)")
TEXT_COUNTS = re.compile(r"^\s*Communicator ranks have different (\w+) operation counts")
TEXT_LAUNCHED = re.compile(r"ha(?:s|ve) (?:launched up to operation (\d+)|not launched any)")
TEXT_RANKS = re.compile(r"^\s*(\d+) ranks? (.*)")
TEXT_LOST = re.compile(r"^\s*The missing ranks?: ([\d, ]+)")
TEXT_TROUBLE = re.compile(r"reported (.+)|(?:has|have) status (ABORT)")
PROCESS = re.compile(r"Process (\d+) on node (\S+) managing GPUs? (\d+)")
EVENT = re.compile(r"^\[([^\]]+)\] (PEER_\w+): (.*)", re.MULTILINE)


class RasRank(NamedTuple):
    """A rank of a communicator: its number of `calls`, None where it does not answer; `error` in words, or ""."""

    rank: int
    host: str
    pid: int
    gpu: int
    calls: int | None
    error: str


def mended(text: str) -> Any:
    """Return the content of a document of NCCL 2.28.9; raise ValueError where more than its comma is missing."""
    return json.loads(MISSING_COMMA.sub(r"\1,\2", text))


def is_document(content: Any) -> bool:
    """Return whether what was read from a file is RAS's."""
    return isinstance(content, dict) and isinstance(content.get("communicators"), list)


def from_text(text: str) -> dict[str, Any] | None:
    """Return a document like those of JSON from what `ncclras` prints: its default text, or events; None of others."""
    if (events := EVENT.findall(text)) or '"PEER_' in text:
        objects = re.findall(r'"event": "(PEER_\w+)",\s*"peer": \{\s*"host": "([^"]+)",\s*"pid": (\d+)', text)
        processes = [(kind, one[2], int(one[1])) for _, kind, about in events if (one := PROCESS.match(about))]
        processes += [(kind, host, int(pid)) for kind, host, pid in objects]
        # A process that has come back is none that is dead.
        latest = {(host, pid): kind for kind, host, pid in processes}
        return {"communicators": [], "dead": [place for place, kind in latest.items() if kind == "PEER_DEAD"]}
    if not text.startswith("NCCL version") and "Communicators..." not in text:
        return None
    lines = text.partition("Communicators...")[2].splitlines()
    rows = [row for line in lines if len(row := line.split()) >= 8 and row[0].isdigit()]
    sizes = {row[0]: size_told(row[4].rpartition("-")[2]) for row in rows}
    found: dict[str, _TextCommunicator] = {}
    dead: list[tuple[str, int]] = []
    communicator, is_dead = None, False
    for line in lines:
        if (section := TEXT_SECTION.match(line)) is not None:
            group, name, _ = section.groups()
            communicator = found.setdefault(name, _TextCommunicator(name, sizes.get(group, 0)))
            communicator.begin()
        elif not line[:1].isspace() and line.strip():
            communicator, is_dead = None, line.startswith("DEAD")
        elif communicator is not None:
            communicator.take(line)
        elif is_dead and (process := PROCESS.search(line)) is not None:
            dead.append((process.group(2), int(process.group(1))))
    largest = max(sizes.values(), default=0)
    return {"communicators": [one.document() for one in found.values()], "dead": dead, "largest": largest}


class _TextCommunicator:
    """What the text says of one communicator: ranks that are apart from the others by their counts, or have errors."""

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        # rank -> (host, pid, GPU), what is wrong, and calls of each collective.
        self._places: dict[int, dict[str, Any]] = {}
        self._troubles: dict[int, str] = {}
        self._counts: dict[str, dict[int, int]] = {}
        # collective -> (how many ranks, calls) of those that have most in common.
        self._usual: dict[str, tuple[int, int]] = {}
        self.begin()

    def begin(self) -> None:
        """Begin another section about it."""
        self._collective, self._launched, self._trouble = "", -1, ""

    def take(self, line: str) -> None:
        """Take a line of a section."""
        if (counts := TEXT_COUNTS.match(line)) is not None:
            self.begin()
            self._collective = counts.group(1)
        elif (rank := TEXT_RANK.match(line)) is not None:
            number, about, gpu, pid, host = rank.groups()
            self._rank(int(number), about)
            if host:
                self._places[int(number)] = {"host": host, "pid": int(pid), "cuda_dev": int(gpu)}
        elif (lost := TEXT_LOST.match(line)) is not None:
            for number in lost.group(1).split(","):
                self._rank(int(number), "")
        elif (ranks := TEXT_RANKS.match(line)) is not None:
            self._launched, self._trouble = _launched(ranks.group(2)), _trouble(ranks.group(2))
            if self._launched >= 0:
                usual = self._usual.get(self._collective, (0, 0))
                self._usual[self._collective] = max(usual, (int(ranks.group(1)), self._launched))
        elif line.strip().startswith("Missing"):
            self._trouble = "NCCL's RAS lacks its data"

    def _rank(self, rank: int, about: str) -> None:
        launched, trouble = _launched(about), _trouble(about)
        launched = launched if launched >= 0 else self._launched
        if launched >= 0:
            self._counts.setdefault(self._collective, {})[rank] = launched
        if trouble or self._trouble:
            self._troubles[rank] = trouble or self._trouble

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it; `usual` is the number of calls of the ranks that are not listed."""
        usual = {collective: calls for collective, (_, calls) in self._usual.items()}
        known = {rank for counts in self._counts.values() for rank in counts} | self._troubles.keys()
        ranks = []
        for rank in sorted(known):
            counts = {name: self._counts.get(name, {}).get(rank, usual.get(name, 0)) for name in usual | self._counts}
            told = {"collective_counts": counts} if counts else {}
            ranks.append({"rank": rank, "trouble": self._troubles.get(rank, ""), **self._places.get(rank, {}), **told})
        about = {"hash": self._name, "size": self._size, "ranks": ranks}
        return about | ({"usual": sum(usual.values())} if usual.keys() == self._counts.keys() else {})


def _launched(text: str) -> int:
    found = TEXT_LAUNCHED.search(text)
    return -1 if found is None else int(found.group(1) or 0)


def _trouble(text: str) -> str:
    found = TEXT_TROUBLE.search(text)
    return "" if found is None else f"NCCL's RAS says: {(found.group(1) or 'its status is ABORT').strip()}"


def read_all(documents: Sequence[Mapping[str, Any]], into: CallBuilder) -> None:
    """Take all documents of a job, the oldest first: which ranks are behind, dead, in error, or did not answer."""
    sizes: dict[str, int] = {}
    members: dict[str, dict[int, Member]] = {}
    errors: dict[tuple[str, int], str] = {}
    history: dict[str, list[dict[int, int]]] = {}
    dead: set[tuple[str, int]] = set()
    # The text does not list communicators without a warning.
    largest = 0
    for document in documents:
        dead.update(document.get("dead", ()))
        largest = max(largest, document.get("largest", 0))
        # A text without a warning is one of a healthy job.
        if document.get("dead") or not document["communicators"]:
            into.used[NAME] += 1
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
                if one.calls is not None:
                    counts[one.rank] = one.calls
            # The text names only those that are apart.
            if counts and (usual := whole(communicator.get("usual"))) >= 0:
                counts = dict.fromkeys(range(sizes[name]), usual) | counts
            if counts:
                history.setdefault(name, []).append(counts)
    for name, known in members.items():
        for local, member in known.items():
            if (member.host, member.pid) in dead:
                errors[name, local] = "NCCL considers it dead"
                dead.discard((member.host, member.pid))
    placed = {name: {local: one for local, one in known.items() if one.pid >= 0} for name, known in members.items()}
    most = max(largest, *sizes.values(), 0)
    communicators = {name: (sizes[name], known) for name, known in placed.items()}
    if largest > max((size for size, _ in communicators.values()), default=0):
        communicators[""] = largest, {}
    ranks, jobs = global_ranks(communicators, into, is_one_job=largest > 0)
    into.jobs = into.jobs or jobs
    for (name, local), rank in ranks.items():
        about = members[name][local]
        into.processes.setdefault(rank, Process(about.host or None, about.pid, about.gpu if about.gpu >= 0 else None))
    into.expected.update(range(most))

    def name_it(communicator: str, local: int, because: str) -> int | None:
        """Put evidence where it belongs; return the rank."""
        # The largest communicator has the job's ranks, unless there are several jobs.
        is_world = sizes[communicator] == most and not jobs
        rank = ranks.get((communicator, local), local if is_world else None)
        if rank is not None:
            into.behind.setdefault(rank, because)
            return rank
        one = members.get(communicator, {}).get(local, Member("", -1))
        where = f", process {one.pid} on {one.host}, GPU {one.gpu}" if one.host else ""
        into.unplaced.setdefault(f"rank {local} of communicator {communicator.partition('/')[0]}{where}", because)
        return None

    # A remote error is that of another rank, if another one has an error.
    own = {key: text for key, text in errors.items() if REMOTE not in text.lower()} or errors
    if own is not errors or 2 * len(own) <= len(ranks) or not ranks:
        for key, text in own.items():
            name_it(*key, text)
    apart: Counter[int] = Counter()
    for name, seen in history.items():
        standing = _standing(seen, {local for other, local in errors if other == name})
        most_calls = max((one.begun for one in standing.values()), default=0)
        behind = {local: one.begun for local, one in standing.items() if one.begun < most_calls}
        is_world = sizes[name] == most and not jobs
        numbers = {local: ranks.get((name, local), local if is_world else -1) for local in standing}
        for local, calls in behind.items():
            if len(seen) == 1 and most_calls - calls < 2:
                # It may be a matter of the moment.
                into.doubtful[numbers[local]] = "another RAS document some seconds later"
        if not largest and min(numbers.values(), default=-1) >= 0:
            group = into.group(("ras", name), name.partition("/")[0], sizes[name], numbers.values())
            into.progress[group] = {numbers[local]: one for local, one in standing.items()}
            continue
        # The text does not list whoever has as many calls as most, so that who waits is not known. A rank that is
        # behind in fewer communicators than another waits in the others.
        for local, calls in behind.items():
            named = name_it(name, local, f"it has made {calls} of the {most_calls} calls that others have")
            apart.update([] if named is None else [named])
    into.behind = {
        rank: text for rank, text in into.behind.items() if not apart[rank] or apart[rank] == max(apart.values())
    }
    into.unplaced.update({f"process {pid} on {host}": "NCCL considers it dead" for host, pid in sorted(dead)})


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
        return str(status["trouble"])
    for key, words in (("async_error", "an asynchronous error"), ("init_state", "an error of initialisation")):
        if (code := whole(status.get(key), 0)) in ERRORS:
            return f"NCCL reports {words} of it: {code} ({ERRORS[code]})"
    if status.get("abort_flag") is True:
        return "its communicator is aborted"
    return ""


def _standing(seen: Sequence[Mapping[int, int]], lost: set[int]) -> dict[int, Progress]:
    """Return the Progress of the ranks of a communicator, none where they all have as many calls or still make some."""
    last = {rank: count for rank, count in seen[-1].items() if rank not in lost}
    if len(set(last.values())) < 2 or any(seen[0].get(rank, count) != count for rank, count in last.items()):
        return {}
    most = max(last.values())
    # A rank with the most calls is inside its last one.
    return {rank: Progress(count - (count == most), count) for rank, count in last.items()}
