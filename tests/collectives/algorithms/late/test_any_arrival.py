"""any_arrival: schedules are right and near the bound; search finds nothing below the bound; the matching is best."""

import threading
from dataclasses import replace
from functools import cache
from itertools import chain, islice, permutations, product
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.speed.any_arrivals import after_last, draw
from lanterne.collectives.algorithms.catalogue import find_algorithm, make_schedule
from lanterne.collectives.algorithms.late import any_arrival, any_arrival_rounds
from lanterne.collectives.algorithms.late.any_arrival import ArrivalRounds, any_arrival_all_reduce
from lanterne.collectives.late.any_arrivals import bound_s, schedule_for_arrivals
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.cost import CostModel, price
from lanterne.collectives.schedule.formats.export_json import from_json, to_json
from lanterne.collectives.schedule.ir import REDUCE
from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology
from lanterne.errors import InputError, ScheduleError
from lanterne.transport.board.arrival_bound import least_after

# Without latency, in which a buffer of 1 byte takes 1 s.
UNIT = CostModel(0.0, 1.0, 0.0)


@pytest.mark.parametrize(("ranks", "median"), [(2, 1.01), (3, 1.05), (4, 1.05), (8, 1.06), (16, 1.10)])
def test_drawn_arrivals_end_near_the_bound(ranks, median):
    rng = np.random.default_rng(ranks)
    ratios = []
    for _ in range(20):
        arrivals = draw(rng, ranks)
        ratios.append(after_last(arrivals) / least_after(arrivals))
    assert min(ratios) > 0.97 and max(ratios) <= 1.20
    assert np.median(ratios) <= median


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=9), st.integers(1, 20), st.integers(0, 2))
def test_any_join_rounds_make_a_schedule_that_is_right(joins, chunks, lag):
    schedule = any_arrival_all_reduce(len(joins), chunks, ArrivalRounds(tuple(joins), lag))
    assert check(schedule).scratch_chunks <= 1
    # Rounds in which nothing could happen are left out, so a rank may join sooner than it says, never later.
    assert all(first <= joins[rank] for rank, first in schedule.joins)
    assert from_json(to_json(schedule)) == schedule


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=3), min_size=1, max_size=5),
    st.integers(1, 20),
    st.integers(0, 2),
)
def test_any_join_rounds_of_ranks_that_share_nodes_make_a_schedule_that_is_right(joins, chunks, lag):
    ranks = iter(range(sum(map(len, joins))))
    nodes = tuple(tuple(islice(ranks, len(its))) for its in joins)
    arrivals = ArrivalRounds(tuple(chain.from_iterable(joins)), lag)
    size = len(arrivals.joins)
    schedule = make_schedule("all_reduce", "hier_any_arrival", size, chunks, nodes=nodes, arrivals=arrivals)
    assert check(schedule).scratch_chunks <= max(map(len, joins))
    assert from_json(to_json(schedule)) == schedule


def test_over_nodes_it_ends_near_the_bound_of_their_ports():
    """Eight nodes of two ranks whose ports carry 1 byte in 1 s, and what is inside in no time."""
    nodes = tuple((rank, rank + 1) for rank in range(0, 16, 2))
    inside = LinkClass(INSIDE, CostModel(0.0, 1e-6), tuple((rank,) for rank in range(16)))
    topology = Topology(nodes, (inside, LinkClass(NIC, CostModel(0.0, 1.0), nodes)))
    arrivals = [0.1 * node + 0.01 * rank for node in range(8) for rank in range(2)]
    schedule = schedule_for_arrivals(find_algorithm("all_reduce", "hier_any_arrival"), arrivals, 1, topology, 128)
    least_s = bound_s(arrivals, 1, topology)
    assert least_s == pytest.approx(least_after([0.1 * node for node in range(8)]))
    assert least_s < price(schedule, 1, topology, arrivals).exposed_s < 1.10 * least_s


def test_a_wait_of_a_thousand_buffers_is_not_planned_round_by_round():
    schedule = any_arrival_all_reduce(4, 16, ArrivalRounds((0, 0, 16000, 32000)))
    assert schedule.num_rounds < 100 and [first > 0 for _, first in schedule.joins] == [False, False, True, True]


def test_who_arrives_is_all_that_matters():
    """The same rounds by other ranks: roles are the order of arrival."""
    one = any_arrival_all_reduce(4, 16, ArrivalRounds((0, 0, 9, 20)))
    other = any_arrival_all_reduce(4, 16, ArrivalRounds((20, 9, 0, 0)))
    rank_of = np.array([2, 3, 1, 0])
    np.testing.assert_array_equal(rank_of[one.src], other.src)
    np.testing.assert_array_equal(rank_of[one.dst], other.dst)


def test_a_transfer_before_its_rank_joins_is_refused():
    schedule = any_arrival_all_reduce(4, 16, ArrivalRounds((0, 0, 9, 20)))
    for rank, first in schedule.joins[2:]:
        later = replace(schedule, joins=((rank, first + 2),))
        with pytest.raises(ScheduleError, match=f"rank {rank} takes part before round {first + 2}, in which it joins"):
            check(later)
    with pytest.raises(ScheduleError, match="rank 9 joining in round 0"):
        check(replace(schedule, joins=((9, 0),)))


@pytest.mark.parametrize("joins", [(0, 0), (0, 0, -1)])
def test_joins_that_do_not_fit_are_refused(joins):
    with pytest.raises(InputError, match="expected 3 rounds, none negative"):
        any_arrival_all_reduce(3, 4, ArrivalRounds(joins))


def test_it_is_planned_alike_without_the_compiler(monkeypatch):
    planned = any_arrival_all_reduce(5, 7, ArrivalRounds((0, 3, 0, 9, 9), 1))
    for name in ("make_round", "match", "scatter"):
        monkeypatch.setattr(any_arrival_rounds, name, getattr(any_arrival_rounds, name).py_func)
    assert any_arrival_all_reduce(5, 7, ArrivalRounds((0, 3, 0, 9, 9), 1)) == planned


def test_by_the_cost_model_it_ends_sooner_than_a_ring():
    arrivals = [0, 0.2, 0.3, 0.5, 0.6, 0.7, 0.9, 1.1]
    schedule = schedule_for_arrivals(find_algorithm("all_reduce", "any_arrival"), arrivals, 1, UNIT, 64)
    assert least_after(arrivals) < price(schedule, 1, UNIT, arrivals).exposed_s < 0.85 * 1.75


# -- the bound


def fewest_rounds(joins, chunks):
    """Return the fewest rounds of any all-reduce of three ranks by searching all states, breadth first."""
    full = 0b111
    # By chunk, in any order, what each rank has of it.
    front, rounds = {((1, 2, 4),) * chunks}, 0
    while ((full,) * 3,) * chunks not in front:
        here = [rank for rank in range(3) if joins[rank] <= rounds]
        front = set().union(*(following(each, tuple(here), chunks) for each in front))
        rounds += 1
    return rounds


@cache
def following(state, here, chunks):
    """Return the states after one round: each rank sends one chunk at most, and receives one at most."""
    partial = {(state, frozenset())}
    for target in here:
        grown = set()
        for (after, senders), source, chunk in product(partial, here, range(chunks)):
            if source == target or source in senders:
                continue
            mine, theirs = state[chunk][target], state[chunk][source]
            for held in {theirs, theirs if mine & theirs else mine | theirs}:
                column = (*after[chunk][:target], held, *after[chunk][target + 1 :])
                grown.add(((*after[:chunk], column, *after[chunk + 1 :]), senders | {source}))
        partial |= grown
    return {tuple(sorted(after)) for after, _ in partial}


@pytest.mark.parametrize(("joins", "chunks"), [((0, 0, 0), 1), ((0, 0, 1), 1), ((0, 0, 2), 2)])
def test_no_schedule_of_three_ranks_beats_the_bound(joins, chunks):
    after = fewest_rounds(joins, chunks) - max(joins)
    assert ceil(chunks * least_after([first / chunks for first in joins]) - 1e-9) <= after
    planned = any_arrival_all_reduce(3, chunks, ArrivalRounds(joins)).num_rounds - max(joins)
    assert after <= planned <= after + 1


# -- the matching


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 99), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_the_matching_is_of_the_greatest_weight(rows):
    weights = np.array(rows, np.int64)
    n = len(weights)
    columns = any_arrival_rounds.match(weights)
    assert sorted(columns) == list(range(n))
    best = max(weights[range(n), list(order)].sum() for order in permutations(range(n)))
    assert weights[range(n), columns].sum() == best


def test_a_merge_that_makes_the_result_goes_both_ways():
    last = any_arrival_all_reduce(2, 1).round(0)
    assert [(each.src, each.dst, each.op) for each in sorted(last)] == [(0, 1, REDUCE), (1, 0, REDUCE)]


def test_imports_of_the_loading_thread_take_a_part_of_a_core(monkeypatch):
    """Those of other threads go on at once."""
    slept_s, used_s = [], iter([1.0, 1.5, 2.5])
    monkeypatch.setattr(any_arrival.time, "sleep", slept_s.append)
    monkeypatch.setattr(any_arrival.time, "thread_time", lambda: next(used_s))
    pace = any_arrival._Pace()
    assert pace.find_spec("numba", None) is None
    (other := threading.Thread(target=pace.find_spec, args=("numpy", None))).start()
    other.join()
    part = any_arrival.IMPORT_PART
    assert slept_s == [pytest.approx(0.5 * (1 - part) / part)]
