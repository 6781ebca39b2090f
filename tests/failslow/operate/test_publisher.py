"""Pushing a status: a receiver that speaks no HTTP, or that never ends its answer, ends no pusher and holds no job."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest
from statuses import ledger_of

from lanterne.failslow.operate import publisher
from lanterne.failslow.operate.publisher import Publisher


@pytest.fixture(scope="module")
def status(tmp_path_factory):
    return ledger_of(tmp_path_factory.mktemp("job")).status()


@contextmanager
def receiver(answer):
    """(URL, a semaphore released with each request) of a server that hands connections to `answer`."""
    asked = threading.Semaphore(0)

    def serve():
        while True:
            try:
                one, _ = server.accept()
            except OSError:
                return
            with one:
                one.recv(1 << 16)
                asked.release()
                answer(one)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", asked
        server.shutdown(socket.SHUT_RDWR)
        thread.join(20)


def test_a_receiver_that_speaks_no_http_is_asked_again(status, caplog):
    with receiver(lambda one: one.sendall(b"hello there\r\n\r\n")) as (url, asked):
        pushing = Publisher(otlp=url, period_s=0.05)
        pushing.publish(status)
        assert all([asked.acquire(timeout=20) for _ in range(3)])
        pushing.close()
    assert caplog.text.count("does not take them") == 1


def test_closing_waits_for_no_receiver_that_never_ends(status, monkeypatch):
    monkeypatch.setattr(publisher, "PUSH_LIMIT_S", 0.3)
    closed = threading.Event()

    def drip(one):
        one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n")
        until_s = time.monotonic() + 20
        while time.monotonic() < until_s and not closed.wait(0.1):
            one.sendall(b"x")

    with receiver(drip) as (url, _):
        pushing = Publisher(otlp=url, period_s=100)
        pushing.publish(status)
        pushing.close()
        is_pushing = pushing._pusher.is_alive()
        closed.set()
    assert is_pushing, "close() waited until the receiver had ended"
