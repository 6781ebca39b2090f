"""Links between devices, on stand-ins for NCCL and streams: both directions, in the same passes, timed there."""

import sys
import time

import pytest
from device_ranks import over_nccl
from host_nccl import HostCommunicator, HostNccl
from nccl_ranks import Job

import lanterne
from lanterne.bench.failslow.validate import _link_table
from lanterne.errors import InputError
from lanterne.failslow.validate import link_kinds
from lanterne.failslow.validate.link_probe import measure_links
from lanterne.failslow.validate.links import link_passes
from lanterne.failslow.validate.probe import Probe
from lanterne.failslow.validate.validate import validate
from lanterne.failslow.validate.validation import Validation

NBYTES, SLOW_S = 1 << 16, 0.05


class SlowLink(HostNccl):
    """What rank 0 sends to rank 1, and is not small, takes long."""

    def __init__(self):
        super().__init__()
        self.NcclCommunicator = lambda *arguments: _Slow(self, *arguments)


class _Slow(HostCommunicator):
    def run(self, operations):
        sent = {(nbytes, peer) for kind, _, nbytes, peer in operations if kind == "send"}
        if self.rank == 0 and (NBYTES, 1) in sent:
            time.sleep(SLOW_S)
        super().run(operations)


def test_both_directions_by_the_receivers_device():
    passes = link_passes(range(3))

    def program(comm):
        probe = Probe(comm.split(0, comm.rank), "device", on_device=True)
        found = measure_links(probe, passes, (NBYTES,), 2)
        path = probe.path
        probe.close()
        return path, found

    outcomes = over_nccl(3, program, job=Job(3, nccl=SlowLink()))
    assert not any(isinstance(outcome, Exception) for outcome in outcomes), outcomes
    path, found = outcomes[0]
    assert path == "device memory over nccl" and outcomes[1] == outcomes[0] == outcomes[2]
    assert set(found) == {(a, b) for a in range(3) for b in range(3) if a != b} and len(passes) <= 6
    assert all(samples.latency_s > 0 and len(samples.times_s[NBYTES]) == 2 for samples in found.values())
    # No core was waited for: the host has no part in it.
    assert all(set(samples.waits_s[NBYTES]) == {0.0} for samples in found.values())
    slow_s = min(found[0, 1].times_s[NBYTES])
    assert slow_s >= 0.9 * SLOW_S
    assert min(found[1, 0].times_s[NBYTES]) < slow_s


OPTIONS = {"sizes": (1 << 14,), "repetitions": 1, "limit_s": 1.0, "links": ((0, 1),), "thorough": False}


def test_a_report_names_the_path_that_was_measured(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)

    def program(comm):
        return validate(comm, **OPTIONS).path, validate(comm, link_memory="host", **OPTIONS).path

    ((on_device, on_host),) = set(over_nccl(2, program))
    assert on_device.startswith("device memory over nccl: 2 kind unknown (NVML: nvidia-ml-py is not installed")
    assert on_host == "host memory over local"
    assert lanterne.spawn(2, lambda comm: validate(comm, **OPTIONS).path) == ["host memory over local"] * 2


def test_a_report_names_the_kind_of_each_link(monkeypatch, capsys):
    """By NVML; what is slow is named with it."""
    monkeypatch.setattr(link_kinds, "near_kinds", lambda own, others: (dict.fromkeys(others, "NVLink"), ""))

    def program(comm):
        return validate(comm, **OPTIONS | {"links": ((0, 1), (0, 2), (1, 2)), "sizes": (NBYTES,)})

    outcomes = over_nccl(3, program, job=Job(3, nccl=SlowLink()))
    found = outcomes[0]
    assert found.path == "device memory over nccl: 6 NVLink"
    assert {record["kind"] for record in found.links} == {"NVLink"}
    assert [finding.about for finding in found.findings] == ["link 0 -> 1"]
    assert found.findings[0].evidence.endswith("; what links them: NVLink")
    assert Validation.from_json(found.to_json()) == found
    _columns, rows = _link_table(found)
    assert len(rows) == 1 and rows[0][:2] == ["within a host, NVLink, alone", 6]


@pytest.mark.parametrize("memory", ["device", "gpu"])
def test_device_memory_goes_over_nccl_only(memory):
    def program(comm):
        with pytest.raises(InputError, match=f"validate: got link_memory .?{memory}"):
            validate(comm, link_memory=memory)

    lanterne.spawn(2, program)
