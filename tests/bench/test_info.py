"""What `lanterne info` says of parts that are there, broken, or do not answer."""

import sys

import pytest

from lanterne.bench import info


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
