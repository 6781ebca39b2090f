"""The process group of lanterne: torch.distributed's verbs as calls of a Communicator."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from lanterne.collectives.communicator import Communicator
from lanterne.collectives.mailbox import Mailbox, MailRequest
from lanterne.errors import InputError, LanterneError
from lanterne.torch.step_log import StepLog
from lanterne.torch.tensor_views import View, check_tensor, view_of, whole_of
from lanterne.torch.torch_internals import OPTIONS, ProcessGroup, old_names, op_of, seconds, torch_errors
from lanterne.torch.works import RequestWork, Started

Tensors = Sequence[torch.Tensor]


class Draft:
    """A call in the making: what it has started, and where its results are to be copied."""

    def __init__(self) -> None:
        self.requests: list[Started] = []
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.ended: Callable[[], object] | None = None

    def read(self, tensor: torch.Tensor) -> View:
        """What `tensor` holds; a copy where it is not contiguous."""
        check_tensor(tensor)
        return view_of(tensor.resolve_conj().resolve_neg().contiguous())

    def write(self, tensor: torch.Tensor, holds: bool = False) -> View:
        """Where the new contents of `tensor` go, which `holds` what it held, or anything."""
        check_tensor(tensor)
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return view_of(tensor)
        fresh = tensor.contiguous() if holds else torch.empty(tensor.shape, dtype=tensor.dtype)
        fresh = fresh.clone() if fresh.data_ptr() == tensor.data_ptr() else fresh
        self._copies.append((tensor, fresh))
        return view_of(fresh)

    def read_parts(self, tensors: Tensors) -> View:
        """What `tensors` hold, one after the other: one piece of memory, a copy unless they are that already."""
        whole = whole_of(tensors)
        return self.read(torch.cat([each.reshape(-1) for each in tensors]) if whole is None else whole)

    def write_parts(self, tensors: Tensors) -> View:
        """Where the new contents of `tensors` go, one after the other."""
        for tensor in tensors:
            check_tensor(tensor)
        whole = whole_of(tensors)
        if whole is not None:
            return view_of(whole)
        fresh = torch.empty(sum(each.numel() for each in tensors), dtype=tensors[0].dtype)
        parts = fresh.split([each.numel() for each in tensors])
        self._copies += [(tensor, part.view(tensor.shape)) for tensor, part in zip(tensors, parts, strict=True)]
        return view_of(fresh)

    def finish(self) -> None:
        """The requests are complete: copy; a second time there is nothing to do."""
        copies, self._copies = self._copies, []
        for tensor, fresh in copies:
            tensor.detach().copy_(fresh)
        ended, self.ended = self.ended, None
        if ended is not None:
            ended()


@old_names
class LanterneGroup(ProcessGroup):
    """The ranks of a torch process group, over `communicator`.

    Args:
        timeout_s: of calls that are given none.
        on_shutdown: called once this group has ended.

    Every verb is torch's, and raises DistBackendError or ValueError. Tensors are dense and of the CPU; those that are
    not contiguous are copied before and after.
    """

    def __init__(
        self, communicator: Communicator, timeout_s: float, on_shutdown: Callable[["LanterneGroup"], object]
    ) -> None:
        super().__init__(communicator.rank, communicator.world_size)
        self.communicator: Communicator = communicator
        communicator.timeout_s = timeout_s
        self._on_shutdown = on_shutdown
        self._name = self._desc = ""
        self._sequence = 0
        self._together: list[Draft] | None = None
        self.steps: StepLog = StepLog(communicator)

    # -- collectives

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> RequestWork:
        tensors, opts = _options("Allreduce", tensors, opts, timeout)
        op, draft, result = op_of(opts.reduceOp), Draft(), tensors
        with torch_errors():
            for tensor in tensors:
                array, dtype = draft.write(tensor, holds=True)
                self.steps.begins(array.nbytes)
                self._begin(draft, opts, "all_reduce", array, array, op, dtype=dtype)
        draft.ended = self.steps.ends
        return self._work(draft, opts, result)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> RequestWork:
        return self.allreduce(tensors, opts if opts is not None else OPTIONS["AllreduceCoalesced"]())

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> RequestWork:
        tensors, opts = _options("Broadcast", tensors, opts, timeout)
        draft = Draft()
        with torch_errors():
            for tensor in tensors:
                array, _ = draft.write(tensor, holds=True)
                self._begin(draft, opts, "broadcast", array, opts.rootRank)
        return self._work(draft, opts, tensors)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None
    ) -> RequestWork:
        tensors, opts = _options("Reduce", tensors, opts, timeout)
        if op is not None:
            opts.reduceOp = op
        draft = Draft()
        with torch_errors():
            for tensor in tensors:
                is_root = self.rank() == opts.rootRank
                array, dtype = draft.write(tensor, holds=True) if is_root else draft.read(tensor)
                out = array if is_root else None
                self._begin(draft, opts, "reduce", array, out, opts.rootRank, op_of(opts.reduceOp), dtype=dtype)
        return self._work(draft, opts, tensors)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> RequestWork:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = _with_timeout("Allgather", opts, timeout)
        draft = Draft()
        with torch_errors():
            for parts, tensor in zip(outputs, inputs, strict=True):
                self._check_parts("all_gather", parts, tensor)
                self._begin(draft, opts, "all_gather", draft.read(tensor).array, draft.write_parts(parts).array)
        return self._work(draft, opts, [part for parts in outputs for part in parts])

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> RequestWork:
        return self.allgather(list(zip(*outputs, strict=True)), inputs, opts)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> RequestWork:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RequestWork:
        opts = _with_timeout("Allgather", opts, None)
        draft = Draft()
        with torch_errors():
            for output, tensor in zip(outputs, inputs, strict=True):
                _check_dtypes("all_gather", output, tensor)
                self._begin(draft, opts, "all_gather", draft.read(tensor).array, draft.write(output).array)
        return self._work(draft, opts, outputs)

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> RequestWork:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = _with_timeout("ReduceScatter", opts, timeout)
        draft = Draft()
        with torch_errors():
            for output, parts in zip(outputs, inputs, strict=True):
                counts = [part.numel() for part in parts]
                even = len(set(counts)) == 1
                self._check_parts("reduce_scatter", parts, output, even=even)
                self._reduce_scatter(draft, opts, output, draft.read_parts(parts), None if even else counts)
        return self._work(draft, opts, outputs)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> RequestWork:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RequestWork:
        opts = _with_timeout("ReduceScatter", opts, None)
        draft = Draft()
        with torch_errors():
            for output, tensor in zip(outputs, inputs, strict=True):
                _check_dtypes("reduce_scatter", output, tensor)
                self._reduce_scatter(draft, opts, output, draft.read(tensor))
        return self._work(draft, opts, outputs)

    def _reduce_scatter(
        self, draft: Draft, opts: Any, output: torch.Tensor, source: View, counts: Sequence[int] | None = None
    ) -> None:
        op, target = op_of(opts.reduceOp), draft.write(output).array
        self._begin(draft, opts, "reduce_scatter", source.array, target, op, dtype=source.dtype, counts=counts)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> RequestWork:
        opts = _with_timeout("Barrier", opts, timeout)
        draft = Draft()
        with torch_errors():
            self._begin(draft, opts, "barrier")
        return self._work(draft, opts, ())

    def gather(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> RequestWork:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = _with_timeout("Gather", opts, timeout)
        draft, (tensor,), root = Draft(), inputs, opts.rootRank
        parts: Tensors = outputs[0] if self.rank() == root else ()
        with torch_errors():
            if parts:
                self._check_parts("gather", parts, tensor)
            whole = draft.write_parts(parts).array if parts else None
            self._begin(draft, opts, "gather", draft.read(tensor).array, whole, root)
        return self._work(draft, opts, parts)

    def scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> RequestWork:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = _with_timeout("Scatter", opts, timeout)
        draft, (tensor,), root = Draft(), outputs, opts.rootRank
        parts: Tensors = inputs[0] if self.rank() == root else ()
        with torch_errors():
            if parts:
                self._check_parts("scatter", parts, tensor)
            whole = draft.read_parts(parts).array if parts else None
            self._begin(draft, opts, "scatter", whole, draft.write(tensor).array, root)
        return self._work(draft, opts, [tensor])

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: Sequence[int] = (),
        input_sizes: Sequence[int] = (),
        opts: Any = None,
        timeout: timedelta | None = None,
    ) -> RequestWork:
        opts = _with_timeout("AllToAll", opts, timeout)
        draft = Draft()
        with torch_errors():
            _check_dtypes("all_to_all", output, tensor)
            counts = {}
            if output_sizes or input_sizes:
                counts["in_counts"] = _counts("all_to_all", tensor, input_sizes, self.size())
                counts["out_counts"] = _counts("all_to_all", output, output_sizes, self.size())
            self._begin(draft, opts, "all_to_all", draft.read(tensor).array, draft.write(output).array, **counts)
        return self._work(draft, opts, [output])

    def alltoall(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> RequestWork:
        opts = _with_timeout("AllToAll", opts, timeout)
        draft = Draft()
        with torch_errors():
            for tensors in (inputs, outputs):
                if len(tensors) != self.size():
                    raise InputError(f"all_to_all: got {len(tensors)} tensors, expected {self.size()}")
                for tensor in tensors:
                    _check_dtypes("all_to_all", tensor, inputs[0])
            counts = {
                "in_counts": [tensor.numel() for tensor in inputs],
                "out_counts": [tensor.numel() for tensor in outputs],
            }
            source, target = draft.read_parts(inputs).array, draft.write_parts(outputs).array
            self._begin(draft, opts, "all_to_all", source, target, **counts)
        return self._work(draft, opts, outputs)

    # -- messages

    @property
    def _mailbox(self) -> Mailbox:
        # Made when first needed: the transport keeps its receives.
        return self.communicator.mailbox()

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> RequestWork:
        draft = Draft()
        with torch_errors():
            for tensor in tensors:
                draft.requests.append(self._mailbox.start_send(draft.read(tensor).array, peer, tag=tag))
        return self._work(draft, None, tensors)

    def recv(self, tensors: Tensors, peer: int | None, tag: int = 0) -> RequestWork:
        draft, received = Draft(), list[MailRequest]()
        with torch_errors():
            for tensor in tensors:
                received.append(self._mailbox.start_recv(draft.write(tensor).array, peer, tag=tag))
        draft.requests += received

        def source() -> int:
            found = received[-1].received
            return -1 if found is None else found.source

        return self._work(draft, None, tensors, source)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> RequestWork:
        return self.recv(tensors, None, tag)

    # -- calls

    def _begin(self, draft: Draft, opts: Any, verb: str, *args: Any, **options: Any) -> None:
        """Start `verb` of the communicator, or run it where the caller waits anyway."""
        comm = self.communicator
        self._sequence += 1
        if opts.asyncOp or self._together is not None:
            draft.requests.append(getattr(comm, f"start_{verb}")(*args, **options))
        else:
            getattr(comm, verb)(*args, timeout_s=self._limit_s(opts), **options)

    def _work(
        self, draft: Draft, opts: Any, result: Tensors, source: Callable[[], int] | None = None
    ) -> RequestWork:
        if self._together is not None:
            self._together.append(draft)
        return RequestWork(draft.requests, self._limit_s(opts), result, draft.finish, source)

    def _limit_s(self, opts: Any) -> float:
        limit_s = None if opts is None else seconds(opts.timeout)
        return self.communicator.timeout_s if limit_s is None else limit_s

    def _check_parts(self, verb: str, parts: Tensors, tensor: torch.Tensor, *, even: bool = True) -> None:
        if len(parts) != self.size():
            raise InputError(f"{verb}: got a list of {len(parts)} tensors, expected {self.size()}")
        for part in parts:
            _check_dtypes(verb, part, tensor)
            if even and part.numel() != tensor.numel():
                raise InputError(f"{verb}: got {part.numel()} elements, expected {tensor.numel()} as the other tensor")

    # -- several calls as one

    def _start_coalescing(self, _device: torch.device) -> None:
        self._together = []

    def _end_coalescing(self, _device: torch.device) -> RequestWork:
        together, self._together = self._together or [], None

        def finish() -> None:
            for draft in together:
                draft.finish()

        return RequestWork([each for draft in together for each in draft.requests], self._limit_s(None), (), finish)

    # -- names, numbers, the end

    def name(self) -> str:
        return "lanterne"

    getBackendName = _get_backend_name = name

    @property
    def group_name(self) -> str:
        return self._name

    @group_name.setter
    def group_name(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_desc(self) -> str:
        return self._desc

    @group_desc.setter
    def group_desc(self, desc: str) -> None:
        self._desc = desc

    def getGroupDesc(self) -> str:
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        self._desc = desc

    _set_group_desc = setGroupDesc

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> "LanterneGroup":
        """What serves `device`: torch asks it what it can, and this says of what lanterne does not have that it cannot.

        RuntimeError is what torch expects where there is none.
        """
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"lanterne: got device {device}, expected the CPU, which lanterne serves")
        return self

    supports_splitting = supports_coalescing = supports_time_estimate = False

    def supports_tensor_alloc(self, _device: torch.device) -> bool:
        """Whether it has memory of its own for tensors."""
        return False

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def set_timeout(self, timeout: timedelta) -> None:
        """Calls that are given no timeout have this one from now on."""
        limit_s = seconds(timeout)
        if limit_s is None:
            raise InputError(f"set_timeout: got {timeout}, expected more than 0")
        self.communicator.timeout_s = limit_s

    def errored(self) -> LanterneError | None:
        """What has ended this group; None: it works."""
        return self.communicator.failure

    def abort(self) -> None:
        """End this group now: calls under way, and later ones, raise, here and on the other ranks."""
        self.communicator.abort("aborted by its user")

    def shutdown(self) -> None:
        """End this group; a second call does nothing."""
        on_shutdown, self._on_shutdown = self._on_shutdown, lambda _group: None
        on_shutdown(self)
        with torch_errors():
            self.communicator.close()


def _options(kind: str, tensors: Any, opts: Any, timeout: timedelta | None) -> tuple[list[torch.Tensor], Any]:
    """(the tensors, the options of a call): torch calls with a tensor or a list, and options or what is in them."""
    tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    if opts is not None and not isinstance(opts, int) and not hasattr(opts, "timeout"):
        op, opts = opts, _with_timeout(kind, None, timeout)
        opts.reduceOp = op
    return tensors, _with_timeout(kind, opts, timeout)


def _with_timeout(kind: str, opts: Any, timeout: timedelta | None) -> Any:
    """The options of a call; an int is its root."""
    if isinstance(opts, int):
        number, opts = opts, OPTIONS[kind]()
        opts.rootRank = number
    opts = OPTIONS[kind]() if opts is None else opts
    if timeout is not None:
        opts.timeout = timeout
    return opts


def _check_dtypes(verb: str, one: torch.Tensor, other: torch.Tensor) -> None:
    if one.dtype != other.dtype:
        raise InputError(f"{verb}: got tensors of {one.dtype} and {other.dtype}, expected one dtype")


def _counts(verb: str, tensor: torch.Tensor, sizes: Sequence[int], world_size: int) -> list[int]:
    """Elements of the parts of `tensor` that have `sizes` rows each; no sizes: equal ones."""
    rows = tensor.size(0) if tensor.dim() else 0
    if not sizes:
        if rows % world_size:
            raise InputError(f"{verb}: got {rows} rows, expected a multiple of {world_size}")
        sizes = [rows // world_size] * world_size
    if len(sizes) != world_size or sum(sizes) != rows:
        raise InputError(f"{verb}: got split sizes {list(sizes)} of {rows} rows, expected {world_size} that sum to it")
    return [size * (tensor.numel() // rows if rows else 0) for size in sizes]
