"""LLVM's code of plain loops in Python, to be kept in a file: Numba makes it, and nobody needs Numba to run it.

Numba takes a second and 100 MB to load, and some more to compile once per machine, in every rank at once. What is made
here is text for any 64-bit processor, of which compile_ir (jit.py) makes a C function in some 20 ms.
"""

import hashlib
import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import FunctionType
from typing import Any, get_type_hints

from lanterne.kernels.cpu.jit import load_compiler

# What Numba and LLVM say beside the code: of this machine's types, attributes, metadata, comments.
_BESIDE = re.compile(
    r"^(?:;|source_filename|target |attributes |!).*\n|, ![\w.]+ !\d+| #\d+| +; preds = .*"
    r"| (?:noundef|noalias|writeonly|readonly|readnone|captures\(none\)|local_unnamed_addr)",
    re.MULTILINE,
)
# Where a function puts what it returns, and raises: these return nothing and cannot raise.
_RESULTS = re.compile(r"ptr %retptr, ptr %excinfo, |^ *store ptr null, ptr %retptr.*\n", re.MULTILINE)
# Names of blocks after functions that were put in.
_MANGLED = re.compile(r"\b_ZN[\w.]+")


def text_of(kernel: Callable[..., None], helpers: Sequence[Callable[..., Any]], numbers: Any) -> str:
    """What a file is to have: by whom it was made, of what source (source_digest), and ir_of."""
    made = ", ".join(f"{name} {version(name)}" for name in ("numba", "llvmlite"))
    ir = ir_of(kernel, helpers, numbers)
    return f"; {made}\n; {kernel.__name__}, sha256 {source_digest((kernel, *helpers))}\n{ir}"


def source_digest(functions: Sequence[Callable[..., Any]]) -> str:
    """The SHA-256 of the files that `functions` are in."""
    sources = dict.fromkeys(Path(inspect.getsourcefile(each) or "").read_text() for each in functions)
    return hashlib.sha256("".join(sources).encode()).hexdigest()


def ir_of(kernel: Callable[..., None], helpers: Sequence[Callable[..., Any]], numbers: Any) -> str:
    """The code of `kernel(i64, ...)` with the functions that it calls put into it, for compile_ir.

    Args:
        kernel: of ints, floats, and arrays of either that are indexed by one number and nothing else; returns nothing,
            cannot raise, and divides as NumPy does.
        helpers: the functions that it, or one of them, calls; those that others call first.
        numbers: the annotation of arrays of floats; others are of ints.
    """
    from numba import cfunc, njit, types

    kinds: dict[Any, Any] = {int: types.int64, float: types.float64, numbers: types.CPointer(types.float64)}
    *hints, _ = get_type_hints(kernel).values()
    signature = types.void(*(kinds.get(hint, types.CPointer(types.int64)) for hint in hints))
    namespace: dict[str, Any] = {}
    for function in (*helpers, kernel):
        namespace = dict(function.__globals__) | namespace
    for helper in helpers:
        namespace[helper.__name__] = njit(error_model="numpy")(_within(namespace, helper))
    # What is made is optimised below, without what this processor alone can do.
    with _numba_optimises("0"):
        made = cfunc(signature, error_model="numpy")(_within(namespace, kernel))
        return _plain(made.inspect_llvm(), made.native_name.removeprefix("cfunc."))


@contextmanager
def _numba_optimises(level: str) -> Iterator[None]:
    """Have Numba's level by its environment, which it reads anew whenever that has changed."""
    config: Any = import_module("numba.core.config")
    before = os.environ.get("NUMBA_OPT")
    _set_environment("NUMBA_OPT", level)
    config.reload_config()
    try:
        yield
    finally:
        _set_environment("NUMBA_OPT", before)
        config.reload_config()


def _set_environment(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _within(namespace: dict[str, Any], function: Any) -> Any:
    """`function`, to which `namespace` is what is global."""
    return FunctionType(function.__code__, namespace, function.__name__)


def _plain(ir: str, name: str) -> str:
    """Function `name` of `ir` as `kernel`, optimised, as text that says no more than it has to."""
    llvm = load_compiler()
    module = llvm.parse_assembly(ir)
    for function in module.functions:
        if function.name == name:
            function.name, function.linkage = "kernel", "external"
        elif not function.is_declaration:
            function.linkage = "private"
    for variable in module.global_variables:
        if not variable.is_declaration:
            variable.linkage = "internal"
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = options.loop_interleaving = False
    machine = llvm.Target.from_default_triple().create_target_machine(cpu="generic")
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    text = _RESULTS.sub("", _BESIDE.sub("", str(module)))
    names: dict[str, str] = {}
    text = _MANGLED.sub(lambda found: names.setdefault(found[0], f"after{len(names)}"), text)
    return re.sub(r"\n{2,}", "\n", text).lstrip()
