"""Copies of a neighbour's state that make the same steps: gradients come, once an iteration, and no state.

Once all is computed each rank sends its gradients to its keeper, and all wait until all have them. Until then nobody
has changed any state: all have that of the beginning of the iteration. From then on each can make the step, its own and
its neighbour's, with what it has itself, whoever dies. So nobody keeps a state that was, and a copy is never half of
one iteration and half of the next because of a death.
"""

import time
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanterne.pipeline.model.stage_layers import Optimizer
from lanterne.pipeline.train.data_parallel import Copies
from lanterne.pipeline.train.memory_checkpoint import HeldState, MemoryCheckpoint
from lanterne.pipeline.train.state import seat_gradients
from lanterne.pipeline.train.trainer import Trainer


class ReplayedCopies(MemoryCheckpoint):
    """See MemoryCheckpoint; optimizers are alike on all ranks, and each is all that a checkpoint holds of it.

    Cost: beside the state in its stages a rank keeps its neighbour's, once; and from when it has computed until all
    have, when it holds no activations, its gradients. An iteration takes a barrier more, the gradients' way and the
    neighbour's step.
    """

    def __init__(self, trainer: Trainer, number: int, *, copies: bool) -> None:
        super().__init__(trainer, number, copies=copies)
        self._neighbour: HeldState | None = None
        self._gradients: list[NDArray[Any]] = []
        # The copies whose step can be made here whoever dies, and how many steps each of their stages had made.
        self._ready: tuple[Copies, int] | None = None
        self._is_agreed = False

    def meet(self) -> None:
        super().meet()
        if self.is_copying:
            coming = self._blank()
            for request in self._start_copy(coming):
                request.wait()
            self._neighbour = coming

    @property
    def kept(self) -> list[HeldState]:
        return [] if self._neighbour is None else [self._neighbour]

    @property
    def passing_nbytes(self) -> int:
        return int(self._its_counts.sum()) * self._own.values.itemsize if self.is_copying else 0

    def is_of(self, trainer: Trainer | None) -> bool:
        return super().is_of(trainer) and all(each.iteration == self.iteration for each in self.kept)

    def agree(self, copies: Copies) -> float:
        copies.wait()
        started_s = time.monotonic()
        if self.is_copying:
            gradients = [np.empty(count, self._own.values.dtype) for count in self._its_counts]
            self._hand_around(seat_gradients(copies), gradients)
            self._gradients = gradients
        self._is_agreed, self._ready = False, (copies, self._stepped()[0])
        self._comm.barrier()
        self._is_agreed = True
        self._replay()
        self.seconds += (taken_s := time.monotonic() - started_s)
        return taken_s

    def begin(self) -> None:
        self._ready = None

    def states(self) -> list[HeldState]:
        # Others may have stepped, or may not be able to.
        before = [] if self._ready is None or self._is_agreed else [self._snapshot(), *(x.copy() for x in self.kept)]
        self._make_step()
        return [self._snapshot(), *self.kept, *before]

    def _make_step(self) -> None:
        """What is left to do of a step that all can make."""
        if self._ready is None:
            return
        copies, steps = self._ready
        for number, stage in copies.stages.items():
            if stage.optimizer.steps == steps:
                copies.update(number)
        self._replay()
        self._ready = None

    def _replay(self) -> None:
        if self._neighbour is not None and self._gradients:
            replay(self._neighbour, self._gradients, next(iter(self._stages.values())).optimizer)
        self._gradients = []


def replay(held: HeldState, gradients: Sequence[NDArray[Any]], optimizer: Optimizer) -> None:
    """Make the next step of the state of a seat by the `gradients` of its stages, as `optimizer` makes them."""
    at = 0
    for gradient in gradients:
        parameters, mean, square = held.values[at : at + 3 * len(gradient)].reshape(3, -1)
        its = copy(optimizer)
        its.steps = held.steps
        its.mean = mean
        its.square = square
        its.step(parameters, gradient)
        for before, after in ((mean, its.mean), (square, its.square)):
            if after is not before:
                before[...] = after
        at += 3 * len(gradient)
    held.iteration += 1
    held.steps += 1
