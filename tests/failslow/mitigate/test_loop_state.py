"""The state in Redis: kept, read again, and what is told when it cannot be."""

import logging
import socket

import pytest
from redis_stand_in import redis_server

from lanterne.errors import InputError, Unavailable
from lanterne.failslow.mitigate.loop_state import KEY, RedisState


@pytest.mark.parametrize(("path", "key"), [("", KEY), ("/", KEY), ("/job/7", "job/7"), ("/a%20b", "a b")])
def test_kept_under_the_key_of_the_url(path, key):
    pytest.importorskip("redis")
    with redis_server() as (port, kept, _):
        state = RedisState(f"redis://127.0.0.1:{port}{path}")
        for value in (b"one", b"two"):
            state.set(value)
        state.close()
        assert kept == {key: b"two"}


def test_a_server_that_is_gone_is_told_once_and_stops_nothing(caplog):
    pytest.importorskip("redis")
    with redis_server() as (port, kept, end):
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
