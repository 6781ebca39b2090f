"""Watch a running job through NCCL's RAS service: ranks that are behind, dead or in error, as it happens."""

from __future__ import annotations

import argparse
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lanterne.bench.failslow.outside import Trouble, TroubleTeller, name_of, say
from lanterne.bench.output import report
from lanterne.bench.output.units import format_count, parse_time_s
from lanterne.errors import InputError, TransportError
from lanterne.failslow.locate.calls_verdicts import diagnose
from lanterne.failslow.locate.formats import ras
from lanterne.failslow.locate.formats.foreign_calls import CallBuilder, Process
from lanterne.failslow.record.incidents import IncidentLog
from lanterne.failslow.record.job_ledger import about_run
from lanterne.failslow.record.whereabouts import Whereabouts

# Of NCCL, src/ras/ras_internal.h: its port, the protocol's version, and how long it waits for other processes itself.
PORT, PROTOCOL, NCCL_WAITS_S = 28028, 2, 5
# Between two looks, and how many count: who is behind in all of them waits or is waited for.
LOOK_S, LOOKS = 2.0, 3
# For an answer beyond what NCCL waits for.
MORE_S = 10.0
MOST_NBYTES = 1 << 28
# Looks without an answer until the job counts as ended.
VAIN_LOOKS = 3
# Options of jobs whose calls are recorded.
RECORDED = ("world_size", "launcher", "folder", "keep", "listen", "history", "thresholds")
NEEDS = "NCCL 2.24 or newer, at NCCL_RAS_ADDR, unless NCCL_RAS_ENABLE=0"


def parse_place(text: str) -> tuple[str, int]:
    """Return host and port of HOST, PORT or HOST:PORT."""
    if ":" not in text:
        text = f"localhost:{text}" if text.isdecimal() else f"{text}:{PORT}"
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"--ras: got {text!r}, expected HOST, PORT or HOST:PORT, such as localhost:{PORT}")
    return host.strip("[]") or "localhost", int(port)


def ask(host: str, port: int) -> dict[str, Any]:
    """Return the document of NCCL's RAS of now, from its JSON (2.28.7) or its text.

    Raises:
        OSError: no service is there, or its answer does not arrive.
        TransportError: another service than NCCL's answers, or the answer cannot be read.
    """
    with socket.create_connection((host, port), NCCL_WAITS_S + MORE_S) as connection:
        answers = connection.makefile("rb")

        def command(text: str) -> str:
            connection.sendall(f"{text}\n".encode())
            return answers.readline(1 << 12).decode(errors="replace").strip()

        greeting = command(f"CLIENT PROTOCOL {PROTOCOL}")
        if not greeting.upper().startswith("SERVER PROTOCOL"):
            raise TransportError(f"--ras: got {greeting[:60]!r} from {host}:{port}, expected NCCL's SERVER PROTOCOL")
        command(f"TIMEOUT {NCCL_WAITS_S}")
        # Without JSON the text says less.
        command("SET FORMAT json")
        connection.sendall(b"VERBOSE STATUS\n")
        text = answers.read(MOST_NBYTES).decode(errors="replace")
    with suppress(ValueError, RecursionError):
        content = ras.mended(text)
        if ras.is_document(content):
            return {"communicators": content["communicators"]}
    found = ras.from_text(text)
    if found is None:
        raise TransportError(f"--ras: got {text[:60]!r} from {host}:{port}, expected NCCL's status")
    return found


class RasWatch:
    """Reports which ranks are behind, dead or in error, as a TroubleTeller: death and errors are final.

    Args:
        look: returns RAS's document of now.
        patience_s: how long a rank that lives may be behind until that is an incident.

    Attributes: `incidents`, the IncidentLog.
    """

    def __init__(self, look: Callable[[], dict[str, Any]], place: str, folder: str, patience_s: float) -> None:
        self._look = look
        self._documents: deque[dict[str, Any]] = deque(maxlen=LOOKS)
        self._processes: dict[int, Process] = {}
        self._reasons: dict[int | str, str] = {}
        job = about_run(["watch", "--ras", place])
        self.incidents: IncidentLog = IncidentLog(None if folder == "none" else folder, job, self._where)
        self._teller = TroubleTeller(
            self.incidents, lambda who, _: [self._where(who)] if isinstance(who, int) else [], patience_s
        )

    @property
    def named(self) -> dict[str, str]:
        """The ranks that are behind, dead or in error now, with the reasons."""
        return {name_of(who): self._reasons[who] for who in self._teller.reported}

    def look(self, now_s: float) -> None:
        """Look, and report what is new; raise as `ask` where there is no answer."""
        self._documents.append(self._look())
        into = CallBuilder()
        ras.read_all(list(self._documents), into)
        table = into.table()
        self._processes |= table.processes
        self._reasons = {
            one["process"] if one["rank"] is None else one["rank"]: one["because"]
            for verdict in diagnose(table)[0]
            for one in verdict.evidence.get("missing", ())
        }
        found = {
            who: Trouble("outside", f"{name_of(who)}: {because}", because.startswith(ras.FINAL))
            for who, because in self._reasons.items()
        }
        # By fewer looks a rank that lives may be behind for a moment.
        is_enough = len(self._documents) == LOOKS
        self._teller.look({who: one for who, one in found.items() if is_enough or one.is_final}, now_s)

    def _where(self, rank: int) -> Whereabouts:
        process = self._processes.get(rank, Process())
        gpu = None if process.gpu is None else str(process.gpu)
        return Whereabouts(rank, process.host, process.pid, "silent", (), None, gpu)


def watch_ras(args: argparse.Namespace) -> int:
    """Look at a job by NCCL's RAS until it ends, or Ctrl-C; the exit code.

    Raises:
        InputError: options that need recorded calls.
        TransportError: nobody answers there from the beginning.
    """
    if given := [name for name in RECORDED if getattr(args, name)]:
        option = "-n" if given[0] == "world_size" else f"--{given[0]}"
        raise InputError(f"--ras: got {option} beside it, expected none: no call is recorded")
    host, port = parse_place(args.ras)
    place = f"{host}:{port}"
    watching = RasWatch(lambda: ask(host, port), place, args.incidents, parse_time_s(args.patience, "--patience"))
    looks = vain = 0
    with suppress(KeyboardInterrupt):
        while vain < VAIN_LOOKS:
            began_s = time.monotonic()
            try:
                watching.look(began_s)
            except (OSError, TransportError) as error:
                # A job that ends may answer with less than it should.
                if not looks:
                    if not isinstance(error, OSError):
                        raise
                    why = f"{place} does not answer ({error.strerror or error})"
                    raise TransportError(f"--ras: {why}, expected the RAS service of a running job: {NEEDS}") from None
                vain += 1
            else:
                looks, vain = looks + 1, 0
                if looks == 1:
                    say(f"{place} answers: asked each {LOOK_S:g} s, until the job ends or Ctrl-C")
            time.sleep(max(0.0, began_s + LOOK_S - time.monotonic()))
        say(f"{place} answers no more: the job, or that process of it, has ended")
    count = watching.incidents.count
    if args.json:
        content = {"ras": place, "looks": looks, "incidents": count, "named": watching.named}
        report.write_json(args.json, report.envelope(**content))
    say(f"{format_count(looks, 'look')}, {format_count(count, 'incident')}")
    return int(bool(args.fail_on and count))
