"""The collectives of a Communicator that reduce; those of which each rank has another result are in scans.py."""

# So that help() says `Array`, not all that it may be.
from __future__ import annotations

from lanterne.collectives.algorithms.outside import AnyAlgorithm
from lanterne.collectives.call.sizes import Counts
from lanterne.collectives.core import CallVerb, StartVerb
from lanterne.collectives.execute.arguments import CallOptions
from lanterne.collectives.execute.requests import CollectiveRequest
from lanterne.collectives.schedule.ir import LateRank
from lanterne.kernels.arrays import Array, Stream
from lanterne.kernels.dtypes import Op


class Reductions:
    """How a Communicator reduces the arrays of all its ranks to one."""

    # Those of the communicator's core.
    _call: CallVerb
    _start: StartVerb

    def all_reduce(
        self,
        in_array: Array,
        out_array: Array,
        op: Op = "sum",
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        timeout_s: float | None = None,
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
        late_rank: LateRank = None,
        joined: int | None = None,
    ) -> None:
        """out_array = in_array of rank 0 op in_array of rank 1 op ..., the same bits on every rank.

        Args:
            in_array, out_array: (count,), or any other shape; one array or two that do not overlap.
            op: "sum", "prod", "min", "max"; "mean", of floats, also "avg": the sum, divided by world_size; of integers
                and bools "band", "bor", "bxor" bit by bit, and "land", "lor", "lxor" of truth values; or a PremulSum.
                Complex numbers have sum, prod and mean; of bools the sum is or, the product and.
        """
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits, late_rank, joined)
        self._call("all_reduce", in_array, out_array, op, None, stream, options, timeout_s)

    def start_all_reduce(
        self,
        in_array: Array,
        out_array: Array,
        op: Op = "sum",
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
        late_rank: LateRank = None,
        joined: int | None = None,
    ) -> CollectiveRequest:
        """As `all_reduce`, but returns a request."""
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits, late_rank, joined)
        return self._start("all_reduce", in_array, out_array, op, None, stream, options)

    def reduce_scatter(
        self,
        in_array: Array,
        out_array: Array,
        op: Op = "sum",
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        timeout_s: float | None = None,
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
        counts: Counts | None = None,
    ) -> None:
        """out_array = this rank's part of the reduction.

        Args:
            in_array: (world_size * count,).
            out_array: (count,), separate or in place: this rank's part of in_array, which is the only one that changes;
                or, as MPI has it, the start of in_array.
            op: as `all_reduce` has it.
            counts: elements of every rank's part, where they differ; the same on all ranks.
        """
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits, counts=counts)
        self._call("reduce_scatter", in_array, out_array, op, None, stream, options, timeout_s)

    def start_reduce_scatter(
        self,
        in_array: Array,
        out_array: Array,
        op: Op = "sum",
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
        counts: Counts | None = None,
    ) -> CollectiveRequest:
        """As `reduce_scatter`, but returns a request."""
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits, counts=counts)
        return self._start("reduce_scatter", in_array, out_array, op, None, stream, options)

    def reduce(
        self,
        in_array: Array,
        out_array: Array | None,
        root: int = 0,
        op: Op = "sum",
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        timeout_s: float | None = None,
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
    ) -> None:
        """As `all_reduce`, for rank `root` only; out_array is not touched on the others and may be None."""
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits)
        self._call("reduce", in_array, out_array, op, root, stream, options, timeout_s)

    def start_reduce(
        self,
        in_array: Array,
        out_array: Array | None,
        root: int = 0,
        op: Op = "sum",
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
    ) -> CollectiveRequest:
        """As `reduce`, but returns a request."""
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits)
        return self._start("reduce", in_array, out_array, op, root, stream, options)
