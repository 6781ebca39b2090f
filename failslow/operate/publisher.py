"""Publish a job's status: as a page and metrics over HTTP, and in a file."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from lanterne.failslow.operate.status_file import StatusFile
from lanterne.failslow.operate.status_server import StatusServer, parse_address

# Least time between two statuses, and its least multiple of what making one takes: for thousands of ranks that is long.
STATUS_S, SELDOM = 1.0, 500

Status: TypeAlias = Mapping[str, Any]

log: logging.Logger = logging.getLogger(__name__)


class Pace:
    """Schedule of a repeated action: due after `period_s`, or after SELDOM times the core time that it took."""

    def __init__(self, period_s: float = STATUS_S) -> None:
        self._period_s = period_s
        self._due_s = 0.0

    @property
    def is_due(self) -> bool:
        """Return whether the action is due."""
        return time.monotonic() >= self._due_s

    @contextmanager
    def take(self) -> Iterator[None]:
        """Time the action, which is the body of this context."""
        began_s, used_s = time.monotonic(), time.thread_time()
        try:
            yield
        finally:
            self._due_s = began_s + max(self._period_s, SELDOM * (time.thread_time() - used_s))


class Publisher:
    """Publishes what `publish`, or `offer`, is given.

    Args:
        listen: "PORT" or "HOST:PORT" of a StatusServer; None: none.
        file: where the status is written as JSON (status_file.py); None: nowhere.
        history: returns the patterns of hosts' histories, for StatusServer.

    Attributes: `server`, None without `listen`.

    Raises:
        InputError: `listen` is no address.
    """

    def __init__(
        self,
        listen: str | None = None,
        file: str | Path | None = None,
        *,
        history: Callable[[], list[dict[str, Any]]] = lambda: [],
    ) -> None:
        self._status: Status | None = None
        # The function that makes the next status, under the lock, when it is due.
        self._make: Callable[[], Status] | None = None
        self._pace = Pace(STATUS_S / 2)
        self._lock = threading.Lock()
        self._file = None if file is None else StatusFile(file)
        self.server: StatusServer | None = None
        if listen is not None:
            self.server = StatusServer(self._jobs, parse_address(listen, "--listen"), history=history)

    def publish(self, status: Status) -> None:
        """Publish `status` as the present one."""
        with self._lock:
            self._status, self._make = status, None
        if self._file is not None:
            self._file.write(status)

    def offer(self, make: Callable[[], Status]) -> None:
        """Call `make` for the status whenever it is read, in the reader's thread."""
        with self._lock:
            self._make = make
        if self._file is not None:
            self._file.begin(make())

    def look(self) -> None:
        """Write the file if it was read; call this about every STATUS_S."""
        if self._file is not None:
            self._file.look(self.status)

    def status(self) -> Status | None:
        """Return the status of now or of half a second ago; None before the first."""
        with self._lock:
            if self._make is not None and self._pace.is_due:
                try:
                    with self._pace.take():
                        self._status = self._make()
                except Exception:
                    # For example, another program has cut a log short. The last status stays.
                    log.exception("status: it could not be made")
                    self._make = None
            return self._status

    def _jobs(self) -> list[Status]:
        status = self.status()
        return [status] if status is not None else []

    def close(self) -> None:
        """End the server."""
        if self.server is not None:
            self.server.close()
