"""Routes by peer, changed between iterations, and the times of messages."""

import time

import numpy as np
import pytest

import lanterne
from lanterne.pipeline.planes.observed import ObservedPlane
from lanterne.pipeline.planes.plane_makers import make_plane
from lanterne.transport.shaped import Link

SHAPE, DTYPE = (4,), np.dtype(float)


def exchange(comm, plane, value):
    """Rank 0 sends `value` to rank 1, which returns what it got."""
    if comm.rank == 0:
        buffer = plane.lend(SHAPE, DTYPE, 1)
        buffer[:] = value
        plane.send(buffer, 1)
        plane.finish()
        return None
    receive = plane.receive(SHAPE, DTYPE, 0)
    buffer = receive.wait()
    got = buffer.tolist()
    plane.release(buffer)
    plane.finish()
    return got


def planes(comm):
    return ObservedPlane(comm.rank, make_plane("inline", comm), lambda pair: make_plane("unbounded", comm))


def test_messages_follow_the_route():
    def job(comm):
        got = []
        with planes(comm) as plane:
            got.append(exchange(comm, plane, 1))
            plane.divert([(1, 0)])
            got.append(exchange(comm, plane, 2))
            plane.divert([])
            got.append(exchange(comm, plane, 3))
        return got

    assert lanterne.spawn(2, job)[1] == [[1] * 4, [2] * 4, [3] * 4]


@pytest.mark.timing
def test_the_rate_of_messages_is_that_of_the_quickest_iteration():
    """Messages of 64 bytes, 10 ms apart in one iteration, 40 in the next, and a single one."""

    def job(comm):
        rates = []
        with planes(comm) as plane:
            for gap_s, count in ((0.01, 5), (0.04, 3), (0.0, 1)):
                plane.begin()
                for _ in range(count):
                    if comm.rank == 0:
                        plane.send(plane.lend((8,), np.dtype(float), 1), 1)
                        time.sleep(gap_s)
                    else:
                        plane.release(plane.receive((8,), np.dtype(float), 0).wait())
                plane.finish()
                rates.append(plane.produced_bytes_per_s)
        return rates

    rates, received = lanterne.spawn(2, job)
    assert 64 / 0.02 < rates[0] <= 64 / 0.01 and rates == [rates[0]] * 3 and received == [0.0] * 3


@pytest.mark.parametrize("name", ["inline", "paired", "delegate"])
def test_planes_tell_when_they_looked_in_vain(name):
    """The bounds of an arrival are those of the looks: a rank that slept between two did not wait."""

    def job(comm):
        with make_plane(name, comm) as plane:
            if comm.rank == 0:
                comm.barrier()
                exchange(comm, plane, 1)
                return None
            receive = plane.receive(SHAPE, DTYPE, 0)
            never_s, here = receive.looked_s, receive.test()
            looked_s = receive.looked_s
            comm.barrier()
            time.sleep(0.02)
            plane.release(receive.wait())
            plane.finish()
            return never_s, here, time.monotonic() - looked_s > 0.02, receive.looked_s >= looked_s

    assert lanterne.spawn(2, job)[1] == (-np.inf, False, True, True)


@pytest.mark.parametrize("routed", [False, True])
def test_an_emulated_delay_is_seen_on_either_plane(routed):
    def job(comm):
        with planes(comm) as plane:
            plane.set_link(0, 1, Link(0.03))
            plane.divert([(0, 1)] if routed else [])
            comm.barrier()
            plane.begin()
            exchange(comm, plane, 1)
            return plane.times()

    (given_s, gone_s, none, _), (_, _, after_s, before_s) = lanterne.spawn(2, job)
    assert len(given_s) == len(gone_s) == len(before_s) == 1 and len(none) == 0
    assert given_s[0] <= gone_s[0] < after_s[0] <= before_s[0] and before_s[0] >= given_s[0] + 0.03
