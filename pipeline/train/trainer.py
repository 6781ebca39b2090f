"""Trains a model on the ranks of a communicator by pipeline, data and tensor parallelism, one iteration at a time.

    trainer = Trainer(comm, gpt(...), Batches(...), plans(problem, "zb_h1"))
    for _ in range(50):
        print(trainer.iteration().loss)

Between iterations plans, layout and data plane may change; the state of training does not depend on them.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lanterne.collectives.communicator import Communicator, core_of
from lanterne.collectives.execute.control import STALL_S
from lanterne.errors import InputError, LanterneError
from lanterne.pipeline.execute.execute import Measured, execute
from lanterne.pipeline.execute.stage import Batch, Stage
from lanterne.pipeline.model.stage_layers import LayerStage, Optimizer, StageModel, check_starts
from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.placement import bidirectional
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.data_plane import DataPlane
from lanterne.pipeline.planes.inline import Inline
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check
from lanterne.pipeline.train.adam import Adam
from lanterne.pipeline.train.data_parallel import Copies
from lanterne.pipeline.train.rank_layout import Layout, make_layout
from lanterne.pipeline.train.spill import DeviceStore, HostStore, Spill
from lanterne.pipeline.train.state import TrainingState, move_state, needed_runs, put_state, seat_parts
from lanterne.transport.base import Transport

if TYPE_CHECKING:
    from lanterne.pipeline.device.device_stage import Device

# A CheckedPlan of each copy of a pipeline.
Plans: TypeAlias = tuple[CheckedPlan, ...]
# As `execute` is called.
Executor: TypeAlias = Callable[..., Measured]
# Of what was measured, and when the gradients' all-reduces began and ended: a number, summed over the ranks.
Vote: TypeAlias = Callable[[Measured, tuple[float, float]], float]
# What is waited for, on all ranks, before any of them steps: it returns the seconds that it took.
Agree: TypeAlias = Callable[[Copies], float]


@dataclass(frozen=True, eq=False)
class Iteration:
    """What one iteration gave.

    Attributes:
        number: from 0.
        losses: (microbatches,) float64 of all copies, the same on all ranks; `loss` is their mean.
        seconds: from its beginning on this rank until the losses were known.
        gradients_s: (began, ended), of time.monotonic(): waiting for the gradients of the other copies, and stepping.
        measured: this rank's Measured.
        votes: the sum of what the ranks' `vote` gave.
    """

    number: int
    losses: NDArray[np.float64]
    seconds: float
    gradients_s: tuple[float, float]
    measured: Measured
    votes: float = 0.0

    @property
    def loss(self) -> float:
        return float(self.losses.mean())


def plans(problem: Problem, scheduler: str, microbatches: Sequence[int] | None = None, **options: Any) -> Plans:
    """A CheckedPlan per copy of the pipeline: what Trainer takes.

    Args:
        problem: the Problem of one copy.
        microbatches: those of each copy, ints; None for one copy with the problem's.
        options: of the scheduler.

    Raises:
        InputError: the scheduler cannot plan it.
    """
    made: dict[int, CheckedPlan] = {}
    for count in microbatches or (problem.microbatches,):
        if count not in made:
            own = replace(problem, microbatches=count)
            made[count] = check(plan(own, scheduler, **options), own)
    return tuple(made[count] for count in microbatches or (problem.microbatches,))


def _first_layout(comm: Communicator, places: int, copies: int | None = None) -> Layout:
    return make_layout(comm.world_size, places, copies, topology=comm.tuning.topology)


class Trainer:
    """Training under way.

    Args:
        comm: the Communicator of all ranks; every rank makes the same calls.
        model: a StageModel; with several parts a function that makes it of their Communicator, or of None.
        data: called with an iteration's number, gives inputs and targets of all copies' microbatches, as Stage.begin
            takes them; those of the first copy come first.
        plans: a CheckedPlan per copy, or one for all; all of one placement, the microbatches may differ. Where
            microbatches go both ways (bidirectional), each rank has two stages, whose gradients the rank opposite adds.
        layout: the Layout; None for copies as there are plans, as many places as the plans have, 1 part, by what `comm`
            knows of nodes (make_layout).
        optimizer: a function that makes an Adam.
        dtype: of parameters and activations, float32 or float64.
        seed: of the parameters.
        starts: the layer that each stage begins with, as make_stages has it; those of one way.
        sharded: ZeRO-1, see Copies.
        plane: a function that makes a DataPlane of the pipeline's Communicator; None for Inline.
        timeout_s: of waits for messages; None for the communicator's.
        transport: what activations and gradients go over, such as a ShapedTransport over that of `comm`; None for that.
        cap_nbytes: saved activations that a rank may hold between two actions; what is more goes to the host (Spill).
        spill_nbytes: of the host's memory, for those of a rank.
        device: the Device that the stages compute on; None for the CPU.

    Attributes: `spill`, the Spill, None without a cap; `plans`, `layout`, `starts` (change them by `change`);
    `iterations`, how many are done; `stages`, this rank's (stage -> LayerStage), and `running`, what the executor is
    given in their place; `copy`, `place`, `part`, where this rank is; `pipeline`, the Communicator of its pipeline, and
    `plane`, the DataPlane on it.

    Raises:
        InputError: plans, layout, model or data do not fit each other, or are not the same on all ranks.
    """

    def __init__(
        self,
        comm: Communicator,
        model: StageModel | Callable[[Communicator | None], StageModel],
        data: Callable[[int], tuple[Batch, Batch]],
        plans: CheckedPlan | Sequence[CheckedPlan],
        *,
        layout: Layout | None = None,
        optimizer: Callable[[], Optimizer] = Adam,
        dtype: DTypeLike = np.float32,
        seed: int = 0,
        starts: Sequence[int] | None = None,
        sharded: bool = False,
        plane: Callable[[Communicator], DataPlane] | None = None,
        timeout_s: float | None = None,
        transport: Transport | None = None,
        cap_nbytes: int | None = None,
        spill_nbytes: int = 1 << 30,
        device: "Device | None" = None,
    ) -> None:
        self.comm = comm
        self.data = data
        self.timeout_s = timeout_s
        self.device = device
        self._execute: Executor = execute
        self._vote: Vote | None = None
        self._agree: Agree = lambda copies: 0.0
        self.iterations: int = 0
        self.spill: Spill | None = None
        # The one before: of another layout.
        self._spilled: Spill | None = None
        self._cap_nbytes = cap_nbytes
        self._spill_nbytes = spill_nbytes
        self._transport = transport
        self._model = model
        self._optimizer = optimizer
        self._dtype = np.dtype(dtype)
        self._sharded = sharded
        self._make_plane = plane or Inline
        self._comms: list[Communicator] = []
        if isinstance(plans, CheckedPlan):
            layout = layout or _first_layout(comm, plans.plan.placement.num_ranks)
            plans = (plans,) * layout.shape[0]
        places = plans[0].plan.placement.num_ranks
        self._open(tuple(plans), layout or _first_layout(comm, places, len(plans)), starts, seed)

    @property
    def microbatches(self) -> tuple[int, ...]:
        """(copies,) ints: the microbatches of each copy."""
        return tuple(checked.plan.microbatches for checked in self.plans)

    @property
    def spilled_nbytes(self) -> tuple[int, int]:
        """The most bytes of activations that this rank held so far, and those that it moved to the host."""
        spill = self.spill or self._spilled
        return (spill.peak_nbytes, spill.spilled_nbytes) if spill is not None else (0, 0)

    def use(self, execute: Executor | None = None, vote: Vote | None = None, agree: Agree | None = None) -> Executor:
        """Run iterations by `execute`, such as an Adapter's, and send the sum of the ranks' `vote` with the losses.

        `agree` is called once all is computed, before the weights change: that it returns on one rank says that it was
        called on all. Returns what ran iterations before, for what only adds to that. None: as before.
        """
        before = self._execute
        self._execute = execute or before
        self._vote = vote or self._vote
        self._agree = agree or self._agree
        return before

    def iteration(self) -> Iteration:
        """Train on the next batch; every rank calls it, and gets an Iteration.

        Raises:
            LanterneError: as `execute`, on every rank; nothing can be trained afterwards.
        """
        start_s = time.monotonic()
        inputs, targets = self.data(self.iterations)
        first, total = sum(self.microbatches[: self.copy]), sum(self.microbatches)
        if len(inputs) != total:
            raise InputError(f"data: got {len(inputs)} microbatches, expected {total}, those of all plans together")
        own = slice(first, first + self.microbatches[self.copy])
        if self.device and self.plane.on_device and not self._is_loaded:
            self._load(inputs[own], targets[own])
        placement, mine = self.plans[self.copy].plan.placement, self.microbatches[self.copy]
        self._left = {stage: len(placement.microbatches_of(stage, mine)) for stage in self.stages}
        idle = [stage for stage, left in self._left.items() if not left]
        try:
            measured = self._execute(
                self.plans[self.copy],
                self.running,
                self.pipeline,
                inputs[own],
                targets[own],
                plane=self.plane,
                timeout_s=self.timeout_s,
                after=self._after if len(self.plans) * placement.num_routes > 1 else None,
            )
            for stage in idle:
                self.copies.start(stage)
            ended_s = time.monotonic()
            agreeing_s = self._agree(self.copies)
            self.copies.step()
            gradients_s = ended_s, time.monotonic() - agreeing_s
            vote = self._vote(measured, gradients_s) if self._vote is not None else 0.0
            losses, votes = self._all_losses(first, total, vote)
        except LanterneError as error:
            self._fail(error)
            raise
        self.iterations += 1
        return Iteration(self.iterations - 1, losses, time.monotonic() - start_s, gradients_s, measured, votes)

    def _load(self, inputs: Batch, targets: Batch) -> None:
        """Run the stages once on zeros: a kernel's first launch may wait for all streams, and so for other ranks."""
        assert self.device is not None
        zeros = self.device.xp.zeros
        for stage in self.stages.values():
            stage.begin(len(inputs), inputs, targets)
            stage.forward(0, None if stage.input_shape is None else zeros(stage.input_shape, stage.dtype))
            stage.backward_input(0, None if stage.output_shape is None else zeros(stage.output_shape, stage.dtype))
            stage.backward_weight(0)
            stage.gradients[...] = 0
        self._is_loaded = True

    def _after(self, action: Action) -> None:
        """The gradients of a stage start on their way once its last W has ended, and go on after every action."""
        if "W" in action.kind and action.part == action.parts:
            self._left[action.stage] -= 1
            if not self._left[action.stage]:
                self.copies.start(action.stage)
        self.copies.progress()

    def _fail(self, error: LanterneError) -> None:
        """Tell the ranks of all groups, and stay until they have looked: who is gone by then looks like a death."""
        self.plane.fail(error)
        for comm in (*self._comms, self.comm):
            core_of(comm).fail(error)
        time.sleep(3 * STALL_S)

    def _all_losses(self, first: int, total: int, vote: float) -> tuple[NDArray[np.float64], float]:
        """The losses of all copies, and the sum of the votes."""
        losses = np.zeros(total + 1)
        losses[-1] = vote
        if self.part == 0:
            for stage in self.stages.values():
                for microbatch, loss in stage.losses.items():
                    losses[first + microbatch] = loss
        self.comm.all_reduce(losses, losses)
        return losses[:-1], float(losses[-1])

    def change(
        self,
        plans: Iterable[CheckedPlan] | None = None,
        layout: Layout | None = None,
        starts: Sequence[int] | None = None,
    ) -> None:
        """Go on with other plans, one per copy, or on another layout or cut; between iterations, on all ranks.

        Other plans of the same placement cost nothing. Else each rank sends what it answers for to those that need it.

        Raises:
            InputError: as Trainer; the plans, layout and cut then stay.
        """
        plans = self.plans if plans is None else tuple(plans)
        layout = self.layout if layout is None else layout
        same_stages = plans[0].plan.placement == self.plans[0].plan.placement
        starts = self.starts if starts is None and same_stages else starts
        starts = self._check(plans, layout, starts)
        if same_stages and layout == self.layout and starts == self.starts:
            self._plan(plans)
            return
        held = self.held()
        self._open(plans, layout, starts, seed=None)
        self.take_over(self.comm, held)

    def held(self) -> list[TrainingState]:
        """Return the parts of the state that this rank answers for, which the next iteration changes."""
        return seat_parts(self.copies, self.iterations)

    def state(self) -> TrainingState:
        """Return the whole state of training, on the host of every rank; every rank calls it."""
        state, _ = move_state(self.comm, self.held())
        assert state is not None, "every rank holds its part of this iteration"
        return state

    def take_over(self, comm: Communicator, held: Sequence[TrainingState]) -> None:
        """Go on from the state that the ranks of `comm` have `held` together; all of them call move_state.

        Raises:
            LanterneError: no state is complete.
        """
        state, _ = move_state(comm, held, needed_runs(self.copies))
        if state is None:
            raise LanterneError("training: got parts of a state, expected all of one iteration together")
        self.restore(state)

    def restore(self, state: TrainingState) -> None:
        """Go on from `state`, which any trainer of this model gave, or from the part of it that this rank needs.

        Raises:
            InputError: it is of another model.
        """
        put_state(state, self.copies)
        self.iterations = state.iteration

    def close(self) -> None:
        """Release the data plane and the communicators that it made."""
        if self._comms:
            self.plane.close()
        for comm in self._comms:
            comm.close()
        self._comms = []
        if self.spill:
            self.spill.store.close()
            self._spilled, self.spill = self.spill, None

    def _open(self, plans: Plans, layout: Layout, starts: Sequence[int] | None, seed: int | None) -> None:
        """Communicators and stages for these plans; seed None: their state is going to be put there."""
        starts = self._check(plans, layout, starts)
        self.close()
        self.layout = layout
        self.starts: tuple[int, ...] = starts
        copies, places, parts = layout.shape
        copy, place, part = layout.where(self.comm.rank)
        self.copy = copy
        self.place = place
        self.part = part
        self.pipeline: Communicator = self._split(copy * parts + part, place)
        tensor = self._split(copy * places + place, part) if parts > 1 else None
        if tensor is not None:
            tensor.deterministic = True
        model = self._model(tensor) if callable(self._model) else self._model
        placement = plans[0].plan.placement
        held = placement.stages_of(place)
        multiple, xp = copies * placement.num_routes if self._sharded else 1, self.device.xp if self.device else np
        self.stages: dict[int, LayerStage] = {}
        for stage in held:
            own = stage % placement.route_length
            start, stop = starts[own : own + 2]
            made = LayerStage(model, start, stop, self._optimizer(), self._dtype, seed, xp, multiple)
            self.stages[stage] = made
        self.running: Mapping[int, Stage] = self.stages
        if self._cap_nbytes is not None:
            self.spill = Spill(self.stages, self._cap_nbytes, self._store())
            if (before := self._spilled) is not None:
                self.spill.peak_nbytes, self.spill.spilled_nbytes = before.peak_nbytes, before.spilled_nbytes
            self.running = self.spill.stages
        slots = max(map(len, map(placement.stages_of, range(places))))
        # Where microbatches go both ways the rank opposite has copies of the same stages.
        first = min(place, places - 1 - place) if placement.num_routes > 1 else place
        comms = [self._split(first * parts + part, copy * places + place) for _ in range(slots)]
        in_order = sorted(held, key=lambda stage: stage % placement.route_length)
        self._copy_comms = dict(zip(in_order, comms, strict=False))
        self.plane: DataPlane = self._make_plane(self.pipeline)
        self._is_loaded = False
        if self.device:
            self.plane.stage_on(self.device)
            self.running = {number: self.device.run(stage, self.plane) for number, stage in self.running.items()}
        self._plan(plans)

    def _store(self) -> HostStore | DeviceStore:
        """Where saved activations go that do not fit."""
        if self.device:
            return DeviceStore(self.device.runtime, self.device.xp, self._spill_nbytes)
        return HostStore(self._spill_nbytes)

    def _plan(self, plans: Plans) -> None:
        """Run `plans`, of the placement that the stages are for."""
        self.plans: Plans = plans
        if self.spill:
            self.spill.follow(plans[self.copy].plan, self.place)
        share = self.microbatches[self.copy] / sum(self.microbatches)
        self.copies: Copies = Copies(self._copy_comms, self.stages, share, sharded=self._sharded)

    def _split(self, color: int, key: int) -> Communicator:
        comm = self.comm.split(color, key, self._transport)
        self._comms.append(comm)
        return comm

    def _check(self, plans: Plans, layout: Layout, starts: Sequence[int] | None) -> tuple[int, ...]:
        """The starts, if all fit each other and the ranks, and are the same on all of them; else InputError."""
        copies, places, parts = layout.shape
        placement = plans[0].plan.placement
        if copies * places * parts != self.comm.world_size:
            raise InputError(f"layout: got {layout.shape} on {self.comm.world_size} ranks, expected as many")
        if parts > 1 and not callable(self._model):
            raise InputError(f"model: got one for one rank, expected a function of the {parts} parts' communicator")
        if len(plans) != copies or any(checked.plan.placement != placement for checked in plans):
            raise InputError(f"plans: got {len(plans)} for {copies} copies, expected one for each, of one placement")
        if placement.num_ranks != places:
            raise InputError(f"plans: got {placement.num_ranks} ranks, expected {places}, the places of the layout")
        if placement.num_routes > 1 and (placement.stage_to_rank != bidirectional(places).stage_to_rank or places % 2):
            raise InputError(
                f"plans: got a {placement.name} placement of {places} ranks, expected microbatches that go one way, or "
                "both ways through an even number of ranks"
            )
        model = self._model(None) if callable(self._model) else self._model
        count = placement.route_length
        starts = model.starts(count) if starts is None else check_starts(model, count, starts)
        words = hashlib.sha256(repr((layout, starts, placement)).encode())
        for checked in plans:
            words.update(checked.plan.columns.tobytes() + checked.plan.offsets.tobytes())
        mine = np.frombuffer(words.digest()[:8], np.uint64)
        digests = np.empty(self.comm.world_size, np.uint64)
        self.comm.all_gather(mine, digests)
        if (digests != mine).any():
            other = int(np.flatnonzero(digests != mine)[0])
            raise InputError(f"plans: got others on rank {other} than on rank {self.comm.rank}, expected the same")
        return starts
