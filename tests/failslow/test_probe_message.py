"""Links that carry nothing, seen in passing."""

import time

import pytest

import lanterne
from lanterne.failslow.probe_message import LinkProbes
from lanterne.transport.shaped import Link, ShapedTransport

SLOW_S = 0.05


def look_for(comm, latency_s, iterations=6):
    """What the second of two ranks saw of the link between them."""
    wire = comm.split(0, comm.rank, ShapedTransport(comm.transport, Link(latency_s)))
    probes, found = LinkProbes(wire), []
    for _ in range(iterations):
        began_s = time.monotonic()
        probes.begin((0, 1))
        for _ in range(10):
            time.sleep(0.002)
            probes.look()
        probes.finish()
        found.append((probes.take(), time.monotonic() - began_s))
        comm.barrier()
    wire.close()
    return found


@pytest.mark.parametrize("latency_s", [0.0, SLOW_S])
def test_bounds_hold_the_delay_and_nobody_waits_for_it(latency_s):
    sender, receiver = lanterne.spawn(2, look_for, latency_s)
    assert all(seen is None for seen, _ in sender)
    seen = [bounds for taken, _ in receiver if taken is not None for bounds in [taken[1]]]
    assert {taken[0] for taken, _ in receiver if taken is not None} == {(0, 1)} and len(seen) >= 3
    assert all(low_s <= high_s and high_s >= latency_s for low_s, high_s in seen)
    if latency_s:
        # An iteration is shorter than the delay: what comes later counts later.
        assert receiver[0][0] is None and max(low_s for low_s, _ in seen) > SLOW_S / 2
    else:
        assert min(high_s for _, high_s in seen) < SLOW_S / 2


def test_no_link_no_messages():
    def quiet(comm):
        probes = LinkProbes(comm)
        probes.begin(None)
        probes.finish()
        return probes.take()

    assert lanterne.spawn(2, quiet) == [None, None]
