"""The nccl transport on stand-ins: device messages, errors, time limits, and an end that does not hang."""

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import conformance
import numpy as np
import pytest
from nccl_ranks import HostArray, HostNccl, Job
from verdicts import verdict

from lanterne.errors import InputError, PeerFailed, TransportError, TransportTimeout, Unavailable
from lanterne.transport.base import Recv, Send
from lanterne.transport.nccl import binding as nccl_library
from lanterne.transport.nccl import over_nccl as nccl
from lanterne.transport.nccl import watched_communicator as ends
from lanterne.transport.nccl.binding import (
    SHARED_GPU_VARIABLE,
    call_with_limit,
    check_devices,
    pose_as_host,
)
from lanterne.transport.nccl.channel import MAX_QUEUED


@pytest.fixture(autouse=True)
def short_ends(monkeypatch):
    monkeypatch.setattr(ends, "ABORT_S", 0.3)
    monkeypatch.setattr(ends, "DESTROY_S", 0.3)


@pytest.fixture(params=["cupy", "nccl4py"])
def binding(request, monkeypatch):
    """The same over each of NCCL's bindings."""
    monkeypatch.setattr(Job, "binding", request.param)


over_both = pytest.mark.usefixtures("binding")


@pytest.mark.parametrize("check", conformance.IN_THREADS, ids=lambda check: check.__name__)
def test_host_memory_passes_the_suite(check):
    assert Job(3).run(lambda transport: verdict(check, transport)) == [None] * 3


def exchange(transport, nbytes, offset=0):
    """Around the ring, in one post: what arrived from the left."""
    n, me = transport.world_size, transport.rank
    out = HostArray(conformance.pattern(nbytes + offset, me))
    into = HostArray(np.full(nbytes + 2 * offset, 255, np.uint8))
    source, target = transport.register(out), transport.register(into)
    ops = (Recv(target, offset, nbytes, (me - 1) % n), Send(source, offset, nbytes, (me + 1) % n))
    transport.post(ops).wait()
    expected = conformance.pattern(nbytes + offset, (me - 1) % n)[offset:]
    np.testing.assert_array_equal(into.values[offset : offset + nbytes], expected)
    assert (into.values[:offset] == 255).all() and (into.values[offset + nbytes :] == 255).all()


@over_both
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("nbytes", [0, 1, 4097, 1_000_003])
def test_around_the_ring(world_size, nbytes):
    assert Job(world_size).run(lambda transport: exchange(transport, nbytes, 13)) == [None] * world_size


def test_ids_as_cupy_13_has_them():
    assert Job(3, nccl=HostNccl(id_type=tuple)).run(lambda transport: exchange(transport, 100)) == [None] * 3


@over_both
def test_everybody_with_everybody_many_times():
    def program(transport):
        peers = [rank for rank in range(transport.world_size) if rank != transport.rank]
        for turn in range(30):
            out = transport.register(HostArray(np.full(5000, transport.rank + turn, np.uint8)))
            into = {peer: HostArray(np.zeros(5000, np.uint8)) for peer in peers}
            ops = [Send(out, 0, 5000, peer) for peer in peers]
            ops += [Recv(transport.register(into[peer]), 0, 5000, peer) for peer in peers]
            transport.post(tuple(ops)).wait()
            for peer in peers:
                assert (into[peer].values == peer + turn).all(), (turn, peer)

    assert Job(4).run(program) == [None] * 4


@over_both
def test_ordered_on_the_current_stream():
    """What the stream makes before is sent, and what it does after sees what came: the CPU waits for nothing."""

    def program(transport):
        runtime, me = transport.runtime, transport.rank
        out, into, seen = HostArray(np.zeros(100, np.uint8)), HostArray(np.zeros(100, np.uint8)), []
        runtime.default.put(lambda: time.sleep(0.1))
        runtime.default.put(lambda: out.values.fill(me + 1))
        ops = (Recv(transport.register(into), 0, 100, 1 - me), Send(transport.register(out), 0, 100, 1 - me))
        request = transport.post(ops)
        runtime.default.put(lambda: seen.append(into.values.copy()))
        assert not request.test()
        assert request.pending_peers() == [1 - me]
        request.wait()
        done = runtime.record(runtime.default)
        assert done.wait(10)
        assert (seen[0] == 2 - me).all()

    assert Job(2).run(program) == [None] * 2


@over_both
def test_wrong_sizes_are_an_error():
    def program(transport):
        me = transport.rank
        region = transport.register(HostArray(np.zeros(64, np.uint8)))
        ops = (Recv(region, 0, 8, 1 - me), Send(region, 32, 8 + 4 * me, 1 - me))
        transport.post(ops).wait()
        time.sleep(0.05)
        transport.channel.check()

    results = Job(2).run(program)
    assert "rank 1 sent 12 bytes to rank 0, which expected 8" in str(results[0]), results


@over_both
@pytest.mark.parametrize("hangs", [set(), {"abort"}])
def test_a_rank_that_never_sends_is_named_in_time(hangs):
    job = Job(3, timeout_s=0.4)
    job.nccl.hangs |= hangs

    def program(transport):
        if transport.rank == 2:
            transport.host.barrier(10.0)
            return None
        region = transport.register(HostArray(np.zeros(8, np.uint8)))
        try:
            transport.post((Recv(region, 0, 8, 2),)).wait()
        except TransportTimeout as error:
            assert error.peers == (2,), error
            with pytest.raises(TransportTimeout):
                transport.post((Recv(region, 0, 8, 2),))
            return "timed out"
        finally:
            transport.host.barrier(10.0)

    assert job.run(program) == ["timed out", "timed out", None]


@over_both
def test_a_death_is_noticed_while_nccl_connects():
    """The first message with a rank holds NCCL's call up until that rank comes: it may be dead."""

    def program(transport):
        if transport.rank == 0:
            transport.check_peers = check
            region = transport.register(HostArray(np.zeros(8, np.uint8)))
            transport.post((Send(region, 0, 8, 1),))

    def check(peers):
        raise PeerFailed(peers[0], "it was killed")

    (error, _) = Job(2).run(program)
    assert isinstance(error, PeerFailed) and error.rank == 1, error


@over_both
def test_connections_are_made_once():
    """A first message is posted from a thread that can be left behind, those after it are not."""
    started = []

    def program(transport):
        make = transport.channel._connect
        transport.channel._connect = lambda *arguments: (started.append(transport.rank), make(*arguments))
        for _ in range(3):
            exchange(transport, 10)

    assert Job(2).run(program) == [None] * 2
    assert sorted(started) == [0, 1]


def test_communicators_are_never_collected():
    """CuPy's destroys itself when it goes, a second time where the first has hung."""
    communicators = []

    def program(transport):
        communicators.append(weakref.ref(transport.channel._communicator))

    assert Job(2).run(program) == [None] * 2
    gc.collect()
    assert len(communicators) == 2 and all(communicator() is not None for communicator in communicators)


@over_both
def test_the_watch_ends_what_nobody_waits_for():
    def program(transport):
        exchange(transport, 10)
        if transport.rank == 0:
            region = transport.register(HostArray(np.zeros(8, np.uint8)))
            transport.post((Recv(region, 0, 8, 1),))
            deadline = time.monotonic() + 20
            while transport.channel.failure is None and time.monotonic() < deadline:
                time.sleep(0.01)
            with pytest.raises(TransportTimeout, match=r"no message from or to rank 1 within 0\.3 s"):
                transport.channel.check()
        transport.host.barrier(20.0)

    assert Job(2, timeout_s=0.3).run(program) == [None] * 2


@pytest.mark.parametrize("is_raised", [False, True])
def test_what_nobody_was_told_of_is_logged(caplog, is_raised):
    def program(transport):
        exchange(transport, 10)
        if transport.rank == 0:
            region = transport.register(HostArray(np.zeros(8, np.uint8)))
            transport.timeout_s = 0.2
            transport.post((Recv(region, 0, 8, 1),))
            deadline = time.monotonic() + 20
            while transport.channel.failure is None and time.monotonic() < deadline:
                time.sleep(0.01)
            if is_raised:
                transport.channel.fail(TransportError("of another channel"))
        transport.host.barrier(20.0)

    assert Job(2).run(program) == [None] * 2
    text = "rank 1 within 0.2 s; under way on this rank's device: messages with rank 1: their outputs are undefined"
    assert (text in caplog.text) is not is_raised


def test_a_channel_that_failed_is_let_go_once_it_is_closed():
    channels = []

    def program(transport):
        transport.channel.fail(TransportError("told to"), raised=False)
        channels.append(weakref.ref(transport.channel))

    assert Job(2).run(program) == [None] * 2
    gc.collect()
    assert [channel() for channel in channels] == [None] * 2


@pytest.mark.timing
@over_both
def test_more_calls_than_a_stream_can_take_are_not_queued():
    """The rank that goes on queueing learns that the other does not come, its stream being no fuller than it may."""

    def program(transport):
        exchange(transport, 10)
        if transport.rank == 0:
            region = transport.register(HostArray(np.zeros(8, np.uint8)))
            transport.timeout_s, posted = 0.3, 0
            with pytest.raises(TransportTimeout, match=r"no message from or to rank 1 within 0\.3 s"):
                for posted in range(10 * MAX_QUEUED):  # noqa: B007 (counted until it raises)
                    transport.post((Recv(region, 0, 8, 1),))
            # A group and the call that it is count one each.
            assert MAX_QUEUED // 2 <= posted <= MAX_QUEUED // 2 + 1
        transport.host.barrier(20.0)

    assert Job(2).run(program) == [None] * 2


@over_both
def test_calls_that_are_done_make_room():
    def program(transport):
        for _ in range(MAX_QUEUED):
            exchange(transport, 10)

    assert Job(2).run(program) == [None] * 2


def test_a_hanging_stream_is_its_own_ranks_fault():
    def program(transport):
        runtime = transport.runtime
        runtime.default.put(lambda: runtime.closing.wait(20))
        region = transport.register(HostArray(np.zeros(8, np.uint8)))
        transport.post((Recv(region, 0, 4, 0), Send(region, 4, 4, 0))).wait(0.2)

    (error,) = Job(1).run(program)
    assert isinstance(error, TransportTimeout)
    assert "its own stream has not reached messages with rank 0 within 0.2 s" in str(error)


@over_both
@pytest.mark.parametrize("hangs", ["destroy", "abort"])
def test_an_end_that_hangs_is_left_behind(hangs):
    job = Job(2)
    job.nccl.hangs.add(hangs)
    assert job.run(lambda transport: exchange(transport, 10)) == [None] * 2
    assert job.nccl.log.count("destroy") == 2


class Holder:
    """Holds graphs, as far as a channel knows."""

    def __init__(self, drop_graphs):
        self.drop_graphs = drop_graphs


def test_graphs_go_before_their_communicator():
    order = []
    job = Job(1)
    holder = Holder(lambda: order.append("graphs"))

    def program(transport):
        transport.channel.keep_graphs(holder)
        transport.close()
        order.extend(job.nccl.log)

    assert job.run(program) == [None]
    assert order == ["graphs", "init", "destroy"]


def test_an_abort_waits_for_graphs_and_they_go_while_it_does():
    """NCCL's abort returns once no graph holds its communicator: who waits for it before dropping them waits long."""
    job, gone = Job(1), threading.Event()
    holder = Holder(gone.set)

    def program(transport):
        abort = transport.channel._communicator.abort
        order = []
        transport.channel._communicator.abort = lambda: (gone.wait(20), order.append("aborted"), abort())
        transport.channel.keep_graphs(holder)
        error = transport.channel.fail(TransportError("told to"))
        assert gone.is_set() and order == ["aborted"], (gone, order)
        return str(error)

    assert job.run(program) == ["told to"]


def test_graphs_that_cannot_be_dropped_are_left_behind():
    holder = Holder(threading.Event().wait)

    def program(transport):
        transport.channel.keep_graphs(holder)
        transport.close()

    assert Job(1).run(program) == [None]


@over_both
def test_a_fault_on_the_device_ends_the_channel():
    """Work that has failed is never done: it is noticed at once, by whoever waits and by the watch."""

    def program(transport):
        region = transport.register(HostArray(np.zeros(8, np.uint8)))
        transport.runtime.default.put(lambda: transport.runtime.closing.wait(20))
        request = transport.post((Recv(region, 0, 4, 0), Send(region, 4, 4, 0)))
        transport.runtime.fault = "cudaErrorIllegalAddress: an illegal memory access was encountered"
        with pytest.raises(TransportError, match="device 0: cudaErrorIllegalAddress"):
            request.wait()
        with pytest.raises(TransportError, match="cudaErrorIllegalAddress"):
            transport.channel.check()

    def unwatched(transport):
        region = transport.register(HostArray(np.zeros(8, np.uint8)))
        transport.runtime.default.put(lambda: transport.runtime.closing.wait(20))
        transport.post((Recv(region, 0, 4, 0), Send(region, 4, 4, 0)))
        transport.runtime.fault = "cudaErrorIllegalAddress"
        deadline = time.monotonic() + 20
        while transport.channel.failure is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return str(transport.channel.failure)

    assert Job(1).run(program) == [None]
    assert "cudaErrorIllegalAddress" in Job(1).run(unwatched)[0]


def test_every_thread_that_asks_the_device_makes_it_its_own():
    """CUDA would otherwise set up the first device for it; and it would break the captures of other threads."""
    job = Job(1)

    def program(transport):
        transport.channel.keep_graphs(holder)
        exchange(transport, 10)

    holder = Holder(lambda: None)
    assert job.run(program) == [None]
    threads = {f"lanterne-nccl rank 0 {what}" for what in ("start-up", "end of graphs")}
    assert job.runtimes[0].adopted >= threads | {"lanterne-nccl-watch"}


@pytest.mark.timing
@pytest.mark.parametrize("absent", ["never came", "died"])
def test_who_does_not_come_to_a_start_up_is_named_on_all(absent):
    """All meet at rank 0, which is not to blame; the others hear from it who is."""
    job = Job(3, timeout_s=0.4)
    transports = [job.world.transport(rank, 0.4) for rank in range(3)]
    if absent == "died":
        transports[2].fail("killed")

    def come(rank):
        try:
            nccl.meet(transports[rank], (0, 1, 2), rank, 7, b"seat", 0.4)
        except TransportError as error:
            return error

    with ThreadPoolExecutor() as pool:
        errors = list(pool.map(come, range(2)))
    for error in errors:
        if absent == "died":
            assert isinstance(error, PeerFailed) and error.rank == 2, errors
        else:
            assert isinstance(error, TransportTimeout) and error.peers == (2,), errors


@over_both
def test_start_up_that_hangs_is_a_timeout():
    job = Job(2, timeout_s=0.3)
    job.nccl.hangs.add("init")
    for error in job.run(lambda transport: None):
        assert isinstance(error, TransportTimeout), error
        # Of nccl4py either the wait for NCCL ends first, or that for the thread that waits.
        said = "start-up: did not return within 0.3 s", "NCCL: still in progress after 0.3 s"
        assert any(text in str(error) for text in said), error


def test_versions_must_agree():
    job = Job(2)
    job.libraries[1] = HostNccl(version=22005)
    for error in job.run(lambda transport: None):
        assert isinstance(error, Unavailable), error
        assert str(error) == "nccl: got versions 2.20.5, 2.32.3, expected one on all", error


def test_two_ranks_on_one_device(monkeypatch):
    monkeypatch.delenv(SHARED_GPU_VARIABLE, raising=False)
    for error in Job(3, devices=[0, 1, 1]).run(lambda transport: None):
        assert isinstance(error, Unavailable), error
        assert "ranks 1 and 2 share device 0000:01:00.0" in str(error) and SHARED_GPU_VARIABLE in str(error), error
    monkeypatch.setenv(SHARED_GPU_VARIABLE, "1")
    assert Job(3, devices=[0, 1, 1]).run(lambda transport: exchange(transport, 100)) == [None] * 3
    with pytest.raises(Unavailable, match=r"from version 2.30 on, and this is 2.18.5; .* NCCL_HOSTID of its own"):
        check_devices([("host", "0"), ("host", "0")], 21805)
    check_devices([("host", "0"), ("other", "0")], 21805)


@pytest.mark.parametrize(
    ("version", "wanted", "hosts", "num_devices", "expected"),
    [
        (22809, "1", ("a", "a"), 1, {"NCCL_HOSTID": "a-1", "NCCL_SOCKET_IFNAME": "lo"}),
        (22809, "1", ("a", "a", "b"), 1, {"NCCL_HOSTID": "a-1"}),
        (22809, "1", ("a", "a"), 2, {}),
        (22809, "0", ("a", "a"), 1, {}),
        (23007, "1", ("a", "a"), 1, {}),
    ],
)
def test_older_versions_take_ranks_of_one_device_for_hosts(monkeypatch, version, wanted, hosts, num_devices, expected):
    environment = {SHARED_GPU_VARIABLE: wanted}
    monkeypatch.setattr(nccl_library.os, "environ", environment)
    pose_as_host(version, SimpleNamespace(host="a", hosts=hosts, rank=1), num_devices)
    del environment[SHARED_GPU_VARIABLE]
    assert environment == expected


def test_bad_operations():
    def program(transport):
        device, host = transport.register(HostArray(np.zeros(8, np.uint8))), transport.register(np.zeros(8, np.uint8))
        for ops, message in (
            ((Send(device, 4, 5, 0),), "bytes 4 to 9 of a region of 8"),
            ((Send(device, 0, 8, 1),), "got peer 1, expected 0 to 0"),
            ((Send(device, 0, 8, 0), Recv(host, 0, 8, 0)), "host and device memory in one post"),
        ):
            with pytest.raises(InputError, match=message):
                transport.post(ops)
        transport.close()
        with pytest.raises(TransportError, match="closed"):
            transport.post((Send(device, 0, 8, 0),))

    assert Job(1).run(program) == [None]


def test_errors_of_calls_with_a_limit():
    def wrong():
        raise KeyError(6)

    with pytest.raises(TransportError, match="thing: NCCL_ERROR_REMOTE_ERROR"):
        call_with_limit(wrong, "thing", 5)
    assert call_with_limit(lambda: 7, "thing", 5) == 7
