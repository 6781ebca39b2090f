"""A flow over rails that die at any moment: every message comes once, whole, in order."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.errors import TransportError
from lanterne.transport.rails.failover import Incoming, Outgoing


class Rails:
    """Two ends of a flow and the rails between them; a step is one of the things that may happen next.

    A rail is two queues of frames, down and up. When it is killed, an end still reads what had come to it, or loses it.
    """

    def __init__(self, count, rails):
        self.outgoing, self.incoming, self.delivered, self.finished = Outgoing(), Incoming(), [], 0
        self.count, self.submitted, self.posted = count, 0, 0
        self.rails = [(deque(), deque()) for _ in range(rails)]
        self.sender_uses, self.receiver_uses, self.read_order = 0, 0, range(rails)

    def step(self, choice):
        steps = (self.submit, self.post, self.send, self.receive, self.hear)
        first = choice // len(steps)
        self.read_order = [*range(first, len(self.rails)), *range(first)]
        steps[choice % len(steps)]()

    def submit(self):
        if self.submitted < self.count:
            self.outgoing.submit(self.submitted)
            self.submitted += 1

    def post(self):
        if self.posted < self.count:
            self.incoming.post()
            self.posted += 1
            self.tell()

    def tell(self):
        self.rails[self.receiver_uses][1].append((self.incoming.received, self.incoming.posted))

    def send(self):
        if (item := self.outgoing.take()) is not None:
            self.rails[self.sender_uses][0].append(item)

    def receive(self):
        """The receiver reads a frame of some rail, dead to the sender or not, that has one."""
        for rail in self.read_order:
            if down := self.rails[rail][0]:
                number, message = down.popleft()
                if not self.incoming.has(number):
                    assert number < self.incoming.posted, rail
                    self.incoming.complete(number)
                    self.delivered.append(message)
                self.tell()
                return

    def hear(self):
        for _, up in self.rails:
            if up:
                received, granted = up.popleft()
                self.finished += len(self.outgoing.receipt(received))
                self.outgoing.grant(granted)
                return

    def kill(self, lost_down, lost_up):
        """The rail in use dies: the last frames each way are lost."""
        if self.sender_uses + 1 == len(self.rails):
            return
        down, up = self.rails[self.sender_uses]
        for queue, lost in ((down, lost_down), (up, lost_up)):
            for _ in range(min(lost, len(queue))):
                queue.pop()
        self.sender_uses += 1
        self.receiver_uses = self.sender_uses
        self.outgoing.rewind()
        self.tell()


STEPS = st.lists(st.one_of(st.integers(0, 19), st.tuples(st.integers(0, 5), st.integers(0, 5))), max_size=200)


@settings(max_examples=300, deadline=None)
@given(count=st.integers(0, 12), ready=st.booleans(), steps=STEPS)
def test_every_message_comes_once_whatever_dies(count, ready, steps):
    rails = Rails(count, 4)
    for _ in range(count * ready):
        rails.submit()
        rails.post()
        rails.hear()
        rails.send()
    for step in steps:
        rails.kill(*step) if isinstance(step, tuple) else rails.step(step)
    # Nothing dies any more: all that is left comes through.
    for _ in range(count + 1):
        rails.submit()
        rails.post()
    for _ in range(4 * (count + 1)):
        for _ in range(4 * (count + len(steps)) + 8):
            rails.receive()
            rails.hear()
        rails.send()
    assert rails.delivered == list(range(count))
    assert rails.finished == count and rails.outgoing.unfinished == 0


def test_nothing_is_sent_without_a_grant():
    outgoing = Outgoing()
    outgoing.submit("a")
    assert outgoing.take() is None
    outgoing.grant(1)
    assert outgoing.take() == (0, "a")
    outgoing.submit("b")
    assert outgoing.take() is None
    outgoing.rewind()
    assert outgoing.take() == (0, "a")
    assert outgoing.receipt(1) == ["a"] and outgoing.receipt(1) == []
    assert outgoing.unfinished == 1


def test_what_was_received_before_the_rail_died_is_not_sent_again():
    outgoing = Outgoing()
    for message in "abc":
        outgoing.submit(message)
    outgoing.grant(3)
    assert [outgoing.take()[1] for _ in range(3)] == list("abc")
    outgoing.rewind()
    assert outgoing.receipt(2) == ["a", "b"]
    assert outgoing.take() == (2, "c")


def test_a_receipt_for_what_was_not_sent_is_an_error():
    with pytest.raises(TransportError, match="got a receipt for 1 messages, expected at most 0"):
        Outgoing().receipt(1)


def test_what_came_out_of_order_counts_once_the_gap_is_filled():
    incoming = Incoming()
    assert [incoming.post() for _ in range(3)] == [0, 1, 2]
    incoming.complete(0)
    incoming.complete(2)
    assert incoming.received == 1 and incoming.has(2) and not incoming.has(1)
    incoming.complete(1)
    assert incoming.received == 3
