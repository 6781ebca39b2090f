"""Links that carry nothing, seen in passing."""

import time

import pytest

import lanterne
from lanterne.failslow.validate.probe_message import MESSAGES, LinkProbes
from lanterne.transport.shaped import Link, ShapedTransport

SLOW_S = 0.05


def look_for(comm, latency_s, iterations=16):
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


@pytest.mark.timing
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


def test_a_link_of_little_bandwidth_is_seen_to_be_slow_and_is_not_flooded():
    """Messages of 8 kB take 40 ms, iterations 10 ms: no more are sent than have come."""
    nbytes, sent = 8192, []

    def main(comm):
        wire = comm.split(0, comm.rank, ShapedTransport(comm.transport, Link(0.0, nbytes / 0.04)))
        probes, found = LinkProbes(wire, nbytes), []
        start_send = wire.start_send
        wire.start_send = lambda array, *args, **options: (
            sent.append(array.nbytes),
            start_send(array, *args, **options),
        )
        for _ in range(60):
            probes.begin((0, 1))
            for _ in range(5):
                time.sleep(0.002)
                probes.look()
            probes.finish()
            found.append(probes.take())
            comm.barrier()
        return [bounds for taken in found if taken for bounds in [taken[1]]]

    _, seen = lanterne.spawn(2, main)
    assert seen and min(high_s for _, high_s in seen) >= 0.04
    assert MESSAGES <= sent.count(nbytes) < 30 * MESSAGES


def test_no_link_no_messages():
    def quiet(comm):
        probes = LinkProbes(comm)
        probes.begin(None)
        probes.finish()
        return probes.take()

    assert lanterne.spawn(2, quiet) == [None, None]
