import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lanterne.transport.board.arrival_bound import least_after
from lanterne.transport.board.late_policy import (
    ANY,
    FADING,
    LEAST_WINDOW,
    OVER_BOUND,
    Option,
    Policy,
    at_ports,
    corrected,
    cost_s,
    critical_delay_s,
    decide,
    duration_s,
    find_start,
    from_text,
    gaps_between,
    last_phase_s,
    likely,
    starts,
    to_text,
)

JOIN, CHAIN = Option("late_join/56", 0.87, 1.05), Option("late_chain/64", 1.02, 1.04)
POLICY = Policy(1.75, (JOIN, CHAIN))
HALF, MOST = Option("late_hybrid/56/28", 0.43, 1.43), Option("late_hybrid/56/42", 0.64, 1.25)
seconds = st.floats(0, 3)
names = st.sampled_from(["a/1", "b/2", "c/3"])
options = st.builds(Option, names, st.floats(0.1, 2), st.floats(0.5, 2), st.just(1), st.just(()))
several = st.lists(options, min_size=1, max_size=3, unique_by=lambda option: option.choice)
policies = st.builds(Policy, st.floats(0.5, 2), several.map(tuple))


@given(policies, st.lists(seconds, max_size=16), seconds)
def test_never_much_worse_than_knowing(policy, past_s, delay_s):
    """Whatever the past said: at most the window, which is at most the critical delay, above the better of the two."""
    window_s, choice = decide(policy, past_s)
    option = next(option for option in policy.options if option.choice == choice)
    known_s = min(delay_s + policy.normal_s, max(option.before_s, delay_s) + option.join_s)
    assume(option.before_s + option.join_s >= policy.normal_s)
    slack_s = max(critical_delay_s(policy, option), LEAST_WINDOW * policy.normal_s)
    assert cost_s(policy, option, window_s, delay_s) <= known_s + slack_s + 1e-9


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), ()),
        ((JOIN,), (JOIN,)),
        ((JOIN, CHAIN, HALF, MOST), (JOIN, CHAIN, MOST, HALF)),
        ((JOIN, CHAIN._replace(join_s=1.06)), (JOIN,)),
        ((JOIN, CHAIN._replace(join_s=1.06), HALF), (JOIN, HALF)),
        ((JOIN, HALF._replace(join_s=1.4)), (JOIN, HALF._replace(join_s=1.4))),
        ((JOIN._replace(late=2),), ()),
    ],
)
def test_what_is_made_before_it_is_needed(options, expected):
    assert likely(Policy(1.75, options), 0) == expected


@given(policies)
def test_what_calls_without_a_past_take_is_made_before(policy):
    policy = Policy(policy.normal_s, tuple(option._replace(late=1) for option in policy.options))
    assert decide(policy)[1] == likely(policy, 0)[0].choice


def weighed_cost_s(policy, option, window_s, past_s):
    return sum(FADING**age * cost_s(policy, option, window_s, d) for age, d in enumerate(reversed(past_s)))


@given(policies, st.lists(seconds, min_size=1, max_size=16))
def test_least_mean_cost_of_the_past(policy, past_s):
    """No worse, over the past as it fades, than any option's critical delay or least window."""
    window_s, choice = decide(policy, past_s)
    mine = next(weighed_cost_s(policy, o, window_s, past_s) for o in policy.options if o.choice == choice)
    for option in policy.options:
        for other_s in (critical_delay_s(policy, option), LEAST_WINDOW * policy.normal_s):
            assert mine <= weighed_cost_s(policy, option, other_s, past_s) + 1e-9, (option, other_s)


@pytest.mark.parametrize(
    ("past_s", "window_s", "choice"),
    [
        ([], 0.17, "late_join/56"),
        ([0.0] * 9, 0.17, "late_join/56"),
        ([0.9] * 5, 0.0175, "late_join/56"),
        ([1.1] * 5, 0.0175, "late_chain/64"),
        ([0.0, 1.1] * 5, 0.0175, "late_chain/64"),
        ([1.1] * 14 + [0.9], 0.0175, "late_join/56"),
    ],
)
def test_by_hand(past_s, window_s, choice):
    assert decide(POLICY, past_s) == (pytest.approx(window_s), choice)


@pytest.mark.parametrize(
    ("past_s", "choice"),
    [([0.0] * 9, "late_join/56"), ([0.1, 0.05] * 5, "late_hybrid/56/28"), ([0.1, 0.0], "late_join/56")],
)
def test_what_is_begun_beyond_all_that_was_seen(past_s, choice):
    """Join is best for who is late by much, of which jitter says nothing; then a start in vain should cost little."""
    policy = Policy(1.75, (JOIN, HALF))
    window_s, begun = decide(policy, past_s)
    assert begun == choice and window_s > max(past_s)


SPREAD = Policy(1.75, (Option("late_join/4", 0.8, 1.0), Option("any_arrival/64/4", 1.0, 1.0, ANY)))
GROUP = Policy(1.75, (JOIN, CHAIN, Option("late_group/60", 0.8, 1.25, 2), Option("late_group/60", 0.75, 1.5, 3)))


@pytest.mark.parametrize(
    ("gaps_s", "expected"),
    [
        (None, {1: "late_join/56"}),
        ((0.0, 0.0, 0.0), {1: "late_join/56"}),
        ((1.1, 0.001, 0.0), {1: "late_chain/64"}),
        ((0.001, 1.1, 0.0), {1: "late_join/56", 2: "late_group/60"}),
        ((0.3, 0.9, 0.0), {1: "late_join/56", 2: "late_group/60"}),
        ((1.1, 0.3, 0.0), {1: "late_chain/64"}),
        ((0.0, 0.001, 1.1), {1: "late_join/56", 3: "late_group/60"}),
    ],
)
def test_several_late_ranks_by_hand(gaps_s, expected):
    found = starts(GROUP, [gaps_s] * 3 if gaps_s else ())
    assert {late: start.option.choice for late, (start,) in found.items()} == expected
    assert all(start.option.late == late for late, (start,) in found.items())


groups = st.builds(
    Policy, st.floats(0.5, 2), st.lists(options, min_size=1, max_size=4).map(lambda found: tuple(
        option._replace(late=1 + i) for i, option in enumerate(found)
    ))
)  # fmt: skip


@given(groups, st.lists(st.tuples(seconds, seconds, seconds, seconds), min_size=1, max_size=8))
def test_a_start_without_several_was_never_worse_in_the_past(policy, past):
    found, single = starts(policy, past), starts(policy._replace(options=policy.options[:1]), past)
    total_s, waited_s = (
        sum(FADING**age * duration_s(policy, each, gaps_s, 4) for age, gaps_s in enumerate(reversed(past)))
        for each in (found, single)
    )
    assert found[1] == single[1]
    assert total_s <= waited_s + 1e-9


def test_starts_differ_by_who_is_late():
    """Of a rank that no option may be begun without, the board waits; several late ranks are any."""
    near, far = JOIN._replace(ranks=(0, 1)), CHAIN._replace(ranks=(2, 5))
    found = starts(Policy(1.75, (near, far, *GROUP.options[2:])), [(0.001, 1.1, 0.0)] * 3)
    alone = [starts(Policy(1.75, (option,)), [(0.001, 1.1, 0.0)] * 3)[1][0] for option in (near, far)]
    by_rank = [find_start(found, {rank}) for rank in range(6)]
    assert by_rank == [alone[0], alone[0], alone[1], None, None, alone[1]]
    both = find_start(found, {0, 3})
    assert both is not None and both.option.choice == "late_group/60" and find_start(found, range(4)) is None
    assert [likely(Policy(1.75, (near, far)), rank) for rank in (1, 2, 3)] == [(near,), (far,), ()]


def test_text():
    places = Policy(1.0, (JOIN._replace(ranks=(0, 12)), CHAIN))
    assert from_text(to_text(places)) == places
    assert from_text(to_text(POLICY)) == POLICY
    assert from_text(to_text(GROUP)) == GROUP
    assert from_text(to_text(Policy(0.5))) == Policy(0.5)
    assert from_text(to_text(SPREAD)) == SPREAD
    assert from_text(to_text(SPREAD._replace(port_of=(0, 0, 1, 1)))).port_of == (0, 0, 1, 1)


@pytest.mark.parametrize(
    "text",
    [
        *("", "1;a", "1;a 1 1", "-1", "nan", "1;a 1 inf 1", "1;a 1 1 99", "1" + ";a 1 1 1" * 17),
        *("1;a/64/4 1 1 0", "1;any_arrival/64/0 1 1 0", "1;any_arrival/64/x 1 1 0", "1;any_arrival/64/4 0 1 0"),
        *("1 0,x;a 1 1 1", "1 0 0", "1; 1 1 1", "1;any_arrival/64/4 1 1 1", "1;any_arrival/99999/4 1 1 0"),
    ],
)
def test_bad_texts(text):
    with pytest.raises(ValueError):
        from_text(text)


EVENLY = (0.2,) * 7


def test_ranks_that_arrive_spread_are_taken_in_where_past_calls_would_have_gained():
    """By hand: the bound of 8 ranks evenly over 1.4 is 1.14, and 1.03 of it less than to wait for all but the last."""
    found = starts(SPREAD, [EVENLY])
    assert {late for late, (start,) in found.items() if start.option.late == ANY} == {2, 3, 4, 5, 6}
    assert duration_s(SPREAD, found, EVENLY, 7) == pytest.approx(1.4 + OVER_BOUND * least_after(np.arange(8) * 0.2))
    # Where they arrive together, one is late, or what is past is not known, they are not.
    for past in ([(0.0,) * 7], [(1.5, *(0.0,) * 6)], []):
        assert all(start.option.late == 1 for (start,) in starts(SPREAD, past).values())


def test_what_calls_took_corrects_what_they_are_predicted_to_take():
    slow = corrected(SPREAD, {"": 1.25, "any_arrival": 2.0})
    assert slow.normal_s == SPREAD.normal_s
    assert [option.join_s for option in slow.options] == pytest.approx([1.0, 1.6])
    assert all(start.option.late == 1 for (start,) in starts(slow, [EVENLY]).values())
    # A disturbance of all calls, or an absurd one, does not.
    for factors in ({}, {"": 30.0}, {"": 30.0, "any_arrival": 30.0, "late_join": 30.0}):
        assert corrected(SPREAD, factors) == SPREAD
    assert [option.join_s for option in corrected(SPREAD, {"late_join": 99.0, "any_arrival": 1.5}).options] == [1.5]


def test_ranks_that_share_a_port_arrive_with_the_last_of_them():
    """Ranks of two hosts arrive by turns: to the ports all come in the last two gaps, so that little can be gained."""
    shared, pairs = SPREAD._replace(port_of=(0, 0, 1, 1, 2, 2, 3, 3)), dict(zip((0, 2, 4, 6), EVENLY, strict=False))
    by_pairs = {rank + more: at_s for rank, at_s in pairs.items() for more in (0, 1)}
    by_turns = {rank: 0.2 * place for place, rank in enumerate((0, 2, 4, 6, 1, 3, 5, 7))}
    assert at_ports(by_turns, shared.port_of) == pytest.approx([0.8, 1.0, 1.2, 1.4])
    assert at_ports(by_pairs, shared.port_of) == list(pairs.values())
    ports = [0.0, 0.2, 0.4, 0.6]
    assert last_phase_s(shared, shared.options[1], by_turns) == pytest.approx(OVER_BOUND * least_after(ports))
    past, at_its_ports = [EVENLY], [gaps_between(at_ports(by_turns, shared.port_of))]
    found = starts(shared, past, at_its_ports)
    spread_s = duration_s(shared, found, EVENLY, 7, at_its_ports[0])
    assert spread_s == pytest.approx(1.4 + OVER_BOUND * least_after(ports))
    assert spread_s > duration_s(shared, starts(shared, past), EVENLY, 7)


@pytest.mark.parametrize(
    ("number", "arrivals", "predicted_s"),
    [(None, [0, 0, 5], 1.75), (0, [0, 0, 0.3], 1.5), (0, [0, 0, 2], 1.0), (1, [0, 0, 1], OVER_BOUND)],
)
def test_the_last_phase_of_a_call(number, arrivals, predicted_s):
    option = None if number is None else SPREAD.options[number]
    assert last_phase_s(SPREAD, option, dict(enumerate(arrivals))) == pytest.approx(predicted_s)
