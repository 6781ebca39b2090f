"""What a reduction must give, one NumPy operation at a time and with nothing of the kernels in it."""

import numpy as np

FLOATS = ("float16", "bfloat16", "float32", "float64")
BITS = {"float16": np.uint16, "bfloat16": np.uint16, "float32": np.uint32, "float64": np.uint64}
NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}


def widen(bits, dtype):
    """Values of the uint array `bits` of a floating dtype, in the type that sums are made in."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    values = bits.view(dtype)
    return values.astype(np.float32) if dtype == "float16" else values


def narrow(values, dtype):
    """Bits of `values` rounded to nearest even in `dtype`, with one NaN."""
    if dtype == "bfloat16":
        bits = _to_bfloat16(values)
    else:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            bits = values.astype(dtype).view(BITS[dtype])
    return np.where(np.isnan(values), BITS[dtype](NAN[dtype]), bits)


def _to_bfloat16(values):
    # The nearer of the two neighbours, measured in float64; infinity counts as the next power of two.
    below = values.view(np.uint32) >> 16
    above = below + 1
    clean = np.where(np.isfinite(values), values, 0).astype(np.float64)
    low, high = (_finite(half) for half in (below, above))
    to_low, to_high = np.abs(clean - low), np.abs(clean - high)
    up = (to_high < to_low) | ((to_high == to_low) & (below & 1 == 1))
    return np.where(np.isfinite(values) & up, above, below).astype(np.uint16)


def _finite(half):
    values = (half.astype(np.uint32) << 16).view(np.float32)
    finite = np.where(np.isfinite(values), values, 0).astype(np.float64)
    infinite = np.where(np.signbit(values), -(2.0**128), 2.0**128)
    return np.where(np.isinf(values), infinite, finite)


def combine(op, left, right):
    """One step on float values; the NaN it gives is any NaN."""
    with np.errstate(all="ignore"):
        if op in ("sum", "mean"):
            return left + right
        if op == "prod":
            return left * right
        chosen = np.minimum(left, right) if op == "min" else np.maximum(left, right)
        zeros = (left == 0) & (right == 0)
        negative = (np.signbit(left) | np.signbit(right)) if op == "min" else (np.signbit(left) & np.signbit(right))
        return np.where(zeros, np.where(negative, -0.0, 0.0), chosen).astype(left.dtype)


def fold_bits(op, dtype, arrays):
    """The bits of arrays[0] op arrays[1] op ..., arrays of uint bits of a floating dtype."""
    accumulator = widen(arrays[0], dtype)
    for array in arrays[1:]:
        accumulator = combine(op, accumulator, widen(array, dtype))
    return narrow(accumulator, dtype)


def special_bits(dtype):
    """Zeros, subnormals, ordinary values, the largest, infinities and NaNs of a floating dtype, as uint bits."""
    bits = BITS[dtype]
    sign = 1 << (np.dtype(bits).itemsize * 8 - 1)
    infinity = {"float16": 0x7C00, "bfloat16": 0x7F80, "float32": 0x7F800000, "float64": 0x7FF0000000000000}[dtype]
    one = {"float16": 0x3C00, "bfloat16": 0x3F80, "float32": 0x3F800000, "float64": 0x3FF0000000000000}[dtype]
    positive = [0, 1, 2, one - 1, one, one + 1, one + 7, infinity - 1, infinity, infinity + 1, NAN[dtype], sign - 1]
    return np.array(positive + [value | sign for value in positive], bits)
