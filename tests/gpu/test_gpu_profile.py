"""Times of F, B and W on a real GPU: by events, of spins of known length and of a model in CuPy."""

import time

import numpy as np
import pytest
from device_profile import check_times

import lanterne
from lanterne.kernels.cuda.runtime import CudaRuntime
from lanterne.kernels.cuda.spin import delay
from lanterne.pipeline.device.device_stage import cuda_device
from lanterne.pipeline.device.device_times import DeviceTimes
from lanterne.pipeline.execute.execute import execute
from lanterne.pipeline.model.stage_layers import make_stages
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.plane_makers import make_plane
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.train.adam import Adam
from lanterne.pipeline.train.trainer import Trainer, plans

# Small, since the host's CUDA has to compute it, too.
WIDTHS, ROWS = (128, 256, 128), 64


def numbers(seed):
    """Inputs and targets of four microbatches."""
    random = np.random.default_rng(seed)
    return random.normal(size=(4, ROWS, WIDTHS[0])), random.normal(size=(4, ROWS, WIDTHS[-1]))


@pytest.mark.parametrize("scheduler", ["gpipe", "1f1b", "zb_h1"])
def test_spins_take_as_long_as_told(cupy, scheduler):
    stream = cupy.cuda.Stream(non_blocking=True)
    delay(0.0, stream)
    stream.synchronize()
    # A delay may be too short by the steps of the timer.
    check_times(CudaRuntime(), stream, delay, scheduler, short_s=0.32e-3)


@pytest.mark.parametrize("plane", ["inline", "delegate"])
def test_training_on_two_ranks(cupy, plane):
    """Stages on the device, messages on the host: the losses of NumPy."""
    problem = Problem(2, 4, 1, 1, 1)

    def losses(comm, device=None):
        options = {"plane": lambda pipeline: make_plane(plane, pipeline), "device": device}
        trainer = Trainer(comm, mlp(WIDTHS, rows=ROWS), numbers, plans(problem, "zb_h1"), **options)
        found = [trainer.iteration().losses for _ in range(3)]
        trainer.close()
        return found

    def job(comm):
        with cupy.cuda.Stream(non_blocking=True):
            np.testing.assert_allclose(losses(comm, cuda_device(comm)), losses(comm), rtol=1e-4)

    lanterne.spawn(2, job, timeout_s=60.0)


def test_a_model_in_cupy(cupy):
    """Its losses are those of NumPy, and what its actions take is no more than passed."""
    model, problem = mlp(WIDTHS, rows=ROWS), Problem(1, 4, 1, 1, 1)
    checked = check(plan(problem, "zb_h1"), problem)

    def losses(comm, xp, times=None):
        (stage,) = make_stages(model, 1, lambda: Adam(0.01), np.float32, seed=4, xp=xp)
        began_s = time.monotonic()
        measured = execute(checked, {0: times.watch(stage) if times else stage}, comm, *numbers(0))
        if times:
            durations_s = times.durations_s(measured)
            assert (durations_s > 0).all()
            assert durations_s.sum() <= time.monotonic() - began_s
        return [loss for _, loss in sorted(stage.losses.items())]

    def job(comm):
        found, expected = losses(comm, cupy, DeviceTimes(CudaRuntime())), losses(comm, np)
        np.testing.assert_allclose(found, expected, rtol=1e-4)

    lanterne.spawn(1, job)
