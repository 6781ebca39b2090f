"""What the kernel says of a connection: who does not answer is told from who does not read."""

import socket
import struct
import time
from contextlib import suppress

import pytest

from lanterne.transport.tcp_info import ANSWERED_AT, PROBES_AT, RESENT_AT, UNACKED_AT, tcp_info
from lanterne.transport.wire import configure


class Told:
    """A socket of which the kernel says what a test does."""

    def __init__(self, resent=0, probes=0, unacked=0, answered_ms=0, nbytes=104):
        info = bytearray(104)
        info[RESENT_AT], info[PROBES_AT] = resent, probes
        struct.pack_into("<I", info, UNACKED_AT, unacked)
        struct.pack_into("<I", info, ANSWERED_AT, answered_ms)
        self.info = bytes(info[:nbytes])

    def getsockopt(self, _level, _option, nbytes):
        return self.info[:nbytes]


LOST_MS = 4000
LATE_MS = LOST_MS + 1


@pytest.mark.parametrize(
    ("told", "silent"),
    [
        (Told(), False),
        (Told(answered_ms=LATE_MS), False),  # nothing was asked
        (Told(unacked=3, answered_ms=LATE_MS), False),  # what was sent last has just left
        (Told(resent=2, unacked=3, answered_ms=100), False),  # a packet was lost
        (Told(resent=5, unacked=3, answered_ms=LATE_MS), True),
        (Told(probes=1, answered_ms=60_000), False),  # nobody reads there, and its kernel answers
        (Told(probes=5, answered_ms=LATE_MS), True),
        (Told(resent=5, unacked=3, answered_ms=LATE_MS, nbytes=40), False),  # a kernel that tells less
    ],
)
def test_who_is_silent_was_asked_and_does_not_answer(told, silent):
    assert tcp_info(told).is_silent(LOST_MS) == silent


@pytest.mark.slow
def test_an_end_that_reads_nothing_for_long_is_alive():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as writer:
        reader, _ = server.accept()
        with reader:
            configure(writer, may_stand=True)
            until_s = time.monotonic() + 1.5 * LOST_MS / 1e3
            while time.monotonic() < until_s:
                with suppress(BlockingIOError):
                    writer.send(bytes(1 << 20))
                assert not tcp_info(writer).is_silent(LOST_MS)
                time.sleep(0.1)
            assert not tcp_info(writer).has_arrived
