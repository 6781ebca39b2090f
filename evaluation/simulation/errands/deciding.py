"""Errands of what a board decides by: windows and late algorithms, beside a plain account of what calls then take."""

import random
from collections.abc import Mapping, Sequence
from itertools import product

from evaluation.simulation.errands.errand import Errand
from lanterne.transport.board import late_policy
from lanterne.transport.board.late_policy import (
    FADING,
    JITTER_CALLS,
    LEAST_SAVING,
    LEAST_WINDOW,
    MAX_LATE,
    Option,
    Policy,
    Start,
)

# Of draws: seconds are multiples of this, so that equal sums are equal.
GRAIN_S = 1 / 1024


def takes_s(policy: Policy, starts_of: Mapping[int, Start], gaps_s: Sequence[float], absent: int) -> float:
    """Seconds that a call takes from when `absent` ranks are missing, step by step, if it begins by `starts_of`.

    Args:
        gaps_s: before the last rank comes, before the last but one, and so on; none of those that come at once.
    """
    now_s = 0.0
    while absent:
        gap_s = gaps_s[absent - 1] if absent <= len(gaps_s) else 0.0
        start = starts_of.get(absent)
        if start is not None and gap_s > start.window_s:
            begun_s = now_s + start.window_s + start.option.before_s
            come_s = now_s + sum(gaps_s[:absent])
            return max(begun_s, come_s) + start.option.join_s
        now_s += gap_s
        absent -= 1
    return now_s + policy.normal_s


def _draw_s(rng: random.Random, most_s: float = 1.0) -> float:
    return rng.randint(0, round(most_s / GRAIN_S)) * GRAIN_S


def _draw_policy(rng: random.Random, late: Sequence[int] = (1,), ranks: Sequence[tuple[int, ...]] = ((),)) -> Policy:
    options = [
        Option(f"option {index}", _draw_s(rng), _draw_s(rng), rng.choice(late), rng.choice(ranks))
        for index in range(rng.randint(1, 4))
    ]
    return Policy(GRAIN_S + _draw_s(rng), tuple(options))


def windows(errand: Errand) -> None:
    """No option, begun at once or where waiting stops to pay, would have served the past calls better than the chosen.

    Of those that had served them alike it is the first, but where ranks are hardly ever punctual: there it is what
    costs least in vain. Of its windows that had it is the longest, but where most come later than it pays to wait.
    """
    rng = errand.rng
    policy = _draw_policy(rng)
    scale_s = rng.choice((GRAIN_S, 0.03, 0.3, 3.0))
    past = [_draw_s(rng, scale_s) for _ in range(rng.randint(0, 16))]
    window_s, choice = late_policy.decide(policy, past)
    by_choice = {option.choice: order for order, option in enumerate(policy.options)}
    least_s = LEAST_WINDOW * policy.normal_s
    critical_s = [max(least_s, each.before_s + each.join_s - policy.normal_s) for each in policy.options]
    if not past:
        errand.expect("the window without a past", (window_s, choice), (critical_s[0], policy.options[0].choice))
        return
    weights = [FADING**age for age in range(len(past))][::-1]

    def took_s(order: int, waits_s: float) -> list[float]:
        return [takes_s(policy, {1: Start(waits_s, policy.options[order])}, (delay_s,), 1) for delay_s in past]

    def total_s(each: Sequence[float]) -> float:
        return sum(weight * seconds for weight, seconds in zip(weights, each, strict=True))

    order, middle_s = by_choice[choice], sorted(past)[len(past) // 2]
    chosen_s = took_s(order, window_s)
    is_jittery = len(past) >= JITTER_CALLS and middle_s > least_s
    vain_s = [takes_s(policy, {1: Start(0.0, each)}, (critical_s[0],), 1) for each in policy.options]
    for other, waits_s in product(range(len(policy.options)), (None, least_s)):
        other_window_s = critical_s[other] if waits_s is None else waits_s
        other_s = took_s(other, other_window_s)
        if total_s(other_s) < total_s(chosen_s) * (1 - 1e-9):
            other_text = f"{other} after {other_window_s:g} s"
            errand.problems.append(f"{choice} after {window_s:g} s had cost more than {other_text}")
        if other_s == chosen_s:
            is_worse = (vain_s[other], other) < (vain_s[order], order) if is_jittery else other < order
            if other == order:
                is_worse = other_window_s < window_s if middle_s > critical_s[order] else other_window_s > window_s
            if is_worse:
                errand.problems.append(f"{choice} after {window_s:g} s, expected {other} after {other_window_s:g} s")


def durations(errand: Errand) -> None:
    """A call takes as long as the board reckons that it does; and a start without several ranks saves time."""
    rng = errand.rng
    policy = _draw_policy(rng, late=(1, 2, 3, MAX_LATE))
    found: dict[int, Start] = {}
    for option in policy.options:
        found.setdefault(option.late, Start(_draw_s(rng), option))
    gaps_s = [_draw_s(rng) for _ in range(rng.randint(0, MAX_LATE))]
    begun = {late: (start,) for late, start in found.items()}
    for absent in range(MAX_LATE + 1):
        expected_s = takes_s(policy, found, gaps_s, absent)
        got_s = late_policy.duration_s(policy, begun, gaps_s, absent)
        errand.expect(f"s of a call that {absent} are missing from", round(got_s, 9), round(expected_s, 9))
    past = [[_draw_s(rng) for _ in range(MAX_LATE)] for _ in range(rng.randint(1, 8))]
    chosen = {late: each[0] for late, each in late_policy.starts(policy, past).items()}
    weighed = [(FADING**age, gaps) for age, gaps in enumerate(reversed(past))]
    for late in [late for late in chosen if late > 1]:
        before = {other: start for other, start in chosen.items() if other < late}
        with_it, without = (
            sum(weight * takes_s(policy, each, gaps, late) for weight, gaps in weighed)
            for each in ({**before, late: chosen[late]}, before)
        )
        if with_it > (1 - LEAST_SAVING) * without:
            errand.problems.append(f"a start without {late} ranks had taken {with_it:g} s, {without:g} s without it")


def prepared(errand: Errand) -> None:
    """What is made ahead for a late rank is what calls need first, and only what fits that rank."""
    rng = errand.rng
    policy = _draw_policy(rng, late=(1, 1, 2), ranks=((), (0, 1), (2,)))
    for rank in range(4):
        ahead = late_policy.likely(policy, rank)
        fitting = [each for each in policy.options if each.late == 1 and (not each.ranks or rank in each.ranks)]
        errand.expect(f"what is made ahead for rank {rank} first", ahead[:1], tuple(fitting[:1]))
        errand.expect("what is made ahead in vain", [each for each in ahead if each not in fitting], [])
        errand.expect("whether little is made ahead", len(ahead) <= 4, True)
        for delay_s in [max((each.before_s for each in fitting), default=0.0) / part for part in (1, 2, 4)]:
            took = [takes_s(policy, {1: Start(0.0, each)}, (delay_s,), 1) for each in fitting]
            here = [takes_s(policy, {1: Start(0.0, each)}, (delay_s,), 1) for each in ahead]
            errand.expect("s of the best that was made ahead", min(here, default=0.0), min(took, default=0.0))
