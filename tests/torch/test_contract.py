"""torch's contract of fault tolerance, `_reconfigure`, over lanterne; see contract_rank.py."""

import functools
import re
from pathlib import Path

import pytest
from torch_jobs import needs_torch, run

JOB = Path(__file__).with_name("contract_rank.py")
CHECKS = re.findall(r"^def (check_\w+)", JOB.read_text(), re.MULTILINE)
pytestmark = needs_torch


@functools.cache
def outcome():
    return run(*CHECKS, job=JOB)


@pytest.mark.parametrize("check", CHECKS)
def test_contract(check):
    import torch.distributed as dist

    if not hasattr(dist, "_reconfigure"):
        pytest.skip("this torch has no such contract, 2.14 has")
    for said, _, errors in outcome():
        assert said.get(check, f"never came:\n{errors[-2000:]}") == "", said.get(check)
