"""One connection of tcp, over two sockets: what is put comes out in order, what was changed on the way does not."""

import hmac
import itertools
import select
import socket
import struct
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.errors import Unavailable
from lanterne.transport import duplex
from lanterne.transport.duplex import (
    DATA,
    GRANT,
    OFFER,
    PACED_NBYTES,
    WAKE_NBYTES,
    WHOLE_NBYTES,
    Duplex,
    Garbled,
)
from lanterne.transport.seal import LEAST_RECORD_NBYTES, MOST_RECORD_NBYTES, Seal, record_nbytes
from lanterne.transport.wire import SEAL_NBYTES, FrameSeal, FrameSeals

WHOLE, PACED = WHOLE_NBYTES, PACED_NBYTES
RECORD = LEAST_RECORD_NBYTES
EDGES = (0, 1, WHOLE, WHOLE + 1, PACED, RECORD - 1, RECORD, 2 * RECORD + 7)


class Taker:
    """Keeps the frames that come; messages in memory of their own."""

    def __init__(self):
        self.frames = []

    def on_place(self, tag, number, nbytes):
        self._coming = bytearray(nbytes)
        return memoryview(self._coming)

    def on_frame(self, kind, tag, number, nbytes, message):
        payload = bytes(self._coming if message is None else message) if kind == DATA else b""
        self.frames.append((kind, tag, number, nbytes, payload))


def seal_pair():
    here, there = (Seal(bytes([side]) * 32) for side in (1, 2))
    other_here, other_there = (Seal(bytes([side]) * 32) for side in (1, 2))
    return FrameSeals(here, there), FrameSeals(other_there, other_here)


def recorded(frames, seals):
    """The bytes that a Duplex sends for `frames`: (kind, payload)."""
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        sender = Duplex(writer, Taker(), seals)
        done = []
        for number, (kind, payload) in enumerate(frames):
            if len(payload) > WHOLE_NBYTES:
                sender.put_message(7, number, memoryview(payload), lambda n=number: done.append(n))
            else:
                sender.put(kind, 7, number, len(payload), payload, lambda n=number: done.append(n))
        got = []

        def drain():
            while data := reader.recv(1 << 16):
                got.append(data)

        thread = threading.Thread(target=drain)
        thread.start()
        while not sender.idle:
            sender.flush()
        writer.shutdown(socket.SHUT_WR)
        thread.join(60)
    assert done == list(range(len(frames)))
    return b"".join(got)


def taken(stream, seals, cuts=()):
    """The frames that come out of `stream`, which comes in pieces that end at `cuts`."""
    reader, writer = socket.socketpair()
    taker = Taker()
    with reader, writer:
        reader.setblocking(False)
        receiver = Duplex(reader, taker, seals)
        ends = sorted({0, *cuts, *range(0, len(stream), 1 << 16), len(stream)})
        for start, end in itertools.pairwise(ends):
            writer.sendall(stream[start:end])
            while receiver.read():
                pass
    return taker.frames


@st.composite
def frame_lists(draw):
    kinds = draw(st.lists(st.sampled_from((DATA, DATA, GRANT, OFFER)), min_size=1, max_size=5))
    sizes = [draw(st.sampled_from(EDGES)) if kind == DATA else 0 for kind in kinds]
    return [(kind, np.random.default_rng(size).bytes(size)) for kind, size in zip(kinds, sizes, strict=True)]


@pytest.mark.parametrize("sealed", [False, True])
@settings(max_examples=20, deadline=None)
@given(frames=frame_lists(), data=st.data())
def test_what_is_put_comes_out(sealed, frames, data):
    here, there = seal_pair() if sealed else (None, None)
    stream = recorded(frames, here)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    expected = [(kind, 7, number, len(payload), payload) for number, (kind, payload) in enumerate(frames)]
    assert taken(stream, there, cuts) == expected


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [(1, RECORD), (16 * RECORD, RECORD), (8 << 20, 512 << 10), (16 << 20, MOST_RECORD_NBYTES), (1 << 40, 1 << 20)],
)
def test_records_of_large_messages_are_larger(nbytes, expected):
    assert record_nbytes(nbytes) == expected


def test_a_message_of_large_records_comes_out():
    message = np.random.default_rng(0).bytes(5 * (1 << 20) + 7)
    here, there = seal_pair()
    assert taken(recorded([(DATA, message)], here), there)[0][-1] == message


@pytest.mark.parametrize("sealed_by", [None, Seal, FrameSeal])
@settings(deadline=None, max_examples=20)
@given(steps=st.lists(st.integers(0, 9000), max_size=6), num_after=st.integers(1, 3))
def test_a_message_leaves_as_it_lands(sealed_by, steps, num_after):
    """What has not landed is never sent, what has is where there is no seal, and frames put meanwhile come after it."""
    reader, writer = socket.socketpair()
    with reader, writer:
        for end in (reader, writer):
            end.setblocking(False)
        out, into = (sealed_by and FrameSeals(sealed_by(b"x" * 32), sealed_by(b"x" * 32)) for _ in range(2))
        taker, message, here = Taker(), bytearray(sum(steps) + 1), [0]
        sender, receiver = Duplex(writer, Taker(), out), Duplex(reader, taker, into)
        sender.put_message(7, 0, memoryview(message), landed=lambda: here[0])
        for number in range(1, num_after + 1):
            sender.put(GRANT, 7, number)
        for step in [*steps, 1]:
            message[here[0] : here[0] + step] = b"x" * step
            here[0] += step
            while sender.flush() or receiver.read():
                pass
            if sealed_by is None and here[0]:
                assert taker._coming == message, step
            assert not taker.frames or here[0] == len(message), step
        while not sender.idle or len(taker.frames) <= num_after:
            sender.flush()
            receiver.read()
    after = [(GRANT, 7, number, 0, b"") for number in range(1, num_after + 1)]
    assert taker.frames == [(DATA, 7, 0, len(message), bytes(message)), *after]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), size=st.sampled_from(EDGES[1:]))
def test_what_was_changed_comes_not(data, size):
    frames = [(DATA, bytes(size)), (GRANT, b""), (DATA, b"last")]
    here, there = seal_pair()
    stream = bytearray(recorded(frames, here))
    at = data.draw(st.one_of(st.integers(0, len(stream) - 1), st.sampled_from((0, 8, 24, duplex.HEADER.size))))
    stream[at] ^= 1 << data.draw(st.integers(0, 7))
    before = taken(recorded(frames, seal_pair()[0]), there)
    try:
        got = taken(bytes(stream), seal_pair()[1])
    except Garbled:
        return
    assert got == before[: len(got)] and len(got) < len(before)  # It waits for more, or for what never comes.


@pytest.mark.parametrize("what", ["repeated", "dropped", "swapped", "of another direction", "of another connection"])
def test_what_was_moved_comes_not(what):
    messages = [(DATA, bytes([index]) * size) for index, size in enumerate((9, 9, 5000, 5000))]
    here, there = seal_pair()
    size, large = duplex.HEADER.size + 9 + SEAL_NBYTES, duplex.HEADER.size + 5000 + 2 * SEAL_NBYTES
    stream = recorded(messages, here)
    assert len(stream) == 2 * (size + large)
    parts = stream[:size], stream[size : 2 * size], stream[2 * size : -large], stream[-large:]
    if what == "of another direction":
        there = FrameSeals(there.into, there.out)
    elif what == "of another connection":
        there = FrameSeals(there.out, Seal(bytes(32)))
    else:
        order = {"repeated": (0, 0, 1, 2, 3), "dropped": (0, 2, 3), "swapped": (0, 1, 3, 2)}[what]
        stream = b"".join(parts[index] for index in order)
    with pytest.raises(Garbled):
        taken(stream, there)


@pytest.mark.parametrize("frame", [(0, 0, 0, 0), (duplex.LAST_KIND + 1, 0, 0, 0), (DATA, 0, 0, -1)])
def test_garbage_is_refused(frame):
    with pytest.raises(Garbled):
        taken(duplex.HEADER.pack(*frame), None)


def chacha20(key, nonce):
    """The first 32 bytes of ChaCha20's block 0 (RFC 8439, 2.3 and 2.6): the key of Poly1305 for a nonce."""
    start = struct.unpack("<16I", b"expand 32-byte k" + key + bytes(4) + nonce)
    words = list(start)
    for number in range(80):
        # Four columns, then four diagonals.
        a = number % 4
        b, c, d = (4 * row + (a + row * (number // 4 % 2)) % 4 for row in (1, 2, 3))
        for x, y, z, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            words[x] = words[x] + words[y] & 0xFFFFFFFF
            mixed = words[z] ^ words[x]
            words[z] = (mixed << turn | mixed >> 32 - turn) & 0xFFFFFFFF
    return struct.pack("<8I", *(word + first & 0xFFFFFFFF for word, first in zip(words[:8], start[:8], strict=True)))


def poly1305(key, message):
    """RFC 8439, 2.5."""
    r, s = int.from_bytes(key[:16], "little") & 0x0FFFFFFC0FFFFFFC0FFFFFFC0FFFFFFF, int.from_bytes(key[16:], "little")
    total = 0
    for start in range(0, len(message), 16):
        total = (total + int.from_bytes(message[start : start + 16] + b"\1", "little")) * r % ((1 << 130) - 5)
    return (total + s & (1 << 128) - 1).to_bytes(16, "little")


@pytest.mark.parametrize(("number", "nbytes"), [(1, 1), (1, 16), (2, 31), (3, 4097)])
def test_records_are_digested_as_the_standard_says(number, nbytes):
    """RFC 8439, 2.8: the bytes are additional data; the message that would be encrypted is empty."""
    secret, message = bytes(range(32)), np.random.default_rng(nbytes).bytes(nbytes)
    key, made = hmac.digest(secret, b"records", "sha256"), Seal(secret)
    padded = message + bytes(-nbytes % 16) + struct.pack("<qq", nbytes, 0)
    expected = poly1305(chacha20(key, struct.pack("<qi", number, 0)), padded)
    assert [made.of_record(memoryview(message)) for _ in range(number)][-1] == expected


def test_without_the_package_seals_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(Unavailable, match="pip install cryptography"):
        Seal(bytes(32))


def is_told(end, limit_s=0.0):
    """Whether a poll tells of one end of a connection."""
    return bool(select.select([end], [], [], limit_s)[0])


@pytest.fixture
def tcp_pair():
    """Two ends of a connection of TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        writer = socket.create_connection(listener.getsockname())
        reader = listener.accept()[0]
    writer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader.setblocking(False)
    with reader, writer:
        yield reader, writer


@pytest.mark.parametrize("seals", [None, seal_pair()], ids=["open", "sealed"])
def test_a_poll_tells_of_a_message_once_there_is_enough_of_it(tcp_pair, seals):
    reader, writer = tcp_pair
    wakes_at, nbytes = WAKE_NBYTES, 2 * WAKE_NBYTES
    payload = np.random.default_rng(1).bytes(nbytes)
    sent = recorded([(DATA, payload), (GRANT, b"")], seals and seals[0])
    taker = Taker()
    receiver = Duplex(reader, taker, seals and seals[1])

    def send(until):
        """As many bytes as `until`, of all that is to be sent; the receiver reads what it is told of."""
        nonlocal sent_nbytes
        writer.sendall(sent[sent_nbytes:until])
        sent_nbytes = until
        told = is_told(reader, 0.2)
        if told:
            receiver.read()
        return told

    sent_nbytes = 0
    assert send(1000), "the frame before it comes at once"
    assert not send(wakes_at // 2)
    assert send(1000 + wakes_at)
    assert not send(2000 + wakes_at)
    assert send(len(sent)), "the rest is less"
    while is_told(reader, 0.05):
        receiver.read()
    assert [(kind, payload) for kind, _, _, _, payload in taker.frames] == [(DATA, payload), (GRANT, b"")]


def test_a_poll_tells_of_the_end_of_who_sent_a_part(tcp_pair):
    reader, writer = tcp_pair
    sent = recorded([(DATA, bytes(WAKE_NBYTES))], None)
    receiver = Duplex(reader, Taker(), None)
    writer.sendall(sent[:1000])
    assert is_told(reader, 1.0) and receiver.read()
    writer.sendall(sent[1000:2000])
    assert not is_told(reader, 0.1)
    writer.close()
    assert is_told(reader, 1.0) and receiver.read()
    assert is_told(reader, 1.0)
    with pytest.raises(EOFError):
        receiver.read()
