"""Replicas of training state in memory, so that no death of a rank loses any of it.

Each rank sends what it holds alone to a keeper, on another host where there is one. With `every` 1 a replica makes the
same steps as its owner, from gradients that are sent once an iteration (ReplayedReplicas). With more, the state itself
is sent at intervals while ranks compute (SpacedReplicas).
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.communicator import Communicator
from lanterne.collectives.execute.requests import MessageRequest
from lanterne.collectives.message_lanes import Lane
from lanterne.pipeline.model.stage_layers import Optimizer
from lanterne.pipeline.train.data_parallel import Copies
from lanterne.pipeline.train.state import TrainingState, seat_arrays, seat_counts, seat_gradients, seat_state
from lanterne.pipeline.train.trainer import Trainer

log: logging.Logger = logging.getLogger(__name__)


def keepers(hosts: Sequence[str]) -> list[int]:
    """Return for each rank the rank that keeps its replica.

    Args:
        hosts: the host of each rank.

    Cost: no replica is on its owner's host unless that has more than half of the ranks.
    """
    order = sorted(range(len(hosts)), key=lambda rank: (hosts.index(hosts[rank]), rank))
    most = max(map(hosts.count, hosts))
    shift = 1 if most == len(hosts) else most
    found = dict(zip(order, order[shift:] + order[:shift], strict=True))
    return [found[rank] for rank in range(len(hosts))]


def kept_at_home(hosts: Sequence[str]) -> list[int]:
    """Return the ranks whose replica is on their own host, and is lost with it."""
    return [rank for rank, keeper in enumerate(keepers(hosts)) if hosts[keeper] == hosts[rank]]


def start_around(comm: Communicator, mine: Sequence[Any], its: Sequence[NDArray[Any]]) -> list[MessageRequest]:
    """Send `mine` to the rank that keeps this one's replica, and receive `its` of the rank whose replica is kept here.

    Arrays without elements are left out.
    """
    to = keepers(comm.hosts)
    receives = [comm.start_recv(array, to.index(comm.rank), tag=Lane.REPLICA) for array in its if array.size]
    return receives + [comm.start_send(array, to[comm.rank], tag=Lane.REPLICA) for array in mine if array.size]


def hand_around(comm: Communicator, mine: Sequence[Any], its: Sequence[NDArray[Any]]) -> None:
    """Do as `start_around`, and wait for it."""
    for request in start_around(comm, mine, its):
        request.wait()


class Replicas(ABC):
    """What one rank holds of the state while a Trainer has the same stages.

    Args:
        copies: whether each rank keeps its neighbour's state, where a rank holds some alone.

    Attributes: `is_copying`, whether they do; `seconds` spent on replicas, and waiting for other ranks because of them.
    """

    def __init__(self, trainer: Trainer, *, copies: bool) -> None:
        self.seconds: float = 0.0
        self._comm = comm = trainer.comm
        self._stages = trainer.stages
        self._copies = trainer.copies
        self._began = trainer.iterations, self._stepped()[0]
        # The neighbour's state but for its values; and how many parameters of each of its stages it answers for.
        self._its = seat_state(trainer.copies, trainer.iterations)
        self._its_counts = np.empty(0, np.int64)
        alone = trainer.copies.sharded or trainer.layout.shape[0] == 1
        self.is_copying: bool = copies and comm.world_size > 1 and alone

    @property
    def iteration(self) -> int | None:
        """Iterations done in the stages; None where some have made a step and some have not."""
        steps = self._stepped()
        return self._began[0] + steps[0] - self._began[1] if len(set(steps)) == 1 else None

    def is_of(self, trainer: Trainer | None) -> bool:
        """Return whether `trainer` still has these stages."""
        return trainer is not None and trainer.stages is self._stages and self.iteration == trainer.iterations

    def has(self, copies: Copies) -> bool:
        """Return whether these are the stages of `copies`."""
        return copies.stages is self._stages

    def meet(self) -> None:
        """Learn the shape of the neighbour's state; every rank calls it first."""
        if not self.is_copying:
            return
        counts, sizes = seat_counts(self._copies), np.empty(2, np.int64)
        hand_around(self._comm, [np.array([len(counts), len(self._its.runs)])], [sizes])
        self._its_counts, runs = np.empty(sizes[0], np.int64), np.empty((sizes[1], 2), np.int64)
        hand_around(self._comm, [counts, self._its.runs], [self._its_counts, runs])
        self._its = replace(self._its, runs=runs)

    @abstractmethod
    def begin(self) -> None:
        """Begin an iteration with these stages; the one before has ended on all ranks."""

    @abstractmethod
    def agree(self, copies: Copies) -> float:
        """Wait for all ranks once all is computed; see Trainer.use."""

    @abstractmethod
    def states(self) -> list[TrainingState]:
        """Return all states that this rank holds. A step that other ranks may have made is made here first."""

    @property
    @abstractmethod
    def kept(self) -> Sequence[TrainingState]:
        """States in memory beside the one in the stages."""

    @property
    def passing_nbytes(self) -> int:
        """Bytes more from when this rank has computed until all have, while stages hold no activations."""
        return 0

    def _stepped(self) -> list[int]:
        return [stage.optimizer.steps for stage in self._stages.values()]

    def _snapshot(self, out: NDArray[Any] | None = None) -> TrainingState:
        """Return the state in the stages."""
        assert self.iteration is not None
        return seat_state(self._copies, self.iteration, out)

    def _blank(self) -> TrainingState:
        """Return room for the state that the neighbour has now."""
        assert self.iteration is not None
        values = np.empty(3 * self._its_counts.sum(), self._its.values.dtype)
        return replace(self._its, iteration=self.iteration, steps=self._stepped()[0], values=values)

    def _start_copy(self, into: TrainingState) -> list[MessageRequest]:
        """Send the state to its keeper from where it lies, which must not change meanwhile, and receive `into`."""
        cuts = np.repeat(self._its_counts, 3).cumsum()[:-1]
        return start_around(self._comm, seat_arrays(self._copies), np.split(into.values, cuts))


class ReplayedReplicas(Replicas):
    """Replicas that make the same steps: gradients are sent once an iteration, and no state.

    Once all is computed each rank sends its gradients to its keeper, and waits until all ranks have received theirs.
    Until then no rank has changed any state. From then on each can make its own step and its neighbour's, whoever dies.
    So no earlier state is kept, and a replica is never half of one iteration and half of the next.

    Cost: beside the state in its stages a rank keeps its neighbour's once; and from when it has computed until all
    have, when it holds no activations, the neighbour's gradients. An iteration takes a barrier more, the way of the
    gradients and the neighbour's step. Optimizers are alike on all ranks.
    """

    def __init__(self, trainer: Trainer, *, copies: bool) -> None:
        super().__init__(trainer, copies=copies)
        self._neighbour: TrainingState | None = None
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
    def kept(self) -> list[TrainingState]:
        return [] if self._neighbour is None else [self._neighbour]

    @property
    def passing_nbytes(self) -> int:
        return int(self._its_counts.sum()) * self._its.values.itemsize if self.is_copying else 0

    def is_of(self, trainer: Trainer | None) -> bool:
        return super().is_of(trainer) and all(each.iteration == self.iteration for each in self.kept)

    def agree(self, copies: Copies) -> float:
        copies.wait()
        started_s = time.monotonic()
        if self.is_copying:
            gradients = [np.empty(count, self._its.values.dtype) for count in self._its_counts]
            hand_around(self._comm, seat_gradients(copies), gradients)
            self._gradients = gradients
        self._is_agreed, self._ready = False, (copies, self._stepped()[0])
        self._comm.barrier()
        self._is_agreed = True
        self._replay()
        self.seconds += (taken_s := time.monotonic() - started_s)
        return taken_s

    def begin(self) -> None:
        self._ready = None

    def states(self) -> list[TrainingState]:
        # Others may have stepped, or may not be able to.
        before = [] if self._ready is None or self._is_agreed else [self._snapshot(), *(x.copy() for x in self.kept)]
        self._make_step()
        return [self._snapshot(), *self.kept, *before]

    def _make_step(self) -> None:
        """Finish a step that all ranks can make."""
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


def replay(held: TrainingState, gradients: Sequence[NDArray[Any]], optimizer: Optimizer) -> None:
    """Make the next step of a rank's state by the `gradients` of its stages, as `optimizer` makes it."""
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


class SpacedReplicas(Replicas):
    """Replicas every few iterations, sent while ranks compute.

    State is sent from where it lies, which changes only when all ranks have received all. Then each keeps its own as it
    is: after a death all go back to that. A replica under way never touches the one before.

    Args:
        every: iterations between replicas.

    Cost: beside the state in its stages a rank keeps its own and its neighbour's, as they were, and while a replica is
    under way its neighbour's once more.
    """

    def __init__(self, trainer: Trainer, *, every: int) -> None:
        super().__init__(trainer, copies=True)
        self._every = every
        # What all ranks have received of one iteration, this rank's own first; none at first.
        self._complete: list[TrainingState] = []
        # What is being received, until all ranks have received all of it.
        self._coming: tuple[TrainingState, list[MessageRequest]] | None = None
        self._has_come = False

    @property
    def kept(self) -> list[TrainingState]:
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

    def states(self) -> list[TrainingState]:
        live = [] if self.iteration is None else [self._snapshot()]
        come = [self._coming[0]] if self._coming is not None and self._has_come else []
        return [*live, *come, *self._complete]


class ReplicaStore:
    """All that a rank holds of the state: of its Trainer, of its neighbour, and of the layout before while needed.

    Args:
        copies, every: as Enduring has them.
    """

    def __init__(self, *, copies: int, every: int) -> None:
        self._copies = copies
        self._every = every
        self._replicas: Replicas | None = None
        self._seconds = 0.0  # with trainers before
        # What was held when this layout began, after so many iterations, until an iteration has been done with it.
        self._before: list[TrainingState] = []
        self._began = 0
        # The Trainer whose ranks agree before they step.
        self._agrees: Trainer | None = None
        # The ranks that the last warning was about.
        self._at_home: list[int] = []

    @property
    def seconds(self) -> float:
        """Time spent on replicas, and waiting for them."""
        return self._seconds + (0.0 if self._replicas is None else self._replicas.seconds)

    @property
    def nbytes(self) -> int:
        """Memory that is kept beside the state in the stages."""
        kept = [*([] if self._replicas is None else self._replicas.kept), *self._before]
        arrays = {id(array): array.nbytes for each in kept for array in (each.runs, each.values)}
        return sum(arrays.values())

    @property
    def passing_nbytes(self) -> int:
        """See Replicas.passing_nbytes."""
        return 0 if self._replicas is None else self._replicas.passing_nbytes

    def states(self) -> list[TrainingState]:
        """Return the states that this rank holds, in its stages and in memory; none before it had a trainer."""
        return [*([] if self._replicas is None else self._replicas.states()), *self._before]

    def begin(
        self, comm: Communicator, trainer: Trainer | None, iterations: int, whole: Sequence[TrainingState] = ()
    ) -> None:
        """Follow a new trainer, None on a rank that is out, after `iterations`, from the state `whole`, if any."""
        self._before, self._began = [*whole], iterations
        self._let_go()
        self._follow(comm, trainer, iterations)

    def look(self, comm: Communicator, trainer: Trainer | None, iterations: int) -> None:
        """Follow `trainer` between iterations, and keep what may be needed; every rank calls it."""
        if iterations > self._began:
            self._before = []  # All ranks have had these losses, and have their replicas.
        self._follow(comm, trainer, iterations)

    def _follow(self, comm: Communicator, trainer: Trainer | None, iterations: int) -> None:
        """Hold what the trainer has now, if it is another, or has other stages."""
        if self._replicas is not None:
            if self._replicas.is_of(trainer):
                self._replicas.begin()
                return
            self._before, self._began = self._replicas.states(), iterations
            self._let_go()
        if trainer is None:
            return
        if trainer is not self._agrees:
            self._agrees = trainer
            trainer.use(agree=self._agree)
        replicas: Replicas = ReplayedReplicas(trainer, copies=self._copies > 0)
        if replicas.is_copying and self._every > 1:
            replicas = SpacedReplicas(trainer, every=self._every)
        self._replicas = replicas
        if replicas.is_copying:
            self._warn(comm)
        replicas.meet()
        replicas.begin()

    def _warn(self, comm: Communicator) -> None:
        """Warn once about replicas that do not outlive their owner's host."""
        before, self._at_home = self._at_home, kept_at_home(comm.hosts)
        if comm.rank == 0 and self._at_home and self._at_home != before:
            ranks = ", ".join(map(str, self._at_home))
            log.warning(
                "copies: those of ranks %s are on their own host, which has most ranks: none outlives it", ranks
            )

    def _agree(self, copies: Copies) -> float:
        """See Trainer.use. An iteration that began with other stages than those held ends with them."""
        if self._replicas is None or not self._replicas.has(copies):
            return 0.0
        return self._replicas.agree(copies)

    def _let_go(self) -> None:
        if self._replicas is not None:
            self._seconds += self._replicas.seconds
            self._replicas = None
