"""The planning problem as a constraint model for OR-tools CP-SAT: actions and messages in whole numbers of time."""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import inf, lcm
from typing import Any, TypeAlias

import numpy as np

from lanterne.errors import need_package
from lanterne.pipeline.plan.action import KINDS, Action, dependencies
from lanterne.pipeline.plan.costs import Costs, Floats

SPLIT_KINDS = ("F", "B", "W")
# Whole numbers per unit of time are chosen so that every time is exact if the horizon then has at most 100 times as
# many, else so that it has as many.
FINEST = 10_000_000
# The solver takes actions of one unit for an assignment problem, which it presolves for seconds; so none is shorter.
SHORTEST = 16

# OR-tools' own; a place in the model, such as a variable or a sum with one.
Model: TypeAlias = Any
Variable: TypeAlias = Any


@dataclass(frozen=True, eq=False)
class SolverModel:
    """A CP-SAT model and its handles.

    Attributes:
        model: the CpModel, which minimises `makespan`.
        start: whole action -> the variable of its start.
        message: whole action -> the variable of when its message takes its link; only where links have a bandwidth.
        shared_links: per link on which several ranks send, the actions that send on it.
        sizes: (variable, first action, last action) of each span for which memory is held: its length.
        orders: (variable, one action, another) for whether the one's message goes first.
        scale: whole numbers per unit of time.
        grain: whole numbers per value of `makespan`.
        longest: the largest value of `makespan`.
    """

    model: Model
    makespan: Variable
    start: dict[Action, Variable]
    message: dict[Action, Variable]
    shared_links: list[list[Action]]
    sizes: list[tuple[Variable, Action, Action]]
    orders: list[tuple[Variable, Action, Action]]
    scale: float
    grain: int
    longest: int


def time_scale(tables: Costs, horizon: float) -> tuple[float, int]:
    """(Whole numbers per unit of time, how many of them divide every time, or 1 where times must be rounded)."""
    times = np.concatenate([tables.duration, tables.latency, tables.occupancy, tables.all_gather, tables.reduce])
    fractions = [Fraction(value).limit_denominator(10**6) for value in np.unique(times).tolist()]
    scale = lcm(*(fraction.denominator for fraction in fractions))
    exact = np.allclose(
        np.unique(times) * scale, [float(fraction * scale) for fraction in fractions], rtol=1e-12, atol=0
    )
    if not exact or scale * horizon > 100 * FINEST:
        return FINEST / horizon, 1
    whole = np.round(np.unique(times) * scale).astype(int)
    finer = -(-SHORTEST // int(whole[whole > 0].min()))
    return scale * finer, finer * int(np.gcd.reduce(whole))


def build_model(tables: Costs, horizon: float, lower_bound: float) -> SolverModel:
    """The SolverModel of a problem on a placement, with plans no longer than `horizon` nor shorter than `lower_bound`.

    Where times are not exact in whole numbers they are rounded down, so that what the solver proves holds for the true
    ones.
    """
    need_package("ortools", "the planner `optimal`")
    from ortools.sat.python import cp_model

    scale, grain = time_scale(tables, horizon)
    # A hundredth of the smallest step is far above what sums of floats are off by, and far below what matters.
    least, longest = (int(np.ceil((value * scale - 0.01) / grain)) for value in (lower_bound, horizon))
    builder = _Builder(cp_model.CpModel(), tables, scale, longest * grain)
    builder.add_ranks()
    builder.add_needs()
    builder.add_memory()
    makespan = builder.add_makespan(grain, min(least, longest), longest)
    handles = builder.start, builder.message, builder.shared_links, builder.sizes, builder.orders
    return SolverModel(builder.model, makespan, *handles, scale, grain, longest)


class _Builder:
    def __init__(self, model: Model, tables: Costs, scale: float, horizon: int) -> None:
        self.model = model
        self.tables = tables
        self.horizon = horizon
        self.placement = tables.placement
        self.start: dict[Action, Variable] = {}
        self.message: dict[Action, Variable] = {}
        self.shared_links: list[list[Action]] = []
        self.sizes: list[tuple[Variable, Action, Action]] = []
        self.orders: list[tuple[Variable, Action, Action]] = []

        def whole(times: Floats) -> list[int]:
            found: list[int] = np.floor(times * scale + 1e-6).astype(int).tolist()
            return found

        self.duration = whole(tables.duration)
        self.latency = whole(tables.latency)
        self.occupancy = whole(tables.occupancy)
        self.all_gather = whole(tables.all_gather)
        self.reduce = whole(tables.reduce)

    def id(self, action: Action) -> int:
        return self.tables.id(KINDS.index(action.kind), action.stage, action.microbatch)

    def stream(self, kind: str, stage: int) -> list[Action]:
        """The actions of a kind on a stage, in the order of their microbatches."""
        microbatches = self.placement.microbatches_of(stage, self.tables.microbatches)
        return [Action(kind, stage, microbatch) for microbatch in microbatches]

    def variable(self, latest: int | None = None) -> Variable:
        return self.model.new_int_var(0, self.horizon if latest is None else latest, "")

    def end(self, action: Action) -> Variable:
        return self.start[action] + self.duration[self.id(action)]

    def add_ranks(self) -> None:
        """One action at a time on each rank; those of one kind and stage in the order of microbatches, all alike."""
        intervals: list[list[Variable]] = [[] for _ in range(self.placement.num_ranks)]
        for stage, rank in enumerate(self.placement.stage_to_rank):
            for kind in SPLIT_KINDS:
                stream = self.stream(kind, stage)
                for action in stream:
                    duration = self.duration[self.id(action)]
                    self.start[action] = self.variable(self.horizon - duration)
                    intervals[rank].append(self.model.new_fixed_size_interval_var(self.start[action], duration, ""))
                for before, after in pairwise(stream):
                    self.model.add(self.start[after] >= self.end(before))
        for mine in intervals:
            self.model.add_no_overlap(mine)

    def add_needs(self) -> None:
        """Each action after what it needs, and after the message that brings it."""
        for action in self.start:
            for need in dependencies(action, self.placement):
                number = self.id(need)
                if need.stage == action.stage:
                    self.model.add(self.start[action] >= self.end(need))
                elif self.occupancy[number] == 0:
                    self.model.add(self.start[action] >= self.end(need) + self.latency[number])
                else:
                    self.message[need] = self.variable()
                    self.model.add(self.message[need] >= self.end(need))
                    self.model.add(
                        self.start[action] >= self.message[need] + self.occupancy[number] + self.latency[number]
                    )
        streams: dict[int, dict[tuple[str, int], list[Action]]] = defaultdict(lambda: defaultdict(list))
        for action in self.message:
            streams[int(self.tables.link[self.id(action)])][action.kind, action.stage].append(action)
        for link in streams.values():
            self.add_link(list(link.values()))

    def add_link(self, streams: list[list[Action]]) -> None:
        """One message at a time on a link.

        Where one rank sends they go in the order in which their actions end, as the simulator has it; where several do,
        the order is the solver's to choose, and becomes the plan's message_order.
        """
        for stream in streams:
            for before, after in pairwise(stream):
                self.model.add(self.message[after] >= self.message[before] + self.occupancy[self.id(before)])
        everything = [action for stream in streams for action in stream]
        if len({self.placement.stage_to_rank[action.stage] for action in everything}) > 1:
            sizes = [self.occupancy[self.id(action)] for action in everything]
            messages = [
                self.model.new_fixed_size_interval_var(self.message[a], size, "")
                for a, size in zip(everything, sizes, strict=True)
            ]
            self.model.add_no_overlap(messages)
            self.shared_links.append(everything)
            return
        for i, stream in enumerate(streams):
            for one in stream:
                for other in (action for later in streams[i + 1 :] for action in later):
                    self.add_same_order(one, other)

    def add_same_order(self, one: Action, other: Action) -> None:
        """`one` before `other` on their rank and on their link, or the other way round on both."""
        first = self.model.new_bool_var("")
        self.orders.append((first, one, other))
        for before, after, when in ((one, other, first), (other, one, ~first)):
            self.model.add(self.end(before) <= self.start[after]).only_enforce_if(when)
            size = self.occupancy[self.id(before)]
            self.model.add(self.message[before] + size <= self.message[after]).only_enforce_if(when)

    def add_memory(self) -> None:
        for rank, capacity in enumerate(self.tables.problem.limits.capacity):
            if capacity < inf:
                self.add_memory_of(rank, capacity)

    def add_memory_of(self, rank: int, capacity: float) -> None:
        """What actions take from their start and give back at their end never exceeds the rank's capacity.

        With one stage on the rank and a B that changes nothing: F m starts after W m - M, M being how many activations
        fit, since the W end in order. Otherwise a cumulative constraint: since F + B + W is zero, what an F takes is
        held until the end of its B or of its W, and what a B takes until the end of its W.
        """
        stages = self.placement.stages_of(rank)
        changes = {stage: [self.memory_change(kind, stage) for kind in SPLIT_KINDS] for stage in stages}
        if len(stages) == 1 and changes[stages[0]][1] == 0:
            forward = changes[stages[0]][0]
            room = int(capacity / forward * (1 + 1e-9)) if forward else self.tables.microbatches
            for before, action in zip(self.stream("W", stages[0]), self.stream("F", stages[0])[room:], strict=False):
                self.model.add(self.start[action] >= self.end(before))
            return
        scale = lcm(
            *(Fraction(value).limit_denominator(10**4).denominator for change in changes.values() for value in change)
        )
        held, amounts = [], []
        for stage, (forward, backward, weight) in changes.items():
            spans = (
                [("F", "B", -backward), ("F", "W", -weight)]
                if backward < 0
                else [("F", "W", forward), ("B", "W", backward)]
            )
            for taker, giver, amount in spans:
                for first, last in zip(self.stream(taker, stage), self.stream(giver, stage), strict=True):
                    size = self.variable()
                    self.sizes.append((size, first, last))
                    held.append(self.model.new_interval_var(self.start[first], size, self.end(last), ""))
                    amounts.append(round(amount * scale))
        self.model.add_cumulative(held, amounts, int(capacity * scale * (1 + 1e-9)))

    def memory_change(self, kind: str, stage: int) -> float:
        """Memory that an action of `kind` takes, negative if it gives back."""
        number = self.tables.id(KINDS.index(kind), stage, 0)
        return float(self.tables.alloc[number] - self.tables.free[number])

    def add_makespan(self, grain: int, least: int, longest: int) -> Variable:
        """The end of the last action or data-parallel communication, one of the latter at a time on each rank.

        A stage's first F waits for its all-gather; its all-reduce or reduce-scatter for its last W. Some plan of least
        makespan has no idle time but that which times make, so its makespan is a multiple of `grain`.
        """
        makespan = self.model.new_int_var(least, longest, "makespan")
        lanes: list[list[Variable]] = [[] for _ in range(self.placement.num_ranks)]
        for stage, rank in enumerate(self.placement.stage_to_rank):
            first, last = self.stream("F", stage)[:1], self.stream("W", stage)[-1:]
            gather = self.add_communication(lanes[rank], self.all_gather[stage])
            reduce = self.add_communication(lanes[rank], self.reduce[stage])
            for action in first:
                self.model.add(self.start[action] >= gather + self.all_gather[stage])
            for action in last:
                self.model.add(reduce >= self.end(action))
            self.model.add(grain * makespan >= reduce + self.reduce[stage])
        for lane in lanes:
            self.model.add_no_overlap(lane)
        self.model.minimize(makespan)
        return makespan

    def add_communication(self, lane: list[Variable], duration: int) -> Variable:
        """The start of a data-parallel communication on a rank's `lane`."""
        begins = self.variable(self.horizon - duration)
        if duration:
            lane.append(self.model.new_fixed_size_interval_var(begins, duration, ""))
        return begins
