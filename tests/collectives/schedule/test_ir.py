"""The representation, its passes and its layout."""

import numpy as np
import pytest

from lanterne.collectives.algorithms.catalogue import ALGORITHMS, make_schedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.chunk_layout import chunk_counts, input_chunks, output_chunks, uneven_parts
from lanterne.collectives.schedule.contracts import CONTRACTS
from lanterne.collectives.schedule.ir import COPY, CollectiveSchedule, ScheduleBuilder, Transfer
from lanterne.collectives.schedule.passes import reverse, split_chunks
from lanterne.errors import ScheduleError

LINES = pytest.mark.parametrize("line", ALGORITHMS.values(), ids=lambda line: f"{line.collective}-{line.name}")


@LINES
def test_equal_by_value_and_hashable(line):
    one, two = (make_schedule(line.collective, line.name, 4) for _ in range(2))
    assert one == two and hash(one) == hash(two) and one.fingerprint == two.fingerprint
    assert one != make_schedule(line.collective, line.name, 2)


def test_rounds_as_transfers():
    schedule = make_schedule("broadcast", "chain", 3, num_chunks=2)
    assert list(schedule.rounds) == [
        (Transfer(0, 1, 0, COPY),),
        (Transfer(0, 1, 1, COPY), Transfer(1, 2, 0, COPY)),
        (Transfer(1, 2, 1, COPY),),
    ]
    assert schedule.name == "chain_broadcast(world_size=3, root=0)"


@pytest.mark.parametrize("name", ["ring", "bruck", "rhd", "allpairs"])
@pytest.mark.parametrize("world_size", [1, 2, 4, 16])
def test_a_reversed_all_gather_is_a_reduce_scatter(name, world_size):
    mirrored = reverse(make_schedule("all_gather", name, world_size), "reduce_scatter")
    assert check(mirrored).schedule.num_rounds == mirrored.num_rounds
    assert reverse(mirrored, "all_gather").num_transfers == mirrored.num_transfers


@LINES
def test_split_chunks_keeps_rounds_and_messages(line):
    schedule = make_schedule(line.collective, line.name, 4)
    split = check(split_chunks(schedule, 3 * schedule.num_chunks)).schedule
    assert split.num_rounds == schedule.num_rounds and split.num_transfers == 3 * schedule.num_transfers
    for one, three in zip(schedule.rounds, split.rounds, strict=True):
        assert [transfer[:2] for transfer in one for _ in range(3)] == [transfer[:2] for transfer in three], (
            one,
            three,
        )


@pytest.mark.parametrize("part_count", [0, 1, 4, 100, 1000])
@LINES
def test_chunks_cover_every_part_evenly(line, part_count):
    schedule = make_schedule(line.collective, line.name, 4, 3 if line.chunked else None)
    counts = chunk_counts(schedule, part_count)
    parts = CONTRACTS[line.collective].parts(4)
    assert counts.reshape(parts, -1).sum(axis=1).tolist() == [part_count] * parts
    assert np.ptp(counts) <= 1


def test_parts_may_differ():
    schedule = make_schedule("all_gather", "ring", 3, 6)
    assert chunk_counts(schedule, [0, 5, 4]).tolist() == [0, 0, 3, 2, 2, 2]
    assert chunk_counts(schedule, [0, 5, 4], align=4).tolist() == [0, 0, 4, 1, 4, 0]
    # Rank 1 of two sends 1 and 4 elements and receives 3 and 4.
    assert list(uneven_parts("all_to_all", 1, (1, 4, 3, 4))) == [0, 3, 1, 4]


def test_buffers_of_an_all_to_all():
    schedule = make_schedule("all_to_all", "pairwise", 3)
    assert input_chunks(schedule, 1).tolist() == [3, 4, 5]
    assert output_chunks(schedule, 1).tolist() == [1, 4, 7]


def test_builder_sorts_transfers_into_rounds_and_keeps_their_order():
    build = ScheduleBuilder("all_gather", "test", 2, 4)
    build.rounds([1, 0, 1], [0, 0, 1], [1, 1, 0], [0, 1, 2], COPY)
    assert [[transfer.chunk for transfer in transfers] for transfers in build.build().rounds] == [[1], [0, 2]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"src": [0]}, "columns of unequal length"),
        ({"offsets": [0, 1]}, "round offsets that do not rise from 0 to 2"),
        ({"offsets": [0, 2, 1, 2]}, "round offsets that do not rise"),
        ({"phases": (("a", 0, 1),)}, "expected them to tile 2 rounds"),
        ({"phases": (("a", 1, 2), ("b", 0, 1))}, "expected them to tile 2 rounds"),
        ({"world_size": 2**40}, "at most"),
    ],
)
def test_columns_that_do_not_fit_together(change, message):
    good = {
        "collective": "broadcast",
        "algorithm": "test",
        "world_size": 3,
        "num_chunks": 1,
        "src": [0, 1],
        "dst": [1, 2],
        "chunk": [0, 0],
        "op": [COPY, COPY],
        "offsets": [0, 1, 2],
        "phases": (("a", 0, 1), ("b", 1, 2)),
        "root": 0,
    }
    assert check(CollectiveSchedule(**good)).scratch_chunks == 0
    with pytest.raises(ScheduleError, match=message):
        CollectiveSchedule(**{**good, **change})
