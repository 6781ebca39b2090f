"""Element accesses of the Numba CUDA kernels: 16 bytes as a tuple of values, or one value.

Loads widen; stores round and make canonical.

Arrays are 1-D, of the storage type: uint16 for the 16-bit floats. Numba's own array loads are of single elements, so
these are intrinsics; in the simulator, which has none, plain functions do the same with NumPy.
"""

import functools
import os
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from lanterne.kernels.arrays import HostArray
from lanterne.kernels.cpu.fold_ir import NAN_BITS
from lanterne.kernels.cuda.source import VECTOR_NBYTES
from lanterne.kernels.dtypes import Dtype

# llvmlite and Numba are untyped.
Builder: TypeAlias = Any
Value: TypeAlias = Any
SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
STORAGE = {"float16": "uint16", "bfloat16": "uint16", "bool": "uint8"}


class Lanes(NamedTuple):
    """The accesses of one dtype: `load_vector(array, at)`, `store_vector(array, at, values)`, and of one element."""

    load_vector: Any
    store_vector: Any
    load_one: Any
    store_one: Any


@functools.cache
def lanes_of(dtype: Dtype) -> Lanes:
    """The Lanes of a Dtype, for the simulator where it is on."""
    make = _simulated if SIMULATED else _intrinsics
    width = VECTOR_NBYTES // dtype.nbytes
    load_vector, store_vector = make(dtype, width)
    load_one, store_one = make(dtype, 1)
    return Lanes(load_vector, store_vector, load_one, store_one)


def storage_of(dtype: Dtype) -> np.dtype[Any]:
    """The NumPy dtype that holds a Dtype in the kernels' arrays."""
    return np.dtype(STORAGE.get(dtype.name, dtype.name))


def _simulated(dtype: Dtype, width: int) -> tuple[Any, Any]:
    def load(array: HostArray, at: int) -> Any:
        bits = np.array([array[at + lane] for lane in range(width)], storage_of(dtype))
        values = tuple(_widen(bits, dtype))
        return values if width > 1 else values[0]

    def store(array: HostArray, at: int, values: Any) -> None:
        for lane, bits in enumerate(_narrow(np.array(values if width > 1 else [values]), dtype)):
            array[at + lane] = bits

    return load, store


def _widen(bits: HostArray, dtype: Dtype) -> HostArray:
    if dtype.name == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32) if dtype.name == "float16" else bits


def _narrow(values: HostArray, dtype: Dtype) -> HostArray:
    if dtype.kind != "float":
        return values.astype(storage_of(dtype))
    if dtype.name == "bfloat16":
        raw = values.view(np.uint32)
        bits = ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16).astype(np.uint16)
    else:
        bits = values.astype(dtype.name).view(f"u{dtype.nbytes}")
    bits = np.where(np.isnan(values), bits.dtype.type(NAN_BITS[dtype.name]), bits)
    return bits.view(storage_of(dtype))


def _intrinsics(dtype: Dtype, width: int) -> tuple[Any, Any]:
    from llvmlite import ir

    types: Any = import_module("numba.cuda.types")
    from numba.cuda.extending import intrinsic

    value_type = (
        types.float32 if dtype.name in ("float16", "bfloat16") else getattr(types, STORAGE.get(dtype.name, dtype.name))
    )
    result_type = types.UniTuple(value_type, width) if width > 1 else value_type
    element = ir.IntType(8 * dtype.nbytes)

    @intrinsic
    def load(typing_context: Any, array: Any, at: Any) -> Any:
        def codegen(context: Any, builder: Builder, signature: Any, arguments: Any) -> Value:
            address = _address(context, builder, signature, arguments)
            if width == 1:
                return _widen_ir(builder, dtype, builder.load(builder.bitcast(address, element.as_pointer())))
            bits = _load_words(builder, address, ir.VectorType(element, width))
            values = [_widen_ir(builder, dtype, builder.extract_element(bits, _index(lane))) for lane in range(width)]
            return context.make_tuple(builder, signature.return_type, values)

        return result_type(array, at), codegen

    @intrinsic
    def store(typing_context: Any, array: Any, at: Any, values: Any) -> Any:
        # Sums of narrow integers come in wider types.
        given = values.dtype if width > 1 else values

        def codegen(context: Any, builder: Builder, signature: Any, arguments: Any) -> Value:
            address = _address(context, builder, signature, arguments)
            lanes = (
                [builder.extract_value(arguments[2], lane) for lane in range(width)] if width > 1 else [arguments[2]]
            )
            lanes = [_narrow_ir(builder, dtype, context.cast(builder, lane, given, value_type)) for lane in lanes]
            if width == 1:
                builder.store(lanes[0], builder.bitcast(address, element.as_pointer()))
            else:
                _store_words(builder, address, lanes, ir.VectorType(element, width))
            return context.get_dummy_value()

        return types.void(array, at, values), codegen

    return load, store


def _index(lane: int) -> Value:
    from llvmlite import ir

    return ir.Constant(ir.IntType(32), lane)


def _address(context: Any, builder: Builder, signature: Any, arguments: Any) -> Value:
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


def _global_address(builder: Builder, address: Value) -> Value:
    from llvmlite import ir

    pointer = builder.addrspacecast(builder.bitcast(address, ir.IntType(8).as_pointer()), ir.IntType(8).as_pointer(1))
    return builder.ptrtoint(pointer, ir.IntType(64))


def _load_words(builder: Builder, address: Value, vector_type: Any) -> Value:
    # By hand: the compiler would split a vector of small elements into several loads.
    from llvmlite import ir

    word = ir.IntType(32)
    signature = ir.FunctionType(ir.LiteralStructType([word] * 4), [ir.IntType(64)])
    code = ir.InlineAsm(
        signature, "ld.global.v4.u32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l,~{memory}", side_effect=True
    )
    loaded = builder.call(code, [_global_address(builder, address)])
    words = ir.Constant(ir.VectorType(word, 4), ir.Undefined)
    for i in range(4):
        words = builder.insert_element(words, builder.extract_value(loaded, i), _index(i))
    return builder.bitcast(words, vector_type)


def _store_words(builder: Builder, address: Value, lanes: list[Value], vector_type: Any) -> None:
    from llvmlite import ir

    bits = ir.Constant(vector_type, ir.Undefined)
    for i, lane in enumerate(lanes):
        bits = builder.insert_element(bits, lane, _index(i))
    word = ir.IntType(32)
    words = builder.bitcast(bits, ir.VectorType(word, 4))
    signature = ir.FunctionType(ir.VoidType(), [ir.IntType(64), *[word] * 4])
    code = ir.InlineAsm(signature, "st.global.v4.u32 [$0], {$1, $2, $3, $4};", "l,r,r,r,r,~{memory}", side_effect=True)
    builder.call(
        code, [_global_address(builder, address), *(builder.extract_element(words, _index(i)) for i in range(4))]
    )


def _widen_ir(builder: Builder, dtype: Dtype, bits: Value) -> Value:
    from llvmlite import ir

    if dtype.name == "float16":
        return builder.fpext(builder.bitcast(bits, ir.HalfType()), ir.FloatType())
    if dtype.name == "bfloat16":
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(bits, word), word(16)), ir.FloatType())
    if dtype.kind == "float":
        return builder.bitcast(bits, ir.FloatType() if dtype.nbytes == 4 else ir.DoubleType())
    return bits


def _narrow_ir(builder: Builder, dtype: Dtype, value: Value) -> Value:
    """The bits of `value` rounded to nearest even, with one NaN."""
    from llvmlite import ir

    if dtype.kind != "float":
        return value
    bits_type = ir.IntType(8 * dtype.nbytes)
    if dtype.name == "float16":
        bits = builder.bitcast(builder.fptrunc(value, ir.HalfType()), bits_type)
    elif dtype.name == "bfloat16":
        word = ir.IntType(32)
        raw = builder.bitcast(value, word)
        odd = builder.and_(builder.lshr(raw, word(16)), word(1))
        rounded = builder.add(raw, builder.add(odd, word(0x7FFF)))
        bits = builder.trunc(builder.lshr(rounded, word(16)), bits_type)
    else:
        bits = builder.bitcast(value, bits_type)
    return builder.select(builder.fcmp_unordered("uno", value, value), bits_type(NAN_BITS[dtype.name]), bits)
