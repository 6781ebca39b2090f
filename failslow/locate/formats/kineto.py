"""Kineto: the Chrome traces of torch.profiler, one a rank (`.json`, `.json.gz`).

Format: pytorch/kineto, libkineto/src/output_json.cpp and docs.pytorch.org, "torch.profiler": `traceEvents` with `ph`
"X", `cat`, `name`, `ts` and `dur` in microseconds, `args`; `distributedInfo` (rank, world_size, pg_config). NCCL's
kernels, and gloo's annotations, have "Collective name", "Process Group Name", "Process Group Ranks", "Group size", "In
msg nelems", "dtype" and, in newer versions, "Seq" (torch/csrc/distributed/c10d/ParamCommsUtils.hpp). Steps are
annotations "ProfilerStep#N". Users profile some ranks only, so that a rank without a file is no evidence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lanterne.errors import shown
from lanterne.failslow.locate.formats.flight_recorder import rank_in_name
from lanterne.failslow.locate.formats.foreign_calls import (
    CallBuilder,
    Process,
    rank_told,
    ranks_in,
    real,
    size_told,
    whole,
)

NAME = "Kineto"
STEP = re.compile(r"ProfilerStep#(\d+)")
# A backslash that escapes nothing, as in a path of Windows, has no group 1.
ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
NBYTES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2}


def read(path: Path, text: str, into: CallBuilder) -> None:
    """Take a trace, event by event; one that is no JSON costs that event, and is counted."""
    reader = KinetoReader(path, into)
    content: Any = {}
    try:
        content = json.loads(text, strict=False, object_hook=reader.hook)
    except ValueError:
        reader = KinetoReader(path, into)
        _by_events(path, text, reader, into)
    reader.finish(content if isinstance(content, dict) else {})


def _by_events(path: Path, text: str, reader: KinetoReader, into: CallBuilder) -> None:
    """Give `reader` each object in `text` that can be parsed, of the list of events and beside it."""
    decode = json.JSONDecoder(strict=False, object_hook=reader.hook).raw_decode
    found = re.search(r'"distributedInfo"\s*:\s*(?={)', text)
    if found is not None:
        try:
            decode(text, found.end())
        except ValueError:
            into.skipped["the distributedInfo of a Kineto trace that is no JSON"] += 1
    # All events begin with the same key; what is inside of one seldom does.
    key = re.search(r'"traceEvents"\s*:\s*\[\s*\{\s*("\w+")', text)
    starts = [one.start() for one in re.finditer(r"\{\s*" + key.group(1), text)] if key is not None else []
    lost = 0
    for start, stop in zip(starts, [*starts[1:], len(text)], strict=True):
        event = text[start:stop].rstrip()
        try:
            decode(ESCAPE.sub(lambda one: one.group() if one.group(1) else r"\\", event))
        except ValueError:
            lost += 1
    if lost:
        into.skipped["an event of a Kineto trace that is no JSON, or cut off"] += lost
        into.notes.append(f"{shown(path.name)}: {lost} of {len(starts)} events could not be read")


class KinetoReader:
    """Takes the objects of one file while it is parsed: those that are used are copied out, the rest is dropped.

    `hook` is a json `object_hook`; `finish` takes what is left when the file has been read.
    """

    def __init__(self, path: Path, into: CallBuilder) -> None:
        self._path = path
        self._into = into
        self._events: list[tuple[str, str, float, float, Mapping[str, Any]]] = []
        self._compute: list[tuple[float, float]] = []
        # Of a file that is cut off, what was told before.
        self._about: dict[str, Any] = {}

    def hook(self, value: dict[str, Any]) -> Any:
        """An event is taken and dropped; anything else is as it was."""
        if value.get("ph") != "X":
            if "world_size" in value and "rank" in value:
                self._about = value
            return None if "ph" in value else value
        kind, name = str(value.get("cat", "")).lower(), str(value.get("name", ""))
        if kind == "kernel":
            start_s, took_s = real(value.get("ts"), 1e-6), real(value.get("dur"), 1e-6)
            if "nccl" in name.lower():
                self._events.append(("call", name, start_s, took_s, value.get("args") or {}))
            else:
                self._compute.append((start_s, took_s))
        elif "annotation" in kind and name.startswith("gloo:"):
            about = value.get("args") or {}
            self._events.append(("call", name, real(value.get("ts"), 1e-6), real(value.get("dur"), 1e-6), about))
        elif "annotation" in kind and (step := STEP.match(name)) is not None:
            self._events.append(("step", step.group(1), real(value.get("ts"), 1e-6), real(value.get("dur"), 1e-6), {}))
        return None

    def finish(self, content: Mapping[str, Any]) -> None:
        """Put what was taken into the CallBuilder."""
        about = self._about
        rank = rank_told(about.get("rank"), rank_in_name(self._path.name))
        into = self._into
        into.partial = True
        if rank < 0:
            into.skipped["a Kineto trace that does not tell its rank"] += 1
            return
        into.expected.update(range(size_told(about.get("world_size"))))
        into.processes.setdefault(rank, Process(content.get("hostname") or None))
        config = about.get("pg_config")
        told = [one for one in (config if isinstance(config, list) else ()) if isinstance(one, dict)]
        groups = {str(one.get("pg_name")): ranks_in(one.get("ranks")) for one in told}
        for kind, name, start_s, took_s, args in self._events:
            if kind == "step":
                into.add_step(rank, whole(name), start_s, took_s)
                continue
            self._call(rank, name, start_s, took_s, args if isinstance(args, dict) else {}, groups)
        for start_s, took_s in self._compute:
            into.used[NAME] += 1
            into.add_compute(rank, start_s, took_s)

    def _call(
        self, rank: int, kernel: str, start_s: float, took_s: float, args: Mapping[str, Any],
        groups: Mapping[str, tuple[int, ...]],
    ) -> None:  # fmt: skip
        name = str(args.get("Collective name") or kernel)
        group_name = str(args.get("Process Group Name", "?"))
        ranks = ranks_in(args.get("Process Group Ranks")) or groups.get(group_name, ())
        size = size_told(args.get("Group size")) or len(ranks)
        group = self._into.group(("kineto", group_name, ranks), group_name, size, ranks)
        is_message = name.lower() in ("send", "recv") or "SendRecv" in kernel
        peer = whole(args.get("Dst Rank" if name.lower() == "send" else "Src Rank")) if is_message else -1
        peer = ranks[peer] if 0 <= peer < len(ranks) else peer
        nelems = whole(args.get("In msg nelems"))
        nbytes = nelems * NBYTES.get(str(args.get("dtype")), 1) if 0 <= nelems < 1 << 59 else -1
        self._into.used[NAME] += 1
        name = name.lower() if is_message else name
        self._into.add(rank, group, name, whole(args.get("Seq")), peer, nbytes, start_s, took_s)
