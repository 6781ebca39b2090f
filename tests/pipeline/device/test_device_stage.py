"""Training on a device, on stand-ins: NumPy under CuPy's names, and streams that are threads."""

import gc
import threading

import numpy as np
import pytest
from host_device import HostDevice, OnDevice, array_module, until
from host_runtime import HostRuntime

import lanterne
from lanterne.errors import InputError, TransportTimeout
from lanterne.kernels.chunks import CHUNK_NBYTES
from lanterne.pipeline.adapt.adapter import Adapter
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.observed import ObservedPlane
from lanterne.pipeline.planes.plane_makers import make_plane
from lanterne.pipeline.train.trainer import Trainer, plans
from lanterne.transport.shaped import Link

MODEL, PROBLEM, ITERATIONS = mlp((3, 16, 16, 2), rows=4), Problem(2, 4, 1, 1, 1), 9


def batches(iteration):
    random = np.random.default_rng(iteration)
    return random.normal(size=(4, 4, 3)).astype(np.float32), random.normal(size=(4, 4, 2)).astype(np.float32)


def planes(comm):
    return ObservedPlane(comm.rank, make_plane("inline", comm), lambda pair: make_plane("unbounded", comm))


def delegates(comm, **options):
    """As `planes`, with delegates, all links of which are taken off the usual way."""

    def make(_=None):
        return make_plane("delegate", comm, **options)

    plane = ObservedPlane(comm.rank, make(), make)
    plane.divert([(0, 1)])
    return plane


def train(comm, device=None, planes=planes, scheduler="zb_h1", model=MODEL):
    """(losses, the state, Profiles of the coordinator, whether the weights are on the device)."""
    trainer = Trainer(comm, model, batches, plans(PROBLEM, scheduler), plane=planes, device=device)
    with Adapter(comm, trainer.plans, trainer.plane, durations_s=device and device.durations_s) as adapter:
        trainer.use(adapter.execute)
        losses = []
        for _ in range(ITERATIONS):
            losses.append(trainer.iteration().losses)
            adapter.agree()
        state = trainer.state()
        where = {type(stage.parameters) is OnDevice for stage in trainer.stages.values()}
        trainer.close()
        return np.array(losses), state, adapter.profiles[0], where


@pytest.fixture(scope="module")
def on_device():
    runtimes = [HostRuntime(), HostRuntime()]
    yield lanterne.spawn(2, lambda comm: train(comm, HostDevice(array_module(), runtimes[comm.rank])))
    for runtime in runtimes:
        runtime.close()


def test_it_is_trained_as_on_the_host(on_device):
    expected, state, _, where = lanterne.spawn(2, train)[0]
    assert where == {False} and on_device[0][3] == {True}
    np.testing.assert_allclose(on_device[0][0], expected, rtol=1e-6)
    np.testing.assert_allclose(on_device[0][1].vectors["parameters"], state.vectors["parameters"], rtol=1e-5)


def test_the_adapter_has_its_durations_from_events(on_device):
    """The stand-in computes where the stage is called: between two events that take some microseconds themselves."""
    for profile in on_device[0][2][1:]:
        assert all((profile.durations_s[kind] > 0).all() for kind in "FBW"), profile


def test_the_messages_of_an_inline_plane_go_through_pinned_memory(runtimes):
    copies = []
    for runtime in runtimes:
        copy = runtime.copy
        runtime.copy = lambda *arguments, copy=copy: (copies.append(arguments), copy(*arguments))

    def job(comm):
        device = HostDevice(array_module(), runtimes[comm.rank])
        train(comm, device)
        return device.stagings

    assert lanterne.spawn(2, job) == [{}, {}]
    # Four microbatches go forward and back over one link, and each to the host and to the device.
    assert len(copies) == 2 * 2 * 4 * ITERATIONS
    gc.collect()
    assert [runtime.pinned for runtime in runtimes] == [{}, {}]


@pytest.fixture
def runtimes():
    found = [HostRuntime(), HostRuntime()]
    yield found
    for runtime in found:
        runtime.close()


@pytest.mark.parametrize(
    "options",
    [{}, {"rails": ("tcp",), "queues": 2}, {"rails": ("tcp",), "links": {(0, 1): Link(1e-3, 1e8)}}],
    ids=["one host", "tcp", "emulated link"],
)
def test_delegates_carry_what_the_device_copies_for_them(on_device, runtimes, options):
    """The losses of a data plane whose rank sends itself."""

    def job(comm):
        device = HostDevice(array_module(), runtimes[comm.rank])
        found = train(comm, device, lambda pipeline: delegates(pipeline, **options))
        return *found, device.stagings

    (losses, state, _, where, stagings), _ = lanterne.spawn(2, job)
    np.testing.assert_array_equal(losses, on_device[0][0])
    np.testing.assert_array_equal(state.vectors["parameters"], on_device[0][1].vectors["parameters"])
    assert where == {True} and not stagings
    gc.collect()
    assert [runtime.pinned for runtime in runtimes] == [{}, {}]


NBYTES = 3 * CHUNK_NBYTES + 5


def gated(runtime, gates):
    """Each copy of `runtime` waits for the next of `gates`."""
    copy, following = runtime.copy, iter(gates)

    def held(dst, src, nbytes, stream):
        stream.put(next(following).wait)
        copy(dst, src, nbytes, stream)

    runtime.copy = held


def exchange(runtimes, hold, options):
    """Rank 0 sends a message that its device makes; `hold(sent, receive, gates)` on rank 1 lets its chunks go.

    Returns what came, and what it was to be.
    """
    gates, shape, dtype = [threading.Event() for _ in range(4)], (NBYTES,), np.dtype(np.uint8)
    gated(runtimes[0], gates)
    message = np.random.default_rng(0).integers(0, 256, NBYTES, np.uint8)
    xp = array_module()

    def job(comm):
        device = HostDevice(xp, runtimes[comm.rank])
        with make_plane("delegate", comm, **options) as plane:
            plane.stage_on(device)
            if comm.rank == 0:
                buffer = plane.lend(shape, dtype, 1)
                assert plane.send(device.fill(buffer, xp.asarray(message)), 1) is False
                # The copy has not begun, and the rank goes on.
                comm.barrier()
                plane.finish()
                return None
            receive = plane.receive(shape, dtype, 0)
            comm.barrier()
            hold(plane, receive, gates)
            buffer = receive.wait()
            got = device.fetch(buffer)
            plane.release(buffer)
            until(lambda: plane.progress() or not plane._copied)
            return np.array(got)

    return lanterne.spawn(2, job)[1], message


def test_the_first_chunk_is_sent_while_the_second_is_copied(runtimes):
    def hold(plane, receive, gates):
        (_, _, into), *_ = plane._lent.values()
        into[:] = 0
        gates[0].set()
        until(into[CHUNK_NBYTES - 1000 : CHUNK_NBYTES].any)
        assert not into[CHUNK_NBYTES:].any() and not receive.test()
        for gate in gates[1:]:
            gate.set()

    got, message = exchange(runtimes, hold, {"rails": ("tcp",)})
    np.testing.assert_array_equal(got, message)


def test_a_rank_that_sends_itself_waits_for_the_copy(runtimes):
    gates, xp = [threading.Event()], array_module()
    gated(runtimes[0], gates)
    message, shape, dtype = np.arange(10, dtype=np.uint8), (10,), np.dtype(np.uint8)

    def job(comm):
        device = HostDevice(xp, runtimes[comm.rank])
        with make_plane("inline", comm) as plane:
            plane.stage_on(device)
            if comm.rank:
                buffer = plane.receive(shape, dtype, 0).wait()
                got = device.fetch(buffer)
                plane.release(buffer)
                return got
            buffer = device.fill(plane.lend(shape, dtype, 1), xp.asarray(message))
            with pytest.raises(TransportTimeout, match=r"staged copy of 10 bytes: not done within 0\.01 s"):
                plane.send(buffer, 1, timeout_s=0.01)
            gates[0].set()
            plane.send(buffer, 1)
            plane.finish()

    np.testing.assert_array_equal(lanterne.spawn(2, job)[1], message)


def test_a_plane_that_was_not_told_of_the_device_is_named(runtimes):
    device = HostDevice(array_module(), runtimes[0])
    for use in (device.fetch, lambda buffer: device.fill(buffer, buffer)):
        with pytest.raises(InputError, match="a data plane without it, expected one after its `stage_on`"):
            use(np.zeros(3))
