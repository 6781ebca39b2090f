"""ADAPTRA's planner: how many forwards each stage runs first so that slow links are absorbed, and all else from there.

Paper: Wu et al. 2025 (ADAPTRA), section 4 and appendix. The printed algorithms were repaired: an action's result is
there after its duration and the link's delay; only what is there can be picked; the last stage's B follows its own F;
the counts that SelectOp lowers are shared state; warm-up counts stay within 1 and the microbatches, and never rise
along the pipeline. Differs: event-driven instead of in time steps, and with a memory limit where the problem has one
(without, memory grows to all microbatches).
"""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

from lanterne.errors import InputError
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.list_schedule import ListState, list_schedule
from lanterne.pipeline.planners.words import B, F, W


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


def adapted_warmups(problem: Problem) -> tuple[int, ...]:
    """Return the warm-up forwards per stage that absorb the problem's link delays.

    From the last stage backwards, each slack is the least that equation 1 asks for, and at least 2.
    Paper: ADAPTRA, algorithm 2; differs: clipped by the microbatches and the memory limit from the first stage on,
    not by N - 2S, which goes wrong for few microbatches.
    """
    warmups = [1]
    busy = _steady_times(problem)
    for stage in reversed(range(problem.stages - 1)):
        slack = math.ceil((busy[stage] + round_trip(problem, stage)) / busy[stage + 1] * (1 - 1e-12))
        warmups.append(warmups[-1] + max(slack, 2))
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


def adaptra(problem: Problem, *, warmups: Sequence[int] | None = None) -> Plan:
    """Return ADAPTRA's plan for `problem`, one stage per rank.

    Args:
        warmups: forwards that each stage runs first; adapted_warmups of the problem by default.

    Raises:
        InputError: warm-up counts of the wrong number, or that no schedule has.

    Cost: O(A log A) for A actions.
    Paper: ADAPTRA, algorithms 3 and 4.
    """
    warmups = adapted_warmups(problem) if warmups is None else tuple(warmups)
    if len(warmups) != problem.stages or warmups != clip_warmups(warmups, problem):
        raise InputError(
            f"warm-up counts: got {list(warmups)}, expected {problem.stages} that do not rise, each from 1 to "
            f"{problem.microbatches} and within the memory limit"
        )

    def choose(state: ListState, rank: int) -> tuple[int, int] | None:
        warm = state.started(F, rank) < warmups[rank]
        for kind in (F,) if warm else (B, F, W):
            if state.available(kind, rank) and state.fits(kind, rank):
                return kind, rank
        return None

    placement = unidirectional(problem.stages)
    return Plan.from_actions(list_schedule(problem, placement, choose), placement, problem.microbatches, "adaptra")
