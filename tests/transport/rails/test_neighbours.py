"""Messages of ranks of one host: each once, in order, where it lies, and not written over before it was read."""

import os
import socket

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.errors import PeerFailed, TransportError
from lanterne.transport.rails.delegate_memory import NUM_NOTES, PAGE, make_memory, map_memory
from lanterne.transport.rails.neighbours import RING_NBYTES, Neighbour, Neighbours


class Ends:
    """Two ranks of one host; `given[rank]` is what came back to a rank that sent it."""

    def __init__(self):
        socks = socket.socketpair()
        rings, arenas = ([make_memory(nbytes) for _ in range(2)] for nbytes in (RING_NBYTES, 8 * PAGE))
        self.given, self.ranks = ([], []), []
        for rank in range(2):
            words = map_memory(rings[rank], RING_NBYTES).cast("q")
            self.ranks.append(Neighbour(1 - rank, socks[rank], words, self.given[rank].append))
        for rank in range(2):
            self.ranks[rank].hear(arenas[1 - rank], rings[1 - rank])
        for fd in (*rings, *arenas):
            os.close(fd)


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=80))
def test_messages_come_in_order_and_memory_goes_back(steps):
    (sender, receiver), given = (ends := Ends()).ranks, ends.given
    sent, posted, got, reading = 0, 0, [], []

    def done(departure_s, place):
        got.append((round(departure_s * 1e9), place))
        reading.append(place)

    def step(choice):
        nonlocal sent, posted
        if choice == 0:
            sender.outbox.put(8, sent * 8, sent)
            sent += 1
        elif choice == 1:
            receiver.receive(8, done)
            posted += 1
        elif choice == 2:
            receiver.progress()
        elif choice == 3:
            sender.progress()
        elif reading:
            receiver.release(reading.pop(-1))
        assert got == [(index, 8 * index) for index in range(len(got))]
        assert len(given[0]) <= len(got) - len(reading)

    for choice in steps:
        step(choice)
    while posted < sent:
        step(1)
    step(2)
    assert len(got) == sent
    while reading:
        step(4)
    step(3)
    assert sorted(given[0]) == [8 * index for index in range(sent)] and not given[1]
    for end in ends.ranks:
        end.close()


def test_a_send_never_waits_for_a_neighbour_that_computes():
    (sender, receiver), got = Ends().ranks, []
    count = 2 * NUM_NOTES + 5
    for index in range(count):
        sender.outbox.put(1, index)
    assert len(sender.outbox.backlog) == count - NUM_NOTES
    for _ in range(count):
        receiver.receive(1, lambda _, place: got.append(place))
    while sender.outbox.backlog:
        receiver.progress()
        sender.progress()
    receiver.progress()
    assert got == list(range(count))
    sender.close()
    receiver.close()


def test_a_message_is_read_where_it_was_written():
    (sender, receiver), got = Ends().ranks, []
    np.frombuffer(receiver.arena, np.uint8)[PAGE : PAGE + 3] = 7, 8, 9
    sender.outbox.put(3, PAGE)
    receiver.receive(3, lambda _, place: got.append(bytes(receiver.arena[place : place + 3])))
    receiver.progress()
    assert got == [bytes((7, 8, 9))]
    sender.close()
    receiver.close()


def test_another_size_is_an_error():
    sender, receiver = Ends().ranks
    receiver.receive(5, None)
    sender.outbox.put(4, 0)
    with pytest.raises(TransportError, match="got a message of 4 bytes from rank 0, expected 5"):
        receiver.progress()


@pytest.mark.parametrize(("leaves", "why"), [(True, "its data plane has left"), (False, "it is gone")])
def test_who_is_gone_is_named_once_something_of_it_is_needed(leaves, why):
    gone, waiting = Ends().ranks
    met, got = Neighbours(), []
    met.add(waiting)
    gone.outbox.put(4, 0)
    gone.close() if leaves else gone.sock.close()
    met.check()
    waiting.receive(4, lambda *message: got.append(message))
    met.check()
    assert got == [(0.0, 0)]
    waiting.receive(4, None)
    with pytest.raises(PeerFailed, match=f"rank 0 failed: {why}"):
        met.check()
    met.close()
    assert not met
