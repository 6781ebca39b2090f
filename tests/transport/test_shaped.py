"""When emulated links let messages through, on a clock that the test drives."""

import time

import pytest

from lanterne.errors import InputError
from lanterne.transport import shaped
from lanterne.transport.base import Recv, Send, make_tag
from lanterne.transport.local import LocalWorld
from lanterne.transport.shaped import Link, ShapedTransport


@pytest.fixture
def now(monkeypatch):
    time = [100.0]
    monkeypatch.setattr(shaped.time, "monotonic", lambda: time[0])
    return time


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
def test_when_messages_leave_and_arrive(now, in_order, link, sent_s, arrived_s):
    world = LocalWorld(3)
    ranks = [ShapedTransport(world.transport(rank), {(0, 1): link}, in_order=in_order) for rank in range(3)]
    peers, received = (1, 2, 2), []
    for peer in peers:
        region = ranks[peer].register(bytearray(8))
        received.append(ranks[peer].post((Recv(region, 0, 8, 0),)))
    region = ranks[0].register(bytearray(8))
    sent = [ranks[0].post((Send(region, 0, 8, peer),)) for peer in peers]
    for request, due_s in [*zip(sent, sent_s, strict=True), *zip(received, arrived_s, strict=True)]:
        now[0] = max(due_s - 0.001, 100)
        assert request.test() == (due_s <= now[0])
        now[0] = due_s
        assert request.test()


def test_the_next_message_leaves_when_the_one_before_has_arrived(now):
    world = LocalWorld(2)
    ranks = [ShapedTransport(world.transport(rank), Link(10.0), in_order=True) for rank in range(2)]
    for due_s in (110, 120, 140):
        if due_s == 140:
            now[0] = 130  # nothing under way: it leaves at once
        region = ranks[1].register(bytearray(1))
        request = ranks[1].post((Recv(region, 0, 1, 0),))
        ranks[0].post((Send(ranks[0].register(bytearray(1)), 0, 1, 1),))
        before, now[0] = now[0], due_s - 0.001
        assert not request.test()
        now[0] = due_s
        assert request.test()
        now[0] = before


@pytest.mark.parametrize("lane", [4096, 2**32 - 1])
def test_lanes_of_its_own_are_refused(lane):
    transport = ShapedTransport(LocalWorld(1).transport(0), Link())
    with pytest.raises(InputError, match=f"got lane {lane}, expected less than 4096"):
        transport.post((Send(transport.register(bytearray(1)), 0, 1, 0, make_tag(3, lane)),))


@pytest.mark.parametrize(("separate", "arrived_s"), [(False, (104, 108)), (True, (104, 104))])
def test_links_of_a_rank_share_its_end_or_not(now, separate, arrived_s):
    world = LocalWorld(3)
    ranks = [ShapedTransport(world.transport(rank), Link(0.0, 2.0), separate=separate) for rank in range(3)]
    received = [ranks[peer].post((Recv(ranks[peer].register(bytearray(8)), 0, 8, 0),)) for peer in (1, 2)]
    for peer in (1, 2):
        ranks[0].post((Send(ranks[0].register(bytearray(8)), 0, 8, peer),))
    for request, due_s in zip(received, arrived_s, strict=True):
        now[0] = due_s - 0.001
        assert not request.test()
        now[0] = due_s
        assert request.test()


def test_what_leaves_later_does_not_hold_up_what_comes_before(now):
    """Rank 0's second message waits for its own link until 104; rank 1's comes at once, though looked at later."""
    world = LocalWorld(3)
    ranks = [ShapedTransport(world.transport(rank), Link(0.0, 2.0)) for rank in range(3)]
    ranks[0].post((Send(ranks[0].register(bytearray(8)), 0, 8, 1),))
    received = []
    for sender in (0, 1):
        received.append(ranks[2].post((Recv(ranks[2].register(bytearray(8)), 0, 8, sender),)))
        ranks[sender].post((Send(ranks[sender].register(bytearray(8)), 0, 8, 2),))
    assert not received[0].test() and not received[1].test()
    now[0] = 104.0
    assert not received[0].test() and received[1].test()
    now[0] = 107.999
    assert not received[0].test()
    now[0] = 108.0
    assert received[0].test()


def test_messages_under_way_at_once_keep_their_own_times(now):
    """After others, which are done, so that what those were told with is used again."""
    ranks = [ShapedTransport(world.transport(rank), Link(10.0)) for world in [LocalWorld(2)] for rank in range(2)]
    arrived_s = []
    for sent_s in (100, 200):
        received = [ranks[1].post((Recv(ranks[1].register(bytearray(1)), 0, 1, 0),)) for _ in range(3)]
        sent = []
        for after_s in range(3):
            now[0] = sent_s + after_s
            sent.append(ranks[0].post((Send(ranks[0].register(bytearray(1)), 0, 1, 1),)))
        assert all(request.test() for request in sent)
        for request in received:
            while not request.test():
                now[0] += 0.5
            arrived_s.append(now[0])
    assert arrived_s == [110, 111, 112, 210, 211, 212]


def test_where_ends_meet_a_message_moves_when_both_have_posted(now):
    """Two messages of 4 s on the link and 10 s of latency, sent at 100; received from 105, then from 120."""
    world = LocalWorld(2)
    ranks = [ShapedTransport(world.transport(rank), Link(10.0, 2.0), rendezvous=True) for rank in range(2)]
    for _ in range(2):
        ranks[0].post((Send(ranks[0].register(bytearray(8)), 0, 8, 1),))
    for posted_s, due_s in ((105, 119), (120, 134)):
        now[0] = posted_s
        request = ranks[1].post((Recv(ranks[1].register(bytearray(8)), 0, 8, 0),))
        now[0] = due_s - 0.001
        assert not request.test()
        now[0] = due_s
        assert request.test()


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
