"""torch.distributed over lanterne with tensors on a real GPU: the checks of tests/torch/device_rank.py, three ranks.

Ranks share GPUs where there are fewer than ranks.
"""

import functools
import re
from pathlib import Path

import pytest
from torch_jobs import needs_torch, run

from lanterne.transport.nccl.binding import SHARED_GPU_ENVIRONMENT

JOB = Path(__file__).parent.parent / "torch" / "device_rank.py"
SOURCE = JOB.read_text()
HELD = re.findall(r"\"(check_\w+)\"", SOURCE[SOURCE.index("HELD =") :].partition(")")[0])
# Of four ranks, and of a hundred groups.
APART = {*HELD, "check_hsdp", "check_destroy_and_init_leak_nothing"}
CHECKS = [name for name in re.findall(r"^def (check_\w+)", SOURCE, re.MULTILINE) if name not in APART]
pytestmark = needs_torch


@functools.cache
def outcome(way):
    import cupy
    import torch

    if not torch.cuda.is_available():
        pytest.skip(f"PyTorch {torch.__version__} sees no GPU")
    shared = SHARED_GPU_ENVIRONMENT if cupy.cuda.runtime.getDeviceCount() < 3 else {}
    return run(*CHECKS, job=JOB, LANTERNE_DEVICE_KIND="cuda", LANTERNE_DEVICE_WAY=way, **shared)


@pytest.mark.parametrize("check", [*CHECKS, "end"])
@pytest.mark.parametrize("way", ["staged", "native"])
def test_torch(cupy, way, check):
    for said, _, errors in outcome(way):
        assert said.get(check, f"never came:\n{errors[-2000:]}") == "", said.get(check)
