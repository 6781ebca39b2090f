"""ADAPTRA's planner: how many forwards each stage runs first so that slow links are absorbed, and all else from there.

Paper: Wu et al. 2025 (ADAPTRA), section 4 and appendix. The printed algorithms were repaired: an action's result is
there after its duration and the link's delay; only what is there can be picked; the last stage's B follows its own F;
the counts that SelectOp lowers are shared state; warm-up counts stay within 1 and the microbatches, and never rise
along the pipeline. Differs: event-driven instead of in time steps, and with a memory limit where the problem has one
(without, memory grows to all microbatches): there it is the best of three such plans and of ZB-H1's.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from lanterne.errors import InputError
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.list_schedule import ListState, list_schedule
from lanterne.pipeline.planners.schedulers import fitting
from lanterne.pipeline.planners.words import B, F, W
from lanterne.pipeline.simulate.simulate import simulate


def initial_warmups(problem: Problem) -> tuple[int, ...]:
    """Return the warm-up forwards per stage while no delay is known: as many as fit on the first, then even slack.

    Paper: ADAPTRA, algorithm 1; differs: clipped, see clip_warmups.
    """
    most = max_inflight(problem, 0)
    even, extra = divmod(most - 1, max(problem.stages - 1, 1))
    warmups = [most]
    for stage in range(1, problem.stages):
        warmups.append(warmups[-1] - even - (stage <= extra))
    return clip_warmups(warmups, problem)


def adapted_warmups(problem: Problem, *, printed: bool = False) -> tuple[int, ...]:
    """Return the warm-up forwards per stage that absorb the problem's link delays.

    From the last stage backwards, each slack is the least that equation 1 asks for, and at least 2.

    Args:
        printed: clip each slack by N - 2S too, with N microbatches and S stages, which goes wrong for few microbatches.

    Paper: ADAPTRA, algorithm 2; differs: clipped by the microbatches and the memory limit from the first stage on.
    """
    most = problem.microbatches - 2 * problem.stages if printed else problem.microbatches
    warmups = [1]
    busy = _steady_times(problem)
    for stage in reversed(range(problem.stages - 1)):
        slack = math.ceil((busy[stage] + round_trip(problem, stage)) / busy[stage + 1] * (1 - 1e-12))
        warmups.append(warmups[-1] + min(max(slack, 2), most))
    return clip_warmups(reversed(warmups), problem)


def _steady_times(problem: Problem) -> list[float]:
    """Return per stage the time of one F and one B."""
    return [
        forward + backward for forward, backward in zip(problem.durations["F"], problem.durations["B"], strict=True)
    ]


def clip_warmups(warmups: Iterable[int], problem: Problem) -> tuple[int, ...]:
    """Return `warmups` made feasible: from 1 to the microbatches and the memory limit, never rising with the stage."""
    clipped, most = [], problem.microbatches
    for stage, count in enumerate(warmups):
        most = max(1, min(count, most, max_inflight(problem, stage)))
        clipped.append(most)
    return tuple(clipped)


def max_inflight(problem: Problem, stage: int) -> int:
    """Return how many activations `stage` can hold and still run a B, at most one per microbatch."""
    limits = problem.limits
    forward, room = limits.forward[stage], limits.capacity[stage] - max(limits.backward_input[stage], 0.0)
    return problem.microbatches if forward * problem.microbatches <= room else max(int(room / forward * (1 + 1e-9)), 1)


def round_trip(problem: Problem, link: int) -> float:
    """Return the delay of an activation from stage `link` to the next plus that of a gradient back: 2c in the paper."""
    ways = ((link, link + 1), (link + 1, link))
    return sum(
        problem.latency(*way) + problem.occupancy(*way, nbytes)
        for way, nbytes in zip(ways, problem.message_nbytes, strict=True)
    )


def tolerances(problem: Problem, warmups: Sequence[int]) -> tuple[float, ...]:
    """Return per link the delay that a plan with these warm-up counts absorbs without cascading bubbles.

    (stages - 1,) in the problem's unit; negative where even no delay is too much. Where every F and B takes t it
    is (slack - 1) t.
    Paper: ADAPTRA, equation 1 and theorem 1.
    """
    busy = _steady_times(problem)
    slack = [before - after for before, after in pairwise(warmups)]
    return tuple((slack[link] * busy[link + 1] - busy[link]) / 2 for link in range(problem.stages - 1))


def warmups_of(plan: Plan) -> tuple[int, ...]:
    """Return per stage the forwards that `plan` runs before the first backward."""
    counts = []
    for stage, actions in enumerate(plan.ranks):
        kinds = [action.kind for action in actions if action.stage == stage]
        counts.append(next((index for index, kind in enumerate(kinds) if kind != "F"), len(kinds)))
    return tuple(counts)


def adaptra(problem: Problem, *, warmups: Sequence[int] | str | None = None, printed: bool = False) -> Plan:
    """Return ADAPTRA's plan for `problem`, one stage per rank.

    Within a memory limit it is never behind ZB-H1's plan where that fits.

    Args:
        warmups: forwards that each stage runs first: a count for each, "initial" for initial_warmups or "adapted" for
            adapted_warmups. By default adapted_warmups; within a memory limit the better of both, or ZB-H1's plan
            where that is better.
        printed: choose as algorithm 3 is printed, B before F before W, and clip `adapted_warmups` as printed. Else F
            and B may alternate within a memory limit, which keeps the slack between stages.

    Raises:
        InputError: warm-up counts of the wrong number, or that no schedule has; another word.

    Cost: O(A log A) for A actions; within a memory limit four times as much.
    Paper: ADAPTRA, algorithms 1 to 4; differs: within a memory limit F and B may alternate, since a B that goes first
        puts off the W that makes room for the next F.
    """
    counts = _counts(problem, warmups, printed=printed)
    made = _scheduled(problem, counts, alternates=False, keeps=False)
    if printed or all(max_inflight(problem, stage) == problem.microbatches for stage in range(problem.stages)):
        return made
    even = initial_warmups(problem) if warmups is None else counts
    plans = [
        _scheduled(problem, even, alternates=True, keeps=False),
        _scheduled(problem, counts, alternates=True, keeps=True),
        made,
    ]
    if warmups is None:
        static = fitting(["zb_h1"], problem, unidirectional(problem.stages))
        plans += [replace(checked.plan, scheduler="adaptra") for checked in static]
    return min(plans, key=lambda plan: simulate(plan, problem).makespan)


def _counts(problem: Problem, warmups: Sequence[int] | str | None, *, printed: bool) -> tuple[int, ...]:
    """Return the warm-up counts that `warmups` asks for."""
    if warmups is None or warmups == "adapted":
        return adapted_warmups(problem, printed=printed)
    if warmups == "initial":
        return initial_warmups(problem)
    counts = warmups if isinstance(warmups, str) else tuple(warmups)
    if isinstance(counts, str) or len(counts) != problem.stages or counts != clip_warmups(counts, problem):
        got = repr(counts) if isinstance(counts, str) else list(counts)
        raise InputError(
            f"warm-up counts: got {got}, expected initial, adapted or {problem.stages} that do not rise, each from 1 "
            f"to {problem.microbatches} and within the memory limit"
        )
    return counts


def _scheduled(problem: Problem, warmups: Sequence[int], *, alternates: bool, keeps: bool) -> Plan:
    """Return the plan that begins with these warm-up forwards.

    Args:
        alternates: after the warm-up F goes first after a B, W where memory keeps that F out, B first after an F; else
            B first always.
        keeps: no stage holds more microbatches between F and B than its warm-up forwards.
    """
    last = [F] * problem.stages

    def choose(state: ListState, rank: int) -> tuple[int, int] | None:
        ahead = state.started(F, rank) - state.started(B, rank)
        if state.started(F, rank) < warmups[rank]:
            order: Sequence[int] = (F,)
        elif not alternates or last[rank] == F:
            order = (B, F, W)
        else:
            order = (F, B, W)
        if keeps and ahead >= warmups[rank]:
            order = [kind for kind in order if kind != F]
        for kind in order:
            if not state.available(kind, rank):
                continue
            if state.fits(kind, rank):
                last[rank] = last[rank] if kind == W else kind
                return kind, rank
            if order[0] == kind == F and len(order) > 1 and state.available(W, rank):
                return W, rank
        return None

    placement = unidirectional(problem.stages)
    return Plan.from_actions(list_schedule(problem, placement, choose), placement, problem.microbatches, "adaptra")
