"""Serve one page on loopback: the jobs watched on this machine, their incidents and pictures, hosts' histories.

  lanterne serve                                       then look at http://127.0.0.1:9470/
  lanterne serve --history hosts.jsonl                 or the folder of incidents of `watch --incidents DIR`
  lanterne serve --listen 0.0.0.0:9470                 for others too: they are asked for a token
  lanterne serve --folder /shared                      the job that `watch --folder /shared` watches

It shows every job of yours that `lanterne watch` watches here, and the last one that has ended, until Ctrl-C. The page
has no part from elsewhere, asks for itself again every other second, and changes nothing. Below it are /metrics (for
Prometheus), /status.json and /history.json. Where it listens elsewhere than on loopback it asks for a token: that of
LANTERNE_PAGE_TOKEN, or one that it prints; scripts send it as `Authorization: Bearer TOKEN`. What is sent is not
encrypted: between hosts use a tunnel, or a proxy with TLS.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from lanterne.bench.failslow.watch import STATUS_FILE
from lanterne.errors import InputError
from lanterne.failslow.operate.status_file import StatusAsker

# A job that has not touched its status for so long was killed.
STALE_S = 30.0
MAX_JOBS = 16
# The folder in which `watch` writes incidents by default.
INCIDENTS = "lanterne-incidents"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("--listen", default="9470", metavar="ADDR", help="PORT of loopback or HOST:PORT (default 9470)")
    parser.add_argument("--folder", metavar="DIR", help="also the job of `watch --folder DIR`")
    parser.add_argument(
        "--history", metavar="WHERE",
        help=f"file of `watch --history`, or folder of `watch --incidents` (default {INCIDENTS}, if there)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    from lanterne.failslow.operate.history import open_history, told_patterns
    from lanterne.failslow.operate.status_server import StatusServer, parse_address

    if args.folder is not None and not Path(args.folder).is_dir():
        raise InputError(f"--folder: got {args.folder}, expected a folder")
    where = args.history or (INCIDENTS if Path(INCIDENTS).is_dir() else None)
    history = None if where is None else open_history(where)
    jobs = WatchedJobs(None if args.folder is None else Path(args.folder))
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: ended.set())
    server = StatusServer(jobs.look, parse_address(args.listen, "--listen"), history=lambda: told_patterns(history))
    try:
        print(f"lanterne serve: {server.url}", flush=True)
        if server.token:
            print(f"lanterne serve: token {server.token}", file=sys.stderr, flush=True)
        ended.wait()
    finally:
        server.close()
    return 0


class WatchedJobs:
    """The statuses of jobs of this user that are watched here, or in `folder`."""

    def __init__(self, folder: Path | None) -> None:
        self._patterns = [(Path(tempfile.gettempdir()), f"lanterne-watch-{os.getuid()}-*/{STATUS_FILE}")]
        if folder is not None:
            self._patterns.append((folder, f"lanterne-watch/{STATUS_FILE}"))
        self._last: dict[str, Any] | None = None
        self._asker = StatusAsker()

    def look(self) -> list[dict[str, Any]]:
        """Those of running jobs, the latest first; without any, of the last one that has ended."""
        found: list[tuple[float, dict[str, Any]]] = []
        paths = [path for folder, pattern in self._patterns for path in folder.glob(pattern) if _is_ours(path)]
        self._asker.ask(path for path in paths if time.time() - _changed_s(path) <= STALE_S)
        for path in paths:
            # It may end meanwhile.
            with suppress(OSError, ValueError, KeyError):
                changed_s = path.stat().st_mtime
                status = json.loads(path.read_bytes())
                status["ended"] = bool(status["ended"]) or time.time() - changed_s > STALE_S
                found.append((changed_s, status))
        found.sort(key=lambda one: (one[1]["ended"], -one[0]))
        if found:
            self._last = found[0][1]
            return [status for _, status in found[:MAX_JOBS]]
        return [self._last | {"ended": True}] if self._last else []


def _is_ours(path: Path) -> bool:
    """Whether nobody else can have written what is there."""
    with suppress(OSError):
        return path.stat().st_uid == os.getuid() and path.parent.stat().st_uid == os.getuid()
    return False


def _changed_s(path: Path) -> float:
    """When `path` was changed last; 0 where it is gone."""
    with suppress(OSError):
        return path.stat().st_mtime
    return 0.0
