"""late_join: at the lower bound for every number of ranks and chunks, and each of its steps on its own."""

import random

import numpy as np
import pytest

from lanterne.collectives.algorithms.late import join as late_join
from lanterne.collectives.algorithms.late.join_siteswap import arrange, find_siteswap, level_profiles
from lanterne.collectives.algorithms.late.join_tail import find_tail
from lanterne.collectives.schedule.check_schedule import check

# Around powers of two the search is tightest; the others are a spread.
SOME = [4, 5, 6, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 47, 63, 64, 65, 100, 127, 128, 129]


def rounds_of_join(schedule):
    join = schedule.phases[-1]
    assert join.name == "join"
    return join.stop - join.start


@pytest.mark.parametrize("world_size", SOME)
def test_siteswap(world_size):
    early, q = world_size - 1, (world_size - 1).bit_length()
    for levels in level_profiles(world_size):
        holders = np.cumsum([1, *levels])
        assert holders[-1] == early, levels
        assert (holders[1:] <= 2 * holders[:-1]).all(), levels
        age = arrange(levels, world_size, random.Random(1))
        assert age[0] == 0 and age.sum() == early * (q - 1), levels
        assert np.bincount(age)[1:].tolist() == levels, levels
        assert sorted((np.arange(early) - age) % early) == list(range(early)), levels


@pytest.mark.parametrize("world_size", SOME)
def test_sources_hold_what_they_send(world_size):
    found = next(filter(None, (find_siteswap(world_size, seed) for seed in range(100))))
    early = world_size - 1
    for role in range(1, early):
        age, source = found.age_of_role[role], found.source[role]
        assert found.age[(source + age) % early] < age, role
    assert sorted(found.source) == list(range(early))


@pytest.mark.parametrize("world_size", [4, 5, 8, 13, 32])
def test_a_tail_serves_every_role_once_a_round(world_size):
    _, tail = late_join.join_template(world_size)
    assert len(tail) == (world_size - 1).bit_length() - 1
    for sources, destinations, _ in tail:
        assert len(set(sources.tolist())) == len(sources), (sources, destinations)
        assert sorted(destinations) == list(range(world_size - 1)), (sources, destinations)


def test_a_hopeless_tail_is_none():
    # Everybody but the owner receives at the very end: too much is missing for the rounds that are left.
    assert find_tail(np.array([0, 7, 7, 7, 7, 7, 7]), 0) is None


@pytest.mark.parametrize("world_size", [2, 3, 4, 5, 8, 13, 16])
@pytest.mark.parametrize("num_chunks", [1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 31, 100])
def test_lower_bound_for_every_late_rank(world_size, num_chunks):
    for late_rank in range(world_size):
        schedule = check(late_join.late_join_all_reduce(world_size, late_rank, num_chunks)).schedule
        assert rounds_of_join(schedule) == num_chunks - 1 + (world_size - 1).bit_length(), late_rank


@pytest.mark.slow
@pytest.mark.parametrize(
    "world_sizes", [range(2, 129), range(129, 257), range(257, 513, 5)], ids=["to-128", "to-256", "each-5th-to-512"]
)
def test_every_world_size(world_sizes):
    """With some late rank; the chunk counts go from a fraction of the early ranks to more."""
    for world_size in world_sizes:
        early = world_size - 1
        num_chunks = early + 2 if world_size % 16 == 1 or world_size < 64 else max(1, early // (4 + world_size % 7))
        schedule = check(late_join.late_join_all_reduce(world_size, world_size * 2 // 3, num_chunks)).schedule
        assert not schedule.note, world_size
        assert rounds_of_join(schedule) == num_chunks - 1 + (world_size - 1).bit_length(), world_size
    late_join.join_template.cache_clear()


def test_where_the_search_fails_a_chain_takes_its_place(monkeypatch):
    monkeypatch.setattr(late_join, "_TRIES", 0)
    late_join.join_template.cache_clear()
    schedule = check(late_join.late_join_all_reduce(17, 2, 5)).schedule
    late_join.join_template.cache_clear()
    assert schedule.note == "no late_join template found for 17 ranks: a chain takes its place"
    assert rounds_of_join(schedule) == 5 + 17 - 1


@pytest.mark.parametrize("world_size", sorted(late_join.FOUND))
def test_what_is_kept_of_few_ranks_is_what_the_search_finds(world_size):
    (kept, rounds), (found, searched) = late_join.join_template(world_size), late_join.search_template(world_size)
    for part in ("age", "age_of_role", "source"):
        assert np.array_equal(getattr(kept, part), getattr(found, part)), part
    assert np.array_equal(np.array(rounds), np.array(searched))


def test_few_ranks_need_no_search(monkeypatch):
    late_join.join_template.cache_clear()
    monkeypatch.setattr(late_join, "search_template", lambda _: pytest.fail("it searched"))
    assert not any(late_join.late_join_all_reduce(size, 1).note for size in late_join.FOUND)
