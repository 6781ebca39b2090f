"""The element types that lanterne reduces: names, sizes and kinds, in one table.

A dtype is named by a string ("float32"); "bfloat16" has no NumPy dtype of its own, so its arrays are either of the
ml_dtypes package's type or plain uint16 with `dtype="bfloat16"` said beside them.
"""

import functools
from dataclasses import dataclass
from typing import Any, TypeAlias

from lanterne.errors import InputError, one_of

OPS = ("sum", "prod", "min", "max", "mean")
# Of integers and bools: bit by bit, and of truth values, which are 0 or 1.
BITWISE_OPS, LOGICAL_OPS = ("band", "bor", "bxor"), ("land", "lor", "lxor")
# Other names of ops.
ALIASES = {"avg": "mean"}
_BITS, _NUMBERS = ("int", "uint", "bool"), ("int", "uint", "bool", "float", "complex")
# The kinds of elements that have an op. Sums of integers overflow, and their quotients are no integers: no mean.
_KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sum", "prod"), _NUMBERS),
    **dict.fromkeys(("min", "max"), (*_BITS, "float")),
    "mean": ("float", "complex"),
    **dict.fromkeys((*BITWISE_OPS, *LOGICAL_OPS), _BITS),
}
# Of bools, the one that kernels have: + is or, * is and, as in NumPy.
_OF_BOOLS = {
    **dict.fromkeys(("sum", "max", "lor"), "bor"),
    **dict.fromkeys(("prod", "min", "land"), "band"),
    "lxor": "bxor",
}


@dataclass(frozen=True, eq=False)
class Dtype:
    """An element type: `name`, `nbytes` per element, `kind` ("float", "complex", "int", ...). One object each."""

    name: str
    nbytes: int
    kind: str


@dataclass(frozen=True)
class PremulSum:
    """As an op of a reduction: the sum of what the ranks give, each times its own `factor`.

    A copy of the input is made for it; the factor of integers is one.
    """

    factor: float


# What a user may pass as op.
Op: TypeAlias = str | PremulSum

DTYPES: dict[str, Dtype] = {
    dtype.name: dtype
    for dtype in (
        Dtype("float16", 2, "float"),
        Dtype("bfloat16", 2, "float"),
        Dtype("float32", 4, "float"),
        Dtype("float64", 8, "float"),
        *(Dtype(f"int{8 * nbytes}", nbytes, "int") for nbytes in (1, 2, 4, 8)),
        *(Dtype(f"uint{8 * nbytes}", nbytes, "uint") for nbytes in (1, 2, 4, 8)),
        Dtype("bool", 1, "bool"),
    )
}

# Pairs of floats; device kernels add them as such.
COMPLEX: dict[str, Dtype] = {
    dtype.name: dtype for dtype in (Dtype("complex64", 8, "complex"), Dtype("complex128", 16, "complex"))
}
# C's long double, of 80 bits on x86, and pairs of it: on the host, by NumPy.
LONG: dict[str, Dtype] = {
    dtype.name: dtype for dtype in (Dtype("float128", 16, "float"), Dtype("complex256", 32, "complex"))
}
_KNOWN = DTYPES | COMPLEX | LONG

# What a named dtype may be stored as when the array's own dtype has another name.
_STORED_AS = {"bfloat16": ("uint16", "int16")}


def find_dtype(name: object) -> Dtype:
    """The Dtype called `name`: a string, a NumPy or ml_dtypes dtype or scalar type, a torch dtype, or a Dtype.

    Raises:
        InputError: no such dtype.
    """
    try:
        return _find_dtype(name)
    except (KeyError, TypeError):
        raise InputError(f"dtype: {one_of(name, _KNOWN)}") from None


@functools.cache
def _find_dtype(name: object) -> Dtype:
    if isinstance(name, Dtype):
        return name
    if not getattr(name, "isnative", True):
        raise InputError(f"dtype: got {name!r}, expected the byte order of this machine")
    return _KNOWN[getattr(name, "name", None) or getattr(name, "__name__", None) or str(name).removeprefix("torch.")]


def dtype_of(array: Any, dtype: object = None, what: str = "array") -> Dtype:
    """The Dtype of `array`'s elements; with `dtype`, that one, if the array can hold it.

    Raises:
        InputError: `dtype` is unknown, or names another type than the array's.
    """
    if dtype is None:
        return find_dtype(array.dtype)
    wanted = find_dtype(dtype)
    stored = find_dtype(array.dtype).name
    if stored != wanted.name and stored not in _STORED_AS.get(wanted.name, ()):
        raise InputError(f"{what}: got dtype {stored}, expected {wanted.name}")
    return wanted


def find_op(op: str) -> str:
    """The name in OPS, BITWISE_OPS or LOGICAL_OPS of `op`, which may be an alias.

    Raises:
        InputError: no such op.
    """
    try:
        found = ALIASES.get(op, op)
    except TypeError:
        found = ""
    if found not in _KINDS:
        raise InputError(f"op: {one_of(op, (*_KINDS, *ALIASES))}")
    return found


def check_op(op: str, dtype: Dtype) -> None:
    """Raise unless reductions by `op` are defined for the Dtype `dtype`.

    Raises:
        InputError: unknown op; min or max of complex numbers; bits or truth values of anything but integers and bools;
            mean of those, whose sums overflow and whose quotients are not integers.
    """
    kinds = _KINDS[find_op(op)]
    if dtype.kind not in kinds:
        names = ", ".join(name for name, known in _KNOWN.items() if known.kind in kinds)
        raise InputError(f"op: got {op} of {dtype.name}, expected one of {names}")


def has_op(op: str, dtype: Dtype) -> bool:
    """Whether reductions by `op`, of OPS, BITWISE_OPS or LOGICAL_OPS, are defined for the Dtype `dtype`."""
    return dtype.kind in _KINDS[op]


def kernel_op(op: str, dtype: Dtype) -> str:
    """The op of the kernels that does the partial reductions of `op`, of elements of the Dtype `dtype`.

    Raises:
        InputError: as check_op.
    """
    check_op(op, dtype)
    op = find_op(op)
    return _OF_BOOLS.get(op, op) if dtype.kind == "bool" else "sum" if op == "mean" else op


def component_of(dtype: Dtype) -> Dtype:
    """What a complex number is two of; another dtype is its own."""
    return _KNOWN[f"float{4 * dtype.nbytes}"] if dtype.kind == "complex" else dtype
