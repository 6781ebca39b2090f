"""Calls that are queued on a device's streams: their times are the device's, and nothing waits for a stream."""

import gc
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from device_ranks import over_nccl, synchronize
from nccl_ranks import HostArray
from virtual_device import VirtualDevice

from lanterne.failslow.record import stream_times
from lanterne.failslow.record.adapters import adapt_ddp, adapt_nccl, adapt_torch, watch_communicator
from lanterne.failslow.record.call_ring import OPEN_S, RingReader
from lanterne.failslow.record.recorder import Recorder, timed
from lanterne.failslow.record.stream_times import QueuedCalls

STREAM, OTHER = 7, 8


@pytest.fixture
def device(monkeypatch):
    # No thread looks: the test does.
    monkeypatch.setattr(stream_times, "LOOK_S", 1000.0)
    return VirtualDevice()


def queued_call(recorder, calls, name="all_reduce", stream=STREAM, call=lambda: "queued"):
    described = 0, name, 4, 1, 64
    return timed(call, lambda args, kwargs: described, recorder, on_device=lambda args, kwargs: (calls, stream))


def reader_of(folder):
    (path,) = folder.glob("*.calls")
    return RingReader(path)


def test_a_stream_that_never_ends_holds_up_nobody(tmp_path, device):
    recorder, calls = Recorder(tmp_path), QueuedCalls(device)
    device.hold(STREAM)
    call = queued_call(recorder, calls)
    assert [call() for _ in range(100)] == ["queued"] * 100
    calls.look()
    reader = reader_of(tmp_path)
    assert reader.take() == [] and len(reader.open) == 100 and reader.timed == 0
    # The others of the device go on, and are told of.
    assert queued_call(recorder, calls, "broadcast", OTHER)() == "queued"
    calls.look()
    assert [found.name for found in reader.take()] == ["broadcast"]
    # One question for each stream that is held up, whatever is queued there.
    device.asked = 0
    calls.look()
    assert device.asked == 1
    calls.stop()
    recorder.end()
    assert all(found.end_s == OPEN_S for found in reader.open.values()) and reader.ended


def test_times_are_those_of_the_device(tmp_path, device):
    recorder, calls = Recorder(tmp_path), QueuedCalls(device)
    queued_call(recorder, calls, stream=OTHER)()
    calls.look()
    device.hold(STREAM)
    mark = calls.begin(STREAM)
    channel = recorder.channel(0, "all_reduce", 4, 1)
    index = channel.begin(64, mark.queued_s)
    device.release(STREAM, mark.queued_s + 20.0)
    device.hold(STREAM)
    assert calls.end(mark, channel, index)
    device.release(STREAM, mark.queued_s + 23.0)
    calls.look()
    reader = reader_of(tmp_path)
    found = reader.take()[-1]
    # Half a microsecond is what CUDA tells of.
    assert found.end_s - found.start_s == pytest.approx(3.0, abs=1e-6)
    assert found.start_s - mark.queued_s == pytest.approx(20.0, abs=0.06)
    assert reader.timed == 2


def test_calls_of_a_group_begin_where_the_group_ends(tmp_path, device, monkeypatch):
    launched = []

    class Communicator:
        def __init__(self, ndev, commId, rank):
            pass

        def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
            launched.append(stream)

        def send(self, sendbuf, count, datatype, peer, stream):
            raise OSError("refused")

    def group_end():
        launched.append("end")
        # The work of the group takes two seconds of the device.
        device.offset_s += 2.0

    module = SimpleNamespace(NcclCommunicator=Communicator, groupStart=lambda: None, groupEnd=group_end)
    recorder = Recorder(tmp_path)
    calls = QueuedCalls(device, recorder.groups)
    monkeypatch.setattr("lanterne.failslow.record.adapters._cupy_calls", lambda recorder, number: calls)
    adapt_nccl(module, recorder)
    comm = module.NcclCommunicator(2, b"1", 0)
    module.groupStart()
    module.groupStart()
    comm.allReduce(0, 0, 100, 7, 0, STREAM)
    comm.allReduce(0, 0, 200, 7, 0, OTHER)
    module.groupEnd()
    device.offset_s -= 2.0
    with pytest.raises(OSError, match="refused"):
        comm.send(0, 1, 2, 1, STREAM)
    module.groupEnd()
    assert launched == [STREAM, OTHER, "end", "end"]
    calls.look()
    found = reader_of(tmp_path).take()
    assert [(one.name, one.nbytes) for one in found] == [("allReduce", 400), ("allReduce", 800), ("send", 4)]
    assert all(one.end_s - one.start_s == pytest.approx(2.0, abs=0.2) for one in found)
    # Outside of groups each call is its own.
    comm.allReduce(0, 0, 100, 7, 0, stream=STREAM)
    calls.look()
    assert reader_of(tmp_path).timed == 4


@pytest.mark.parametrize("why", ["captured", "failing", "full"])
def test_what_cannot_be_timed_is_recorded_as_it_was_queued(tmp_path, device, monkeypatch, why):
    recorder, calls = Recorder(tmp_path), QueuedCalls(device, is_captured=lambda stream: why == "captured")
    device.fails = why == "failing"
    most = 0 if why == "full" else 10
    monkeypatch.setattr(stream_times, "OPEN", most)
    assert queued_call(recorder, calls)() == "queued"
    reader = reader_of(tmp_path)
    (found,) = reader.take()
    assert found.end_s >= found.start_s and reader.timed == 0


def test_a_device_that_fails_later_leaves_its_calls_open(tmp_path, device):
    recorder, calls = Recorder(tmp_path), QueuedCalls(device)
    queued_call(recorder, calls)()
    device.fails = True
    calls.look()
    calls.stop()
    reader = reader_of(tmp_path)
    assert reader.take() == [] and len(reader.open) == 1


@pytest.fixture
def torch(device, monkeypatch):
    """PyTorch as far as its events go, and its autograd's callbacks."""

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self, stream):
            self.found = device.record(stream, timed=True)

        def query(self):
            return device.is_done(self.found)

        def elapsed_time(self, other):
            return 1e3 * device.elapsed_s(self.found, other.found)

    cuda = SimpleNamespace(
        Event=Event,
        Stream=lambda number: OTHER,
        current_stream=lambda: STREAM,
        current_device=lambda: 0,
        is_current_stream_capturing=lambda: False,
        set_device=lambda number: None,
    )
    queued = []
    engine = SimpleNamespace(queue_callback=queued.append, queued=queued)
    variable = SimpleNamespace(_execution_engine=engine)
    found = SimpleNamespace(
        cuda=cuda, autograd=SimpleNamespace(Variable=variable), is_grad_enabled=lambda: True, engine=engine
    )
    monkeypatch.setitem(sys.modules, "torch", found)
    return found


def test_torch_over_nccl(tmp_path, torch, monkeypatch):
    module = SimpleNamespace(
        __name__="torch.distributed.distributed_c10d",
        get_backend=lambda group=None: "cpu:gloo,cuda:nccl",
        get_world_size=lambda group=None: 2,
        get_rank=lambda group=None: 0,
        all_reduce=lambda tensor, op=None, group=None, async_op=False: None,
        all_gather=lambda tensors, tensor, group=None, async_op=False: None,
        isend=lambda tensor, dst: None,
    )
    monkeypatch.setattr(stream_times, "LOOK_S", 0.001)
    recorder = Recorder(tmp_path)
    adapt_torch(module, recorder)
    on_gpu, on_cpu = (SimpleNamespace(is_cuda=is_cuda, nbytes=64) for is_cuda in (True, False))
    module.all_reduce(on_gpu)
    module.all_gather([on_gpu, on_gpu], tensor=on_gpu)
    module.all_reduce(on_cpu)
    module.all_reduce(on_gpu, async_op=True)
    module.all_reduce(on_gpu, None, None, True)
    module.isend(on_gpu, 1)
    recorder.end()
    reader = reader_of(tmp_path)
    assert len(reader.take()) == 6 and reader.timed == 2 and reader.faults == 0


@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
def test_backward_passes_of_ddp(tmp_path, torch, device, monkeypatch, device_type):
    """From when a rank's device has all its gradients to when they are summed there."""

    class Model:
        process_group, require_backward_grad_sync = SimpleNamespace(size=lambda: 4), True

        def forward(self, x):
            return x

    Model.device_type = device_type
    hooks = []
    tensor = SimpleNamespace(requires_grad=True, register_hook=hooks.append)
    module = SimpleNamespace(DistributedDataParallel=Model, torch=torch, _find_tensors=lambda output: [tensor])
    recorder = Recorder(tmp_path)
    adapt_ddp(module, recorder)
    Model().forward(tensor)
    hooks[0]("gradient")
    torch.engine.queued.pop(0)()
    # The all-reduces take a second of the device.
    device.offset_s += 1.0
    torch.engine.queued.pop(0)()
    recorder.end()
    reader = reader_of(tmp_path)
    _forward, backward = reader.take()
    assert reader.timed == (device_type == "cuda") and backward.name.endswith("backward")
    took_s = backward.end_s - backward.start_s
    assert took_s == pytest.approx(1.0, abs=0.3) if device_type == "cuda" else took_s < 1.0


def test_lanterne_over_nccl(tmp_path):
    """A rank's stream is held up for a while: the calls return, and begin on the device when it goes on."""

    def program(comm):
        recorder, runtime = Recorder(tmp_path), comm.transport.runtime
        all_reduce = watch_communicator(comm, "all_reduce", recorder, comm)
        goes_on = threading.Event()
        x, out = HostArray(np.full(64, comm.rank + 1.0)), HostArray(np.zeros(64))
        all_reduce(x, out, algorithm="ring")
        synchronize(comm)
        runtime.wait_event(goes_on, runtime.default)
        all_reduce(x, out, algorithm="ring")
        returned_s = time.monotonic()
        time.sleep(0.3)
        goes_on.set()
        synchronize(comm)
        all_reduce(np.ones(4), np.ones(4))
        recorder.end()
        return returned_s

    returned_s = over_nccl(2, program)
    assert all(isinstance(one, float) for one in returned_s), returned_s
    for rank in range(2):
        (path,) = tmp_path.glob(f"rank-{rank}-*.calls")
        reader = RingReader(path)
        calls = reader.take()
        assert len(calls) == 3 and reader.timed == 2 and reader.faults == 0, rank
        held = max(calls, key=lambda call: call.nbytes * call.start_s)
        assert held.end_s >= held.start_s > returned_s[rank] + 0.1, rank


def test_a_driver_that_hangs_does_not_keep_a_program_from_ending(tmp_path, device, monkeypatch):
    monkeypatch.setattr(stream_times, "LOOK_S", 0.05)
    recorder, calls = Recorder(tmp_path), QueuedCalls(device)
    asked, hangs = threading.Event(), threading.Event()

    def is_done(_event):
        asked.set()
        return hangs.wait(30)

    monkeypatch.setattr(device, "is_done", is_done)
    queued_call(recorder, calls)()
    assert asked.wait(30)
    ending = threading.Thread(target=calls.stop)
    ending.start()
    ending.join(20)
    was_alive = ending.is_alive()
    hangs.set()
    ending.join(30)
    recorder.end()
    assert not was_alive


def test_models_are_numbered_as_they_come_though_earlier_ones_are_gone(tmp_path, torch):
    class Model:
        process_group, require_backward_grad_sync, device_type = SimpleNamespace(size=lambda: 4), True, "cpu"

        def forward(self, x):
            return x

    module = SimpleNamespace(DistributedDataParallel=Model, torch=torch, _find_tensors=lambda output: [])
    recorder = Recorder(tmp_path)
    adapt_ddp(module, recorder)
    for _ in range(4):
        # Each takes the place of the one before in memory.
        Model().forward(0)
        gc.collect()
    recorder.end()
    assert len({call.communicator for call in reader_of(tmp_path).take()}) == 4
