"""What a rank keeps of the state of training in memory, for when ranks come and go."""

import logging
from collections.abc import Sequence

from lanterne.collectives.communicator import Communicator
from lanterne.pipeline.train.data_parallel import Copies
from lanterne.pipeline.train.memory_checkpoint import HeldState, MemoryCheckpoint, kept_at_home
from lanterne.pipeline.train.replayed import ReplayedCopies
from lanterne.pipeline.train.spaced import SpacedCopies
from lanterne.pipeline.train.trainer import Trainer

log: logging.Logger = logging.getLogger(__name__)


class KeptStates:
    """The state that a rank has of its trainer, and its neighbour's, and of the layout before, while that is needed.

    Args:
        copies, every: as Enduring has them.
    """

    def __init__(self, *, copies: int, every: int) -> None:
        self._copies = copies
        self._every = every
        self._seat: MemoryCheckpoint | None = None
        self._seconds = 0.0  # with trainers before
        # What was held when this layout began, after so many iterations, until an iteration has been done with it.
        self._before: list[HeldState] = []
        self._began = 0
        # The Trainer whose ranks agree before they step.
        self._agrees: Trainer | None = None
        # Of whose copies it was said last that they are lost with their owners' hosts.
        self._at_home: list[int] = []

    @property
    def seconds(self) -> float:
        """What keeping and waiting for copies has taken."""
        return self._seconds + (0.0 if self._seat is None else self._seat.seconds)

    @property
    def nbytes(self) -> int:
        """How much memory what is kept takes, beside the state in the stages."""
        kept = [*([] if self._seat is None else self._seat.kept), *self._before]
        arrays = {id(array): array.nbytes for each in kept for array in (each.units, each.runs, each.values)}
        return sum(arrays.values())

    @property
    def passing_nbytes(self) -> int:
        """How much more that is from when this rank has computed until all have, while it holds no activations."""
        return 0 if self._seat is None else self._seat.passing_nbytes

    def states(self) -> list[HeldState]:
        """What this rank has of the state, in its stages and in memory; nothing before it had a trainer."""
        return [*([] if self._seat is None else self._seat.states()), *self._before]

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

    def _follow(self, comm: Communicator, trainer: Trainer | None, iterations: int) -> None:
        """Hold what the trainer has now, if it is another, or has other stages."""
        if self._seat is not None:
            if self._seat.is_of(trainer):
                self._seat.begin()
                return
            self._before, self._began = self._seat.states(), iterations
            self._let_go()
        if trainer is None:
            return
        if trainer is not self._agrees:
            self._agrees = trainer
            trainer.use(agree=self._agree)
        # Alike on all ranks, those that were out until now too.
        number = 1 + (comm.epoch << 48 | comm.communicator_id << 32 | iterations)
        seat: MemoryCheckpoint = ReplayedCopies(trainer, number, copies=self._copies > 0)
        if seat.is_copying and self._every > 1:
            seat = SpacedCopies(trainer, number, every=self._every)
        self._seat = seat
        if seat.is_copying:
            self._warn(comm)
        seat.meet()
        seat.begin()

    def _warn(self, comm: Communicator) -> None:
        """Say once of which ranks no copy outlives their host."""
        before, self._at_home = self._at_home, kept_at_home(comm.hosts)
        if comm.rank == 0 and self._at_home and self._at_home != before:
            ranks = ", ".join(map(str, self._at_home))
            log.warning(
                "copies: those of ranks %s are on their own host, which has most ranks: none outlives it", ranks
            )

    def _agree(self, copies: Copies) -> float:
        """See Trainer.use. What has begun with other stages than those that are held ends with them."""
        if self._seat is None or not self._seat.has(copies):
            return 0.0
        return self._seat.agree(copies)

    def _let_go(self) -> None:
        if self._seat is not None:
            self._seconds += self._seat.seconds
            self._seat = None
