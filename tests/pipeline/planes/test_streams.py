"""The data plane of device memory, on stand-ins for NCCL and streams: order, emulated links, errors."""

import itertools
import threading
import time
from itertools import chain

import numpy as np
import pytest
from host_device import array_module, until
from host_spins import HostSpins, Waiting
from nccl_ranks import Job

import lanterne
from lanterne.collectives.communicator import Communicator
from lanterne.errors import InputError, LanterneError, TransportTimeout
from lanterne.pipeline.device.device_stage import Device
from lanterne.pipeline.execute.execute import execute
from lanterne.pipeline.execute.stage_timed import StreamClock, timed_stages
from lanterne.pipeline.model.stage_layers import LayerStage
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes import streams
from lanterne.pipeline.planes.plane_makers import make_plane
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.analysis import senders
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate
from lanterne.pipeline.train.trainer import Trainer, plans
from lanterne.transport.shaped import Link

BYTE = np.dtype(np.uint8)


def over_nccl(world_size, program, **options):
    """program(comm, device) on every rank; what it returned, or raised."""

    def rank_main(transport):
        comm = Communicator(transport, closes=(transport,))
        with comm:
            return program(comm, Device(array_module(), transport.runtime))

    results = Job(world_size, **options).run(rank_main, close=False)
    return results


def checked(results):
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


def opened(comm, device, links=None, spins=None):
    plane = make_plane("streams", comm, links, make_spins=lambda: spins)
    plane.stage_on(device)
    # The first iteration is over.
    plane.finish()
    return plane


def test_messages_follow_what_made_them_and_come_before_what_reads_them():
    """The CPU queues all of it before any is done."""

    def program(comm, device):
        runtime, peer, gate, seen = device.runtime, 1 - comm.rank, threading.Event(), []
        with opened(comm, device) as plane:
            receives, used = [plane.receive((3,), BYTE, peer) for _ in range(5)], set()
            runtime.default.put(gate.wait)
            for value in range(5):
                buffer = plane.lend((3,), BYTE, peer)
                runtime.default.put(lambda buffer=buffer, value=value: buffer.fill(10 * comm.rank + value))
                assert plane.send(buffer, peer) is False, value
                used.add(id(buffer))
            for receive in receives:
                assert receive.test(), receive
                x = receive.wait()
                runtime.default.put(lambda x=x: seen.append(np.array(x)))
                plane.release(x)
                used.add(id(x))
            assert not seen and len(used) == 10
            gate.set()
            plane.finish()
            until(lambda: runtime.is_idle(runtime.default))
            # All are free again, and used again.
            assert len({id(plane.lend((3,), BYTE, peer)) for _ in used} - used) == 0
        return [int(x[0]) for x in seen]

    assert checked(over_nccl(2, program)) == [[10, 11, 12, 13, 14], [0, 1, 2, 3, 4]]


def test_nothing_is_received_ahead_in_the_first_iteration():
    """Kernels are loaded then, for which CUDA may wait until the device has nothing to do."""

    def program(comm, device):
        runtime, peer, queued = device.runtime, 1 - comm.rank, []
        with make_plane("streams", comm) as plane:
            plane.stage_on(device)
            for _ in range(2):
                receives = [plane.receive((4,), BYTE, peer) for _ in range(3)]
                until(lambda: device.runtime.is_idle(plane._from[peer].channel.stream) or plane._ahead)
                queued.append(sum(receive.transfer is not None for receive in receives))
                for _ in range(3):
                    plane.send(plane.lend((4,), BYTE, peer), peer)
                for receive in receives:
                    plane.release(receive.wait())
                plane.finish()
            assert runtime.record(runtime.default).wait(20)
        return queued

    assert checked(over_nccl(2, program)) == [[0, 3]] * 2


PROBLEM, UNIT_S = Problem(3, 4, 3, 3, 2, [8, 8], message_nbytes=16), 1e-3


@pytest.mark.parametrize("link", [Link(8e-3), Link(4e-3, 4e3)], ids=["latency", "bandwidth too"])
@pytest.mark.parametrize("scheduler", ["1f1b", "zb_v", "zb_h1"])
def test_no_message_of_a_plan_comes_early(scheduler, link):
    """Stages are delays on the ranks' streams; of each action it is noted when its stream was there."""
    plan_checked = check(plan(PROBLEM, scheduler), PROBLEM, memory=False)

    def program(comm, device):
        spans = []

        def delay(duration_s, stream):
            def work():
                start_s = time.monotonic()
                time.sleep(duration_s)
                spans.append((start_s, time.monotonic()))

            stream.put(work)

        links = {pair: link for pair in itertools.permutations(range(3), 2)}
        with opened(comm, device, links, HostSpins()) as plane:
            clock = StreamClock(device.stream, delay)
            stages = timed_stages(PROBLEM, plan_checked.plan.placement, comm.rank, UNIT_S, clock, device.xp)
            stages = {number: device.run(stage, plane) for number, stage in stages.items()}
            comm.barrier()
            measured = device.by_its_clock(execute(plan_checked, stages, comm, plane=plane))
        # A fused backward is two pieces of work.
        each, joined = iter(spans), []
        for action in measured.actions:
            own = [next(each) for _ in range(1 + (action.kind == "BW"))]
            joined.append((own[0][0], own[-1][1]))
        took_s = measured.end_s - measured.start_s
        assert (took_s >= [end_s - start_s for start_s, end_s in joined]).all()
        return joined

    start, end = np.array([*chain.from_iterable(checked(over_nccl(3, program)))]).T
    sender, rank_of = senders(simulate(plan_checked, PROBLEM)), plan_checked.plan.rank_of
    crossing = [at for at in np.flatnonzero(sender >= 0).tolist() if rank_of[at] != rank_of[sender[at]]]
    assert len(crossing) >= 2 * 2 * 4
    for receiver in crossing:
        assert start[receiver] >= end[sender[receiver]] + 8e-3, receiver


def test_training_goes_from_device_to_device(monkeypatch):
    """The losses of the host, and no message is copied to it; kernels are loaded before the first is under way."""
    problem, copies, order = Problem(2, 4, 1, 1, 1), [], {}

    def batches(iteration):
        random = np.random.default_rng(iteration)
        return random.normal(size=(4, 4, 3)), random.normal(size=(4, 4, 2))

    def losses(comm, device=None, plane=None):
        options = {"plane": plane, "device": device}
        trainer = Trainer(comm, mlp((3, 16, 16, 2), rows=4), batches, plans(problem, "zb_h1"), **options)
        found = [trainer.iteration().losses for _ in range(3)]
        trainer.close()
        return np.array(found)

    def program(comm, device):
        monkeypatch.setattr(device.runtime, "copy", lambda *arguments: copies.append(arguments))
        return losses(comm, device, lambda pipeline: make_plane("streams", pipeline))

    def noted(cls, name):
        function = getattr(cls, name)

        def noting(*arguments):
            order.setdefault(threading.get_ident(), []).append(name)
            return function(*arguments)

        monkeypatch.setattr(cls, name, noting)

    monkeypatch.setattr(streams, "Streams", Waiting)
    expected = lanterne.spawn(2, losses)[0]
    for name in ("forward", "backward_input", "backward_weight"):
        noted(LayerStage, name)
    noted(Waiting, "receive")
    np.testing.assert_allclose(checked(over_nccl(2, program)), [expected] * 2, rtol=1e-6)
    assert not copies
    assert [each[:4] for each in order.values()] == [["forward", "backward_input", "backward_weight", "receive"]] * 2


def test_a_rank_that_sends_nothing_is_named_and_nothing_hangs():
    def program(comm, device):
        plane = opened(comm, device)
        try:
            receive = plane.receive((8,), BYTE, 1 - comm.rank)
            if comm.rank == 0:
                receive.wait()
                try:
                    plane.finish()
                finally:
                    comm.transport.host.barrier(20.0)
            else:
                comm.transport.host.barrier(20.0)
        finally:
            plane.fail(LanterneError("told to"))
            plane.close()

    error, other = over_nccl(2, program, timeout_s=0.5)
    assert isinstance(error, TransportTimeout) and error.peers == (1,), error
    assert other is None or isinstance(other, LanterneError), other


def test_what_cannot_be_is_refused(monkeypatch):
    def elsewhere(comm):
        with pytest.raises(InputError, match="data plane streams: got transport local, expected nccl"):
            make_plane("streams", comm)

    lanterne.spawn(1, elsewhere)

    def told(comm, device):
        monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
        with pytest.raises(InputError, match="streams: got CUDA_DEVICE_MAX_CONNECTIONS=1, expected 8 or more, or none"):
            make_plane("streams", comm)
        monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS")

    checked(over_nccl(1, told))

    def untold(comm, device):
        with make_plane("streams", comm) as plane:
            for ask in (plane.lend, plane.receive):
                with pytest.raises(InputError, match="got no device, expected `stage_on` before the first message"):
                    ask((1,), BYTE, 0)

    checked(over_nccl(1, untold))

    def captured(comm, device):
        with opened(comm, device) as plane:
            receive = plane.receive((1,), BYTE, 1 - comm.rank)
            buffer = plane.lend((1,), BYTE, 1 - comm.rank)
            runtime, stream = device.runtime, device.runtime.new_stream()
            runtime.begin_capture(stream)
            runtime.default, default = stream, runtime.default
            with pytest.raises(InputError, match="stream: got one that is being captured"):
                plane.send(buffer, 1 - comm.rank)
            runtime.end_capture(stream)
            runtime.default = default
            plane.send(buffer, 1 - comm.rank)
            receive.wait()
            plane.finish()

    checked(over_nccl(2, captured))


def test_a_computing_stream_that_hangs_is_its_own_ranks_fault():
    def program(comm, device):
        runtime, host = device.runtime, comm.transport.host
        with opened(comm, device) as plane:
            try:
                if comm.rank == 0:
                    plane.receive((8,), BYTE, 1).wait()
                    runtime.default.put(lambda: runtime.closing.wait(20))
                    plane.send(plane.lend((8,), BYTE, 1), 1)
                    plane.finish(0.3)
                else:
                    plane.send(plane.lend((8,), BYTE, 0), 0)
            finally:
                host.barrier(20.0)
                plane.fail(LanterneError("told to"))

    error, _ = over_nccl(2, program)
    assert "its own stream has not reached a message to rank 1 within 0.3 s" in str(error), error
