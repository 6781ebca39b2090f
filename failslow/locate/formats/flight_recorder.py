"""PyTorch's Flight Recorder: one dump a rank, a pickle or JSON, of the last calls with their states.

Format: torch/csrc/distributed/c10d/FlightRecorder.hpp (keys and their meaning, versions 2.x), torch/distributed/
flight_recorder/components/types.py (earlier ones: `seq_id`), torch/csrc/jit/serialization/pickler.cpp (which globals a
dump's lists are made with); docs.pytorch.org, "Flight Recorder for Debugging Stuck Jobs". A file's name has its rank.
Times are of the host's clock, `duration_ms` is there with TORCH_NCCL_ENABLE_TIMING only. A call is over when it is
"completed" or `retired`: gloo's calls keep the state "scheduled". `pg_status` has the last enqueued and completed call
of each group, also of calls that the ring buffer has lost.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from math import isnan, nan
from pathlib import Path
from typing import Any

from lanterne.errors import shown
from lanterne.failslow.evidence.progress import Progress
from lanterne.failslow.locate.formats.foreign_calls import (
    DONE,
    QUEUED,
    STARTED,
    CallBuilder,
    Process,
    rank_told,
    ranks_in,
    real,
    whole,
)

NAME = "Flight Recorder"
STATES = {"completed": DONE, "started": STARTED, "scheduled": QUEUED}
MESSAGE = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)")
# What a dump may name besides plain data, and what stands for it here: torch itself is never loaded.
_LISTS = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist")
ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    **{("torch.jit._pickle", name): list for name in _LISTS},
    ("torch.jit._pickle", "restore_type_tag"): lambda value, tag: value,
    ("collections", "OrderedDict"): dict,
}


class PlainUnpickler(pickle.Unpickler):
    """Reads pickles of plain data: whatever would import or call something else is refused before it does."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """One of ALLOWED; raises UnpicklingError for all else."""
        try:
            return ALLOWED[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, and holds more than data") from None

    def persistent_load(self, pid: Any) -> Any:
        """Refused: it would be something outside the file."""
        raise pickle.UnpicklingError("it names an object outside of it")


def load_pickle(data: bytes) -> Any:
    """The plain data of a pickle.

    Raises:
        ValueError: it is broken, or holds more than plain data.
    """
    try:
        content = PlainUnpickler(io.BytesIO(data)).load()
        _check_size(content, len(data))
        return content
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except Exception as error:
        # What a broken pickle raises is of any kind.
        raise ValueError(str(error) or type(error).__name__) from error


def _check_size(content: Any, nbytes: int) -> None:
    """Raise ValueError where lists that hold each other have more values than the `nbytes` of their pickle can name."""
    todo, count = [content], 0
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += [*value.keys(), *value.values()]
        elif isinstance(value, (list, tuple)):
            todo += value
        if (count := count + 1) > nbytes:
            raise ValueError("its lists hold each other, and have no end")


def is_dump(content: Any) -> bool:
    """Whether what was read from a file is a dump."""
    return isinstance(content, dict) and isinstance(content.get("entries"), list)


class FlightRecorderReader:
    """Takes dumps; of several dumps of one rank the latest counts."""

    def __init__(self, into: CallBuilder) -> None:
        self._into = into
        # rank -> (time of its latest entry, file, rows of its calls)
        self._latest: dict[int, tuple[float, str, int, int]] = {}
        # name of a group -> its ranks, () of dumps that do not have them
        self._groups: dict[str, set[tuple[int, ...]]] = {}

    def finish(self) -> None:
        """Join the groups of dumps that do not name their ranks with those of the same name."""
        for name, known in self._groups.items():
            if () in known and len(known) == 2:
                ranks = next(one for one in known if one)
                self._into.same[self._group(name, ())] = self._group(name, ranks)

    def _group(self, name: str, ranks: tuple[int, ...], about: str = "") -> int:
        self._groups.setdefault(name, set()).add(ranks)
        return self._into.group(("fr", name, ranks), about or name, len(ranks), ranks)

    def take(self, path: Path, content: Mapping[str, Any]) -> None:
        """Take the entries of a dump."""
        into = self._into
        rank = rank_told(content.get("rank"), rank_in_name(path.name))
        if rank < 0:
            into.skipped["a Flight Recorder dump without a rank in its name"] += 1
            return
        entries = [entry for entry in content["entries"] if isinstance(entry, dict)]
        if len(entries) < len(content["entries"]):
            into.skipped["a Flight Recorder entry that is no record"] += len(content["entries"]) - len(entries)
        at = max((real(entry.get("time_created_ns")) for entry in entries), default=0.0)
        if (known := self._latest.get(rank)) is not None:
            older = shown(path.name if at < known[0] else known[1])
            into.notes.append(f"Flight Recorder: rank {rank} has several dumps; {older} is the older one and not used")
            if at < known[0]:
                return
            into.drop(*known[2:])
            into.used[NAME] -= known[3] - known[2]
            for progress in into.progress.values():
                progress.pop(rank, None)
            for called in into.called.values():
                called.pop(rank, None)
        first = into.rows
        into.processes.setdefault(rank, Process(content.get("host_name") or None))
        self._entries(rank, content, entries)
        self._latest[rank] = at, path.name, first, into.rows

    def _entries(self, rank: int, content: Mapping[str, Any], entries: list[dict[str, Any]]) -> None:
        into, groups = self._into, dict(_groups(content))
        has_messages: set[str] = set()
        for entry in entries:
            name = _group_name(entry)
            about, ranks = groups.get(name, (name, ()))
            if _entry(rank, entry, self._group(name, ranks, about), ranks, into):
                has_messages.add(name)
        for local, name in _status_names(content, entries).items():
            status = content["pg_status"][local]
            finished, begun = (whole(status.get(f"last_{word}_collective")) for word in ("completed", "enqueued"))
            # Messages count there, too, and each rank has another number of them.
            if name not in has_messages and 0 <= finished <= begun:
                about, ranks = groups.get(name, (name, ()))
                group = self._group(name, ranks, about)
                into.progress.setdefault(group, {})[rank] = Progress(finished, begun)


def rank_in_name(name: str) -> str | None:
    """Return the digits of a file's name that are its rank: after "rank", before "of", or else the last."""
    for pattern in (r"rank[-_. ]?(\d+)", r"(\d+)[-_. ]?of[-_. ]?\d", r"(\d+)\D*$"):
        if (found := re.search(pattern, name, re.IGNORECASE)) is not None:
            return found.group(1)
    return None


def _groups(content: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """Yield (name of a group, (its description, its ranks))."""
    config = content.get("pg_config")
    for key, about in config.items() if isinstance(config, dict) else ():
        if isinstance(about, dict):
            name = str(about.get("name", key))
            yield name, (str(about.get("desc") or name), ranks_in(about.get("ranks")))


def _group_name(entry: Mapping[str, Any]) -> str:
    told = entry.get("process_group", entry.get("pg_id", 0))
    return str(told[0] if isinstance(told, (list, tuple)) and told else told)


def _status_names(content: Mapping[str, Any], entries: list[dict[str, Any]]) -> dict[str, str]:
    """Return the name of the group of each key of `pg_status`, which are numbers local to the rank.

    Entries have both. Groups without entries have the same order in `pg_config`, unless an entry contradicts that.
    """
    status = content.get("pg_status")
    if not isinstance(status, dict) or not all(isinstance(one, dict) for one in status.values()):
        return {}
    known = {str(entry["pg_id"]): _group_name(entry) for entry in entries if "pg_id" in entry}
    names = sorted((name for name, _ in _groups(content)), key=whole)
    if len(names) == len(status) and all(whole(one) >= 0 for one in (*names, *status)):
        ordered = dict(zip(sorted(status, key=whole), names, strict=True))
        if all(ordered.get(local, name) == name for local, name in known.items()):
            known = ordered
    return {local: known[local] for local in status if local in known}


def _entry(rank: int, entry: Mapping[str, Any], group: int, ranks: tuple[int, ...], into: CallBuilder) -> bool:
    """Take an entry of a group; return whether it is a message."""
    # Of the backend: nccl, gloo, xccl, and so on.
    text = str(entry.get("profiling_name", "")).rpartition(":")[2]
    message, peer = MESSAGE.match(text), -1
    is_message = message is not None or entry.get("is_p2p") is True
    if is_message:
        # From the rank's own place to the peer's, both of the group.
        local = whole(message.group(4)) if message is not None else -1
        peer = ranks[local] if 0 <= local < len(ranks) else local
        number = whole(entry.get("p2p_seq_id", entry.get("seq_id")))
        text = message.group(1) if message is not None else text
    else:
        number = whole(entry.get("collective_seq_id", entry.get("seq_id")))
    state = DONE if entry.get("retired") is True else STATES.get(str(entry.get("state")), DONE)
    began_ns, ended_ns = entry.get("time_discovered_started_ns"), entry.get("time_discovered_completed_ns")
    took_s = real(entry.get("duration_ms"), 1e-3)
    if isnan(took_s) and state == DONE:
        took_s = real(ended_ns, 1e-9) - real(began_ns, 1e-9)
    start_s = real(began_ns if began_ns else entry.get("time_created_ns"), 1e-9)
    into.used[NAME] += 1
    into.add(rank, group, text, number, peer, _nbytes(entry), start_s, took_s if state == DONE else nan, state)
    if state != DONE and not is_message:
        into.called.setdefault((group, number), {})[rank] = _in_words(text, entry)
    return is_message


# Calls whose arguments have the same size and type on all ranks.
ALIKE = (
    "all_reduce", "allreduce", "broadcast", "_allgather_base", "_all_gather_base", "_reduce_scatter_base", "reduce",
)  # fmt: skip


def _in_words(name: str, entry: Mapping[str, Any]) -> str:
    """Return what of a call is the same on all ranks, in words."""
    sizes, kinds = entry.get("input_sizes"), entry.get("input_dtypes")
    if name not in ALIKE or not isinstance(sizes, (list, tuple)) or not isinstance(kinds, (list, tuple)):
        return name
    shapes = ("x".join(map(str, size)) if isinstance(size, (list, tuple)) else "?" for size in sizes[:4])
    return f"{name} of {', '.join(shapes)} {', '.join(sorted({str(kind) for kind in kinds[:4]}))}"


SIZES = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Byte": 1, "Char": 1, "Bool": 1}


def _nbytes(entry: Mapping[str, Any]) -> int:
    shapes, kinds = entry.get("input_sizes"), entry.get("input_dtypes")
    if not isinstance(shapes, (list, tuple)) or not isinstance(kinds, (list, tuple)):
        return -1
    total = 0
    for shape, kind in zip(shapes, kinds, strict=False):
        count = 1
        for side in ranks_in(list(shape)) if isinstance(shape, (list, tuple)) else ():
            count *= side
        total += count * SIZES.get(str(kind).removeprefix("torch."), 1)
    return total if total < 1 << 62 else -1
