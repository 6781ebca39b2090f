"""One rank of a job that test_over_ucx.py starts: `python ucx_rank.py SCENARIO`, with torchrun's variables.

A scenario raises where the transport is wrong; what it prints, the test compares.
"""

import os
import signal
import sys
import time

import numpy as np

from lanterne.errors import InputError, PeerFailed, TransportError, TransportTimeout
from lanterne.transport.base import Recv, Send
from lanterne.transport.job.bootstrap import connect
from lanterne.transport.ucx.over_ucx import UcxTransport

LONG_S = 60.0
# Large enough that a SIGKILL hits the middle of it.
LARGE_NBYTES = 128 << 20


def pattern(nbytes, seed):
    mixed = np.arange(nbytes, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(seed)
    return (mixed >> np.uint32(11)).astype(np.uint8)


def scenario_paced(transport):
    """Below receiver_paced_nbytes a send completes by itself; from there on only once its receive is posted."""
    limit = transport.capabilities.receiver_paced_nbytes
    for nbytes, paced in ((limit - 1, False), (limit, True), (8 * limit, True)):
        array = pattern(nbytes, 1)
        region = transport.register(array)
        transport.barrier()  # the connection is there, whatever it needed
        if transport.rank == 0:
            send = transport.post((Send(region, 0, nbytes, 1),))
            if not paced:
                send.wait()
            transport.barrier()  # the receiver lets UCX work, and has no receive posted
            assert paced is not any(send.test() for _ in range(2000)), nbytes
            transport.barrier()
            send.wait()
        else:
            array[:] = 0
            transport.barrier()
            transport.barrier()
            transport.post((Recv(region, 0, nbytes, 0),)).wait()
            np.testing.assert_array_equal(array, pattern(nbytes, 1), err_msg=f"{nbytes} B")


def scenario_last_words(transport):
    """What a rank sent before it closed and ended arrives, however late the receives are posted."""
    count, nbytes = 200, 4000
    array = pattern(count * nbytes, 3)
    region = transport.register(array)
    transport.barrier()
    if transport.rank == 0:
        for index in range(count):
            transport.post((Send(region, index * nbytes, nbytes, 1),)).wait()
    else:
        array[:] = 0
        time.sleep(0.5)
        for index in range(count):
            transport.post((Recv(region, index * nbytes, nbytes, 0),)).wait()
        np.testing.assert_array_equal(array, pattern(count * nbytes, 3))


def scenario_paced_then_last_words(transport):
    scenario_paced(transport)
    scenario_last_words(transport)


def scenario_never_closes(transport):
    """As a script that just ends."""
    scenario_last_words(transport)
    sys.exit(0)


def scenario_raises(transport):
    """The last rank ends with an exception; the others learn that it died."""
    transport.barrier()
    if transport.rank == transport.world_size - 1:
        raise RuntimeError("a bug in the last rank")
    print(outcome(transport, (Recv(transport.register(np.zeros(8)), 0, 64, transport.world_size - 1),)))


def outcome(transport, ops):
    """What waiting for `ops` ends with: an error's name and the ranks that it names."""
    try:
        transport.post(ops).wait(LONG_S)
    except PeerFailed as error:
        return f"PeerFailed {error.rank}"
    except TransportTimeout as error:
        return f"TransportTimeout {error.peers}"
    return "completed"


def death(transport, receives, sends):
    """The last rank is killed in the middle of large messages; each survivor then prints what it got, twice.

    A survivor waits for one message more each way than the victim answers: a few looks carry all of the first ones
    where the memory is fast.
    """
    victim, nbytes = transport.world_size - 1, LARGE_NBYTES
    region, other = (transport.register(np.zeros(nbytes, np.uint8)) for _ in range(2))
    if transport.rank == victim:
        survivors = range(victim)
        ops = [Send(region, 0, nbytes, peer) for peer in survivors if receives]
        ops += [Recv(other, 0, nbytes, peer) for peer in survivors if sends]
        transport.barrier()
        request = transport.post(tuple(ops))
        for _ in range(5):
            request.test()
        os.kill(os.getpid(), signal.SIGKILL)
    transport.barrier()
    ops = [Recv(region, 0, nbytes, victim)] * 2 * receives + [Send(other, 0, nbytes, victim)] * 2 * sends
    # Another survivor may itself have left by the second time, so that asks for the victim only.
    print(outcome(transport, tuple(ops)), outcome(transport, tuple(ops)))


def scenario_death_receiving(transport):
    death(transport, True, False)


def scenario_death_sending(transport):
    death(transport, False, True)


def scenario_death_both(transport):
    death(transport, True, True)


def scenario_death_before_use(transport):
    """The victim dies before the survivor has a connection to it."""
    if transport.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    region = transport.register(np.zeros(1 << 20, np.uint8))
    print(outcome(transport, (Recv(region, 0, 8, 1),)), outcome(transport, (Send(region, 0, 1 << 20, 1),)))


def scenario_left_before_use(transport):
    """The peer closes and leaves in good order before the survivor has a connection to it."""
    if transport.rank == 1:
        return
    region = transport.register(np.zeros(1 << 20, np.uint8))
    time.sleep(0.5)
    print(outcome(transport, (Recv(region, 0, 8, 1),)), outcome(transport, (Send(region, 0, 1 << 20, 1),)))


def scenario_death_in_barrier(transport):
    """The barrier fails on every rank, not only on those that wait for the dead one."""
    victim = transport.world_size - 1
    transport.barrier()
    if transport.rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        transport.barrier(LONG_S)
    except PeerFailed as error:
        print(f"PeerFailed {error.rank}")
    # Nobody leaves before all have seen the victim's death and not another's leaving.
    time.sleep(1.0)


def scenario_silence(transport):
    """No peer is dead, none comes."""
    if transport.rank == 0:
        for wait in (
            lambda: transport.post((Recv(transport.register(np.zeros(4)), 0, 32, 1),)).wait(0.2),
            lambda: transport.barrier(0.2),
        ):
            try:
                wait()
            except TransportTimeout as error:
                print(f"TransportTimeout {error.peers}")
    else:
        time.sleep(1.0)


class RefusingEnd:
    """An endpoint whose sends UCX refuses to start."""

    alive = True

    def __init__(self, transport):
        self.error = transport._ucxx.UCXError

    def tag_send(self, *_):
        raise self.error("refused")


def scenario_refused(transport):
    """UCX's own errors never come through, and the memory of what had started is kept."""
    region = transport.register(np.zeros(64, np.uint8))
    transport.post((Recv(region, 0, 8, 0, 1), Send(region, 0, 8, 0, 1))).wait()
    receiving, _ = transport._peers[0]
    transport._peers[0] = RefusingEnd(transport), receiving
    ops = (Recv(region, 0, 8, 0), Send(region, 0, 8, 0))
    expect(TransportError, "ucx rank 0: cannot send to rank 0: refused", lambda: transport.post(ops))
    assert [each.op for each in transport._under_way] == [ops[0]]
    transport._peers[0] = receiving, receiving


def scenario_alone(transport):
    """A world of one rank: everything by itself, and what is refused."""
    bytes_in, bytes_out = np.zeros(9, np.uint8), pattern(9, 7)
    source, target = transport.register(bytes_out), transport.register(bytes_in)
    transport.barrier()
    transport.post((Send(source, 0, 9, 0, 5), Recv(target, 0, 9, 0, 5))).wait()
    np.testing.assert_array_equal(bytes_in, bytes_out)
    too_long = (Recv(target, 0, 8, 0), Send(source, 0, 9, 0))
    expect(TransportError, "sent 9 bytes, expected 8", lambda: transport.post(too_long).wait())
    expect(InputError, "make_tag", lambda: transport.post((Send(source, 0, 9, 0, 1 << 48),)))
    # A request that nobody holds keeps its memory until it is complete.
    transport.post((Recv(transport.register(np.zeros(64, np.uint8)), 0, 64, 0, 1),))
    transport.check_peers((0,))
    assert len(transport._under_way) == 2  # with the receive that the longer message did not match
    transport.post((Send(transport.register(np.ones(64, np.uint8)), 0, 64, 0, 1),)).wait()
    transport.take_in()
    transport.post((Recv(target, 0, 9, 0, 2),))
    transport.check_peers((0,))
    assert len(transport._under_way) == 2
    pending = transport.post((Recv(target, 0, 9, 0, 3),))
    transport.close()
    transport.close()
    expect(TransportError, "closed", pending.test)
    expect(TransportError, "closed", transport.barrier)
    expect(TransportError, "closed", lambda: transport.post(()))


def expect(kind, text, action):
    try:
        action()
    except kind as error:
        assert text in str(error), error
        return
    raise AssertionError(f"no {kind.__name__}")


def main(scenario):
    if "LOAD_MPI_FIRST" in os.environ:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI

        assert not MPI.Is_initialized()
    group = connect(LONG_S)
    transport = UcxTransport(group, LONG_S)
    globals()[f"scenario_{scenario}"](transport)
    transport.close()
    group.close()


if __name__ == "__main__":
    main(sys.argv[1])
