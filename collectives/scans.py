"""The collectives of a Communicator that reduce what the ranks up to each hold."""

# So that help() says `Array`, not all that it may be.
from __future__ import annotations

from lanterne.collectives.algorithms.outside import AnyAlgorithm
from lanterne.collectives.core import CallVerb, StartVerb
from lanterne.collectives.execute.arguments import CallOptions
from lanterne.collectives.execute.requests import CollectiveRequest
from lanterne.kernels.arrays import Array, Stream
from lanterne.kernels.dtypes import Op


class Scans:
    """How a Communicator reduces the arrays of its first ranks: for each rank another result."""

    # Those of the communicator's core.
    _call: CallVerb
    _start: StartVerb

    def scan(
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
    ) -> None:
        """out_array = in_array of rank 0 op ... op in_array of this rank.

        Args:
            in_array, out_array: (count,), or any other shape; one array or two that do not overlap.
            op: as `all_reduce` has it, but for "mean".
        """
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits)
        self._call("scan", in_array, out_array, op, None, stream, options, timeout_s)

    def start_scan(
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
    ) -> CollectiveRequest:
        """As `scan`, but returns a request."""
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits)
        return self._start("scan", in_array, out_array, op, None, stream, options)

    def exscan(
        self,
        in_array: Array,
        out_array: Array | None,
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
        """out_array = in_array of rank 0 op ... op in_array of the rank before this one.

        Otherwise as `scan`; on rank 0 out_array is not touched and may be None.
        """
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits)
        self._call("exscan", in_array, out_array, op, None, stream, options, timeout_s)

    def start_exscan(
        self,
        in_array: Array,
        out_array: Array | None,
        op: Op = "sum",
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
    ) -> CollectiveRequest:
        """As `exscan`, but returns a request."""
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits)
        return self._start("exscan", in_array, out_array, op, None, stream, options)
