"""A schedule of one's own: made by a function, checked, run as a call, written to a file, and run from there.

python examples/own_schedule.py
"""

import json
import tempfile
from pathlib import Path

import numpy as np

import lanterne
from lanterne.collectives.communicator import Communicator
from lanterne.collectives.schedule.formats.export_json import to_json
from lanterne.collectives.schedule.ir import COPY, REDUCE, CollectiveSchedule, ScheduleBuilder

RANKS, COUNT = 4, 1000


def star_all_reduce(world_size: int) -> CollectiveSchedule:
    """All send to rank 0, which adds, and sends the sum to all. Name it "own_schedule:star_all_reduce" elsewhere."""
    others = np.arange(1, world_size)
    build = ScheduleBuilder("all_reduce", "star", world_size, 1, ports=max(1, world_size - 1))
    build.round((others, 0, 0, REDUCE))
    build.round((0, others, 0, COPY))
    return build.build()


def job(comm: Communicator, file: str) -> bool:
    x, y = np.full(COUNT, comm.rank + 1.0), np.zeros(COUNT)
    right = True
    for algorithm in (star_all_reduce(comm.world_size), file):
        y[:] = 0
        comm.all_reduce(x, y, algorithm=algorithm)
        right = right and bool((y == sum(range(1, comm.world_size + 1))).all())
    return right


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "star.json"
        path.write_text(json.dumps(to_json(star_all_reduce(RANKS))))
        assert all(lanterne.spawn(RANKS, job, str(path)))
    print(f"{RANKS} ranks: the sums of the star, as a value and from its file, are right")
