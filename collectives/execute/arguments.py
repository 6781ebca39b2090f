"""The arguments of a collective call, checked, and reduced to what all ranks must agree on."""

import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from lanterne.collectives.algorithms.catalogue import NATIVE, UNSCHEDULED, algorithms_for
from lanterne.collectives.algorithms.outside import AnyAlgorithm
from lanterne.collectives.call.memory import CallArray, call_memory, overlap, scaled
from lanterne.collectives.call.sizes import Counts, even_sizes, has_input, has_output, in_short, uneven_sizes
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.execute.given import given_name, given_schedule
from lanterne.collectives.schedule.check_schedule import CheckedSchedule
from lanterne.collectives.schedule.contracts import CONTRACTS
from lanterne.collectives.schedule.ir import LateRank, late_set
from lanterne.errors import InputError
from lanterne.kernels.arrays import Array, HostArray, Stream, is_device_array, numpy_array, told_dtype
from lanterne.kernels.cuda.device_view import DeviceView
from lanterne.kernels.dtypes import Dtype, Op, PremulSum, check_op, dtype_of, find_dtype, find_op

if TYPE_CHECKING:
    from lanterne.collectives.execute.device import DeviceSide, Entry

# Whether in place; and where ranks know the counts of their own parts only, those.
Form: TypeAlias = bool | tuple[bool, tuple[int, ...]]


# Calls that are remembered as they were checked.
MAX_RESOLVED = 1024


class CheckedCall(NamedTuple):
    """A checked call of this rank.

    Attributes:
        key: what all ranks must have in common.
        in_array, out_array: what is read and written; None where the call has none.
        in_place: the parts that both have are the same memory.
        entry: of device arrays.
        counts: chunk_layout.uneven_parts of them, where ranks know those of their own parts only.
        back: the user's array that out_array is to be copied into in the end; None: it is that.
        copies: in_array or out_array was made for this call.
    """

    key: "Key"
    in_array: CallArray | None
    out_array: CallArray | None
    in_place: bool
    dtype: Dtype
    entry: "Entry | None" = None
    counts: tuple[int, ...] | None = None
    back: HostArray | None = None
    copies: bool = False

    @property
    def algorithm(self) -> str:
        return self.key.algorithm

    @property
    def form(self) -> Form:
        """What a plan has executions for, of each its own."""
        return self.in_place if self.counts is None else (self.in_place, self.counts)

    def copy_back(self) -> None:
        """Copy what the call, which is complete, has written into the user's array `back`, if there is one."""
        if self.back is not None:
            found: HostArray = self.out_array  # type: ignore[assignment]  # of the host, where there is `back`
            np.copyto(self.back, found)


class Key(NamedTuple):
    """What all ranks must agree on.

    Attributes:
        part_count: elements of a part (schedule/contracts.py).
        counts: where parts differ, those of all; (): ranks know those of their own only.
        schedule: from outside, whose digest `algorithm` then ends with; None: that is a name of the registry.
    """

    collective: str
    algorithm: str
    op: str | None
    dtype: str
    part_count: int
    root: int | None
    late_rank: LateRank
    num_chunks: int | None
    segment_nbytes: int | None
    credits: int | None
    memory: str | None = None
    joined: int | None = None
    counts: tuple[int, ...] | None = None
    schedule: CheckedSchedule | None = None

    def __str__(self) -> str:
        named: dict[str, object] = {
            "algorithm": self.algorithm,
            "op": self.op,
            "dtype": self.dtype,
            "count": self.part_count if self.counts is None else in_short(self.counts),
            "root": self.root,
        }
        named |= {"late_rank": self.late_rank, "num_chunks": self.num_chunks, "joined": self.joined}
        named |= {"segment_nbytes": self.segment_nbytes, "credits": self.credits, "memory": self.memory}
        return (
            f"{self.collective}({', '.join(f'{name}={value}' for name, value in named.items() if value is not None)})"
        )


class CallOptions(NamedTuple):
    """What a user may say of how a call is to run; see Communicator."""

    algorithm: AnyAlgorithm = "auto"
    dtype: object = None
    num_chunks: int | None = None
    segment_nbytes: int | None = None
    credits: int | None = None
    late_rank: LateRank = None
    joined: int | None = None
    counts: Counts | None = None
    # Of the output array, where it has counts of its own.
    out_counts: Counts | None = None


def resolve(
    communicator: CommunicatorBase,
    collective: str,
    in_array: "Array | None",
    out_array: "Array | None",
    op: Op | None,
    root: int | None,
    stream: Stream,
    options: CallOptions,
) -> CheckedCall:
    """The CheckedCall of these arguments. Host arrays that are not contiguous are copied.

    Raises:
        InputError: wrong dtype, size, op, root or counts; arrays that cannot be written or overlap in part; device
            arrays that are not contiguous.
        Unavailable: device arrays, and no GPU, driver or CuPy here.
    """
    known: tuple[object, ...] | None = None
    # What was checked once need not be again: only whether these arrays are such that their memory will do.
    bare = stream is None and options.counts is None and options.out_counts is None
    if bare and type(in_array) is np.ndarray and type(out_array) is np.ndarray:
        same = in_array is out_array
        known = collective, op, root, options, in_array.dtype, out_array.dtype, in_array.size, out_array.size, same
        try:
            found = communicator.tuning.resolved.get(known)
        except TypeError:  # What cannot be hashed is refused below.
            known = found = None
        if (
            found is not None
            and in_array.flags.c_contiguous
            and out_array.flags.carray
            and (same or not np.may_share_memory(in_array, out_array))
        ):
            key, reads, writes, in_place, element = found
            return CheckedCall(key, in_array if reads else None, out_array if writes else None, in_place, element)
    elif _may_be_known_on_device(communicator, in_array, out_array, root, options):
        side = communicator.device_side()
        source = side.adopt(f"{collective}: in_array", in_array)
        same = in_array is out_array
        target = source if same else side.adopt(f"{collective}: out_array", out_array)
        layouts = source.dtype, source.element, source.size, target.dtype, target.element, target.size
        known = "device", collective, op, options, *layouts, same
        try:
            found = communicator.tuning.resolved.get(known)
        except TypeError:
            known = found = None
        if found is not None and not target.readonly and (same or not overlap(source, target)):
            key, reads, writes, in_place, element = found
            entry = side.entry(stream, source)
            return CheckedCall(key, source if reads else None, target if writes else None, in_place, element, entry)
    call = _resolve(communicator, collective, in_array, out_array, op, root, stream, options)
    # Of what is in place by parts only, the next call's arrays may be apart.
    if known is not None and not call.copies and (in_array is out_array or not call.in_place):
        resolved = communicator.tuning.resolved
        if len(resolved) >= MAX_RESOLVED:
            resolved.clear()
        resolved[known] = call.key, call.in_array is not None, call.out_array is not None, call.in_place, call.dtype
    return call


def _may_be_known_on_device(
    communicator: CommunicatorBase,
    in_array: "Array | None",
    out_array: "Array | None",
    root: int | None,
    options: CallOptions,
) -> bool:
    """Whether a call like this, with device arrays, may have been checked before."""
    if root is not None or options.counts is not None or options.out_counts is not None or communicator.device is None:
        return False
    given: tuple[Any, Any] = in_array, out_array
    return all(type(array) is not np.ndarray and array is not None and is_device_array(array) for array in given)


def _resolve(
    communicator: CommunicatorBase,
    collective: str,
    in_array: "Array | None",
    out_array: "Array | None",
    op: Op | None,
    root: int | None,
    stream: Stream,
    options: CallOptions,
) -> CheckedCall:
    size, rank = communicator.world_size, communicator.rank
    algorithm, dtype, num_chunks, segment_nbytes, credits, late_rank, joined, counts, out_counts = options
    _check_root(collective, root, size)
    has_in, has_out = has_input(collective, rank, root), has_output(collective, rank, root)
    given: Any = in_array if has_in else out_array
    on_device = type(given) is not np.ndarray and is_device_array(given)
    if stream is not None and not on_device:
        raise InputError(f"{collective}: got a stream with host arrays, expected None")
    late_rank = _checked_late(collective, late_rank)
    _check_numbers(collective, num_chunks, joined, segment_nbytes, credits)
    adopt: Callable[[str, str, Any], CallArray] = _host
    side = communicator.device_side(given) if on_device else None
    if side is not None:
        adopt = partial(_on_device, side)
    source = adopt(collective, "in_array", in_array) if has_in else None
    target = None
    if has_out:
        target = source if has_in and out_array is in_array else adopt(collective, "out_array", out_array)
    basis = target if source is None else source
    assert basis is not None, "every rank has an array"
    op, factor = _named(collective, op)
    element = _element(collective, basis, op, dtype, told_dtype(given))
    if counts is None and out_counts is None:
        in_count, out_count = None if source is None else source.size, None if target is None else target.size
        sizes = even_sizes(collective, rank, size, in_count, out_count)
    else:
        sizes = uneven_sizes(collective, rank, size, root, counts, out_counts)
    separate = algorithm == NATIVE and collective == "reduce_scatter" and not on_device
    memory = call_memory(collective, source, target, sizes, separate=separate)
    entry = None
    if side is not None and isinstance(basis, DeviceView):
        if factor is not None:
            memory = side.scaled(stream, memory, factor, element)
        # After that: what the call reads is there once the stream has come here.
        entry = side.entry(stream, basis)
    elif factor is not None:
        memory = scaled(memory, factor, element)
    is_auto = algorithm == "auto"
    if is_auto and sizes.own:
        # Of the registry the first sends every part straight to its owner.
        algorithm = algorithms_for(collective)[0].name
    elif is_auto:
        shared = communicator.shares_memory and not on_device and sizes.counts is None
        choice = communicator.tuning.choose(collective, sizes.larger_count * element.nbytes, shared=shared)
        algorithm, num_chunks = choice.algorithm, choice.num_chunks if num_chunks is None else num_chunks
    outside = given_schedule(communicator, collective, algorithm, num_chunks, root, late_rank)
    if outside is not None:
        if joined is not None:
            raise InputError(f"joined: got {joined}, but {given_name(outside)} cuts nothing")
        late_rank = num_chunks = None
        algorithm = given_name(outside)
    assert isinstance(algorithm, str), "it has a name now"
    if outside is None and not is_auto and num_chunks is None and algorithm not in UNSCHEDULED:
        num_chunks = communicator.tuning.num_chunks(collective, algorithm, sizes.in_count * element.nbytes)
    part_count = sizes.part_count
    key = Key(collective, algorithm, op, element.name, part_count, root, late_rank, num_chunks, segment_nbytes, credits)
    if outside is not None or joined is not None:
        key = key._replace(joined=joined, schedule=outside)
    if on_device:
        key = key._replace(memory="device")
    if sizes.counts is not None:
        key = key._replace(counts=() if sizes.own else sizes.counts)
    read = None if collective == "broadcast" and rank != root else memory.source
    own = sizes.counts if sizes.own else None
    return CheckedCall(key, read, memory.target, memory.in_place, element, entry, own, memory.back, memory.copies)


def check_whole(what: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise InputError, beginning with `what`, unless `value` is a whole number from `least` to `most` (None: any)."""
    try:
        good = least <= operator.index(value) and (most is None or value <= most)
    except TypeError:
        good = False
    if not good:
        raise InputError(f"{what} {value!r}, expected {least} {'or more' if most is None else f'to {most}'}")


def _check_root(collective: str, root: Any, size: int) -> None:
    if root is None:
        return
    if not CONTRACTS[collective].rooted:
        raise InputError(f"{collective}: got root {root!r}, expected none")
    check_whole(f"{collective}: got root", root, 0, size - 1)


def _checked_late(collective: str, late_rank: LateRank) -> LateRank:
    """`late_rank`, of several a late_set."""
    for number in late_rank if isinstance(late_rank, tuple) else late_set(late_rank):
        check_whole(f"{collective}: got late_rank", number, 0)
    return late_set(late_rank) if isinstance(late_rank, tuple) else late_rank


def _check_numbers(
    collective: str, num_chunks: int | None, joined: int | None, segment_nbytes: int | None, credits: int | None
) -> None:
    for name, number, least in (
        ("num_chunks", num_chunks, 1),
        ("joined", joined, 0),
        ("segment_nbytes", segment_nbytes, 1),
        ("credits", credits, 1),
    ):
        if number is not None:
            check_whole(f"{collective}: got {name}", number, least)


def _host(collective: str, what: str, array: Any) -> HostArray:
    return array if type(array) is np.ndarray else numpy_array(array, f"{collective}: {what}")


def _on_device(side: "DeviceSide", collective: str, what: str, array: Any) -> DeviceView:
    return side.adopt(f"{collective}: {what}", array)


def _named(collective: str, op: Op | None) -> tuple[str | None, float | None]:
    """(the op, what the input is to be multiplied by before)."""
    if op is None:
        return None, None
    name, factor = ("sum", op.factor) if isinstance(op, PremulSum) else (find_op(op), None)
    if name == "mean" and collective in ("scan", "exscan"):
        raise InputError(f"{collective}: got op {op}, expected another: every rank's is of other ranks")
    return name, factor


def _element(collective: str, array: CallArray, op: str | None, dtype: object, told: str | None) -> Dtype:
    """The Dtype; of collectives that do not reduce it may be anything of fixed size. `told`: see told_dtype."""
    told = told or getattr(array, "element", None)
    if op is not None:
        element = dtype_of(array, told if dtype is None else dtype)
        check_op(op, element)
        return element
    if array.dtype.hasobject:
        raise InputError(f"{collective}: got dtype object, expected one of fixed size")
    if dtype is not None:
        return find_dtype(dtype)
    # Unlike its name, the text of a dtype has the byte order, and the fields of a record with their places.
    return Dtype(told or str(array.dtype), array.dtype.itemsize, "raw")
