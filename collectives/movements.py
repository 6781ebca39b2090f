"""The collectives of a Communicator that move data, and the barrier."""

# So that help() says `Array`, not all that it may be.
from __future__ import annotations

import numpy as np

from lanterne.collectives.algorithms.outside import AnyAlgorithm
from lanterne.collectives.call.sizes import Counts
from lanterne.collectives.core import CallVerb, StartVerb
from lanterne.collectives.execute.arguments import CallOptions
from lanterne.collectives.execute.requests import CollectiveRequest
from lanterne.kernels.arrays import Array, Stream


class RootMovements:
    """How a Communicator moves arrays, of any dtype, between one rank and all others."""

    # Those of the communicator's core.
    _call: CallVerb
    _start: StartVerb

    def broadcast(
        self,
        in_out_array: Array,
        root: int = 0,
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        timeout_s: float | None = None,
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
    ) -> None:
        """in_out_array = that of rank `root`; any dtype."""
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits)
        self._call("broadcast", in_out_array, in_out_array, None, root, stream, options, timeout_s)

    def start_broadcast(
        self,
        in_out_array: Array,
        root: int = 0,
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
    ) -> CollectiveRequest:
        """As `broadcast`, but returns a request."""
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits)
        return self._start("broadcast", in_out_array, in_out_array, None, root, stream, options)

    def gather(
        self,
        in_array: Array,
        out_array: Array | None,
        root: int = 0,
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
        """out_array of rank `root` = the in_arrays of all ranks, in order; not touched on the others, and may be None.

        Args:
            in_array: (count,) of any dtype; at the root separate or in place: its part of out_array.
            out_array: (world_size * count,).
            counts: where they differ, elements of every rank's in_array; a rank that is not the root may give its own.
        """
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits, counts=counts)
        self._call("gather", in_array, out_array, None, root, stream, options, timeout_s)

    def start_gather(
        self,
        in_array: Array,
        out_array: Array | None,
        root: int = 0,
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
        counts: Counts | None = None,
    ) -> CollectiveRequest:
        """As `gather`, but returns a request."""
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits, counts=counts)
        return self._start("gather", in_array, out_array, None, root, stream, options)

    def scatter(
        self,
        in_array: Array | None,
        out_array: Array,
        root: int = 0,
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
        """out_array = this rank's part of rank `root`'s in_array, which the others have not and may give as None.

        Args:
            in_array: (world_size * count,) of any dtype.
            out_array: (count,); at the root separate or in place: its part of in_array.
            counts: where they differ, elements of every rank's part; a rank that is not the root may give its own.
        """
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits, counts=counts)
        self._call("scatter", in_array, out_array, None, root, stream, options, timeout_s)

    def start_scatter(
        self,
        in_array: Array | None,
        out_array: Array,
        root: int = 0,
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
        counts: Counts | None = None,
    ) -> CollectiveRequest:
        """As `scatter`, but returns a request."""
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits, counts=counts)
        return self._start("scatter", in_array, out_array, None, root, stream, options)


class Exchanges:
    """How a Communicator moves the arrays of its ranks, of any dtype, between all of them, and waits for all."""

    # Those of the communicator's core.
    _call: CallVerb
    _start: StartVerb

    def all_gather(
        self,
        in_array: Array,
        out_array: Array,
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
        """out_array = the in_arrays of all ranks, in order.

        Args:
            in_array: (count,) of any dtype, separate or in place: this rank's part of out_array.
            out_array: (world_size * count,).
            counts: elements of every rank's in_array, where they differ; the same on all ranks.
        """
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits, counts=counts)
        self._call("all_gather", in_array, out_array, None, None, stream, options, timeout_s)

    def start_all_gather(
        self,
        in_array: Array,
        out_array: Array,
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
        counts: Counts | None = None,
    ) -> CollectiveRequest:
        """As `all_gather`, but returns a request."""
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits, counts=counts)
        return self._start("all_gather", in_array, out_array, None, None, stream, options)

    def all_to_all(
        self,
        in_array: Array,
        out_array: Array,
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        timeout_s: float | None = None,
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
        in_counts: Counts | None = None,
        out_counts: Counts | None = None,
    ) -> None:
        """Part r of out_array = this rank's part of rank r's in_array.

        Args:
            in_array, out_array: (world_size * count,) of any dtype; one array or two that do not overlap.
            in_counts, out_counts: where parts differ, elements of every part of the two, which need no other rank know:
                what goes to rank r, and what comes from it.
        """
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits, None, None, in_counts, out_counts)
        self._call("all_to_all", in_array, out_array, None, None, stream, options, timeout_s)

    def start_all_to_all(
        self,
        in_array: Array,
        out_array: Array,
        stream: Stream = None,
        *,
        algorithm: AnyAlgorithm = "auto",
        dtype: object = None,
        num_chunks: int | None = None,
        segment_nbytes: int | None = None,
        credits: int | None = None,
        in_counts: Counts | None = None,
        out_counts: Counts | None = None,
    ) -> CollectiveRequest:
        """As `all_to_all`, but returns a request."""
        options = CallOptions(algorithm, dtype, num_chunks, segment_nbytes, credits, None, None, in_counts, out_counts)
        return self._start("all_to_all", in_array, out_array, None, None, stream, options)

    def barrier(self, *, algorithm: AnyAlgorithm = "auto", timeout_s: float | None = None) -> None:
        """Return once every rank has called it."""
        self._call("barrier", _EMPTY, _EMPTY, options=CallOptions(algorithm), timeout_s=timeout_s)

    def start_barrier(self, *, algorithm: AnyAlgorithm = "auto") -> CollectiveRequest:
        """As `barrier`, but returns a request: done once every rank has called it."""
        return self._start("barrier", _EMPTY, _EMPTY, options=CallOptions(algorithm))


_EMPTY = np.empty(0, np.uint8)
