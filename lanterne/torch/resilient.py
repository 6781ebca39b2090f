"""A DDP training loop that goes on without ranks that die, and takes in ranks that are started again."""

import io
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from lanterne.collectives.communicator import Communicator
from lanterne.collectives.jobs import init
from lanterne.errors import InputError, TransportError
from lanterne.torch.joining import NAME, Options
from lanterne.torch.process_group import LanterneGroup
from lanterne.transport.job.bootstrap import shown_address

# Steps of a rank that has just been started into a job that runs.
_NEW = -1


class Stateful(Protocol):
    """An object whose state the ranks share, such as a module, an optimizer or a schedule of learning rates."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any, /) -> Any: ...


class _Progress:
    """The number of steps whose optimizer is done on this rank: the state is that of so many steps.

    An error after the optimizer's step does not undo it.
    """

    def __init__(self, optimizer: Any, is_new: bool) -> None:
        self.done = _NEW if is_new else 0
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: _settle()),
            optimizer.register_step_post_hook(self._count),
        ]
        self._step = 0

    def begin(self, step: int) -> None:
        self._step = step

    def _count(self, *_: object) -> None:
        self.done = self._step + 1

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


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
    if steps < 0:
        raise InputError(f"run_resilient: got {steps} steps, expected 0 or more")
    comm = init(timeout_s=timeout_s)
    progress = _Progress(optimizer, is_new=bool(comm.epoch))
    shared, wrapped, changed = (model, optimizer, *others), model, True
    try:
        while True:
            try:
                if changed:
                    progress.done = _share(comm, progress.done, shared)
                    _open_group(comm)
                    wrapped = wrap(model)
                if progress.done == steps:
                    break
                progress.begin(progress.done)
                before = progress.done
                train_step(wrapped, before)
                if progress.done != before + 1:
                    raise InputError(f"run_resilient: got no step of the optimizer in step {before}, expected one")
                after = comm.grow()
            except RuntimeError as error:
                if not _is_of_a_rank(error):
                    raise
                after = comm.shrink()
            changed, comm = after is not comm, after
    finally:
        progress.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        comm.close()


def _is_of_a_rank(error: RuntimeError) -> bool:
    """Return whether `error` tells of another rank; out of DDP's backward pass it is a plain RuntimeError."""
    return isinstance(error, TransportError) or "lanterne: " in str(error)


def _settle() -> None:
    """Raise the errors of this step's calls on a device before the optimizer uses what they wrote."""
    group = dist.group.WORLD
    if isinstance(group, LanterneGroup):
        group.settle()


def _share(comm: Communicator, done: int, shared: Sequence[Stateful]) -> int:
    """Give all ranks the state of the rank that is furthest, if they differ; return how many steps it has done."""
    steps = np.empty(comm.world_size, np.int64)
    comm.all_gather(np.array([done]), steps)
    if steps.min() != steps.max():
        root, packed = int(steps.argmax()), io.BytesIO()
        if comm.rank == root:
            torch.save([_on_cpu(each.state_dict()) for each in shared], packed)
        nbytes = np.array([packed.tell()])
        comm.broadcast(nbytes, root=root)
        state = np.frombuffer(packed.getvalue(), np.uint8).copy() if comm.rank == root else np.empty(nbytes, np.uint8)
        comm.broadcast(state, root=root)
        if comm.rank != root:
            for each, found in zip(shared, torch.load(io.BytesIO(state.tobytes()), weights_only=True), strict=True):
                each.load_state_dict(found)
    return max(0, int(steps.max()))


def _on_cpu(state: Any) -> Any:
    """Return `state` with its tensors on the CPU; other ranks have other devices."""
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, dict):
        return {key: _on_cpu(value) for key, value in state.items()}
    return type(state)(map(_on_cpu, state)) if isinstance(state, (list, tuple)) else state


def _open_group(comm: Communicator) -> None:
    """Make torch's default group: the ranks of `comm`, over it."""
    if dist.is_initialized():
        dist.destroy_process_group()
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
