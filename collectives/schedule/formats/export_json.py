"""The JSON form of a schedule: exact both ways.

{schema_version, collective, algorithm, world_size, num_chunks, late_rank, root, ports, note,
 joins: [[rank, round], ...] (where there are any),
 phases: [{name, rounds: [[[src, dst, chunk, "copy"|"reduce"], ...], ...]}]}
"""

from itertools import pairwise
from typing import Any

import numpy as np

from lanterne.collectives.schedule.ir import OP_NAMES, CollectiveSchedule, Phase
from lanterne.errors import ScheduleError

SCHEMA_VERSION = 1


def to_json(schedule: CollectiveSchedule) -> dict[str, Any]:
    """The document of `schedule`: dicts, lists, ints and strings only."""
    names = np.array(OP_NAMES, object)[schedule.op].tolist()
    rows = list(
        map(list, zip(schedule.src.tolist(), schedule.dst.tolist(), schedule.chunk.tolist(), names, strict=True))
    )
    offsets = schedule.offsets.tolist()
    rounds = [rows[start:stop] for start, stop in pairwise(offsets)]
    return {
        "schema_version": SCHEMA_VERSION,
        "collective": schedule.collective,
        "algorithm": schedule.algorithm,
        "world_size": schedule.world_size,
        "num_chunks": schedule.num_chunks,
        "late_rank": schedule.late_rank,
        "root": schedule.root,
        "ports": schedule.ports,
        "note": schedule.note,
        **({"joins": [list(pair) for pair in schedule.joins]} if schedule.joins else {}),
        "phases": [{"name": name, "rounds": rounds[start:stop]} for name, start, stop in schedule.phases],
    }


def from_json(document: Any) -> CollectiveSchedule:
    """The (unchecked) schedule of `document`; keys other than those above are ignored.

    Raises:
        ScheduleError: a key is missing or has the wrong form; names phase, round and transfer.
    """
    if not isinstance(document, dict):
        raise ScheduleError(f"schedule: got {type(document).__name__}, expected a JSON object")
    if "gpus" in document and "phases" not in document:
        raise ScheduleError("schedule: got an MSCCL++ plan, which is written and not read, expected our own JSON")
    version = document.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ScheduleError(f"schedule: got schema_version {version!r}, expected {SCHEMA_VERSION}")
    labels = {key: _value(document, key, str, None) for key in ("collective", "algorithm")}
    labels |= {key: _value(document, key, int, None) for key in ("world_size", "num_chunks")}
    labels |= {key: _value(document, key, int, default) for key, default in (("root", None), ("ports", 1))}
    late: Any = document.get("late_rank")
    several = isinstance(late, list) and all(type(rank) is int for rank in late)
    labels["late_rank"] = tuple(late) if several else _value(document, "late_rank", int, None)
    rows: list[tuple[int, int, int, int]] = []
    sizes: list[int] = []
    phases: list[Phase] = []
    for phase in _value(document, "phases", list, None):
        if not isinstance(phase, dict):
            raise ScheduleError(f"schedule: got phase {_short(phase)}, expected an object with name and rounds")
        name, start = _value(phase, "name", str, None), len(sizes)
        for transfers in _value(phase, "rounds", list, None):
            rows += _round(transfers, name, len(sizes))
            sizes.append(len(transfers))
        phases.append(Phase(name, start, len(sizes)))
    try:
        src, dst, chunk, op = np.array(rows, np.int32).reshape(-1, 4).T
    except OverflowError:
        raise ScheduleError("schedule: got a number beyond 32 bits, expected ranks and chunks") from None
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    joins = _value(document, "joins", list, [])
    if not all(type(each) is list and len(each) == 2 and all(type(number) is int for number in each) for each in joins):
        raise ScheduleError(f"schedule: got joins {_short(joins)}, expected a list of [rank, round]")
    labels |= {"phases": tuple(phases), "note": _value(document, "note", str, ""), "joins": tuple(map(tuple, joins))}
    return CollectiveSchedule(src=src, dst=dst, chunk=chunk, op=op, offsets=offsets, **labels)


def _value(document: dict[str, Any], key: str, kind: type, default: Any) -> Any:
    """document[key], of type `kind`; `default` where it is missing; late_rank and root may be null."""
    value = document.get(key, default)
    if value is None and key in ("late_rank", "root"):
        return None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ScheduleError(f"schedule: got {key} {_short(value)}, expected {kind.__name__}")
    return value


def _round(transfers: Any, phase: str, index: int) -> list[tuple[int, int, int, int]]:
    """The rows (src, dst, chunk, op number) of one round."""
    if not isinstance(transfers, list):
        raise ScheduleError(
            f"schedule: phase {phase!r}, round {index}: got {_short(transfers)}, expected a list of transfers"
        )
    rows = []
    for number, transfer in enumerate(transfers):
        well_formed = (
            isinstance(transfer, list) and len(transfer) == 4 and all(type(entry) is int for entry in transfer[:3])
        )
        if not well_formed or transfer[3] not in OP_NAMES:
            raise ScheduleError(
                f"schedule: phase {phase!r}, round {index}, transfer {number}: got {_short(transfer)}, "
                'expected [src, dst, chunk, "copy" or "reduce"]'
            )
        rows.append((*transfer[:3], OP_NAMES.index(transfer[3])))
    return rows


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
