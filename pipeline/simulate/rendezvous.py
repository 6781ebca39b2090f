"""When each action of a plan starts if a message moves only once its receiver waits for it, or for a later one.

As `simulate`, but a message takes its link when it was sent, the one before it of the same pair has left the link, and
its receive is posted: when the rank that waits for it, or for a later message of the same sender, has ended the action
before. A rank that computes posts nothing; sends never keep a rank from computing.
"""

import numpy as np

from lanterne.pipeline.plan.costs import Floats, costs
from lanterne.pipeline.plan.plan import PART, PARTS, Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.simulate.simulate import Timeline


def simulate_rendezvous(checked: CheckedPlan, problem: Problem) -> Timeline:
    """The Timeline of a CheckedPlan under `problem`, which has no shared links and no data parallelism.

    Cost: some 3 us per action.
    """
    return _RendezvousRun(checked.plan, problem).timeline()


class _RendezvousRun:
    def __init__(self, plan: Plan, problem: Problem) -> None:
        table, ids = costs(problem, plan.placement), plan.ids
        part, parts = plan.columns[PART], plan.columns[PARTS]
        self.plan = plan
        self.problem = problem
        self.duration: Floats = table.duration[ids] / parts
        self.slot: list[int] = np.where(part == 1, table.slot[ids], table.always).tolist()
        self.target: list[int] = np.where(part == parts, table.target[ids], -1).tolist()
        self.latency: Floats = table.latency[ids]
        self.occupancy: Floats = table.occupancy[ids]
        self.rank_of: list[int] = plan.rank_of.tolist()
        receiver = {slot: self.rank_of[column] for column, slot in enumerate(self.slot)}
        # Slot -> the messages of its sender to its receiver up to it, as (slot, column that sends it), in order.
        self.needed: dict[int, tuple[list[tuple[int, int]], int]] = {}
        pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for column, slot in enumerate(self.target):
            if slot >= 0 and receiver[slot] != self.rank_of[column]:
                pair = pairs.setdefault((self.rank_of[column], receiver[slot]), [])
                pair.append((slot, column))
                self.needed[slot] = pair, len(pair)
        self.full: dict[int, float] = {table.always: 0.0}
        self.posted: dict[int, float] = {}
        self.link_free_s: dict[int, float] = {}
        self.start: Floats = np.full(len(ids), np.nan)
        self.end: Floats = np.full(len(ids), np.nan)

    def timeline(self) -> Timeline:
        plan, count = self.plan, len(self.slot)
        arrival, sent = np.zeros(count), np.full(count, np.nan)
        at: list[int] = plan.offsets[:-1].tolist()
        clock, moved = [0.0] * len(at), True
        while moved:
            moved = False
            for rank, stop in enumerate(plan.offsets[1:].tolist()):
                while at[rank] < stop and self.arrives(at[rank], clock[rank], sent):
                    column = at[rank]
                    arrival[column] = self.full[self.slot[column]]
                    self.start[column] = max(clock[rank], arrival[column])
                    clock[rank] = self.end[column] = self.start[column] + self.duration[column]
                    if self.target[column] >= 0 and self.target[column] not in self.needed:
                        self.full[self.target[column]] = clock[rank]
                    at[rank], moved = column + 1, True
        return Timeline(plan, self.problem, self.start, self.end, arrival, sent, (), float(self.end.max()), True)

    def arrives(self, column: int, now: float, sent: Floats) -> bool:
        """Whether it is known when what `column` waits for arrives, its rank being free to post from `now`."""
        slot = self.slot[column]
        if slot in self.full or slot not in self.needed:
            return slot in self.full
        pair, number = self.needed[slot]
        for message, sender in pair[:number]:
            if message in self.full:
                continue
            posted = self.posted.setdefault(message, now)
            if np.isnan(self.end[sender]):
                return False
            begins = max(self.end[sender], posted, self.link_free_s.get(id(pair), 0.0))
            self.link_free_s[id(pair)] = begins + self.occupancy[sender]
            self.full[message] = begins + self.occupancy[sender] + self.latency[sender]
            if self.occupancy[sender] or self.latency[sender]:
                sent[sender] = begins
        return True
