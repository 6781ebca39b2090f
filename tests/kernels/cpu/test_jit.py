"""The CPU kernels on other instruction sets than this machine's best: they call nothing and give the same bits."""

import ctypes
import platform
import re
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

from lanterne.errors import Unavailable
from lanterne.kernels.cpu import jit
from lanterne.kernels.cpu.fold_ir import divide_ir, fold_ir
from lanterne.kernels.dtypes import DTYPES
from lanterne.kernels.reduce import prepare

CPUS = [("x86_64", "x86-64-v3"), ("x86_64", "sapphirerapids"), ("aarch64", "generic"), ("aarch64", "neoverse-v2")]
CASES = [
    (name, op)
    for name, dtype in DTYPES.items()
    for op in ("sum", "prod", "min", "max")
    if dtype.kind != "bool" or op in ("min", "max")
]


def assembly(ir, machine, cpu):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(f"{machine}-linux-gnu")
    return target.create_target_machine(cpu=cpu, opt=3).emit_assembly(llvm.parse_assembly(ir))


@pytest.mark.parametrize(("machine", "cpu"), CPUS)
@pytest.mark.parametrize("name", DTYPES)
def test_no_kernel_calls_a_library(name, machine, cpu):
    dtype = DTYPES[name]
    irs = [fold_ir(op, dtype, 2) for op in ("sum", "prod", "min", "max")]
    irs += [divide_ir(dtype)] if dtype.kind == "float" else []
    for ir in irs:
        assert not re.search(r"\b(callq?|bl)\s", assembly(ir, machine, cpu)), ir


def test_the_search_finds_calls():
    # Without F16C, float16 is converted by library functions, which a kernel cannot reach.
    assert re.search(r"\b(callq?|bl)\s", assembly(fold_ir("sum", DTYPES["float16"], 2), "x86_64", "x86-64-v2"))


def test_float16_without_f16c_is_refused(monkeypatch):
    monkeypatch.setattr(jit.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(llvm, "get_host_cpu_features", dict)
    with pytest.raises(Unavailable, match="float16: this CPU lacks the F16C instructions"):
        jit._check_cpu(DTYPES["float16"])
    jit._check_cpu(DTYPES["bfloat16"])


@pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64") or not llvm.get_host_cpu_features().get("avx2"),
    reason="runs code for x86-64-v3",
)
@pytest.mark.parametrize(("name", "op"), CASES)
def test_same_bits_with_avx2(name, op):
    dtype = DTYPES[name]
    rng = np.random.default_rng(0)
    memory = rng.integers(0, 256, (3, 1001 * dtype.nbytes), np.uint8)
    # Elements of all bits set and of none: NaN, minus one, zero.
    memory[0, : 200 * dtype.nbytes] = 255
    memory[1, 100 * dtype.nbytes : 300 * dtype.nbytes] = 0
    memory = memory & 1 if dtype.kind == "bool" else memory
    here, there = np.zeros_like(memory[0]), np.zeros_like(memory[0])
    addresses = [row.ctypes.data for row in memory]
    narrow = jit.compile_ir(fold_ir(op, dtype, 3), [ctypes.c_void_p] * 4, cpu="x86-64-v3")
    prepare(op, dtype, 3)(1001, here.ctypes.data, *addresses)
    narrow(1001, there.ctypes.data, *addresses)
    np.testing.assert_array_equal(here, there)


def mapped_nbytes():
    """What this process has mapped of LLVM's code."""
    lines, found = iter(Path("/proc/self/smaps").read_text().splitlines()), 0
    for line in lines:
        if " r-xp " in line and line.endswith("libllvmlite.so"):
            found += 1024 * next(int(after.split()[1]) for after in lines if after.startswith("Rss:"))
    return found


def test_what_is_mapped_of_the_compiler_is_given_back_and_it_compiles_as_before():
    def compiled(number):
        ir = f"define i64 @kernel(i64 %count) {{\n%sum = add i64 %count, {number}\nret i64 %sum\n}}"
        return jit.compile_ir(ir, [], ctypes.c_int64)

    first = compiled(1)
    before = mapped_nbytes()
    assert jit.unmap_compiler()
    assert mapped_nbytes() < before / 4
    assert not jit.unmap_compiler()
    second = compiled(2)
    assert (first(40), second(40)) == (41, 42)
    assert jit.unmap_compiler()
