"""The data plane of delegates: the same losses as one process, whatever dies; named errors; nothing left behind."""

import os
import signal
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

import lanterne
from evaluation.rails.rail_faults import cut
from lanterne.errors import InputError, LanterneError, PeerFailed, TransportError, TransportTimeout
from lanterne.pipeline.execute.execute import execute
from lanterne.pipeline.model.stage_layers import make_stages
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.delegate import measured_queues
from lanterne.pipeline.planes.plane_makers import make_plane
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.train.adam import Adam
from lanterne.transport.shaped import Link

MODEL, MICROBATCHES, ITERATIONS = mlp((3, 5, 4, 6, 5, 4, 3, 5, 2), rows=3), 5, 3
RAILS = ("127.0.0.2", "127.0.0.3")
DOUBLE = np.dtype(float)


def batch(iteration):
    random = np.random.default_rng(iteration)
    return random.normal(size=(MICROBATCHES, 3, 3)), random.normal(size=(MICROBATCHES, 3, 2))


def checked_plan(scheduler, p):
    problem = Problem(p, MICROBATCHES, 2, 2, 1, link_latency=1)
    return check(plan(problem, scheduler), problem)


def train(comm, checked, links=None, after=None, **options):
    """(iterations, ...) losses of this rank; after(iteration, rank, plane) is called after each action."""
    every = make_stages(MODEL, checked.plan.placement.num_stages, lambda: Adam(0.01), np.float64, seed=4)
    stages = {stage: every[stage] for stage in checked.plan.placement.stages_of(comm.rank)}
    losses = []
    with make_plane("delegate", comm, links, **options) as plane:
        for iteration in range(ITERATIONS):
            hook = None if after is None else lambda _, i=iteration: after(i, comm.rank, plane)
            execute(checked, stages, comm, *batch(iteration), plane=plane, after=hook)
            losses.append([loss for stage in stages.values() for _, loss in sorted(stage.losses.items())])
            for stage in stages.values():
                stage.step()
    return losses


def trained(p, *args, scheduler="zb_h1", **options):
    checked = checked_plan(scheduler, p)
    every = lanterne.spawn(p, lambda comm: train(comm, checked, *args, **options))
    return np.concatenate([np.array(own) for own in every], axis=1)


@pytest.fixture(scope="module")
def one_process():
    return trained(1)


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    deadline = time.monotonic() + 10
    while (left := children()) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left
    assert not [name for name in os.listdir("/dev/shm") if "lanterne" in name]


def children():
    """The delegates of this process."""
    found = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/children") as file:
                pids = file.read().split()
            for pid in pids:
                with open(f"/proc/{pid}/cmdline") as file:
                    if "delegate_process" in file.read():
                        found.append(int(pid))
        except OSError:
            continue
    return found


@pytest.mark.parametrize(
    ("p", "scheduler", "options"),
    [
        (2, "zb_h1", {}),
        (2, "zb_v", {}),
        (3, "1f1b", {"rails": ("tcp",)}),
        (3, "zb_h1", {"queues": 2, "rails": RAILS}),
        (2, "zb_v", {"queues": 3, "rails": ("tcp",)}),
        (3, "interleaved_1f1b", {"links": {(0, 1): Link(2e-3, 1e7)}}),
        (3, "zb_h1", {"pairs": [(1, 2)], "direct": "inline"}),
        (3, "1f1b", {"pairs": [(1, 0)], "direct": "unbounded", "links": {(2, 1): Link(1e-3)}}),
        (2, "gpipe", {"pairs": []}),
    ],
)
def test_trains_as_one_process_does(p, scheduler, options, one_process):
    np.testing.assert_allclose(trained(p, scheduler=scheduler, **options), one_process, rtol=1e-10)


@pytest.mark.parametrize("silently", [False, True], ids=["reset", "silent"])
def test_a_rail_that_dies_amid_an_iteration_changes_no_loss(silently, one_process):
    seen = {}

    def after(iteration, rank, plane):
        done = seen[rank] = seen.get(rank, 0) + 1
        if rank == 0 and done == 20:
            assert cut(plane.delegates.pids, RAILS[0], silently=silently) == 1
        if iteration == ITERATIONS - 1:
            dropped[rank] = {rail for _, _, rail, _ in plane.delegates.dropped}

    dropped = {}
    np.testing.assert_allclose(trained(2, after=after, rails=RAILS), one_process, rtol=1e-10)
    assert dropped == {0: {0}, 1: {0}}


def test_a_message_is_read_where_it_was_written_and_stays_until_it_is_released():
    """Between ranks of one host, in an arena with room for the messages of one iteration and no more."""
    count, nbytes, iterations = 3, 4096, 4

    def job(comm):
        shape, dtype, seen = (nbytes,), np.dtype(np.uint8), set()
        with make_plane("delegate", comm, memory_nbytes=count * nbytes) as plane:
            assert not plane.delegates.pids
            for iteration in range(iterations):
                if comm.rank == 0:
                    for index in range(count):
                        buffer = plane.lend(shape, dtype, 1)
                        buffer[:] = 10 * iteration + index
                        plane.send(buffer, 1)
                else:
                    got = [receive.wait() for receive in [plane.receive(shape, dtype, 0) for _ in range(count)]]
                    time.sleep(0.05)
                    assert [set(buffer) for buffer in got] == [{10 * iteration + index} for index in range(count)], (
                        iteration
                    )
                    theirs = np.frombuffer(plane.delegates.arenas[0], np.uint8)
                    assert all(np.shares_memory(buffer, theirs) for buffer in got), iteration
                    seen |= {buffer.ctypes.data for buffer in got}
                    for index in (1, 2, 0):
                        plane.release(got[index])
                plane.finish()
        return len(seen)

    assert lanterne.spawn(2, job) == [0, count]


def test_without_a_rail_left_every_rank_knows():
    def after(iteration, rank, plane):
        if rank == 1 and iteration == 1:
            cut(plane.delegates.pids, "127.0.0.2")

    errors = errors_of(3, rails=("127.0.0.2",), after=after)
    assert all(isinstance(error, TransportError) for error in errors)
    assert any("its delegates are gone, on every rail" in str(error) for error in errors), errors


def errors_of(p, **options):
    """The error of each rank of a training that fails."""
    errors = [None] * p
    checked = checked_plan("zb_h1", p)

    def job(comm):
        try:
            train(comm, checked, **options)
        except LanterneError as error:
            errors[comm.rank] = error
            raise

    with pytest.raises(LanterneError):
        lanterne.spawn(p, job, timeout_s=20)
    assert None not in errors
    return errors


def test_a_killed_delegate_is_named_on_every_rank():
    def after(iteration, rank, plane):
        if rank == 1 and iteration == 1:
            os.kill(plane.delegates.pids[0], signal.SIGKILL)

    errors = errors_of(3, rails=("tcp",), after=after)
    assert "rank 1: its delegate 0 was killed by signal 9 (SIGKILL)" in "".join(map(str, errors))
    assert all("delegate" in str(error) for error in errors), errors


@pytest.mark.parametrize("rails", [("memory",), ("tcp",)])
def test_a_stage_that_raises_stops_every_rank(rails):
    def after(iteration, rank, plane):
        if (iteration, rank) == (1, 2):
            raise TransportError("the cable is out")

    assert all("the cable is out" in str(error) for error in errors_of(3, rails=rails, after=after))


@pytest.mark.parametrize(("rails", "pages"), [(("memory",), 1), (("tcp",), 2)])
def test_too_little_shared_memory_says_how_much_is_needed(rails, pages):
    errors = errors_of(2, rails=rails, memory_nbytes=pages * 4096)
    told = f"shared memory: got {pages * 4096} bytes"
    assert all(told in str(error) and "expected at least" in str(error) for error in errors)


def test_a_timeout_names_only_the_rank_that_was_waited_for():
    over = threading.Event()

    def job(comm):
        with make_plane("delegate", comm) as plane:
            if comm.rank:
                return over.wait(30)
            with pytest.raises(TransportTimeout) as caught:
                plane.receive((4,), DOUBLE, 1).wait(0.1)
            over.set()
            return caught.value.peers

    assert lanterne.spawn(3, job)[0] == (1,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queues": 0}, "queues: got 0, expected 1 to"),
        ({"rails": ()}, "rails: got none"),
        ({"rails": ("memory", "no-such-card")}, "rails: got 'no-such-card', expected memory, tcp, or an interface"),
        ({"rails": ("192.0.2.1",)}, "rails: got '192.0.2.1', expected memory, tcp, or an interface or address of this"),
        ({"rails": ("tcp", "tcp")}, "rails: got tcp, tcp"),
        ({"memory_nbytes": 10}, "shared memory: got 10 bytes, expected at least 4096"),
        ({"pairs": [(0, 2)]}, r"pairs: got \(0, 2\), expected two different ranks of 2"),
    ],
)
def test_options_refused(options, message):
    with pytest.raises(InputError, match=message):
        lanterne.spawn(2, lambda comm: make_plane("delegate", comm, **options))


@pytest.mark.parametrize("rails", [("memory",), ("tcp",)])
def test_a_message_of_another_size_is_an_error(rails):
    def job(comm):
        peer = 1 - comm.rank
        with make_plane("delegate", comm, rails=rails) as plane:
            if comm.rank == 0:
                with suppress(PeerFailed):  # of the receiver, whose delegate has ended
                    plane.send(plane.lend((3,), DOUBLE, peer), peer)
                    plane.finish()
            else:
                with pytest.raises((TransportError, PeerFailed), match="24 bytes from rank 0, expected 32"):
                    plane.receive((4,), DOUBLE, peer).wait()
            # Who leaves before the other has looked would be its error.
            comm.barrier()

    lanterne.spawn(2, job)


def test_the_number_of_queues_is_measured(monkeypatch):
    assert lanterne.spawn(3, lambda comm: measured_queues(comm, 1e3, 2000)) == [1, 1, 1]
    with pytest.raises(InputError, match="expected at most 64: the link is too slow"):
        lanterne.spawn(2, lambda comm: measured_queues(comm, 1e15))
    # What a queue carries, of one pair; rank 1 only takes part.
    monkeypatch.setattr("lanterne.pipeline.planes.delegate.queues_needed", lambda *rates: rates)
    found = lanterne.spawn(3, lambda comm: measured_queues(comm, 4e9, 1 << 16, ("tcp",), [(0, 2)]))
    assert found == [found[0]] * 3 and found[0][0] == 4e9 and 0 < found[0][1] < np.inf
