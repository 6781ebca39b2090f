"""Schedules of every algorithm against digests that were recorded: a change of any schedule shows here.

Record them again with `python tests/collectives/algorithms/test_golden_schedules.py`, and say in the commit why they
changed.
"""

import hashlib
import json
from pathlib import Path

import pytest

from lanterne.collectives.algorithms.catalogue import ALGORITHMS, make_schedule
from lanterne.errors import InputError

RECORDED = Path(__file__).with_name("schedules.json")
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 33)
NODES = {8: ((0, 1, 2, 3), (4, 5, 6, 7)), 12: ((0, 1, 2), (3,), (4, 5, 6, 7), (8, 9, 10, 11))}


def digest(line, world_size):
    """Return a digest of the schedule, or the name of the error's class where there is none."""
    late = world_size // 2 if line.late else None
    name = f"{line.name}.1" if line.leaves else line.name
    try:
        made = make_schedule(line.collective, name, world_size, late_rank=late, nodes=NODES.get(world_size))
    except InputError as error:
        return type(error).__name__
    found = hashlib.sha256(
        json.dumps([made.num_chunks, made.late_rank, [str(phase) for phase in made.phases]]).encode()
    )
    for column in (made.offsets, made.src, made.dst, made.chunk, made.op):
        found.update(column.astype("<i8").tobytes())
    return found.hexdigest()[:12]


@pytest.mark.parametrize("key", ALGORITHMS, ids=" ".join)
def test_every_schedule_is_the_recorded_one(key):
    recorded = json.loads(RECORDED.read_text())[" ".join(key)]
    assert {str(size): digest(ALGORITHMS[key], size) for size in SIZES} == recorded


if __name__ == "__main__":
    rows = {" ".join(key): {size: digest(line, size) for size in SIZES} for key, line in ALGORITHMS.items()}
    lines = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
