"""What is usual in a job, and what of an iteration is not: which rank's computing, which messages, which all-reduces.

Paper: Wu et al. (GREYHOUND), section 4.3, "profiling"; differs: against the job's own health, and what all ranks share
is nobody's fault.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite, nan, sqrt
from statistics import mean, median
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from lanterne.failslow.mitigate.decision import ControllerSettings, Seen
from lanterne.failslow.mitigate.strategies import WELL, Arrangement, Forecaster, Slowness
from lanterne.failslow.validate.links import Link
from lanterne.pipeline.adapt.suspect import Suspect

# Share of the all-reduces in health that tells how long one may take.
ORDINARY = 0.9
NOBODY: Mapping[int, float] = MappingProxyType({})
# Of ((places,) seconds of work on a microbatch, seconds of the gradients' all-reduce).
MakeForecaster: TypeAlias = Callable[[Sequence[float], float], Forecaster]


@dataclass(frozen=True)
class Baseline:
    """A job in health; seconds.

    Attributes:
        iteration_s: of an iteration.
        work_s: (places,) of a rank's work on a microbatch.
        link_s: of a message.
        group_s: (places,) of the all-reduce of the gradients of a place; 0 where that is not known.
        group_most_s: (places,) the same, which all but the longest tenth kept to: ranks without a core of their own are
            late now and then.
    """

    iteration_s: float
    work_s: tuple[float, ...]
    link_s: float
    group_s: tuple[float, ...]
    group_most_s: tuple[float, ...]

    @property
    def unit_s(self) -> float:
        """The mean work on a microbatch of a stage."""
        return mean(self.work_s)


def baseline(seen: Sequence[Seen], home: Arrangement, slow: Mapping[int, float] = NOBODY) -> Baseline | None:
    """The Baseline of some healthy iterations; None where the ranks of some place report nothing.

    Args:
        seen: each iteration.
        home: what ran.
        slow: rank -> factor of those that were slow all the while; the Baseline's work is what it is without.
    """
    work_s, group_s, group_most_s = [], [], []
    for place in range(len(home.ranks[0])):
        here = home.group(place)
        values = [
            one.compute_s[rank] / slow.get(rank, 1.0) for one in seen for rank in here if known(one.compute_s, rank)
        ]
        if not values:
            return None
        groups = sorted(took_s for one in seen if (took_s := group_took_s(one, home, place)) is not None) or [0.0]
        work_s.append(median(values))
        group_s.append(median(groups))
        group_most_s.append(groups[int(ORDINARY * (len(groups) - 1))])
    delays = [low for one in seen for low, _ in one.links.values() if isfinite(low)]
    link_s = max(median(delays), 0.0) if delays else 0.0
    iteration_s = median(one.iteration_s for one in seen)
    return Baseline(iteration_s, tuple(work_s), link_s, tuple(group_s), tuple(group_most_s))


def still_slow(
    seen: Sequence[Seen], home: Arrangement, before: Mapping[int, float], planned_s: Sequence[float]
) -> dict[int, float]:
    """Those of the ranks that were slow `before`, with their factors, that are so in some iterations.

    They are measured against the plan, and that against the other ranks: a slow rank may be alone at its place.

    Args:
        seen: each iteration, of which each rank reported some.
        home: what ran.
        planned_s: (places,) of work on a microbatch, whose proportions count.
    """
    seats = home.seats()
    over = {
        rank: median(one.compute_s[rank] for one in seen if known(one.compute_s, rank)) / planned_s[seats[rank][1]]
        for rank in seats
        if any(known(one.compute_s, rank) for one in seen)
    }
    well = [ratio for rank, ratio in over.items() if rank not in before]
    # Nearer to that factor than to 1; where all were slow, nobody can say.
    return {
        rank: factor
        for rank, factor in before.items()
        if rank in over and (not well or over[rank] > sqrt(factor) * median(well))
    }


class Evidence(NamedTuple):
    """What an iteration said of ranks and links.

    Attributes: `found`: (severity, whether that makes it a suspect), of what is slower than in health; `well`:
    what was seen to be as in health. What is in neither was not seen, or not well enough.
    """

    found: dict[Suspect, tuple[float, bool]]
    well: frozenset[Suspect]


def evidence(seen: Seen, usual: Baseline, now: Arrangement, slow: Slowness, settings: ControllerSettings) -> Evidence:
    """The Evidence of an iteration.

    Args:
        now: what ran.
        slow: what is blamed by now.
    """
    found: dict[Suspect, tuple[float, bool]] = {}
    well: set[Suspect] = set()
    for name, factor in _factors(seen, usual, now).items():
        if factor > settings.well_rank:
            found[name] = factor, factor >= settings.slow_rank
        else:
            well.add(name)
    slow_s = settings.slow_link * usual.unit_s
    for (a, b), (low_s, high_s) in seen.links.items():
        bound_s = max(settings.well_link * usual.unit_s, settings.relieved_link * slow.links.get((a, b), 0.0))
        if isfinite(high_s) and high_s - usual.link_s < bound_s:
            well.add(Suspect.link(a, b))
        elif low_s - usual.link_s > bound_s:
            found[Suspect.link(a, b)] = low_s - usual.link_s, low_s - usual.link_s >= slow_s
    for place, (base_s, most_s) in enumerate(zip(usual.group_s, usual.group_most_s, strict=True)):
        took_s = group_took_s(seen, now, place)
        if took_s is None:
            continue
        for a, b in group_links(now, place, settings):
            if took_s - most_s > slow_s:
                # Each of its messages is late on the way out and on the way back.
                found.setdefault(Suspect.link(a, b), (slow.links.get((a, b), (took_s - base_s) / 2), True))
            else:
                well.add(Suspect.link(a, b))
    return Evidence(found, frozenset(well - found.keys()))


def _factors(seen: Seen, usual: Baseline, now: Arrangement) -> dict[Suspect, float]:
    """How many times as long as usual a rank computes, where that is known, beyond what all do."""
    ratios = {
        rank: seen.compute_s[rank] / usual.work_s[place]
        for rank, (_, place) in now.seats().items()
        if known(seen.compute_s, rank)
    }
    # What nearly all are slow by is not a rank's fault: as long as a quarter are well, they tell what is usual.
    shared = max(1.0, sorted(ratios.values())[(len(ratios) - 1) // 4]) if len(ratios) > 1 else 1.0
    found = {Suspect.rank(rank): ratio / shared for rank, ratio in ratios.items()}
    return found | {Suspect.rank(rank): seen.tested[rank] for rank in seen.tested if known(seen.tested, rank)}


def group_took_s(seen: Seen, now: Arrangement, place: int) -> float | None:
    """Seconds of the all-reduce of a place's gradients from when the last rank came; None if that is not known."""
    waits = [seen.gradients_s.get(rank, (nan, nan)) for rank in now.group(place)]
    took_s = max(ended for _, ended in waits) - max(began for began, _ in waits)
    return took_s if len(waits) > 1 and all(isfinite(time_s) for wait in waits for time_s in wait) else None


def group_links(now: Arrangement, place: int, settings: ControllerSettings) -> list[Link]:
    """The links in the group of a place; where nothing is validated, only of two: more cannot be told apart."""
    group = sorted(now.group(place))
    if len(group) > 2 and not settings.validates:
        return []
    return [(a, b) for i, a in enumerate(group) for b in group[i + 1 :]]


def known(values: Mapping[int, float], rank: int) -> bool:
    """Whether there is a finite number of `rank`."""
    return rank in values and isfinite(values[rank])


def in_words(found: Mapping[Suspect, float], suspects: Iterable[Suspect]) -> str:
    """What was found of suspects; `found`: their severities."""
    told = []
    for name in suspects:
        if name.is_rank:
            told.append(f"{name} computes {found[name]:.2f} times as long as its peers")
        else:
            told.append(f"{name} takes {found[name] * 1e3:.3g} ms more")
    return "; ".join(told)


def pipeline_links(now: Arrangement) -> set[Link]:
    """The links between neighbours of a pipeline, which carry activations."""
    hops = (hop for pipeline in now.ranks for hop in pairwise(pipeline))
    return {(min(pair), max(pair)) for hop in hops for pair in zip(*hop, strict=True)}


def blamed_and_idle(now: Arrangement, slow: Slowness) -> tuple[Link, ...]:
    """The links that a Slowness blames and that carry nothing now: to be measured by themselves."""
    seats, hops = now.seats(), pipeline_links(now)
    places = {rank: place for rank, (_, place) in seats.items()}

    def carries(link: Link) -> bool:
        a, b = link
        return link in hops or (a in places and places[a] == places.get(b))

    return tuple(link for link in slow.links if not carries(link))


class Health:
    """A job's health: None is known of it, then, after some iterations at home, what is usual, and a forecast.

    Args:
        home: what runs in health.
        iterations: how many it takes to know, after the first two.
        before, planned_s: as Controller has them.

    Attributes: `usual`, the Baseline; `forecaster`; None until they are known.
    """

    def __init__(
        self,
        home: Arrangement,
        make_forecaster: MakeForecaster,
        iterations: int,
        before: Mapping[int, float],
        planned_s: Sequence[float],
    ) -> None:
        self.usual: Baseline | None = None
        self.forecaster: Forecaster | None = None
        self._home = home
        self._make_forecaster = make_forecaster
        self._iterations = iterations
        self._before = before
        self._planned_s = planned_s
        self._first: list[Seen] = []
        self._model_s = 1.0

    @property
    def usual_s(self) -> float | None:
        """What an iteration takes in health; None until that is known."""
        return None if self.usual is None else self.usual.iteration_s

    def learn(self, seen: Seen) -> Mapping[int, float]:
        """Take one of the first iterations: rank -> factor of those that are found slow from the start."""
        self._first.append(seen)
        if len(self._first) < self._iterations + 2:
            return NOBODY
        first = self._first[2:]
        slow = still_slow(first, self._home, self._before, self._planned_s) if self._before else NOBODY
        usual = baseline(first, self._home, slow)
        if usual is None:
            self._first.pop(0)  # Some rank reports nothing, and nobody knows what is healthy: wait.
            return NOBODY
        self.forecaster = self._make_forecaster(usual.work_s, max(usual.group_s))
        self._model_s = usual.iteration_s / self.forecaster.iteration_s(self._home, Slowness(slow, {}))
        self.usual = replace(usual, iteration_s=self.forecast_s(self._home, WELL))
        self._first = []
        return slow

    def forecast_s(self, arrangement: Arrangement, slow: Slowness) -> float:
        """What an iteration should take."""
        assert self.forecaster is not None
        return self._model_s * self.forecaster.iteration_s(arrangement, slow)
