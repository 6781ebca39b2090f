"""What `lanterne info` says of parts that are there, broken, or do not answer."""

import json
import sys
from types import SimpleNamespace

import pytest

from lanterne.bench import info, kernel_table
from lanterne.bench.cli import main
from lanterne.bench.kernel_table import parse_inputs
from lanterne.errors import InputError
from lanterne.transport.nccl import binding, versions
from lanterne.transport.nccl.nccl4py import Nccl4py


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('here 1.0')", (True, "here 1.0")),
        ("raise ImportError('libucp.so.0')", (False, "ImportError: libucp.so.0")),
        ("print('has failed'); print('see the manual'); exit(9)", (False, "has failed")),
        ("exit(5)", (False, "ended with exit code 5")),
        ("import time; time.sleep(60)", (False, "no answer within 0.5 s")),
    ],
)
def test_a_part_that_is_broken_or_hangs_is_told(monkeypatch, code, expected):
    monkeypatch.setattr(info, "ANSWER_S", 0.5 if "sleep" in code else 60)
    assert info._ask([sys.executable, "-c", code]) == expected


@pytest.mark.parametrize(
    ("cuda", "smi", "expected"),
    [
        # Without CuPy there is nobody but nvidia-smi to ask.
        (None, "H200, 570.86\nH200, 570.86", (True, "2 x H200, 570.86", None)),
        (None, None, (False, None, "no NVIDIA driver (nvidia-smi not found)")),
        ("print('2 x H200, CUDA 13020')", "H200, 570.86\nH200, 570.86", (True, "2 x H200, 570.86", None)),
        # As in a container that was given the driver without its tools.
        ("print('2 x H200, CUDA 13020')", None, (True, "2 x H200, CUDA 13020", None)),
        # What nvidia-smi lists and CUDA cannot use is no GPU.
        ("import sys; sys.exit('CUDA: it is too old')", "H200, 470.1", (False, None, "CUDA: it is too old")),
    ],
)
def test_a_gpu_is_what_cuda_can_use(monkeypatch, cuda, smi, expected):
    ask = info._ask
    monkeypatch.setattr(info, "_load", lambda name: (cuda, None))
    monkeypatch.setattr(info, "_ASK_CUDA", cuda)
    monkeypatch.setattr(info.shutil, "which", lambda name: smi and name)
    monkeypatch.setattr(info, "_ask", lambda command: (True, smi) if command[0] == "nvidia-smi" else ask(command))
    found = info._gpu()
    assert (found["available"], found["detail"], found["reason"]) == expected


@pytest.mark.parametrize("driver", [12040, 13000])
def test_versions_that_do_not_go_together_are_told(monkeypatch, driver):
    runtime = SimpleNamespace(driverGetVersion=lambda: driver)
    nccl = SimpleNamespace(available=True, get_version=lambda: 23007)
    cuda = SimpleNamespace(runtime=runtime, nccl=nccl)
    cupy = SimpleNamespace(__version__="14.2.0", cuda=cuda)
    monkeypatch.setattr(info, "_load", lambda name: (cupy, None))
    monkeypatch.setattr(binding, "import_cupy", lambda: cupy)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(versions, "_is_installed", {"cupy-cuda13x", "nvidia-nccl-cu13"}.__contains__)
    found = info._nccl()
    expected = "2.30.7, by CuPy 14.2.0"
    assert found["available"] == (driver == 13000) and (found["detail"] or expected) == expected
    if driver != 13000:
        assert "driver CUDA 12.4, NCCL 2.30.7 for CUDA 13, binding CuPy 14.2.0 for CUDA 13" in found["reason"]
        assert "a driver from 580 on" in found["reason"]


def test_the_binding_that_a_job_takes_is_told_of(monkeypatch):
    """NVIDIA's binding is made for a newer NCCL than the one that CuPy's would take."""
    driver = SimpleNamespace(driverGetVersion=lambda: 13000)
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=driver))
    header = SimpleNamespace(major=2, minor=32, micro=3)
    told = SimpleNamespace(nccl4py="0.6.0", nccl_bindings=header, libnccl=None)
    core, bindings = (SimpleNamespace(get_version=lambda value=value: value) for value in (told, 21000))
    monkeypatch.setenv("LANTERNE_NCCL", "nccl4py")
    monkeypatch.setattr(info, "_load", lambda name: (cupy, None))
    monkeypatch.setattr(binding, "import_cupy", lambda: cupy)
    monkeypatch.setattr(binding, "load_nccl4py", lambda: Nccl4py(core, bindings))
    reason = info._nccl()["reason"]
    assert "got driver CUDA 13.0, NCCL 2.10.0, binding nccl4py 0.6.0, expected NCCL 2.32.3 or newer" in reason
    monkeypatch.setenv("LANTERNE_NCCL", "mpi")
    assert "LANTERNE_NCCL: got 'mpi'" in info._nccl()["reason"]


def test_kernels_are_told_without_a_gpu(tmp_path, capsys):
    pytest.importorskip("cuda.bindings", reason="dependency group gpu-compile")
    file = tmp_path / "kernels.json"
    chosen = ["--inputs", "2,9-10", "--dtypes", "float32,bool", "--ops", "sum,max", "--archs", "sm_90,sm_100"]
    assert main(["info", "--kernels", *chosen, "--json", str(file)]) == 0
    kernels = json.loads(file.read_text())["kernels"]
    folds = [(k["name"], k["dtype"], k["inputs"], k["arch"]) for k in kernels if k["name"].startswith("fold")]
    assert folds == [
        (f"fold {op}", dtype, inputs, arch)
        for arch in ("sm_90", "sm_100")
        for dtype, ops in (("float32", ("sum", "max")), ("bool", ("bor",)))
        for op in ops
        for inputs in (2, 9, 10)
    ]
    assert all(kernel["spill_bytes"] == 0 < kernel["registers"] for kernel in kernels)
    # Of two inputs all threads run, and each has two vectors under way.
    assert (kernels[0]["occupancy"], kernels[0]["bytes_in_flight_per_multiprocessor"]) == (1.0, 2048 * 2 * 16)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3 + len(kernels)
    assert shown[3].split()[:6] == ["fold", "sum", "float32", "2", "sm_90", str(kernels[0]["registers"])]


def test_kernels_come_in_order_from_several_processes(tmp_path, monkeypatch, capsys):
    pytest.importorskip("cuda.bindings", reason="dependency group gpu-compile")
    monkeypatch.setattr(kernel_table, "FEW_KERNELS", 0)
    chosen = ["--inputs", "2", "--dtypes", "uint8,bool", "--ops", "bor", "--archs", "sm_80"]
    found = []
    for jobs in ("1", "2"):
        file = tmp_path / f"{jobs}.json"
        assert main(["info", "--kernels", *chosen, "--jobs", jobs, "--json", str(file)]) == 0, f"--jobs {jobs}"
        found.append(json.loads(file.read_text())["kernels"])
    assert [kernel["dtype"] for kernel in found[0]] == ["uint8", "uint8", "bool", *[None] * (len(found[0]) - 3)]
    assert found[0] == found[1]


@pytest.mark.parametrize("inputs", ["", "0", "3-2", "2,", "1-", "-3", "two", "1-501", "1-9999999999999999999", "²"])
def test_numbers_of_inputs_that_there_are_not(inputs):
    with pytest.raises(InputError, match=r"--inputs: got '.*', expected a number or a range, 2 or 1-32, of 1 to 500"):
        parse_inputs(inputs)
