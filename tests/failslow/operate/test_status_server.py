"""The server of page and metrics: to whom it answers, and with what; where it asks for a token."""

import base64
import hashlib
import http.client
import json
import re
import socket
import socketserver
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress

import pytest
from statuses import ledger_of

from lanterne.errors import InputError
from lanterne.failslow.operate import status_server
from lanterne.failslow.operate.metrics import exposition, job_metrics
from lanterne.failslow.operate.status_server import PATHS, Address, StatusServer, parse_address

LOOPBACK = Address("127.0.0.1", 0, True)
# As far as the server knows it can be reached from elsewhere.
ELSEWHERE = Address("127.0.0.1", 0, False)


@pytest.fixture(scope="module")
def status(tmp_path_factory):
    return ledger_of(tmp_path_factory.mktemp("job")).status()


@pytest.fixture
def serve(status):
    servers = []

    def make(address=LOOPBACK, **options):
        servers.append(StatusServer(lambda: [status], address, **options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def ask(server, path="/", method="GET", body=None, **headers):
    """(code, headers, text)."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def test_what_it_answers_with(serve, status):
    server = serve(history=lambda: [])
    assert server.token is None
    code, headers, text = ask(server, "/metrics")
    assert (code, text) == (200, exposition(job_metrics(status)))
    assert headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert json.loads(ask(server, "/status.json")[2]) == {"schema_version": 1, "jobs": [status]}
    assert json.loads(ask(server, "/history.json")[2]) == {"schema_version": 1, "hosts": []}
    code, headers, page = ask(server)
    assert code == 200 and headers["Content-Type"] == "text/html; charset=utf-8"
    body = ask(server, "/body?x=1")[2]
    assert f"<main>{body}</main>" in page
    code, headers, nothing = ask(server, "/", "HEAD")
    assert (code, nothing, headers["Content-Length"]) == (200, "", str(len(page.encode())))
    assert ask(server, "/../etc/passwd")[0] == ask(server, "/none")[0] == 404
    assert ask(server, "/token", "POST", "x" * 5000)[0] == 404
    assert ask(server, "/", "DELETE")[0] == 501


def test_a_name_that_is_no_text_is_shown_as_far_as_it_can_be(serve):
    one = {"host": "h\udcff", "pattern": "once", "incidents": 1, "named_in": 1, "jobs": 1, "first_s": 0.0}
    code, _, text = ask(serve(history=lambda: [one | {"last_s": 0.0, "gpus": [], "nics": []}]))
    assert code == 200 and "<td>h?</td>" in text


def test_nothing_but_its_own_style_and_script_may_load(serve):
    _, headers, page = ask(serve())
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy, (tag, directive)
    assert not re.search(r'(src|href|url)\s*[=(]\s*["\']?(https?:)?//|style=|onerror=|onclick=', page)


@pytest.mark.parametrize(
    ("host", "code"),
    [
        *(("localhost", 200), ("127.0.0.1:1", 200), ("[::1]:2", 200), ("127.0.0.2", 200)),
        *(("", 403), ("evil.example", 403), ("evil.example:9470", 403)),
    ],
)
def test_a_page_elsewhere_cannot_use_a_browser_to_read_it(serve, host, code):
    assert ask(serve(), "/status.json", Host=host)[0] == code


def test_elsewhere_than_on_loopback_it_asks_for_the_token(serve):
    server = serve(ELSEWHERE, token="a token; with =")
    for path in PATHS:
        code, headers, text = ask(server, path)
        assert code == 401 and "train.py" not in text and headers["WWW-Authenticate"] == "Bearer", path
        assert ask(server, path, Authorization="Bearer another")[0] == 401, path
        assert ask(server, path, Authorization="Bearer a token; with =")[0] == 200, path
    assert ask(server, "/", Cookie="lanterne=a")[0] == ask(server, "/", Cookie='"; ==')[0] == 401
    assert ask(server, "/token", "POST", "token=another")[0] == 401
    code, headers, _ = ask(server, "/token", "POST", "token=a+token%3B+with+%3D")
    assert (code, headers["Location"]) == (303, "/")
    cookie, *how = headers["Set-Cookie"].split("; ")
    assert set(how) == {"HttpOnly", "SameSite=Strict", "Path=/"} and "token" not in cookie
    assert ask(server, "/body", Cookie=cookie)[0] == 200


def test_the_token_is_new_or_the_environments(serve, monkeypatch):
    assert len(serve(ELSEWHERE).token) >= 32 and serve(ELSEWHERE).token != serve(ELSEWHERE).token
    monkeypatch.setenv(status_server.TOKEN_VARIABLE, "mine")
    assert serve(ELSEWHERE).token == "mine"


def test_those_who_say_nothing_hold_nobody_up(serve, monkeypatch):
    monkeypatch.setattr(status_server._Handler, "timeout", 0.3)
    server = serve()
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(status_server.MAX_CONNECTIONS + 8)]
    for one in silent[:4]:
        one.sendall(b"GET / HT")
    for one in silent:
        one.settimeout(20)
        assert one.recv(100) == b"", one  # sent away
        one.close()
    assert ask(server, "/metrics")[0] == 200


def test_those_who_say_a_byte_now_and_then_hold_nobody_up(serve, monkeypatch):
    monkeypatch.setattr(status_server._Handler, "timeout", 0.5)
    server, ended = serve(), threading.Event()
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(status_server.MAX_CONNECTIONS)]

    def drip():
        said, there = 0, list(slow)
        while not ended.wait(0.1):
            for one in list(there):
                try:
                    one.sendall(b"GET / HTTP/1.1\r\nX: "[said : said + 1] or b"x")
                except OSError:
                    there.remove(one)
            said += 1

    dripping = threading.Thread(target=drip)
    dripping.start()
    code, until_s = 0, time.monotonic() + 20
    while code != 200 and time.monotonic() < until_s:
        time.sleep(0.1)
        # Who has no seat is sent away.
        with suppress(OSError, http.client.HTTPException):
            code, _, _ = ask(server, "/metrics")
    ended.set()
    dripping.join()
    for one in slow:
        one.close()
    assert code == 200


def test_a_request_in_pieces_and_two_at_once_are_answered(serve):
    with socket.create_connection(("127.0.0.1", serve().port), timeout=20) as one:
        for piece in (b"GET /metr", b"ics HTTP/1.1\r\n", b"\r\nGET /none HTTP/1.1\r\nConnection: close\r\n\r\n"):
            one.sendall(piece)
            time.sleep(0.05)
        answer = b"".join(iter(lambda: one.recv(1 << 16), b""))
    assert [answer.count(code) for code in (b"HTTP/1.1 200", b"HTTP/1.1 404")] == [1, 1]


def test_a_thread_that_cannot_be_started_costs_no_seat(serve, monkeypatch):
    server = serve()
    server._seats = threading.BoundedSemaphore(1)

    def fail(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(server, "/metrics")
    assert ask(server, "/metrics")[0] == 200


def test_where_nobody_can_be_accepted_it_sleeps_between_tries(serve, monkeypatch):
    server, tries = serve(), []

    def fail(of):
        tries.append(of)
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(socketserver.TCPServer, "get_request", fail)
        with socket.create_connection(("127.0.0.1", server.port)):
            time.sleep(0.5)
            assert 1 <= len(tries) < 20
    assert ask(server, "/metrics")[0] == 200


@pytest.mark.parametrize(
    "junk", [b"\0\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET " + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n"]
)
def test_junk_is_refused(serve, junk):
    server = serve()
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as one:
        one.sendall(junk)
        assert not one.recv(100).startswith(b"HTTP/1.1 200")
    assert ask(server, "/metrics")[0] == 200


def test_addresses():
    assert parse_address("9470", "--listen") == Address("127.0.0.1", 9470, True)
    assert parse_address("[::1]:1", "--listen") == Address("::1", 1, True)
    assert parse_address("0.0.0.0:1", "--listen") == Address("0.0.0.0", 1, False)


@pytest.mark.parametrize(
    "text", ["", "x", "1:", ":1", "127.0.0.1:70000", "-1", "no such host:1", "a..b:80", "x" * 70 + ":80"]
)
def test_bad_addresses(text):
    with pytest.raises(InputError, match="--listen: got"):
        parse_address(text, "--listen")


def test_a_port_that_is_taken(serve):
    server = serve()
    with pytest.raises(InputError, match=rf"127.0.0.1:{server.port}: Address already in use"):
        StatusServer(lambda: [], Address("127.0.0.1", server.port, True))


def test_without_a_job(serve):
    server = StatusServer(lambda: [], LOOPBACK)
    try:
        assert "No job is watched now" in ask(server)[2] and ask(server, "/metrics")[2] == "\n"
    finally:
        server.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(server.url, timeout=5)
