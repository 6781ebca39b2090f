"""Hands a job's status on to those who ask: a page and Prometheus (an HTTP server), OpenTelemetry (pushed), a file."""

from __future__ import annotations

import http.client
import json
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit, urlunsplit

from lanterne.errors import InputError
from lanterne.failslow.operate.metrics import job_metrics, otlp
from lanterne.failslow.operate.status_file import StatusFile
from lanterne.failslow.operate.status_server import StatusServer, parse_address

PUSH_S, PUSH_LIMIT_S = 10.0, 5.0
METRICS_PATH = "/v1/metrics"
# Between two statuses, and times as long as one takes: of thousands of ranks they are to be a small part of a core too.
STATUS_S, SELDOM = 1.0, 500

Status: TypeAlias = Mapping[str, Any]

log: logging.Logger = logging.getLogger(__name__)


class Pace:
    """When something is to be done again: after `period_s`, or SELDOM times the core time that it took."""

    def __init__(self, period_s: float = STATUS_S) -> None:
        self._period_s = period_s
        self._due_s = 0.0

    @property
    def is_due(self) -> bool:
        """Whether it is to be done now."""
        return time.monotonic() >= self._due_s

    @contextmanager
    def take(self) -> Iterator[None]:
        """Do it in this block."""
        began_s, used_s = time.monotonic(), time.thread_time()
        try:
            yield
        finally:
            self._due_s = began_s + max(self._period_s, SELDOM * (time.thread_time() - used_s))


class Publisher:
    """Hands on what `publish`, or `offer`, is given.

    Args:
        listen: "PORT" or "HOST:PORT" of a StatusServer; None: none.
        otlp: URL of an OTLP/HTTP receiver, whose path is /v1/metrics where none is named; None: none. Headers are those
            of OTEL_EXPORTER_OTLP_HEADERS (name=value,...).
        file: where the status is written as JSON (status_file.py); None: nowhere.
        history: of StatusServer.
        period_s: between two pushes.

    Attributes: `server`, None without `listen`.

    Raises:
        InputError: no such address or URL.
    """

    def __init__(
        self,
        listen: str | None = None,
        otlp: str | None = None,
        file: str | Path | None = None,
        *,
        history: Callable[[], list[dict[str, Any]]] = lambda: [],
        period_s: float = PUSH_S,
    ) -> None:
        self._status: Status | None = None
        # What makes the next one, and when; the lock is held while it does.
        self._make: Callable[[], Status] | None = None
        self._pace = Pace(STATUS_S / 2)
        self._lock = threading.Lock()
        self._file = None if file is None else StatusFile(file)
        self._url = None if otlp is None else receiver_url(otlp)
        self._headers = push_headers(os.environ)
        self._since_ns = time.time_ns()
        self._period_s = period_s
        self._ended = threading.Event()
        self._failed = False
        self.server: StatusServer | None = None
        if listen is not None:
            self.server = StatusServer(self._jobs, parse_address(listen, "--listen"), history=history)
        self._pusher: threading.Thread | None = None
        if self._url is not None:
            self._pusher = threading.Thread(target=self._push_all, name="lanterne-otlp", daemon=True)
            self._pusher.start()

    def publish(self, status: Status) -> None:
        """This is how the job is now."""
        with self._lock:
            self._status, self._make = status, None
        if self._file is not None:
            self._file.write(status)

    def offer(self, make: Callable[[], Status]) -> None:
        """From now on `make` tells how the job is; it is called when somebody asks, in a thread of whoever does."""
        with self._lock:
            self._make = make
        if self._file is not None:
            self._file.begin(make())

    def look(self) -> None:
        """See whether somebody asks for the file; to be called about every STATUS_S."""
        if self._file is not None:
            self._file.look(self.status)

    def status(self) -> Status | None:
        """How the job is now, or was half a second ago; None where nobody has told."""
        with self._lock:
            if self._make is not None and self._pace.is_due:
                try:
                    with self._pace.take():
                        self._status = self._make()
                except Exception:
                    # Such as a log that another program has cut short: what is known up to here stays.
                    log.exception("status: it could not be made")
                    self._make = None
            return self._status

    def _jobs(self) -> list[Status]:
        status = self.status()
        return [status] if status is not None else []

    def close(self) -> None:
        """Push what was published last, and end: within about 2 * PUSH_LIMIT_S, whatever the receiver does."""
        self._ended.set()
        if self._pusher is not None:
            # A push may outlast its limit, which is of each byte that comes; the thread ends with the process then.
            self._pusher.join(2 * PUSH_LIMIT_S)
        if self.server is not None:
            self.server.close()

    def _push_all(self) -> None:
        while not self._ended.wait(self._period_s):
            self._push()
        self._push()

    def _push(self) -> None:
        status = self.status() if self._url is not None else None
        if status is None or self._url is None:
            return
        resource = {"service.name": "lanterne", "service.instance.id": str(status["run"]), "host.name": status["host"]}
        document = otlp(job_metrics(status), resource, time.time_ns(), self._since_ns)
        data = json.dumps(document).encode()
        headers = {"Content-Type": "application/json", **self._headers}
        request = urllib.request.Request(self._url, data, headers, method="POST")
        try:
            # No proxy: who wants one names it as the receiver.
            with _OPENER.open(request, timeout=PUSH_LIMIT_S) as answer:
                answer.read(1 << 16)
            self._failed = False
        except (OSError, ValueError, http.client.HTTPException) as error:
            # The last: what answers there does not speak HTTP.
            if not self._failed:
                log.warning("metrics: %s does not take them: %s", self._url, error)
            self._failed = True


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Headers with a secret go nowhere else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """None: the redirection is an error."""


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


def receiver_url(text: str) -> str:
    """The URL of a receiver of metrics: `text`, with OTLP's path where it has none.

    Raises:
        InputError: no URL of http or https.
    """
    try:
        parts = urlsplit(text)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return urlunsplit(parts if parts.path.strip("/") else parts._replace(path=METRICS_PATH))
    except ValueError:
        pass
    raise InputError(f"--otlp: got {text!r}, expected http://HOST:4318")


def push_headers(environment: Mapping[str, str]) -> dict[str, str]:
    """The headers that OTEL_EXPORTER_OTLP_HEADERS names, as OpenTelemetry's specification has them."""
    told = environment.get("OTEL_EXPORTER_OTLP_HEADERS", "").split(",")
    pairs = (pair.partition("=") for pair in told if pair.strip())
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs}
