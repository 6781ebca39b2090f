"""Device tensors over lanterne, on a stand-in device with streams: lag/ and device_rank.py."""

import functools
import re
import shutil
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from torch_jobs import needs_torch, run

JOB = Path(__file__).with_name("device_rank.py")
SOURCE = JOB.read_text()
DROPPED = "check_results_of_dropped_tensors"
TIMES = ["check_wait_keeps_no_cpu", "check_late_stream_is_found"]
# In jobs of their own: of four ranks, of all the time of a job, of times, and of what is broken on purpose.
APART = {"check_hsdp", "check_destroy_and_init_leak_nothing", DROPPED, *TIMES}
CHECKS = [name for name in re.findall(r"^def (check_\w+)", SOURCE, re.MULTILINE) if name not in APART]
NATIVE = ["check_every_verb", "check_seeded_runs", "check_ddp", "check_fsdp2", "check_pipelines", "check_any_source"]
pytestmark = [*needs_torch, pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, which builds the device")]


@pytest.fixture(scope="module", autouse=True)
def device():
    sys.path.insert(0, str(JOB.parent / "lag"))
    import lag_device

    # Built before ranks wait for each other.
    return lag_device.library()


@functools.cache
def outcome(**variables):
    checks = NATIVE if variables else [*CHECKS, DROPPED]
    return run(*checks, job=JOB, **variables)


def passes(outcomes, check):
    for said, _, errors in outcomes:
        assert said.get(check, f"never came:\n{errors[-2000:]}") == "", said.get(check)


@pytest.mark.parametrize("check", [*CHECKS, DROPPED, "end"])
def test_staged(check):
    passes(outcome(), check)


@pytest.mark.parametrize("check", [*NATIVE, "end"])
def test_beside_a_backend_of_torchs(check):
    passes(outcome(LAG_NATIVE="1"), check)


@pytest.mark.parametrize("check", ["check_hsdp", "check_destroy_and_init_leak_nothing"])
def test_in_a_job_of_its_own(check):
    passes(run(check, job=JOB, size=4 if check == "check_hsdp" else 3), check)


@pytest.mark.timing
@pytest.mark.parametrize("check", TIMES)
@pytest.mark.parametrize("variables", [{}, {"LAG_NATIVE": "1"}], ids=["staged", "native"])
def test_times(check, variables):
    passes(run(check, job=JOB, **variables), check)


@pytest.mark.parametrize(("how", "check"), [("no wait", "check_every_verb"), ("no memory", DROPPED)])
def test_the_checks_find_what_is_broken_on_purpose(how, check):
    # One of them sees it first, and leaves the others.
    assert any("AssertionError" in said[check] for said, _, _ in run(check, job=JOB, LAG_SABOTAGE=how))


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, {"LAG_NATIVE": "1"}], ids=["staged", "native"])
def test_ten_thousand_seeded_runs(variables):
    passes(run("check_seeded_runs", job=JOB, LAG_RUNS="10000", **variables), "check_seeded_runs")


def test_a_group_over_a_backend_of_torchs_own():
    """Gloo in the place of NCCL, which needs a GPU."""
    import torch
    import torch.distributed as dist

    from lanterne.torch.torch_internals import inner_group

    if not hasattr(dist.Backend, "_ensure_backend_registered"):
        pytest.skip("before 2.14 torch makes its own backends elsewhere")
    asked = dist.distributed_c10d._DistributedBackendOptions()
    asked.store, asked.group_rank, asked.group_size, asked.group_id = dist.HashStore(), 0, 1, "group"
    asked.timeout = timedelta(seconds=20)
    group = inner_group("gloo", "cpu", asked)
    x = torch.ones(3)
    group.allreduce([x], dist.AllreduceOptions()).wait()
    group.shutdown()
    assert x.tolist() == [1.0] * 3
