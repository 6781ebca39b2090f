"""An HTTP server on loopback for the status of jobs: a page for people, metrics for Prometheus, JSON for scripts.

Where it listens elsewhere it asks for a token: `Authorization: Bearer TOKEN`, or, in a browser, a form once, which a
cookie remembers. It only reads: nothing can be changed through it.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import ipaddress
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs, urlsplit

from lanterne.errors import InputError
from lanterne.failslow.operate import page
from lanterne.failslow.operate.metrics import CONTENT_TYPE, exposition, job_metrics

TOKEN_VARIABLE = "LANTERNE_PAGE_TOKEN"
COOKIE = "lanterne"
# Connections at a time, and how long one may take to ask; until the next try where none can be accepted.
MAX_CONNECTIONS, READ_S, RETRY_S = 32, 5.0, 0.1
MAX_FORM_NBYTES = 1024
HISTORY_S = 10.0

# Of jobs (job_ledger.py), and what gives HostPatterns as documents.
Statuses: TypeAlias = Sequence[Mapping[str, Any]]
Patterns: TypeAlias = Callable[[], list[dict[str, Any]]]

log: logging.Logger = logging.getLogger(__name__)


class Address(NamedTuple):
    """Where to listen: host, port (0: any that is free); `is_loopback`: nobody else reaches it."""

    host: str
    port: int
    is_loopback: bool


def parse_address(text: str, option: str) -> Address:
    """The Address of "PORT", "HOST:PORT" or "[::1]:PORT"; without a host, loopback.

    Raises:
        InputError: anything else, or a host that has no address here.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else "127.0.0.1"
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16 and host):
        raise InputError(f"{option}: got {text!r}, expected PORT or HOST:PORT, as in 127.0.0.1:9470")
    try:
        (*_, (address, *_)), *_ = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise InputError(f"{option}: got host {host!r}: {error.strerror}") from None
    except UnicodeError:
        raise InputError(f"{option}: got host {host!r}, expected a name of parts of 1 to 63 characters") from None
    return Address(str(address), int(port), ipaddress.ip_address(str(address).partition("%")[0]).is_loopback)


class StatusServer:
    """Serves what `look` says, from threads of its own, until `close()`.

    Args:
        look: gives the status documents to be shown, the latest job first; called for each request.
        address: where to listen.
        history: gives HostPatterns as documents, for the page.
        token: what to ask for, where the address is no loopback one: None for LANTERNE_PAGE_TOKEN's or a new one.

    Attributes: `url`, to be shown; `token`, None on loopback.

    Raises:
        InputError: nothing can listen there.
    """

    def __init__(
        self,
        look: Callable[[], Statuses],
        address: Address,
        *,
        history: Patterns = lambda: [],
        token: str | None = None,
    ) -> None:
        wanted = token or os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
        self.token: str | None = None if address.is_loopback else wanted
        self._history = history
        self._patterns: list[dict[str, Any]] = []
        self._patterns_s = 0.0
        owner = self

        class PageHandler(_Handler):
            """Of this server."""

            status, asked = staticmethod(look), owner

        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET

        class Server(ThreadingHTTPServer):
            """Of this family."""

            address_family = family
            daemon_threads = True
            # More at once would wait a second for their next try.
            request_queue_size = 4 * MAX_CONNECTIONS
            # Two jobs must not share a port unnoticed.
            allow_reuse_port = False

            def server_bind(self) -> None:
                # The base's asks a name server for the host's name.
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                self.socket.bind(self.server_address)
                self.server_address = self.socket.getsockname()
                self.server_name, self.server_port = address.host, self.server_address[1]

            def get_request(self) -> Any:
                try:
                    return super().get_request()
                except OSError:
                    # Such as no file left: who waits to be let in would be tried again at once, and again.
                    owner._ended.wait(RETRY_S)
                    raise

            def process_request(self, request: Any, client_address: Any) -> None:
                if not owner._seats.acquire(blocking=False):
                    self.shutdown_request(request)
                    return
                try:
                    super().process_request(request, client_address)
                except BaseException:
                    # No thread could be started.
                    owner._seats.release()
                    raise

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    owner._seats.release()

            def handle_error(self, request: Any, client_address: Any) -> None:
                log.debug("page: a connection ended early", exc_info=True)

        self._seats = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._ended = threading.Event()
        try:
            self._server = Server((address.host, address.port), PageHandler)
        except OSError as error:
            raise InputError(f"--listen: got {address.host}:{address.port}: {error.strerror}") from None
        self.port: int = self._server.server_address[1]
        shown = f"[{address.host}]" if ":" in address.host else address.host
        self.url: str = f"http://{shown}:{self.port}/"
        self._thread = threading.Thread(target=self._serve, name="lanterne-page", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        # Not serve_forever, which wakes up again and again: the process is that of a rank.
        while not self._ended.is_set():
            self._server.handle_request()

    def patterns(self) -> list[dict[str, Any]]:
        """What `history` gives, asked for at most every HISTORY_S: it may be long."""
        now_s = time.monotonic()
        if now_s >= self._patterns_s:
            self._patterns_s = now_s + HISTORY_S
            self._patterns = self._history()
        return self._patterns

    def close(self) -> None:
        """Stop listening."""
        self._ended.set()
        with suppress(OSError):
            # Wakes up who waits for a request.
            self._server.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.server_close()


class _Asked(io.RawIOBase):
    """What a connection sends, within `limit_s` of `begin()`: a byte now and then holds no seat."""

    def __init__(self, connection: socket.socket, limit_s: float) -> None:
        self._connection = connection
        self._limit_s = limit_s
        self._until_s = 0.0

    def begin(self) -> None:
        """A request begins."""
        self._until_s = time.monotonic() + self._limit_s

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes; TimeoutError when the time is over."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0.0:
            raise TimeoutError("the request takes too long")
        self._connection.settimeout(left_s)
        try:
            return self._connection.recv_into(buffer)
        finally:
            # An answer has its own.
            self._connection.settimeout(self._limit_s)


class _Handler(BaseHTTPRequestHandler):
    """A request."""

    status: Callable[[], Statuses]
    asked: StatusServer
    timeout = READ_S
    server_version, sys_version = "lanterne", ""
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        """Read with one limit for all of a request: the base's is for each of its bytes."""
        super().setup()
        self.rfile.close()
        self._sent = _Asked(self.connection, self.timeout or READ_S)
        self.rfile = io.BufferedReader(self._sent)

    def handle_one_request(self) -> None:
        """The next of this connection."""
        self._sent.begin()
        super().handle_one_request()

    def do_GET(self) -> None:
        """The page, its body alone, metrics, or JSON."""
        path = urlsplit(self.path).path
        if path not in PATHS:
            return self._answer(HTTPStatus.NOT_FOUND, "text/plain", f"expected one of {' '.join(PATHS)}\n")
        if not self._is_for_us():
            return self._answer(HTTPStatus.FORBIDDEN, "text/plain", "expected a name of this host in Host\n")
        if not self._is_allowed():
            kind, text = ("text/html", page.token_form()) if path == "/" else ("text/plain", "expected a token\n")
            return self._answer(HTTPStatus.UNAUTHORIZED, kind, text, {"WWW-Authenticate": "Bearer"})
        kind, make = PATHS[path]
        return self._answer(HTTPStatus.OK, kind, make(self.status(), self.asked.patterns))

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """The form with the token."""
        size = self.headers.get("Content-Length", "")
        if urlsplit(self.path).path != "/token" or not size.isdigit() or int(size) > MAX_FORM_NBYTES:
            self.close_connection = True
            return self._answer(HTTPStatus.NOT_FOUND, "text/plain", "expected /token, and a short form\n")
        form = parse_qs(self.rfile.read(int(size)).decode(errors="replace"))
        token = form.get("token", [""])[0]
        if not self._is_for_us() or not self._is_token(token):
            return self._answer(HTTPStatus.UNAUTHORIZED, "text/html", page.token_form("That is another token."))
        cookie = f"{COOKIE}={_digest(token)}; HttpOnly; SameSite=Strict; Path=/"
        more = {"Location": "/", "Set-Cookie": cookie}
        return self._answer(HTTPStatus.SEE_OTHER, "text/plain", "", more)

    def _is_for_us(self) -> bool:
        """Whether a browser asks by our name: a page elsewhere may have its own name lead to this host."""
        if self.asked.token is not None:
            return True
        host = self.headers.get("Host", "localhost").rpartition(":")
        name = host[0] if host[1] and host[2].isdigit() else "".join(host)
        try:
            return name.lower() == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
        except ValueError:
            return False

    def _is_allowed(self) -> bool:
        if self.asked.token is None:
            return True
        kind, _, told = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(told.strip()):
            return True
        try:
            morsel = SimpleCookie(self.headers.get("Cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return morsel is not None and hmac.compare_digest(morsel.value.encode(), _digest(self.asked.token).encode())

    def _is_token(self, told: str) -> bool:
        expected = self.asked.token
        return expected is None or hmac.compare_digest(told.encode(), expected.encode())

    def _answer(self, code: HTTPStatus, kind: str, text: str, more: Mapping[str, str] | None = None) -> None:
        # What programs and hosts are called may be no text: half of a surrogate pair ends no page.
        data = text.encode(errors="replace")
        self.send_response(code)
        self.send_header("Content-Type", kind if "charset" in kind else f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        for name, value in {**page.HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a scrape a second is no news."""


def _digest(token: str) -> str:
    """What the cookie holds: any token is a cookie's value so."""
    return hashlib.sha256(token.encode()).hexdigest()


def _document(**content: Any) -> str:
    return json.dumps({"schema_version": 1, **content}) + "\n"


# path -> (type, what makes it).
PATHS: dict[str, tuple[str, Callable[[Statuses, Patterns], str]]] = {
    "/": ("text/html", lambda jobs, patterns: page.whole(jobs, patterns())),
    "/body": ("text/html", lambda jobs, patterns: page.body(jobs, patterns())),
    "/metrics": (CONTENT_TYPE, lambda jobs, patterns: exposition(m for job in jobs for m in job_metrics(job))),
    "/status.json": ("application/json", lambda jobs, patterns: _document(jobs=jobs)),
    "/history.json": ("application/json", lambda jobs, patterns: _document(hosts=patterns())),
}
