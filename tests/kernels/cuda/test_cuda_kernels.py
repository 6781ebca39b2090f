"""The GPU kernels without a GPU: they compile to 16-byte accesses, and their logic gives the CPU's bits."""

import os
import re
import subprocess
import sys
from pathlib import Path

import gpu_compilers
import pytest
from gpu_compilers import assemble, compile_numba, ptxas_says, require_compilers

HERE = Path(__file__).parents[1]

require_compilers()

from evaluation.gpu.occupancy import ARCHS, CUPY_OPTIONS, OPS, compile_for, kernel_resources, taken_by  # noqa: E402 (needs the compilers)
from lanterne.errors import Unavailable  # noqa: E402 (needs the compilers)
from lanterne.kernels.cuda.numba_kernels import fold_function, fold_signature  # noqa: E402 (needs the compilers)
from lanterne.kernels.cuda.reduce_on_device import MOST_NUMBA_INPUTS  # noqa: E402 (needs the compilers)
from lanterne.kernels.cuda.source import OPTIONS, divide_source, fold_source, inputs_together, multiply_source  # noqa: E402 (needs the compilers)
from lanterne.kernels.dtypes import COMPLEX, DTYPES  # noqa: E402 (needs the compilers)

pytestmark = pytest.mark.filterwarnings("error:NVRTC:RuntimeWarning")

FLAGS = (*OPTIONS, *CUPY_OPTIONS)
# What may have it all the same: whether a value is NaN, and the divisor, which is no subnormal.
FLUSHING = {"setp.nan.ftz.f32", "setp.num.ftz.f32", "cvt.rn.ftz.f32.f64"}
CASES = [
    (name, op)
    for name, dtype in DTYPES.items()
    for op in ("sum", "prod", "min", "max")
    if dtype.kind != "bool" or op in ("min", "max")
]
# Every dtype and every op: the front end of numba-cuda takes half a second for each.
NUMBA_CASES = CASES[::3]
# Each case for one architecture, all of them in turn; the slow tests have all for each.
ALL_ARCHS = tuple(ARCHS)
TURNS = [(*case, ALL_ARCHS[number % 3]) for number, case in enumerate(CASES)]
PRODUCTS = [("complex64", "prod"), ("complex128", "prod"), ("bool", "lxor")]
WIDE_LOAD = r"ld\.global\.(?:v4\.\w32|v2\.\w64)"
WIDE_STORE = r"st\.global\.(?:v4\.\w32|v2\.\w64)"


def check_accesses(ptx, num_inputs):
    """Every input is loaded by one 16-byte access, the output stored by one, and nothing lives in local memory."""
    loads, stores = (re.findall(pattern, ptx) for pattern in (WIDE_LOAD, WIDE_STORE))
    assert len(stores) >= 1
    # A compiler may have unrolled the loop.
    assert len(loads) == num_inputs * len(stores)
    assert ".local" not in ptx
    # Subnormal values stay what they are.
    assert set(re.findall(r"\S+\.ftz\S*", ptx)) <= FLUSHING


@pytest.mark.parametrize(("dtype", "op", "arch"), TURNS)
def test_cuda_c_compiles(dtype, op, arch):
    ptx, code = compile_for(fold_source(op, DTYPES[dtype], 2), arch, FLAGS)
    check_accesses(ptx, 2)
    assert code.startswith(b"\x7fELF")


@pytest.mark.parametrize(("dtype", "op", "arch"), [*TURNS, *((*case, "sm_90") for case in PRODUCTS)])
def test_a_kernel_of_one_input_declares_no_more_than_it_uses(dtype, op, arch):
    """NVRTC warned of the parts of a product that one input does not have."""
    code = compile_for(fold_source(op, (DTYPES | COMPLEX)[dtype], 1), arch, FLAGS).code
    assert taken_by(code)["fold"].stack_nbytes == 0


def test_what_the_compiler_warns_of_is_no_error_and_what_it_refuses_is():
    kernel = 'extern "C" __global__ void nothing() {}'
    with pytest.warns(RuntimeWarning, match=r"NVRTC for sm_90: (.|\n)*unused.* was declared but never referenced"):
        assert taken_by(compile_for(f"static __device__ void unused() {{}} {kernel}", "sm_90", FLAGS).code)
    with pytest.raises(Unavailable, match=r"NVRTC: NVRTC_ERROR_COMPILATION for sm_90: (.|\n)*missing"):
        compile_for(kernel.replace("{}", "{ missing(); }"), "sm_90", FLAGS)
    with pytest.raises(Unavailable, match=r"NVRTC: .* for sm_1:"):
        compile_for(kernel, "sm_1", FLAGS)


@pytest.mark.parametrize("num_inputs", [1, 7, 8, 9, 63])
def test_cuda_c_of_many_inputs(num_inputs):
    ptx, _ = compile_for(fold_source("sum", DTYPES["bfloat16"], num_inputs), "sm_90", FLAGS)
    group = inputs_together("sum", DTYPES["bfloat16"], num_inputs)
    # A loop goes over all groups but one with a rest.
    check_accesses(ptx, group if num_inputs == group else group + num_inputs % group)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8"])
def test_all_inputs_are_in_flight_together(dtype, arch):
    """There is room for seven vectors and an address at once, and for four blocks of 256 threads."""
    _, code = compile_for(fold_source("sum", DTYPES[dtype], 7), arch, FLAGS)
    assert 7 * 4 + 2 <= taken_by(code)["fold"].registers <= 65536 // 256 // 4
    _, code = compile_for(fold_source("sum", DTYPES[dtype], 2), arch, FLAGS)
    # With two inputs all the threads are needed that a multiprocessor can hold.
    assert taken_by(code)["fold"].registers <= 65536 // 2048


def spilling(inputs, dtypes, archs, ops):
    """The kernels of kernel_resources that have a stack, of which there is at least one without."""
    found = list(kernel_resources(inputs, dtypes, archs, ops))
    assert len({kernel["name"] for kernel in found if kernel["dtype"]} - {"divide", "multiply"}) >= len(dtypes) > 0
    return [kernel for kernel in found if kernel["spill_bytes"]]


@pytest.mark.parametrize("arch", ARCHS)
def test_what_used_to_spill_does_not(arch):
    """Where groups change, and where spills have been; the slow test has all dtypes and numbers of inputs."""
    cases = [("sum", "float32"), ("max", "float64"), ("max", "int8"), ("lxor", "bool"), ("sum", "int32")]
    for op, dtype in [*cases, ("band", "int64")]:
        assert spilling((8, 31), (dtype,), (arch,), (op,)) == [], (op, dtype)
    assert spilling((31,), ("complex64",), (arch,), ("prod",)) == []


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("arch", ARCHS)
def test_no_reduction_of_up_to_32_inputs_spills(arch, op):
    dtypes = [name for name in (*DTYPES, *COMPLEX) if name != "complex64" or op == "prod"]
    kernels = kernel_resources(range(1, 33), dtypes, (arch,), (op,))
    assert [kernel for kernel in kernels if kernel["spill_bytes"]] == []


def test_what_is_read_of_machine_code_is_what_the_assembler_says(tmp_path):
    """Also of a kernel that has to spill: 40 values of 8 bytes in 32 registers of 4."""
    body = "".join(f"double v{i} = in[{i}];" for i in range(40)) + "__syncthreads(); out[0] = 0;"
    body += "".join(f"out[0] += v{39 - i} * v{i};" for i in range(40))
    bounds = "__launch_bounds__(1024, 2)"
    spilling = f'extern "C" __global__ void {bounds} fold(const volatile double* in, volatile double* out) {{ {body} }}'
    for source, spills_something in ((spilling, True), (fold_source("sum", DTYPES["float32"], 9), False)):
        ptx, code = compile_for(source, "sm_90", FLAGS)
        registers, stack, stored, loaded = ptxas_says(ptx, "sm_90", tmp_path)
        assert (taken_by(code)["fold"].registers, taken_by(code)["fold"].stack_nbytes) == (registers, stack), (
            source,
            spills_something,
        )
        assert (stack > 0) == (stored > 0) == (loaded > 0) == spills_something, (source, spills_something)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_divide_compiles(dtype, arch):
    ptx, _ = compile_for(divide_source(DTYPES[dtype]), arch, FLAGS)
    check_accesses(ptx, 1)
    # Division is that of IEEE 754, not the approximate one.
    assert re.search(r"div\.rn\.f(32|64)", ptx)
    assert "approx" not in ptx


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int64"])
def test_multiply_compiles(dtype):
    ptx, _ = compile_for(multiply_source(DTYPES[dtype]), "sm_90", FLAGS)
    check_accesses(ptx, 1)


@pytest.mark.parametrize(("dtype", "op"), NUMBA_CASES)
def test_numba_compiles(dtype, op):
    element = DTYPES[dtype]
    ptx = compile_numba(fold_function(op, element, 2), fold_signature(element, 2), "sm_80")
    check_accesses(ptx, 2)
    for arch in ARCHS:
        assert assemble(ptx, arch).startswith(b"\x7fELF"), arch


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_numba_does_not_spill(dtype, op):
    """Of the most inputs that it is given; some seconds each, nearly all of them in Numba's front end."""
    element = DTYPES[dtype]
    ptx = compile_numba(
        fold_function(op, element, MOST_NUMBA_INPUTS), fold_signature(element, MOST_NUMBA_INPUTS), "sm_80"
    )
    for arch in ARCHS:
        assert [taken for taken in taken_by(assemble(ptx, arch)).values() if taken.stack_nbytes] == [], arch


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_numba_compiles_for_sm_90(dtype):
    element = DTYPES[dtype]
    ptx = compile_numba(fold_function("max", element, 3), fold_signature(element, 3), "sm_90")
    check_accesses(ptx, 3)
    assert assemble(ptx, "sm_90").startswith(b"\x7fELF")


@pytest.mark.slow
def test_numba_compiles_where_numpy_has_dropped_a_name():
    """NumPy 2.5 has no row_stack, which numba-cuda up to 0.30 asks for."""
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import numpy as np; np.__dict__.pop('row_stack', None)\n"
        "from gpu_compilers import compile_numba\n"
        "from lanterne.kernels.cuda.numba_kernels import fold_function, fold_signature\n"
        "from lanterne.kernels.dtypes import DTYPES\n"
        "element = DTYPES['float32']\n"
        "print(compile_numba(fold_function('sum', element, 2), fold_signature(element, 2), 'sm_90'))\n"
        "assert 'row_stack' not in np.__dict__"
    )
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    check_accesses(result.stdout, 2)


def test_the_check_sees_narrow_accesses():
    narrow = fold_source("sum", DTYPES["float32"], 2).replace("LANES = 4", "LANES = 2").replace("uint4", "uint2")
    ptx, _ = compile_for(narrow, "sm_90", OPTIONS)
    with pytest.raises(AssertionError):
        check_accesses(ptx, 2)


def test_numba_kernels_in_the_simulator_give_the_bits_of_the_cpu():
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-W", "ignore", HERE / "simulate_cuda.py"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(result.stdout) == 4 * len(CASES)


def test_missing_compilers_are_a_skip_or_where_required_a_failure(monkeypatch):
    monkeypatch.setattr(gpu_compilers, "MODULES", ("no.such.module", "llvmlite"))
    monkeypatch.setenv("LANTERNE_REQUIRE", "mpi")
    with pytest.raises(pytest.skip.Exception, match=r"no\.such\.module not installed"):
        require_compilers()
    monkeypatch.setenv("LANTERNE_REQUIRE", "mpi,gpu-compile")
    with pytest.raises(
        pytest.fail.Exception, match=r"LANTERNE_REQUIRE names gpu-compile, but no\.such\.module not installed"
    ):
        require_compilers()
