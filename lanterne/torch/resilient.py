"""Training loops that go on without ranks that die, and take in ranks that are started again."""

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lanterne.collectives.communicator import Communicator, gather_bytes
from lanterne.collectives.jobs import init
from lanterne.errors import InputError, LanterneError, TransportError
from lanterne.torch.joining import NAME, Options
from lanterne.torch.process_group import LanterneGroup
from lanterne.torch.tensor_views import on_cpu
from lanterne.torch.torch_internals import forget_meshes, groups
from lanterne.transport.job.bootstrap import shown_address

# Steps of a rank that has just been started into a job that runs, or holds no state yet.
_NEW = -1


class Stateful(Protocol):
    """An object whose state the ranks share, such as a module, an optimizer or a schedule of learning rates."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


def run_resilient(
    train_step: Callable[[Any, int], object],
    model: torch.nn.Module,
    optimizer: Any,
    *others: Stateful,
    steps: int,
    wrap: Callable[[torch.nn.Module], Any] = DistributedDataParallel,
    timeout_s: float | None = None,
) -> None:
    """Call `train_step` for `steps` steps on all ranks of this job; a rank that dies costs at most one step.

    Start the job by `lanterne launch --restarts N`. The ranks that live do the step of a death again. A rank that is
    started again takes its place between two steps, with the state of the others. Torch's default group is that of the
    ranks of the moment; `dist.get_rank()` and `dist.get_world_size()` say which part of a batch is this rank's.

    Args:
        train_step: given (the wrapped model, the step), does one step of `optimizer`; it may be called again for a step
            in which a rank died before the optimizer's step.
        others: further objects whose state a new rank needs.
        wrap: makes of `model` the one that sums gradients over the default group.
        timeout_s: of every wait, as in lanterne.init.

    Raises:
        TransportError: this rank is dead to the others, or the job's store is lost; and what `train_step` raises.
    """
    _run(_Replicated(train_step, (model, optimizer, *others), wrap), steps, timeout_s)


def run_resilient_sharded(
    train_step: Callable[..., object],
    make: Callable[[], Sequence[Any]],
    *,
    steps: int,
    timeout_s: float | None = None,
) -> None:
    """Call `train_step` for `steps` steps, like run_resilient, on a model whose parameters are sharded (FSDP2).

    No rank has all of the state. After each step each rank sends a copy of its part to another rank, on another host
    where there is one. When a rank dies, the others call `make` again, and each takes its new part from the ranks that
    hold it. If a rank dies before all have such copies of the first step, training starts from what `make` returns.

    Args:
        train_step: given what `make` returns and the step, does one step of the optimizer.
        make: returns (model, optimizer, further objects with state_dict and load_state_dict); it shards the model over
            the default group, each parameter along its first dimension, and is called again after each change of ranks.

    Raises:
        LanterneError: a rank and the one with the copy of its part have died together; and as run_resilient.

    Cost: on the host of each rank, memory for twice its part and twice its neighbour's; in each step, the time to send
        one part. The model of before is dropped before `make` is called.
    """
    _run(_Sharded(train_step, make), steps, timeout_s)


class _Training(ABC):
    """Training on the present ranks.

    Attributes: `name`, for errors; `done`, the number of steps whose optimizer is done on this rank.
    """

    name = "run_resilient"

    def __init__(self) -> None:
        self.done = 0
        self._step = 0  # the one under way
        self._hooks: list[Any] = []

    @abstractmethod
    def begin(self, comm: Communicator) -> None:
        """Make torch's default group of the ranks of `comm`, and what trains on it, from the latest state."""

    def step(self, step: int) -> None:
        """Do this step; raise InputError unless its optimizer makes one."""
        self._step = step
        self._train(step)
        if self.done != step + 1:
            raise InputError(f"{self.name}: got no step of the optimizer in step {step}, expected one")

    @abstractmethod
    def _train(self, step: int) -> None: ...

    @abstractmethod
    def keep(self, comm: Communicator) -> None:
        """Copy what a death would lose; the step is done."""

    def close(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _count_steps_of(self, optimizer: Any) -> None:
        """Count the optimizer's steps in `done`: an error after one does not undo it."""
        self.close()
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: _settle()),
            optimizer.register_step_post_hook(self._count),
        ]

    def _count(self, *_: object) -> None:
        self.done = self._step + 1


def _run(training: _Training, steps: int, timeout_s: float | None) -> None:
    """Do `steps` steps of `training` while ranks die and return."""
    if steps < 0:
        raise InputError(f"{training.name}: got {steps} steps, expected 0 or more")
    comm = init(timeout_s=timeout_s)
    if comm.epoch:
        training.done = _NEW
    changed = True
    try:
        while True:
            try:
                if changed:
                    training.begin(comm)
                if training.done == steps:
                    break
                training.step(training.done)
                training.keep(comm)
                after = comm.grow()
            except RuntimeError as error:
                if not _is_of_a_rank(error):
                    raise
                _end_other_groups()
                after = comm.shrink()
            changed, comm = after is not comm, after
    finally:
        training.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        comm.close()


class _Replicated(_Training):
    """A model that each rank has whole, with all else."""

    def __init__(
        self, train_step: Callable[[Any, int], object], shared: Sequence[Any], wrap: Callable[..., Any]
    ) -> None:
        super().__init__()
        self._train_step, self._shared, self._wrap = train_step, shared, wrap
        self._wrapped: Any = None
        self._count_steps_of(shared[1])

    def begin(self, comm: Communicator) -> None:
        self.done = _share(comm, self.done, self._shared)
        _open_group(comm)
        self._wrapped = self._wrap(self._shared[0])

    def _train(self, step: int) -> None:
        self._train_step(self._wrapped, step)

    def keep(self, comm: Communicator) -> None:
        pass


class _Sharded(_Training):
    """A model of which each rank has a part, and a copy of another rank's part."""

    name = "run_resilient_sharded"

    def __init__(self, train_step: Callable[..., object], make: Callable[[], Sequence[Any]]) -> None:
        super().__init__()
        self._train_step, self._make = train_step, make
        self._made: Sequence[Any] = ()
        self._state: Any = None
        # Parts of the state after a step: this rank's and another's.
        self._held: list[Any] = []
        # By steps done: the tensors of the state, and all else, which is the same on all ranks.
        self._layouts: dict[int, list[Any]] = {}
        self._rest: dict[int, bytes] = {}
        # The steps after which all ranks had copies, as far as this rank knows.
        self._complete = 0

    def begin(self, comm: Communicator) -> None:
        # Not sooner: the state imports what other jobs do not need.
        from lanterne.torch.sharded_state import ShardedState

        # A device may have no room for two models.
        self.close()
        self._made, self._state = (), None
        _open_group(comm)
        # Sooner than `make`, which may take long: a new rank then knows what the others had, if they die.
        layouts, is_new = self._exchange_layouts(comm)
        self._made = self._make()
        model, optimizer, *others = self._made
        self._count_steps_of(optimizer)
        self._state = ShardedState(model, optimizer, others)
        found = self._latest(comm, layouts)
        if found is None:
            if self._complete or is_new:
                after = f" after step {self._complete}" if self._complete else ""
                raise LanterneError(
                    f"{self.name}: the state{after} is lost: a rank has died with the one that had the copy of its part"
                )
            self.done, self._held, self._layouts, self._rest = 0, [], {}, {}
            return
        self.done = found.iteration
        rest = _of_one(comm, self._rest.get(self.done))
        self._state.put(found, self._layouts[self.done], rest)
        self._copy(comm, found, rest)

    def _exchange_layouts(self, comm: Communicator) -> tuple[dict[int, list[Any]], bool]:
        """Return the layouts of all states that ranks hold, by steps done, and whether all ranks are new to the job."""
        mine = {"complete": self._complete, "layouts": self._layouts, "is_new": self.done == _NEW}
        documents = [json.loads(each) for each in gather_bytes(comm, json.dumps(mine).encode())]
        self._complete = max(each["complete"] for each in documents)
        layouts = {int(steps): layout for each in documents for steps, layout in each["layouts"].items()}
        return layouts, all(each["is_new"] for each in documents)

    def _latest(self, comm: Communicator, layouts: Mapping[int, list[Any]]) -> Any:
        """Return this rank's part of the latest state of which the ranks hold all; None if there is none."""
        from lanterne.pipeline.train.state import move_state
        from lanterne.torch.sharded_state import StateTensor

        for steps in sorted(layouts, reverse=True):
            self._layouts[steps] = [StateTensor(*each) for each in layouts[steps]]
            held = [part for part in self._held if part.iteration == steps]
            found, _ = move_state(comm, held, self._state.runs(self._layouts[steps])[0])
            if found is not None:
                return found
        return None

    def _train(self, step: int) -> None:
        self._train_step(*self._made, step)

    def keep(self, comm: Communicator) -> None:
        self._layouts[self.done] = self._state.layout()
        self._copy(comm, self._state.take(self.done), self._state.rest())

    def _copy(self, comm: Communicator, own: Any, rest: bytes) -> None:
        """Hold `own` and another rank's part of that state; what was held before goes once all ranks have theirs."""
        from lanterne.pipeline.train.replicas import hand_around

        self._held.append(own)
        self._rest[own.iteration] = rest
        held = [own]
        if comm.world_size > 1:
            sizes = np.empty(2, np.int64)
            hand_around(comm, [np.array([len(own.runs), len(own.values)])], [sizes])
            runs, values = np.empty((sizes[0], 2), np.int64), np.empty(sizes[1], np.uint8)
            hand_around(comm, [own.runs, own.values], [runs, values])
            held.append(type(own)(own.iteration, own.steps, own.size, runs, values))
            self._held.append(held[-1])
            comm.barrier()
        self._complete = own.iteration
        self._held, self._rest = held, {own.iteration: rest}
        self._layouts = {own.iteration: self._layouts[own.iteration]}


def _of_one(comm: Communicator, known: bytes | None) -> bytes:
    """Return on all ranks the document that some of them know, the same each."""
    has = np.empty(comm.world_size, np.int64)
    comm.all_gather(np.array([-1 if known is None else len(known)]), has)
    root, nbytes = int(has.argmax()), int(has.max())
    data = np.frombuffer(known, np.uint8).copy() if comm.rank == root and known else np.empty(nbytes, np.uint8)
    comm.broadcast(data, root=root)
    return data.tobytes()


def _is_of_a_rank(error: RuntimeError) -> bool:
    """Return whether another rank caused `error`; out of DDP's backward pass it is a plain RuntimeError."""
    return isinstance(error, TransportError) or "lanterne: " in str(error)


def _end_other_groups() -> None:
    """End all groups but the default one: in them ranks may wait for one that has had an error elsewhere."""
    for group in groups():
        if group is not dist.group.WORLD and isinstance(group, LanterneGroup):
            group.abort()


def _settle() -> None:
    """Raise the errors of this step's calls on a device before the optimizer uses what they wrote."""
    group = dist.group.WORLD
    if isinstance(group, LanterneGroup):
        group.settle()


def _share(comm: Communicator, done: int, shared: Sequence[Stateful]) -> int:
    """Give all ranks the state of the rank that is furthest, if they differ; return how many steps it has done."""
    steps = np.empty(comm.world_size, np.int64)
    comm.all_gather(np.array([done]), steps)
    if steps.max() == _NEW:
        raise LanterneError("run_resilient: the state is lost: all ranks that had it have died")
    if steps.min() != steps.max():
        root, packed = int(steps.argmax()), io.BytesIO()
        if comm.rank == root:
            torch.save([on_cpu(each.state_dict()) for each in shared], packed)
        nbytes = np.array([packed.tell()])
        comm.broadcast(nbytes, root=root)
        state = np.frombuffer(packed.getvalue(), np.uint8).copy() if comm.rank == root else np.empty(nbytes, np.uint8)
        comm.broadcast(state, root=root)
        if comm.rank != root:
            for each, found in zip(shared, torch.load(io.BytesIO(state.tobytes()), weights_only=True), strict=True):
                each.load_state_dict(found)
    return int(steps.max())


def _open_group(comm: Communicator) -> None:
    """Make torch's default group: the ranks of `comm`, over it."""
    if dist.is_initialized():
        dist.destroy_process_group()
        forget_meshes()
    options, timeout = Options(communicator=comm), timedelta(seconds=comm.timeout_s)
    place = np.zeros(256, np.uint8)
    store: Any = None
    if comm.rank == 0:
        reached = "" if comm.transport.membership.store is None else comm.transport.membership.store.reached_from
        host = shown_address(reached, several_hosts=len(set(comm.hosts)) > 1)
        store = dist.TCPStore(host, 0, comm.world_size, is_master=True, wait_for_workers=False, timeout=timeout)
        text = f"{host} {store.port}".encode()
        place[: len(text)] = np.frombuffer(text, np.uint8)
    comm.broadcast(place)
    if store is None:
        host, _, port = place.tobytes().rstrip(b"\0").decode().partition(" ")
        store = dist.TCPStore(
            host, int(port), comm.world_size, is_master=False, wait_for_workers=False, timeout=timeout
        )
    dist.init_process_group(
        NAME, store=store, rank=comm.rank, world_size=comm.world_size, timeout=timeout, pg_options=options
    )
