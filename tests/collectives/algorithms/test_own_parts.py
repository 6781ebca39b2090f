"""What one rank makes of a schedule is its part of the whole, for each algorithm that can; bad parts are refused."""

from dataclasses import replace

import numpy as np
import pytest

from lanterne.collectives.algorithms.catalogue import ALGORITHMS, MAX_OWN_RANKS, find_algorithm, make_schedule
from lanterne.collectives.auto.pacing import ROUNDS, STREAM, traffic_of
from lanterne.collectives.execute import plans
from lanterne.collectives.execute.arguments import Key
from lanterne.collectives.execute.compile_program import compile_program
from lanterne.collectives.execute.plans import part_of
from lanterne.collectives.jobs import spawn
from lanterne.collectives.schedule.check_own import OwnSchedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.topology.topology import nodes_of
from lanterne.errors import InputError, ScheduleError

OWN = [key for key, line in ALGORITHMS.items() if line.own]
SIZES = *range(1, 10), 12, 17, 33
LARGE = *(n for n in range(10, 65) if n not in SIZES), 100, 127, 128, 255, 513, 1024


def options_of(line, world_size):
    """Root and late rank, away from the ends."""
    rooted = line.collective in ("broadcast", "reduce")
    return ({"root": world_size // 3} if rooted else {}) | ({"late_rank": world_size // 2} if line.late else {})


def rows(schedule, rank):
    """(round, src, dst, chunk, op) of each transfer of `rank`, sorted: the order within a round says nothing here."""
    mine = np.flatnonzero((schedule.src == rank) | (schedule.dst == rank))
    round_of = np.searchsorted(schedule.offsets, mine, side="right") - 1
    columns = (schedule.src, schedule.dst, schedule.chunk, schedule.op)
    table = np.stack([round_of, *(column[mine] for column in columns)])
    return table[:, np.lexsort(table[::-1])]


def uneven_nodes(world_size):
    """Nodes of 3, 1 and 2 ranks in turn, numbered across them."""
    node_of = [(0, 1, 2, 0, 2, 0)[rank % 6] + 3 * (rank // 6) for rank in range(world_size)]
    return nodes_of(node_of)


def compare(collective, name, world_size, ranks, nodes=None):
    line = find_algorithm(collective, name)
    if line.refuses(world_size):
        return
    options = options_of(line, world_size) | ({} if nodes is None else {"nodes": nodes})
    split = {None, 3 * world_size if world_size < 9 else None}
    for num_chunks in (None, 1, 2 * world_size + 1) if line.chunked else split:
        try:
            whole = make_schedule(collective, name, world_size, num_chunks, **options)
        except InputError:
            continue  # rhd's own chunks are a power of two
        for rank in ranks:
            own = make_schedule(collective, name, world_size, num_chunks, only=rank, **options)
            assert (rows(own, rank) == rows(whole, rank)).all(), (num_chunks, rank)
            assert own.num_transfers == rows(own, rank).shape[1], (num_chunks, rank)
            assert (own.phases, own.ports, own.num_chunks) == (whole.phases, whole.ports, whole.num_chunks), (
                num_chunks,
                rank,
            )
            OwnSchedule(own, rank)


@pytest.mark.parametrize(("collective", "name"), OWN)
def test_the_parts_are_the_whole(collective, name):
    for n in SIZES:
        compare(collective, name, n, range(n) if n < 9 else sorted({0, 1, n // 3, n // 2, n - 2, n - 1}))


@pytest.mark.parametrize("name", [name for key, name in OWN if ALGORITHMS[key, name].nodes])
def test_over_nodes_the_parts_are_the_whole(name):
    for n in (2, 6, 7, 10):
        compare("all_reduce", name, n, range(n), uneven_nodes(n))
    compare("all_reduce", name, 12, range(12), nodes_of([rank // 4 for rank in range(12)]))


@pytest.mark.slow
@pytest.mark.parametrize(("collective", "name"), OWN)
def test_the_parts_are_the_whole_of_many(collective, name):
    for n in LARGE:
        compare(collective, name, n, range(n) if n < 65 else sorted({0, 1, 7, n // 3, n // 2, n - 2, n - 1}))


@pytest.mark.parametrize(("collective", "name"), [key for key in OWN if not ALGORITHMS[key].late])
def test_who_has_one_part_cuts_messages_as_who_has_all(collective, name):
    """The registry says of the whole what a part cannot."""
    line = find_algorithm(collective, name)
    n = 64
    flow = traffic_of(make_schedule(collective, name, n, **options_of(line, n)), chunked=line.chunked)
    # Whether a few messages are a stream changes nothing: binomial's buffers are whole.
    assert flow == (STREAM if line.stream else ROUNDS) or name == "binomial"


@pytest.mark.parametrize(("collective", "name"), OWN)
def test_programs_are_the_same(collective, name):
    line, n = find_algorithm(collective, name), 8
    options = options_of(line, n)
    whole = check(make_schedule(collective, name, n, **options))
    for rank in range(n):
        own = OwnSchedule(make_schedule(collective, name, n, only=rank, **options), rank)
        mean = collective in ("all_reduce", "reduce", "reduce_scatter")
        one, other = (
            compile_program(part, rank, 100, 8, segment_nbytes=64, mean=mean, credits=2) for part in (whole, own)
        )
        assert one == other, rank


@pytest.mark.parametrize("name", ["hier_ring", "hier_bruck", "hier_late_join", "hier_late_chain"])
def test_a_part_over_many_nodes(name):
    n = 1024
    line, nodes = find_algorithm("all_reduce", name), nodes_of([rank // 8 for rank in range(n)])
    for rank in (0, n // 2, n - 1):
        made = make_schedule("all_reduce", name, n, n, only=rank, nodes=nodes, **options_of(line, n))
        assert 0 < OwnSchedule(made, rank).schedule.num_transfers <= 10 * n, rank


@pytest.mark.parametrize("name", ["ring", "rhd", "tree", "late_join", "late_chain"])
def test_a_part_of_very_many(name):
    n = 4096
    line = find_algorithm("all_reduce", name)
    chunks = 64 if line.chunked else None
    for rank in (0, n // 2, n - 1):
        own = OwnSchedule(make_schedule("all_reduce", name, n, chunks, only=rank, **options_of(line, n)), rank)
        assert 0 < own.schedule.num_transfers <= 4 * n, rank


# -- mutations: each is refused


def test_bad_parts_are_refused():
    own, rank = make_schedule("all_reduce", "ring", 6, only=2), 2
    OwnSchedule(own, rank)
    foreign = own.dst.copy()
    foreign[own.dst == rank] = 3
    clash = own.chunk.copy()
    clash[own.dst == rank] = 0
    for bad, text in (
        (replace(own, dst=foreign), "expected those of rank 2 alone"),
        (replace(own, chunk=clash), "never comes to rank 2"),
        (replace(own, src=own.src + 6), "expected 0 to 5"),
        (replace(own, offsets=own.offsets[[0, -1]], phases=(("main", 0, 1),)), "messages one way in round|writes"),
    ):
        with pytest.raises(ScheduleError, match=text):
            OwnSchedule(bad, rank)
    gather = make_schedule("all_gather", "ring", 6, only=2)
    with pytest.raises(ScheduleError, match="holds nothing"):
        OwnSchedule(replace(gather, chunk=np.where(gather.src == rank, (gather.chunk + 3) % 6, gather.chunk)), rank)


def test_what_cannot_be():
    with pytest.raises(InputError, match="allpairs all_reduce makes those of all ranks together"):
        make_schedule("all_reduce", "allpairs", 4, only=1)
    with pytest.raises(InputError, match="only: got 4, expected 0 to 3"):
        make_schedule("all_reduce", "ring", 4, only=4)
    with pytest.raises(InputError, match=f"expected 1 to {MAX_OWN_RANKS}"):
        make_schedule("all_reduce", "ring", MAX_OWN_RANKS + 1, only=0)


def test_many_ranks_compile_their_part(monkeypatch):
    key = Key("all_reduce", "ring", "sum", "float32", 100, None, None, None, None, None)
    assert not isinstance(part_of(key, (tuple(range(64)),), 5), OwnSchedule)
    assert isinstance(part_of(key, (tuple(range(65)),), 5), OwnSchedule)
    assert not isinstance(part_of(key._replace(algorithm="allpairs"), (tuple(range(65)),), 5), OwnSchedule)
    late = key._replace(algorithm="late_chain", num_chunks=8, late_rank=3)
    part = part_of(late, (tuple(range(100)),), 7)
    assert part.schedule.late_rank == 99
    monkeypatch.setattr(plans, "MAX_CHECKED_RANKS", 4)
    assert isinstance(part_of(key, (tuple(range(5)),), 4), OwnSchedule)


def runs(comm):
    x, y = np.arange(40.0) + comm.rank, np.empty(40)
    for name in comm.algorithms("all_reduce"):
        comm.all_reduce(x, y, "mean", algorithm=name)
        assert np.allclose(y, np.arange(40.0) + 2), name
    comm.reduce(x, y, root=1, algorithm="tree")
    assert comm.rank != 1 or np.allclose(y, 5 * np.arange(40) + 10)
    comm.reduce_scatter(x, y[:8], algorithm="ring")
    assert np.allclose(y[:8], (5 * np.arange(40.0) + 10).reshape(5, -1)[comm.rank])
    comm.barrier()


def test_parts_run(monkeypatch):
    monkeypatch.setattr(plans, "MAX_CHECKED_RANKS", 2)
    spawn(5, runs)


@pytest.mark.parametrize(("algorithm", "late_rank"), [("late_join", 999), ("late_join", 100), ("ring", 3)])
def test_a_late_rank_that_cannot_be_is_refused_of_many_as_of_few(algorithm, late_rank):
    """Above MAX_CHECKED_RANKS too, and by its own number."""
    key = Key("all_reduce", algorithm, "sum", "float32", 100, None, late_rank, None, None, None)
    few, many = (refusal(part_of, key, (tuple(range(n)),), 5) for n in (64, 65))
    assert str(late_rank) in few and many == few.replace("0 to 63", "0 to 64").replace("64 ranks", "65 ranks")


def refusal(function, *args):
    with pytest.raises(InputError) as raised:
        function(*args)
    return str(raised.value)
