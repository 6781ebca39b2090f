"""The collectives of a Communicator: each in a blocking form and in one that returns a request."""

# So that help() shows `Array`, not the union behind it.
from __future__ import annotations

from collections.abc import Callable
from typing import TypedDict, Unpack

import numpy as np

from lanterne.collectives.algorithms.outside import AnyAlgorithm
from lanterne.collectives.call.sizes import Counts
from lanterne.collectives.execute.arguments import CallOptions
from lanterne.collectives.execute.requests import CollectiveRequest
from lanterne.collectives.schedule.ir import LateRank
from lanterne.kernels.arrays import Array, Stream
from lanterne.kernels.dtypes import Op


class Options(TypedDict, total=False):
    """Options of every collective; Communicator explains them."""

    algorithm: AnyAlgorithm
    dtype: object
    num_chunks: int | None
    segment_nbytes: int | None
    credits: int | None


class LateOptions(Options, total=False):
    """Options of a collective that may have a late rank."""

    late_rank: LateRank
    joined: int | None


class SizedOptions(Options, total=False):
    """Options of a collective whose parts may differ in size."""

    counts: Counts | None


class ExchangeOptions(Options, total=False):
    """Options of all_to_all."""

    in_counts: Counts | None
    out_counts: Counts | None


_EMPTY = np.empty(0, np.uint8)
_ALLOWED: dict[str, frozenset[str]] = {
    **dict.fromkeys(("all_reduce", "bind", "capture"), frozenset(LateOptions.__annotations__)),
    **dict.fromkeys(("reduce_scatter", "gather", "scatter", "all_gather"), frozenset(SizedOptions.__annotations__)),
    **dict.fromkeys(("reduce", "scan", "exscan", "broadcast", "all_to_all"), frozenset(Options.__annotations__)),
}


def call_options(verb: str, options: Options) -> CallOptions:
    """Return the keywords of `verb` as CallOptions.

    Raises:
        TypeError: `verb` has no such keyword.
    """
    if not options.keys() <= _ALLOWED[verb]:
        raise TypeError(f"{verb}() got an unexpected keyword argument {min(options.keys() - _ALLOWED[verb])!r}")
    return CallOptions(**options)


class Verbs:
    """The collectives; `_call` and `_start` are those of the communicator's core."""

    _call: Callable[..., None]
    _start: Callable[..., CollectiveRequest]

    # -- reductions

    def all_reduce(
        self,
        in_array: Array,
        out_array: Array,
        op: Op = "sum",
        stream: Stream = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[LateOptions],
    ) -> None:
        """Reduce the arrays of all ranks into out_array, with the same bits on every rank.

        Args:
            in_array, out_array: (count,), or any other shape; one array or two that do not overlap.
            op: "sum", "prod", "min", "max"; "mean", of floats, also "avg": the sum, divided by world_size; of integers
                and bools "band", "bor", "bxor" bit by bit, and "land", "lor", "lxor" of truth values; or a PremulSum.
                Complex numbers have sum, prod and mean; of bools the sum is or, the product and.
        """
        self._call("all_reduce", in_array, out_array, op, None, stream, call_options("all_reduce", options), timeout_s)

    def start_all_reduce(
        self, in_array: Array, out_array: Array, op: Op = "sum", stream: Stream = None, **options: Unpack[LateOptions]
    ) -> CollectiveRequest:
        """Start `all_reduce` and return its request."""
        return self._start("all_reduce", in_array, out_array, op, None, stream, call_options("all_reduce", options))

    def reduce_scatter(
        self,
        in_array: Array,
        out_array: Array,
        op: Op = "sum",
        stream: Stream = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[SizedOptions],
    ) -> None:
        """Reduce the arrays of all ranks, of which each rank gets its part.

        Args:
            in_array: (world_size * count,).
            out_array: (count,), separate or in place: this rank's part of in_array, which is the only one that changes;
                or, as MPI has it, the start of in_array.
            op: as in `all_reduce`.
            counts: elements of every rank's part, where they differ; the same on all ranks.
        """
        self._call(
            "reduce_scatter", in_array, out_array, op, None, stream, call_options("reduce_scatter", options), timeout_s
        )

    def start_reduce_scatter(
        self, in_array: Array, out_array: Array, op: Op = "sum", stream: Stream = None, **options: Unpack[SizedOptions]
    ) -> CollectiveRequest:
        """Start `reduce_scatter` and return its request."""
        return self._start(
            "reduce_scatter", in_array, out_array, op, None, stream, call_options("reduce_scatter", options)
        )

    def reduce(
        self,
        in_array: Array,
        out_array: Array | None,
        root: int = 0,
        op: Op = "sum",
        stream: Stream = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Reduce the arrays of all ranks into out_array of rank `root`, as `all_reduce`; elsewhere it may be None."""
        self._call("reduce", in_array, out_array, op, root, stream, call_options("reduce", options), timeout_s)

    def start_reduce(
        self,
        in_array: Array,
        out_array: Array | None,
        root: int = 0,
        op: Op = "sum",
        stream: Stream = None,
        **options: Unpack[Options],
    ) -> CollectiveRequest:
        """Start `reduce` and return its request."""
        return self._start("reduce", in_array, out_array, op, root, stream, call_options("reduce", options))

    def scan(
        self,
        in_array: Array,
        out_array: Array,
        op: Op = "sum",
        stream: Stream = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Reduce the arrays of ranks 0 to this one.

        Args:
            in_array, out_array: (count,), or any other shape; one array or two that do not overlap.
            op: as in `all_reduce`, but for "mean".
        """
        self._call("scan", in_array, out_array, op, None, stream, call_options("scan", options), timeout_s)

    def start_scan(
        self, in_array: Array, out_array: Array, op: Op = "sum", stream: Stream = None, **options: Unpack[Options]
    ) -> CollectiveRequest:
        """Start `scan` and return its request."""
        return self._start("scan", in_array, out_array, op, None, stream, call_options("scan", options))

    def exscan(
        self,
        in_array: Array,
        out_array: Array | None,
        op: Op = "sum",
        stream: Stream = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Reduce the arrays of the ranks before this one; on rank 0 out_array is unchanged and may be None."""
        self._call("exscan", in_array, out_array, op, None, stream, call_options("exscan", options), timeout_s)

    def start_exscan(
        self,
        in_array: Array,
        out_array: Array | None,
        op: Op = "sum",
        stream: Stream = None,
        **options: Unpack[Options],
    ) -> CollectiveRequest:
        """Start `exscan` and return its request."""
        return self._start("exscan", in_array, out_array, op, None, stream, call_options("exscan", options))

    # -- movements, of any dtype

    def broadcast(
        self,
        in_out_array: Array,
        root: int = 0,
        stream: Stream = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Copy in_out_array of rank `root` to all ranks."""
        self._call(
            "broadcast", in_out_array, in_out_array, None, root, stream, call_options("broadcast", options), timeout_s
        )

    def start_broadcast(
        self, in_out_array: Array, root: int = 0, stream: Stream = None, **options: Unpack[Options]
    ) -> CollectiveRequest:
        """Start `broadcast` and return its request."""
        return self._start(
            "broadcast", in_out_array, in_out_array, None, root, stream, call_options("broadcast", options)
        )

    def gather(
        self,
        in_array: Array,
        out_array: Array | None,
        root: int = 0,
        stream: Stream = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[SizedOptions],
    ) -> None:
        """Collect the arrays of all ranks in out_array of rank `root`; elsewhere it may be None.

        Args:
            in_array: (count,); at the root separate or in place: its part of out_array.
            out_array: (world_size * count,).
            counts: where they differ, elements of every rank's in_array; a rank that is not the root may give its own.
        """
        self._call("gather", in_array, out_array, None, root, stream, call_options("gather", options), timeout_s)

    def start_gather(
        self,
        in_array: Array,
        out_array: Array | None,
        root: int = 0,
        stream: Stream = None,
        **options: Unpack[SizedOptions],
    ) -> CollectiveRequest:
        """Start `gather` and return its request."""
        return self._start("gather", in_array, out_array, None, root, stream, call_options("gather", options))

    def scatter(
        self,
        in_array: Array | None,
        out_array: Array,
        root: int = 0,
        stream: Stream = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[SizedOptions],
    ) -> None:
        """Distribute the parts of rank `root`'s in_array; elsewhere it may be None.

        Args:
            in_array: (world_size * count,).
            out_array: (count,); at the root separate or in place: its part of in_array.
            counts: where they differ, elements of every rank's part; a rank that is not the root may give its own.
        """
        self._call("scatter", in_array, out_array, None, root, stream, call_options("scatter", options), timeout_s)

    def start_scatter(
        self,
        in_array: Array | None,
        out_array: Array,
        root: int = 0,
        stream: Stream = None,
        **options: Unpack[SizedOptions],
    ) -> CollectiveRequest:
        """Start `scatter` and return its request."""
        return self._start("scatter", in_array, out_array, None, root, stream, call_options("scatter", options))

    def all_gather(
        self,
        in_array: Array,
        out_array: Array,
        stream: Stream = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[SizedOptions],
    ) -> None:
        """Collect the arrays of all ranks, in order, on every rank.

        Args:
            in_array: (count,), separate or in place: this rank's part of out_array.
            out_array: (world_size * count,).
            counts: elements of every rank's in_array, where they differ; the same on all ranks.
        """
        self._call(
            "all_gather", in_array, out_array, None, None, stream, call_options("all_gather", options), timeout_s
        )

    def start_all_gather(
        self, in_array: Array, out_array: Array, stream: Stream = None, **options: Unpack[SizedOptions]
    ) -> CollectiveRequest:
        """Start `all_gather` and return its request."""
        return self._start("all_gather", in_array, out_array, None, None, stream, call_options("all_gather", options))

    def all_to_all(
        self,
        in_array: Array,
        out_array: Array,
        stream: Stream = None,
        *,
        timeout_s: float | None = None,
        **options: Unpack[ExchangeOptions],
    ) -> None:
        """Send part r of in_array to rank r, whose part for this rank becomes part r of out_array.

        Args:
            in_array, out_array: (world_size * count,); one array or two that do not overlap.
            in_counts, out_counts: where parts differ, elements of every part of the two arrays: what goes to rank r,
                and what comes from it. Other ranks need not know them.
        """
        self._call("all_to_all", in_array, out_array, None, None, stream, _exchange_options(options), timeout_s)

    def start_all_to_all(
        self, in_array: Array, out_array: Array, stream: Stream = None, **options: Unpack[ExchangeOptions]
    ) -> CollectiveRequest:
        """Start `all_to_all` and return its request."""
        return self._start("all_to_all", in_array, out_array, None, None, stream, _exchange_options(options))

    # -- waiting

    def barrier(self, *, algorithm: AnyAlgorithm = "auto", timeout_s: float | None = None) -> None:
        """Return once every rank has called it."""
        self._call("barrier", _EMPTY, _EMPTY, options=CallOptions(algorithm), timeout_s=timeout_s)

    def start_barrier(self, *, algorithm: AnyAlgorithm = "auto") -> CollectiveRequest:
        """Start `barrier` and return its request, which is done once every rank has called it."""
        return self._start("barrier", _EMPTY, _EMPTY, options=CallOptions(algorithm))


def _exchange_options(options: ExchangeOptions) -> CallOptions:
    counts, out_counts = options.pop("in_counts", None), options.pop("out_counts", None)
    return call_options("all_to_all", options)._replace(counts=counts, out_counts=out_counts)
