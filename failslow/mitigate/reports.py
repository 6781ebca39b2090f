"""What each rank tells of an iteration, a row of numbers, and what all rows together say: a Seen."""

from math import isnan

import numpy as np

from lanterne.failslow.mitigate.decision import Seen
from lanterne.pipeline.adapt.estimate import pair_delays
from lanterne.pipeline.adapt.profile import make_profile, work_s

# Seconds of the iteration, nan of a rank that is out; when its wait for gradients began and ended; the factor of its
# test, if it is out; of a link that was probed the other end, and (least, most) seconds of a message.
SECONDS, BEGAN, ENDED, TESTED, PROBED, LEAST, MOST, HEAD = range(8)


def make_row(length, *, seconds=np.nan, gradients_s=(np.nan, np.nan), tested=np.nan, probed=None, profile=()):
    """The row of a rank: (HEAD + length,) float64, of one length on all ranks.

    Args:
        length: of the longest profile of any rank.
        probed: (link, (least, most)) that LinkProbes gave, or None.
        profile: what Profiler.report gave; empty on a rank that is out.
    """
    row = np.full(HEAD + length, np.nan)
    row[SECONDS], row[[BEGAN, ENDED]], row[TESTED] = seconds, gradients_s, tested
    if probed is not None:
        (row[PROBED], _), (row[LEAST], row[MOST]) = probed
    row[HEAD : HEAD + len(profile)] = profile
    return row


def see(iteration, rows, now, plans, lengths, with_links=True):
    """The Seen of all ranks' rows.

    Args:
        iteration: its number. rows: by rank.
        now: the Arrangement that ran. plans: a CheckedPlan per copy.
        lengths: rank -> entries of its profile, of the ranks that are in.
        with_links: whether messages are of interest; it is they that take time: some 0.4 ms per pair of neighbours.
    """
    compute_s, links = {}, {}
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
            links[tuple(sorted((int(row[PROBED]), rank)))] = float(row[LEAST]), float(row[MOST])
    gradients_s = {rank: (float(rows[rank][BEGAN]), float(rows[rank][ENDED])) for rank in lengths}
    tested = {rank: float(row[TESTED]) for rank, row in enumerate(rows) if not isnan(row[TESTED])}
    return Seen(iteration, float(np.nanmax([row[SECONDS] for row in rows])), compute_s, links, gradients_s, tested)


def _links(checked, ranks, profiles):
    """(a, b) -> (least, most) seconds of a message, of the neighbours in one pipeline: both ways' mean."""
    profile, found = make_profile(checked, profiles), {}
    for one, other in {(min(pair), max(pair)) for pair in profile.links}:
        ways = pair_delays(profile, one, other)
        ends = tuple(sorted((ranks[one], ranks[other])))
        found[ends] = tuple(float(sum(getattr(way, bound) for way in ways) / 2) for bound in ("low_s", "high_s"))
    return found
