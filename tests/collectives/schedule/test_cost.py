"""The alpha-beta-gamma model against the closed forms of the literature, and what it must do whatever the numbers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.collectives.algorithms.catalogue import ALGORITHMS, best_num_chunks, find_algorithm, make_schedule
from lanterne.collectives.schedule.cost import CostModel, late_start, price
from lanterne.errors import InputError

ALPHA, BETA, GAMMA, SIZE = 3.0, 0.5, 0.25, 1000.0


def total(name, p, collective="all_reduce", **options):
    return price(make_schedule(collective, name, p, **options), SIZE, CostModel(ALPHA, BETA)).makespan_s


@pytest.mark.parametrize("p", [2, 3, 5, 8, 16])
def test_closed_forms_of_the_paper(p):
    q = (p - 1).bit_length()
    assert total("ring", p) == pytest.approx(2 * (p - 1) * ALPHA + 2 * (p - 1) / p * SIZE * BETA)
    assert total("allpairs", p) == pytest.approx(2 * ALPHA + 2 * (p - 1) / p * SIZE * BETA)
    assert total("late_broadcast", p) == pytest.approx(
        (2 * p + q - 4) * ALPHA + (q + 2 * (p - 2) / (p - 1)) * SIZE * BETA
    )
    assert total("binomial", p, "broadcast") == pytest.approx(q * (ALPHA + SIZE * BETA))
    if p in (4, 8, 16):
        assert total("rhd", p) == pytest.approx(2 * q * ALPHA + 2 * (p - 1) / p * SIZE * BETA)
        assert total("stragglar", p) == pytest.approx((2 * (p - 2) + q) * (ALPHA + SIZE * BETA / (p - 1)))


@pytest.mark.parametrize(("p", "critical_delay_ms"), [(8, 0.940), (256, 0.093)])
def test_critical_delay_of_the_paper(p, critical_delay_ms):
    model = CostModel(3e-6, 1 / 450e9)
    stragglar, ring = (
        price(make_schedule("all_reduce", name, p), 2**30, model).makespan_s for name in ("stragglar", "ring")
    )
    assert round(1e3 * (stragglar - ring), 3) == critical_delay_ms


def test_adding_costs_gamma_per_byte_on_the_rank_that_adds():
    model = CostModel(ALPHA, BETA, GAMMA)
    schedule = make_schedule("all_reduce", "recursive_doubling", 2)
    assert price(schedule, SIZE, model).makespan_s == pytest.approx(ALPHA + SIZE * (BETA + GAMMA))
    reduce = price(make_schedule("reduce", "binomial", 2), SIZE, model)
    assert reduce.finish_s == pytest.approx([ALPHA + SIZE * (BETA + GAMMA), ALPHA + SIZE * BETA])


def test_a_late_rank_delays_only_those_that_wait_for_it():
    schedule = make_schedule("broadcast", "chain", 4, num_chunks=1)
    cost = price(schedule, SIZE, CostModel(ALPHA, BETA), late_start(4, 2, 10_000.0))
    hop = ALPHA + SIZE * BETA
    assert cost.finish_s == pytest.approx([hop, 10_000 + hop, 10_000 + 2 * hop, 10_000 + 2 * hop])
    assert cost.exposed_s == pytest.approx(2 * hop)


def test_work_without_the_late_rank_hides_behind_its_delay():
    schedule = make_schedule("all_reduce", "late_join", 8, num_chunks=14, late_rank=3)
    exposed = [
        price(schedule, SIZE, CostModel(ALPHA, BETA), late_start(8, 3, delay)).exposed_s for delay in (0.0, 100.0, 1e6)
    ]
    assert exposed == sorted(exposed, reverse=True)
    assert exposed[-1] == pytest.approx((14 - 1 + 3) * (ALPHA + SIZE * BETA / 14))


def test_pieces_hold_from_their_size_up():
    model = CostModel(1.0, 1.0, pieces=((100, 5.0, 0.5),))
    assert model.message_s(np.array([0, 99.0, 100.0, 200.0])).tolist() == [1.0, 100.0, 55.0, 105.0]
    assert price(make_schedule("broadcast", "binomial", 2), 200, model).makespan_s == 105.0


def test_serial_messages_pay_alpha_each():
    model = CostModel(ALPHA, BETA, serial_messages=True)
    assert price(make_schedule("all_reduce", "allpairs", 5), SIZE, model).makespan_s == pytest.approx(
        8 * ALPHA + 1.6 * SIZE * BETA
    )


@given(
    line=st.sampled_from(list(ALGORITHMS.values())),
    p=st.sampled_from([2, 4, 8]),
    delays=st.lists(st.floats(0, 1e4), min_size=8, max_size=8),
    more=st.floats(0, 1e3),
    who=st.integers(0, 7),
)
@settings(max_examples=200, deadline=None)
def test_a_later_start_never_ends_earlier(line, p, delays, more, who):
    schedule = make_schedule(line.collective, line.name, p)
    start = np.array(delays[:p])
    later = start.copy()
    later[who % p] += more
    model = CostModel(ALPHA, BETA, GAMMA)
    before, after = price(schedule, SIZE, model, start), price(schedule, SIZE, model, later)
    assert (after.finish_s >= before.finish_s).all()
    assert after.makespan_s <= before.makespan_s + more + 1e-9


@pytest.mark.parametrize(("collective", "name"), [key for key, line in ALGORITHMS.items() if line.law])
@pytest.mark.parametrize(
    "nbytes", [2**20, *(pytest.param(nbytes, marks=pytest.mark.slow) for nbytes in (2**14, 2**27))]
)
def test_best_num_chunks_is_within_a_few_percent_of_the_best_by_trial(collective, name, nbytes):
    model = CostModel(3e-6, 1 / 450e9)

    def cost(num_chunks):
        schedule = make_schedule(collective, name, 8, num_chunks)
        delay = 1.0 if schedule.late_rank is not None else 0.0
        return price(schedule, nbytes, model, late_start(8, schedule.late_rank, delay)).exposed_s

    count = best_num_chunks(find_algorithm(collective, name), 8, nbytes, model)
    assert cost(count) <= 1.08 * min(cost(m) for m in [*range(1, 24), *range(24, 60, 4), *range(60, 400, 20)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CostModel(-1.0, 1.0), "expected finite numbers, none negative"),
        (lambda: CostModel(1.0, float("nan")), "expected finite numbers, none negative"),
        (lambda: CostModel(1.0, 1.0, pieces=((5, 1, 1), (5, 1, 1))), "expected ascending sizes"),
        (
            lambda: price(make_schedule("all_reduce", "ring", 4), 1, CostModel(1, 1), [0, 0, 0]),
            "expected 4 finite numbers",
        ),
        (
            lambda: price(make_schedule("all_reduce", "ring", 2), 1, CostModel(1, 1), [0, -1]),
            "expected 2 finite numbers",
        ),
    ],
)
def test_bad_numbers(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_best_num_chunks_where_alpha_jumps():
    """Pieces with a dear start-up from 1 MiB on: the count must leave them, whatever the closed form says there."""
    pieces = ((64, 5e-4, 7.6e-8), (32768, 3e-4, 4.3e-8), (262144, 0.0, 4.45e-8), (1048576, 9.6e-3, 3.9e-8))
    model, nbytes = CostModel(5e-4, 0.0, pieces=pieces), 16 << 20
    line = find_algorithm("all_reduce", "late_chain")

    def time_s(m):
        return (m + 3) * float(model.message_s(nbytes / m))

    count = best_num_chunks(line, 4, nbytes, model, 64 << 10)
    assert time_s(count) <= 1.05 * min(map(time_s, range(1, 257)))
    assert count > 30
