"""What every transport must do, as functions of one rank's transport; run in threads or, as a program, in processes.

A check is called on every rank at once and raises where the transport is wrong. `python conformance.py TRANSPORT FILE
[CHECK ...]` runs checks on this rank of a job and appends its verdicts to FILE.RANK as JSON lines.
"""

import contextlib
import gc
import os
import signal
import sys
import time
import weakref

import numpy as np

from lanterne.errors import InputError, PeerFailed, TransportError, TransportTimeout
from lanterne.transport.base import Recv, Send, make_tag

LONG_S = 120.0


def pattern(nbytes, seed):
    """`nbytes` bytes that differ between seeds and positions."""
    return (
        np.arange(nbytes, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(seed * 40503) >> np.uint32(13)
    ).astype(np.uint8)


def neighbours(transport):
    n = transport.world_size
    return (transport.rank + 1) % n, (transport.rank - 1) % n


def check_barrier(transport):
    for _ in range(20):
        transport.barrier(LONG_S)


def check_ordering(transport):
    """Messages of one lane match in posting order, whatever their sizes."""
    after, before = neighbours(transport)
    sizes = [7, 100_000, 0, 1, 2_000_000, 13, 65_536, 0, 300_000, 8] * 3
    sent = [pattern(size, index + 100 * transport.rank) for index, size in enumerate(sizes)]
    received = [np.zeros(size, np.uint8) for size in sizes]
    requests = [transport.post((Recv(transport.register(array), 0, array.nbytes, before),)) for array in received]
    requests += [transport.post((Send(transport.register(array), 0, array.nbytes, after),)) for array in sent]
    for request in requests:
        request.wait(LONG_S)
    for index, array in enumerate(received):
        np.testing.assert_array_equal(array, pattern(array.nbytes, index + 100 * before), err_msg=f"message {index}")


def check_unexpected_ordering(transport):
    """The same when every message is sent before its receive is posted."""
    after, before = neighbours(transport)
    sizes = [3, 5000, 0, 40_000, 1, 700_000, 2]
    sent = [pattern(size, index + 10 * transport.rank) for index, size in enumerate(sizes)]
    sends = [transport.post((Send(transport.register(array), 0, array.nbytes, after),)) for array in sent]
    transport.barrier(LONG_S)
    time.sleep(0.05)
    for index, size in enumerate(sizes):
        array = np.zeros(size, np.uint8)
        transport.post((Recv(transport.register(array), 0, size, before),)).wait(LONG_S)
        np.testing.assert_array_equal(array, pattern(size, index + 10 * before), err_msg=f"message {index}")
    for send in sends:
        send.wait(LONG_S)


def check_zero_bytes(transport):
    after, before = neighbours(transport)
    empty = transport.register(np.zeros(0, np.float32))
    filled = transport.register(np.zeros(4, np.uint8))
    transport.post((Recv(empty, 0, 0, before), Send(filled, 4, 0, after))).wait(LONG_S)
    transport.post((Send(empty, 0, 0, after), Recv(filled, 2, 0, before))).wait(LONG_S)
    transport.post(()).wait(LONG_S)


def check_one_byte(transport):
    after, before = neighbours(transport)
    out, into = np.full(1, transport.rank + 1, np.uint8), np.zeros(1, np.uint8)
    transport.post((Recv(transport.register(into), 0, 1, before), Send(transport.register(out), 0, 1, after))).wait(
        LONG_S
    )
    assert into[0] == before + 1


def check_unaligned_offsets(transport):
    """Odd offsets and sizes; not one byte beside the message changes."""
    after, before = neighbours(transport)
    for nbytes in (1, 3, 4097, 1_000_003):
        out, into = pattern(nbytes + 14, transport.rank), np.full(nbytes + 22, 255, np.uint8)
        ops = (Recv(transport.register(into), 11, nbytes, before), Send(transport.register(out), 7, nbytes, after))
        transport.post(ops).wait(LONG_S)
        np.testing.assert_array_equal(into[11:-11], pattern(nbytes + 14, before)[7:-7], err_msg=f"{nbytes} B")
        assert (into[:11] == 255).all() and (into[-11:] == 255).all(), f"{nbytes} B"


def check_dtypes(transport):
    """Any contiguous array is bytes, the 16-bit and multi-dimensional ones too."""
    after, before = neighbours(transport)
    for dtype in ("f2", "f4", "f8", "i1", "u2", "i8", "?"):
        out = np.arange(60).reshape(3, 4, 5).astype(dtype)
        into = np.zeros((5, 12), dtype)
        ops = (
            Recv(transport.register(into), 0, into.nbytes, before),
            Send(transport.register(out), 0, out.nbytes, after),
        )
        transport.post(ops).wait(LONG_S)
        np.testing.assert_array_equal(into.ravel(), out.ravel(), err_msg=dtype)


def check_many_in_flight(transport):
    after, before = neighbours(transport)
    count, nbytes = 300, 3000
    out = pattern(count * nbytes, transport.rank)
    into = np.zeros(count * nbytes, np.uint8)
    source, target = transport.register(out), transport.register(into)
    requests = []
    for index in range(count):
        requests.append(
            transport.post((Recv(target, index * nbytes, nbytes, before), Send(source, index * nbytes, nbytes, after)))
        )
    for request in reversed(requests):
        request.wait(LONG_S)
    np.testing.assert_array_equal(into, pattern(count * nbytes, before))


def check_both_directions(transport):
    """Large messages both ways at once, with every other rank: nothing deadlocks."""
    nbytes = 3_000_000
    peers = [rank for rank in range(transport.world_size) if rank != transport.rank]
    out = transport.register(pattern(nbytes, transport.rank))
    into = {peer: np.zeros(nbytes, np.uint8) for peer in peers}
    ops = [Send(out, 0, nbytes, peer) for peer in peers]
    ops += [Recv(transport.register(into[peer]), 0, nbytes, peer) for peer in peers]
    transport.post(tuple(ops)).wait(LONG_S)
    for peer in peers:
        np.testing.assert_array_equal(into[peer], pattern(nbytes, peer), err_msg=f"from rank {peer}")


def check_self_send(transport):
    for nbytes in (0, 9, 500_000):
        out, into = pattern(nbytes, 5), np.zeros(nbytes, np.uint8)
        me = transport.rank
        transport.post(
            (Send(transport.register(out), 0, nbytes, me), Recv(transport.register(into), 0, nbytes, me))
        ).wait(LONG_S)
        np.testing.assert_array_equal(into, out, err_msg=f"{nbytes} B")


def check_lanes_and_communicators(transport):
    """Receives take messages of their own lane and communicator only, in whatever order they are posted."""
    after, before = neighbours(transport)
    tags = [make_tag(communicator, lane) for communicator in (0, 1, 4095) for lane in (0, 1, 77)]
    sends = [
        transport.post((Send(transport.register(np.full(3, index, np.uint8)), 0, 3, after, tag),))
        for index, tag in enumerate(tags)
    ]
    for index, tag in reversed(list(enumerate(tags))):
        into = np.zeros(3, np.uint8)
        transport.post((Recv(transport.register(into), 0, 3, before, tag),)).wait(LONG_S)
        assert (into == index).all(), (index, tag, into)
    for send in sends:
        send.wait(LONG_S)


def check_sources_are_told_apart(transport):
    """A receive from one rank never takes another's message, however early that came."""
    me, n = transport.rank, transport.world_size
    if me == 0:
        for peer in reversed(range(1, n)):
            into = np.zeros(5, np.uint8)
            transport.post((Recv(transport.register(into), 0, 5, peer),)).wait(LONG_S)
            assert (into == peer).all(), (peer, into)
    else:
        time.sleep(0.02 * me)
        transport.post((Send(transport.register(np.full(5, me, np.uint8)), 0, 5, 0),)).wait(LONG_S)


def check_request_states(transport):
    """`test` may be called at any time, also after completion; `wait` too."""
    after, before = neighbours(transport)
    into = np.zeros(4, np.uint8)
    receive = transport.post((Recv(transport.register(into), 0, 4, before),))
    if transport.world_size > 1:
        assert not receive.test() and receive.pending_peers() == [before]
        transport.barrier(LONG_S)
    send = transport.post((Send(transport.register(np.ones(4, np.uint8)), 0, 4, after),))
    receive.wait(LONG_S)
    send.wait(LONG_S)
    for request in (receive, send):
        assert request.test() and request.pending_peers() == [], "receive" if request is receive else "send"
        request.wait(0.0)


def check_dropped_request(transport):
    """A request that nobody holds keeps its memory until the message has come."""
    after, before = neighbours(transport)
    array = np.zeros(5000, np.uint8)
    its_memory = weakref.ref(array)
    transport.post((Recv(transport.register(array), 0, array.nbytes, before, 9),))
    del array
    gc.collect(1)  # it is young; all that pytest holds takes a second
    assert its_memory() is not None
    transport.barrier(LONG_S)
    sent = pattern(5000, transport.rank)
    transport.post((Send(transport.register(sent), 0, sent.nbytes, after, 9),)).wait(LONG_S)
    transport.barrier(LONG_S)


def check_timeout(transport):
    """A wait runs out in time and names the rank; the receive is still posted and completes later."""
    after, before = neighbours(transport)
    into = np.zeros(4, np.uint8)
    receive = transport.post((Recv(transport.register(into), 0, 4, before),))
    started = time.monotonic()
    try:
        receive.wait(0.1)
        raise AssertionError("the wait returned although nothing was sent")
    except TransportTimeout as error:
        assert error.peers == (before,)
        assert f"rank {before}" in str(error)
    assert time.monotonic() - started >= 0.1
    transport.barrier(LONG_S)
    transport.post((Send(transport.register(np.full(4, 6, np.uint8)), 0, 4, after),)).wait(LONG_S)
    receive.wait(LONG_S)
    assert (into == 6).all()


def check_wrong_sizes(transport):
    """A message shorter or longer than its receive is an error at the receiver, however soon it is posted."""
    after, before = neighbours(transport)
    for lane, sent in enumerate((4, 12)):
        tag = make_tag(9, lane)
        send = transport.post((Send(transport.register(np.zeros(sent, np.uint8)), 0, sent, after, tag),))
        into = transport.register(np.zeros(8, np.uint8))
        receive = None
        try:
            receive = transport.post((Recv(into, 0, 8, before, tag),))
            receive.wait(LONG_S)
        except TransportError as error:
            assert f"rank {before}" in str(error) and str(error).count("\n") == 0, error
        else:
            raise AssertionError(f"{sent} bytes filled a receive of 8")
        with contextlib.suppress(TransportError):
            assert receive is None or not receive.test(), f"{sent} B, asked again: it must not say that all is well"
        with contextlib.suppress(TransportError):  # local tells both ends
            send.wait(LONG_S)


def check_bad_operations(transport):
    """Refused before anything moves."""
    region = transport.register(np.zeros(8, np.uint8))
    frozen = np.zeros(8, np.uint8)
    frozen.flags.writeable = False
    wrong = [
        Send(region, 4, 5, 0),
        Send(region, -1, 2, 0),
        Send(region, 0, -2, 0),
        Recv(region, 9, 0, 0),
        Send(region, 0, 8, transport.world_size),
        Send(region, 0, 8, -1),
        Recv(transport.register(frozen), 0, 8, 0),
    ]
    for op in wrong:
        try:
            transport.post((op,))
        except InputError as error:
            assert "expected" in str(error) or "of a region" in str(error), error
            continue
        raise AssertionError(f"{op} was accepted")
    for array in (np.zeros((4, 4))[:, ::2], [1, 2, 3], None):
        try:
            transport.register(array)
        except InputError:
            continue
        raise AssertionError(f"{type(array)} was registered")


def check_large(transport, nbytes=64 << 20):
    """Much at once, from rank 0 to rank 1."""
    if transport.rank == 0:
        array = np.zeros(nbytes // 8, np.uint64)
        array[:: 4096 + 1] = np.arange(0, nbytes // 8, 4096 + 1, dtype=np.uint64)
        array[-1] = nbytes
        transport.post((Send(transport.register(array), 0, nbytes, 1),)).wait(LONG_S)
    elif transport.rank == 1:
        array = np.zeros(nbytes // 8, np.uint64)
        transport.post((Recv(transport.register(array), 0, nbytes, 0),)).wait(LONG_S)
        assert (array[:: 4096 + 1] == np.arange(0, nbytes // 8, 4096 + 1, dtype=np.uint64)).all()
        assert array[-1] == nbytes


def check_huge(transport):
    """1 GiB at once."""
    check_large(transport, 1 << 30)


def check_close(transport):
    """Last: close twice, then every verb refuses."""
    region = transport.register(np.zeros(4, np.uint8))
    transport.barrier(LONG_S)
    transport.close()
    transport.close()
    verbs = {"post": lambda: transport.post((Send(region, 0, 4, 0),)), "barrier": lambda: transport.barrier(1.0)}
    for name, verb in verbs.items():
        try:
            verb()
        except TransportError as error:
            assert "closed" in str(error), (name, error)
            continue
        raise AssertionError(f"a closed transport did its {name}")


ORDERLY = [
    check_barrier,
    check_ordering,
    check_unexpected_ordering,
    check_zero_bytes,
    check_one_byte,
    check_unaligned_offsets,
    check_dtypes,
    check_many_in_flight,
    check_both_directions,
    check_self_send,
    check_lanes_and_communicators,
    check_sources_are_told_apart,
    check_request_states,
    check_dropped_request,
    check_timeout,
    check_bad_operations,
    check_wrong_sizes,
    check_large,
    check_close,
]
# Threads only copy: a message's size is nothing to them.
IN_THREADS = [check for check in ORDERLY if check is not check_large]


def expect_failure(transport, victim):
    """Wait for two messages, of which the second never comes: PeerFailed or TransportTimeout must name `victim`."""
    into = transport.register(np.zeros(256 << 20, np.uint8))
    request = transport.post((Recv(into, 0, into.nbytes, victim), Recv(into, 0, 1, victim)))
    try:
        request.wait(20.0)
    except PeerFailed as error:
        assert error.rank == victim, error
    except TransportTimeout as error:
        assert victim in error.peers, error
    else:
        raise AssertionError("the message of a dead rank arrived")


def failure_peer_exits(transport):
    """The last rank leaves without sending what the others wait for."""
    victim = transport.world_size - 1
    transport.barrier(LONG_S)
    if transport.rank == victim:
        transport.close()
    else:
        expect_failure(transport, victim)


def failure_peer_killed(transport):
    """The last rank is killed in the middle of large messages to all others."""
    victim = transport.world_size - 1
    if transport.rank == victim:
        region = transport.register(np.ones(256 << 20, np.uint8))
        transport.barrier(LONG_S)
        request = transport.post(tuple(Send(region, 0, region.nbytes, peer) for peer in range(victim)))
        request.test()
        time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    transport.barrier(LONG_S)
    expect_failure(transport, victim)


# Jobs of their own, since they end what they are tried on.
FAILURES = [failure_peer_exits, failure_peer_killed]


def main(name, report, *checks):
    from verdicts import write_verdicts

    from lanterne.transport.job.bootstrap import connect
    from lanterne.transport.registry import open_transport

    group = connect(timeout_s=60.0)
    transport = open_transport(name, group, timeout_s=60.0)
    failed = write_verdicts(report, [globals()[check] for check in checks], transport)
    transport.close()
    group.close()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
