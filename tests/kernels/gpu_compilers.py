"""NVRTC, nvJitLink and Numba CUDA without a driver: source to PTX and machine code."""

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

MODULES = ("cuda.bindings", "numba_cuda", "llvmlite")


def require_compilers(*modules):
    """Skip where `modules` (default MODULES) of group gpu-compile are missing; fail if LANTERNE_REQUIRE names it."""
    missing = [name for name in modules or MODULES if not _is_there(name)]
    if not missing:
        return
    text = f"{', '.join(missing)} not installed (dependency group gpu-compile)"
    if "gpu-compile" in os.environ.get("LANTERNE_REQUIRE", "").split(","):
        pytest.fail(f"LANTERNE_REQUIRE names gpu-compile, but {text}", pytrace=False)
    pytest.skip(text, allow_module_level=True)


def _is_there(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def compile_numba(function, signature, arch):
    """PTX text of a Numba CUDA kernel for `arch`."""
    from numba import cuda

    ptx, _ = cuda.compile_ptx(function, signature, cc=(int(arch[3:-1]), int(arch[-1])))
    return ptx


def assemble(ptx, arch):
    """Machine code of `ptx` for `arch`."""
    from cuda.bindings import nvjitlink

    linker = nvjitlink.create(1, [f"-arch={arch}"])
    try:
        text = ptx.rstrip("\0").encode() + b"\0"
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, text, len(text), "kernel.ptx")
        nvjitlink.complete(linker)
        code = bytearray(nvjitlink.get_linked_cubin_size(linker))
        nvjitlink.get_linked_cubin(linker, code)
    finally:
        nvjitlink.destroy(linker)
    return bytes(code)


def ptxas_says(ptx, arch, folder):
    """(registers, bytes of stack, of spill stores, of spill loads) of the only kernel of `ptx`, as ptxas -v has them.

    It is in a wheel that Numba CUDA needs.
    """
    (folder / "kernel.ptx").write_text(ptx.rstrip("\0"))
    package = Path(importlib.util.find_spec("nvidia.cuda_nvcc").submodule_search_locations[0])
    command = [package / "bin/ptxas", "-v", f"-arch={arch}", folder / "kernel.ptx", "-o", folder / "kernel.cubin"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    numbers = r"Used (\d+) registers", *(rf"(\d+) bytes {what}" for what in ("stack", "spill stores", "spill loads"))
    return tuple(int(re.search(number, said)[1]) for number in numbers)
