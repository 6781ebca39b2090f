"""LLVM IR of the CPU kernels: one loop over all arrays, in explicit vectors, so that it cannot fail to vectorise.

A kernel accepts any byte address (its loads and stores assume one-byte alignment), reads every input of a vector before
it writes it (so the output may be one of the inputs), and stores canonical values: one NaN per dtype, and -0 < +0 in
min and max. 16-bit floats are widened to float32, combined there, and rounded once. A complex number is two elements.
"""

from collections.abc import Callable

from lanterne.kernels.dtypes import Dtype, component_of

# Bytes of accumulator per turn of the main loop, by the number of streams it reads: the memory's prefetchers follow two
# streams best line by line (46 against 41 GB/s), and many streams better in runs of lines (39 against 35 GB/s for
# eight).
FEW_STREAMS = 2
FEW_WIDE_NBYTES = 64
MANY_WIDE_NBYTES = 256

# The one NaN of each dtype: quiet, positive, no payload.
NAN_BITS = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}

_MEMORY = {"float16": "half", "bfloat16": "i16", "float32": "float", "float64": "double"}
_COMPUTE = {"float16": "float", "bfloat16": "float", "float32": "float", "float64": "double"}
_COMPUTE_NBYTES = {"float": 4, "double": 8}
# By op: LLVM's instruction; of floats and complex numbers that with an f before it.
_INSTRUCTIONS = {
    **{"sum": "add", "prod": "mul"},
    **{"band": "and", "bor": "or", "bxor": "xor", "land": "and", "lor": "or", "lxor": "xor"},
}


def fold_ir(op: str, dtype: Dtype, num_inputs: int) -> str:
    """IR of `void kernel(i64 count, ptr out, ptr in0, ptr in1, ...)`: out = in0 op in1 op ..., in that order.

    Args:
        op: "sum", "prod", "min", "max", or of integers "band", "bor", "bxor", "land", "lor", "lxor".
        dtype: a Dtype.
        num_inputs: int, at least 1.
    """
    names = [f"in{i}" for i in range(num_inputs)]

    def body(vector: "_Vector") -> None:
        accumulator = vector.load(names[0])
        for name in names[1:]:
            accumulator = vector.combine(op, accumulator, vector.load(name))
        vector.store(accumulator)

    wide_nbytes = FEW_WIDE_NBYTES if num_inputs <= FEW_STREAMS else MANY_WIDE_NBYTES
    return _kernel([f"ptr %{name}" for name in names], body, dtype, wide_nbytes)


def divide_ir(dtype: Dtype) -> str:
    """IR of `void kernel(i64 count, ptr out, ptr in, double number)`: out = in / number, rounded once, for floats."""
    return _with_number("fdiv", dtype)


def multiply_ir(dtype: Dtype) -> str:
    """As divide_ir: out = in * number."""
    return _with_number("fmul", dtype)


def _with_number(instruction: str, dtype: Dtype) -> str:
    def body(vector: "_Vector") -> None:
        vector.store(vector.with_number(instruction, vector.load("in")))

    return _kernel(["ptr %in", "double %number"], body, dtype, FEW_WIDE_NBYTES)


def _kernel(parameters: list[str], body: Callable[["_Vector"], None], dtype: Dtype, wide_nbytes: int) -> str:
    """A loop of wide vectors, then one of single elements, both with the same `body(vector)`."""
    # Elements that are one value: of a complex number two.
    least = 2 if dtype.kind == "complex" else 1
    element = component_of(dtype)
    wide, tail = (_Vector(element, width, least > 1) for width in (wide_nbytes // _compute_nbytes(element), least))
    body(wide)
    body(tail)
    return "\n".join(
        [
            *sorted(wide.declarations | tail.declarations),
            f"define void @kernel(i64 %values, ptr %out, {', '.join(parameters)}) nounwind {{",
            "entry:",
            f"%count = mul i64 %values, {least}",
            f"%wide.stop = and i64 %count, {-wide.width}",
            "%any.wide = icmp ne i64 %wide.stop, 0",
            "br i1 %any.wide, label %wide, label %middle",
            *_loop("wide", wide, "[ 0, %entry ]", "%wide.stop", "middle"),
            "middle:",
            "%any.tail = icmp ult i64 %wide.stop, %count",
            "br i1 %any.tail, label %tail, label %done",
            *_loop("tail", tail, "[ %wide.stop, %middle ]", "%count", "done"),
            "done:",
            "ret void",
            "}",
        ]
    )


def _loop(label: str, vector: "_Vector", first: str, stop: str, after: str) -> list[str]:
    width = vector.width
    return [
        f"{label}:",
        f"%i{width} = phi i64 {first}, [ %next{width}, %{label} ]",
        *vector.lines,
        f"%next{width} = add nuw nsw i64 %i{width}, {width}",
        f"%more{width} = icmp ult i64 %next{width}, {stop}",
        f"br i1 %more{width}, label %{label}, label %{after}",
    ]


def _compute_nbytes(dtype: Dtype) -> int:
    return _COMPUTE_NBYTES[_COMPUTE[dtype.name]] if dtype.kind == "float" else dtype.nbytes


class _Vector:
    """Writes instructions on vectors of `width` elements of one Dtype into `lines`; values are SSA names.

    Args:
        pairs: two elements are a complex number.
    """

    def __init__(self, dtype: Dtype, width: int, pairs: bool = False):
        self.dtype = dtype
        self.pairs = pairs
        self.width = width
        self.lines: list[str] = []
        self.declarations: set[str] = set()
        self.integer = f"i{8 * dtype.nbytes}"
        self.compute = _COMPUTE.get(dtype.name, self.integer)

    def of(self, scalar: str) -> str:
        """The vector type of `scalar`."""
        return f"<{self.width} x {scalar}>"

    def set(self, expression: str) -> str:
        """Emit `expression` and return the name of its value."""
        name = f"%v{self.width}.{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        return name

    def address(self, name: str) -> str:
        return self.set(f"getelementptr inbounds {self.integer}, ptr %{name}, i64 %i{self.width}")

    def load(self, name: str) -> str:
        """Elements of pointer `name`, widened to the type of computation."""
        memory = self.of(_MEMORY.get(self.dtype.name, self.integer))
        value = self.set(f"load {memory}, ptr {self.address(name)}, align 1")
        if self.dtype.name == "float16":
            return self.set(f"fpext {memory} {value} to {self.of('float')}")
        if self.dtype.name == "bfloat16":
            value = self.set(f"zext {memory} {value} to {self.of('i32')}")
            value = self.set(f"shl {self.of('i32')} {value}, splat (i32 16)")
            return self.set(f"bitcast {self.of('i32')} {value} to {self.of('float')}")
        return value

    def combine(self, op: str, left: str, right: str) -> str:
        """left op right, element by element."""
        kind, vector = self.dtype.kind, self.of(self.compute)
        if op == "prod" and self.pairs:
            return self.product(left, right)
        if op[0] == "l":
            left, right = self.truth(left), self.truth(right)
        if op in _INSTRUCTIONS:
            return self.set(f"{'f' if kind == 'float' else ''}{_INSTRUCTIONS[op]} {vector} {left}, {right}")
        # LLVM's minimum and maximum are those of IEEE 754-2019: NaN wins, and -0 < +0.
        name = f"{op}imum" if kind == "float" else f"{'s' if kind == 'int' else 'u'}{op}"
        suffix = {"float": "f32", "double": "f64"}.get(self.compute, self.compute)
        function = f"{vector} @llvm.{name}.v{self.width}{suffix}"
        self.declarations.add(f"declare {function}({vector}, {vector})")
        return self.set(f"call {function}({vector} {left}, {vector} {right})")

    def truth(self, value: str) -> str:
        """1 where an element of `value` is not 0, else 0."""
        vector = self.of(self.compute)
        found = self.set(f"icmp ne {vector} {value}, zeroinitializer")
        return self.set(f"zext {self.of('i1')} {found} to {vector}")

    def product(self, left: str, right: str) -> str:
        """The products of complex numbers, (ac - bd, ad + bc): rounded as three operations on floats."""
        vector, width = self.of(self.compute), range(self.width)

        def lanes(value: str, order: list[int]) -> str:
            mask = ", ".join(f"i32 {lane}" for lane in order)
            return self.set(f"shufflevector {vector} {value}, {vector} poison, {self.of('i32')} <{mask}>")

        real, imaginary = lanes(left, [lane & ~1 for lane in width]), lanes(left, [lane | 1 for lane in width])
        swapped = lanes(right, [lane ^ 1 for lane in width])
        one = self.set(f"fmul {vector} {real}, {right}")
        other = self.set(f"fmul {vector} {imaginary}, {swapped}")
        signs = ", ".join(f"{self.compute} {1.0 if lane & 1 else -1.0}" for lane in width)
        return self.set(f"fadd {vector} {one}, {self.set(f'fmul {vector} {other}, <{signs}>')}")

    def with_number(self, instruction: str, value: str) -> str:
        """value / %number, or what else `instruction` says."""
        vector, scalar = self.of(self.compute), "%number"
        if self.compute == "float":
            scalar = self.set("fptrunc double %number to float")
        one = self.set(f"insertelement {vector} poison, {self.compute} {scalar}, i64 0")
        every = self.set(f"shufflevector {vector} {one}, {vector} poison, {self.of('i32')} zeroinitializer")
        return self.set(f"{instruction} {vector} {value}, {every}")

    def store(self, value: str) -> None:
        """Round `value` to the dtype, make its NaNs canonical, and store it to pointer `out`."""
        vector = self.of(self.integer)
        if self.dtype.kind == "float":
            is_nan = self.set(f"fcmp uno {self.of(self.compute)} {value}, {value}")
            nan = f"{vector} splat ({self.integer} {NAN_BITS[self.dtype.name]})"
            value = self.set(f"select {self.of('i1')} {is_nan}, {nan}, {vector} {self.round(value)}")
        self.lines.append(f"store {vector} {value}, ptr {self.address('out')}, align 1")

    def round(self, value: str) -> str:
        """The bits of `value` in the dtype, rounded to nearest even."""
        if self.dtype.name == "float16":
            value = self.set(f"fptrunc {self.of('float')} {value} to {self.of('half')}")
            return self.set(f"bitcast {self.of('half')} {value} to {self.of('i16')}")
        bits = self.of("i32") if self.dtype.name == "bfloat16" else self.of(self.integer)
        value = self.set(f"bitcast {self.of(self.compute)} {value} to {bits}")
        if self.dtype.name == "bfloat16":
            # In integers, because the bfloat16 instructions of some CPUs flush subnormal numbers to zero.
            kept = self.set(f"lshr {bits} {value}, splat (i32 16)")
            odd = self.set(f"and {bits} {kept}, splat (i32 1)")
            bias = self.set(f"add {bits} {odd}, splat (i32 {0x7FFF})")
            value = self.set(f"add {bits} {value}, {bias}")
            value = self.set(f"lshr {bits} {value}, splat (i32 16)")
            value = self.set(f"trunc {bits} {value} to {self.of('i16')}")
        return value
