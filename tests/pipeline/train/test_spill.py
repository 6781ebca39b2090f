"""Spilled activations: a plan that needs twice the cap stays under it, and its gradients are the same, to the bit."""

import threading

import numpy as np
import pytest
from host_runtime import HostRuntime
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import lanterne
from lanterne.errors import InputError, LanterneError, TransportTimeout
from lanterne.pipeline.execute.execute import execute
from lanterne.pipeline.model.stage_gpt import gpt
from lanterne.pipeline.model.stage_layers import make_stages
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.plane_makers import make_plane
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.train.adam import Adam
from lanterne.pipeline.train.spill import ArrayPlace, DeviceStore, HostStore, Spill

MICROBATCHES, ITERATIONS, STORE_NBYTES = 8, 2, 1 << 26
MLP = mlp((3, 5, 4, 6, 5, 4, 3, 5, 2), rows=3)
GPT = gpt(vocabulary=11, length=5, width=8, heads=2, blocks=2, rows=2)


def batch(model, iteration):
    random = np.random.default_rng(iteration)
    if model is GPT:
        return random.integers(0, 11, (2, MICROBATCHES, 2, 5))
    return random.normal(size=(MICROBATCHES, 3, 3)), random.normal(size=(MICROBATCHES, 3, 2))


def checked_plan(scheduler, p):
    problem = Problem(p, MICROBATCHES, 2, 2, 1, link_latency=1)
    return check(plan(problem, scheduler), problem)


def train(comm, checked, model, caps=None, make_store=HostStore, plane_name="unbounded"):
    """(losses, weights, the most bytes held after an action, the Spill) of this rank; caps: by rank, None for none."""
    placement = checked.plan.placement
    every = make_stages(model, placement.num_stages, lambda: Adam(0.01), np.float64, seed=4)
    raw = stages = {stage: every[stage] for stage in placement.stages_of(comm.rank)}
    store, spill, peak, losses = make_store(STORE_NBYTES), None, 0, []
    if caps:
        spill = Spill(stages, caps[comm.rank], store)
        spill.follow(checked.plan, comm.rank)
        stages = spill.stages

    def after(_):
        nonlocal peak
        peak = max(peak, sum(stage.nbytes_held for stage in raw.values()))

    with make_plane(plane_name, comm) as plane:
        for iteration in range(ITERATIONS):
            execute(checked, stages, comm, *batch(model, iteration), plane=plane, after=after)
            losses += [loss for stage in stages.values() for _, loss in sorted(stage.losses.items())]
            assert not any(stage.in_flight for stage in raw.values()), iteration
            for stage in stages.values():
                stage.step()
    assert store.used_nbytes == 0 or make_store is not HostStore
    store.close()
    return losses, [stage.parameters.copy() for stage in raw.values()], peak, spill


@pytest.mark.parametrize(
    ("model", "scheduler", "p", "plane"),
    [
        (MLP, "gpipe", 2, "unbounded"),
        (MLP, "gpipe", 3, "delegate"),
        (MLP, "adaptra", 2, "unbounded"),
        (MLP, "zb_v", 2, "unbounded"),
        (MLP, "interleaved_1f1b", 2, "delegate"),
        (GPT, "gpipe", 2, "unbounded"),
        (GPT, "zb_h2", 2, "delegate"),
    ],
)
def test_twice_the_cap(model, scheduler, p, plane):
    checked = checked_plan(scheduler, p)
    free = lanterne.spawn(p, train, checked, model)
    caps = [peak // 2 for _, _, peak, _ in free]
    capped = lanterne.spawn(p, lambda comm: train(comm, checked, model, caps, plane_name=plane))
    for rank, (usual, own, cap) in enumerate(zip(free, capped, caps, strict=True)):
        (losses, weights, _, _), (own_losses, own_weights, peak, spill) = usual, own
        assert peak == spill.peak_nbytes <= cap, (losses, weights, own_losses, own_weights, peak, spill, cap)
        assert spill.spilled_nbytes > 0, (losses, weights, own_losses, own_weights, peak, spill, cap)
        assert losses == own_losses, (losses, weights, own_losses, own_weights, peak, spill, cap)
        for one, other in zip(weights, own_weights, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"rank {rank}")


def test_without_need_nothing_is_spilled():
    checked = checked_plan("gpipe", 2)
    caps = [peak for _, _, peak, _ in lanterne.spawn(2, train, checked, MLP)]
    for _, _, peak, spill in lanterne.spawn(2, train, checked, MLP, caps):
        assert (peak, spill.spilled_nbytes) == (caps.pop(0), 0), (peak, spill)


def test_a_cap_below_one_microbatch_says_what_is_needed():
    with pytest.raises(LanterneError, match=r"got a cap of 64 bytes, expected at least [0-9]+, which stage 0 holds"):
        lanterne.spawn(1, train, checked_plan("gpipe", 1), MLP, [64])


def test_another_plan_is_an_error():
    def job(comm):
        (stage,) = make_stages(MLP, 1, lambda: Adam(0.01))
        spill = Spill({0: stage}, 10000, HostStore(1 << 20))
        spill.follow(checked_plan("gpipe", 1).plan, 0)
        spill.stages[0].begin(MICROBATCHES, *batch(MLP, 0))
        spill.stages[0].forward(1)

    with pytest.raises(InputError, match=r"got F0\.1, expected F0\.0"):
        lanterne.spawn(1, job)


class DrainedStore(DeviceStore):
    """Of a stand-in, whose arrays the host reads: it waits for what a device's stream would wait for."""

    def take(self, slot):
        array = super().take(slot)
        assert self._runtime.record(self._runtime.current_stream()).wait(60)
        return array


def test_on_a_stand_in_for_a_device():
    """Copies on streams of their own: the same gradients; nothing is read before it is there."""
    checked = checked_plan("gpipe", 1)
    ((losses, weights, peak, _),) = lanterne.spawn(1, train, checked, MLP)
    runtime = HostRuntime()

    def make_store(nbytes):
        return DrainedStore(runtime, np, nbytes)

    ((own_losses, own_weights, own_peak, _),) = lanterne.spawn(1, train, checked, MLP, [peak // 2], make_store)
    assert own_peak <= peak // 2 and losses == own_losses
    np.testing.assert_array_equal(weights[0], own_weights[0])
    assert STORE_NBYTES not in runtime.pinned.values()
    runtime.close()


def test_memory_is_not_released_under_a_copy(monkeypatch):
    monkeypatch.setattr("lanterne.pipeline.train.spill.CLOSE_S", 0.05)
    runtime, gate = HostRuntime(), threading.Event()
    runtime.default.put(gate.wait)
    store = DeviceStore(runtime, np, 1 << 20)
    array = np.arange(1000, dtype=np.uint8)
    store.put(array)
    with pytest.raises(TransportTimeout, match="copies of spilled activations: not done within"):
        store.close()
    assert len(runtime.pinned) > 0
    gate.set()
    monkeypatch.setattr("lanterne.pipeline.train.spill.CLOSE_S", 60.0)
    pinned = len(runtime.pinned)
    store.close()
    assert len(runtime.pinned) == pinned - 1
    runtime.close()


@settings(deadline=None)
@given(arrays.arrays(np.int32, arrays.array_shapes(max_dims=4, max_side=4)), st.data())
def test_arrays_come_back_as_they_lay(base, data):
    array = base.transpose(data.draw(st.permutations(range(base.ndim))))
    if data.draw(st.booleans()):
        array = array[..., :: data.draw(st.integers(1, 2))]
    place, store = ArrayPlace.of(array), HostStore(1 << 16)
    back = place.laid(store.take(store.put(place.dense(array))))
    np.testing.assert_array_equal(back, array)
    assert store.used_nbytes == 0 and not np.shares_memory(back, base)
    if 1 not in array.shape:
        assert np.argsort(back.strides).tolist() == np.argsort(array.strides).tolist()
    store.close()
