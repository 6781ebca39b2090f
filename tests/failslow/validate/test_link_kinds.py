"""What links between GPUs are: by a stand-in of NVML, by what NCCL logs, and by both."""

import sys
from types import SimpleNamespace

import pytest

from lanterne.failslow.validate import link_kinds
from lanterne.failslow.validate.device_links import TEXT_NBYTES
from lanterne.failslow.validate.link_kinds import UNKNOWN, KindFinder, named, near_kinds, summary

SINGLE, SYSTEM = 10, 50


class Nvml(SimpleNamespace):
    """Two pairs of GPUs, each by NVLink, between them PCIe; of a GPU at 0f nothing is known."""

    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 2, 0

    def nvmlInit(self):
        pass

    def nvmlDeviceGetHandleByPciBusId(self, address):
        if address.startswith(b"0f"):
            raise RuntimeError("Not Found")
        return int(address[:2], 16)

    def nvmlDeviceGetP2PStatus(self, here, there, index):
        assert index == self.NVML_P2P_CAPS_INDEX_NVLINK
        if self.old:
            raise RuntimeError("Function Not Found")
        return 0 if here // 2 == there // 2 else 5

    def nvmlDeviceGetTopologyCommonAncestor(self, here, there):
        return SINGLE if here // 2 == there // 2 else SYSTEM


def stand_in(monkeypatch, *, old=False):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(old=old))


def test_by_nvml(monkeypatch):
    stand_in(monkeypatch)
    found, why = near_kinds("00:00.0", ["00:00.0", "01:00.0", "02:00.0", "0f:00.0"])
    assert found == {"00:00.0": "one GPU", "01:00.0": "NVLink", "02:00.0": "PCIe, between sockets"} and why == ""


def test_an_nvml_that_knows_no_nvlink(monkeypatch):
    stand_in(monkeypatch, old=True)
    assert near_kinds("00:00.0", ["01:00.0"]) == ({"01:00.0": "PCIe, one switch"}, "")


def test_no_nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert near_kinds("00:00.0", ["01:00.0"]) == ({}, "nvidia-ml-py is not installed")


@pytest.mark.parametrize(
    ("taken", "near", "kind"),
    [
        ("P2P/CUMEM/read", "NVLink", "NVLink"),
        ("P2P/IPC", "PCIe, one switch", "PCIe, one switch"),
        ("P2P/IPC", "", "between GPUs, NVLink or PCIe"),
        ("SHM/direct/direct", "NVLink", "through host memory"),
        ("NET/IB/2(1)/GDRDMA/Shared", "", "IB, GPUDirect"),
        ("NET/IB/2/GDRDMA(PCI)", "", "IB, GPUDirect"),
        ("NET/IB/2", "", "IB, through host memory"),
        ("NET/AWS Libfabric/0/GDRDMA", "", "AWS Libfabric, GPUDirect"),
        ("NET/Socket/0", "NVLink", "Socket, through host memory"),
        ("", "NVLink", "NVLink"),
        ("NVLS", "", UNKNOWN),
        ("", "", UNKNOWN),
    ],
)
def test_what_both_say(taken, near, kind):
    assert named(taken, near) == kind


def test_the_links_of_a_rank(monkeypatch):
    """Ranks 0 to 2 on a host, 3 and 4 on another; of the way to 4 NCCL says nothing."""
    stand_in(monkeypatch)
    taken = {1: "P2P/CUMEM", 2: "SHM/direct/direct", 3: "NET/IB/0/GDRDMA"}
    monkeypatch.setattr(link_kinds.ConnectionLog, "here", lambda: SimpleNamespace(taken=lambda rank: taken))
    seats = [(7, "00:00.0"), (7, "01:00.0"), (7, "02:00.0"), (8, "00:00.0"), (8, "01:00.0")]
    kinds, silent = KindFinder().own_kinds(0, seats)
    assert kinds == ["", "NVLink", "through host memory", "IB, GPUDirect", UNKNOWN]
    assert silent == "NVML: it tells of GPUs of one host; NCCL's log: it names no connection"
    assert KindFinder().own_kinds(0, seats[:4]) == (kinds[:4], "")


def test_who_could_tell_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(link_kinds.ConnectionLog, "here", lambda: None)
    kinds, silent = KindFinder().own_kinds(1, [(7, "00:00.0"), (7, "01:00.0")])
    assert kinds == [UNKNOWN, ""]
    assert silent.startswith("NVML: nvidia-ml-py is not installed; NCCL's log: NCCL_DEBUG=INFO NCCL_DEBUG_FILE=")
    assert len(silent) <= TEXT_NBYTES


def test_a_summary_counts():
    assert summary(["NVLink", "IB, GPUDirect", "NVLink"], "") == "1 IB, GPUDirect; 2 NVLink"
    assert summary([UNKNOWN], "NVML: no") == "1 kind unknown (NVML: no)"
