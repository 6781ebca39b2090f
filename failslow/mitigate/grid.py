"""Which device serves which place of the parallel grid: slow links out of the way, stragglers together.

A grid is a tuple of stages, each a tuple of devices, one per replica: `grid[stage][replica]`. Devices of one stage
form a data-parallel group (a ring, in replica order); devices of one replica form a pipeline.

Paper: Wu et al. (GREYHOUND), section 5.2, strategy S3, figures 11 and 12; differs: the paper's two rules give
starting points, and a search by a cost function decides.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lanterne.errors import InputError

# grid[stage][replica], devices
Grid: TypeAlias = tuple[tuple[int, ...], ...]
Pair: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class GridPlacement:
    """A grid, its cost in seconds, and the exchanges of devices that lead to it, in order."""

    grid: Grid
    cost_s: float
    swaps: tuple[Pair, ...]


def stages_needed(stragglers: int, ranks_per_stage: int) -> int:
    """The fewest stages that hold so many stragglers."""
    return -(-stragglers // ranks_per_stage)


def consolidate(grid: Grid, stragglers: Iterable[int]) -> Grid:
    """`grid` with `stragglers` in as few stages as can hold them, interior ones first, by few exchanges."""
    slow = {device for stage in grid for device in stage} & set(stragglers)
    needed = stages_needed(len(slow), len(grid[0]))
    held = [sum(device in slow for device in stage) for stage in grid]

    def preference(stage: int) -> tuple[bool, int, int]:
        return (stage in (0, len(grid) - 1), -held[stage], stage)

    chosen = sorted(range(len(grid)), key=preference)[:needed]
    stages = [list(stage) for stage in grid]
    room = [(s, i) for s in chosen for i, device in enumerate(stages[s]) if device not in slow]
    outside = [
        (s, i) for s in range(len(grid)) if s not in chosen for i, device in enumerate(stages[s]) if device in slow
    ]
    for (s, i), (other, j) in zip(outside, room, strict=False):
        stages[s][i], stages[other][j] = stages[other][j], stages[s][i]
    return tuple(map(tuple, stages))


def best_placement(
    grid: Grid,
    cost_s: Callable[[Grid], float],
    stragglers: Sequence[int] = (),
    slow_links: Sequence[Pair] = (),
    gain: float = 0.01,
    beam: int = 8,
) -> GridPlacement:
    """Search for the cheapest grid, by exchanges that involve a straggler or an end of a slow link.

    Args:
        cost_s: function of a grid that returns seconds; the pipeline simulator and the collective cost model make
        good ones. stragglers: slow devices; slow_links: pairs of devices. gain: share by which the cost must fall,
        for moving parameters is not free; else the grid stays. beam: grids kept a round. More than one, because two
        exchanges may gain where either alone does not.

    Raises:
        InputError: a device is not in the grid.

    Cost: a round prices beam x suspects x devices grids; rounds go on until two in a row gain nothing.
    """
    devices = {device for stage in grid for device in stage}
    suspects = tuple(dict.fromkeys([*stragglers, *(end for link in slow_links for end in link)]))
    if strangers := [device for device in suspects if device not in devices]:
        raise InputError(f"placement: device {strangers[0]!r} is not in the grid")
    before_s = cost_s(grid)
    starts = [(before_s, grid)]
    if stragglers:
        gathered = consolidate(grid, stragglers)
        starts.append((cost_s(gathered), gathered))
    found_s, found = min(
        _search(starts, cost_s, suspects, beam), key=lambda pair: (pair[0], len(exchanges(grid, pair[1])))
    )
    if found_s > (1 - gain) * before_s:
        found_s, found = before_s, grid
    return GridPlacement(found, found_s, exchanges(grid, found))


def _search(
    starts: Iterable[tuple[float, Grid]], cost_s: Callable[[Grid], float], suspects: Sequence[int], beam: int
) -> list[tuple[float, Grid]]:
    """Every grid that a beam search from `starts` prices, with its cost."""
    priced = {grid: cost for cost, grid in starts}
    frontier, idle = list(priced), 0
    while idle < 2 and frontier:
        lowest = min(priced.values())
        options = {_swapped(at, a, b) for at in frontier for a in suspects for stage in at for b in stage if a != b}
        fresh = {option: cost_s(option) for option in options - priced.keys()}
        priced |= fresh
        frontier = sorted(fresh, key=lambda option: (fresh[option], str(option)))[:beam]
        idle = 0 if fresh and min(fresh.values()) < lowest else idle + 1
    return [(cost, grid) for grid, cost in priced.items()]


def _swapped(grid: Grid, a: int, b: int) -> Grid:
    renamed = {a: b, b: a}
    return tuple(tuple(renamed.get(device, device) for device in stage) for stage in grid)


def exchanges(before: Grid, after: Grid) -> tuple[Pair, ...]:
    """The fewest pairwise exchanges of devices that turn grid `before` into `after`, in order."""
    current = [device for stage in before for device in stage]
    wanted = [device for stage in after for device in stage]
    where = {device: place for place, device in enumerate(current)}
    swaps = []
    for place, device in enumerate(wanted):
        here = current[place]
        if here != device:
            other = where[device]
            current[place], current[other] = device, here
            where[here], where[device] = other, place
            swaps.append((here, device))
    return tuple(swaps)
