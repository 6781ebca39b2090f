"""What a rank holds of the state of training in memory: that in its stages, and perhaps what copies there are."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.execute.requests import MessageRequest
from lanterne.collectives.message_lanes import Lane
from lanterne.pipeline.train.data_parallel import Copies
from lanterne.pipeline.train.state import (
    held_alone,
    places_of,
    runs_of,
    seat_arrays,
    seat_counts,
    seat_places,
    seat_units,
    seat_values,
)
from lanterne.pipeline.train.trainer import Trainer

# Of a layout: all of the state is one unit.
WHOLE = 0


@dataclass
class HeldState:
    """The state of a seat of a layout after `iteration` iterations, and `steps` of its optimizer.

    Attributes: `layout`, whose `units` they are, a number; WHOLE: all of the state is one; `units` and the `runs` of
    their places as state.py has them, `values` of those.
    """

    layout: int
    iteration: int
    steps: int
    units: NDArray[np.uint8]
    runs: NDArray[np.int64]
    values: NDArray[Any]

    @property
    def places(self) -> NDArray[np.int64]:
        """Where its values are in the whole state."""
        return places_of(self.runs)

    def copy(self) -> "HeldState":
        """One with values of its own."""
        return replace(self, values=self.values.copy())


def keepers(hosts: Sequence[str]) -> list[int]:
    """By rank, who keeps the copy of its state: each one's, on another host as far as there are enough of those.

    Args:
        hosts: the host of each rank.

    Cost: none is on its owner's host unless that has more than half of the ranks.
    """
    order = sorted(range(len(hosts)), key=lambda rank: (hosts.index(hosts[rank]), rank))
    most = max(map(hosts.count, hosts))
    shift = 1 if most == len(hosts) else most
    found = dict(zip(order, order[shift:] + order[:shift], strict=True))
    return [found[rank] for rank in range(len(hosts))]


def kept_at_home(hosts: Sequence[str]) -> list[int]:
    """Ranks of which all copies are on their own host, and are lost with it."""
    return [rank for rank, keeper in enumerate(keepers(hosts)) if hosts[keeper] == hosts[rank]]


class MemoryCheckpoint(ABC):
    """The state that a rank has in the stages of a Trainer's layout, and what is kept so that no death loses any.

    Args:
        number: of the layout, alike on its ranks: no other layout of the job has the same.
        copies: whether each rank keeps its neighbour's state, where one has some alone.

    Attributes: `is_copying`, whether they do; `seconds` that ranks have waited for each other because of it, and that
    keeping has taken.
    """

    def __init__(self, trainer: Trainer, number: int, *, copies: bool) -> None:
        self.seconds: float = 0.0
        self._comm = comm = trainer.comm
        self._stages = trainer.stages
        self._copies = trainer.copies
        self._began = trainer.iterations, self._stepped()[0]
        sharded = trainer.copies.sharded
        units = seat_units(trainer.layout, comm.rank, sharded=sharded)
        runs = runs_of(seat_places(trainer.copies))
        values = np.empty(0, next(iter(self._stages.values())).dtype)
        # What states of this rank are, and of its neighbour, whose copy it keeps, but for their values.
        self._own = HeldState(number, 0, 0, units, runs, values)
        self._its = replace(self._own)
        # By stage of the neighbour, how many parameters it answers for.
        self._its_counts = np.empty(0, np.int64)
        self.is_copying: bool = copies and comm.world_size > 1 and held_alone(trainer.layout, sharded=sharded)

    @property
    def iteration(self) -> int | None:
        """After how many iterations the stages' state is; None: some of them have made a step, some not yet."""
        steps = self._stepped()
        return self._began[0] + steps[0] - self._began[1] if len(set(steps)) == 1 else None

    def is_of(self, trainer: Trainer | None) -> bool:
        """Whether this is of `trainer` with the stages that it has now."""
        return trainer is not None and trainer.stages is self._stages and self.iteration == trainer.iterations

    def has(self, copies: Copies) -> bool:
        """Whether it is their stages that this is of."""
        return copies.stages is self._stages

    def meet(self) -> None:
        """Learn what copies will be of that come from the neighbour: every rank calls it first."""
        if not self.is_copying:
            return
        counts, sizes = seat_counts(self._copies), np.empty(3, np.int64)
        self._hand_around([np.array([len(counts), len(self._own.units), len(self._own.runs)])], [sizes])
        its = replace(self._its, units=np.empty(sizes[1], np.uint8), runs=np.empty((sizes[2], 2), np.int64))
        self._its_counts = np.empty(sizes[0], np.int64)
        self._hand_around([counts, self._own.units, self._own.runs], [self._its_counts, its.units, its.runs])
        self._its = its

    @abstractmethod
    def begin(self) -> None:
        """An iteration is about to begin with these stages; the one before has ended on all ranks."""

    @abstractmethod
    def agree(self, copies: Copies) -> float:
        """All is computed: see Trainer.use. `copies` are those of its stages now."""

    @abstractmethod
    def states(self) -> list[HeldState]:
        """All states that this rank can bring. A step that others may have made is made here, too."""

    @property
    @abstractmethod
    def kept(self) -> Sequence[HeldState]:
        """What is in memory beside the state in the stages."""

    @property
    def passing_nbytes(self) -> int:
        """How much more there is from when this rank has computed until all have, while stages hold no activations."""
        return 0

    def _stepped(self) -> list[int]:
        return [stage.optimizer.steps for stage in self._stages.values()]

    def _snapshot(self, out: NDArray[Any] | None = None) -> HeldState:
        """The state in the stages."""
        assert self.iteration is not None
        values = seat_values(self._copies, out)
        return replace(self._own, iteration=self.iteration, steps=self._stepped()[0], values=values)

    def _blank(self) -> HeldState:
        """Room for the state that the neighbour has now."""
        assert self.iteration is not None
        values = np.empty(3 * self._its_counts.sum(), self._own.values.dtype)
        return replace(self._its, iteration=self.iteration, steps=self._stepped()[0], values=values)

    def _start_copy(self, into: HeldState) -> list[MessageRequest]:
        """Send the state to its keeper from where it lies, which must stay as it is, and receive."""
        cuts = np.repeat(self._its_counts, 3).cumsum()[:-1]
        return self._start_around(seat_arrays(self._copies), np.split(into.values, cuts))

    def _start_around(self, mine: Sequence[Any], its: Sequence[NDArray[Any]]) -> list[MessageRequest]:
        """Send `mine` to the rank that keeps it, receive `its` from the one whose copy this rank keeps."""
        comm = self._comm
        to = keepers(comm.hosts)
        receives = [comm.start_recv(array, to.index(comm.rank), tag=Lane.REPLICA) for array in its]
        return receives + [comm.start_send(array, to[comm.rank], tag=Lane.REPLICA) for array in mine]

    def _hand_around(self, mine: Sequence[Any], its: Sequence[NDArray[Any]]) -> None:
        for request in self._start_around(mine, its):
            request.wait()
