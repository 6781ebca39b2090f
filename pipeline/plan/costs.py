"""A problem on a placement, as flat tables that the simulator and the planners index by action.

The id of a whole action is (kind * num_stages + stage) * microbatches + microbatch, kind being its index in KINDS. What
an action waits for from another stage comes into a *slot*, one for F and one for B or BW of each stage and microbatch;
what it waits for on its own rank is a matter of the order there. So each action waits for one slot and fills at most
one. Behind those comes one slot that is always full.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError
from lanterne.pipeline.plan.action import FUSED, KINDS, NEEDS
from lanterne.pipeline.plan.placement import Placement
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.plan.resources import StageMemory

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Costs:
    """Tables of a problem on a placement, made by `costs`.

    Attributes, all (num_kinds * num_stages * microbatches,) and indexed by action id:
        duration: float64, of the whole action; for a BW that of B plus W.
        latency, occupancy: float64, of the message that it sends; 0 on one rank.
        link: int64, the link of that message; -1 where it occupies none.
        alloc, free: float64, memory taken at its start and given back at its end (both at least 0).
        slot: int64, the slot it waits for; `always` for actions that need no other stage.
        target: int64, the slot that its message fills; -1 for none.
    and:
        always: the last slot, which is always full.
        stage_rank: (num_stages,) int64.
        num_links: links that messages can occupy; shared: whether ranks share one of them as senders.
        all_gather, reduce: (num_stages,) float64, data-parallel times; all 0 where there is none.
    """

    problem: Problem
    placement: Placement
    duration: Floats
    latency: Floats
    occupancy: Floats
    link: Ints
    alloc: Floats
    free: Floats
    slot: Ints
    target: Ints
    always: int
    stage_rank: Ints
    num_links: int
    shared: bool
    all_gather: Floats
    reduce: Floats

    @property
    def microbatches(self) -> int:
        return self.problem.microbatches

    @overload
    def id(self, kind: int, stage: int, microbatch: int) -> int: ...
    @overload
    def id(self, kind: int | Ints, stage: Ints, microbatch: int | Ints) -> Ints: ...
    def id(self, kind: int | Ints, stage: int | Ints, microbatch: int | Ints) -> int | Ints:
        """Return the id of an action; `kind` is an index in KINDS. Works on arrays too."""
        return (kind * self.placement.num_stages + stage) * self.problem.microbatches + microbatch


@lru_cache(maxsize=64)
def costs(problem: Problem, placement: Placement) -> Costs:
    """Return the Costs of `problem` on `placement`; those of the pairs used last are kept.

    Raises:
        InputError: the placement has another number of ranks than the problem has stages.
    """
    if placement.num_ranks != problem.stages:
        raise InputError(
            f"placement: got {placement.num_ranks} ranks, expected {problem.stages}, one per stage of the problem"
        )
    rank, share = np.array(placement.stage_to_rank), np.array(placement.shares(), float)
    duration = np.array([np.array(problem.durations[kind])[rank] / share for kind in KINDS])
    alloc, free = _memory(problem.limits, rank, share)
    slot, target, always = _slots(placement, problem.microbatches)
    latency, occupancy, link, sources = _messages(problem, placement)
    data_parallel = problem.data_parallel
    reduce, all_gather = data_parallel[1:] if data_parallel else ((0.0,) * problem.stages,) * 2

    def per_action(table: NDArray[Any]) -> NDArray[Any]:
        return np.repeat(table, problem.microbatches)

    lengths = np.ones(problem.microbatches) if problem.microbatch_lengths is None else problem.microbatch_lengths

    return Costs(
        problem,
        placement,
        np.multiply.outer(duration, lengths).reshape(-1),
        per_action(latency),
        per_action(occupancy),
        per_action(link),
        per_action(alloc),
        per_action(free),
        slot=slot,
        target=target,
        always=always,
        stage_rank=rank,
        num_links=len(sources),
        shared=any(len(ranks) > 1 for ranks in sources),
        reduce=np.array(reduce)[rank] / share,
        all_gather=np.array(all_gather)[rank] / share,
    )


def _memory(limits: StageMemory, rank: Ints, share: Floats) -> tuple[Floats, Floats]:
    """Return the memory that each kind takes and gives back, each (num_kinds, num_stages)."""
    change = {kind: np.array(deltas)[rank] / share for kind, deltas in zip("FBW", limits[:3], strict=True)}
    alloc = {kind: np.maximum(delta, 0.0) for kind, delta in change.items()}
    free = {kind: np.maximum(-delta, 0.0) for kind, delta in change.items()}
    for whole, pieces in FUSED.items():
        alloc[whole] = np.sum([alloc[kind] for kind in pieces], axis=0)
        free[whole] = np.sum([free[kind] for kind in pieces], axis=0)
    return np.array([alloc[kind] for kind in KINDS]), np.array([free[kind] for kind in KINDS])


def _remote_needs() -> Iterator[tuple[str, str, int]]:
    """Yield every need that crosses stages: (kind that waits, kind or fused kind that serves it, step to its stage)."""
    for kind, needs in NEEDS.items():
        for needed, step in needs:
            if step:
                for server in (needed, *(whole for whole, pieces in FUSED.items() if needed in pieces)):
                    yield kind, server, step


def _slots(placement: Placement, microbatches: int) -> tuple[Ints, Ints, int]:
    """Return (slot, target) per action id, and `always`."""
    stages = placement.num_stages
    always = 2 * stages * microbatches
    slot = np.full((len(KINDS), stages, microbatches), always)
    target = np.full_like(slot, -1)
    each = np.arange(microbatches)
    for kind, server, step in _remote_needs():
        half = 0 if kind == "F" else stages * microbatches
        for stage in range(stages):
            serving = placement.step(stage, step)
            if serving is not None:
                slots = half + stage * microbatches + each
                slot[KINDS.index(kind), stage] = slots
                target[KINDS.index(server), serving] = slots
    return slot.reshape(-1), target.reshape(-1), always


def _messages(problem: Problem, placement: Placement) -> tuple[Floats, Floats, Ints, list[set[int]]]:
    """Return latency, occupancy and link by (kind, stage) of the sender, and the source ranks of each link."""
    shape = len(KINDS), placement.num_stages
    latency, occupancy, link = np.zeros(shape), np.zeros(shape), np.full(shape, -1)
    groups = {pair: i for i, group in enumerate(problem.shared_links) for pair in group}
    numbers: dict[int | tuple[int, int], int] = {}
    sources: list[set[int]] = []
    for kind, server, step in _remote_needs():
        nbytes = problem.message_nbytes[0 if kind == "F" else 1]
        for stage in range(placement.num_stages):
            serving = placement.step(stage, step)
            if serving is None:
                continue
            pair = src, dst = placement.stage_to_rank[serving], placement.stage_to_rank[stage]
            at = KINDS.index(server), serving
            latency[at] = problem.latency(src, dst)
            occupancy[at] = problem.occupancy(src, dst, nbytes)
            if occupancy[at] > 0:
                number = numbers.setdefault(groups.get(pair, pair), len(numbers))
                if number == len(sources):
                    sources.append(set())
                sources[number].add(src)
                link[at] = number
    return latency, occupancy, link, sources
