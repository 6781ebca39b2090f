"""CUDA C of the device reductions: 16-byte accesses, grid-stride, k inputs in one pass, the bits of the CPU.

The text includes no header, so that it compiles with NVRTC alone. `head` is the number of elements before the first
16-byte boundary; the host passes `head = count` where the arrays do not share their alignment, and the loop of single
elements does all.

CuPy compiles with -ftz=true, whatever the options: the operators of C would take subnormal float32 for zero. So these
are added, multiplied and divided in PTX, and compared by their bits.
"""

from typing import NamedTuple

from lanterne.kernels.cpu.fold_ir import NAN_BITS
from lanterne.kernels.dtypes import BITWISE_OPS, Dtype, component_of

OPTIONS = ("-std=c++17", "--fmad=false")
THREADS_PER_BLOCK = 256
VECTOR_NBYTES = 16
# Of one or two inputs, a multiprocessor has to hold as many blocks as give enough bytes in flight; of more, registers
# count. Told no number, the assembler saves registers for more threads, and of seven inputs loads five one after the
# other: 46 KiB are in flight, not 140 (sm_90).
FEW_INPUTS = 2


class _Room(NamedTuple):
    """Blocks that a multiprocessor has to hold, of few inputs and of more, and how many inputs go together at most."""

    few: int
    many: int
    together: int


# More inputs at once would not fit the registers, and spill: as all tests of spills say. Comparing takes more of them
# than adding, and most of bytes, of which a vector has 16.
ADDING, COMPARING, COMPARING_BYTES = _Room(8, 4, 8), _Room(6, 3, 8), _Room(3, 3, 3)
# Of eight vectors at once the assembler spills two registers where elements have 8 bytes (sm_80).
BITWISE = _Room(8, 4, 7)

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
# Of integers only.
_BITWISE = {"band": "a & b", "bor": "a | b", "bxor": "a ^ b", "land": "a && b", "lor": "a || b", "lxor": "!a != !b"}
# Of a value: the whole number of as many bits, how its bits come, and all but its sign.
_ORDER = {
    "float": ("int", "__float_as_int(value)", "0x7fffffff"),
    "double": ("long long", "__double_as_longlong(value)", "0x7fffffffffffffffll"),
}


# The inputs go in groups, one after the other, and what was folded of them stays in registers. A loop that is not
# unrolled, over a table of addresses in the parameters: written out, the compilers load what they can before the first
# combination, and spill it, and from some ten inputs on also their addresses.
_GROUPS = """
struct Inputs { const Bits* at[INPUTS]; };

template <int COUNT>
static __device__ __forceinline__ void fold_group(
    Value (&value)[LANES], const Bits* const* inputs, long long at, bool begins) {
    Vector vector[COUNT];
    #pragma unroll
    for (int i = 0; i < COUNT; ++i) vector[i].words = *(const uint4*)(inputs[i] + at);
    #pragma unroll
    for (int i = 0; i < COUNT; ++i)
        #pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const Value found = widen(vector[i].lane[lane]);
            value[lane] = i == 0 && begins ? found : COMBINED(value[lane], found);
        }
}
"""


def fold_source(op: str, dtype: Dtype, num_inputs: int) -> str:
    """Source of the kernel `fold(count, head, out, inputs)`: out = in0 op in1 op ..., in that order.

    `inputs` is a structure of the addresses of in0, in1, ...

    Args:
        op: "sum", "prod", "min", "max", or of integers "band", "bor", "bxor", "land", "lor", "lxor".
        dtype: a Dtype; of complex numbers there is "prod" only, since their sum is that of twice as many floats.
        num_inputs: int, at least 1.
    """
    group, room = inputs_together(op, dtype, num_inputs), _room(op, dtype)
    rest = num_inputs % group
    vector = [f"fold_group<{group}>(value, inputs.at, at, true);"]
    if num_inputs > group:
        vector = [
            "#pragma unroll 1",
            f"for (int i = 0; i < {num_inputs - rest}; i += {group})",
            f"fold_group<{group}>(value, inputs.at + i, at, i == 0);",
        ]
    if rest:
        vector.append(f"fold_group<{rest}>(value, inputs.at + {num_inputs - rest}, at, false);")
    one = ["Value value = widen(inputs.at[0][at]);"]
    if num_inputs > 1:
        one += [
            f"#pragma unroll {group}",
            f"for (int i = 1; i < {num_inputs}; ++i) value = combine(value, widen(inputs.at[i][at]));",
        ]
    return "\n".join(
        [
            _element(dtype),
            *([_combine(op, dtype)] if num_inputs > 1 else []),
            f"constexpr int INPUTS = {num_inputs};",
            f"#define COMBINED(a, b) {'combine(a, b)' if num_inputs > 1 else 'b'}",
            _GROUPS,
            _kernel(
                "fold",
                room.few if num_inputs <= FEW_INPUTS else room.many,
                "const __grid_constant__ Inputs inputs",
                vector,
                one,
            ),
        ]
    )


def _room(op: str, dtype: Dtype) -> _Room:
    if dtype.kind == "complex":
        return COMPARING
    if op in BITWISE_OPS:
        return BITWISE
    if op in ("sum", "prod"):
        return ADDING
    return COMPARING_BYTES if dtype.nbytes == 1 else COMPARING


def inputs_together(op: str, dtype: Dtype, num_inputs: int) -> int:
    """How many inputs a group has; the last may have fewer.

    Of several, two at least are of this size: a loop that goes round once is none to a compiler.
    """
    groups = -(-num_inputs // _room(op, dtype).together)
    if groups == 2 and num_inputs % 2:
        groups = 3
    return -(-num_inputs // groups)


def divide_source(dtype: Dtype) -> str:
    """Source of the kernel `divide(count, head, out, in0, number)`: out = in0 / number, rounded once, of floats."""
    return _with_number("divide", dtype, _rounded("div", dtype))


def multiply_source(dtype: Dtype) -> str:
    """As divide_source, of the kernel `multiply`: out = in0 * number, which is an integer of 64 bits to integers."""
    return _with_number("multiply", dtype, _arithmetic("prod", dtype))


def _with_number(name: str, dtype: Dtype, body: str) -> str:
    number = "double" if dtype.kind == "float" else "long long"
    return "\n".join(
        [
            _element(dtype),
            _function("Value result_of(Value a, Value b)", body),
            _kernel(
                name,
                # A quotient of doubles takes more registers than the most blocks leave.
                COMPARING.few if dtype.nbytes == 8 else ADDING.few,
                f"const Bits* in0, {number} number",
                [
                    "Vector vector; vector.words = *(const uint4*)(in0 + at);",
                    *_each_lane("value[lane] = result_of(widen(vector.lane[lane]), (Value)number);"),
                ],
                ["Value value = result_of(widen(in0[at]), (Value)number);"],
            ),
        ]
    )


def _element(dtype: Dtype) -> str:
    """The types and conversions of one element; NaNs become canonical in `narrow`."""
    if dtype.kind == "complex":
        return _pair(component_of(dtype))
    bits = (_SIGNED if dtype.kind == "int" else _UNSIGNED)[dtype.nbytes]
    value = _FLOAT_VALUE.get(dtype.name, bits)
    lines = [f"typedef {bits} Bits;", f"typedef {value} Value;"]
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
    return "\n".join([*lines, _vector(dtype.nbytes)])


def _pair(part: Dtype) -> str:
    """As _element, of complex numbers: two floats `part` each."""
    return "\n".join(
        [
            "namespace part {",
            _element(part),
            "}",
            "struct Bits { part::Bits re, im; };",
            "struct Value { part::Value re, im; };",
            _function("Value widen(Bits bits)", "return Value{part::widen(bits.re), part::widen(bits.im)};"),
            _function("Bits narrow(Value value)", "return Bits{part::narrow(value.re), part::narrow(value.im)};"),
            _vector(2 * part.nbytes),
        ]
    )


def _vector(nbytes: int) -> str:
    return f"constexpr int LANES = {VECTOR_NBYTES // nbytes};\nunion Vector {{ uint4 words; Bits lane[LANES]; }};"


def _combine(op: str, dtype: Dtype) -> str:
    if op in _BITWISE:
        return _function("Value combine(Value a, Value b)", f"return (Value)({_BITWISE[op]});")
    if dtype.kind == "complex":
        assert op == "prod", "sums are of the parts"
        return _product_of_pairs(component_of(dtype))
    if op in ("sum", "prod"):
        return _function("Value combine(Value a, Value b)", _arithmetic(op, dtype))
    symbol = {"min": "<", "max": ">"}[op]
    if dtype.kind != "float":
        return _function("Value combine(Value a, Value b)", f"return a {symbol} b ? a : b;")
    whole, bits, all_but_sign = _ORDER[_FLOAT_VALUE[dtype.name]]
    # Of negative values the larger bits are the smaller value, and -0 comes before 0.
    order = f"{whole} bits = {bits}; return bits < 0 ? bits ^ {all_but_sign} : bits;"
    body = f"if (a != a) return a; if (b != b) return b; return order(a) {symbol} order(b) ? a : b;"
    return _function(f"{whole} order(Value value)", order) + "\n" + _function("Value combine(Value a, Value b)", body)


def _product_of_pairs(part: Dtype) -> str:
    """`combine` of complex numbers, two floats `part` each: (ac - bd, ad + bc), each of its operations rounded."""
    real = "part::plus(part::times(a.re, b.re), -part::times(a.im, b.im))"
    imaginary = "part::plus(part::times(a.re, b.im), part::times(a.im, b.re))"
    return "\n".join(
        [
            "namespace part {",
            _function("Value times(Value a, Value b)", _rounded("mul", part)),
            _function("Value plus(Value a, Value b)", _rounded("add", part)),
            "}",
            _function("Value combine(Value a, Value b)", f"return Value{{{real}, {imaginary}}};"),
        ]
    )


def _arithmetic(op: str, dtype: Dtype) -> str:
    """The body of a function of two real values: their "sum" or "prod"."""
    if dtype.kind == "float":
        return _rounded({"sum": "add", "prod": "mul"}[op], dtype)
    # Unsigned, since signed overflow is undefined; the bits are the same.
    wide = "unsigned long long" if dtype.nbytes == 8 else "unsigned int"
    return f"return (Value)(({wide})a {_SYMBOLS[{'sum': 'add', 'prod': 'mul'}[op]]} ({wide})b);"


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


def _each_lane(statement: str) -> list[str]:
    return ["#pragma unroll", f"for (int lane = 0; lane < LANES; ++lane) {statement}"]


def _kernel(name: str, least_blocks: int, parameters: str, vector_lines: list[str], one_lines: list[str]) -> str:
    """The kernel `name`, of which a multiprocessor holds `least_blocks` at once; its arrays are among its `parameters`.

    Args:
        vector_lines: fill value[LANES] from element `at`; one_lines: make the value of one.
    """
    return "\n".join(
        [
            f'extern "C" __global__ void __launch_bounds__({THREADS_PER_BLOCK}, {least_blocks})',
            f"{name}(long long count, long long head, Bits* out, {parameters}) {{",
            "const long long first = (long long)blockIdx.x * blockDim.x + threadIdx.x;",
            "const long long stride = (long long)gridDim.x * blockDim.x;",
            "const long long tail = head + (count - head) / LANES * LANES;",
            # Unrolled, the compiler would split the stores of its remainder loop; inputs may be the output, so it gains
            # nothing.
            "#pragma unroll 1",
            "for (long long at = head + first * LANES; at < tail; at += stride * LANES) {",
            "Value value[LANES];",
            *vector_lines,
            "Vector result;",
            *_each_lane("result.lane[lane] = narrow(value[lane]);"),
            "*(uint4*)(out + at) = result.words;",
            "}",
            "#pragma unroll 1",
            "for (long long i = first; i < head + count - tail; i += stride) {",
            "const long long at = i < head ? i : tail + i - head;",
            *one_lines,
            "out[at] = narrow(value);",
            "}",
            "}",
        ]
    )
