"""torch.distributed's verbs that add up: all_reduce, reduce, reduce_scatter."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from lanterne.kernels.dtypes import Op
from lanterne.torch.drafts import Draft, Tensors, check_dtypes, options_of, unless_even, with_timeout
from lanterne.torch.group_base import GroupBase
from lanterne.torch.sparse_sums import start_sparse_sum
from lanterne.torch.tensor_views import View
from lanterne.torch.torch_internals import OPTIONS, op_of, torch_errors
from lanterne.torch.works import RequestWork


class GroupReductions(GroupBase):
    """Verbs that add up; each is torch's."""

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None) -> RequestWork:
        tensors, opts = options_of("Allreduce", tensors, opts, timeout)
        op, draft = op_of(opts.reduceOp), Draft()
        with torch_errors():
            for tensor in tensors:
                if tensor.layout is torch.sparse_coo:
                    self._sum_sparse(draft, opts, tensor, op)
                    continue
                array, dtype = draft.write(tensor, holds=True)
                self.steps.begins(array.nbytes)
                self._begin(draft, opts, "all_reduce", array, array, op, dtype=dtype)
        draft.at_end.append(self.steps.ends)
        return self._work(draft, opts, tensors)

    def _sum_sparse(self, draft: Draft, opts: Any, tensor: torch.Tensor, op: Op) -> None:
        self._sequence += 1
        requests, finish = start_sparse_sum(self.communicator, tensor, op, self._limit_s(opts))
        draft.requests += requests
        draft.at_end.append(finish)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> RequestWork:
        return self.allreduce(tensors, opts if opts is not None else OPTIONS["AllreduceCoalesced"]())

    def reduce(self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None) -> RequestWork:
        tensors, opts = options_of("Reduce", tensors, opts, timeout)
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

    def reduce_scatter(
        self, outputs: Any, inputs: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> RequestWork:
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = with_timeout("ReduceScatter", opts, timeout)
        draft = Draft()
        with torch_errors():
            for output, parts in zip(outputs, inputs, strict=True):
                counts = unless_even(self._counts_of("reduce_scatter", parts, output))
                self._reduce_scatter(draft, opts, output, draft.read_parts(parts), counts)
        return self._work(draft, opts, outputs)

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> RequestWork:
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> RequestWork:
        opts = with_timeout("ReduceScatter", opts, None)
        draft = Draft()
        with torch_errors():
            for output, tensor in zip(outputs, inputs, strict=True):
                check_dtypes("reduce_scatter", output, tensor)
                self._reduce_scatter(draft, opts, output, draft.read(tensor))
        return self._work(draft, opts, outputs)

    def _reduce_scatter(
        self, draft: Draft, opts: Any, output: torch.Tensor, source: View, counts: Sequence[int] | None = None
    ) -> None:
        op, target = op_of(opts.reduceOp), draft.write(output).array
        self._begin(draft, opts, "reduce_scatter", source.array, target, op, dtype=source.dtype, counts=counts)
