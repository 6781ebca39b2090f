"""torch.distributed over lanterne does what it does over gloo, and says who died; see torch_rank.py."""

import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from torch_jobs import HANGS_S, needs_torch
from torch_jobs import run as run_job
from two_networks import DOCKER, TwoHosts, missing

from lanterne.failslow.record.adapters import DDP_BACKWARD, DDP_FORWARD
from lanterne.failslow.record.job_log import JobLog

JOB, WATCHED, RECONFIGURED, REPEATED = (
    Path(__file__).with_name(f"{name}_rank.py") for name in ("torch", "watched", "reconfigured", "repeated")
)
CHECKS = re.findall(r"^def (check_\w+)", JOB.read_text(), re.MULTILINE)
pytestmark = needs_torch


run = functools.partial(run_job, job=JOB)


@functools.cache
def outcome():
    return run(*CHECKS)


@pytest.mark.parametrize("check", [*CHECKS, "end"])
def test_as_over_gloo(check):
    for said, _, errors in outcome():
        assert said.get(check, f"never came:\n{errors[-2000:]}") == "", said.get(check)


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("killed", "rank 2 failed"),
        # The second by the arrival board, which long calls ask.
        ("stopped", "no message from or to rank 2 within 3 s|rank 2 did not come in time"),
    ],
)
def test_a_rank_that_is_lost_is_named_by_the_others(way, words):
    *survivors, (_, code, _) = run(way)
    assert code == -9
    for said, code, errors in survivors:
        assert re.search(words, said.get(way, errors)), said or errors
        assert code == 0, errors


def test_torch_finds_the_backend_without_an_import_of_lanterne(tmp_path):
    import torch.distributed as dist

    if not hasattr(dist.Backend, "_ensure_backend_registered"):
        pytest.skip("this torch has no entry points of backends, 2.14 does")
    program = tmp_path / "program.py"
    program.write_text(
        "import json, torch, torch.distributed as dist\ndist.init_process_group('lanterne')\n"
        "x = torch.ones(3); dist.all_reduce(x)\n"
        "print(json.dumps({'name': dist.get_backend(), 'said': x.tolist()})); dist.destroy_process_group()\n"
    )
    for said, code, errors in run(size=2, job=program):
        assert (said, code) == ({"lanterne": [2.0] * 3}, 0), errors


def test_an_untested_torch_gives_one_warning(recwarn):
    import torch

    from lanterne.torch import torch_internals

    torch_internals.warn_if_untested(torch.__version__)
    assert not recwarn.list
    for version in ("2.6.0", "2.12.1+cpu", "2.16.0a0+git123", "3.0"):
        with pytest.warns(UserWarning, match="expected 2.13 to 2.15"):
            torch_internals.warn_if_untested(version)


def test_a_group_is_made_anew_of_those_that_live_and_of_those_that_are_back():
    parts = ["of_itself", "whole", "smaller", "whole_again", "late", "aborted", "without_one"]
    for rank, (said, code, errors) in enumerate(run(job=RECONFIGURED)):
        own = [part for part in parts if not (rank == 2 and part in ("whole", "smaller"))]
        assert said == dict.fromkeys(own, ""), "\n".join([*said.values(), errors])
        assert code == 0, errors


@pytest.mark.parametrize(
    "phases",
    [("backward",), pytest.param(("data", "forward", "backward", "optimizer"), marks=pytest.mark.slow)],
    ids="-".join,
)
def test_watch_names_the_rank_wherever_it_loses_the_time(phases, tmp_path):
    for _, code, errors in run(*phases, job=WATCHED, LANTERNE_WATCH=str(tmp_path)):
        assert code == 0, errors
    job = JobLog(tmp_path)
    job.poll()
    found = job.report()
    assert [incident["cause"]["ranks"] for incident in found["incidents"]] == [[1]] * len(phases), found["incidents"]
    assert not any("from C++" in note or "could not be recorded" in note for note in found["notes"])
    (backward,) = (call for call in found["calls"] if call["name"] == DDP_BACKWARD)
    (forward,) = (call for call in found["calls"] if call["name"] == DDP_FORWARD)
    assert backward["count"] == forward["count"]


@pytest.mark.skipif(bool(missing()), reason=missing() or "they are here")
@pytest.mark.parametrize(("lan", "names"), [("10.50.0.", (DOCKER, DOCKER)), ("fd50::", ("", ""))], ids=["IPv4", "IPv6"])
def test_hosts_whose_names_mean_another_network(tmp_path, lan, names):
    code = "import torch, torch.distributed as dist, lanterne.torch\ndist.init_process_group('lanterne')\n"
    code += "x = torch.ones(3); dist.all_reduce(x); print('sum', x[0].item()); dist.destroy_process_group()"
    with TwoHosts(tmp_path, lan, names) as hosts:
        ended = hosts.run(code)
    assert [(said.splitlines()[-1], code) for said, code in ended] == [("sum 2.0", 0)] * 2, ended


@pytest.mark.parametrize("backend", ["gloo", "lanterne"])
def test_our_launcher_starts_programs_of_torch_also_again(tmp_path, backend):
    code = "import os, sys, torch, torch.distributed as dist, lanterne.torch\nfrom pathlib import Path\n"
    code += "dist.init_process_group(sys.argv[1]); x = torch.ones(3); dist.all_reduce(x)\n"
    code += "flag = Path(sys.argv[2])\nif dist.get_rank() == 1 and not flag.exists(): flag.touch(); os._exit(9)\n"
    code += "dist.all_reduce(x); os.write(1, f'{x[0].item()}\\n'.encode()); dist.destroy_process_group()"
    words = [sys.executable, "-P", "-m", "lanterne", "launch", "-n", "2", "--restarts", "2", "--", sys.executable, "-P"]
    ended = subprocess.run(
        [*words, "-c", code, backend, tmp_path / "flag"], capture_output=True, text=True, timeout=HANGS_S, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "4.0\n" * 2), ended.stderr


def test_groups_can_be_made_again_at_once_over_the_same_address():
    for said, code, errors in run(job=REPEATED):
        assert said == {"times": 12}, (code, errors[-2000:])
