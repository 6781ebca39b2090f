"""Who leaves in good order after its last message: the message arrives, whatever the receiver looks at meanwhile."""

import time

import numpy as np
import pytest

from lanterne.errors import PeerFailed
from lanterne.transport.base import Recv, Send
from lanterne.transport.local import LocalWorld
from lanterne.transport.rank_group import LEFT_GRACE_S
from lanterne.transport.shaped import Link, ShapedTransport


def test_a_message_held_back_outlives_its_sender():
    world = LocalWorld(2)
    link = Link(latency_s=LEFT_GRACE_S + 0.2)
    one, other = (ShapedTransport(world.transport(rank), link) for rank in range(2))
    into = np.zeros(8)
    receive = one.post((Recv(one.register(into), 0, 64, 1),))
    other.post((Send(other.register(np.ones(8)), 0, 64, 0),))
    other.close()
    time.sleep(LEFT_GRACE_S)
    assert not receive.test()
    one.check_peers(receive.pending_peers())
    receive.wait(5.0)
    np.testing.assert_array_equal(into, 1)


def test_a_thread_that_left_is_told_of_after_a_while_and_one_that_failed_at_once():
    world = LocalWorld(3)
    waiting, leaving, failing = (world.transport(rank) for rank in range(3))
    leaving.close()
    failing.fail("a bug")
    waiting.check_peers([1])
    with pytest.raises(PeerFailed, match="rank 2 failed: a bug"):
        waiting.check_peers([1, 2])
    time.sleep(LEFT_GRACE_S)
    with pytest.raises(PeerFailed, match="rank 1 failed: closed its transport"):
        waiting.check_peers([1])
