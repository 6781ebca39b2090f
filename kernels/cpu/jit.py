"""Compiles the CPU kernels with LLVM, through llvmlite, the compiler beneath Numba, into plain C functions.

Numba's own front end would infer types for half a second per kernel; from IR a kernel takes 4 ms (up to 90 ms for 64
inputs), less than reading a cache file of Numba's, so there is no cache on disk to fill, lock or find read-only. A C
function called through ctypes releases the GIL and costs about a microsecond.
"""

import ctypes
import functools
import itertools
import mmap
import platform
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from lanterne.errors import Unavailable
from lanterne.kernels.cpu.fold_ir import divide_ir, fold_ir, multiply_ir
from lanterne.kernels.cpu.long_double import long_fold, long_with_number
from lanterne.kernels.dtypes import LONG, Dtype

_lock = threading.Lock()
_numbers = itertools.count()
# Whether LLVM's code was used since it was given back.
_mapped = threading.Event()


@functools.cache
def fold_function(op: str, dtype: Dtype, num_inputs: int) -> Callable[..., None]:
    """The C function `(count, out, in0, in1, ...)` of fold_ir, addresses as ints; compiled on first use, kept for good.

    Raises:
        Unavailable: this CPU cannot convert float16.
    """
    if dtype.name in LONG:
        return partial(long_fold, op, dtype)
    _check_cpu(dtype)
    return compile_ir(fold_ir(op, dtype, num_inputs), [ctypes.c_void_p] * (num_inputs + 1))


def divide_function(dtype: Dtype) -> Callable[..., None]:
    """The C function `(count, out, in, divisor)` of divide_ir; the divisor is a float.

    Raises:
        Unavailable: this CPU cannot convert float16.
    """
    return _with_number("divide", dtype)


def multiply_function(dtype: Dtype) -> Callable[..., None]:
    """The C function `(count, out, in, factor)` of multiply_ir; otherwise as divide_function."""
    return _with_number("multiply", dtype)


@functools.cache
def _with_number(what: str, dtype: Dtype) -> Callable[..., None]:
    if dtype.name in LONG:
        return partial(long_with_number, getattr(np, what), dtype)
    _check_cpu(dtype)
    ir = {"divide": divide_ir, "multiply": multiply_ir}[what](dtype)
    return compile_ir(ir, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double])


@functools.cache
def load_compiler() -> Any:
    """llvmlite's binding, loaded and ready; some 0.1 s the first time."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


def _target_machine(cpu: str | None) -> Any:
    llvm = load_compiler()
    features = "" if cpu else llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(cpu=cpu or llvm.get_host_cpu_name(), features=features, opt=3)


def compile_ir(ir: str, argument_types: list[Any], result: Any = None, cpu: str | None = None) -> Callable[..., Any]:
    """The C function `kernel` of `ir`, of a size and what `argument_types` say, which returns `result`; its code stays.

    Args:
        cpu: another instruction set than this machine's best, for tests.
    """
    with _lock:
        module, engine = load_compiler().parse_assembly(ir), _engine(cpu)
        module.verify()
        name = f"kernel{next(_numbers)}"
        for function in module.functions:
            if function.name == "kernel":
                function.name = name
            elif not function.is_declaration:
                function.linkage = "internal"
        _mapped.set()
        engine.add_module(module)
        engine.finalize_object()
        prototype = ctypes.CFUNCTYPE(result, ctypes.c_size_t, *argument_types)
        return prototype(engine.get_function_address(name))


def unmap_compiler() -> bool:
    """Give back the pages of LLVM's code, some 24 MB a process; False: nothing was compiled since the last time.

    They stay in the page cache, and are mapped again when a kernel is compiled. What was compiled is elsewhere.

    Cost: about 1 ms, and as much more of the next kernel.
    """
    if not _mapped.is_set():
        return False
    _mapped.clear()
    libc = ctypes.CDLL(None, use_errno=True)
    # Not its data: what the loader has written there would be lost. Linux alone has such a file.
    with suppress(OSError), open("/proc/self/maps") as maps:
        for words in map(str.split, maps):
            if words[1].startswith("r-x") and words[-1].endswith("libllvmlite.so"):
                start, end = (int(word, 16) for word in words[0].split("-"))
                libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
    return True


@functools.cache
def _engine(cpu: str | None) -> Any:
    """What compiles for `cpu` and owns the code: one for all kernels, since each takes 0.8 MB."""
    llvm = load_compiler()
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine(cpu))


def _check_cpu(dtype: Dtype) -> None:
    # Without the instruction LLVM would call a library function that is not there, and abort the process.
    if dtype.name != "float16" or platform.machine() not in ("x86_64", "AMD64"):
        return
    if not load_compiler().get_host_cpu_features().get("f16c"):
        raise Unavailable(
            "float16: this CPU lacks the F16C instructions (x86 of 2012 and later); use float32 or bfloat16"
        )
