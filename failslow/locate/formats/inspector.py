"""NCCL Inspector: JSON lines, one for each collective or message of each communicator of each process.

Format: NVIDIA/nccl, ext-profiler/inspector/README.md and inspector.cc (output format versions 4.0 and 5.0, NCCL 2.28.2
and later): `header` (communicator's id, the rank in it, n_ranks), `metadata` (hostname, pid, dump_timestamp_us),
`coll_perf` (coll, coll_sn, coll_msg_size_bytes, coll_exec_time_us) or `p2p_perf`; with NCCL_INSPECTOR_DUMP_VERBOSE also
`event_trace_ts`. Without it the time of a call is that of the dump after it. Ranks are those of the communicator; the
largest one of a process tells its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import nan
from typing import Any

from lanterne.failslow.locate.formats.foreign_calls import CallBuilder, Process, real, whole

NAME = "NCCL Inspector"
# (host, pid)
Place = tuple[str, int]


def is_line(content: Any) -> bool:
    """Whether a line's content is the Inspector's."""
    return isinstance(content, dict) and isinstance(content.get("header"), dict) and (
        "coll_perf" in content or "p2p_perf" in content
    )  # fmt: skip


class InspectorReader:
    """Takes lines of all files; `finish` puts them into a CallBuilder, once all communicators are known."""

    def __init__(self) -> None:
        self._rows: list[tuple[Place, str, str, int, int, int, float, float]] = []
        # communicator -> (ranks it has, local rank -> process)
        self._communicators: dict[str, tuple[int, dict[int, Place]]] = {}
        self._interned: dict[Any, Any] = {}

    def take(self, line: Mapping[str, Any], into: CallBuilder) -> None:
        """Take one line."""
        header, about = line["header"], line.get("metadata") or {}
        call = line.get("coll_perf") or line.get("p2p_perf")
        if not isinstance(call, dict) or not isinstance(about, dict):
            into.skipped["an Inspector line without a call"] += 1
            return
        kind = "coll" if "coll_perf" in line else "p2p"
        place, communicator = (str(about.get("hostname", "")), whole(about.get("pid"))), str(header.get("id"))
        local = whole(header.get("rank"))
        if local < 0:
            into.skipped["an Inspector line without a rank"] += 1
            return
        place = self._interned.setdefault(place, place)
        communicator = self._interned.setdefault(communicator, communicator)
        size, members = self._communicators.setdefault(communicator, (whole(header.get("n_ranks"), 0), {}))
        members[local] = place
        took_s = real(call.get(f"{kind}_exec_time_us"), 1e-6)
        start_s = _start_s(call, kind, took_s, about)
        name = str(call.get(kind))
        self._rows.append((
            place, communicator, self._interned.setdefault(name, name), whole(call.get(f"{kind}_sn")),
            whole(call.get("p2p_peer")) if kind == "p2p" else -1, whole(call.get(f"{kind}_msg_size_bytes")),
            start_s, took_s,
        ))  # fmt: skip

    def finish(self, into: CallBuilder) -> None:
        """Put what was taken into `into`, with the ranks of the job."""
        ranks = global_ranks(self._communicators)
        for place, rank in ranks.items():
            into.processes.setdefault(rank, Process(place[0] or None, place[1] if place[1] >= 0 else None))
        groups: dict[str, int] = {}
        for communicator, (size, members) in self._communicators.items():
            known = tuple(ranks[members[local]] for local in range(size)) if len(members) == size else ()
            groups[communicator] = into.group(("inspector", communicator), communicator, size, known)
        biggest = max((size for size, _ in self._communicators.values()), default=0)
        if biggest > len(ranks):
            into.expected.update(range(biggest))
        for place, communicator, name, number, peer, nbytes, start_s, took_s in self._rows:
            members = self._communicators[communicator][1]
            other = ranks[members[peer]] if peer in members else -1
            if name in ("Send", "Recv") and other < 0:
                into.skipped["a message whose other rank wrote nothing"] += 1
                continue
            into.used[NAME] += 1
            into.add(ranks[place], groups[communicator], name, number, other, nbytes, start_s, took_s)
        self._rows.clear()


def global_ranks(communicators: Mapping[str, tuple[int, Mapping[int, Place]]]) -> dict[Place, int]:
    """The job's rank of each process: that in the largest communicator if it has them all apart, else by its place."""
    places = sorted({place for _, members in communicators.values() for place in members.values()})
    biggest = max(communicators.values(), key=lambda one: (one[0], len(one[1])), default=(0, {}))
    found = {place: local for local, place in biggest[1].items()}
    if set(found) == set(places):
        return found
    free = iter(sorted(set(range(len(places) + len(found))) - set(found.values())))
    return {place: found[place] if place in found else next(free) for place in places}


def _start_s(call: Mapping[str, Any], kind: str, took_s: float, about: Mapping[str, Any]) -> float:
    events = call.get("event_trace_ts")
    if isinstance(events, dict):
        kernels = events.get("kernel_events")
        times = [real(k.get("kernel_start_ts"), 1e-6) for k in kernels or () if isinstance(k, dict)]
        known = [time_s for time_s in times if time_s == time_s]
        return min(known) if known else real(events.get(f"{kind}_start_ts"), 1e-6)
    dumped_s = real(about.get("dump_timestamp_us"), 1e-6)
    return dumped_s - took_s if dumped_s == dumped_s else nan
