"""Proof that a plan does all of a problem's work, can run to its end, and fits in memory.

No deadlock, even where a send returns only once its receive is posted: a plan without a cycle has a total order, and
ranks that post every send and every receive in one total order always find the other side there, the first unfinished
transfer of that order being posted on both sides.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import ScheduleError
from lanterne.pipeline.plan.action import FUSED, KINDS, NEEDS, Action, dependencies
from lanterne.pipeline.plan.costs import Costs, Floats, Ints, costs
from lanterne.pipeline.plan.plan import PART, PARTS, Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.program import memory_changes, program_of, run_program

# Actions shown on each side of the one that is wrong, and ranks.
SHOWN, RANKS_SHOWN = 4, 3


@dataclass(frozen=True, eq=False)
class CheckedPlan:
    """A plan proved for `problem`; `peak_memory` is (num_ranks,) in the unit of the capacity."""

    plan: Plan
    problem: Problem
    peak_memory: tuple[float, ...]


def check(plan: Plan, problem: Problem, *, memory: bool = True) -> CheckedPlan:
    """Prove `plan` for `problem`.

    Args:
        memory: False to let it exceed the memory capacity.

    Raises:
        ScheduleError: an action is unknown, missing, double, on the wrong rank or before what it needs; ranks wait for
            each other in a cycle; or memory does not suffice. The message shows the plan around the place.
        InputError: the plan is for another number of ranks than the problem.

    Cost: some 20 ms for 64 ranks x 256 microbatches.
    """
    table = costs(problem, plan.placement)
    if plan.microbatches != problem.microbatches:
        raise ScheduleError(
            f"plan: got {plan.microbatches} microbatches, expected the problem's {problem.microbatches}"
        )
    _check_places(plan)
    first, last = _check_parts(plan)
    _check_complete(plan, last)
    _check_local_order(plan, first, last)
    _check_no_deadlock(plan, table)
    levels = memory_levels(plan, table)
    peaks = tuple(float(levels[start:stop].max(initial=0.0)) for start, stop in pairwise(plan.offsets.tolist()))
    if memory:
        _check_memory(plan, problem, levels, peaks)
    return CheckedPlan(plan, problem, peaks)


def _fail(plan: Plan, what: str, *indices: int) -> NoReturn:
    """Raise a ScheduleError with the plan's grid around the columns `indices`, which are marked."""
    ranks = plan.rank_of[list(indices)].tolist()
    position = int(indices[0]) - int(plan.offsets[ranks[0]])
    raise ScheduleError(f"{what}\n{grid(plan, ranks, position, set(map(int, indices)))}")


def grid(plan: Plan, ranks: Sequence[int], position: int, marked: Collection[int] = ()) -> str:
    """Return the actions of `ranks` and their neighbours around `position` as text, `marked` columns between > and <.

    A rank with a marked action is shown around that one.
    """
    lines = []
    for rank, words in enumerate(plan.ranks):
        if all(abs(rank - other) > RANKS_SHOWN for other in ranks):
            continue
        own = [column - int(plan.offsets[rank]) for column in sorted(marked) if plan.rank_of[column] == rank]
        centre = own[0] if own else position
        first, stop = max(centre - SHOWN, 0), centre + SHOWN + 1
        cells = [f">{word}<" if i in own else str(word) for i, word in enumerate(words[:stop])][first:]
        row = " ".join(f"{cell:>7}" for cell in cells)
        lines.append(f"  rank {rank}: {'... ' if first else ''}{row}{' ...' if len(words) > stop else ''}")
    return "\n".join(lines)


def _first(mask: NDArray[np.bool_]) -> int | None:
    """Return the index of the first True, or None."""
    found = int(np.argmax(mask)) if len(mask) else 0
    return found if len(mask) and mask[found] else None


def _action(plan: Plan, index: int) -> Action:
    kind, *numbers = plan.columns[:, index].tolist()
    return Action(KINDS[kind], *numbers)


def _check_places(plan: Plan) -> None:
    placement = plan.placement
    _, stage, microbatch, part, parts = plan.columns
    for bad, expected in (
        (stage >= placement.num_stages, f"stages 0 to {placement.num_stages - 1}"),
        (microbatch >= plan.microbatches, f"microbatches 0 to {plan.microbatches - 1}"),
        ((part < 1) | (part > parts), "parts 1 to the number of parts"),
    ):
        if (i := _first(bad)) is not None:
            _fail(plan, f"rank {plan.rank_of[i]}: got {_action(plan, i)}, expected {expected}", i)
    holder = np.array(placement.stage_to_rank)[stage]
    if (i := _first(holder != plan.rank_of)) is not None:
        _fail(
            plan,
            f"rank {plan.rank_of[i]}: got {_action(plan, i)}, expected it on rank {holder[i]}, "
            f"which holds stage {stage[i]}",
            i,
        )
    if (i := _first(microbatch % placement.num_routes != stage // placement.route_length)) is not None:
        _fail(
            plan,
            f"rank {plan.rank_of[i]}: got {_action(plan, i)}, but microbatch {microbatch[i]} does not pass "
            f"stage {stage[i]}",
            i,
        )


def _check_parts(plan: Plan) -> tuple[Ints, Ints]:
    """Check that each action is there once, its parts ascending; return first and last part's column by id, or -1."""
    ids, part, parts = plan.ids, plan.columns[PART], plan.columns[PARTS]
    by_id = np.argsort(ids, kind="stable")
    ordered = ids[by_id]
    begins = np.flatnonzero(np.diff(ordered, prepend=-1))
    count = np.diff(begins, append=len(ordered))
    nth = np.arange(len(ordered)) - np.repeat(begins, count) + 1
    wanted = np.repeat(parts[by_id[begins]], count)
    if (k := _first((part[by_id] != nth) | (parts[by_id] != wanted))) is not None:
        i = int(by_id[k])
        whole = _action(plan, i)._replace(part=1, parts=1)
        got = f"got {_action(plan, i)} as number {nth[k]} of {whole}"
        expected = "once" if wanted[k] == 1 else f"the parts 1 to {wanted[k]} in this order"
        _fail(plan, f"rank {plan.rank_of[i]}: {got}, expected {whole} {expected}", i, int(by_id[k - nth[k] + 1]))
    if (k := _first(count != wanted[begins])) is not None:
        i = int(by_id[begins[k] + count[k] - 1])
        _fail(
            plan,
            f"rank {plan.rank_of[i]}: {_action(plan, i)} is the last of its parts, expected all {wanted[begins[k]]}",
            i,
        )
    size = len(KINDS) * plan.placement.num_stages * plan.microbatches
    first, last = np.full(size, -1), np.full(size, -1)
    first[ordered[begins]] = by_id[begins]
    last[ordered[begins]] = by_id[begins + count - 1]
    return first, last


def _check_complete(plan: Plan, last: Ints) -> None:
    """Check that there is an F, and either BW or all that it fuses, for each stage and microbatch."""
    stages, microbatches, placement = plan.placement.num_stages, plan.microbatches, plan.placement
    there = (last >= 0).reshape(len(KINDS), stages, microbatches)
    routes = np.arange(microbatches) % placement.num_routes == (np.arange(stages) // placement.route_length)[:, None]
    for kind in KINDS:
        if kind in FUSED:
            continue
        whole = next((name for name, pieces in FUSED.items() if kind in pieces), None)
        has = there[KINDS.index(kind)]
        fused = there[KINDS.index(whole)] if whole else np.zeros_like(has)
        missing, double = routes & ~has & ~fused, has & fused
        if missing.any():
            stage, microbatch = (int(i) for i in np.argwhere(missing)[0])
            rank = placement.stage_to_rank[stage]
            got = f"got no {Action(kind, stage, microbatch)}" + (
                f" and no {Action(whole, stage, microbatch)}" if whole else ""
            )
            raise ScheduleError(f"rank {rank}: {got}, expected it once\n{grid(plan, [rank], 0)}")
        if double.any():
            stage, microbatch = (int(i) for i in np.argwhere(double)[0])
            i, j = (last[(KINDS.index(name) * stages + stage) * microbatches + microbatch] for name in (kind, whole))
            _fail(
                plan,
                f"rank {plan.rank_of[i]}: got both {_action(plan, i)} and {_action(plan, j)}, expected one of them",
                i,
                j,
            )


def _check_local_order(plan: Plan, first: Ints, last: Ints) -> None:
    """Check that each action's needs on its own stage precede it on the rank."""
    stages, microbatches = plan.placement.num_stages, plan.microbatches
    first, last = (table.reshape(len(KINDS), stages, microbatches) for table in (first, last))
    for kind, needs in NEEDS.items():
        for needed, step in needs:
            if step:
                continue
            needs_it, given = first[KINDS.index(kind)], last[KINDS.index(needed)]
            bad = (needs_it >= 0) & (given > needs_it)
            if bad.any():
                stage, microbatch = (int(i) for i in np.argwhere(bad)[0])
                i, j = needs_it[stage, microbatch], given[stage, microbatch]
                _fail(
                    plan,
                    f"rank {plan.rank_of[i]}: got {_action(plan, i)} before {_action(plan, j)}, which it needs",
                    i,
                    j,
                )


def _check_no_deadlock(plan: Plan, table: Costs) -> None:
    left = run_program(program_of(plan, table)).left
    if left.any():
        _fail_with_cycle(plan, {int(rank): int(plan.offsets[rank + 1] - left[rank]) for rank in np.flatnonzero(left)})


def _fail_with_cycle(plan: Plan, stuck: dict[int, int]) -> NoReturn:
    """Raise with the cycle among `stuck`: rank -> the column that it waits at for an action of another rank's rest."""
    waits: dict[int, tuple[int, str]] = {}
    rank = next(iter(stuck))
    while rank not in waits:
        action = _action(plan, stuck[rank])
        needed = next(other for other in dependencies(action, plan.placement) if other.stage != action.stage)
        holder = plan.placement.stage_to_rank[needed.stage]
        whole = (needed._replace(kind=kind) for kind, pieces in FUSED.items() if needed.kind in pieces)
        needed = next((action for action in whole if action in plan.ranks[holder]), needed)
        waits[rank] = (holder, f"rank {rank} waits at {action} for {needed}")
        rank = holder
    cycle: list[int] = []
    at = rank
    while not cycle or at != rank:
        cycle.append(at)
        at = waits[at][0]
    text = ", ".join(waits[member][1] for member in cycle)
    _fail(plan, f"deadlock: {text}", *(stuck[member] for member in cycle))


def memory_levels(plan: Plan, table: Costs) -> Floats:
    """Return (num_actions,) float64: memory in use on its rank while each column runs."""
    alloc, free = memory_changes(plan, table)
    levels = np.cumsum(alloc) - np.cumsum(free) + free
    # An iteration leaves nothing behind, so the running sum is zero where a rank's columns begin, but for rounding.
    return np.round(levels, 9)


def _check_memory(plan: Plan, problem: Problem, levels: Floats, peaks: tuple[float, ...]) -> None:
    for rank, (peak, capacity) in enumerate(zip(peaks, problem.limits.capacity, strict=True)):
        if peak > capacity * (1 + 1e-9):
            start = int(plan.offsets[rank])
            i = start + int(np.argmax(levels[start : int(plan.offsets[rank + 1])] > capacity * (1 + 1e-9)))
            _fail(
                plan,
                f"memory: rank {rank} needs {peak:g}, over its capacity of {capacity:g} first at {_action(plan, i)}",
                i,
            )
