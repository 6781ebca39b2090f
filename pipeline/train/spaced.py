"""Copies of a neighbour's state every few iterations, sent while ranks compute.

The state goes from where it lies, which changes only when all ranks have received all: then each keeps its own as it
is, for whoever dies later takes all back to it. A copy that is under way never touches the one before.
"""

import time

from lanterne.collectives.execute.requests import MessageRequest
from lanterne.pipeline.train.data_parallel import Copies
from lanterne.pipeline.train.memory_checkpoint import HeldState, MemoryCheckpoint
from lanterne.pipeline.train.trainer import Trainer


class SpacedCopies(MemoryCheckpoint):
    """See MemoryCheckpoint.

    Args:
        every: iterations between copies.

    Cost: beside the state in its stages a rank keeps its own and its neighbour's, as they were, and while a copy is
    under way its neighbour's once more.
    """

    def __init__(self, trainer: Trainer, number: int, *, every: int) -> None:
        super().__init__(trainer, number, copies=True)
        self._every = every
        # All that all ranks have of one iteration, this rank's first; none at first.
        self._complete: list[HeldState] = []
        # What comes, until all have all of it.
        self._coming: tuple[HeldState, list[MessageRequest]] | None = None
        self._has_come = False

    @property
    def kept(self) -> list[HeldState]:
        return [*self._complete, *([] if self._coming is None else [self._coming[0]])]

    def begin(self) -> None:
        assert self.iteration is not None
        is_due = not self._complete or self.iteration % self._every == 0
        if is_due and self._coming is None and self.iteration not in [each.iteration for each in self._complete]:
            coming = self._blank()
            self._coming, self._has_come = (coming, self._start_copy(coming)), False

    def agree(self, copies: Copies) -> float:
        if self._coming is None:
            return 0.0
        copies.wait()
        started_s = time.monotonic()
        coming, requests = self._coming
        for request in requests:
            request.wait()
        self._has_come = True
        self._comm.barrier()
        own = self._snapshot(self._complete[0].values if self._complete else None)
        self._complete, self._coming = [own, coming], None
        self.seconds += (taken_s := time.monotonic() - started_s)
        return taken_s

    def states(self) -> list[HeldState]:
        live = [] if self.iteration is None else [self._snapshot()]
        come = [self._coming[0]] if self._coming is not None and self._has_come else []
        return [*live, *come, *self._complete]
