"""A plan: for each rank the actions that it runs, in order; a value that is checked, simulated, and then executed."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import ScheduleError
from lanterne.pipeline.plan.action import KINDS, Action
from lanterne.pipeline.plan.fields import as_count, check_keys
from lanterne.pipeline.plan.placement import PLACEMENTS, Placement, make_placement

KIND_INDEX = {kind: index for index, kind in enumerate(KINDS)}
# The rows of `Plan.columns`.
KIND, STAGE, MICROBATCH, PART, PARTS = range(5)


@dataclass(frozen=True, eq=False)
class Plan:
    """The order of actions on every rank, as int columns: rank r runs the columns offsets[r] to offsets[r + 1].

    Make one with `from_actions`, `from_ids` or `from_dict`. Nothing is checked here but that numbers fit their columns.

    Attributes:
        placement: the Placement.
        microbatches: microbatches of the whole iteration.
        columns: (5, num_actions) int32: kind (index in KINDS), stage, microbatch, part, parts.
        offsets: (num_ranks + 1,) int64.
        scheduler: name of what made it.
        message_order: messages of each shared link in the order in which they go over it, each named by the whole
            action that sends it: a tuple of tuples of Action, or () to send each when it is ready.
        proved_bound: a makespan that what made it proved no plan of whole actions on this placement to be below, for
            the problem that it was made for; 0 if it proved none.
    """

    placement: Placement
    microbatches: int
    columns: NDArray[np.int32]
    offsets: NDArray[np.int64]
    scheduler: str = ""
    message_order: tuple[tuple[Action, ...], ...] = ()
    proved_bound: float = 0.0

    def __repr__(self) -> str:
        ranks, actions = len(self.offsets) - 1, self.columns.shape[1]
        size = f"{ranks} ranks, {self.microbatches} microbatches, {actions} actions"
        return f"Plan({self.scheduler or 'unnamed'}, {self.placement.name}, {size})"

    def _repr_svg_(self) -> str | None:
        """What notebooks show: the chart, actions of one length; None where Matplotlib is missing or it cannot run."""
        # By name: it needs this module.
        svg: str | None = import_module("lanterne.pipeline.simulate.gantt").plan_to_svg(self)
        return svg

    @classmethod
    def from_actions(
        cls,
        ranks: Iterable[Iterable[Action]],
        placement: Placement,
        microbatches: int,
        scheduler: str = "",
        message_order: Iterable[Iterable[Action]] = (),
    ) -> "Plan":
        """The plan in which each rank runs its part of `ranks`.

        Raises:
            ScheduleError: as many lists as ranks are expected, of actions that a plan can hold.
        """
        orders = [list(actions) for actions in ranks]
        if len(orders) != placement.num_ranks:
            raise ScheduleError(
                f"plan: got {len(orders)} lists of actions, expected {placement.num_ranks}, one per rank"
            )
        offsets = np.cumsum([0, *map(len, orders)])
        try:
            rows = [(KIND_INDEX[kind], *numbers) for kind, *numbers in chain.from_iterable(orders)]
        except KeyError as error:
            raise ScheduleError(
                f"plan: got an action of kind {error.args[0]!r}, expected one of {', '.join(KINDS)}"
            ) from None
        columns = np.array(rows, np.int64).reshape(-1, 5).T
        if columns.size and (columns.min() < 0 or columns.max() >= 2**31):
            raise ScheduleError("plan: got a number outside 0 to 2**31 - 1 in an action")
        return cls(
            placement, microbatches, columns.astype(np.int32), offsets, scheduler, tuple(map(tuple, message_order))
        )

    @classmethod
    def from_ids(
        cls, orders: Sequence[Sequence[int]], placement: Placement, microbatches: int, scheduler: str = ""
    ) -> "Plan":
        """The plan of whole actions given by id (see costs): `orders` has one sequence per rank.

        Cost: some 0.1 us per action; this is how planners make plans.
        """
        ids = np.fromiter(chain.from_iterable(orders), np.int64)
        columns = np.ones((5, len(ids)), np.int32)
        block, columns[MICROBATCH] = np.divmod(ids, microbatches)
        columns[KIND], columns[STAGE] = np.divmod(block, placement.num_stages)
        return cls(placement, microbatches, columns, np.cumsum([0, *map(len, orders)]), scheduler)

    @cached_property
    def ranks(self) -> tuple[tuple[Action, ...], ...]:
        """The same as Actions: a tuple per rank."""
        kind, *rest = self.columns.tolist()
        actions = [Action(KINDS[index], *numbers) for index, *numbers in zip(kind, *rest, strict=True)]
        return tuple(tuple(actions[start:stop]) for start, stop in pairwise(self.offsets.tolist()))

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """(num_actions,) int64, the id (see costs) of the whole action that each column belongs to."""
        kind, stage, microbatch = self.columns[:3].astype(np.int64)
        return (kind * self.placement.num_stages + stage) * self.microbatches + microbatch

    @cached_property
    def orders(self) -> list[list[int]]:
        """The same as ids: a list per rank; for plans without parts."""
        ids = self.ids.tolist()
        return [ids[start:stop] for start, stop in pairwise(self.offsets.tolist())]

    @cached_property
    def rank_of(self) -> NDArray[np.int64]:
        """(num_actions,) int64, the rank that runs each column."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def words(self) -> list[list[str]]:
        """The same as text: a list of lists such as ["F0.0", "B0.0"]."""
        return [[str(action) for action in actions] for actions in self.ranks]

    def to_dict(self) -> dict[str, Any]:
        """The part of a plan file that describes the plan: placement, stage_to_rank, microbatches, scheduler, ranks."""
        document: dict[str, Any] = {
            "scheduler": self.scheduler,
            "microbatches": self.microbatches,
            "placement": self.placement.name,
            "stage_to_rank": list(self.placement.stage_to_rank),
            "ranks": self.words(),
        }
        if self.placement.num_routes > 1:
            document["num_routes"] = self.placement.num_routes
        if self.message_order:
            document["message_order"] = [[str(action) for action in link] for link in self.message_order]
        return document

    @classmethod
    def from_dict(cls, document: Any) -> "Plan":
        """The plan of a plan file; `microbatches` may be missing and is then one more than the largest in it.

        Raises:
            ScheduleError, InputError: keys are missing, an action cannot be read, or the placement cannot be.
        """
        known = ("placement", "stage_to_rank", "num_routes", "ranks", "microbatches", "scheduler", "message_order")
        check_keys("plan", document, known, ("stage_to_rank", "ranks"))
        ranks = _actions("ranks", document["ranks"])
        largest = max((action.microbatch for action in chain.from_iterable(ranks)), default=0)
        microbatches = as_count("plan: microbatches", document.get("microbatches", largest + 1))
        message_order = _actions("message_order", document.get("message_order", []))
        scheduler = str(document.get("scheduler", ""))
        return cls.from_actions(ranks, _placement(document, len(ranks)), microbatches, scheduler, message_order)


def _actions(key: str, value: Any) -> list[list[Action]]:
    if not isinstance(value, list) or not all(isinstance(words, list) for words in value):
        raise ScheduleError(f"plan: got {key} of another kind, expected a list of lists of actions")
    return [[Action.parse(word) for word in words] for words in value]


def _placement(document: dict[str, Any], num_ranks: int) -> Placement:
    """The named placement if the file's stages are where it puts them, or a custom one."""
    name, stage_to_rank = document.get("placement"), document["stage_to_rank"]
    if not isinstance(stage_to_rank, list) or not all(type(rank) is int for rank in stage_to_rank):
        raise ScheduleError(f"plan: got stage_to_rank {stage_to_rank!r}, expected a list of ranks")
    if isinstance(name, str) and name in PLACEMENTS and num_ranks and stage_to_rank:
        named = make_placement(name, num_ranks, max(len(stage_to_rank) // num_ranks, 1))
        if named.stage_to_rank == tuple(stage_to_rank):
            return named
    num_routes = as_count("plan: num_routes", document.get("num_routes", 1))
    return Placement("custom", num_ranks, tuple(stage_to_rank), num_routes)
