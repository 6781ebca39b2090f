"""What each GPU kernel takes of a multiprocessor, from its machine code: no GPU is needed, NVRTC makes the code.

Registers, stack and shared memory are read from the code itself (ELF); how many threads then run at once follows from
what a multiprocessor has, and how many bytes those have under way from how many vectors a thread loads together. By
Little's law a device of 3.3 TB/s and 600 ns needs some 15 KiB under way per multiprocessor.
"""

import struct
import warnings
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypedDict

from lanterne.errors import InputError, Unavailable, one_of
from lanterne.kernels.cuda import spin
from lanterne.kernels.cuda.source import (
    OPTIONS,
    THREADS_PER_BLOCK,
    VECTOR_NBYTES,
    divide_source,
    fold_source,
    inputs_together,
    multiply_source,
)
from lanterne.kernels.dtypes import BITWISE_OPS, COMPLEX, DTYPES, LOGICAL_OPS, Dtype, component_of, has_op, kernel_op

# By architecture, the bytes of shared memory of a multiprocessor; all else is the same on these three.
ARCHS = {"sm_80": 164 << 10, "sm_90": 228 << 10, "sm_100": 228 << 10}
REGISTERS, WARPS, BLOCKS, WARP = 65536, 64, 32, 32
# Registers come to a warp in units of 256, to one of four parts of the multiprocessor; 1 KiB of shared memory of each
# block is the system's.
REGISTER_UNIT, PARTS, SYSTEM_NBYTES = 256, 4, 1 << 10
OPS = ("sum", "prod", "min", "max", *BITWISE_OPS, *LOGICAL_OPS)
KINDS_OF_NUMBERS = ("float", "complex", "int", "uint")
# CuPy adds this to the options of every RawKernel.
CUPY_OPTIONS = ("-ftz=true",)
# Records of .nv.info that are of a kernel: a symbol and a number.
_NUMBERS, _REGISTERS, _STACK = 4, 0x2F, 0x11


class Taken(NamedTuple):
    """What a thread (`registers`, `stack_nbytes`) and a block (`shared_nbytes`) of a kernel take."""

    registers: int
    stack_nbytes: int
    shared_nbytes: int


class KernelResources(TypedDict):
    """A kernel on an architecture, as `./run evaluate gpu-kernels --json` has it; null is what it does not have.

    `spill_bytes` of a thread are all its stack: our kernels have no arrays there. `occupancy` is the part of the warps
    of a multiprocessor that run at once.
    """

    name: str
    dtype: str | None
    inputs: int | None
    arch: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    threads_per_block: int
    blocks_per_multiprocessor: int
    occupancy: float
    bytes_in_flight_per_multiprocessor: int | None


class Compiled(NamedTuple):
    """A CUDA C program for one architecture."""

    ptx: str
    code: bytes


def compile_for(source: str, arch: str, options: Sequence[str]) -> Compiled:
    """Compile CUDA C for `arch`, such as "sm_90", by NVRTC, which needs neither a GPU nor a driver.

    What it warns of is a RuntimeWarning: a release may call old what compiles all the same.

    Raises:
        Unavailable: no NVRTC, or one that does not know `arch`; what it refuses.
    """
    try:
        api: Any = import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise Unavailable(f"NVRTC: {error}; install lanterne[cuda13] or lanterne[cuda12]") from error
    try:
        status, program = api.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    except RuntimeError as error:  # of cuda.bindings, where it finds no library
        reason = str(error).strip().splitlines()[0]
        raise Unavailable(f"NVRTC: {reason}; install lanterne[cuda13] or lanterne[cuda12]") from error
    flags = [f"--gpu-architecture={arch}".encode(), *(option.encode() for option in options)]
    (status,) = api.nvrtcCompileProgram(program, len(flags), flags)
    log = _nvrtc_output(api, "ProgramLog", program).decode().strip("\0\n ")
    if int(status):
        raise Unavailable(f"NVRTC: {api.nvrtcGetErrorString(status)[1].decode()} for {arch}: {log or 'no reason told'}")
    if "warning" in log:
        warnings.warn(f"NVRTC for {arch}: {log}", RuntimeWarning, stacklevel=2)
    ptx, code = _nvrtc_output(api, "PTX", program), _nvrtc_output(api, "CUBIN", program)
    api.nvrtcDestroyProgram(program)
    return Compiled(ptx.decode(), bytes(code))


def _nvrtc_output(api: Any, kind: str, program: Any) -> bytearray:
    # Not bytes: Python keeps one object for all equal bytes of length 1, and an empty log would overwrite that.
    data = bytearray(getattr(api, f"nvrtcGet{kind}Size")(program)[1])
    getattr(api, f"nvrtcGet{kind}")(program, data)
    return data


def taken_by(code: bytes) -> dict[str, Taken]:
    """{kernel: what it takes} of machine code (ELF).

    The assembler notes registers and stack in the section .nv.info: records of a format, an attribute, a size, and a
    symbol and a number. Shared memory is a section of the kernel's own.

    Raises:
        InputError: it is none.
    """
    if code[:5] != b"\x7fELF\x02":
        raise InputError(f"machine code: got {code[:8]!r}, expected ELF of 64 bits")
    try:
        headers, (size, count, names) = struct.unpack_from("<Q", code, 0x28)[0], struct.unpack_from("<HHH", code, 0x3A)
        sections = [struct.unpack_from("<IIQQQQ", code, headers + number * size) for number in range(count)]
        by_name = {_text(code, sections[names][4] + name): (at, nbytes) for name, _, _, _, at, nbytes in sections}
        (symbols, _), (texts, _) = by_name[".symtab"], by_name[".strtab"]
        found: dict[str, dict[int, int]] = {}
        at, nbytes = by_name[".nv.info"]
        stop = at + nbytes
        while at < stop:
            kind, attribute, value_nbytes = struct.unpack_from("<BBH", code, at)
            if kind == _NUMBERS and attribute in (_REGISTERS, _STACK):
                symbol, number = struct.unpack_from("<4xII", code, at)
                name = _text(code, texts + struct.unpack_from("<I", code, symbols + 24 * symbol)[0])
                found.setdefault(name, {})[attribute] = number
            at += 4 + (value_nbytes if kind == _NUMBERS else 0)
        return {
            name: Taken(numbers[_REGISTERS], numbers.get(_STACK, 0), by_name.get(f".nv.shared.{name}", (0, 0))[1])
            for name, numbers in found.items()
            if _REGISTERS in numbers  # a function that a kernel calls has none of its own
        }
    except (struct.error, KeyError, ValueError, IndexError) as error:
        raise InputError(f"machine code: got ELF that does not tell its kernels' registers ({error!r})") from error


def _text(code: bytes, at: int) -> str:
    return code[at : code.index(b"\0", at)].decode()


def blocks_at_once(taken: Taken, threads_per_block: int, arch: str) -> int:
    """Blocks of a kernel that a multiprocessor of `arch` holds at once."""
    warps = -(-threads_per_block // WARP)
    of_warp = -(-taken.registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = PARTS * (REGISTERS // PARTS // max(of_warp, 1)) // warps
    by_shared = ARCHS[arch] // (taken.shared_nbytes + SYSTEM_NBYTES)
    return min(BLOCKS, WARPS // warps, by_registers, by_shared)


def kernel_resources(
    inputs: Sequence[int], dtypes: Sequence[str], archs: Sequence[str], ops: Sequence[str] = ("sum",)
) -> Iterator[KernelResources]:
    """Compile the CUDA C kernels, one after the other, and tell what each takes.

    Args:
        inputs: numbers of arrays that a reduction folds.
        dtypes, archs, ops: of DTYPES and COMPLEX, ARCHS, OPS; of what a dtype has no op, there is no kernel, and of
            bools sum and max are bor, as are their kernels.

    Raises:
        InputError: one that there is not.
        Unavailable: see compile_for.

    Cost: some 0.07 s each.
    """
    check_kernels(inputs, dtypes, archs, ops)
    for arch in archs:
        for name in dtypes:
            yield from kernels_of_dtype(name, arch, inputs, ops)
        yield from kernels_that_wait(arch)


def check_kernels(inputs: Sequence[int], dtypes: Sequence[str], archs: Sequence[str], ops: Sequence[str]) -> None:
    """Raise InputError unless kernel_resources takes these."""
    for name, given, known in (("dtype", dtypes, DTYPES | COMPLEX), ("arch", archs, ARCHS), ("op", ops, OPS)):
        for one in given:
            if one not in known:
                raise InputError(f"{name}: {one_of(one, known)}")
    if min(inputs, default=0) < 1:
        raise InputError(f"inputs: got {', '.join(map(str, inputs)) or 'none'}, expected at least 1 each")


def kernels_of_dtype(name: str, arch: str, inputs: Sequence[int], ops: Sequence[str]) -> Iterator[KernelResources]:
    """Those of kernel_resources whose elements are of one dtype."""
    flags, dtype = (*OPTIONS, *CUPY_OPTIONS), (DTYPES | COMPLEX)[name]
    for op in dict.fromkeys(kernel_op(op, dtype) for op in ops if has_op(op, dtype)):
        element = _folded(op, dtype)
        for count in inputs:
            code = compile_for(fold_source(op, element, count), arch, flags).code
            flight = inputs_together(op, element, count) * VECTOR_NBYTES
            yield _resources(f"fold {op}", name, count, arch, taken_by(code)["fold"], flight)
    for kernel, source in (("divide", divide_source), ("multiply", multiply_source)):
        if dtype.kind in KINDS_OF_NUMBERS[: 2 if kernel == "divide" else None]:
            code = compile_for(source(component_of(dtype)), arch, flags).code
            yield _resources(kernel, name, 1, arch, taken_by(code)[kernel], VECTOR_NBYTES)


def kernels_that_wait(arch: str) -> Iterator[KernelResources]:
    """Those of kernel_resources that have no elements: delays."""
    code = compile_for(spin.SOURCE, arch, (*spin.OPTIONS, *CUPY_OPTIONS)).code
    for kernel, taken in sorted(taken_by(code).items()):
        yield _resources(kernel, None, None, arch, taken, None, threads=1)


def _folded(op: str, dtype: Dtype) -> Dtype:
    """The Dtype whose kernel folds elements of `dtype`: complex numbers are added as floats."""
    return component_of(dtype) if op == "sum" else dtype


def _resources(
    name: str,
    dtype: str | None,
    inputs: int | None,
    arch: str,
    taken: Taken,
    thread_nbytes: int | None,
    threads: int = THREADS_PER_BLOCK,
) -> KernelResources:
    blocks = blocks_at_once(taken, threads, arch)
    return {
        "name": name,
        "dtype": dtype,
        "inputs": inputs,
        "arch": arch,
        "registers": taken.registers,
        "spill_bytes": taken.stack_nbytes,
        "shared_bytes": taken.shared_nbytes,
        "threads_per_block": threads,
        "blocks_per_multiprocessor": blocks,
        "occupancy": blocks * -(-threads // WARP) / WARPS,
        "bytes_in_flight_per_multiprocessor": None if thread_nbytes is None else blocks * threads * thread_nbytes,
    }
