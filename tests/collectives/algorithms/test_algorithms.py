"""Every registered algorithm: it passes the checker, and costs what its docstring says."""

import inspect
import re
from dataclasses import replace
from itertools import combinations
from math import ceil, floor, log2

import numpy as np
import pytest

from lanterne.collectives.algorithms.catalogue import ALGORITHMS, find_algorithm, make_schedule
from lanterne.collectives.algorithms.late.group import SLACK
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.contracts import CONTRACTS
from lanterne.collectives.schedule.cost import CostModel, chunk_nbytes, late_start, price
from lanterne.errors import InputError, ScheduleError

SIZES = [*range(1, 18), 32]
STRAGGLAR_ROUNDS = {2: 1, 4: 4, 8: 9, 16: 18, 32: 35, 64: 68, 128: 133, 256: 262}


def cases():
    """(collective, name, world_size) of all that can be made."""
    return [
        pytest.param(line.collective, line.name, world_size, id=f"{line.collective}-{line.name}-p{world_size}")
        for line in ALGORITHMS.values()
        for world_size in SIZES
        if not line.refuses(world_size)
    ]


def every_rank(line, world_size):
    """Option dicts with every root or late rank."""
    if CONTRACTS[line.collective].rooted:
        return [{"root": rank} for rank in range(world_size)]
    return [{"late_rank": rank} for rank in range(world_size)] if line.late else [{}]


def formulas(line):
    """{term: (comparison, expression)} of the Cost paragraph in the generator's docstring."""
    text = inspect.getdoc(line.generator)
    paragraph = re.search(r"^Cost \(.*?\): (.*?)(?:\nPaper|\n\n|\Z)", text, re.M | re.S)[1].replace("\n", " ")
    return {
        term: (comparison, expression)
        for term, comparison, expression in re.findall(r"(\w+) (<=|=) ([^;]+)", paragraph)
        if term in ("rounds", "load", "join", "join_load")
    }


def measured(schedule):
    """The same terms, counted in the schedule."""
    p, rounds = schedule.world_size, schedule.num_rounds
    index = np.repeat(np.arange(rounds), np.diff(schedule.offsets))
    sent, received = (
        np.bincount(index * p + rank, minlength=rounds * p).reshape(rounds, p) for rank in (schedule.src, schedule.dst)
    )
    busiest = np.maximum(sent, received).max(axis=1)
    share = chunk_nbytes(schedule, 1.0)
    terms = {"rounds": rounds, "load": busiest.sum() * share}
    if schedule.late_rank is not None:
        join = schedule.phases[-1]
        assert join.name == "join"
        terms |= {"join": join.stop - join.start, "join_load": busiest[join.start :].sum() * share}
    return terms


@pytest.mark.parametrize(("collective", "name", "world_size"), cases())
def test_every_rank_passes_and_costs_what_the_docstring_says(collective, name, world_size):
    line = find_algorithm(collective, name)
    wanted = formulas(line)
    assert wanted
    for options in every_rank(line, world_size):
        schedule = check(make_schedule(collective, name, world_size, **options)).schedule
        assert (schedule.collective, schedule.algorithm, schedule.world_size) == (collective, name, world_size), options
        assert not schedule.note, options
        names = {
            "p": world_size,
            "m": schedule.num_chunks,
            "f": 2 ** floor(log2(world_size)),
            "c": schedule.num_chunks // 2,
        }
        names |= {"ceil": ceil, "floor": floor, "log2": log2, "bin": bin, "sum": sum, "range": range, "min": min}
        found = measured(schedule)
        for term, (comparison, expression) in wanted.items():
            names[term] = value = eval(expression, {"__builtins__": {}, **names}, {})
            if comparison == "=":
                assert found[term] == pytest.approx(value, rel=1e-12), term
            else:
                assert found[term] <= value * (1 + 1e-12), term


@pytest.mark.parametrize("line", ALGORITHMS.values(), ids=lambda line: f"{line.collective}-{line.name}")
@pytest.mark.parametrize(("world_size", "factor"), [(2, 3), (4, 1), (8, 2)])
def test_chunk_counts(line, world_size, factor):
    """Any count where the algorithm takes any, else every multiple of its own."""
    own = make_schedule(line.collective, line.name, world_size).num_chunks
    schedule = check(make_schedule(line.collective, line.name, world_size, num_chunks=factor * own)).schedule
    assert schedule.num_chunks == factor * own
    if line.chunked:
        assert (
            check(make_schedule(line.collective, line.name, world_size, num_chunks=factor)).schedule.num_chunks
            == factor
        )
    elif own > 1:
        with pytest.raises(InputError, match=f"got {own + 1} chunks, expected a multiple of {own}"):
            make_schedule(line.collective, line.name, world_size, num_chunks=own + 1)


@pytest.mark.parametrize(("world_size", "rounds"), STRAGGLAR_ROUNDS.items())
def test_stragglar_golden_rounds(world_size, rounds):
    join = make_schedule("all_reduce", "stragglar", world_size).phases[-1]
    assert join.stop - join.start == rounds


@pytest.mark.parametrize(
    ("world_size", "load", "rounds"), [(6, 2.5, 6), (12, 2.75, 8), (24, 2.875, 10), (7, 2.5, 6), (14, 2.75, 8)]
)
def test_rhd_at_no_power_of_two_has_the_load_of_elimination(world_size, load, rounds):
    """As StragglAR's simulation.py prices it at 6, 12 and 24 ranks; a fold of whole buffers would be 1 more."""
    schedule = check(make_schedule("all_reduce", "rhd", world_size)).schedule
    assert price(schedule, 1.0, CostModel(0.0, 1.0)).makespan_s == pytest.approx(load, rel=1e-12)
    assert price(schedule, 1.0, CostModel(1.0, 0.0)).makespan_s == rounds


# What the authors' own generator needs (re-measured), and the least that is possible, n - 2 + ceil(log2 n).
AUTHORS_ROUNDS = {6: 7, 10: 12, 12: 15, 24: 27, 30: 38, 36: 43, 48: 55}


@pytest.mark.parametrize(("world_size", "rounds"), AUTHORS_ROUNDS.items())
def test_stragglar_on_other_even_numbers_is_no_worse_than_its_authors(world_size, rounds):
    said = []
    schedule = check(make_schedule("all_reduce", "stragglar", world_size, late_rank=1, progress=said.append)).schedule
    join = schedule.phases[-1]
    assert join.stop - join.start == world_size - 2 + (world_size - 1).bit_length() <= rounds
    assert all(f"stragglar, {world_size} ranks" in line for line in said)
    # Partners: whoever receives a copy sends one, to the same rank; but not while chunks are few, nor the late rank.
    for index in range(join.start + 2 * (world_size - 1).bit_length(), join.stop):
        pairs = {transfer[:2] for transfer in schedule.round(index) if 1 not in transfer[:2]}
        assert all((dst, src) in pairs for src, dst in pairs), index


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_reduce", "rings", 4), "got 'rings' for all_reduce (did you mean 'ring'?), expected one of ring, rhd"),
        (("all_reduced", "ring", 4), "collective: got 'all_reduced' (did you mean 'all_reduce'?), expected one of"),
        (("all_reduce", "ring", 0), "world size: got 0, expected 1 to 2048"),
        (("all_reduce", "ring", 10**9), "world size: got 1000000000, expected 1 to 2048"),
        (("all_reduce", "native", 4), "native is the transport library's own, which has no schedule"),
        (("all_reduce", "late_chain", 8, 10**9), "chunks: got 1000000000, expected 1 to 1048576 with 8 ranks"),
        (("reduce_scatter", "rhd", 6), "rhd reduce_scatter: got 6 ranks, expected a power of two"),
        (("all_reduce", "stragglar", 7), "stragglar all_reduce: got 7 ranks, expected an even number"),
        (("all_reduce", "late_join", 1), "late_join all_reduce: got 1 ranks, expected 2 or more"),
        (("all_reduce", "ring", 4, 0), "chunks: got 0, expected 1 to 2097152 with 4 ranks"),
        (("all_reduce", "ring", 4, None, 1), "root: got 1, but all_reduce has none"),
        (("broadcast", "chain", 4, None, 4), "root: got 4, expected 0 to 3"),
        (("all_reduce", "ring", 4, None, None, 1), "late rank: got 1, but ring all_reduce expects none"),
        (("all_reduce", "late_chain", 4, None, None, -1), "late rank: got -1, expected 0 to 3"),
    ],
)
def test_bad_requests(arguments, message):
    with pytest.raises(InputError, match=re.escape(message)):
        make_schedule(*arguments)


def test_the_late_rank_may_not_take_part_early():
    schedule = make_schedule("all_reduce", "stragglar", 4, late_rank=2)
    with pytest.raises(ScheduleError, match="round 0, transfer 0->1 chunk 2: late rank 1 takes part before the join"):
        check(replace(schedule, late_rank=1))


@pytest.mark.parametrize("world_size", range(3, 9))
def test_several_late_ranks(world_size):
    """Any set of them, any number of chunks; the join's load is that of the docstring."""
    for size in range(2, min(world_size, 5)):
        for late in combinations(range(world_size), size):
            for chunks in (1, world_size, 13):
                schedule = check(make_schedule("all_reduce", "late_group", world_size, chunks, late_rank=late)).schedule
                assert schedule.late_rank == late, (size, late, chunks)
        early, slices = world_size - size, 6
        schedule = make_schedule("all_reduce", "late_group", world_size, slices * early, late_rank=late)
        load = price(schedule, 1.0, CostModel(0.0, 1.0), late_start(world_size, late, 100.0)).exposed_s
        assert load <= ((world_size - 1) * (slices + 1) + SLACK) / (early * slices) + 1e-9, size
        with pytest.raises(ScheduleError, match=f"late rank {late[0]} takes part before the join"):
            check(replace(make_schedule("all_reduce", "late_group", world_size, 13, late_rank=late[1]), late_rank=late))


@pytest.mark.parametrize(
    ("name", "late", "expected"),
    [
        ("late_join", (1, 2), "got (1, 2), but late_join all_reduce expects one"),
        ("late_group", (1, 1), "expected different ones, fewer than 4"),
        ("late_group", (0, 1, 2, 3), "expected different ones, fewer than 4"),
        ("late_group", (), "expected different ones, fewer than 4"),
        ("late_group", (1, 4), "late rank: got 4, expected 0 to 3"),
    ],
)
def test_late_ranks_that_cannot_be(name, late, expected):
    with pytest.raises(InputError, match=re.escape(expected)):
        make_schedule("all_reduce", name, 4, late_rank=late)


@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 8])
def test_a_hybrid_may_be_cut_anywhere(world_size):
    for joined in range(14):
        schedule = check(
            make_schedule("all_reduce", "late_hybrid", world_size, 13, late_rank=1, joined=joined)
        ).schedule
        assert schedule.late_rank == 1, joined


@pytest.mark.parametrize(
    ("name", "chunks", "joined", "expected"),
    [
        ("late_hybrid", 13, 14, "got 14 with num_chunks 13"),
        ("late_hybrid", None, 1, "got 1 with num_chunks None"),
        ("late_join", 13, 1, "late_join all_reduce cuts nothing"),
    ],
)
def test_cuts_that_cannot_be(name, chunks, joined, expected):
    with pytest.raises(InputError, match=expected):
        make_schedule("all_reduce", name, 4, chunks, joined=joined)
