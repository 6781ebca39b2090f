"""Training on a device, on stand-ins: NumPy under CuPy's names, and streams that are threads."""

from types import SimpleNamespace

import numpy as np
import pytest
from host_runtime import HostRuntime

import lanterne
from lanterne.pipeline.adapt import Adapter
from lanterne.pipeline.device_stage import Device
from lanterne.pipeline.observed import ObservedPlane
from lanterne.pipeline.planes import make_plane
from lanterne.pipeline.problem import Problem
from lanterne.pipeline.stage_mlp import mlp
from lanterne.pipeline.train import Trainer, plans

MODEL, PROBLEM, ITERATIONS = mlp((3, 16, 16, 2), rows=4), Problem(2, 4, 1, 1, 1), 9


class OnDevice(np.ndarray):
    """An array that came from the array module below."""


def array_module(fetched=None):
    """CuPy's functions that a Trainer asks for; `fetched` counts the copies back to the host."""

    def asnumpy(array, out):
        if fetched is not None:
            fetched.append(array.nbytes)
        out[...] = array
        return out

    def made(function):
        return lambda *args, **options: function(*args, **options).view(OnDevice)

    return SimpleNamespace(
        asarray=made(lambda array, dtype=None: np.array(array, dtype)),
        zeros=made(np.zeros),
        zeros_like=made(np.zeros_like),
        asnumpy=asnumpy,
    )


def batches(iteration):
    random = np.random.default_rng(iteration)
    return random.normal(size=(4, 4, 3)).astype(np.float32), random.normal(size=(4, 4, 2)).astype(np.float32)


def planes(comm):
    return ObservedPlane(comm.rank, make_plane("inline", comm), lambda pair: make_plane("unbounded", comm))


def train(comm, device=None):
    """(losses, the state, Profiles of the coordinator, whether the weights are on the device)."""
    trainer = Trainer(comm, MODEL, batches, plans(PROBLEM, "zb_h1"), plane=planes, device=device)
    with Adapter(comm, trainer.plans, trainer.plane, durations_s=device and device.durations_s) as adapter:
        trainer.execute = adapter.execute
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
    yield lanterne.spawn(2, lambda comm: train(comm, Device(array_module(), runtimes[comm.rank])))
    for runtime in runtimes:
        runtime.close()


def test_it_is_trained_as_on_the_host(on_device):
    expected, state, _, where = lanterne.spawn(2, train)[0]
    assert where == {False} and on_device[0][3] == {True}
    np.testing.assert_allclose(on_device[0][0], expected, rtol=1e-6)
    np.testing.assert_allclose(on_device[0][1].parameters, state.parameters, rtol=1e-5)


def test_the_adapter_has_its_durations_from_events(on_device):
    """The stand-in computes where the stage is called: between two events that take some microseconds themselves."""
    for profile in on_device[0][2][1:]:
        assert all((profile.durations_s[kind] > 0).all() for kind in "FBW")


def test_durations_are_asked_of_the_device(on_device):
    asked, fetched = [], []

    def job(comm):
        device = Device(array_module(fetched), runtime)
        events = device.durations_s
        device.durations_s = lambda measured: asked.append(events(measured)) or np.full(len(measured.actions), 7.0)
        return train(comm, device)[2]

    runtime = HostRuntime()
    try:
        profiles = lanterne.spawn(2, job)[0]
    finally:
        runtime.close()
    # Four microbatches go forward and back over one link.
    assert len(asked) == 2 * ITERATIONS and len(fetched) == 2 * 4 * ITERATIONS
    assert all((profile.durations_s["F"] == 7.0).all() for profile in profiles)
