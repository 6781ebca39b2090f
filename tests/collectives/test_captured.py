"""Captured calls on stand-ins: graphs give what the calls give, for every late rank, and go before NCCL does."""

import gc
import sys
import time

import numpy as np
import pytest
from device_ranks import over_nccl, same, staged, synchronize, values_of
from nccl_ranks import HostArray, Job

from lanterne.collectives.communicator import core_of
from lanterne.collectives.late import calls as late
from lanterne.errors import InputError, TransportError, Unavailable
from lanterne.kernels.dtypes import PremulSum
from lanterne.transport.board import sequencer


def launches(comm):
    return comm.transport.runtime.launches


@pytest.mark.parametrize("algorithm", ["ring", "rhd", "allpairs", "late_join", "late_chain", "tree"])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_a_graph_gives_what_the_call_gives(algorithm, world_size):
    def program(comm):
        x, out = HostArray(np.zeros(70_001, np.float32)), HostArray(np.zeros(70_001, np.float32))
        captured = comm.capture("all_reduce", x, out, algorithm=algorithm, segment_nbytes=40_000)
        assert (x.values == 0).all() and (out.values == 0).all()
        for turn in range(4):
            x.values[:] = values_of(comm.rank + turn, x.values.size, "float32")
            before = launches(comm)
            request = captured.launch()
            assert launches(comm) == before + 1, turn
            request.wait()
            expected = np.zeros(x.values.size, np.float32)
            comm.all_reduce(x.values.copy(), expected, algorithm="ring")
            np.testing.assert_array_equal(out.values, expected, err_msg=f"turn {turn}")
            # Other calls between the launches, with the same scratch.
            same(comm, "all_reduce", 9000, algorithm="ring")
        captured.close()
        with pytest.raises(InputError, match="closed"):
            captured.launch()

    assert over_nccl(world_size, program) == [None] * world_size


def test_launches_need_no_wait():
    def program(comm):
        x = HostArray(np.full(5000, 1.0, np.float32))
        captured = comm.capture("all_reduce", x, x, algorithm="ring", op="sum")
        for _ in range(6):
            captured.launch()
        synchronize(comm)
        return set(x.values.tolist())

    assert over_nccl(3, program) == [{3.0**6}] * 3


@pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all"])
def test_other_collectives(collective):
    def program(comm):
        n = comm.world_size
        source = np.arange(8 * n, dtype=np.float32) + 100 * comm.rank
        x, out = HostArray(source.copy()), HostArray(np.zeros(8 * n * n, np.float32))
        sizes = {"reduce_scatter": 8, "all_gather": 8 * n * n}
        size = sizes.get(collective, 8 * n)
        out = HostArray(np.zeros(size, np.float32))
        rooted = {"root": 1} if collective in ("broadcast", "reduce") else {}
        if collective == "broadcast":
            captured = comm.capture(collective, x, x, **rooted)
            host = source.copy()
            comm.broadcast(host, root=1)
            out = x
        else:
            captured = comm.capture(collective, x, out, **rooted)
            host = np.zeros(size, np.float32)
            getattr(comm, collective)(source, host, **rooted)
        captured.launch().wait()
        if collective != "reduce" or comm.rank == 1:
            np.testing.assert_array_equal(out.values, host)

    assert over_nccl(3, program) == [None] * 3


def test_the_record_of_the_call_picks_the_graph(monkeypatch):
    monkeypatch.setattr(late, "LEAST_NORMAL_S", 0.0)
    # So short that knowing the late rank would gain less than asking costs.
    monkeypatch.setattr(sequencer, "FREE_BELOW_S", 0.0)

    def program(comm):
        runtime = comm.transport.runtime
        x, out = HostArray(np.full(100_000, comm.rank + 1, np.float32)), HostArray(np.zeros(100_000, np.float32))
        captured = comm.capture("all_reduce", x, out)
        before = launches(comm)
        for late_rank in (2, 0, None, 2):
            out.values.fill(0)
            if comm.rank == late_rank:
                runtime.default.put(lambda: time.sleep(0.2))
            captured.launch()
            synchronize(comm)
            assert (out.values == 10).all(), late_rank
        return comm.arrivals().to_json()["begun_early"], launches(comm) - before

    results = over_nccl(4, program)
    assert all(isinstance(result, tuple) for result in results), results
    assert all(early >= 3 for early, _ in results), results
    # A call begun without a rank is two graphs, on that rank itself one.
    early = results[0][0]
    assert sum(number for _, number in results) == 4 * 4 + 3 * early, results


def test_few_steps_from_the_record_to_the_launch(monkeypatch):
    """Calls of Python between what the board says and the graph that follows."""
    monkeypatch.setattr(late, "LEAST_NORMAL_S", 0.0)
    monkeypatch.setattr(sequencer, "FREE_BELOW_S", 0.0)

    def program(comm):
        x, out = HostArray(np.full(100_000, comm.rank + 1, np.float32)), HostArray(np.zeros(100_000, np.float32))
        captured = comm.capture("all_reduce", x, out)
        runtime, seat = core_of(comm).device_side().runtime, core_of(comm).late.seat
        take, launch = seat.take, runtime.launch
        steps, counting = [], []

        def counted_take():
            record = take()
            if record is not None and record.verdict != sequencer.SEEN and not counting:
                counting.append(0)
                sys.setprofile(count)
            return record

        def count(frame, event, argument):
            counting[0] += event in ("call", "c_call")

        def counted_launch(graph, stream):
            sys.setprofile(None)
            if counting:
                # But for the call of setprofile itself.
                steps.append(counting.pop() - 1)
            launch(graph, stream)

        monkeypatch.setattr(seat, "take", counted_take)
        monkeypatch.setattr(runtime, "launch", counted_launch)
        for late_rank in (1, None, 2):
            if comm.rank == late_rank:
                runtime.default.put(lambda: time.sleep(0.2))
            captured.launch()
            synchronize(comm)
        assert (out.values == 6).all()
        return steps

    gc.disable()  # Callbacks of the collector would count, too.
    try:
        found = over_nccl(3, program)
    finally:
        gc.enable()
    for steps in found:
        assert len(steps) >= 3 and max(steps) <= 6, steps


def test_a_join_that_waits_on_the_device_is_refused(monkeypatch):
    monkeypatch.setenv("LANTERNE_CAPTURED_JOIN", "device")

    def program(comm):
        x = HostArray(np.ones(4, np.float32))
        with pytest.raises(InputError, match="CAPTURED_JOIN: got 'device', which is gone; unset it: the CPU launches"):
            comm.capture("all_reduce", x, x)

    assert over_nccl(2, program) == [None] * 2


def test_graphs_go_before_their_communicator():
    job = Job(2)

    def program(comm):
        x = HostArray(np.ones(100, np.float32))
        captured = comm.capture("all_reduce", x, x, algorithm="ring")
        captured.launch().wait()
        execution = captured._plans["", -1].execution
        assert execution._graphs
        comm.close()
        assert not execution._graphs
        with pytest.raises(TransportError, match="closed"):
            captured.launch()

    assert over_nccl(2, program, job=job) == [None] * 2
    assert job.nccl.log.count("destroy") == 2


@pytest.mark.parametrize("path", [over_nccl, staged])
def test_a_capture_of_the_users_own_is_refused_and_left_as_it_is(path):
    def program(comm):
        runtime = comm.transport.runtime
        stream = runtime.new_stream()
        x, out = HostArray(np.ones(4, np.float32)), HostArray(np.zeros(4, np.float32))
        captured = comm.capture("all_reduce", x, x, algorithm="ring") if path is over_nccl else None
        runtime.begin_capture(stream)
        calls = [lambda: comm.all_reduce(x, out, stream=stream), lambda: comm.send_recv(x, out, 1 - comm.rank, stream)]
        for call in [*calls, *([lambda: captured.launch(stream)] if captured else [])]:
            with pytest.raises(InputError, match="stream: got one that is being captured"):
                call()
        assert runtime.end_capture(stream).items == []
        comm.all_reduce(x, out, stream=stream)
        assert runtime.record(stream).wait(20)
        assert out.values.tolist() == [2.0] * 4

    assert path(2, program) == [None] * 2


@pytest.mark.parametrize("lacks", ["scratch", "graph"])
def test_what_one_rank_cannot_capture_is_refused_on_all(lacks):
    """The others would wait for its messages; since nobody has begun, they all go on."""

    def program(comm):
        x, out = HostArray(np.ones(50_000, np.float32)), HostArray(np.zeros(50_000, np.float32))
        comm.all_reduce(x, out, algorithm="ring")
        synchronize(comm)
        runtime = comm.transport.runtime
        before = runtime.free_nbytes, runtime.end_capture

        def refuse(stream):
            before[1](stream)
            raise TransportError("device 1: out of memory")

        if comm.rank == 1 and lacks == "scratch":
            runtime.free_nbytes = 10
        if comm.rank == 1 and lacks == "graph":
            runtime.end_capture = refuse
        with pytest.raises((Unavailable, TransportError)) as caught:
            comm.capture("all_reduce", x, out, algorithm="allpairs")
        runtime.free_nbytes, runtime.end_capture = before
        comm.capture("all_reduce", x, out, algorithm="allpairs").launch().wait()
        assert (out.values == 3).all()
        return str(caught.value)

    texts = over_nccl(3, program)
    text = {"scratch": "scratch: device 0 has no room for", "graph": "device 1: out of memory"}[lacks]
    assert texts[1].startswith(text), texts
    assert all(other.startswith(f"capture: rank 1: {text}") for other in (texts[0], texts[2])), texts


def test_bad_captures():
    def over(comm):
        host = np.zeros(4, np.float32)
        with pytest.raises(InputError, match="capture: got host arrays over nccl, expected device arrays over nccl"):
            comm.capture("all_reduce", host, host)
        x = HostArray(np.zeros(4, np.float32))
        with pytest.raises(InputError, match=r"collective: got 'allreduce' .*, expected one of all_reduce"):
            comm.capture("allreduce", x, x)
        with pytest.raises(InputError, match="capture: got PremulSum"):
            comm.capture("all_reduce", x, x, op=PremulSum(2))
        with pytest.raises(InputError, match="capture: got the library's own algorithm"):
            comm.capture("all_reduce", x, x, algorithm="native")
        x = HostArray(np.zeros(4 + comm.rank, np.float32))
        with pytest.raises(InputError, match=r"capture: rank . got .*, rank . got .*, expected the same"):
            comm.capture("all_reduce", x, x, algorithm="ring")

    def beside(comm):
        x = HostArray(np.zeros(4, np.float32))
        with pytest.raises(InputError, match="capture: got device arrays over local"):
            comm.capture("all_reduce", x, x)

    assert over_nccl(2, over) == [None] * 2
    assert staged(2, beside) == [None] * 2
