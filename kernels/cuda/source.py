"""CUDA C of the device reductions: 16-byte accesses, grid-stride, k inputs in one pass, the bits of the CPU.

The text includes no header, so that it compiles with NVRTC alone. `head` is the number of elements before the first
16-byte boundary; the host passes `head = count` where the arrays do not share their alignment, and the loop of single
elements does all.

CuPy compiles with -ftz=true, whatever the options: the operators of C would take subnormal float32 for zero. So these
are added, multiplied and divided in PTX, and compared by their bits.
"""

from collections.abc import Sequence

from lanterne.kernels.cpu.fold_ir import NAN_BITS
from lanterne.kernels.dtypes import Dtype

OPTIONS = ("-std=c++17", "--fmad=false")
THREADS_PER_BLOCK = 256
VECTOR_NBYTES = 16
# Vectors of these many inputs are in flight together; of more, they would not fit the registers.
LOADS_TOGETHER = 8
# Blocks that a multiprocessor has to hold, by inputs: of one or two it takes all the threads that there are to have
# enough bytes in flight, of more 64 registers for each. Told no number, the assembler saves registers for more threads,
# and of seven inputs loads five one after the other: 46 KiB are in flight, not 140 (sm_90).
FEW_INPUTS, BLOCKS_OF_FEW, BLOCKS_OF_MANY = 2, 8, 4

_UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}
_SIGNED = {1: "signed char", 2: "short", 4: "int", 8: "long long"}
_FLOAT_VALUE = {"float16": "float", "bfloat16": "float", "float32": "float", "float64": "double"}

_WIDEN = {
    "float16": 'float value; asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits)); return value;',
    "bfloat16": "return __uint_as_float((unsigned int)bits << 16);",
    "float32": "return __uint_as_float(bits);",
    "float64": "return __longlong_as_double((long long)bits);",
}
_ROUND = {
    "float16": 'unsigned short bits; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); return bits;',
    "bfloat16": "unsigned int raw = __float_as_uint(value); return (Bits)((raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16);",
    "float32": "return __float_as_uint(value);",
    "float64": "return (Bits)__double_as_longlong(value);",
}
# By instruction of PTX.
_SYMBOLS = {"add": "+", "mul": "*", "div": "/"}
# Of a value: the whole number of as many bits, how its bits come, and all but its sign.
_ORDER = {
    "float": ("int", "__float_as_int(value)", "0x7fffffff"),
    "double": ("long long", "__double_as_longlong(value)", "0x7fffffffffffffffll"),
}


def fold_source(op: str, dtype: Dtype, num_inputs: int) -> str:
    """Source of the kernel `fold(count, head, out, in0, in1, ...)`: out = in0 op in1 op ..., in that order.

    Args:
        op: "sum", "prod", "min" or "max".
        dtype: a Dtype.
        num_inputs: int, at least 1.
    """
    names = [f"in{i}" for i in range(num_inputs)]
    return "\n".join(
        [
            _element(dtype),
            *([_combine(op, dtype)] if num_inputs > 1 else []),
            _kernel("fold", names, _fold_vector(names), _fold_one(names)),
        ]
    )


def divide_source(dtype: Dtype) -> str:
    """Source of the kernel `divide(count, head, out, in0, divisor)`: out = in0 / divisor, rounded once."""
    return "\n".join(
        [
            _element(dtype),
            _function("Value quotient(Value a, Value b)", _rounded("div", dtype)),
            _kernel(
                "divide",
                ["in0"],
                [*_load("in0"), *_each_lane("value[lane] = quotient(widen(vector_in0.lane[lane]), (Value)divisor);")],
                ["Value value = quotient(widen(in0[at]), (Value)divisor);"],
                ["double divisor"],
            ),
        ]
    )


def _element(dtype: Dtype) -> str:
    """The types and conversions of one element; NaNs become canonical in `narrow`."""
    bits = (_SIGNED if dtype.kind == "int" else _UNSIGNED)[dtype.nbytes]
    value = _FLOAT_VALUE.get(dtype.name, bits)
    lines = [
        f"typedef {bits} Bits;",
        f"typedef {value} Value;",
        f"constexpr int LANES = {VECTOR_NBYTES // dtype.nbytes};",
        "union Vector { uint4 words; Bits lane[LANES]; };",
    ]
    if dtype.kind == "float":
        lines += [
            _function("Value widen(Bits bits)", _WIDEN[dtype.name]),
            _function("Bits round_to_even(Value value)", _ROUND[dtype.name]),
            _function(
                "Bits narrow(Value value)",
                f"return value != value ? (Bits){NAN_BITS[dtype.name]:#x}ull : round_to_even(value);",
            ),
        ]
    else:
        lines += [
            _function("Value widen(Bits bits)", "return bits;"),
            _function("Bits narrow(Value value)", "return value;"),
        ]
    return "\n".join(lines)


def _combine(op: str, dtype: Dtype) -> str:
    if op in ("sum", "prod"):
        if dtype.kind == "float":
            return _function("Value combine(Value a, Value b)", _rounded({"sum": "add", "prod": "mul"}[op], dtype))
        symbol = {"sum": "+", "prod": "*"}[op]
        # Unsigned, since signed overflow is undefined; the bits are the same.
        wide = "unsigned long long" if dtype.nbytes == 8 else "unsigned int"
        return _function("Value combine(Value a, Value b)", f"return (Value)(({wide})a {symbol} ({wide})b);")
    symbol = {"min": "<", "max": ">"}[op]
    if dtype.kind != "float":
        return _function("Value combine(Value a, Value b)", f"return a {symbol} b ? a : b;")
    whole, bits, all_but_sign = _ORDER[_FLOAT_VALUE[dtype.name]]
    # Of negative values the larger bits are the smaller value, and -0 comes before 0.
    order = f"{whole} bits = {bits}; return bits < 0 ? bits ^ {all_but_sign} : bits;"
    body = f"if (a != a) return a; if (b != b) return b; return order(a) {symbol} order(b) ? a : b;"
    return _function(f"{whole} order(Value value)", order) + "\n" + _function("Value combine(Value a, Value b)", body)


def _rounded(instruction: str, dtype: Dtype) -> str:
    """The body of a function of two values: their sum, product or quotient, rounded to nearest even, subnormal or not.

    Args:
        instruction: "add", "mul" or "div".
    """
    if _FLOAT_VALUE[dtype.name] == "double":
        return f"return a {_SYMBOLS[instruction]} b;"
    return f'float found; asm("{instruction}.rn.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b)); return found;'


def _function(signature: str, body: str) -> str:
    return f"static __device__ __forceinline__ {signature} {{ {body} }}"


def _load(name: str) -> list[str]:
    return [f"Vector vector_{name}; vector_{name}.words = *(const uint4*)({name} + at);"]


def _each_lane(statement: str) -> list[str]:
    return ["#pragma unroll", f"for (int lane = 0; lane < LANES; ++lane) {statement}"]


def _fold_vector(names: Sequence[str]) -> list[str]:
    lines: list[str] = []
    for first in range(0, len(names), LOADS_TOGETHER):
        group = names[first : first + LOADS_TOGETHER]
        for name in group:
            lines += _load(name)
        for name in group:
            element = f"widen(vector_{name}.lane[lane])"
            lines += _each_lane(f"value[lane] = {element if name == names[0] else f'combine(value[lane], {element})'};")
    return lines


def _fold_one(names: Sequence[str]) -> list[str]:
    return [
        f"Value value = widen({names[0]}[at]);",
        *(f"value = combine(value, widen({name}[at]));" for name in names[1:]),
    ]


def _kernel(
    name: str, inputs: Sequence[str], vector_lines: list[str], one_lines: list[str], others: Sequence[str] = ()
) -> str:
    """The kernel `name` of arrays `inputs` and parameters `others`.

    Args:
        vector_lines: fill value[LANES] from element `at`; one_lines: make the value of one.
    """
    parameters = [f"const Bits* {array}" for array in inputs] + list(others)
    least_blocks = BLOCKS_OF_FEW if len(inputs) <= FEW_INPUTS else BLOCKS_OF_MANY
    return "\n".join(
        [
            f'extern "C" __global__ void __launch_bounds__({THREADS_PER_BLOCK}, {least_blocks})',
            f"{name}(long long count, long long head, Bits* out, {', '.join(parameters)}) {{",
            "const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;",
            "const long long stride = (long long)gridDim.x * blockDim.x;",
            "const long long vectors = (count - head) / LANES;",
            # Unrolled, the compiler would split the stores of its remainder loop; inputs may be the output, so it gains
            # nothing.
            "#pragma unroll 1",
            "for (long long i = first; i < vectors; i += stride) {",
            "const long long at = head + i * LANES;",
            "Value value[LANES];",
            *vector_lines,
            "Vector result;",
            *_each_lane("result.lane[lane] = narrow(value[lane]);"),
            "*(uint4*)(out + at) = result.words;",
            "}",
            "const long long tail = head + vectors * LANES;",
            "#pragma unroll 1",
            "for (long long i = first; i < head + count - tail; i += stride) {",
            "const long long at = i < head ? i : tail + i - head;",
            *one_lines,
            "out[at] = narrow(value);",
            "}",
            "}",
        ]
    )
