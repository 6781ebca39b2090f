"""Schedules from outside run as calls: values, files and functions; ranks with different ones all raise."""

import json

import numpy as np
import pytest

from lanterne.collectives.algorithms.catalogue import make_schedule
from lanterne.collectives.jobs import spawn
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.formats.export_json import to_json
from lanterne.collectives.schedule.formats.export_msccl import to_msccl_xml
from lanterne.collectives.schedule.ir import COPY, REDUCE, ScheduleBuilder
from lanterne.errors import InputError

COUNT = 101


def summed(communicator, algorithm, **options):
    """Whether the sum that `algorithm` gives, apart and in place, is right on this rank."""
    mine = np.arange(COUNT) + communicator.rank * 1000.0
    wanted = sum(np.arange(COUNT) + rank * 1000.0 for rank in range(communicator.world_size))
    found = np.zeros(COUNT)
    communicator.all_reduce(mine, found, algorithm=algorithm, **options)
    communicator.all_reduce(mine, mine, algorithm=algorithm, **options)
    return bool((found == wanted).all() and (mine == wanted).all())


def test_values_files_and_functions_run(tmp_path):
    bruck, late = make_schedule("all_reduce", "bruck", 3), make_schedule("all_reduce", "late_join", 3, late_rank=1)
    ours, theirs = tmp_path / "ours.json", tmp_path / "theirs.xml"
    ours.write_text(json.dumps(to_json(late)))
    theirs.write_text(to_msccl_xml(check(late)))
    function = "lanterne.collectives.algorithms.late.join:late_join_all_reduce"

    def job(communicator):
        found = [summed(communicator, each) for each in (bruck, check(bruck), late, str(ours), str(theirs), function)]
        found.append(summed(communicator, function, late_rank=0, num_chunks=4))
        return [*found, summed(communicator, bruck, num_chunks=6)]

    assert spawn(3, job) == [[True] * 8] * 3


def test_a_contribution_added_twice_and_overwritten_does_no_harm():
    build = ScheduleBuilder("all_reduce", "untidy", 3, 1, ports=2)
    build.round((0, 1, 0, REDUCE), (1, 2, 0, REDUCE))
    build.round((0, 1, 0, REDUCE))
    build.round((0, 2, 0, REDUCE))
    build.round((2, 1, 0, COPY), (2, 0, 0, COPY))
    assert spawn(3, summed, build.build()) == [True] * 3


def test_other_collectives_and_started_calls_take_them():
    broadcast = make_schedule("broadcast", "binomial", 3, root=1)
    ring = make_schedule("all_reduce", "ring", 3)

    def job(communicator):
        x, y = np.full(7, communicator.rank + 1.0), np.zeros(7)
        communicator.broadcast(x, root=1, algorithm=broadcast)
        communicator.start_all_reduce(x, y, algorithm=ring).wait()
        communicator.bind("all_reduce", x, x, algorithm=ring)()
        return x.tolist() == y.tolist() == [6.0] * 7

    assert spawn(3, job) == [True] * 3


def test_ranks_with_different_schedules_all_raise(tmp_path):
    for rank in range(3):
        name = "bruck" if rank == 1 else "ring"
        (tmp_path / f"{rank}.json").write_text(json.dumps(to_json(make_schedule("all_reduce", name, 3))))

    def job(communicator):
        x = np.ones(5)
        with pytest.raises(InputError, match="expected the same on every rank"):
            communicator.all_reduce(x, x, algorithm=str(tmp_path / f"{communicator.rank}.json"))
        return x.tolist() == [1.0] * 5

    assert spawn(3, job, timeout_s=20) == [True] * 3


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (lambda: make_schedule("all_reduce", "ring", 4), {}, "got a schedule with world size 4, expected 2"),
        (lambda: make_schedule("all_gather", "ring", 2), {}, "got a schedule with collective all_gather"),
        (lambda: make_schedule("all_reduce", "ring", 2), {"num_chunks": 3}, "got 3 chunks, expected a multiple of 2"),
        (lambda: make_schedule("all_reduce", "ring", 2), {"late_rank": 1}, "late rank: got 1"),
        (lambda: make_schedule("all_reduce", "ring", 2), {"joined": 1}, "joined: got 1"),
        (lambda: ScheduleBuilder("all_reduce", "none", 2, 1).build(), {}, "no transfer reaches it"),
        (lambda: 7, {}, "got algorithm 7, expected a name or a schedule"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_sent(given, options, message):
    def job(communicator):
        with pytest.raises(InputError, match=message):
            communicator.all_reduce(np.ones(4), np.ones(4), algorithm=given(), **options)
        return summed(communicator, "ring")

    assert spawn(2, job) == [True] * 2
