"""Hands a job's status on: to a page and Prometheus (an HTTP server), to OpenTelemetry (pushed), to a file."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from lanterne.errors import InputError
from lanterne.failslow.operate.metrics import job_metrics, otlp
from lanterne.failslow.operate.status_server import StatusServer, parse_address

PUSH_S, PUSH_LIMIT_S = 10.0, 5.0
METRICS_PATH = "/v1/metrics"
# Between two statuses.
STATUS_S = 1.0

log: logging.Logger = logging.getLogger(__name__)


class Publisher:
    """Hands on what `publish` is given.

    Args:
        listen: "PORT" or "HOST:PORT" of a StatusServer; None: none.
        otlp: URL of an OTLP/HTTP receiver, whose path is /v1/metrics where none is named; None: none. Headers are those
            of OTEL_EXPORTER_OTLP_HEADERS (name=value,...).
        file: where the status is written as JSON; None: nowhere.
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
        self._status: Mapping[str, Any] | None = None
        self._file = None if file is None else Path(file)
        self._url = None if otlp is None else receiver_url(otlp)
        self._headers = push_headers(os.environ)
        self._since_ns = time.time_ns()
        self._period_s = period_s
        self._ended = threading.Event()
        self._failed = False
        self.server: StatusServer | None = None
        if listen is not None:
            self.server = StatusServer(self._look, parse_address(listen, "--listen"), history=history)
        self._pusher: threading.Thread | None = None
        if self._url is not None:
            self._pusher = threading.Thread(target=self._push_all, name="lanterne-otlp", daemon=True)
            self._pusher.start()

    def _look(self) -> list[Mapping[str, Any]]:
        return [self._status] if self._status is not None else []

    def publish(self, status: Mapping[str, Any]) -> None:
        """This is how the job is now."""
        self._status = status
        if self._file is not None:
            partial = self._file.with_name(f".{self._file.name}.new")
            # The folder may be gone, or full: the job matters more.
            with suppress(OSError):
                partial.write_text(json.dumps(status))
                partial.replace(self._file)

    def close(self) -> None:
        """Push what was published last, and end."""
        self._ended.set()
        if self._pusher is not None:
            self._pusher.join()
        if self.server is not None:
            self.server.close()

    def _push_all(self) -> None:
        while not self._ended.wait(self._period_s):
            self._push()
        self._push()

    def _push(self) -> None:
        status = self._status
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
        except (OSError, ValueError) as error:
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
