"""When emulated links let messages through, on a clock that the test drives."""

import itertools
import time

import pytest
from driven_machine import DrivenMachine
from hypothesis import given
from hypothesis import strategies as st

from lanterne.errors import InputError
from lanterne.transport import shaped
from lanterne.transport.base import Recv, Send, make_tag
from lanterne.transport.local import LocalWorld
from lanterne.transport.shaped import Link, ShapedTransport


@pytest.fixture
def machine():
    return DrivenMachine()


# Of three messages that rank 0 sends at once, the first over a slow link, the others over a fast one.
@pytest.mark.parametrize(
    ("in_order", "link", "sent_s", "arrived_s"),
    [
        (False, Link(10.0), (100, 100, 100), (110, 100, 100)),
        (True, Link(10.0), (110, 110, 110), (110, 110, 110)),
        (False, Link(10.0, 2.0), (104, 100, 100), (114, 100, 100)),
        (True, Link(10.0, 2.0), (114, 114, 114), (114, 114, 114)),
    ],
    ids=["latency", "latency in order", "both", "both in order"],
)
def test_when_messages_leave_and_arrive(machine, in_order, link, sent_s, arrived_s):
    world = LocalWorld(3, machine)
    ranks = [ShapedTransport(world.transport(rank), {(0, 1): link}, in_order=in_order) for rank in range(3)]
    peers, received = (1, 2, 2), []
    for peer in peers:
        region = ranks[peer].register(bytearray(8))
        received.append(ranks[peer].post((Recv(region, 0, 8, 0),)))
    region = ranks[0].register(bytearray(8))
    sent = [ranks[0].post((Send(region, 0, 8, peer),)) for peer in peers]
    for request, due_s in [*zip(sent, sent_s, strict=True), *zip(received, arrived_s, strict=True)]:
        machine.at_s = max(due_s - 0.001, 100)
        assert request.test() == (due_s <= machine.at_s), (request, due_s)
        machine.at_s = due_s
        assert request.test(), (request, due_s)


def test_the_next_message_leaves_when_the_one_before_has_arrived(machine):
    world = LocalWorld(2, machine)
    ranks = [ShapedTransport(world.transport(rank), Link(10.0), in_order=True) for rank in range(2)]
    for due_s in (110, 120, 140):
        if due_s == 140:
            machine.at_s = 130  # nothing under way: it leaves at once
        region = ranks[1].register(bytearray(1))
        request = ranks[1].post((Recv(region, 0, 1, 0),))
        ranks[0].post((Send(ranks[0].register(bytearray(1)), 0, 1, 1),))
        before, machine.at_s = machine.at_s, due_s - 0.001
        assert not request.test(), due_s
        machine.at_s = due_s
        assert request.test(), due_s
        machine.at_s = before


@pytest.mark.parametrize("lane", [4096, 2**32 - 1])
def test_lanes_of_its_own_are_refused(lane):
    transport = ShapedTransport(LocalWorld(1).transport(0), Link())
    with pytest.raises(InputError, match=f"got lane {lane}, expected less than 4096"):
        transport.post((Send(transport.register(bytearray(1)), 0, 1, 0, make_tag(3, lane)),))


def job(*messages, separate=False):
    """(when it was sent, when it was received) of messages (source, destination, seconds of a link, posted_s), posted
    in order, by ranks that look each half second. Latency 10 s."""
    machine = DrivenMachine()
    world = LocalWorld(4, machine)
    ranks = [ShapedTransport(world.transport(rank), Link(10.0, 2.0), separate=separate) for rank in range(4)]
    received = []
    sends, done = [], [[None, None] for _ in messages]
    for source, destination, busy_s, _ in messages:
        region = ranks[destination].register(bytearray(2 * busy_s))
        received.append(ranks[destination].post((Recv(region, 0, 2 * busy_s, source),)))
    while not all(None not in times for times in done):
        for source, destination, busy_s, posted_s in messages[len(sends) :]:
            if machine.at_s < 100 + posted_s:
                break
            region = ranks[source].register(bytearray(2 * busy_s))
            sends.append(ranks[source].post((Send(region, 0, 2 * busy_s, destination),)))
        for times, requests in zip(done, zip(sends, received, strict=False), strict=False):
            for side, request in enumerate(requests):
                if times[side] is None and request.test():
                    times[side] = machine.at_s - 100
        machine.at_s += 0.5
        assert machine.at_s < 300
    return [tuple(times) for times in done]


@pytest.mark.parametrize(
    ("messages", "times"),
    [
        # To several peers at equal rates; what is left has the port to itself.
        ([(0, 1, 4, 0), (0, 2, 4, 0)], [(8, 18), (8, 18)]),
        ([(0, 1, 2, 0), (0, 2, 4, 0)], [(4, 14), (6, 16)]),
        ([(0, 1, 4, 0), (0, 2, 4, 2)], [(6, 16), (8, 18)]),
        # To one peer one after the other, whatever goes elsewhere.
        ([(0, 1, 2, 0), (0, 1, 2, 0)], [(2, 12), (4, 14)]),
        ([(0, 1, 2, 0), (0, 1, 2, 0), (0, 2, 4, 0)], [(4, 14), (8, 18), (8, 18)]),
        # Into one port from several peers: nothing comes in faster than that lets it.
        ([(0, 2, 4, 0), (1, 2, 4, 0)], [(4, 14), (4, 18)]),
        # A rank that sends to three feeds each at a third of its rate: nothing meets.
        ([(0, 3, 1, 0), (0, 1, 1, 0), (0, 2, 1, 0), (1, 3, 2, 0)], [(3, 13), (3, 13), (3, 13), (2, 12)]),
    ],
)
def test_messages_share_the_ports_of_both_ranks(messages, times):
    assert job(*messages) == times


def test_links_of_their_own_share_nothing():
    assert job((0, 1, 4, 0), (0, 2, 4, 0), (3, 2, 4, 0), separate=True) == [(4, 14)] * 3


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=12))
def test_a_port_is_never_idle_and_never_faster_than_its_rate(messages):
    """(peer, seconds) all posted at once: the last leaves when the port has carried all, the first no sooner than it
    can."""
    port = shaped.Port()
    leaving = [shaped.Leaving(peer, 0, float(busy_s), None) for peer, busy_s in messages]
    left = [each for message in leaving for each in port.add(message, 0.0)]
    while port.next_s < float("inf"):
        left += port.advance(port.next_s)
    assert len(left) == len(leaving) and left == sorted(left, key=lambda message: message.last_s)
    assert left[-1].last_s == pytest.approx(sum(busy_s for _, busy_s in messages))
    for peer in range(3):
        mine = [message for message in leaving if message.peer == peer]
        assert all(b.first_s == a.last_s for a, b in itertools.pairwise(mine)), peer
    assert all(m.last_s - m.first_s >= busy_s - 1e-9 for m, (_, busy_s) in zip(leaving, messages, strict=True))


def test_messages_under_way_at_once_keep_their_own_times(machine):
    """After others, which are done, so that what those were told with is used again."""
    world = LocalWorld(2, machine)
    ranks = [ShapedTransport(world.transport(rank), Link(10.0)) for rank in range(2)]
    arrived_s = []
    for sent_s in (100, 200):
        received = [ranks[1].post((Recv(ranks[1].register(bytearray(1)), 0, 1, 0),)) for _ in range(3)]
        sent = []
        for after_s in range(3):
            machine.at_s = sent_s + after_s
            sent.append(ranks[0].post((Send(ranks[0].register(bytearray(1)), 0, 1, 1),)))
        assert all(request.test() for request in sent), sent_s
        for request in received:
            while not request.test():
                machine.at_s += 0.5
            arrived_s.append(machine.at_s)
    assert arrived_s == [110, 111, 112, 210, 211, 212]


def test_where_ends_meet_a_message_moves_when_both_have_posted(machine):
    """Two messages of 4 s on the link and 10 s of latency, sent at 100; received from 105, then from 120."""
    world = LocalWorld(2, machine)
    ranks = [ShapedTransport(world.transport(rank), Link(10.0, 2.0), rendezvous=True) for rank in range(2)]
    for _ in range(2):
        ranks[0].post((Send(ranks[0].register(bytearray(8)), 0, 8, 1),))
    for posted_s, due_s in ((105, 119), (120, 134)):
        machine.at_s = posted_s
        request = ranks[1].post((Recv(ranks[1].register(bytearray(8)), 0, 8, 0),))
        machine.at_s = due_s - 0.001
        assert not request.test(), (posted_s, due_s)
        machine.at_s = due_s
        assert request.test(), (posted_s, due_s)


def test_a_poll_shortly_before_the_time_waits_for_it():
    world = LocalWorld(2)
    ranks = [ShapedTransport(world.transport(rank), Link(5e-3)) for rank in range(2)]
    request = ranks[1].post((Recv(ranks[1].register(bytearray(1)), 0, 1, 0),))
    sent_s = time.monotonic()
    ranks[0].post((Send(ranks[0].register(bytearray(1)), 0, 1, 1),))
    while time.monotonic() < sent_s + 5e-3:
        if request.test():
            assert time.monotonic() >= sent_s + 5e-3
    assert request.test()
