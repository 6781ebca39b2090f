"""What a rank holds of the state of training in memory: its own at two beginnings of an iteration, and its neighbour's.

Each rank sends what it keeps to the next one, while it computes.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.execute.requests import MessageRequest
from lanterne.pipeline.train.state import held_alone, places_of, runs_of, seat_places, seat_units, seat_values
from lanterne.pipeline.train.trainer import Trainer

# The communicator's tag of copies.
COPY_TAG = 32
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


class HeldCopies:
    """The state that a rank of `trainer` keeps, and its neighbour's, if `copies` are wanted and one has some alone.

    Args:
        number: of the trainer's layout, alike on its ranks: no other layout of the job has the same.

    Attributes: `own`, `neighbours`: states, newest first; `is_copying`, whether ranks send each other theirs;
    `seconds` that keeping and waiting have taken.
    """

    def __init__(self, trainer: Trainer, number: int, *, copies: int) -> None:
        self._comm = comm = trainer.comm
        self._trainer = trainer
        self._seats = trainer.layout
        self.seconds: float = 0.0
        self.own: list[HeldState] = []
        self.neighbours: list[HeldState] = []
        self._coming: tuple[HeldState, list[MessageRequest]] | None = None
        self._number = number
        self._units = seat_units(trainer.layout, comm.rank, sharded=trainer.copies.sharded)
        self._runs = runs_of(seat_places(trainer.copies))
        alone = held_alone(trainer.layout, sharded=trainer.copies.sharded)
        self.is_copying: bool = alone and copies > 0 and comm.world_size > 1

    @property
    def all(self) -> list[HeldState]:
        """All that is kept, this rank's own first, each newest first."""
        return [*self.own, *self.neighbours]

    def is_of(self, trainer: Trainer | None) -> bool:
        """Whether this is of `trainer` with the layout that it has now."""
        return trainer is self._trainer and self._trainer.layout == self._seats

    def live(self) -> list[HeldState]:
        """The state in the stages, unless that is half of one iteration and half of the next, or of another layout."""
        return [self._snapshot()] if self.is_of(self._trainer) and self._trainer.held is not None else []

    def meet(self) -> None:
        """Learn what the copies will be of that come from the rank before: every rank calls it, before it keeps any."""
        if not self.is_copying:
            return
        its = np.empty(2, np.int64)
        self._hand_around(np.array([len(self._units), len(self._runs)]), its)
        self._before_units: NDArray[np.uint8] = np.empty(its[0], np.uint8)
        self._before_runs: NDArray[np.int64] = np.empty((its[1], 2), np.int64)
        self._hand_around(self._units, self._before_units)
        self._hand_around(self._runs, self._before_runs)

    def keep(self) -> None:
        """Keep this rank's state as it is now, unless it is kept, and send it to the next rank."""
        if self.own and self.own[0].iteration == self._trainer.iterations:
            return
        started_s = time.monotonic()
        self._end()
        # The one before stays until all have a copy of this one.
        spare = self.own.pop() if len(self.own) > self.is_copying else None
        held = self._snapshot(None if spare is None else spare.values)
        self.own.insert(0, held)
        if self.is_copying:
            self._begin(held)
        self.seconds += time.monotonic() - started_s

    def end(self) -> None:
        """Wait for the copies under way."""
        started_s = time.monotonic()
        if self._end():
            self.seconds += time.monotonic() - started_s

    def _snapshot(self, out: NDArray[Any] | None = None) -> HeldState:
        trainer = self._trainer
        assert trainer.held is not None
        values = seat_values(trainer.copies, out)
        steps = next(iter(trainer.stages.values())).optimizer.steps
        return HeldState(self._number, trainer.held, steps, self._units, self._runs, values)

    def _begin(self, held: HeldState) -> None:
        comm = self._comm
        after, before = (comm.rank + 1) % comm.world_size, (comm.rank - 1) % comm.world_size
        count = self._before_runs[:, 1].sum()
        spare = self.neighbours.pop().values if len(self.neighbours) > 1 else np.empty(count, held.values.dtype)
        coming = HeldState(held.layout, held.iteration, held.steps, self._before_units, self._before_runs, spare)
        requests = [
            comm.start_recv(coming.values, before, tag=COPY_TAG),
            comm.start_send(held.values, after, tag=COPY_TAG),
        ]
        self._coming = coming, requests

    def _end(self) -> bool:
        """Whether there were any."""
        if self._coming is None:
            return False
        held, requests = self._coming
        for request in requests:
            request.wait()
        self.neighbours.insert(0, held)
        self._coming = None
        return True

    def _hand_around(self, mine: NDArray[Any], its: NDArray[Any]) -> None:
        """Send `mine` to the next rank, receive `its` from the one before."""
        comm = self._comm
        request = comm.start_send(mine, (comm.rank + 1) % comm.world_size, tag=COPY_TAG)
        comm.recv(its, (comm.rank - 1) % comm.world_size, tag=COPY_TAG)
        request.wait()
