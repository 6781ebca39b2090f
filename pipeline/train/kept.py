"""What a rank keeps of the state of training in memory, for when ranks come and go."""

from collections.abc import Sequence
from typing import Any

from lanterne.collectives.communicator import Communicator
from lanterne.pipeline.execute.execute import Measured, execute
from lanterne.pipeline.train.neighbours import HeldCopies, HeldState
from lanterne.pipeline.train.trainer import Executor, Trainer


class KeptStates:
    """The state that a rank keeps of its trainer and its neighbour's, and of the layout before, while that is needed.

    Args:
        copies, every: as Enduring has them.
    """

    def __init__(self, *, copies: int, every: int) -> None:
        self._copies = copies
        self._every = every
        self._held: HeldCopies | None = None
        self._seconds = 0.0  # with trainers before
        # What was held when this layout began, after so many iterations, until an iteration has been done with it.
        self._before: list[HeldState] = []
        self._began = 0
        # The Trainer that iterations are run with by `_run`, and what ran them before.
        self._ends_copies: Trainer | None = None
        self._execute: Executor = execute

    @property
    def seconds(self) -> float:
        """What keeping and waiting for copies has taken."""
        return self._seconds + (0.0 if self._held is None else self._held.seconds)

    @property
    def all(self) -> list[HeldState]:
        """What this rank has of the state, in its stages and in memory; nothing before it had a trainer."""
        return [*([] if self._held is None else [*self._held.live(), *self._held.all]), *self._before]

    @property
    def nbytes(self) -> int:
        """How much memory what is kept takes, beside the state in the stages."""
        kept = [*([] if self._held is None else self._held.all), *self._before]
        arrays = {id(array): array.nbytes for each in kept for array in (each.units, each.runs, each.values)}
        return sum(arrays.values())

    def begin(
        self, comm: Communicator, trainer: Trainer | None, iterations: int, whole: Sequence[HeldState] = ()
    ) -> None:
        """There is a new trainer, None on a rank that is out, after `iterations`, from the state `whole`, if any."""
        self._before, self._began = [*whole], iterations
        self._let_go()
        self._follow(comm, trainer, iterations)

    def look(self, comm: Communicator, trainer: Trainer | None, iterations: int) -> None:
        """Between iterations: follow `trainer`, and keep what somebody may need; every rank calls it."""
        if iterations > self._began:
            self._before = []  # All ranks have had these losses, and have their copies.
        self._follow(comm, trainer, iterations)
        self.keep(iterations)

    def keep(self, iterations: int) -> None:
        """Every so often: keep this rank's state, and send it to the next rank."""
        if self._held is not None and iterations % self._every == 0:
            self._held.keep()

    def _follow(self, comm: Communicator, trainer: Trainer | None, iterations: int) -> None:
        """Hold what the trainer has now, if it is another, or has another layout."""
        if self._held is not None:
            if self._held.is_of(trainer):
                return
            self._before, self._began = self._held.all, iterations
            self._let_go()
        if trainer is None:
            return
        if trainer is not self._ends_copies:
            self._ends_copies, self._execute = trainer, trainer.use(self._run)
        # Alike on all ranks, those that were out until now too.
        number = 1 + (comm.epoch << 48 | comm.communicator_id << 32 | iterations)
        self._held = HeldCopies(trainer, number, copies=self._copies)
        self._held.meet()

    def _run(self, *args: Any, **options: Any) -> Measured:
        """An iteration, and what is left of the copies: who has its losses knows that all ranks have their copies."""
        measured = self._execute(*args, **options)
        if self._held is not None:
            self._held.end()
        return measured

    def _let_go(self) -> None:
        if self._held is not None:
            self._seconds += self._held.seconds
            self._held = None
