"""`pipeline run|train --device cuda --transport nccl` on stand-ins: stages and links take their time on streams."""

import time
from functools import partial
from pathlib import Path

import pytest
from host_device import array_module
from host_spins import HostSpins, Waiting
from nccl_ranks import Job

from evaluation.gpu import breakdown
from evaluation.gpu import emulated_links as gpu_links
from evaluation.gpu.figures import Figure
from lanterne.bench.cli import LANTERNE
from lanterne.bench.pipeline import measure as pipeline_measure
from lanterne.bench.pipeline.measure import PipelineCase, run_cases
from lanterne.bench.train import train as pipeline_train
from lanterne.collectives.communicator import Communicator
from lanterne.errors import InputError
from lanterne.kernels.cuda import spin as cuda_delay
from lanterne.pipeline.device import device_stage
from lanterne.pipeline.device.device_stage import Device
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes import streams
from lanterne.pipeline.planes.plane_makers import predict
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.transport.shaped import Link

UNIT_S = 1e-3
ROOT = Path(__file__).resolve().parents[3]


def queue_delay(duration_s, stream):
    stream.put(lambda: time.sleep(duration_s))


@pytest.fixture
def on_streams(monkeypatch):
    """A function of Cases: what run_cases gives for them on rank 0, over nccl, with stages on streams."""
    monkeypatch.setattr(cuda_delay, "delay", queue_delay)
    monkeypatch.setattr(streams, "SpinKernels", HostSpins)

    def cuda_device(comm, own_stream):
        return Device(array_module(), comm.transport.runtime)

    monkeypatch.setattr(pipeline_measure, "cuda_device", cuda_device)

    def run(cases):
        work = {"cases": [case.to_dict() for case in cases], "iterations": 2, "warmup": 0, "device": "cuda"}

        def rank_main(transport):
            with Communicator(transport, closes=(transport,)) as comm:
                return run_cases(comm, work)

        results = Job(cases[0].ranks).run(rank_main, close=False)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results[0]

    return run


@pytest.mark.parametrize(
    "link", [{"link_latency": [30.0]}, {"link_latency": [10.0], "link_bandwidth": [50.0]}], ids=["latency", "bandwidth"]
)
def test_links_slow_the_pipeline_as_simulated(on_streams, link):
    """Over the plane of streams, and over a host's, whose messages are staged."""
    near = Problem(2, 3, 1, 1, 1, [0.0], message_nbytes=1000)
    problem = Problem(2, 3, 1, 1, 1, message_nbytes=1000, **link)
    planes = ("streams", "inline")
    cases = [
        PipelineCase(check(plan(near, "1f1b"), each), each, UNIT_S, name) for name in planes for each in (problem, near)
    ]
    found = on_streams(cases)
    for case, (makespans_s, rows) in zip(cases, found, strict=True):
        predicted_s = predict(case.plane, case.checked, case.problem).makespan * UNIT_S
        assert len(makespans_s) == 2 and len(rows[0]) == 12, (case, makespans_s, rows)
        # A machine that is busy is late, and may note where a rank's clock began a little late.
        if case.problem is problem:
            assert min(makespans_s) >= 0.7 * predicted_s > 60 * UNIT_S, (case, makespans_s, rows)


SMALL = "--blocks 2 --width 16 --heads 2 --length 16 --rows 2 --microbatches 4 --iterations 4".split()


def trained(transport_ranks, *options):
    """What the ranks of `pipeline train` gave, or raised."""
    words = ["-n", "2", "--data", str(ROOT / "README.md"), *SMALL, "--transport", "nccl", *options]
    args = LANTERNE.build_parser("pipeline train").parse_args(words)

    def rank_main(transport):
        with Communicator(transport, closes=(transport,)) as comm:
            return pipeline_train.train(comm, args)

    return transport_ranks.run(rank_main, close=False)


def test_a_slow_rank_whose_cpu_only_queues_is_refused(monkeypatch):
    monkeypatch.setattr(
        device_stage, "cuda_device", lambda comm: device_stage.Device(array_module(), comm.transport.runtime)
    )
    for error in trained(Job(2), "--device", "cuda", "--slow-rank", "0=2x"):
        assert isinstance(error, InputError), error
        assert str(error).startswith("--slow-rank: got it on GPUs over nccl, whose CPUs only queue work"), error


def test_the_figures_of_emulated_links(monkeypatch):
    """Messages that arrive, over links that are never too quick."""
    monkeypatch.setattr(cuda_delay, "delay", queue_delay)
    monkeypatch.setattr(streams, "SpinKernels", HostSpins)
    monkeypatch.setattr(streams, "Streams", Waiting)
    monkeypatch.setattr(gpu_links, "LINKS", {"1 ms": Link(1e-3), "both": Link(1e-3, 2e6)})

    def rank_main(transport):
        with Communicator(transport, closes=(transport,)) as comm:
            device = device_stage.Device(array_module(), transport.runtime)
            slowest = partial(breakdown.slowest, comm)
            return [Figure(**record) for record in gpu_links.link_figures(comm, device, slowest, 10_000, 2)]

    results = Job(3).run(rank_main, close=False)
    assert results == [results[0]] * 3
    latency, both = results[0]
    assert latency.name.endswith(" over an emulated link of 1 ms") and latency.bar[:2] == "<="
    assert both.bar == "<= 120 us" and len(both.samples) == 2 and min(both.samples) >= 6e-3
