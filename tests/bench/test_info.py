"""What `lanterne info` says of parts that are there, broken, or do not answer."""

import sys
from types import SimpleNamespace

import pytest

from lanterne.bench import info
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
