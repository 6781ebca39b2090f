"""NCCL Inspector: JSON lines, one for each collective or message of each communicator of each process.

Format: NVIDIA/nccl, ext-profiler/inspector/README.md and inspector.cc (output format versions 4.0 to 5.0, NCCL 2.28.2
and later): `header` (communicator's id, the rank in it, n_ranks), `metadata` (hostname, pid, dump_timestamp_us),
`coll_perf` (coll, coll_sn, coll_msg_size_bytes, coll_exec_time_us) or `p2p_perf`; with NCCL_INSPECTOR_DUMP_VERBOSE also
`event_trace_ts`. Without it the time of a call is that of the dump after it. Version 4.3 writes `header` and `metadata`
once, in a line before the calls of a dump; of these nothing tells when they were. Ranks are those of the communicator;
identity.py says which ranks of the job they are.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from math import isnan, nan
from typing import Any

from lanterne.failslow.locate.formats.foreign_calls import CallBuilder, Process, rank_told, real, size_told, whole
from lanterne.failslow.locate.formats.identity import Member, global_ranks

NAME = "NCCL Inspector"


def is_line(content: Any) -> bool:
    """Return whether a line's content is the Inspector's: a call, or what precedes the calls of a dump."""
    return isinstance(content, dict) and (
        isinstance(content.get("coll_perf", content.get("p2p_perf")), dict)
        or (isinstance(content.get("header"), dict) and "n_ranks" in content["header"])
    )


class InspectorReader:
    """Takes lines of all files; `finish` puts them into a CallBuilder, once all communicators are known."""

    def __init__(self) -> None:
        # Of each line: member, process, name (as numbers of `_numbers`), call, peer, bytes; start and time.
        self._whole, self._real = _empty_columns()
        self._numbers: tuple[dict[Any, int], ...] = ({}, {}, {})
        # communicator -> (ranks it has, rank -> process)
        self._communicators: dict[str, tuple[int, dict[int, Member]]] = {}
        self._before: Mapping[str, Any] = {}
        # Of each rank of a communicator the files that it is in.
        self._file = 0
        self._files: dict[tuple[str, int], set[int]] = {}

    def begin(self) -> None:
        """Begin another file."""
        self._before = {}
        self._file += 1

    def take(self, line: Mapping[str, Any], into: CallBuilder) -> None:
        """Take one line."""
        kind = "coll" if "coll_perf" in line else "p2p"
        call = line.get("coll_perf") or line.get("p2p_perf")
        if call is None and "dump_stats" in line:
            self._before = line
            return
        told = line if isinstance(line.get("header"), dict) else self._before
        header, about = told.get("header"), told.get("metadata") or {}
        if not isinstance(call, dict) or not isinstance(about, dict) or not isinstance(header, dict):
            into.skipped["an Inspector line without a call, or without its communicator"] += 1
            return
        place, communicator = Member(str(about.get("hostname", "")), whole(about.get("pid"))), str(header.get("id"))
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
        self._files.setdefault((communicator, local), set()).add(self._file)
        took_s = real(call.get(f"{kind}_exec_time_us"), 1e-6)
        keys, processes, names = self._numbers
        columns = self._whole
        columns[0].append(keys.setdefault((communicator, local), len(keys)))
        columns[1].append(processes.setdefault(place, len(processes)))
        name = str(call.get(kind))
        columns[2].append(names.setdefault(name, len(names)))
        columns[3].append(whole(call.get(f"{kind}_sn")))
        columns[4].append(whole(call.get("p2p_peer")) if kind == "p2p" else -1)
        columns[5].append(whole(call.get(f"{kind}_msg_size_bytes")))
        self._real[0].append(_start_s(call, kind, took_s, about if told is line else {}))
        self._real[1].append(took_s)

    def finish(self, into: CallBuilder) -> None:
        """Put what was taken into `into`, with the ranks of the job, and forget it."""
        import numpy as np

        if not self._real[0]:
            return
        ranks, into.jobs = global_ranks(self._told_apart(), into)
        groups: dict[str, int] = {}
        for communicator, (size, members) in self._communicators.items():
            known = tuple(ranks[communicator, local] for local in range(size) if (communicator, local) in ranks)
            known = known if len(known) == size else ()
            groups[communicator] = into.group(("inspector", communicator), communicator, size, known)
            for local, place in members.items():
                if (communicator, local) in ranks:
                    about = Process(place.host or None, place.pid if place.pid >= 0 else None)
                    into.processes.setdefault(ranks[communicator, local], about)
        biggest = max(size for size, _ in self._communicators.values())
        if biggest > len({*ranks.values()}):
            into.expected.update(range(biggest))
        columns, times, self._whole, self._real = self._whole, self._real, *_empty_columns()
        key, process, name, number, peer, nbytes = (np.frombuffer(column, np.int64) for column in columns)
        start_s, took_s = (np.frombuffer(column, np.float64) for column in times)
        keys, _, names = (list(numbers) for numbers in self._numbers)
        other = np.full(len(key), -1, np.int64)
        # Messages are few, or of few pairs.
        for which, local in {*zip(*(column[peer >= 0].tolist() for column in (key, peer)), strict=True)}:
            other[(key == which) & (peer == local)] = ranks.get((keys[which][0], local), -1)
        messages = np.isin(name, [i for i, text in enumerate(names) if text in ("Send", "Recv")])
        lost = messages & (other < 0)
        if lost.any():
            into.skipped["a message whose other rank wrote nothing"] += int(lost.sum())
        latest = np.array([self._numbers[1][self._communicators[one][1][local]] for one, local in keys])
        rank_of = np.array([ranks.get(one, -1) for one in keys])[key]
        replaced = (latest[key] != process) & ~lost
        if replaced.any():
            into.skipped["a call of a process whose rank another has"] += int(replaced.sum())
        group_of = np.array([groups[one] for one, _ in keys])[key]
        own = ~lost & ~replaced & (rank_of >= 0)
        into.used[NAME] += int(own.sum())
        into.add_all(
            names, name[own], rank_of[own], group_of[own], number[own], other[own], nbytes[own], start_s[own],
            took_s[own],
        )  # fmt: skip

    def _told_apart(self) -> dict[str, tuple[int, dict[int, Member]]]:
        """Return the communicators, with processes of equal names told apart by their files, as those of pods are.

        Files that have a rank of a communicator in common are of one process.
        """
        same: dict[int, int] = {}

        def find(file: int) -> int:
            while (other := same.get(file, file)) != file:
                file = other
            return file

        for files in self._files.values():
            first = find(min(files))
            for file in files:
                if (other := find(file)) != first:
                    same[max(first, other)] = first = min(first, other)
        return {
            name: (
                size,
                {local: one._replace(file=find(min(self._files[name, local]))) for local, one in members.items()},
            )
            for name, (size, members) in self._communicators.items()
        }


def _empty_columns() -> tuple[tuple[array[int], ...], tuple[array[float], array[float]]]:
    """Return (whole numbers, times) of InspectorReader."""
    return tuple(array("q") for _ in range(6)), (array("d"), array("d"))


def _start_s(call: Mapping[str, Any], kind: str, took_s: float, about: Mapping[str, Any]) -> float:
    events = call.get("event_trace_ts")
    if isinstance(events, dict):
        kernels = events.get("kernel_events")
        if not isinstance(kernels, list):
            return real(events.get(f"{kind}_start_ts"), 1e-6)
        times = [real(k.get("kernel_start_ts"), 1e-6) for k in kernels if isinstance(k, dict)]
        known = [time_s for time_s in times if not isnan(time_s)]
        return min(known) if known else real(events.get(f"{kind}_start_ts"), 1e-6)
    return real(about.get("dump_timestamp_us", nan), 1e-6) - took_s
