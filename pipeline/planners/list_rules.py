"""A compiled list scheduler for any placement, and the rules that `best` tries with it.

A rank that is free looks at the messages that have arrived for its stages, at its memory, and at arrivals ahead.
"""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numba import njit

from lanterne.pipeline.plan.costs import Floats, Ints
from lanterne.pipeline.plan.placement import Placement
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.annealing import orders_of, scratch
from lanterne.pipeline.planners.list_schedule import openings, reserves
from lanterne.pipeline.planners.words import Letters
from lanterne.pipeline.simulate.compiled import inner, loop_with
from lanterne.pipeline.simulate.event_loop import BY_RULE, FIRST_COME, NEVER, Decisions, Operations, Progress, Times

B_FIRST, ALTERNATE = range(2)
DEEP, SHALLOW, OLDEST = range(3)


class Rule(NamedTuple):
    """Rule by which a free rank chooses.

    Attributes:
        leads: (num_ranks,), the F begun less the B begun, on all stages, to aim at before the first B.
        limit: whether an F that brings a microbatch to its rank may not exceed the lead.
        prefer: B_FIRST; or ALTERNATE, F after a B and B after an F.
        gap: W fills a gap that is at least this share of it.
        patience: wait for the preferred kind if it arrives within this share of the other's duration.
        stage: which of the rank's stages goes first if an action of a kind has arrived for several: the DEEP one,
            farthest on the microbatch's way, the SHALLOW one, or that of the OLDEST microbatch.
        group: microbatches that go together. The oldest group that has arrived goes first. No F of a group starts
            before all F of the group before have, on each of the rank's stages. 0: each microbatch goes by itself.
    """

    leads: Ints
    limit: bool
    prefer: int
    gap: float
    patience: float
    stage: int
    group: int = 0


def rules(leads: Sequence[Ints], most: int, stages: Sequence[int] = (DEEP,), groups: Sequence[int] = ()) -> list[Rule]:
    """Return all combinations, the most promising first, at most `most` of them, and some for each of `groups`.

    Args:
        leads: lead vectors to try.
        stages: what to try for `stage`: one where ranks hold one stage each.
        groups: what to try for `group`.
    """
    shapes = product((True, False), (ALTERNATE, B_FIRST), (0.0, 1.0, 0.5), (0.0, 0.4))
    apart = [Rule(lead, *shape, stage) for shape in shapes for lead in leads for stage in stages][:most]
    together = product(groups, (ALTERNATE, B_FIRST), (0.0, 1.0))
    return [*(Rule(leads[0], False, prefer, gap, 0.0, SHALLOW, size) for size, prefer, gap in together), *apart]


class RankStages(NamedTuple):
    """Stages of each rank, as list_words needs them.

    Attributes:
        own: (num_ranks, most), the stages of each rank, -1 behind the last.
        enters: (num_stages,), 1 where a microbatch comes to the rank first, 0 on the rank's later stages of its route.
        reserve: (num_stages,), memory that an F leaves free, so that a microbatch which has begun can also end.
        length: stages of a route.
        opens: (num_stages,), when the parameters of a stage are there for its F.
    """

    own: Ints
    enters: Ints
    reserve: Floats
    length: int
    opens: Floats


def rank_stages(problem: Problem, placement: Placement, letters: Letters) -> RankStages:
    """Return the RankStages of `placement`."""
    held = [placement.stages_of(rank) for rank in range(placement.num_ranks)]
    own = np.full((placement.num_ranks, max(map(len, held))), -1, np.int64)
    enters = np.zeros(placement.num_stages, np.int64)
    for rank, stages in enumerate(held):
        own[rank, : len(stages)] = stages
        for stage in stages:
            enters[stage] = all(other >= stage or placement.route(other) != placement.route(stage) for other in stages)
    alloc = letters.alloc[: placement.num_stages], letters.alloc[placement.num_stages : 2 * placement.num_stages]
    reserve = np.array(reserves(placement, *(each.tolist() for each in alloc)))
    return RankStages(own, enters, reserve, placement.route_length, np.array(openings(problem, placement)))


class RuleState(NamedTuple):
    """State of _pick: the rule, and by lane the memory, the last kind and the work left.

    Attributes:
        instant: times that differ by less, by rounding, are one.
        most: (1,), what the words may take; -1 once they take longer.
        used: memory in use; last: the kind of the F or B before; work: how long the rank has still to work.
    """

    letters: Letters
    ranks: RankStages
    rule: Rule
    instant: float
    most: Floats
    used: Floats
    last: Ints
    work: Floats


@inner
def _pick(
    operations: Operations, times: Times, progress: Progress, state: RuleState, rank: int, now: float
) -> tuple[int, float]:
    """Choose for the event loop; see event_loop.Pick."""
    letters, work = state.letters, state.work
    if now + work[rank] > state.most[0]:
        state.most[0] = -1.0
        return -1, NEVER
    soon, used, last = now + state.instant, state.used[rank], state.last[rank]
    letter, until = _choose(letters, state.ranks, state.rule, rank, soon, progress.count, times.arrival, used, last)
    if letter < 0:
        return -1, until
    if letter < 2 * len(state.ranks.enters):
        state.last[rank] = letter // len(state.ranks.enters)
    state.used[rank] += letters.alloc[letter] - letters.free[letter]
    work[rank] -= operations.duration[letter]
    return letter, now


@inner
def _arrives(letters: Letters, ranks: RankStages, letter: int, count: Ints, arrival: Floats) -> float:
    """Return when what the next run of `letter` waits for from other stages is there; NEVER where that is not known."""
    source, k = letters.operations.source[letter], count[letter]
    if source >= 0 and count[source] <= k:
        return NEVER
    arrives = float(arrival[letters.operations.first[letter] + k]) if source >= 0 else 0.0
    return max(arrives, float(ranks.opens[letter])) if letter < len(ranks.opens) else arrives


@inner
def _choose(
    letters: Letters,
    ranks: RankStages,
    rule: Rule,
    rank: int,
    now: float,
    count: Ints,
    arrival: Floats,
    used: float,
    last: int,
) -> tuple[int, float]:
    """Return (letter, 0) to start, or (-1, when to look again; 1e300 if only a new message can change anything)."""
    num_stages = len(ranks.enters)
    room = letters.capacity[rank] - used
    forwards, backwards, weights, weight, oldest = 0, 0, 0, -1, 0
    for stage in ranks.own[rank]:
        if stage >= 0:
            done = count[2 * num_stages + stage]
            forwards += count[stage]
            backwards += count[num_stages + stage]
            weights += done
            if count[num_stages + stage] > done and (weight < 0 or done < oldest):
                weight, oldest = 2 * num_stages + stage, done
    lead = forwards - backwards
    if rule.prefer == ALTERNATE and backwards > 0:
        wants_forward = last == 1
    elif rule.prefer == B_FIRST and backwards > 0:
        wants_forward = False
    else:
        wants_forward = lead < rule.leads[rank]
    full = rule.limit and lead >= rule.leads[rank]
    # Of two calls with a kind that is known the compiler makes simpler code.
    if wants_forward:
        wanted, first, kept_out = _first(letters, ranks, rule, rank, 0, now, count, arrival, room, full)
    else:
        wanted, first, kept_out = _first(letters, ranks, rule, rank, 1, now, count, arrival, room, False)
    blocked = wants_forward and kept_out and first > now and lead < rule.leads[rank]
    if blocked and backwards > weights:
        return weight, 0.0
    if first <= now:
        return wanted, 0.0
    soonest = first
    rest = ranks.own[rank, 0] + (num_stages if wants_forward else 0)
    if first > now + rule.patience * letters.operations.duration[rest]:
        if wants_forward:
            other, second, _ = _first(letters, ranks, rule, rank, 1, now, count, arrival, room, False)
        else:
            other, second, _ = _first(letters, ranks, rule, rank, 0, now, count, arrival, room, full)
        if second <= now:
            return other, 0.0
        soonest = min(first, second)
    if weight >= 0 and soonest - now >= rule.gap * letters.operations.duration[weight]:
        return weight, 0.0
    return -1, soonest


@inner
def _first(
    letters: Letters,
    ranks: RankStages,
    rule: Rule,
    rank: int,
    kind: int,
    now: float,
    count: Ints,
    arrival: Floats,
    room: float,
    full: bool,
) -> tuple[int, float, bool]:
    """Return (letter of `kind` to start first, when it arrived, whether memory keeps one out that has arrived).

    None that enters its rank if that is `full`.

    The letter is one that has arrived, or -1; the time is then that of the next arrival, 1e300 where none is known.
    """
    num_stages = len(ranks.enters)
    found, best, soonest, kept_out = -1, 0, 1e300, 0
    for stage in ranks.own[rank]:
        letter = kind * num_stages + stage
        if stage < 0 or count[letter] >= letters.total[letter]:
            continue
        k = count[letter]
        if k >= count[stage] if kind == 1 else full and ranks.enters[stage]:
            continue
        if kind == 0 and rule.group > 0 and _is_early(ranks, rank, stage, count, int(k - k % rule.group)):
            continue
        need = letters.alloc[letter]
        if kind == 0:
            need += ranks.reserve[stage]
            for other in ranks.own[rank]:
                # A microbatch of another route that has none here must still find its place.
                begun = other >= 0 and count[other] > count[2 * num_stages + other]
                apart = other >= 0 and other // ranks.length != stage // ranks.length
                if apart and not begun and count[other] < letters.total[other]:
                    need += letters.alloc[other]
        arrives = _arrives(letters, ranks, letter, count, arrival)
        if room < need:
            kept_out += int(arrives <= now)
            continue
        if arrives > now:
            soonest = min(soonest, arrives)
            continue
        # Forwards are deep far down the route, backwards near its beginning.
        place = stage % ranks.length
        deep = place if kind == 0 else -place
        key = deep if rule.stage == 0 else -deep if rule.stage == 1 else -k * 2 * num_stages + deep
        if rule.group > 0:
            key -= k // rule.group * 2 * num_stages
        if found < 0 or key > best:
            found, best = letter, key
    return found, (now if found >= 0 else soonest), kept_out > 0


@inner
def _is_early(ranks: RankStages, rank: int, stage: int, count: Ints, before: int) -> bool:
    """Return whether a stage of the rank on the route of `stage` has begun fewer F than `before`."""
    for other in ranks.own[rank]:
        if other >= 0 and other // ranks.length == stage // ranks.length and count[other] < before:
            return True
    return False


_run = loop_with(_pick)


@njit(cache=True)
def list_words(letters: Letters, ranks: RankStages, rule: Rule, words: Ints, most: float = 1e300) -> bool:
    """Fill `words`, (num_lanes, word_length), by `rule`; return whether that was possible, and they may end by `most`.

    Cost: O(A num_ranks) for A actions, some 0.1 us each at 8 ranks.
    """
    given, (num_ranks, lanes) = letters.operations, (len(ranks.own), len(letters.capacity))
    operations = Operations(
        given.lane,
        given.source,
        given.target,
        given.first,
        given.duration,
        given.link,
        given.occupancy,
        given.latency,
        np.zeros(len(given.gather)),
    )
    work = np.zeros(lanes)
    for letter in range(len(letters.total)):
        work[given.lane[letter]] += letters.total[letter] * given.duration[letter]
    times, progress = scratch(letters)
    kind = np.full(lanes, FIRST_COME)
    kind[:num_ranks] = BY_RULE
    decisions = Decisions(kind, np.zeros(lanes), np.zeros(words.size))
    instant, used, last = 1e-9 * given.duration.max(), np.zeros(lanes), np.zeros(lanes, np.int64)
    state = RuleState(letters, ranks, rule, instant, np.full(1, most), used, last, work)
    ran = _run(operations, orders_of(words), times, progress, decisions, state)
    return ran == letters.total.sum()
