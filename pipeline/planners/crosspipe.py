"""CrossPipe's greedy planner: it knows latency, bandwidth and memory, and fills small gaps with pieces of W."""

from dataclasses import replace

from lanterne.pipeline.plan.placement import PlacementLike, as_placement, wave
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.list_schedule import ListState, list_schedule
from lanterne.pipeline.planners.words import B, F, W


def crosspipe(problem: Problem, *, placement: PlacementLike = None, weight_parts: int = 4) -> Plan:
    """Return CrossPipe's greedy plan: CrossUDSub on the unidirectional placement, the greedy CrossWave on a wave.

    Whenever a rank is free it takes, of what is there and fits in memory: before its first B, an F; then F and B in
    turn, and a piece of W where memory keeps an F out; when its F are done, B before W. A piece of W fills any gap.
    Among equals the oldest microbatch goes first. Messages take their link as they become ready.

    Args:
        placement: unidirectional by default.
        weight_parts: pieces of each W.

    Cost: O(A log A) for A actions and pieces.
    Paper: Chen et al. 2025 (CrossPipe), section 4.2, algorithm 1; differs: F and B stay whole, since the paper's rule
        never puts anything between their pieces.
    """
    placement = as_placement(placement, problem.stages)
    last = [W] * placement.num_ranks

    def oldest(state: ListState, rank: int, kind: int) -> tuple[int | None, bool]:
        """Return (the stage with the oldest microbatch of `kind` that could start, whether memory keeps one out)."""
        there = [stage for stage in state.stages[rank] if state.available(kind, stage)]
        fitting = [stage for stage in there if state.fits(kind, stage)]
        first = min(fitting, key=lambda stage: (state.started(kind, stage), -stage), default=None)
        return first, len(fitting) < len(there)

    def choose(state: ListState, rank: int) -> tuple[int, int] | None:
        forward, no_room_for_forward = oldest(state, rank, F)
        backward, _ = oldest(state, rank, B)
        weight, _ = oldest(state, rank, W)
        wants_forward = last[rank] == B
        if wants_forward and forward is None and no_room_for_forward and weight is not None:
            return W, weight
        for kind, stage in sorted(((F, forward), (B, backward)), key=lambda option: (option[0] == F) != wants_forward):
            if stage is not None:
                last[rank] = kind
                return kind, stage
        return None if weight is None else (W, weight)

    ranks = list_schedule(problem, placement, choose, weight_parts)
    return Plan.from_actions(ranks, placement, problem.microbatches, "crosspipe")


def crosspipe_wave(problem: Problem, *, weight_parts: int = 4) -> Plan:
    """Return CrossPipe's greedy CrossWave plan: two half-size stages per rank, there and back. See crosspipe."""
    plan = crosspipe(problem, placement=wave(problem.stages), weight_parts=weight_parts)
    return replace(plan, scheduler="crosspipe_wave")
