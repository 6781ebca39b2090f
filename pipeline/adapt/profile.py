"""What an iteration showed of a pipeline: how long F, B and W take on each rank, and how long each link.

Every rank packs what it measured into a report: an array of a length that the plan fixes, so that it travels as one
message. Whoever has the reports of all ranks makes a Profile of them, and of that the Problem to plan for next. A kind
of action takes as long as its quickest quarter: what the operating system held up counts for nothing.
"""

import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from lanterne.pipeline.adapt.link_delay import UNKNOWN, LinkDelay, Pair, Times, link_delay
from lanterne.pipeline.execute.execute import Measured
from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.costs import Ints, costs
from lanterne.pipeline.planes.observed import ObservedPlane
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.simulate.program import senders_of

# Gives (num_actions,) seconds of what was measured.
Durations: TypeAlias = Callable[[Measured], Times]

KINDS = ("F", "B", "W", "BW")
QUICKEST = 0.25
# At the head of a report: which iteration it is about, when that began and ended, bytes that the stages held at most.
ITERATION, BEGAN, ENDED, HELD, HEAD = range(5)


class PlanMessages(NamedTuple):
    """The messages of a plan, in the order of its columns, which is that of each rank's sends and receives.

    Attributes: (num_messages,) each: the ranks it goes from and to.
    """

    source: Ints
    destination: Ints


@lru_cache(maxsize=64)
def messages(checked: CheckedPlan) -> PlanMessages:
    """The PlanMessages of a CheckedPlan; to be read only."""
    plan = checked.plan
    sender = senders_of(plan, costs(checked.problem, plan.placement))
    receiver = np.flatnonzero(sender >= 0)
    receiver = receiver[np.argsort(sender[receiver])]
    source, destination = plan.rank_of[sender[receiver]], plan.rank_of[receiver]
    crosses = source != destination
    return PlanMessages(source[crosses], destination[crosses])


def work_s(checked: CheckedPlan, rank: int, report: Times) -> float:
    """Seconds of the F, B and W of one microbatch on all stages of `rank`, of its report alone."""
    return float(np.nansum(report[HEAD : HEAD + len(KINDS) * len(checked.plan.placement.stages_of(rank))]))


def report_length(checked: CheckedPlan, rank: int) -> int:
    """Entries of the report of `rank` under a CheckedPlan."""
    sent = messages(checked)
    own = len(KINDS) * len(checked.plan.placement.stages_of(rank))
    return HEAD + own + 2 * int((sent.source == rank).sum()) + 2 * int((sent.destination == rank).sum())


class Profiler:
    """Packs what one rank measured.

    Args:
        plane: the ObservedPlane of the rank.
        durations_s: a function of a Measured that gives (num_actions,) seconds; None for the clock of the CPU. For
            stages on a device, which return before they are done, that of device_times.DeviceTimes.
        held_nbytes: a function that gives the bytes that the rank's stages hold; None where that is not asked.
    """

    def __init__(
        self, plane: ObservedPlane, durations_s: Durations | None = None, held_nbytes: Callable[[], float] | None = None
    ) -> None:
        self.plane = plane
        self._held_nbytes = held_nbytes
        self._most_nbytes = 0.0
        self._durations_s: Durations = durations_s or (lambda measured: measured.end_s - measured.start_s)

    def begin(self) -> None:
        """An iteration begins."""
        self.plane.begin()
        self._most_nbytes = 0.0

    def after(self, action: Action) -> None:
        """An action has ended: look which messages have come (execute's `after`)."""
        self.plane.poll()
        if self._held_nbytes is not None and action.kind == "F":
            self._most_nbytes = max(self._most_nbytes, self._held_nbytes())

    def report(self, checked: CheckedPlan, measured: Measured, iteration: int) -> Times:
        """The report of the iteration that has just ended: (report_length,) float64.

        Args:
            checked, measured: the CheckedPlan that ran and what execute returned.
        """
        head = [iteration, measured.ready_s[0], time.monotonic(), self._most_nbytes]
        return np.concatenate([head, self._durations(checked, measured), *self.plane.times()])

    def _durations(self, checked: CheckedPlan, measured: Measured) -> list[float]:
        """The seconds of each kind on each stage of the rank; nan where there is none."""
        found: dict[tuple[str, int], list[float]] = {}
        for action, duration_s in zip(measured.actions, self._durations_s(measured).tolist(), strict=True):
            found.setdefault((action.kind, action.stage), []).append(duration_s * action.parts)
        stages = checked.plan.placement.stages_of(measured.rank)
        return [np.quantile(found.get((kind, stage), np.nan), QUICKEST) for stage in stages for kind in KINDS]


class Profile(NamedTuple):
    """What all ranks together saw of one iteration; seconds.

    Attributes:
        iteration: its number.
        began_s, ended_s: (ranks,) by the clock of the rank that made it.
        durations_s: kind -> (ranks,) of all stages of a rank together; nan where there are none.
        links: (source, destination) -> LinkDelay, of the pairs that had messages.
        held_nbytes: (ranks,).
    """

    iteration: int
    began_s: Times
    ended_s: Times
    durations_s: dict[str, Times]
    links: dict[Pair, LinkDelay]
    held_nbytes: Times

    @property
    def iteration_s(self) -> float:
        """From the first action to the end of the last rank."""
        return float(self.ended_s.max() - self.began_s.min())

    def link(self, source: int, destination: int) -> LinkDelay:
        """The LinkDelay of a pair."""
        return self.links.get((source, destination), UNKNOWN)


def make_profile(
    checked: CheckedPlan,
    reports: Sequence[Times],
    offsets_s: ArrayLike | None = None,
    occupancy_s: Callable[[int, int], float] | None = None,
) -> Profile:
    """The Profile of an iteration.

    Args:
        checked: the CheckedPlan that ran.
        reports: that of each rank, by rank.
        offsets_s: (ranks,) to be added to times of each rank's clock; None on one host, whose clock is everybody's.

        occupancy_s: a function of source and destination: what to assume where too little was seen; None for 0.

    Cost: some 0.2 ms per pair of ranks.
    """
    ranks = len(reports)
    offsets_s = np.zeros(ranks) if offsets_s is None else np.asarray(offsets_s, float)
    sent = messages(checked)
    given_s, gone_s, after_s, before_s = (np.empty(len(sent.source)) for _ in range(4))
    durations_s = {kind: np.empty(ranks) for kind in KINDS}
    for rank, report in enumerate(reports):
        out, into = sent.source == rank, sent.destination == rank
        own = len(KINDS) * len(checked.plan.placement.stages_of(rank))
        each = report[HEAD : HEAD + own].reshape(-1, len(KINDS))
        for index, kind in enumerate(KINDS):
            durations_s[kind][rank] = each[:, index].sum()
        times_s = report[HEAD + own :] + offsets_s[rank]
        ends = np.cumsum([out.sum(), out.sum(), into.sum()])
        given_s[out], gone_s[out], after_s[into], before_s[into] = np.split(times_s, ends)
    links = {}
    for source, destination in sorted(set(zip(sent.source.tolist(), sent.destination.tolist(), strict=True))):
        of = (sent.source == source) & (sent.destination == destination)
        assumed_s = occupancy_s(source, destination) if occupancy_s else 0.0
        links[source, destination] = link_delay(given_s[of], gone_s[of], after_s[of], before_s[of], assumed_s)
    head = np.array([report[:HEAD] for report in reports])
    return Profile(
        int(head[0, ITERATION]),
        head[:, BEGAN] + offsets_s,
        head[:, ENDED] + offsets_s,
        durations_s,
        links,
        head[:, HELD],
    )


def worst(profiles: Sequence[Profile]) -> Profile:
    """One Profile of several of the same iteration and ranks: the longest durations and delays."""
    if len(profiles) == 1:
        return profiles[0]
    first = profiles[0]
    durations_s = {kind: np.max([each.durations_s[kind] for each in profiles], axis=0) for kind in KINDS}
    links = {pair: max((each.links[pair] for each in profiles), key=lambda delay: delay.low_s) for pair in first.links}
    held_nbytes = np.max([each.held_nbytes for each in profiles], axis=0)
    began_s = np.min([each.began_s for each in profiles], axis=0)
    ended_s = np.max([each.ended_s for each in profiles], axis=0)
    return Profile(first.iteration, began_s, ended_s, durations_s, links, held_nbytes)
