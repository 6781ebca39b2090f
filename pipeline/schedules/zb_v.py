"""ZB-V: two half-size stages per rank in a V, first and last on one rank; no bubbles in the memory of 1F1B."""

from itertools import count

from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.placement import wave
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem


def zb_v(problem: Problem) -> Plan:
    """The ZB-V plan of `problem`.

    It is made for at least 2 p microbatches, and those beyond the problem's are left out again.

    Cost (no delays, equal stages, F = B = W, m >= 2 p): makespan m (F + B + W) + (p - 1) F / 2, no bubbles once a rank
    has begun; peak activations p on every rank.
    Paper: Qi et al. 2023 (zero bubble, arXiv 2401.10241), section 6.
    """
    p, m = problem.stages, problem.microbatches
    ranks = [[action for action in _rank(rank, p, max(m, 2 * p)) if action.microbatch < m] for rank in range(p)]
    return Plan.from_actions(ranks, wave(p), m, "zb_v")


def _rank(rank: int, p: int, m: int) -> list[Action]:
    """One rank's actions for m >= 2 p microbatches; words name the leg, 0 down and 1 up the V, each with its count."""
    stage = rank, 2 * p - 1 - rank
    following = {(kind, leg): count() for kind in "FBW" for leg in (0, 1)}
    actions: list[Action] = []

    def add(*words: tuple[str, int]) -> None:
        for kind, leg in words:
            actions.append(Action(kind, stage[leg], next(following[kind, leg])))

    warmup = 2 * (p - rank) - 1
    # Warm-up: down the V until the first microbatch comes back, then both legs, then one-B-one-W as the returns come.
    add(*[("F", 0)] * warmup)
    for _ in range(rank):
        add(("F", 1), ("F", 0))
    for _ in range(p - rank):
        add(("F", 1), ("B", 1), ("W", 1))
    # Steady: a whole microbatch down, a whole one up.
    forwards = warmup + rank
    for i in range(m - p):
        if forwards + i < m:
            add(("F", 0))
        add(("B", 0), ("W", 0), ("F", 1), ("B", 1), ("W", 1))
    # Cool-down: the B that others wait for first.
    ups = m - (p - rank) - (m - p)
    for _ in range(ups):
        add(("B", 0), ("B", 1))
    for _ in range(p - rank):
        add(("B", 0), ("W", 0))
    add(*[("W", 1)] * ups, *[("W", 0)] * ups)
    return actions
