"""The state in Redis: kept, read again, and what is told when it cannot be."""

import logging
import socket
import threading
from contextlib import contextmanager

import pytest

from lanterne.errors import InputError, Unavailable
from lanterne.failslow.mitigate.loop_state import KEY, RedisState


@contextmanager
def server():
    """(port, what was set, a function that ends it) of as much of a Redis server as is needed."""
    listener, kept, peers = socket.create_server(("127.0.0.1", 0)), {}, []

    def serve(peer):
        with peer, peer.makefile("rb") as lines:
            while head := lines.readline():
                words = []
                for _ in range(int(head[1:])):
                    words.append(lines.read(int(lines.readline()[1:])))
                    lines.readline()
                if words[0].upper() == b"SET":
                    kept[words[1].decode()] = words[2]
                peer.sendall(b"+PONG\r\n" if words[0].upper() == b"PING" else b"+OK\r\n")

    def accept():
        while True:
            try:
                peers.append(listener.accept()[0])
            except OSError:
                return
            threading.Thread(target=serve, args=(peers[-1],), daemon=True).start()

    def end():
        # A blocked accept wakes by this, not by close.
        listener.shutdown(socket.SHUT_RDWR)
        for peer in peers:
            peer.shutdown(socket.SHUT_RDWR)
        peers.clear()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        yield listener.getsockname()[1], kept, end


@pytest.mark.parametrize(("path", "key"), [("", KEY), ("/", KEY), ("/job/7", "job/7"), ("/a%20b", "a b")])
def test_kept_under_the_key_of_the_url(path, key):
    pytest.importorskip("redis")
    with server() as (port, kept, _):
        state = RedisState(f"redis://127.0.0.1:{port}{path}")
        for value in (b"one", b"two"):
            state.set(value)
        state.close()
        assert kept == {key: b"two"}


def test_a_server_that_is_gone_is_told_once_and_stops_nothing(caplog):
    pytest.importorskip("redis")
    with server() as (port, kept, end):
        state = RedisState(f"redis://127.0.0.1:{port}")
        end()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                state.set(b"lost")
        assert kept == {} and len(caplog.records) == 1


def test_nobody_there_is_unavailable():
    pytest.importorskip("redis")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
        RedisState(f"redis://127.0.0.1:{port}/key")


def test_without_the_client_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "redis", None)
    with pytest.raises(Unavailable, match="pip install redis"):
        RedisState("redis://127.0.0.1/key")


OTHERS = ["", "redis", "http://host/key", "redis:///key", "redis://host:port/key", "redis://h:99999"]


@pytest.mark.parametrize("url", OTHERS)
def test_other_urls(url):
    with pytest.raises(InputError, match="redis://HOST:PORT/KEY"):
        RedisState(url)
