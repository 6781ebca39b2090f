"""Training that outlives its ranks: those that are left go on, whoever comes back is taken in, nobody starts again.

    training = Enduring(comm, lambda comm: Trainer(comm, ...), copies=1)
    while training.iterations < 50:
        print(training.iteration().loss)

After a death the ranks shrink, a Trainer for as many as there are is made, and the state of training is put together
from what they hold: their own, and copies of their neighbours'. No rank changes its state before all can make the same
step. What nobody holds comes from a checkpoint. Between iterations those that wait are taken in.

What runs a Trainer and moves it, such as a ClosedLoop, outlives ranks in the same way: see Training.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from lanterne.collectives.communicator import Communicator
from lanterne.errors import LanterneError, TransportError, Unavailable
from lanterne.pipeline.train.replicas import ReplicaStore
from lanterne.pipeline.train.state import TrainingState, move_state
from lanterne.pipeline.train.trainer import Iteration, Trainer

Result = TypeVar("Result")

log: logging.Logger = logging.getLogger(__name__)


class GroupChange(NamedTuple):
    """That the ranks have changed.

    Attributes: `iteration` with which training went on; `ranks` that there are; `newcomers`, of those; `repeated`,
    iterations that are done again; `seconds`, from the error, or the end of an iteration, until then; `source` of the
    state, "memory", "checkpoint" or "start"; `why`.
    """

    iteration: int
    ranks: int
    newcomers: tuple[int, ...]
    repeated: int
    seconds: float
    source: str
    why: str


class Training(Protocol):
    """What runs a Trainer, may change its layout between iterations, and may leave ranks out, alike on all ranks."""

    @property
    def trainer(self) -> Trainer | None:
        """The Trainer of now; None on a rank that is out."""

    @property
    def iterations(self) -> int:
        """How many are done, on a rank that is out too."""
        ...

    def iteration(self) -> Iteration | None:
        """Train on the next batch; None on a rank that is out."""

    def restore(self, state: TrainingState) -> None:
        """Go on from `state`; nobody is out."""

    def close(self) -> None:
        """Release what it made."""


class Enduring:
    """Training under way, with whoever there is.

    Args:
        comm: the Communicator of all ranks; ranks are taken in over tcp and ucx.
        make: makes a Trainer, or a Training, of a Communicator, whatever its size; alike on all ranks.
        copies: 1: where a rank has some of the state alone (as in a pipeline without copies, or with ZeRO-1), each
            keeps a copy of its neighbour's; 0: none does.
        every: 1: the neighbour's gradients come after each iteration, its step is made here too, and at most one
            iteration is done again after a death (ReplayedReplicas); more: its state comes every so many iterations,
            while ranks compute, and about as many are done again (SpacedReplicas).
        checkpoint: gives the TrainingState to go on from, on every rank, where memory does not have it all.
        model: see Communicator.grow.

    Attributes: `comm`, of now; `changes`, a list of GroupChange; `kept`, the ReplicaStore.

    Cost: an iteration takes a barrier more. Nothing is kept without copies; with them its neighbour's state, or with
    `every` above 1 that and its own, and while a copy is under way its neighbour's once more.
    """

    def __init__(
        self,
        comm: Communicator,
        make: Callable[[Communicator], Trainer | Training],
        *,
        copies: int = 0,
        every: int = 1,
        checkpoint: Callable[[], TrainingState | None] = lambda: None,
        model: str = "",
    ) -> None:
        self.comm: Communicator = comm
        self.changes: list[GroupChange] = []
        self._make = make
        self.kept: ReplicaStore = ReplicaStore(copies=copies, every=every)
        self._checkpoint = checkpoint
        self._model = model
        self._training: Trainer | Training | None = None
        try:
            if comm.newcomers:
                self._rebuild(comm, [], time.monotonic(), "it was taken in")
            else:
                self._training = training = make(comm)
                self.kept.begin(comm, trainer_of(training), training.iterations)
        except TransportError as error:
            self._go_on(error)

    @property
    def training(self) -> Trainer | Training:
        """What was made of `comm`."""
        assert self._training is not None
        return self._training

    @property
    def trainer(self) -> Trainer | None:
        """The Trainer of now; None on a rank that is out."""
        return trainer_of(self.training)

    @property
    def iterations(self) -> int:
        """How many are done."""
        return self.training.iterations

    def iteration(self) -> Iteration | None:
        """Take in who waits, and train on the next batch, with whoever there is; every rank calls it.

        After a death that batch, or some before it, is trained on again. None: it is done, but a death kept this rank
        from hearing of its losses, or it is out.

        Raises:
            LanterneError: no Trainer can be made of those that are left, or nobody has some of the state.
        """
        wanted = self.iterations
        while True:
            try:
                self._look_around()
                return self.training.iteration()
            except TransportError as error:
                self._go_on(error)
                if self.iterations > wanted:
                    return None

    def state(self) -> TrainingState | None:
        """See Trainer.state; None on a rank that is out, and if a death came in between: memory has the latest then."""
        try:
            return self.trainer.state() if self.trainer is not None else None
        except TransportError as error:
            self._go_on(error)
            return None

    def finish(self, last: Callable[[Communicator], Result]) -> Result:
        """What `last(comm)`, a collective call, returns, once every rank has called it. For the end of training.

        After a death, whoever still lacks something gets it, and those that are left call it again.

        Raises: as `iteration`.
        """
        wanted = self.iterations
        while True:
            try:
                result = last(self.comm)
                self.comm.barrier()
                break
            except TransportError as error:
                self._go_on(error)
                while self.iterations < wanted:
                    self.iteration()
        self._close()
        return result

    # -- between iterations

    def _look_around(self) -> None:
        """Keep what somebody may need, and take in who waits."""
        self.kept.look(self.comm, self.trainer, self.iterations)
        # Again once somebody was taken in: it begins with this, too.
        started_s = time.monotonic()
        while (grown := self._grown()) is not self.comm:
            held = self.kept.states()
            names = ", ".join(map(str, grown.newcomers))
            self._rebuild(grown, held, started_s, f"rank {names} was taken in")
            started_s = time.monotonic()

    def _grown(self) -> Communicator:
        try:
            return self.comm.grow(self._model)
        except Unavailable:
            return self.comm  # Over this transport nobody comes back.

    # -- when ranks come and go

    def _go_on(self, error: TransportError) -> None:
        """With those that live, from the latest iteration of which they have all."""
        started_s, held = time.monotonic(), self.kept.states()
        for _ in range(self.comm.world_size):
            log.warning("training goes on: %s", error)
            self.comm = self.comm.shrink()
            try:
                self._rebuild(self.comm, held, started_s, str(error))
                return
            except TransportError as another:
                error = another
        raise error

    def _rebuild(self, comm: Communicator, held: Sequence[TrainingState], started_s: float, why: str) -> None:
        """A Training on `comm`, with the state that all `held` make together."""
        before = self.iterations if self._training is not None else 0
        self.comm = comm
        self._close()
        training = self._make(comm)
        trainer = trainer_of(training)
        assert trainer is not None, "nobody is out at first"
        state, latest = move_state(comm, held)
        source = "checkpoint" if state is None else "memory"
        state = state or self._checkpoint()
        if state is None and latest <= 0:
            state, source = trainer.state(), "start"
        if state is None:
            raise LanterneError(
                "training: those that are left do not have all of the state, and there is no checkpoint: expected "
                "copies in memory (copies=1), or a checkpoint"
            )
        training.restore(state)
        self._training = training
        self.kept.begin(comm, trainer_of(training), state.iteration, [state])
        repeated = max(0, before - state.iteration)
        seconds = time.monotonic() - started_s
        self.changes.append(
            GroupChange(state.iteration, comm.world_size, comm.newcomers, repeated, seconds, source, why)
        )

    def _close(self) -> None:
        if self._training is not None:
            # Its communicators may be over, and their transport closed.
            with suppress(TransportError):
                self._training.close()


def trainer_of(training: Trainer | Training) -> Trainer | None:
    """The Trainer that runs now; None on a rank that is out."""
    return training if isinstance(training, Trainer) else training.trainer
