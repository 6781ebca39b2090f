"""torch.distributed's verbs that move data: broadcast, all_gather, gather, scatter, all_to_all; and barrier."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from lanterne.errors import InputError
from lanterne.torch.drafts import Draft, Tensors, check_dtypes, options_of, unless_even, with_timeout
from lanterne.torch.group_base import GroupBase
from lanterne.torch.torch_internals import torch_errors
from lanterne.torch.works import RequestWork


class GroupMovements(GroupBase):
    """Verbs that move data; each is torch's."""

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> RequestWork:
        tensors, opts = options_of("Broadcast", tensors, opts, timeout)
        draft = Draft()
        with torch_errors():
            for tensor in tensors:
                array, _ = draft.write(tensor, holds=True)
                self._begin(draft, opts, "broadcast", array, opts.rootRank)
        return self._work(draft, opts, tensors)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> RequestWork:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = with_timeout("Allgather", opts, timeout)
        draft = Draft()
        with torch_errors():
            for parts, tensor in zip(outputs, inputs, strict=True):
                counts = unless_even(self._counts_of("all_gather", parts, tensor))
                source, target = draft.read(tensor).array, draft.write_parts(parts).array
                self._begin(draft, opts, "all_gather", source, target, counts=counts)
        return self._work(draft, opts, [part for parts in outputs for part in parts])

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> RequestWork:
        return self.allgather(list(zip(*outputs, strict=True)), inputs, opts)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> RequestWork:
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RequestWork:
        opts = with_timeout("Allgather", opts, None)
        draft = Draft()
        with torch_errors():
            for output, tensor in zip(outputs, inputs, strict=True):
                check_dtypes("all_gather", output, tensor)
                self._begin(draft, opts, "all_gather", draft.read(tensor).array, draft.write(output).array)
        return self._work(draft, opts, outputs)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> RequestWork:
        opts = with_timeout("Barrier", opts, timeout)
        draft = Draft()
        with torch_errors():
            self._begin(draft, opts, "barrier")
        return self._work(draft, opts, ())

    def gather(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> RequestWork:
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = with_timeout("Gather", opts, timeout)
        draft, (tensor,), root = Draft(), inputs, opts.rootRank
        parts: Tensors = outputs[0] if self.rank() == root else ()
        with torch_errors():
            # The others do not know whether the parts are even.
            counts = self._counts_of("gather", parts, tensor) if parts else tensor.numel()
            whole = draft.write_parts(parts).array if parts else None
            self._begin(draft, opts, "gather", draft.read(tensor).array, whole, root, counts=counts)
        return self._work(draft, opts, parts)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None) -> RequestWork:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = with_timeout("Scatter", opts, timeout)
        draft, (tensor,), root = Draft(), outputs, opts.rootRank
        parts: Tensors = inputs[0] if self.rank() == root else ()
        with torch_errors():
            counts = self._counts_of("scatter", parts, tensor) if parts else tensor.numel()
            whole = draft.read_parts(parts).array if parts else None
            self._begin(draft, opts, "scatter", whole, draft.write(tensor).array, root, counts=counts)
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
        opts = with_timeout("AllToAll", opts, timeout)
        draft = Draft()
        with torch_errors():
            check_dtypes("all_to_all", output, tensor)
            counts = {}
            if output_sizes or input_sizes:
                counts["in_counts"] = _counts("all_to_all", tensor, input_sizes, self.size())
                counts["out_counts"] = _counts("all_to_all", output, output_sizes, self.size())
            self._begin(draft, opts, "all_to_all", draft.read(tensor).array, draft.write(output).array, **counts)
        return self._work(draft, opts, [output])

    def alltoall(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None, timeout: timedelta | None = None
    ) -> RequestWork:
        opts = with_timeout("AllToAll", opts, timeout)
        draft = Draft()
        with torch_errors():
            for tensors in (inputs, outputs):
                if len(tensors) != self.size():
                    raise InputError(f"all_to_all: got {len(tensors)} tensors, expected {self.size()}")
                for tensor in tensors:
                    check_dtypes("all_to_all", tensor, inputs[0])
            counts = {
                "in_counts": [tensor.numel() for tensor in inputs],
                "out_counts": [tensor.numel() for tensor in outputs],
            }
            source, target = draft.read_parts(inputs).array, draft.write_parts(outputs).array
            self._begin(draft, opts, "all_to_all", source, target, **counts)
        return self._work(draft, opts, outputs)


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
