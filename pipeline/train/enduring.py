"""Training that outlives its ranks: those that are left go on, whoever comes back is taken in, nobody starts again.

    training = Enduring(comm, lambda comm: Trainer(comm, ...), copies=1)
    while training.iterations < 50:
        print(training.iteration().loss)

After a death the ranks shrink, a Trainer for as many as there are is made, and the state of training is put together
from what they hold: their own, of the beginning of the iteration at the latest, and copies of their neighbours'. What
nobody holds comes from a checkpoint. Between iterations those that wait are taken in.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.communicator import Communicator
from lanterne.errors import LanterneError, TransportError, Unavailable
from lanterne.pipeline.train.checkpoint import VECTORS, TrainingState
from lanterne.pipeline.train.neighbours import WHOLE, HeldCopies, HeldState
from lanterne.pipeline.train.trainer import Iteration, Trainer

# The communicator's tag of what ranks bring together; that of copies is in neighbours.py.
GATHER_TAG = 33
# Of an iteration: nothing is held.
NONE = -1
# What a rank may hold: its state now, at two beginnings before, its neighbour's at two, and all of it.
MOST_HELD = 6

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


class Enduring:
    """Training under way, with whoever there is.

    Args:
        comm: the Communicator of all ranks; ranks are taken in over tcp and ucx.
        make: makes a Trainer of a Communicator, whatever its size; alike on all ranks.
        copies: 1: where a rank has some of the state alone (as in a pipeline without copies, or with ZeRO-1), each
            keeps a copy of its neighbour's, sent while it computes; 0: none does.
        every: iterations between copies, and so about as many as are done again at most after a death.
        checkpoint: gives the TrainingState to go on from, on every rank, where memory does not have it all.
        model: see Communicator.grow.

    Attributes: `comm`, `trainer`: those of now; `changes`, a list of GroupChange.

    Cost: a rank keeps its own state once more, and where there are copies twice, and its neighbour's twice.
    """

    def __init__(
        self,
        comm: Communicator,
        make: Callable[[Communicator], Trainer],
        *,
        copies: int = 0,
        every: int = 1,
        checkpoint: Callable[[], TrainingState | None] = lambda: None,
        model: str = "",
    ) -> None:
        self.comm: Communicator = comm
        self.changes: list[GroupChange] = []
        self._make = make
        self._copies = copies
        self._every = every
        self._checkpoint = checkpoint
        self._model = model
        self._held: HeldCopies | None = None
        self._copied_s = 0.0  # With trainers before.
        self._whole: list[HeldState] = []  # where this layout began, until copies have been made
        self._trainer: Trainer | None = None
        try:
            if comm.newcomers:
                self._rebuild(comm, [], time.monotonic(), "it was taken in")
            else:
                self._use(make(comm))
        except TransportError as error:
            self._go_on(error)

    @property
    def trainer(self) -> Trainer:
        """The Trainer on `comm`."""
        assert self._trainer is not None
        return self._trainer

    @property
    def copy_s(self) -> float:
        """Seconds that keeping and waiting for copies has taken."""
        return self._copied_s + (0.0 if self._held is None else self._held.seconds)

    @property
    def iterations(self) -> int:
        """How many are done."""
        return self.trainer.iterations

    def iteration(self) -> Iteration | None:
        """Take in who waits, and train on the next batch, with whoever there is; every rank calls it.

        After a death that batch, or some before it, is trained on again. None: it is done, but a death kept this rank
        from hearing of its losses.

        Raises:
            LanterneError: no Trainer can be made of those that are left, or nobody has some of the state.
        """
        wanted = self.iterations
        while True:
            try:
                self._look_around()
                return self.trainer.iteration()
            except TransportError as error:
                self._go_on(error)
                if self.iterations > wanted:
                    return None

    def state(self) -> TrainingState | None:
        """See Trainer.state; None if a death came in between: training goes on from what memory has then."""
        try:
            return self.trainer.state()
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
        self._close_trainer()
        return result

    # -- between iterations

    def _look_around(self) -> None:
        """Keep what somebody may need, and take in who waits."""
        if self._whole and self.iterations > self._whole[0].iteration:
            self._whole = []  # All ranks have had these losses, and have their copies.
        self._keep()
        # Again once somebody was taken in: it begins with this, too.
        started_s = time.monotonic()
        while (grown := self._grown()) is not self.comm:
            held = [] if self._held is None else self._held.live()
            names = ", ".join(map(str, grown.newcomers))
            self._rebuild(grown, held, started_s, f"rank {names} was taken in")
            started_s = time.monotonic()

    def _grown(self) -> Communicator:
        try:
            return self.comm.grow(self._model)
        except Unavailable:
            return self.comm  # Over this transport nobody comes back.

    def _keep(self) -> None:
        """Every so often: keep this rank's state, and send it to the next rank."""
        if self._held is not None and self.trainer.iterations % self._every == 0:
            self._held.keep()

    def _end_copy(self, *_: object) -> float:
        """Wait for the copies under way: before the losses, so that who has those knows that all have their copies."""
        if self._held is not None:
            self._held.end()
        return 0.0

    # -- when ranks come and go

    def _go_on(self, error: TransportError) -> None:
        """With those that live, from the latest iteration of which they have all."""
        started_s, held = time.monotonic(), self._all_held()
        for _ in range(self.comm.world_size):
            log.warning("training goes on: %s", error)
            self.comm = self.comm.shrink()
            try:
                self._rebuild(self.comm, held, started_s, str(error))
                return
            except TransportError as another:
                error = another
        raise error

    def _all_held(self) -> list[HeldState]:
        """What this rank has of the state, in its stages and in memory; nothing before it had a trainer."""
        return [] if self._held is None else [*self._held.live(), *self._held.all, *self._whole]

    def _rebuild(self, comm: Communicator, held: Sequence[HeldState], started_s: float, why: str) -> None:
        """A Trainer on `comm`, with the state that all `held` make together."""
        before = self.iterations if self._trainer is not None else 0
        self.comm = comm
        self._close_trainer()
        trainer = self._make(comm)
        state, latest = gather_held(comm, held)
        source = "checkpoint" if state is None else "memory"
        state = state or self._checkpoint()
        if state is None and latest <= 0:
            state, source = trainer.state(), "start"
        if state is None:
            raise LanterneError(
                "training: those that are left do not have all of the state, and there is no checkpoint: expected "
                "copies in memory (copies=1), or a checkpoint"
            )
        trainer.restore(state)
        values = np.concatenate([getattr(state, name) for name in VECTORS])
        units, places = np.ones(1, np.uint8), np.arange(len(values), dtype=np.int64)
        self._whole = [HeldState(WHOLE, state.iteration, state.steps, units, places, values)]
        self._use(trainer)
        self._keep()
        repeated = max(0, before - state.iteration)
        seconds = time.monotonic() - started_s
        self.changes.append(
            GroupChange(state.iteration, comm.world_size, comm.newcomers, repeated, seconds, source, why)
        )

    def _use(self, trainer: Trainer) -> None:
        self._trainer = trainer
        trainer.use(vote=self._end_copy)
        self._copied_s = self.copy_s
        self._held = HeldCopies(self.comm, trainer, copies=self._copies)
        self._held.meet()

    def _close_trainer(self) -> None:
        if self._trainer is not None:
            # Its communicators may be over, and their transport closed.
            with suppress(TransportError):
                self._trainer.close()


def gather_held(comm: Communicator, held: Sequence[HeldState]) -> tuple[TrainingState | None, int]:
    """The latest state that is complete in what all ranks have `held`, on all of them, None if none is; and how many
    iterations anybody knows of.

    Cost: the state crosses the link of rank 0 once, and is broadcast.
    """
    mine = np.full((1 + MOST_HELD, 4), NONE, np.int64)
    for row, each in enumerate(held):
        mine[row] = each.iteration, each.layout, each.steps, len(each.units)
    mine[-1] = held[0].values.dtype.itemsize if held else 0
    told = np.empty((comm.world_size, *mine.shape), np.int64)
    comm.all_gather(mine, told)
    rows, itemsize = told[:, :-1].reshape(-1, 4), int(told[:, -1, 0].max())
    latest = int(rows[:, 0].max())
    for iteration, layout, steps, num_units in sorted({tuple(row) for row in rows.tolist()}, reverse=True):
        if iteration == NONE:
            break
        own = [each for each in held if (each.iteration, each.layout) == (iteration, layout)]
        units = np.zeros(num_units, np.uint8)
        for each in own:
            units |= each.units
        every = np.empty((comm.world_size, num_units), np.uint8)
        comm.all_gather(units, every)
        if every.any(0).all():
            # A unit that several hold comes from the first of them.
            first = every.argmax(0) == comm.rank
            chosen = [each for each in own if each.units[first].any()]
            return TrainingState(iteration, steps, *_together(comm, chosen, np.dtype(f"f{itemsize}"))), latest
    return None, latest


def _together(comm: Communicator, chosen: Sequence[HeldState], dtype: np.dtype[Any]) -> NDArray[Any]:
    """(3, numbers of the model): what the ranks have `chosen`, on all of them."""
    places = np.concatenate([np.empty(0, np.int64), *(each.places for each in chosen)])
    values = np.concatenate([np.empty(0, dtype), *(each.values for each in chosen)])
    counts = np.empty((comm.world_size, 2), np.int64)
    comm.all_gather(np.array([len(places), places.max(initial=-1) + 1]), counts)
    whole = np.zeros(int(counts[:, 1].max()), dtype)
    if comm.rank:
        if len(places):
            comm.send(places, 0, tag=GATHER_TAG)
            comm.send(values, 0, tag=GATHER_TAG)
    else:
        whole[places] = values
        for peer in np.flatnonzero(counts[1:, 0]) + 1:
            places, values = np.empty(counts[peer, 0], np.int64), np.empty(counts[peer, 0], dtype)
            comm.recv(places, int(peer), tag=GATHER_TAG)
            comm.recv(values, int(peer), tag=GATHER_TAG)
            whole[places] = values
    comm.broadcast(whole)
    return whole.reshape(len(VECTORS), -1)
