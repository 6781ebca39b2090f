"""Which calls of which libraries are recorded, and how: lanterne, mpi4py, cupy.cuda.nccl, torch.distributed.

Nothing is imported here. `install` puts a finder on sys.meta_path which, when one of these libraries is imported, lets
it load and then wraps its calls. The program's own code stays as it is. Standard library only.

What an adapter records of a call: its name; how many ranks take part in it; a number for its communicator which is the
same on all of them; and its bytes. Those that are queued on a GPU's stream are timed there (stream_times.py). Calls
that do not pass Python cannot be seen: those that torch's DistributedDataParallel issues from C++. There `forward`
tells the iterations, and the autograd engine when a rank has all its gradients, and when those of all are summed.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, WeakSet

from lanterne.failslow.record.recorder import (
    FOLDER_VARIABLE,
    Describe,
    Described,
    OnDevice,
    Recorder,
    environment_rank,
    mark_of,
    timed,
)
from lanterne.failslow.record.stream_times import CupyEvents, Mark, QueuedCalls, TorchEvents, end

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

COLLECTIVES = (
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "barrier"),
    *("gather", "scatter", "scan", "exscan"),
)
LANTERNE = (*COLLECTIVES, *(f"start_{name}" for name in COLLECTIVES))
MPI = (
    *("Allreduce Reduce Bcast Barrier Allgather Allgatherv Gather Gatherv Scatter Scatterv Alltoall Alltoallv").split(),
    *("Reduce_scatter Reduce_scatter_block Scan Exscan").split(),
    *("Iallreduce Ireduce Ibcast Ibarrier Iallgather Ialltoall").split(),
    *("allreduce reduce bcast barrier allgather gather scatter alltoall scan").split(),
)
MPI_MESSAGES = ("Send", "Ssend", "Recv", "Sendrecv", "Isend", "Irecv", "send", "recv", "sendrecv", "isend", "irecv")
MPI_MAKERS = ("Split", "Split_type", "Create", "Create_group", "Create_cart", "Clone", "Dup", "Dup_with_info")
TORCH = (
    *("all_reduce reduce broadcast all_gather all_gather_into_tensor reduce_scatter reduce_scatter_tensor").split(),
    *("all_gather_single reduce_scatter_single").split(),
    *("all_to_all all_to_all_single barrier gather scatter all_gather_object broadcast_object_list").split(),
)
TORCH_STARTED = ("isend", "irecv", "batch_isend_irecv")
TORCH_MESSAGES = ("send", "recv", *TORCH_STARTED)
NCCL = ("allReduce", "reduce", "broadcast", "bcast", "reduceScatter", "allGather")
# Bytes of an element, by NCCL's number of its type.
NCCL_NBYTES = {0: 1, 1: 1, 2: 4, 3: 4, 4: 8, 5: 8, 6: 2, 7: 4, 8: 8, 9: 2, 10: 1, 11: 1}
DDP_FORWARD, DDP_BACKWARD = (f"DistributedDataParallel.{name}" for name in ("forward", "backward"))

# Wraps the calls of a module, which is of any library and so of any kind.
Adapt: TypeAlias = Callable[[Any, Recorder], None]


def start() -> None:
    """Record this program's calls into the folder that LANTERNE_WATCH names; for sitecustomize."""
    folder = os.environ.get(FOLDER_VARIABLE)
    # A call that is recorded twice would look like two, and lanterne's own like the program's.
    is_recorded = any(isinstance(finder, Finder) for finder in sys.meta_path)
    if folder and os.path.isdir(folder) and not is_recorded:
        install(Recorder(folder))


def install(recorder: Recorder) -> None:
    """Record, by `recorder`, the calls of every known library that is imported from now on."""
    sys.meta_path.insert(0, Finder(recorder))


class Finder:
    """A finder of sys.meta_path that has the adapter of a module run once the module is loaded."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._waiting = dict(ADAPTERS)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that the other finders have for `name`, with a loader that adapts; None for other modules."""
        adapt = self._waiting.pop(name, None)
        if adapt is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    adapting: Any = Loader(spec.loader, adapt, self._recorder)
                    spec.loader = adapting
                return spec
        return None


class Loader:
    """A loader that runs `adapt(module, recorder)` after the module's own."""

    def __init__(self, loader: Any, adapt: Adapt, recorder: Recorder) -> None:
        self._loader = loader
        self._adapt = adapt
        self._recorder = recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Load the module, then adapt it; a module that is not as expected is left as it is."""
        if getattr(module, "__spec__", None) is not None:
            module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            self._adapt(module, self._recorder)
        except Exception as error:
            self._recorder.note(f"{module.__name__} could not be recorded: {type(error).__name__}: {error}")


def number_of(value: object) -> int:
    """A number of 32 bits for anything with a repr that is the same on all ranks."""
    return zlib.crc32(repr(value).encode())


def nbytes_of(buffers: Iterable[object]) -> int:
    """Bytes of the first of `buffers` that knows its own; -1 where none does."""
    for buffer in buffers:
        if isinstance(buffer, (list, tuple)):
            # [buffer, count, type], or a list of tensors.
            known = [nbytes for item in buffer if isinstance(nbytes := getattr(item, "nbytes", None), int)]
            if known:
                return sum(known)
        elif isinstance(nbytes := getattr(buffer, "nbytes", None), int):
            return nbytes
        elif isinstance(buffer, (bytes, bytearray)):
            return len(buffer)
    return -1


# -- lanterne


def watch_communicator(
    target: object, name: str, recorder: Recorder, communicator: object = None
) -> Callable[..., Any]:
    """Wrap method `name` of `target`: a Communicator, or the class (then each call's first argument is one)."""
    first = 0 if communicator is not None else 1

    def describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Described:
        comm: Any = communicator if first == 0 else args[0]
        try:
            rank, ranks, number = comm.lanterne_identity
        except AttributeError:
            rank, ranks, number = comm.lanterne_identity = identity(comm)
        try:
            nbytes = args[first].nbytes
        except (AttributeError, IndexError):
            nbytes = nbytes_of((*args[first:], *kwargs.values()))
        return rank, name, ranks, number, nbytes

    def identity(comm: Any) -> tuple[int, int, int]:
        number = number_of((comm.communicator_id, comm.ranks))
        recorder.group(number, comm.ranks)
        recorder.path(f"lanterne over {comm.transport.name}")
        return comm.transport.rank, comm.world_size, number

    def on_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[QueuedCalls | None, Any] | None:
        arrays = args[first : first + 1]
        # Of NumPy's no more is asked: this is every call of a job on CPUs.
        if not arrays or type(arrays[0]).__module__ == "numpy":
            return None
        comm: Any = communicator if first == 0 else args[0]
        runtime = comm.transport.runtime
        if runtime is None or comm.transport.name != "nccl" or not _is_device_array(arrays[0]):
            return None
        device = recorder.device(("lanterne", id(runtime)), lambda: QueuedCalls(runtime, adopt=runtime.adopt_thread))
        return device, runtime.as_stream(kwargs.get("stream"))

    queues = not name.startswith("start_") and name != "barrier"
    return timed(getattr(target, name), describe, recorder, on_device=on_device if queues else None)


def _is_device_array(array: object) -> bool:
    # A program that has a runtime has loaded it.
    return bool(sys.modules["lanterne.kernels.arrays"].is_device_array(array))


def adapt_lanterne(module: Any, recorder: Recorder) -> None:
    """lanterne.collectives.communicator"""
    for name in LANTERNE:
        setattr(module.Communicator, name, watch_communicator(module.Communicator, name, recorder))


# -- mpi4py


def adapt_mpi4py(module: Any, recorder: Recorder) -> None:
    """mpi4py.MPI: its classes cannot be changed, so COMM_WORLD and what is made of it are of subclasses from now on."""
    kinds: dict[type, type] = {}

    def identity(comm: Any) -> tuple[int, int]:
        try:
            return comm.lanterne_identity
        except AttributeError:
            world, group = module.COMM_WORLD.Get_group(), comm.Get_group()
            ranks = module.Group.Translate_ranks(group, list(range(group.Get_size())), world)
            comm.lanterne_identity = len(ranks), number_of(list(ranks))
            recorder.path("mpi4py over MPI")
            recorder.group(comm.lanterne_identity[1], ranks)
            return comm.lanterne_identity

    def describing(name: str, collective: bool) -> Describe:
        def describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Described:
            size, number = identity(args[0])
            return rank(), name, size if collective else 0, number, nbytes_of((*args[1:], *kwargs.values()))

        return describe

    def rank() -> int:
        return world.Get_rank()

    def made(make: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            found = make(*args, **kwargs)
            kind = kinds.get(type(found))
            return kind(found) if kind is not None else found

        return watched

    for base in (module.Intracomm, module.Cartcomm):
        methods: dict[str, Any] = {
            name: timed(getattr(base, name), describing(name, name in MPI), recorder)
            for name in (*MPI, *MPI_MESSAGES)
            if hasattr(base, name)
        }
        methods |= {name: made(getattr(base, name)) for name in MPI_MAKERS if hasattr(base, name)}
        kinds[base] = type(base.__name__, (base,), methods | {"__module__": module.__name__})
    world = module.COMM_WORLD = kinds[module.Intracomm](module.COMM_WORLD)


# -- torch


def adapt_torch(module: Any, recorder: Recorder) -> None:
    """torch.distributed.distributed_c10d, from which torch.distributed takes its functions."""
    # Each is kept, so that its id stays its own.
    groups: dict[int, tuple[Any, int, int]] = {}
    # That the path of the world's group is told.
    told: list[bool] = []

    def tell_path(group: Any) -> None:
        recorder.path(f"torch.distributed over {module.get_backend(group)}")

    def identity(group: Any) -> tuple[int, int]:
        if not recorder.queued.issuperset(TORCH) and "nccl" in str(module.get_backend()):
            recorder.queued.update(TORCH)
        if group is None:
            if not told:
                told.append(True)
                tell_path(None)
            return module.get_world_size(), 0
        if id(group) not in groups and len(groups) < 4096:
            ranks = list(module.get_process_group_ranks(group))
            groups[id(group)] = group, len(ranks), number_of(ranks)
            recorder.group(number_of(ranks), ranks)
            tell_path(group)
        return groups.get(id(group), (None, 0, 1))[1:]

    def describing(name: str, collective: bool) -> Describe:
        position = _position(getattr(module, name), "group")

        def describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Described:
            group = kwargs.get("group", args[position] if position is not None and len(args) > position else None)
            size, number = identity(group)
            nbytes = nbytes_of((*args[:2], *kwargs.values()))
            return module.get_rank(), name, size if collective else 0, number, nbytes

        return describe

    def on_device(name: str) -> OnDevice:
        position = _position(getattr(module, name), "async_op")

        def queued(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[QueuedCalls | None, Any] | None:
            # The current stream waits for what is not asynchronous, so events on it stand around the call.
            started = kwargs.get("async_op", position is not None and len(args) > position and args[position])
            if started or not _on_gpu((*args[:2], *kwargs.values())):
                return None
            return _torch_queue(recorder)

        return queued

    for name in (*TORCH, *TORCH_MESSAGES):
        if hasattr(module, name):
            describe = describing(name, name in TORCH)
            # Of messages that are only begun nothing is queued on the current stream.
            queues = None if name in TORCH_STARTED else on_device(name)
            call = getattr(module, name)
            setattr(module, name, timed(call, describe, recorder, inside=module.__name__, on_device=queues))


class DdpModel(NamedTuple):
    """What is recorded of a DistributedDataParallel: the numbers that stand for its forwards and its backwards."""

    rank: int
    ranks: int
    forward: int
    backward: int


def _on_gpu(arguments: Iterable[object]) -> bool:
    """Whether there is a tensor of a GPU among them, or in a list; a group may have a backend for each device."""
    for given in arguments:
        first = given[0] if isinstance(given, (list, tuple)) and given else given
        if getattr(first, "is_cuda", False):
            return True
    return False


def _torch_queue(recorder: Recorder) -> tuple[QueuedCalls | None, Any]:
    """What times calls on this thread's current stream of torch, and that."""
    torch: Any = sys.modules["torch"]
    number = torch.cuda.current_device()
    events = TorchEvents(torch, number)
    device = recorder.device(("torch", number), lambda: QueuedCalls(events, None, events.is_captured, events.adopt))
    return device, torch.cuda.current_stream()


def adapt_ddp(module: Any, recorder: Recorder) -> None:
    """torch.nn.parallel.distributed: the forwards of DistributedDataParallel, and the ends of its backwards.

    A forward that all-reduces will follow marks an iteration; one in `no_sync` or without gradients is recorded as a
    call of no rank. A backward is a call of all the model's ranks: it begins when this rank has all its gradients, and
    ends when they are summed. Where it cannot be seen, since the output holds no tensor, the forward stands for it.
    """
    kind = module.DistributedDataParallel
    recorder.queued.add(DDP_FORWARD)
    # Numbered in the order of their first calls, the same on all ranks; identifiers come again once a model is gone.
    models: WeakKeyDictionary[Any, DdpModel] = WeakKeyDictionary()
    order = count()
    # Those whose last output led to their backward.
    followed: WeakSet[Any] = WeakSet()

    def known(model: Any) -> DdpModel:
        found = models.get(model)
        if found is None:
            if getattr(model, "device_type", "cpu") != "cpu":
                recorder.queued.add(DDP_BACKWARD)
            with suppress(Exception):  # The calls are recorded without it, too.
                recorder.path(f"torch.distributed over {module.dist.get_backend(model.process_group)}")
            at = next(order)
            numbers = (number_of((name, at)) for name in (DDP_FORWARD, DDP_BACKWARD))
            found = models[model] = DdpModel(environment_rank(), model.process_group.size(), *numbers)
        return found

    def synchronizes(model: Any) -> bool:
        return bool(model.require_backward_grad_sync and module.torch.is_grad_enabled())

    def describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Described:
        model = args[0]
        found = known(model)
        ranks = (1 if model in followed else found.ranks) if synchronizes(model) else 0
        return found.rank, DDP_FORWARD, ranks, found.forward, nbytes_of(args[1:2])

    def follow(model: Any, output: Any) -> None:
        """Record the backward pass that begins at `output`."""
        tensors = [tensor for tensor in module._find_tensors(output) if tensor.requires_grad]
        if not tensors:
            followed.discard(model)
            return
        followed.add(model)
        found = known(model)
        channel = recorder.channel(found.rank, DDP_BACKWARD, found.ranks, found.backward)
        engine, begun = module.torch.autograd.Variable._execution_engine, list[int]()
        marks: list[Mark | None] = []

        # DDP has the engine call what waits for its all-reduces once all gradients are computed. What is queued before
        # that, as this is at the first gradient of all, is called before it, and what this queues then, after.
        def begins(_gradient: object) -> None:
            if not begun:
                begun.append(-1)
                engine.queue_callback(is_computed)

        def is_computed() -> None:
            begun[0] = channel.begin(0, time.monotonic())
            marks.append(None)
            with suppress(Exception):  # No backward pass ends by what is only recorded.
                if getattr(model, "device_type", "cpu") != "cpu":
                    marks[-1] = mark_of(_torch_queue(recorder))
            engine.queue_callback(ends)

        def ends() -> None:
            # The current stream waits for the all-reduces by now.
            end(marks.pop(), channel, begun.pop())

        for tensor in tensors:
            tensor.register_hook(begins)

    forward = kind.forward

    @functools.wraps(forward)
    def followed_forward(model: Any, *args: Any, **kwargs: Any) -> Any:
        output = forward(model, *args, **kwargs)
        try:
            if synchronizes(model):
                follow(model, output)
        except Exception:
            recorder.fault()
        return output

    kind.forward = timed(followed_forward, describe, recorder)


def _position(function: Callable[..., Any], parameter: str) -> int | None:
    import inspect

    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return None
    return names.index(parameter) if parameter in names else None


# -- NCCL


def adapt_nccl(module: Any, recorder: Recorder) -> None:
    """cupy.cuda.nccl: its communicator's class cannot be changed either; the name stands for a subclass from now on.

    The subclass, where CuPy has taken the name from its cupy_backends, which is adapted already.
    """
    base: Any = module.NcclCommunicator
    if hasattr(base, "lanterne_identity"):
        return

    class NcclCommunicator(base):
        """As its base, and recorded."""

        lanterne_identity: tuple[int, int, int] | None = None
        lanterne_device = 0

        def __init__(self, ndev: int, commId: Any, rank: int, *config: Any, **named: Any) -> None:
            super().__init__(ndev, commId, rank, *config, **named)
            self.lanterne_device = _current_device()
            self.lanterne_identity = ndev, number_of(tuple(commId)), environment_rank()

    def describing(name: str, collective: bool) -> Describe:
        def describe(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Described:
            ranks, number, rank = args[0].lanterne_identity
            # Not where one is made: lanterne makes some of its own.
            recorder.path("cupy.cuda.nccl over NCCL")
            count, kind = args[3:5] if name not in ("bcast", "send", "recv") else args[2:4]
            nbytes = int(count) * NCCL_NBYTES.get(int(kind), 1)
            return rank, name, ranks if collective else 0, number, nbytes

        return describe

    def on_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[QueuedCalls | None, Any]:
        number = args[0].lanterne_device
        device = recorder.device(("cupy", number), lambda: _cupy_calls(recorder, number))
        return device, int(kwargs.get("stream", args[-1]))

    recorder.queued.update(NCCL)
    for name in (*NCCL, "send", "recv"):
        if hasattr(base, name):
            describe = describing(name, name in NCCL)
            setattr(NcclCommunicator, name, timed(getattr(base, name), describe, recorder, on_device=on_device))
    module.NcclCommunicator = NcclCommunicator
    if hasattr(module, "groupStart") and hasattr(module, "groupEnd"):
        _adapt_groups(module, recorder)


def _adapt_groups(module: Any, recorder: Recorder) -> None:
    """What is between the two is begun by the second."""
    start, end = module.groupStart, module.groupEnd

    def groupStart() -> Any:
        found = start()
        recorder.groups.open()
        return found

    def groupEnd() -> Any:
        return recorder.groups.close(end)

    module.groupStart, module.groupEnd = groupStart, groupEnd


def _cupy_calls(recorder: Recorder, device: int) -> QueuedCalls:
    events = CupyEvents(sys.modules["cupy"], device)
    return QueuedCalls(events, recorder.groups, events.is_captured, events.adopt)


def _current_device() -> int:
    try:
        return int(sys.modules["cupy"].cuda.runtime.getDevice())
    except Exception:  # no CuPy beside its binding
        return 0


ADAPTERS: dict[str, Adapt] = {
    "lanterne.collectives.communicator": adapt_lanterne,
    "mpi4py.MPI": adapt_mpi4py,
    "torch.distributed.distributed_c10d": adapt_torch,
    "torch.nn.parallel.distributed": adapt_ddp,
    "cupy.cuda.nccl": adapt_nccl,
    "cupy_backends.cuda.libs.nccl": adapt_nccl,
}
