"""The arguments of a collective call, checked, and reduced to what all ranks must agree on."""

import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.schedule.ir import LateRank, late_set
from lanterne.errors import InputError
from lanterne.kernels.arrays import Array, HostArray, Stream, host_array, is_device_array
from lanterne.kernels.cuda.device_view import DeviceView
from lanterne.kernels.dtypes import Dtype, check_op, dtype_of, find_dtype

if TYPE_CHECKING:
    from lanterne.collectives.execute.device import DeviceSide, Entry

# The user's, as all that follows sees it.
CallArray: TypeAlias = HostArray | DeviceView

# Elements of the input and output array, in parts, by collective: of p ranks.
_PARTS: dict[str, Callable[[int], tuple[int, int]]] = {
    "all_reduce": lambda p: (1, 1),
    "reduce": lambda p: (1, 1),
    "broadcast": lambda p: (1, 1),
    "barrier": lambda p: (1, p),
    "reduce_scatter": lambda p: (p, 1),
    "all_gather": lambda p: (1, p),
    "all_to_all": lambda p: (p, p),
}


class CheckedCall(NamedTuple):
    """A checked call of this rank. `key` is what all ranks must have in common; `entry` is of device arrays."""

    key: "Key"
    in_array: CallArray | None
    out_array: CallArray | None
    in_place: bool
    dtype: Dtype
    entry: "Entry | None" = None

    @property
    def algorithm(self) -> str:
        return self.key.algorithm


class Key(NamedTuple):
    """What all ranks must agree on. `part_count` is elements of a part (schedule/contracts.py)."""

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

    def __str__(self) -> str:
        named: dict[str, object] = {
            "algorithm": self.algorithm,
            "op": self.op,
            "dtype": self.dtype,
            "count": self.part_count,
            "root": self.root,
        }
        named |= {"late_rank": self.late_rank, "num_chunks": self.num_chunks, "joined": self.joined}
        named |= {"segment_nbytes": self.segment_nbytes, "credits": self.credits, "memory": self.memory}
        return (
            f"{self.collective}({', '.join(f'{name}={value}' for name, value in named.items() if value is not None)})"
        )


class CallOptions(NamedTuple):
    """What a user may say of how a call is to run; see Communicator."""

    algorithm: str = "auto"
    dtype: object = None
    num_chunks: int | None = None
    segment_nbytes: int | None = None
    credits: int | None = None
    late_rank: LateRank = None
    joined: int | None = None


def resolve(
    communicator: CommunicatorBase,
    collective: str,
    in_array: Array,
    out_array: "Array | None",
    op: str | None,
    root: int | None,
    stream: Stream,
    options: CallOptions,
) -> CheckedCall:
    """The CheckedCall of these arguments.

    Raises:
        InputError: wrong dtype, size, op or root; arrays that are not contiguous, cannot be written or overlap in part.
        Unavailable: device arrays, and no GPU, driver or CuPy here.
    """
    size, rank = communicator.world_size, communicator.rank
    algorithm, dtype, num_chunks, segment_nbytes, credits, late_rank, joined = options
    on_device = type(in_array) is not np.ndarray and is_device_array(in_array)
    if stream is not None and not on_device:
        raise InputError(f"{collective}: got a stream with host arrays, expected None")
    _check_root(collective, root, size)
    late_rank = _checked_late(collective, late_rank)
    _check_numbers(collective, num_chunks, joined, segment_nbytes, credits)
    if not isinstance(algorithm, str):
        raise InputError(f"{collective}: got algorithm {algorithm!r}, expected a name")
    if collective == "reduce" and rank != root:
        out_array = None
    adopt: Callable[[str, str, Any], CallArray] = _host
    side = communicator.device_side(in_array) if on_device else None
    if side is not None:
        adopt = partial(_on_device, side)
    given = in_array
    source = adopt(collective, "in_array", in_array)
    target: CallArray | None = None
    element = _element(collective, source, op, dtype)
    in_parts, out_parts = _PARTS[collective](size)
    part_count, rest = divmod(source.size, in_parts)
    if rest:
        raise InputError(f"{collective}: got in_array of {source.size} elements, expected a multiple of {in_parts}")
    in_place = False
    if out_array is not None:
        target = source if out_array is given else adopt(collective, "out_array", out_array)
        _check_out(collective, source, target, part_count * out_parts)
        source, in_place = _in_place(collective, source, target, in_parts, out_parts, rank)
    elif collective != "reduce" or rank == root:
        raise InputError(f"{collective}: got out_array None, expected an array")
    entry = side.entry(stream, source) if side is not None and isinstance(source, DeviceView) else None
    if algorithm == "auto":
        nbytes = part_count * max(in_parts, out_parts) * element.nbytes
        choice = communicator.tuning.choose(collective, nbytes)
        algorithm, num_chunks = choice.algorithm, choice.num_chunks if num_chunks is None else num_chunks
    elif num_chunks is None and algorithm != "native":
        num_chunks = communicator.tuning.num_chunks(collective, algorithm, part_count * in_parts * element.nbytes)
    key = Key(collective, algorithm, op, element.name, part_count, root, late_rank, num_chunks, segment_nbytes, credits)
    if joined is not None:
        key = key._replace(joined=joined)
    if on_device:
        key = key._replace(memory="device")
    read = None if collective == "broadcast" and rank != root else source
    return CheckedCall(key, read, target, in_place, element, entry)


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
    if collective not in ("broadcast", "reduce"):
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
    if type(array) is np.ndarray and array.flags.c_contiguous:
        return array
    return host_array(array, f"{collective}: {what}")


def _on_device(side: "DeviceSide", collective: str, what: str, array: Any) -> DeviceView:
    return side.adopt(f"{collective}: {what}", array)


def _element(collective: str, array: CallArray, op: str | None, dtype: object) -> Dtype:
    """The Dtype; of collectives that do not reduce it may be anything of fixed size."""
    dtype = getattr(array, "element", None) if dtype is None else dtype
    if op is None:
        if array.dtype.hasobject:
            raise InputError(f"{collective}: got dtype object, expected one of fixed size")
        return Dtype(array.dtype.name, array.dtype.itemsize, "raw") if dtype is None else find_dtype(dtype)
    element = dtype_of(array, dtype)
    check_op(op, element)
    return element


def _check_out(collective: str, in_array: CallArray, out_array: CallArray, count: int) -> None:
    if out_array.dtype is not in_array.dtype and out_array.dtype != in_array.dtype:
        raise InputError(f"{collective}: got out_array of {out_array.dtype}, expected {in_array.dtype} as in_array")
    if out_array.size != count:
        raise InputError(f"{collective}: got out_array of {out_array.size} elements, expected {count}")
    if out_array.readonly if isinstance(out_array, DeviceView) else not out_array.flags.writeable:
        raise InputError(f"{collective}: got a read-only out_array, expected a writable one")


def _in_place(
    collective: str, in_array: CallArray, out_array: CallArray, in_parts: int, out_parts: int, rank: int
) -> tuple[CallArray, bool]:
    """(the input array to read, whether the parts that both arrays have are the same memory)."""
    if in_array is out_array and in_parts == out_parts == 1:
        return in_array, True
    start, other = _address(in_array), _address(out_array)
    if not in_array.size or start + in_array.nbytes <= other or other + out_array.nbytes <= start:
        return in_array, False
    if in_parts > 1 and out_parts > 1:
        if start == other and type(in_array) is np.ndarray:
            return in_array.copy(), False
    else:
        part_nbytes = in_array.nbytes // in_parts
        if start + rank * part_nbytes * (in_parts > 1) == other + rank * part_nbytes * (out_parts > 1):
            return in_array, True
    raise InputError(
        f"{collective}: got arrays that overlap in part, expected separate ones, or in place as its documentation says"
    )


def _address(array: CallArray) -> int:
    return array.address if isinstance(array, DeviceView) else array.ctypes.data
