"""Interleaved 1F1B: smaller stages, visited around the loop, shorten the ramp at the price of more messages."""

from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.placement import loop
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem


def interleaved_1f1b(problem: Problem, *, stages_per_rank: int = 2) -> Plan:
    """The interleaved 1F1B plan of `problem` with v = `stages_per_rank` stages on each rank, backward fused (BW).

    Microbatches go in groups of p through all of a rank's stages. It is made for a multiple of p microbatches, and
    those beyond the problem's are left out again: that takes nothing from the others but waiting.

    Cost (no delays, equal stages, p divides m): makespan (m + (p - 1) / v)(F + BW), F and BW of a whole rank.
    Paper: Narayanan et al. 2021, section 2.2.
    """
    p, m = problem.stages, problem.microbatches
    total = -(-m // p) * p * stages_per_rank
    ranks = []
    for rank in range(p):
        forward = [_nth("F", k, rank, p, stages_per_rank) for k in range(total)]
        backward = [_nth("BW", k, rank, p, stages_per_rank) for k in range(total)]
        warmup = min(2 * (p - 1 - rank) + (stages_per_rank - 1) * p, total)
        steady = [action for pair in zip(forward[warmup:], backward, strict=False) for action in pair]
        actions = [*forward[:warmup], *steady, *backward[total - warmup :]]
        ranks.append([action for action in actions if action.microbatch < m])
    return Plan.from_actions(ranks, loop(p, stages_per_rank), m, "interleaved_1f1b")


def _nth(kind: str, k: int, rank: int, p: int, stages_per_rank: int) -> Action:
    """The k-th F or BW of `rank`: p microbatches on one stage, then on the next; BW from the last to the first."""
    group, within = divmod(k, p * stages_per_rank)
    turn = within // p
    if kind == "BW":
        turn = stages_per_rank - 1 - turn
    return Action(kind, turn * p + rank, group * p + within % p)
