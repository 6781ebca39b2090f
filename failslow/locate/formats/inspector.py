"""NCCL Inspector: JSON lines, one for each collective or message of each communicator of each process.

Format: NVIDIA/nccl, ext-profiler/inspector/README.md and inspector.cc (output format versions 4.0 and 5.0, NCCL 2.28.2
and later): `header` (communicator's id, the rank in it, n_ranks), `metadata` (hostname, pid, dump_timestamp_us),
`coll_perf` (coll, coll_sn, coll_msg_size_bytes, coll_exec_time_us) or `p2p_perf`; with NCCL_INSPECTOR_DUMP_VERBOSE also
`event_trace_ts`. Without it the time of a call is that of the dump after it. Ranks are those of the communicator; the
largest one tells its own where all processes fit into it; else they are counted by host and process id, as launchers
start them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from math import isnan
from typing import Any

from lanterne.failslow.locate.formats.foreign_calls import CallBuilder, Process, rank_told, real, size_told, whole

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
        # Of each line: process, communicator, name (as numbers of `_numbers`), call, peer, bytes; start and time.
        self._whole, self._real = _empty_columns()
        self._numbers: tuple[dict[Any, int], ...] = ({}, {}, {})
        # communicator -> (ranks it has, local rank -> process)
        self._communicators: dict[str, tuple[int, dict[int, Place]]] = {}

    def take(self, line: Mapping[str, Any], into: CallBuilder) -> None:
        """Take one line."""
        header, about = line["header"], line.get("metadata") or {}
        kind = "coll" if "coll_perf" in line else "p2p"
        call = line.get("coll_perf") or line.get("p2p_perf")
        if not isinstance(call, dict) or not isinstance(about, dict):
            into.skipped["an Inspector line without a call"] += 1
            return
        place, communicator = (str(about.get("hostname", "")), whole(about.get("pid"))), str(header.get("id"))
        local, size = rank_told(header.get("rank")), size_told(header.get("n_ranks"))
        if local < 0:
            into.skipped["an Inspector line without a rank"] += 1
            return
        if 0 < size <= local:
            into.skipped["an Inspector line of a rank that its communicator does not have"] += 1
            return
        members = self._communicators.get(communicator)
        if members is None or members[0] == 0 < size:
            members = self._communicators[communicator] = size, members[1] if members else {}
        members[1][local] = place
        took_s = real(call.get(f"{kind}_exec_time_us"), 1e-6)
        processes, communicators, names = self._numbers
        columns = self._whole
        columns[0].append(processes.setdefault(place, len(processes)))
        columns[1].append(communicators.setdefault(communicator, len(communicators)))
        name = str(call.get(kind))
        columns[2].append(names.setdefault(name, len(names)))
        columns[3].append(whole(call.get(f"{kind}_sn")))
        columns[4].append(whole(call.get("p2p_peer")) if kind == "p2p" else -1)
        columns[5].append(whole(call.get(f"{kind}_msg_size_bytes")))
        self._real[0].append(_start_s(call, kind, took_s, about))
        self._real[1].append(took_s)

    def finish(self, into: CallBuilder) -> None:
        """Put what was taken into `into`, with the ranks of the job, and forget it."""
        import numpy as np

        ranks = global_ranks(self._communicators)
        for place, rank in ranks.items():
            into.processes.setdefault(rank, Process(place[0] or None, place[1] if place[1] >= 0 else None))
        groups: dict[str, int] = {}
        for communicator, (size, members) in self._communicators.items():
            is_complete = len(members) == size and max(members) < size
            known = tuple(ranks[members[local]] for local in range(size)) if is_complete else ()
            groups[communicator] = into.group(("inspector", communicator), communicator, size, known)
        biggest = max((size for size, _ in self._communicators.values()), default=0)
        if biggest > len(ranks):
            into.expected.update(range(biggest))
        columns, times, self._whole, self._real = self._whole, self._real, *_empty_columns()
        if not times[0]:
            return
        process, communicator_of, name, number, peer, nbytes = (np.frombuffer(column, np.int64) for column in columns)
        start_s, took_s = (np.frombuffer(column, np.float64) for column in times)
        processes, communicators, names = (list(numbers) for numbers in self._numbers)
        other = np.full(len(process), -1, np.int64)
        # Messages are few, or of few pairs.
        for which, local in {*zip(*(column[peer >= 0].tolist() for column in (communicator_of, peer)), strict=True)}:
            members = self._communicators[communicators[which]][1]
            if local in members:
                other[(communicator_of == which) & (peer == local)] = ranks[members[local]]
        messages = np.isin(name, [i for i, text in enumerate(names) if text in ("Send", "Recv")])
        lost = messages & (other < 0)
        if lost.any():
            into.skipped["a message whose other rank wrote nothing"] += int(lost.sum())
        # In all of its communicators another process has its rank.
        rank_of = np.array([ranks.get(place, -1) for place in processes])[process]
        replaced = (rank_of < 0) & ~lost
        if replaced.any():
            into.skipped["a call of a process whose rank another has"] += int(replaced.sum())
        group_of = np.array([groups[text] for text in communicators])[communicator_of]
        own = ~lost & ~replaced
        into.used[NAME] += int(own.sum())
        into.add_all(
            names, name[own], rank_of[own], group_of[own], number[own], other[own], nbytes[own], start_s[own],
            took_s[own],
        )  # fmt: skip


def _empty_columns() -> tuple[tuple[array[int], ...], tuple[array[float], array[float]]]:
    """(whole numbers, times) of InspectorReader."""
    return tuple(array("q") for _ in range(6)), (array("d"), array("d"))


def global_ranks(communicators: Mapping[str, tuple[int, Mapping[int, Place]]]) -> dict[Place, int]:
    """The job's rank of each process: that in the largest communicator if it is the job's, else by its place.

    One of fewer ranks than there are processes is a part of the job, and its ranks are not the job's.
    """
    places = sorted({place for _, members in communicators.values() for place in members.values()}, key=_in_order)
    size, members = max(communicators.values(), key=lambda one: (one[0], len(one[1])), default=(0, {}))
    found = {place: local for local, place in members.items()} if size >= len(places) else {}
    free = iter(sorted(set(range(len(places) + len(found))) - set(found.values())))
    return {place: found[place] if place in found else next(free) for place in places}


def _in_order(place: Place) -> tuple[list[tuple[int, str]], int]:
    """A place's key among others: host2 comes before host10."""
    host, pid = place
    return [(whole(digits), text) for text, digits in re.findall(r"(\D*)(\d*)", host)], pid


def _start_s(call: Mapping[str, Any], kind: str, took_s: float, about: Mapping[str, Any]) -> float:
    events = call.get("event_trace_ts")
    if isinstance(events, dict):
        kernels = events.get("kernel_events")
        if not isinstance(kernels, list):
            return real(events.get(f"{kind}_start_ts"), 1e-6)
        times = [real(k.get("kernel_start_ts"), 1e-6) for k in kernels if isinstance(k, dict)]
        known = [time_s for time_s in times if not isnan(time_s)]
        return min(known) if known else real(events.get(f"{kind}_start_ts"), 1e-6)
    dumped_s = real(about.get("dump_timestamp_us"), 1e-6)
    return dumped_s - took_s
