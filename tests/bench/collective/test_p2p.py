"""Messages between GPUs in `bench p2p`, on stand-ins: what arrives is compared, times are the device's."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from nccl_ranks import HostArray, Job

from lanterne.bench.cli import main
from lanterne.bench.collective.p2p import MODES, OnDevice, compare, comparisons
from lanterne.kernels import arrays


class DeviceBytes(HostArray):
    def fill(self, byte):
        self.values[...] = byte

    def __ne__(self, other):
        return self.values != other.values

    __hash__ = object.__hash__


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_messages_of_devices_are_checked_and_timed_by_events(monkeypatch, mode, breaks):
    cupy = SimpleNamespace(asarray=lambda x: DeviceBytes(x.copy()), count_nonzero=np.count_nonzero)
    monkeypatch.setattr(arrays, "import_cupy", lambda: cupy)
    slots, meeting = [b"", b""], threading.Barrier(2)
    timed = OnDevice.timed

    def timed_and_lost(self, work):
        time_s = timed(self, work)
        self._into.fill(0)
        return time_s

    if breaks:
        monkeypatch.setattr(OnDevice, "timed", timed_and_lost)

    def program(transport):
        def exchange(key, data):
            slots[transport.rank] = data
            meeting.wait(20)
            found = list(slots)
            meeting.wait(20)
            return found

        transport.runtime.elapsed_s = lambda start, stop: 2.0 if start.is_set() and stop.is_set() else 0.0
        group = SimpleNamespace(rank=transport.rank, exchange=exchange, barrier=lambda key: meeting.wait(20))
        return compare(group, {"nccl": OnDevice(transport)}, 1000, mode, 3)

    for records in Job(2).run(program):
        (record,) = records
        assert record["nbytes"] == 1000 and len(record["time_s"]) == 3, records
        assert len(set(record["time_s"])) == 1 and 0 < record["time_s"][0] <= 2.0, records
        assert (record["wrong"] > 0) == breaks, records


@pytest.mark.parametrize("options", [["--device", "cuda", "--transport", "mpi"], ["--transport", "nccl"]])
def test_a_transport_of_another_memory_is_refused(options, capsys):
    assert main(["bench", "p2p", *options]) == 2
    assert "expected nccl on cuda only" in capsys.readouterr().err


def test_sizes_of_devices_are_those_of_the_steps():
    from lanterne.bench.collective.p2p import SIZES
    from lanterne.bench.output.units import parse_sizes

    sizes = np.array(parse_sizes(SIZES["cuda"], "--bytes", 1))
    assert sizes[0] == 64 << 20 and sizes[-1] == 256 << 20 and set(np.diff(sizes)) == {16 << 20}


def test_tcp_is_compared_with_itself_unsealed_and_with_ucx_block_by_block():
    """Each block beside its neighbours: what disturbed the second one disturbed all."""
    times_s = {"tcp": [1.05e-3, 5.25e-3, 1.05e-3], "tcp-unsealed": [1e-3, 5e-3, 1e-3], "ucx": [2.1e-3, 10.5e-3, 2.1e-3]}
    same = {"mode": "latency", "nbytes": 1 << 20}
    records = [{"transport": name, "time_s": each, **same} for name, each in times_s.items()]
    assert comparisons(records) == [
        "tcp's seals, 1 MiB, latency: 1.050 of its time (+50 us)",
        "tcp beside ucx, 1 MiB, latency: 0.500 of its time (-1.05 ms), 2.00 of its bandwidth",
    ]
    assert comparisons(records[1:]) == []
