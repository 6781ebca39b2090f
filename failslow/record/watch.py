"""`with lanterne.watch(comm):` around a training loop: iteration times, incidents as they happen, late ranks."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lanterne.collectives.communicator import core_of
from lanterne.errors import InputError, LanterneError
from lanterne.failslow.operate.history import open_to_add, told_patterns
from lanterne.failslow.operate.publisher import Pace, Publisher
from lanterne.failslow.operate.status_server import parse_address
from lanterne.failslow.operate.thresholds import USUAL_THRESHOLDS, Thresholds
from lanterne.failslow.record.adapters import LANTERNE, number_of, watch_communicator
from lanterne.failslow.record.hangs import Hang
from lanterne.failslow.record.iteration_log import Notice
from lanterne.failslow.record.job_ledger import JobLedger, about_run
from lanterne.failslow.record.job_log import CALM_S, FILLED, LONGEST_S, READ_S, SHORTEST_S, JobLog
from lanterne.failslow.record.recorder import Recorder, boot_id
from lanterne.failslow.record.trap import SYNCHRONIZING, Trap, trapped
from lanterne.failslow.validate.validate import ValidateOptions, validate
from lanterne.failslow.validate.validation import Validation

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.failslow.operate.status_server import StatusServer

PATH_NBYTES = 1024
# About how long a job is held to be validated, and how many times as long it then runs before it may be held again.
VALIDATION_S, APART = 5.0, 50

log: logging.Logger = logging.getLogger(__name__)


def watch(
    comm: Communicator,
    *,
    on_notice: Callable[[Notice], object] | None = None,
    on_hang: Callable[[Hang], object] | None = None,
    patience_s: float = USUAL_THRESHOLDS.patience_s,
    folder: str | Path | None = None,
    validates: bool | ValidateOptions = False,
    listen: str | None = None,
    history: str | None = None,
) -> CallWatch:
    """A CallWatch of the collectives that `comm`'s ranks call inside its block. All of them enter and leave it.

    Args:
        comm: the Communicator whose collectives are recorded.
        on_notice: called on rank 0, from a thread of its own, with each Notice; None: they are logged.
        on_hang: called there with each Hang: a collective that does not end, and the ranks that have not come to it;
            again when it becomes an incident, and when it goes on. None: they are logged.
        patience_s: how long ranks that live may not come, where no such wait was seen before, until it is an incident.
        folder: where the ranks' call logs meet; None for a temporary one, which ranks of one machine share.
        validates: True, or options of `lanterne.validate` by name: whenever the job has become slow for certain, all
            ranks are held before a collective, validated for some 5 s, and let go (trap.py); a fiftieth of the time at
            most. The ranks must be of one machine. Collectives that are only started do not hold them.
        listen: "PORT" or "HOST:PORT" (loopback without a host) where rank 0 serves a page and, for Prometheus,
            /metrics; elsewhere than on loopback a token is asked for (`watch.server`). None: nowhere.
        history: a file, or redis://HOST:PORT/KEY, where incidents are kept by host across jobs. None: nowhere.

    Raises:
        InputError: `listen` is no address. A port that is taken, or a history that cannot be opened,
            is logged instead: the job matters more.
    """
    if listen is not None:
        parse_address(listen, "listen")
    outlets = Outlets(listen, history)
    return CallWatch(comm, on_notice or _log, on_hang or log_hang, patience_s, folder, validates, outlets)


class Outlets(NamedTuple):
    """Where the status of a job goes: as `watch` has it."""

    listen: str | None = None
    history: str | None = None


def _log(notice: Notice) -> None:
    level = logging.INFO if notice.event.confirmed_at is None else logging.WARNING
    log.log(level, "%s%s", notice.text, f" ({notice.cause.evidence})" if notice.cause else "")


def log_hang(hang: Hang) -> None:
    """Log a Hang: as a warning where it is an incident."""
    log.log(logging.WARNING if hang.is_incident else logging.INFO, "%s", hang.text)


class CallWatch:
    """Records the calls of a communicator inside its `with` block; rank 0 reads along.

    Attributes: `validations`: the Validation of each time that the job was held.
    """

    def __init__(
        self,
        comm: Communicator,
        on_notice: Callable[[Notice], object],
        on_hang: Callable[[Hang], object],
        patience_s: float,
        folder: str | Path | None,
        validates: bool | ValidateOptions,
        outlets: Outlets,
    ) -> None:
        self._comm = comm
        self._outlets = outlets
        self._publisher: Publisher | None = None
        self._on_notice = on_notice
        self._on_hang = on_hang
        self._thresholds = Thresholds(patience_s=patience_s)
        self._job: JobLog | None = None
        # None: the job is not held.
        self._options: ValidateOptions | None = {} if validates is True else None if validates is False else validates
        self._trap: Trap | None = None
        self._next_s = 0.0
        self.validations: list[Validation] = []
        self._folder = folder
        self._made: str | None = None
        self._recorder: Recorder | None = None
        self._reader: Reader | None = None
        self._final: dict[str, Any] | None = None
        self._reader_s = 0.0

    @property
    def thresholds(self) -> Thresholds:
        """From when on something is told; may be set while it runs, and counts on rank 0."""
        return self._thresholds

    @thresholds.setter
    def thresholds(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        if self._job is not None:
            self._job.thresholds = thresholds

    @property
    def server(self) -> StatusServer | None:
        """What serves the page, on rank 0 inside the block: its `url`, and the `token` that it asks for, if any."""
        return self._publisher.server if self._publisher is not None else None

    @property
    def reader_s(self) -> float:
        """Core time that reading took, on rank 0."""
        return self._reader.used_s if self._reader is not None else self._reader_s

    @property
    def report(self) -> dict[str, Any] | None:
        """After the block, what was seen (JobLog.report), the same on all ranks; None where an exception ended it.

        Inside the block, rank 0 has the report up to now, the others None.
        """
        return self._reader.report() if self._reader is not None else self._final

    def __enter__(self) -> CallWatch:
        comm, holds = self._comm, self._options is not None
        if holds:
            _check_machine(comm)
        path = np.zeros(PATH_NBYTES, np.uint8)
        if comm.rank == 0:
            if self._folder is None:
                self._folder = self._made = tempfile.mkdtemp(prefix="lanterne-watch-")
            if holds:
                self._trap = self._make_trap(self._folder)
            encoded = str(Path(self._folder).resolve()).encode()
            path[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        comm.broadcast(path)
        folder = path.tobytes().rstrip(b"\0").decode()
        if comm.rank > 0 and holds:
            self._trap = self._make_trap(folder)
        recorder = self._recorder = Recorder(folder)
        for name in LANTERNE:
            plain, recorded = getattr(comm, name), watch_communicator(comm, name, recorder, comm)
            if self._trap is not None and name in SYNCHRONIZING:
                recorded = trapped(plain, recorded, self._trap, self._validate)
            setattr(comm, name, recorded)
        if comm.rank == 0:
            self._job = JobLog(folder, comm.world_size, self._thresholds)
            self._reader = self._read(self._job)
        return self

    def _read(self, job: JobLog) -> Reader:
        """On rank 0."""
        listen, where = self._outlets
        history = None
        try:
            history = None if where is None else open_to_add(where, "history")
            if listen:
                self._publisher = Publisher(listen, history=lambda: told_patterns(history))
        except LanterneError as error:
            # A port that is taken, a server that does not answer: the job matters more.
            log.warning("watch: %s", error)
        arrivals = core_of(self._comm).late.arrivals
        ledger = JobLedger(
            job, about_run(sys.argv), None, history=history, publisher=self._publisher,
            begun_early=lambda: arrivals.begun_early,
        )  # fmt: skip

        def notice(notice: Notice) -> None:
            ledger.notice(notice)
            self._notice(notice)

        def hang(hang: Hang) -> None:
            ledger.hang(hang)
            self._on_hang(hang)

        return Reader(job, notice, hang, ledger.finish, ledger.look)

    # -- holding the job

    def _make_trap(self, folder: str | Path) -> Trap:
        comm = self._comm
        return Trap(Path(folder, "trap"), comm.rank, comm.world_size, progress=core_of(comm).progress)

    def _notice(self, notice: Notice) -> None:
        """On rank 0, in the reader's thread."""
        # Without validation there is no trap.
        is_certain = notice.event.kind == "onset" and notice.event.confirmed_at is not None
        if is_certain and self._trap is not None and time.monotonic() >= self._next_s:
            self._trap.ask()
        self._on_notice(notice)

    def _validate(self) -> None:
        began_s = time.monotonic()
        options: ValidateOptions = {"limit_s": VALIDATION_S, "thorough": False, **(self._options or {})}
        found = validate(self._comm, **options)
        self.validations.append(found)
        now_s = time.monotonic()
        self._next_s = now_s + APART * (now_s - began_s)
        if self._comm.rank == 0:
            told = "; ".join(f"{finding.about}: {finding.evidence}" for finding in found.findings)
            log.warning("the job was held and validated in %.3g s: %s", now_s - began_s, told or "nothing is slow")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in LANTERNE:
            delattr(self._comm, name)
        if self._recorder is not None:
            self._recorder.end()
        try:
            if kind is None:
                self._finish_together()
            elif self._reader is not None:
                self._final = self._reader.finish()
        except LanterneError as failure:
            # The next call on the communicator says so itself.
            log.warning("watch: no report of all ranks: %s", failure)
        finally:
            if self._reader is not None:
                self._final = self._final or self._reader.finish()
                self._reader_s = self._reader.used_s
                self._reader = None
            if self._publisher is not None:
                self._publisher.close()
                self._publisher = None
            if self._trap is not None:
                self._trap.close()
                self._trap = None
            if self._made is not None:
                shutil.rmtree(self._made, ignore_errors=True)

    def _finish_together(self) -> None:
        comm = self._comm
        comm.barrier()
        text = b""
        if self._reader is not None:
            self._final = self._reader.finish()
            text = json.dumps(self._final).encode()
        size = np.array([len(text)], np.int64)
        comm.broadcast(size)
        data = np.frombuffer(text, np.uint8).copy() if text else np.empty(int(size[0]), np.uint8)
        comm.broadcast(data)
        self._final = json.loads(data.tobytes())


def _check_machine(comm: Communicator) -> None:
    """Raise InputError where the ranks cannot be held and compared."""
    if comm.world_size < 2:
        raise InputError("watch: got validates and 1 rank, expected at least 2: a rank is slow beside others only")
    machines = np.empty(comm.world_size, np.int64)
    comm.all_gather(np.array([number_of(boot_id())]), machines)
    if len(set(machines.tolist())) > 1:
        raise InputError("watch: got validates and ranks on several machines, expected one, or no validates")


class Looks:
    """When to look at the logs of `job`, and when to poll them.

    Attributes: `wait_s`, until the next look.
    """

    def __init__(self, job: JobLog, now_s: float) -> None:
        self._job = job
        self._polled_s = now_s
        self.wait_s: float = SHORTEST_S

    def look(self, now_s: float) -> bool:
        """Whether to poll now."""
        with self._job.lock:
            filled, is_calm = self._job.logs.filled, self._job.is_calm()
        since_s = now_s - self._polled_s
        self.wait_s = next_wait_s(self.wait_s, filled, since_s, is_calm=is_calm)
        is_due = not is_calm or filled >= FILLED or since_s >= READ_S
        if is_due:
            self._polled_s = now_s
        return is_due


class Reader:
    """Polls a JobLog in a thread of its own when that is due; passes Notices to `on_notice`, Hangs to `on_hang`.

    `finish()` ends it.

    `on_end` gets the last report while the logs are still open; `on_second` is called every second, or less often where
    it takes long.

    Whatever fails in here is logged, and reading then ends; the watched program does not notice.

    Attributes: `used_s`, the core time that reading took.
    """

    def __init__(
        self,
        job: JobLog,
        on_notice: Callable[[Notice], object],
        on_hang: Callable[[Hang], object] = log_hang,
        on_end: Callable[[dict[str, Any]], object] = lambda found: None,
        on_second: Callable[[], object] = lambda: None,
    ) -> None:
        self._job = job
        self._on_notice = on_notice
        self._on_hang = on_hang
        self._on_end, self._on_second = on_end, on_second
        self._pace = Pace()
        self._ended = threading.Event()
        self._last: dict[str, Any] = {}
        self.used_s: float = 0.0
        self._failures: list[str] = []
        self._thread = threading.Thread(target=self._run, name="lanterne-watch", daemon=True)
        self._thread.start()

    def report(self) -> dict[str, Any]:
        """The JobLog's report up to now, with a note if reading has failed."""
        with self._job.lock:
            found = self._job.report()
        return found | {"notes": [*found["notes"], *self._failures]}

    def finish(self) -> dict[str, Any]:
        """Read what is left, end, and return the last report."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            before_s = time.thread_time()
            self._poll()
            self.used_s += time.thread_time() - before_s
            self._last = self.report()
            self._on_end(self._last)
            self._job.close()
        return self._last

    def _run(self) -> None:
        looks = Looks(self._job, time.monotonic())
        while not self._ended.wait(looks.wait_s):
            if looks.look(time.monotonic()):
                self._poll()
            if self._pace.is_due and not self._failures:
                self._tell(self._second, "on_second")
            self.used_s = time.thread_time()

    def _second(self) -> None:
        with self._pace.take():
            self._on_second()

    def _poll(self) -> None:
        if self._failures:
            return
        try:
            with self._job.lock:
                notices, hangs = self._job.poll(), self._job.hangs
        except Exception as error:
            # Such as a log that another program has cut short: what is known up to here stays.
            log.exception("watch: the call logs could not be read")
            self._failures.append(f"the call logs could not be read any further: {type(error).__name__}: {error}")
            return
        for notice in notices:
            self._tell(partial(self._on_notice, notice), "on_notice")
        for hang in hangs:
            self._tell(partial(self._on_hang, hang), "on_hang")

    def _tell(self, tell: Callable[[], object], name: str) -> None:
        try:
            tell()
        except Exception:
            # The caller's own function.
            log.exception("watch: %s failed", name)


def next_wait_s(wait_s: float, filled: float, since_s: float, *, is_calm: bool) -> float:
    """How long to wait for the next look at call logs after one of `wait_s`, that filled to `filled` in `since_s`."""
    full_s = since_s * FILLED / max(filled, 1e-9)
    longest_s = CALM_S if is_calm else LONGEST_S
    return min(max(SHORTEST_S, min(2 * wait_s, full_s)), longest_s)
