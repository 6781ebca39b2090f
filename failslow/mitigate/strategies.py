"""What can be done about slow ranks and links while a job trains, and what an iteration would then take.

Four strategies, by rising price: S1 ignore; S2 give the copy of a slow rank fewer microbatches; S3 put the ranks
elsewhere, so that slow links carry what the schedule hides and slow ranks share a copy, which then gets fewer
microbatches; S4 restart from a checkpoint without the copies of slow ranks. All of them are an Arrangement: which rank
is where, and how many microbatches each copy has. The pipeline simulator prices it.

Paper: Wu et al. (GREYHOUND), section 5.2; differs: S3 is priced with the microbatches that S2 would then give, so slow
ranks may gather in one copy as well as in one stage, whichever is faster.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import ceil, log2
from operator import mul
from typing import Any, TypeAlias

from lanterne.errors import InputError
from lanterne.failslow.mitigate.grid import Grid, best_placement
from lanterne.failslow.mitigate.rebalance import rebalance, refine
from lanterne.failslow.validate.links import Link
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import TIMES, Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.simulate import simulate
from lanterne.pipeline.train.rank_layout import Layout
from lanterne.pipeline.train.trainer import plans

# pipeline[place][part], ranks of the job
Pipeline: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Arrangement:
    """Which rank does what.

    Attributes:
        ranks: ranks[copy][place][part], ranks of the job; not all need be there.
        microbatches: (copies,) ints.
    """

    ranks: tuple[Pipeline, ...]
    microbatches: tuple[int, ...]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Arrangement":
        """That of which `values` has the attributes, as JSON gives them."""
        ranks = tuple(tuple(tuple(parts) for parts in copy) for copy in values["ranks"])
        return cls(ranks, tuple(values["microbatches"]))

    def seats(self) -> dict[int, tuple[int, int]]:
        """rank -> (copy, place)."""
        return {
            rank: (copy, place)
            for copy, pipeline in enumerate(self.ranks)
            for place, parts in enumerate(pipeline)
            for rank in parts
        }

    def group(self, place: int, part: int = 0) -> tuple[int, ...]:
        """The ranks that hold a place in each copy, and all-reduce its gradients."""
        return tuple(pipeline[place][part] for pipeline in self.ranks)

    def layout(self) -> Layout:
        """The same among the ranks that are there, numbered in their order."""
        at = {rank: index for index, rank in enumerate(sorted(self.seats()))}
        return Layout(tuple(tuple(tuple(at[rank] for rank in parts) for parts in copy) for copy in self.ranks))


@dataclass(frozen=True)
class Slowness:
    """What is slow: `ranks`, rank -> factor of its computing; `links`, (a, b), a < b -> seconds more for a message."""

    ranks: Mapping[int, float]
    links: Mapping[Link, float]

    def __bool__(self) -> bool:
        return bool(self.ranks or self.links)

    @property
    def cause(self) -> str:
        """What makes it slow: "compute" if a rank is, else "communication"."""
        return "compute" if self.ranks else "communication"


# Nothing is slow.
WELL = Slowness({}, {})


class Forecaster:
    """Prices arrangements.

    Args:
        problem: the Problem of one copy in health, seconds.
        scheduler: whose plans the copies run.
        gradients_s: seconds of the gradients' all-reduces in health.
        adapts: whether plans follow what is slow in a copy, where that is faster.
    """

    def __init__(self, problem: Problem, scheduler: str, gradients_s: float = 0.0, *, adapts: bool = False) -> None:
        self._adapts = adapts
        self.problem = problem
        self.scheduler = scheduler
        self.gradients_s = gradients_s
        self._plan = lru_cache(maxsize=None)(self._planned)
        self._copy_s = lru_cache(maxsize=None)(self._simulated)

    def _planned(self, count: int) -> Plan:
        return plans(self.problem, self.scheduler, (count,))[0].plan

    def iteration_s(self, arrangement: Arrangement, slow: Slowness) -> float:
        """Seconds of an iteration: the slowest copy, then the slowest all-reduce of gradients."""
        copies = [
            self._copy_s(*self._conditions(pipeline, slow), count)
            for pipeline, count in zip(arrangement.ranks, arrangement.microbatches, strict=True)
        ]
        return max(copies) + self.gradients_s + self._gradients_extra_s(arrangement, slow)

    def rebalanced(self, ranks: tuple[Pipeline, ...], total: int, slow: Slowness) -> Arrangement:
        """S2: the Arrangement of `ranks` with the microbatches that suit what is slow."""
        stages, work_s = len(ranks[0]), stage_work_s(self.problem)
        conditions = [self._conditions(pipeline, slow) for pipeline in ranks]
        times = [max(map(mul, work_s, factors)) for factors, _ in conditions]
        # That counts every stage as slow as the slowest: the simulator knows better what few more or fewer take.
        first = rebalance(times, total, pipeline_stages=stages).microbatches
        return Arrangement(ranks, refine(first, lambda copy, count: self._copy_s(*conditions[copy], count)))

    def moved(self, arrangement: Arrangement, slow: Slowness) -> Arrangement:
        """S3: the cheapest Arrangement of the same ranks, found by exchanges; of one part per place."""
        total = sum(arrangement.microbatches)

        def as_ranks(grid: Grid) -> tuple[Pipeline, ...]:
            return tuple(tuple((rank,) for rank in copy) for copy in zip(*grid, strict=True))

        def cost_s(grid: Grid) -> float:
            return self.iteration_s(self.rebalanced(as_ranks(grid), total, slow), slow)

        grid = tuple(arrangement.group(place) for place in range(len(arrangement.ranks[0])))
        links = [link for link in slow.links if set(link) <= arrangement.seats().keys()]
        stragglers = [rank for rank in slow.ranks if rank in arrangement.seats()]
        found = best_placement(grid, cost_s, stragglers, links, beam=4)
        return self.rebalanced(as_ranks(found.grid), total, slow)

    def without(self, arrangement: Arrangement, slow: Slowness) -> Arrangement | None:
        """S4: without the copies that have slow ranks, and one end of slow links; None if none would be left."""
        out = set(slow.ranks) | {max(link) for link in slow.links}
        kept = tuple(
            pipeline for pipeline in arrangement.ranks if not any(rank in out for parts in pipeline for rank in parts)
        )
        total = sum(arrangement.microbatches)
        if not kept or len(kept) == len(arrangement.ranks) or total < len(kept):
            return None
        return self.rebalanced(kept, total, Slowness({}, {}))

    def _conditions(self, pipeline: Pipeline, slow: Slowness) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(factor of each place, seconds more of each hop) of one copy."""
        factors = tuple(max(slow.ranks.get(rank, 1.0) for rank in parts) for parts in pipeline)
        extra_s = tuple(
            max(slow.links.get((min(a, b), max(a, b)), 0.0) for a, b in zip(parts, following, strict=True))
            for parts, following in pairwise(pipeline)
        )
        return factors, extra_s

    def _simulated(self, factors: Sequence[float], extra_s: Sequence[float], count: int) -> float:
        problem = replace(self.problem, microbatches=count)
        if any(extra_s):
            extended = tuple(problem.latency(i, i + 1) + extra for i, extra in enumerate(extra_s))
            problem = replace(problem, link_latency=extended)
        problem = _slowed(problem, factors)
        fixed = self._plan(count)
        fixed_s = simulate(fixed, problem).makespan
        if not self._adapts or fixed.placement.name != "unidirectional":
            return fixed_s
        return min(fixed_s, simulate(plan(problem, "adaptra"), problem).makespan)

    def _gradients_extra_s(self, arrangement: Arrangement, slow: Slowness) -> float:
        """Recursive halving and doubling: so many rounds, each as slow as the slowest of its links."""
        copies = len(arrangement.ranks)
        if copies < 2:
            return 0.0
        worst_s = 0.0
        for place in range(len(arrangement.ranks[0])):
            group = set(arrangement.group(place))
            worst_s = max([worst_s, *(extra for link, extra in slow.links.items() if set(link) <= group)])
        return 2 * ceil(log2(copies)) * worst_s


def arrange(
    strategy: str, forecaster: Forecaster, home: Arrangement, now: Arrangement, slow: Slowness
) -> Arrangement | None:
    """The Arrangement that `strategy`, by its name in ski_rental.py, leads to from `now`; None if it has none.

    Args:
        home: the Arrangement in health.

    Raises:
        InputError: an unknown strategy.
    """
    if strategy == "ignore":
        return now
    if strategy == "rebalance":
        return forecaster.rebalanced(now.ranks, sum(home.microbatches), slow)
    if strategy == "topology":
        movable = all(len(parts) == 1 for pipeline in home.ranks for parts in pipeline) and len(home.ranks) > 1
        return forecaster.moved(home, slow) if movable else None
    if strategy == "restart":
        return forecaster.without(home, slow)
    raise InputError(f"strategy: got {strategy!r}, expected ignore, rebalance, topology or restart")


def problem_of(work_s: Sequence[float], planned: Problem) -> Problem:
    """`planned` with stages that take `work_s`, (stages,), a microbatch: F, B and W in the proportions of before."""
    return _slowed(planned, [now / then for now, then in zip(work_s, stage_work_s(planned), strict=True)])


def stage_work_s(problem: Problem) -> list[float]:
    """(stages,) seconds that each computes in a microbatch: F, B and W."""
    return [sum(times) for times in zip(*(getattr(problem, name) for name in TIMES), strict=True)]


def _slowed(problem: Problem, factors: Sequence[float]) -> Problem:
    """`problem` with stages that take so many times as long."""
    slowed: dict[str, Any] = {
        name: tuple(time_s * factor for time_s, factor in zip(getattr(problem, name), factors, strict=True))
        for name in TIMES
    }
    return replace(problem, **slowed)
