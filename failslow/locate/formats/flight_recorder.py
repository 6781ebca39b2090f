"""PyTorch's Flight Recorder: one dump a rank, a pickle or JSON, of the last collectives with their states.

Format: torch/csrc/distributed/c10d/FlightRecorder.hpp (keys and their meaning, versions 2.x), torch/distributed/
flight_recorder/components/types.py (earlier ones: `seq_id`), torch/csrc/jit/serialization/pickler.cpp (which globals a
dump's lists are made with); docs.pytorch.org, "Flight Recorder for Debugging Stuck Jobs". A file's name ends with its
rank. Times are of the host's clock, `duration_ms` is there with TORCH_NCCL_ENABLE_TIMING only.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from math import isnan, nan
from pathlib import Path
from typing import Any

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
        return PlainUnpickler(io.BytesIO(data)).load()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except Exception as error:
        # What a broken pickle raises is of any kind.
        raise ValueError(str(error) or type(error).__name__) from error


def is_dump(content: Any) -> bool:
    """Whether what was read from a file is a dump."""
    return isinstance(content, dict) and isinstance(content.get("entries"), list)


def read(path: Path, content: Mapping[str, Any], into: CallBuilder) -> None:
    """Take the entries of a dump."""
    digits = re.search(r"(\d+)\D*$", path.name)
    rank = rank_told(content.get("rank"), digits and digits.group(1))
    if rank < 0:
        into.skipped["a Flight Recorder dump without a rank in its name"] += 1
        return
    into.processes.setdefault(rank, Process(content.get("host_name") or None))
    groups = dict(_groups(content))
    for entry in content["entries"]:
        if not isinstance(entry, dict):
            into.skipped["a Flight Recorder entry that is no record"] += 1
            continue
        _entry(rank, entry, groups, into)


def _groups(content: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """Name of a group -> (what it is for, its ranks)."""
    config = content.get("pg_config")
    for key, about in config.items() if isinstance(config, dict) else ():
        if isinstance(about, dict):
            name = str(about.get("name", key))
            yield name, (str(about.get("desc") or name), ranks_in(about.get("ranks")))


def _entry(
    rank: int, entry: Mapping[str, Any], groups: Mapping[str, tuple[str, tuple[int, ...]]], into: CallBuilder
) -> None:
    told = entry.get("process_group", entry.get("pg_id", 0))
    name = str(told[0] if isinstance(told, (list, tuple)) and told else told)
    about, ranks = groups.get(name, (name, ()))
    group = into.group(("fr", name, ranks), about, len(ranks), ranks)
    text = str(entry.get("profiling_name", "")).removeprefix("nccl:")
    message, peer = MESSAGE.match(text), -1
    if message is not None or entry.get("is_p2p") is True:
        # From the rank's own place to the peer's, both of the group.
        local = whole(message.group(4)) if message is not None else -1
        peer = ranks[local] if 0 <= local < len(ranks) else local
        number = whole(entry.get("p2p_seq_id", entry.get("seq_id")))
        text = message.group(1) if message is not None else text
    else:
        number = whole(entry.get("collective_seq_id", entry.get("seq_id")))
    state = STATES.get(str(entry.get("state")), DONE)
    began_ns, ended_ns = entry.get("time_discovered_started_ns"), entry.get("time_discovered_completed_ns")
    took_s = real(entry.get("duration_ms"), 1e-3)
    if isnan(took_s) and state == DONE:
        took_s = real(ended_ns, 1e-9) - real(began_ns, 1e-9)
    start_s = real(began_ns if began_ns else entry.get("time_created_ns"), 1e-9)
    into.used[NAME] += 1
    into.add(rank, group, text, number, peer, _nbytes(entry), start_s, took_s if state == DONE else nan, state)


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
