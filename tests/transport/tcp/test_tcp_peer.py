"""What a rank tells another of a send that waits for its grant."""

import numpy as np
import pytest

from lanterne.transport.base import ClosedIds, Region, Send
from lanterne.transport.duplex import OFFER, PACED_NBYTES
from lanterne.transport.tcp.tcp_peer import TcpOperation, TcpPeer


class Frames(list):
    """What was put on a connection."""

    def put(self, *frame):
        self.append(frame)


@pytest.mark.parametrize(
    ("looks_s", "told"),
    [([0.0, 0.19], 0), ([0.0, 0.2], 1), ([0.0, 0.2, 5.0], 1), ([7.0], 0), ([7.0, 7.1, 7.2], 1)],
)
def test_a_send_is_told_of_once_it_has_waited(looks_s, told):
    peer = TcpPeer(3, ClosedIds())
    peer.duplexes.append(Frames())
    nbytes = PACED_NBYTES
    peer.send(TcpOperation(Send(Region(np.zeros(nbytes, np.uint8)), 0, nbytes, 3), peer))
    assert sum(peer.offer(now_s, 0.2) for now_s in looks_s) == told
    assert peer.duplexes[0] == [(OFFER, 0, 0, nbytes)] * told
