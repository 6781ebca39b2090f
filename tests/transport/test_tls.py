"""Encrypted connections: nobody between reads, changes or speaks; what comes is taken whole, however it is polled."""

import select
import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from lanterne.errors import TransportError
from lanterne.transport import tls
from lanterne.transport.duplex import Duplex
from lanterne.transport.tls import CIPHER, encrypt

SECRET = b"s" * 32
WORDS = b"what nobody else may read " * 4
LIMIT_S = 60.0


class Taker:
    def __init__(self):
        self.messages = []

    def on_place(self, tag, number, nbytes):
        self._coming = bytearray(nbytes)
        return memoryview(self._coming)

    def on_frame(self, kind, tag, number, nbytes, message):
        self.messages.append(bytes(self._coming if message is None else message))


def ends(client, server, secrets=(SECRET, SECRET)):
    """What `encrypt` makes of two sockets, or the TransportError."""

    def make(sock, secret, is_client):
        try:
            return encrypt(sock, secret, is_client=is_client, limit_s=LIMIT_S)
        except TransportError as error:
            return error

    with ThreadPoolExecutor() as pool:
        return list(pool.map(make, (client, server), secrets, (True, False)))


def handed_on(sizes, client, server):
    """Messages of `sizes`, one way; the end that reads goes by its poll alone."""
    here, there = ends(client, server)
    sender, taker = Duplex(here, Taker(), None), Taker()
    receiver = Duplex(there, taker, None)
    poll = select.poll()
    poll.register(receiver, select.POLLIN)
    messages = [np.random.default_rng(size).bytes(size) for size in sizes]

    def send():
        for number, message in enumerate(messages):
            sender.put_message(7, number, memoryview(message), lambda: None)
        while not sender.idle:
            sender.flush()
            select.select([], [sender], [], 0.1)

    thread = threading.Thread(target=send)
    thread.start()
    while len(taker.messages) < len(messages):
        assert poll.poll(1e3 * LIMIT_S), "a poll does not tell of what has come"
        receiver.read()
    thread.join(LIMIT_S)
    for duplex in (sender, receiver):
        duplex.close()
    return taker.messages == messages


@pytest.mark.parametrize("sizes", [(5000, 16384, 16385), (300_000, 1, 70_000), ((20 << 20) + 7, 3)], ids=str)
def test_what_is_sent_comes(sizes):
    assert handed_on([max(size, 1025) for size in sizes], *socket.socketpair())


def test_it_is_the_cipher_that_was_asked_for():
    here, there = ends(*socket.socketpair())
    assert {each._inner.cipher()[:2] for each in (here, there)} == {(CIPHER, "TLSv1.2")}
    here.close()
    there.close()


def test_who_does_not_know_the_secret_is_refused_on_both_ends():
    errors = ends(*socket.socketpair(), secrets=(SECRET, b"another" * 4))
    assert [isinstance(error, TransportError) for error in errors] == [True, True]
    assert any("does not know the job's secret" in str(error) for error in errors)


def test_who_stands_between_and_hands_the_proofs_on_is_found():
    (client, near), (far, server) = socket.socketpair(), socket.socketpair()

    def stand_between():
        """Two handshakes as tls.py makes them, one with each end."""
        with ThreadPoolExecutor() as pool:
            to_client = pool.submit(tls._context(is_client=False).wrap_socket, near, server_side=True)
            to_server = pool.submit(tls._context(is_client=True).wrap_socket, far)
            to_client, to_server = to_client.result(LIMIT_S), to_server.result(LIMIT_S)
        to_server.sendall(to_client.recv(tls.PROOF_NBYTES))
        to_client.sendall(to_server.recv(tls.PROOF_NBYTES))

    thread = threading.Thread(target=stand_between)
    thread.start()
    errors = ends(client, server)
    thread.join(LIMIT_S)
    assert all("somebody stands between" in str(error) for error in errors), errors


def wire(change):
    """(what a reader gets, what was on the wire) of WORDS; each piece goes through `change`."""
    (client, near), (far, server) = socket.socketpair(), socket.socketpair()
    seen = []

    def relay(source, target, is_looked_at):
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if is_looked_at and is_open.is_set():
                    seen.append(data)
                    data = change(data)
                target.sendall(data)

    is_open = threading.Event()
    for source, target, is_looked_at in ((near, far, True), (far, near, False)):
        threading.Thread(target=relay, args=(source, target, is_looked_at), daemon=True).start()
    here, there = ends(client, server)
    is_open.set()
    here.send(memoryview(WORDS))
    there._inner.settimeout(LIMIT_S)
    buffer = bytearray(len(WORDS))
    try:
        got = bytes(buffer[: there._inner.recv_into(buffer)])
    except ssl.SSLError:
        got = None
    return got, b"".join(seen)


def test_what_came_before_a_reset_is_taken():
    class Reset:
        """Two pieces, and then the end of the connection."""

        def __init__(self):
            self.pieces = [b"what came", b" before"]

        def setblocking(self, _flag):
            pass

        def recv_into(self, buffer):
            if not self.pieces:
                raise ConnectionResetError
            piece = self.pieces.pop(0)
            buffer[: len(piece)] = piece
            return len(piece)

    sock, buffer = tls.TlsSocket(Reset()), memoryview(bytearray(100))
    assert bytes(buffer[: sock.recv_into(buffer)]) == b"what came before"
    with pytest.raises(ConnectionResetError):
        sock.recv_into(buffer)


def test_nobody_between_reads_it():
    got, seen = wire(lambda data: data)
    assert got == WORDS and len(seen) >= len(WORDS) and WORDS[:8] not in seen


def test_what_was_changed_is_not_taken():
    got, _ = wire(lambda data: data[:20] + bytes((data[20] ^ 1,)) + data[21:])
    assert got is None
