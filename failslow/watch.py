"""`with lanterne.watch(comm):` around a training loop: iteration times, incidents as they happen, who comes last."""

import json
import logging
import shutil
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from ..errors import LanterneError
from .adapters import LANTERNE, watch_communicator
from .job_log import JobLog
from .recorder import Recorder

# Between looks at the call logs: as often as they fill to a part, and no more often or seldom than this. A thread that
# wakes up finds its caches cold: few looks cost less.
SHORTEST_POLL_S, LONGEST_POLL_S = 0.05, 0.5
FILLED = 1 / 16
PATH_NBYTES = 1024

log = logging.getLogger(__name__)


def watch(comm, on_notice=None, folder=None):
    """A Watch of the collectives that `comm`'s ranks call inside its block. All of them enter and leave it.

    Args:
        comm: a Communicator.
        on_notice: called on rank 0, from a thread of its own, with each job_log.Notice; None: they are logged.
        folder: where the ranks' call logs meet; None for a temporary one, which ranks of one machine share.
    """
    return Watch(comm, on_notice or _log, folder)


def _log(notice):
    level = logging.INFO if notice.event.confirmed_at is None else logging.WARNING
    log.log(level, "%s%s", notice.text, f" ({notice.cause.evidence})" if notice.cause else "")


class Watch:
    """Records the calls of a communicator; rank 0 reads along.

    Attributes: `report`: after the block, what was seen (job_log.JobLog.report), the same on all ranks; None where an
    exception ended the block. Inside it, rank 0 has the report up to now, the others None. `reader_s`: core time that
    reading took, on rank 0.
    """

    def __init__(self, comm, on_notice, folder):
        self._comm, self._on_notice = comm, on_notice
        self._folder, self._made = folder, None
        self._recorder = self._reader = None
        self._final, self._reader_s = None, 0.0

    @property
    def reader_s(self):
        return self._reader.used_s if self._reader is not None else self._reader_s

    @property
    def report(self):
        return self._reader.report() if self._reader is not None else self._final

    def __enter__(self):
        comm = self._comm
        if comm.rank == 0 and self._folder is None:
            self._folder = self._made = tempfile.mkdtemp(prefix="lanterne-watch-")
        path = np.zeros(PATH_NBYTES, np.uint8)
        if comm.rank == 0:
            encoded = str(Path(self._folder).resolve()).encode()
            path[: len(encoded)] = np.frombuffer(encoded, np.uint8)
        comm.broadcast(path)
        folder = path.tobytes().rstrip(b"\0").decode()
        self._recorder = Recorder(folder)
        for name in LANTERNE:
            setattr(comm, name, watch_communicator(comm, name, self._recorder, comm))
        if comm.rank == 0:
            self._reader = Reader(JobLog(folder, comm.world_size), self._on_notice)
        return self

    def __exit__(self, kind, error, trace):
        for name in LANTERNE:
            delattr(self._comm, name)
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
            if self._made is not None:
                shutil.rmtree(self._made, ignore_errors=True)

    def _finish_together(self):
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


class Reader:
    """Polls a JobLog in a thread of its own and passes its Notices to `on_notice`; `finish()` ends it.

    Whatever fails in here is logged, and reading then ends; nobody who is watched notices.

    Attributes: `used_s`, the core time that reading took.
    """

    def __init__(self, job, on_notice):
        self._job, self._on_notice = job, on_notice
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._last, self.used_s, self._failures = None, 0.0, []
        self._thread = threading.Thread(target=self._run, name="lanterne-watch", daemon=True)
        self._thread.start()

    def report(self):
        """The JobLog's report up to now, with a note if reading has failed."""
        with self._lock:
            found = self._job.report()
        return found | {"notes": [*found["notes"], *self._failures]}

    def finish(self):
        """Read what is left, end, and return the last report."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            before_s = time.thread_time()
            self._poll()
            self.used_s += time.thread_time() - before_s
            self._last = self.report()
            self._job.close()
        return self._last

    def _run(self):
        wait_s = SHORTEST_POLL_S
        while not self._ended.wait(wait_s):
            self._poll()
            wait_s = next_wait_s(wait_s, self._job.filled)
            self.used_s = time.thread_time()

    def _poll(self):
        if self._failures:
            return
        try:
            with self._lock:
                notices = self._job.poll()
        except Exception as error:
            # Such as a log that another program has cut short: what is known up to here stays.
            log.exception("watch: the call logs could not be read")
            self._failures.append(f"the call logs could not be read any further: {type(error).__name__}: {error}")
            return
        for notice in notices:
            try:
                self._on_notice(notice)
            except Exception:
                # The caller's own function.
                log.exception("watch: on_notice failed")


def next_wait_s(wait_s, filled):
    """How long to wait for the next look at call logs that filled to the share `filled` in the last `wait_s`."""
    return min(max(SHORTEST_POLL_S, min(2 * wait_s, wait_s * FILLED / max(filled, 1e-9))), LONGEST_POLL_S)
