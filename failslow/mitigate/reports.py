"""What each rank tells of an iteration, a row of numbers, and what all rows together say: a Seen."""

from collections.abc import Mapping, Sequence
from math import isnan

import numpy as np
from numpy.typing import NDArray

from lanterne.failslow.mitigate.decision import Seen
from lanterne.failslow.mitigate.strategies import Arrangement
from lanterne.failslow.validate.links import Link
from lanterne.pipeline.adapt.estimate import pair_delays
from lanterne.pipeline.adapt.profile import make_profile, work_s
from lanterne.pipeline.simulate.check_plan import CheckedPlan

# Seconds of the iteration, nan of a rank that is out; when its wait for gradients began and ended; the factor of its
# test, if it is out; of a link that was probed the other end, and (least, most) seconds of a message.
SECONDS, BEGAN, ENDED, TESTED, PROBED, LEAST, MOST, HEAD = range(8)


def make_row(
    length: int,
    *,
    seconds: float = np.nan,
    gradients_s: tuple[float, float] = (np.nan, np.nan),
    tested: float = np.nan,
    probed: tuple[Link, tuple[float, float]] | None = None,
    profile: Sequence[float] | NDArray[np.float64] = (),
) -> NDArray[np.float64]:
    """The row of a rank: (HEAD + length,) float64, of one length on all ranks.

    Args:
        length: of the longest profile of any rank.
        probed: (link, (least, most)) that LinkProbes gave, or None.
        profile: what Profiler.report gave; empty on a rank that is out.
    """
    row = np.full(HEAD + length, np.nan)
    row[SECONDS] = seconds
    row[[BEGAN, ENDED]] = gradients_s
    row[TESTED] = tested
    if probed is not None:
        (row[PROBED], _), (row[LEAST], row[MOST]) = probed
    row[HEAD : HEAD + len(profile)] = profile
    return row


def see(
    iteration: int,
    rows: Sequence[NDArray[np.float64]],
    now: Arrangement,
    plans: Sequence[CheckedPlan],
    for_slow_links: bool,
    lengths: Mapping[int, int],
    with_links: bool = True,
) -> Seen:
    """The Seen of all ranks' rows.

    Args:
        iteration: its number.
        rows: by rank.
        now: what ran.
        plans: one per copy. for_slow_links: whether they were made for some.
        lengths: rank -> entries of its profile, of the ranks that are in.
        with_links: whether messages are of interest; it is they that take time: some 0.4 ms per pair of neighbours.
    """
    compute_s: dict[int, float] = {}
    links: dict[Link, tuple[float, float]] = {}
    profiles = {rank: rows[rank][HEAD : HEAD + length] for rank, length in lengths.items()}
    for pipeline, checked in zip(now.ranks, plans, strict=True):
        for part in range(len(pipeline[0])):
            here = [parts[part] for parts in pipeline]
            if any(isnan(rows[rank][SECONDS]) for rank in here):
                continue
            compute_s |= {rank: work_s(checked, place, profiles[rank]) for place, rank in enumerate(here)}
            if with_links:
                links |= _links(checked, here, [profiles[rank] for rank in here])
    for rank, row in enumerate(rows):
        if not isnan(row[PROBED]):
            other = int(row[PROBED])
            links[min(other, rank), max(other, rank)] = float(row[LEAST]), float(row[MOST])
    gradients_s = {rank: (float(rows[rank][BEGAN]), float(rows[rank][ENDED])) for rank in lengths}
    tested = {rank: float(row[TESTED]) for rank, row in enumerate(rows) if not isnan(row[TESTED])}
    iteration_s = float(np.nanmax([row[SECONDS] for row in rows]))
    return Seen(iteration, iteration_s, compute_s, links, gradients_s, tested, for_slow_links)


def _links(
    checked: CheckedPlan, ranks: Sequence[int], profiles: Sequence[NDArray[np.float64]]
) -> dict[Link, tuple[float, float]]:
    """(a, b) -> (least, most) seconds of a message, of the neighbours in one pipeline: both ways' mean."""
    profile = make_profile(checked, profiles)
    found: dict[Link, tuple[float, float]] = {}
    for one, other in {(min(pair), max(pair)) for pair in profile.links}:
        ways = pair_delays(profile, one, other)
        ends = min(ranks[one], ranks[other]), max(ranks[one], ranks[other])
        found[ends] = float(sum(way.low_s for way in ways) / 2), float(sum(way.high_s for way in ways) / 2)
    return found
