"""From what iterations showed to what to plan for: a Problem with the durations and link delays that were measured.

What was not seen stays as it was assumed, unless that contradicts the bounds of what was. Then it is undisturbed, if
they allow that: a link that has healed shows no more than bounds where ranks look for messages between long actions.
What differs from the undisturbed problem by less than noise is set to it, so that a link that has healed gives that
problem again, exactly.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from lanterne.pipeline.adapt.link_delay import LinkDelay, Pair, Times
from lanterne.pipeline.adapt.profile import Profile
from lanterne.pipeline.adapt.suspect import Suspect
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import CheckedPlan

# Latency and occupancy of a message.
Delay: TypeAlias = tuple[float, float]

TIMES = {"F": "forward", "B": "backward_input", "W": "backward_weight"}
# Durations within this share of the undisturbed ones are those.
SAME_DURATION = 0.1


def pair_delays(profile: Profile, one: int, other: int) -> tuple[LinkDelay, LinkDelay]:
    """The LinkDelay from rank `one` to `other` and back; a way that was not seen is taken to be as the other one.

    As far as its bounds allow: a cable or a switch that is slow mostly is so both ways.
    """
    there, back = profile.link(one, other), profile.link(other, one)
    return _narrowed(there, back), _narrowed(back, there)


def _narrowed(delay: LinkDelay, seen: LinkDelay) -> LinkDelay:
    if delay.is_seen or not seen.is_seen:
        return delay
    value_s = min(max(seen.low_s, delay.low_s), delay.high_s)
    return LinkDelay(value_s, value_s, min(seen.occupancy_s, max(value_s, 0.0)), seen.num_seen)


def planned_delay(problem: Problem, source: int, destination: int) -> Delay:
    """(latency, occupancy) of a message that the problem has for a pair of ranks, in its unit."""
    nbytes = max(problem.message_nbytes)
    return problem.latency(source, destination), problem.occupancy(source, destination, nbytes)


def estimate(
    profiles: Sequence[Profile],
    base: Problem,
    assumed: Problem,
    floor_s: Callable[[Pair], float],
    names: Collection[Suspect] | None = None,
) -> Problem:
    """`base` with what `profiles` showed put in: a Problem, all in seconds; `base` itself if nothing differs.

    Args:
        profiles: of the last iterations, at least one.
        base: the undisturbed Problem.
        assumed: the Problem that the running plan is for.
        floor_s: a function of a pair of ranks: its delays are the same if they differ by less than that.
        names: what may have changed; all else stays as assumed. None for everything.
    """
    delays: dict[Pair, Delay] = {}
    for one, other in sorted({(min(pair), max(pair)) for pair in profiles[-1].links}):
        ways = [pair_delays(profile, one, other) for profile in profiles]
        for index, pair in enumerate(((one, other), (other, one))):
            found, usual_s = planned_delay(assumed, *pair), sum(planned_delay(base, *pair))
            if names is None or Suspect.link(one, other) in names:
                found = delay_of([way[index] for way in ways], usual_s, *found)
            if abs(sum(found) - usual_s) > floor_s(pair):
                delays[pair] = found
    changes = _durations(profiles, base, assumed, names) | (link_fields(base, delays) if delays else {})
    return dataclasses.replace(base, **changes) if changes else base


def with_links_of(base: Problem, problem: Problem, pairs: Iterable[Sequence[int]]) -> Problem:
    """`problem` with the delays that `base` has between these pairs of ranks, both ways."""
    ways = {way for one, other in pairs for way in ((one, other), (other, one))}
    ranks = range(base.stages)
    delays: dict[Pair, Delay] = {}
    for pair in ((one, other) for one in ranks for other in ranks if one != other):
        delay = planned_delay(problem, *pair)
        if pair not in ways and delay != planned_delay(base, *pair):
            delays[pair] = delay
    links = {key: getattr(base, key) for key in ("link_latency", "link_bandwidth", "message_nbytes")}
    return dataclasses.replace(problem, **links | (link_fields(base, delays) if delays else {}))


def within_memory(problem: Problem, profiles: Iterable[Profile], checked: CheckedPlan, memory_nbytes: float) -> Problem:
    """`problem` with as many activations on each rank as fit in `memory_nbytes`; none fewer than `checked` needs.

    An activation takes what the rank held at most, over how many the plan has there then.

    Args:
        profiles: of iterations under the CheckedPlan `checked`.
    """
    held_nbytes = np.median([profile.held_nbytes for profile in profiles], axis=0)
    if not (held_nbytes > 0).all():
        return problem
    most = np.array(checked.peak_memory) * np.maximum(memory_nbytes / held_nbytes, 1.0)
    return dataclasses.replace(problem, max_inflight_activations=tuple(most.tolist()))


def delay_of(seen: Sequence[LinkDelay], usual_s: float, latency_s: float, occupancy_s: float) -> Delay:
    """(latency, occupancy) by what was seen, or as was assumed where nothing speaks against it, else as usual."""
    low_s, high_s = (float(np.median([way[bound] for way in seen])) for bound in (0, 1))
    whole_s = latency_s + occupancy_s
    if not low_s <= whole_s <= high_s:
        most_s = min(way.most_s for way in seen)
        whole_s = usual_s if low_s <= usual_s <= high_s else max(min(max(most_s, low_s), high_s), 0.0)
    occupancy_s = min(max(float(np.median([way.occupancy_s for way in seen])), occupancy_s), whole_s)
    return whole_s - occupancy_s, occupancy_s


def _durations(
    profiles: Sequence[Profile], base: Problem, assumed: Problem, names: Collection[Suspect] | None
) -> dict[str, Any]:
    """The fields of `base` to be replaced by durations that differ from it."""
    changes: dict[str, Any] = {}
    may_differ = [names is None or Suspect.rank(rank) in names for rank in range(base.stages)]
    for kind, name in TIMES.items():
        known = np.array(getattr(base, name))
        found = np.median([_apart(profile, kind, base) for profile in profiles], axis=0)
        found = np.where(may_differ, found, getattr(assumed, name))
        differs = np.abs(found - known) > SAME_DURATION * known  # False for nan
        if differs.any():
            changes[name] = tuple(np.where(differs, found, known).tolist())
    return changes


def _apart(profile: Profile, kind: str, base: Problem) -> Times:
    """(ranks,) durations of a kind; of ranks that do B and W in one, their parts of it as `base` has them."""
    durations_s = profile.durations_s[kind]
    if kind == "F" or "BW" not in profile.durations_s:
        return durations_s
    backward, weight = np.array(base.backward_input), np.array(base.backward_weight)
    share = (backward if kind == "B" else weight) / (backward + weight)
    return np.where(np.isnan(durations_s), profile.durations_s["BW"] * share, durations_s)


def link_fields(base: Problem, delays: Mapping[Pair, Delay]) -> dict[str, Any]:
    """The fields of `base` to be replaced where links have the (latency, occupancy) of `delays`, by pair."""
    ranks = range(base.stages)
    nbytes = max(base.message_nbytes) or 1.0
    latency = [[base.latency(one, other) for other in ranks] for one in ranks]
    occupancy = {(one, other): base.occupancy(one, other, nbytes) for one in ranks for other in ranks}
    for (one, other), (latency_s, occupancy_s) in delays.items():
        latency[one][other] = latency_s
        occupancy[one, other] = occupancy_s
    changes: dict[str, Any] = {"link_latency": tuple(map(tuple, latency))}
    if any(occupancy.values()):
        rows = [[nbytes / occupancy[one, other] if occupancy[one, other] else None for other in ranks] for one in ranks]
        given = base.message_nbytes if any(base.message_nbytes) else (nbytes, nbytes)
        changes |= {"link_bandwidth": tuple(map(tuple, rows)), "message_nbytes": given}
    return changes
