"""NCCL RAS: what `ncclras -f json` says of a job's communicators at one moment.

Format: NVIDIA/nccl, src/ras/client_support.cc, and docs.nvidia.com, NCCL user guide, "RAS" (JSON since 2.28.7):
`communicators`, each with `hash`, `size`, `ranks` (rank in it, host, pid, cuda_dev, `status`, `collective_counts`) and
`missing_ranks` (`status`: unresponsive, considered_dead). NCCL 2.28.9 leaves out a comma before a missing rank's
`status`. A count alone says little: ranks are at different calls at any moment; of two documents or more, those ranks
are suspects whose counts are behind and do not move.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lanterne.failslow.locate.formats.foreign_calls import CallBuilder, Process, rank_told, size_told, whole
from lanterne.failslow.locate.formats.inspector import Place, global_ranks

NAME = "NCCL RAS"
# Of the first end of a line: else many empty lines would take the square of their number.
MISSING_COMMA = re.compile(r'([\w"}\]])([^\S\n]*\n\s*"status"\s*:)')
# (hash of a communicator, process) -> calls of it so far
Counts = dict[tuple[str, Place], int]


def mended(text: str) -> Any:
    """The content of a document of NCCL 2.28.9; raises ValueError where more than its comma is missing."""
    return json.loads(MISSING_COMMA.sub(r"\1,\2", text))


def is_document(content: Any) -> bool:
    """Whether what was read from a file is RAS's."""
    return isinstance(content, dict) and isinstance(content.get("communicators"), list)


def read_all(documents: Sequence[Mapping[str, Any]], into: CallBuilder) -> None:
    """Take all documents of a job, the oldest first: which ranks are behind, dead, or did not answer."""
    communicators: dict[str, tuple[int, dict[int, Place]]] = {}
    processes: dict[Place, Process] = {}
    lost: dict[Place, str] = {}
    history: list[Counts] = []
    for document in documents:
        counts: Counts = {}
        for communicator in document["communicators"]:
            if not isinstance(communicator, dict):
                into.skipped["a RAS communicator that is no record"] += 1
                continue
            name = f"{communicator.get('hash')}/{communicator.get('secondary_hash')}"
            members = communicators.setdefault(name, (size_told(communicator.get("size")), {}))[1]
            for rank, is_missing in _ranks(communicator, into):
                place = str(rank.get("host", "")), whole(rank.get("pid"))
                members[rank_told(rank.get("rank"))] = place
                gpu = whole(rank.get("cuda_dev"))
                processes[place] = Process(place[0] or None, place[1], gpu if gpu >= 0 else None)
                into.used[NAME] += 1
                if is_missing:
                    status = rank.get("status") if isinstance(rank.get("status"), dict) else rank
                    dead = bool(status and status.get("considered_dead"))
                    lost[place] = "NCCL considers it dead" if dead else "it does not answer NCCL's RAS"
                else:
                    told = rank.get("collective_counts")
                    values = told.values() if isinstance(told, dict) else ()
                    counts[name, place] = sum(max(0, whole(value, 0)) for value in values)
        history.append(counts)
    ranks = global_ranks(communicators)
    # In all of their communicators other processes have their ranks.
    if replaced := processes.keys() - ranks.keys():
        into.skipped["a RAS process whose rank another has"] += len(replaced)
        processes = {place: process for place, process in processes.items() if place in ranks}
        lost = {place: text for place, text in lost.items() if place in ranks}
    for place, process in processes.items():
        into.processes.setdefault(ranks[place], process)
    into.expected.update(range(max((size for size, _ in communicators.values()), default=0)))
    into.behind.update({ranks[place]: text for place, text in lost.items()})
    for name, (_, members) in communicators.items():
        for place, text in _behind(name, set(members.values()) - set(lost), history, into).items():
            into.behind.setdefault(ranks[place], text)


def _ranks(communicator: Mapping[str, Any], into: CallBuilder) -> list[tuple[Mapping[str, Any], bool]]:
    found: list[tuple[Mapping[str, Any], bool]] = []
    for key, is_missing in (("ranks", False), ("missing_ranks", True)):
        told = communicator.get(key)
        for rank in told if isinstance(told, list) else ():
            if isinstance(rank, dict) and rank_told(rank.get("rank")) >= 0:
                found.append((rank, is_missing))
            else:
                into.skipped["a RAS rank without a number"] += 1
    return found


def _behind(name: str, places: set[Place], history: Sequence[Counts], into: CallBuilder) -> dict[Place, str]:
    """The processes of a communicator that have made fewer calls than the rest of it, and make none."""
    seen = [{place: counts[name, place] for place in places if (name, place) in counts} for counts in history]
    seen = [counts for counts in seen if counts]
    if not seen or len(set(seen[-1].values())) < 2:
        return {}
    last, most = seen[-1], max(seen[-1].values())
    moves = len(seen) > 1 and any(seen[0].get(place) != count for place, count in last.items())
    if moves:
        return {}
    if len(seen) == 1 and most - min(last.values()) < 2:
        into.notes.append(
            f"RAS: communicator {name.partition('/')[0]}: ranks are at call {min(last.values())} and {most}, in "
            "one document: it may be a matter of the moment; another some seconds later would tell"
        )
    still = ", and makes none" if len(seen) > 1 else ""
    return {
        place: f"it has made {count} of the {most} calls that others have{still}"
        for place, count in last.items()
        if count < most
    }
