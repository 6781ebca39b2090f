"""When the plan that runs no longer suits what is measured: a link is slower than it tolerates, or has healed.

What counts is the delay of messages, not the time of iterations: a plan tolerates a delay up to equation 1 of ADAPTRA,
and one message that comes later says so at once, whatever else the iteration was busy with. So that noise does not make
plans flap, a finding must recur in several iterations in a row; relief in more than onset, and in more and more where
findings took turns before.
"""

import numpy as np

from .adaptra import tolerances, warmups_of
from .estimate import pair_delays, planned_delay

# A delay has changed if it differs by this share of what is assumed, and by the floor.
CHANGED_DELAY, CHANGED_DURATION = 0.25, 0.25
# Iterations in a row that show an onset or a relief. The latter doubles, to that many at most, with each onset within
# CALM iterations of the last relief.
ONSET, RELIEF, MOST_RELIEF, CALM = 2, 3, 48, 60


def pair_tolerances(checked, problem):
    """(rank, rank) -> the delay, mean of both ways, that a plan absorbs, in the problem's unit.

    Equation 1 is about one stage per rank; with other placements nothing is taken to be absorbed.
    """
    if checked.plan.placement.name != "unidirectional":
        return {}
    found = tolerances(problem, warmups_of(checked.plan))
    return {(link, link + 1): max(tolerance, 0.0) for link, tolerance in enumerate(found)}


def findings(profile, base, assumed, tolerance, floor_s):
    """What one iteration shows that differs from what the running plan is for.

    Args:
        profile: the Profile.
        base, assumed: the Problem, in seconds, when nothing is slow, and that which the plan is for.
        tolerance: of pair_tolerances; a smaller one where sends block computing.
        floor_s: noise.

    Returns:
        "link 1-2" or "rank 2" -> +1, it is slower, or -1, it is faster.
    """
    found = {}
    for one, other in sorted({(min(pair), max(pair)) for pair in profile.links}):
        ways = pair_delays(profile, one, other)
        planned = [planned_delay(assumed, *pair) for pair in ((one, other), (other, one))]
        assumed_s = sum(map(sum, planned)) / 2
        healed_s = sum(sum(planned_delay(base, *pair)) for pair in ((one, other), (other, one))) / 2 + floor_s / 2
        low_s = sum(max(way.low_s, 0.0) for way in ways) / 2
        high_s = sum(way.high_s for way in ways) / 2
        queues_s = max(way.occupancy_s - occupancy_s for way, (_, occupancy_s) in zip(ways, planned, strict=True))
        most_s = max(tolerance.get((one, other), 0.0), assumed_s * (1 + CHANGED_DELAY)) + floor_s
        if low_s > most_s or queues_s > max(floor_s, CHANGED_DELAY * assumed_s):
            found[f"link {one}-{other}"] = +1
        elif high_s < max(assumed_s * (1 - CHANGED_DELAY) - floor_s, healed_s if assumed_s > healed_s else 0.0):
            found[f"link {one}-{other}"] = -1
    durations = zip(assumed.forward, assumed.backward_input, strict=True)
    for rank, (forward_s, backward_s) in enumerate(durations):
        ratio = _known_sum(profile, rank) / (forward_s + backward_s)
        if ratio > 1 + CHANGED_DURATION:
            found[f"rank {rank}"] = +1
        elif ratio < 1 / (1 + CHANGED_DURATION):
            found[f"rank {rank}"] = -1
    return found


def _known_sum(profile, rank):
    return float(profile.durations_s["F"][rank] + profile.durations_s["B"][rank])


class Watch:
    """Confirms findings over iterations.

    Args:
        onset, relief: iterations in a row.
    """

    def __init__(self, onset=ONSET, relief=RELIEF):
        self.onset, self.relief = onset, relief
        self._count, self._needed, self._relieved = {}, {}, {}

    def update(self, iteration, found):
        """The findings, out of `found` of this iteration, that are confirmed by it: name -> +1 or -1."""
        self._count = {
            name: (sign, self._count[name][1] + 1 if self._count.get(name, (0,))[0] == sign else 1)
            for name, sign in found.items()
        }
        confirmed = {
            name: sign
            for name, (sign, count) in self._count.items()
            if count >= self._enough(name, sign)
        }
        for name, sign in confirmed.items():
            self._note(iteration, name, sign)
        return confirmed

    def _enough(self, name, sign):
        """A slow link comes first: to plan for it gains most, and its delay is the surest that is measured."""
        return self.onset if sign > 0 and name.startswith("link") else self._needed.get(name, self.relief)

    def _note(self, iteration, name, sign):
        if sign < 0:
            self._relieved[name] = iteration
        elif iteration - self._relieved.get(name, -np.inf) < CALM:
            self._needed[name] = min(2 * self._needed.get(name, self.relief), MOST_RELIEF)
        else:
            self._needed.pop(name, None)

    def restart(self):
        """Another plan or other assumptions: what was counted so far is about the old ones."""
        self._count = {}
