"""NVRTC, nvJitLink and Numba CUDA without a driver: source to PTX and machine code."""

import importlib.util
import os
import struct

import pytest

MODULES = ("cuda.bindings", "numba_cuda", "llvmlite")


def require_compilers():
    """Skip the test module where the group gpu-compile is not installed; fail if LANTERNE_REQUIRE names it."""
    missing = [name for name in MODULES if not _is_there(name)]
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


def compile_cuda_c(source, arch, options):
    """(PTX text, machine code) of CUDA C `source` for `arch`, such as "sm_90"."""
    from cuda.bindings import nvrtc

    program = _result(nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], []))
    flags = [f"--gpu-architecture={arch}".encode(), *(option.encode() for option in options)]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    # Not bytes: Python keeps one object for all equal bytes of length 1, and an empty log would overwrite that.
    log = bytearray(_result(nvrtc.nvrtcGetProgramLogSize(program)))
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode() + source
    assert b"warning" not in log, log.decode() + source
    outputs = []
    for kind in ("PTX", "CUBIN"):
        data = bytearray(_result(getattr(nvrtc, f"nvrtcGet{kind}Size")(program)))
        _result(getattr(nvrtc, f"nvrtcGet{kind}")(program, data))
        outputs.append(data)
    nvrtc.nvrtcDestroyProgram(program)
    return outputs[0].decode(), bytes(outputs[1])


def _result(returned):
    status, *values = returned
    assert int(status) == 0, status
    return values[0] if values else None


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


def registers(code):
    """How many registers a thread of the only kernel in machine code (ELF) has.

    The compiler notes it in the section .nv.info: records of a format, an attribute, a size, and a symbol and a number.
    """
    headers, (size, count, names) = struct.unpack_from("<Q", code, 0x28)[0], struct.unpack_from("<HHH", code, 0x3A)
    sections = [struct.unpack_from("<I20xQQ", code, headers + number * size) for number in range(count)]
    for name, at, nbytes in sections:
        start = sections[names][1] + name
        if code[start : code.index(b"\0", start)] != b".nv.info":
            continue
        stop = at + nbytes
        while at < stop:
            kind, attribute, value_nbytes = struct.unpack_from("<BBH", code, at)
            if (kind, attribute) == (4, 0x2F):
                return struct.unpack_from("<4xII", code, at)[1]
            at += 4 + (value_nbytes if kind == 4 else 0)
    raise AssertionError("machine code that does not tell its registers")
