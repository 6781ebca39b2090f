"""Supervisor of one rank: `python -m lanterne.transport.job.guard COMMAND...`, started by launch.py for each. Linux.

MPI launchers kill the whole job when one rank dies, and do not say why. So the launcher's child is this small process.
It runs the rank in a session of its own, keeps the launcher's PMI connection open when the rank dies, reports to the
store how the rank ended, and ends only when all ranks have, or the store is lost. With LANTERNE_RESTARTS it starts a
rank again that has failed, except for bad input. It adopts orphans, and ends all that the rank leaves behind.
"""

import ctypes
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from lanterne.errors import InputError, LanterneError, TransportError, TransportTimeout
from lanterne.transport.job.room import little_shared_memory
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.mpi.library import unlink_segments
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.connection import StoreLost
from lanterne.transport.store.follow import connect_to
from lanterne.transport.wire import Kind, unpack_fields, unpack_ranks

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STOPPED = "its launcher asked for it"
# The store's counter of guards that have started.
STARTED_KEY = "lanterne/guards"
# rank, size and rank on this host, as MPICH (and what descends from it) and Open MPI name them.
MPI_NAMES = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
)
DIRECT_NAMES = (("RANK", "WORLD_SIZE", "LOCAL_RANK"),)
# The exit code of bad input: of an InputError in our commands, of argparse in the user's.
BAD_INPUT = 2
# Another store leads within this after one was lost; meanwhile a guard checks at this interval whether it must end.
STORE_S, LOOK_S = 30.0, 0.5
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


_LIBC = ctypes.CDLL(None)  # loaded here: a forked child may not
# Between SIGTERM and SIGKILL.
TERMINATE_S = 1.0
# A rank that is dead to the others ends within this, or is ended: MPI_Finalize would never return.
EXIT_S = 2.0


def survivors_s() -> float:
    """Return the seconds that survivors of a death have to end by themselves: LANTERNE_GRACE_S, or 10.

    Raises:
        InputError: the variable is no such time.
    """
    text = os.environ.get("LANTERNE_GRACE_S", "10")
    try:
        time_s = float(text)
    except ValueError:
        time_s = -1.0
    if not 0 <= time_s < float("inf"):
        raise InputError(f"LANTERNE_GRACE_S: got {text!r}, expected seconds, 0 or more")
    return time_s


def set_parent_death_signal(number: int, parent: int) -> None:
    """Let this process get signal `number` when `parent` (a pid) dies, also if it has died already."""
    _LIBC.prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def descendants(pid: int) -> list[int]:
    """Return the pids of the processes below `pid`."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    rest = [pid]
    while rest:
        below = children.get(rest.pop(), [])
        found += below
        rest += below
    return found


def exit_code(status: int) -> tuple[int, str]:
    """Return the exit code of a wait status as shells give it, 128 + n for signal n, and words for it."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code, f"exited with code {code}"
    why = f"; {full}" if -code == signal.SIGBUS and (full := little_shared_memory()) else ""
    return 128 - code, f"killed by signal {-code} ({signal.Signals(-code).name}){why}"


class Guard:
    """Run `command` as rank `rank` and supervise it.

    Args:
        wakeup: readable after a signal.
        restarts: how often the rank is started again after a failure, to be taken in by the others.
    """

    def __init__(
        self, command: list[str], rank: int, client: StoreClient, wakeup: socket.socket, restarts: int = 0
    ) -> None:
        self._command = command
        self._restarts = restarts
        self._attempt = 0
        # The rank waits to be taken in, so the deaths of others do not concern it.
        self._outside = False
        self._rank = rank
        self._client = client
        self._wakeup = wakeup
        self._poll = THIS_MACHINE.poller()
        self._child = _start(command)
        self._ended = False
        self._told: list[int | bytes] = []  # how it ended for good
        self._terminate_at = float("inf")
        self._kill_at = float("inf")
        self._why = ""  # we end the rank
        self._was_told = False  # to end

    def run(self) -> int:
        """Supervise the rank, report its end, and return this process's exit code."""
        self._poll.register(self._wakeup, select.POLLIN)
        self._poll.register(self._client, select.POLLIN)
        try:
            while True:
                # Before the first wait: notices that came with the first answer are not in the socket any more.
                self._handle_signals()
                self._reap()
                if self._finished():
                    _finalize_pmi()
                    return 0
                self._keep_deadlines()
                wait_s = min(self._terminate_at, self._kill_at, THIS_MACHINE.now_s() + 60) - THIS_MACHINE.now_s()
                self._poll.poll(max(0.0, wait_s) * 1e3 + 1)
        except TransportError:
            return 1  # the store is gone, and the job with it
        finally:
            self._end_descendants()

    def _handle_signals(self) -> None:
        try:
            numbers = self._wakeup.recv(64)
        except BlockingIOError:
            return
        if any(number in STOPPING for number in numbers):
            self._end_rank(0.0, STOPPED)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                self._ended = True
                self._terminate_at = self._kill_at = float("inf")
                code, reason = exit_code(status)
                if code > 128 and self._why and self._was_told:
                    reason += f": {self._why}"
                may_restart = code not in (0, BAD_INPUT) and self._restarts > 0 and self._why != STOPPED
                if may_restart and self._start_again(reason):
                    return
                self._told = [self._rank, code, reason.encode()]
                self._call(Kind.ENDED, self._told)
                self._end_descendants()

    def _start_again(self, reason: str) -> bool:
        """Start the rank again; False where the job is over."""
        self._end_descendants()
        self._restarts -= 1
        attempt = self._call(Kind.RESTART, [self._rank, self._attempt, reason.encode()])[0]
        if not attempt:
            return False
        # These notices are about the process that has ended.
        self._client.notices.clear()
        self._outside = True
        self._ended = False
        self._why = ""
        self._was_told = False
        # A store of torch's that the attempt before has left is not to be met: each attempt has a port of its own.
        port = int(os.environ["MASTER_PORT"]) + attempt - self._attempt
        self._attempt = attempt
        os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_RESTART_COUNT": str(attempt)}
        os.environ["LANTERNE_JOIN"] = os.environ["LANTERNE_STORE"]
        self._child = _start(self._command)
        return True

    def _call(self, kind: Kind, fields: list[int | bytes]) -> list[Any]:
        """Return the answer of the store, or of the one that has taken over from it."""
        try:
            return self._client.call(kind, fields)
        except StoreLost as error:
            self._come_back(error)
            # `_come_back` has reported the end.
            return [] if self._told else self._client.call(kind, fields)

    def _come_back(self, error: StoreLost) -> None:
        """Go on at the store that takes over from the one that was lost; raise `error` if none does."""
        lost, until_s = self._client, THIS_MACHINE.now_s() + STORE_S
        self._poll.unregister(lost)
        while self._client is lost:
            self._handle_signals()
            if lost.successor is None or self._why == STOPPED or THIS_MACHINE.now_s() > until_s:
                raise error
            with suppress(TransportTimeout):
                self._client = lost.successor(LOOK_S)
        self._client.notices.extend(lost.notices)
        lost.close()
        self._poll.register(self._client, select.POLLIN)
        try:
            self._client.call(Kind.GUARD, [self._rank, int(os.environ["LANTERNE_WORLD_SIZE"]), self._outside])
            if self._told:
                self._client.call(Kind.ENDED, self._told)
        except StoreLost as another:
            self._come_back(another)

    def _finished(self) -> bool:
        try:
            self._client.pump()
        except StoreLost as error:
            self._come_back(error)
        while self._client.notices:
            kind, body = self._client.notices.popleft()
            if kind == Kind.FINISHED_NOTICE:
                return True
            if kind == Kind.DIED_NOTICE and not self._ended and not self._outside:
                dead, _reason = unpack_fields(body, "ib")
                grace_s = min(survivors_s(), EXIT_S) if dead == self._rank else survivors_s()
                self._end_rank(grace_s, f"it still ran {grace_s:g} s after rank {dead} had failed")
            if kind == Kind.WAITING_NOTICE:
                self._terminate_at = float("inf")
                self._why = ""
                self._outside = True
            if kind == Kind.GOES_ON_NOTICE and self._rank in unpack_ranks(unpack_fields(body, "bb")[1]):
                # It has gone on after the death, so it need not end.
                self._terminate_at = float("inf")
                self._why = ""
                self._outside = False
        return False

    def _end_rank(self, delay_s: float, why: str) -> None:
        at = THIS_MACHINE.now_s() + delay_s
        # A rank that is being ended may be declared dead before its end is seen here.
        if at < self._terminate_at and not self._was_told:
            self._terminate_at, self._why = at, why

    def _keep_deadlines(self) -> None:
        now = THIS_MACHINE.now_s()
        if now >= self._terminate_at:
            self._was_told = True
            self._terminate_at, self._kill_at = float("inf"), now + TERMINATE_S
            # A rank that hangs in MPI_Init, since another died there, has not done so.
            unlink_segments(self._child)
            _signal_group(self._child, signal.SIGTERM)
        if now >= self._kill_at:
            self._kill_at = float("inf")
            _signal_group(self._child, signal.SIGKILL)

    def _end_descendants(self) -> None:
        # This process adopts orphans (it is their subreaper), so a few turns find all of them.
        while pids := descendants(os.getpid()):
            for pid in pids:
                _signal(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, 0):
                    pass
            except ChildProcessError:
                pass


def _finalize_pmi() -> None:
    """Say PMI's hello and goodbye for a rank that could not, or Hydra takes our end for a crash, kills the others."""
    fd = int(os.environ.get("PMI_FD", "-1"))
    if fd < 0:
        return
    poll = THIS_MACHINE.poller()
    poll.register(fd, select.POLLIN | select.POLLRDHUP)
    try:
        # Hydra hangs up on a rank that has said goodbye itself.
        for message in (b"cmd=init pmi_version=1 pmi_subversion=1\n", b"cmd=finalize\n"):
            if poll.poll(0):
                return
            os.write(fd, message)
            if poll.poll(1000):
                os.read(fd, 1024)
    except OSError:
        pass


def _start(command: list[str]) -> int:
    guard = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        set_parent_death_signal(signal.SIGKILL, guard)
        signal.set_wakeup_fd(-1)
        for number in (*STOPPING, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(command[0], command)
    except OSError as error:
        print(f"lanterne: cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(127)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _signals_to_a_socket() -> tuple[socket.socket, socket.socket]:
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    for number in (*STOPPING, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    return reader, writer


def _place() -> tuple[int, int, int] | None:
    """Return this rank's (rank, world_size, local_rank), as its launcher says; None if it does not."""
    for names in MPI_NAMES if os.environ["LANTERNE_LAUNCHER"] == "mpi" else DIRECT_NAMES:
        if all(os.environ.get(name, "").isdigit() for name in names):
            rank, world_size, local_rank = (int(os.environ[name]) for name in names)
            return rank, world_size, local_rank
    return None


def _as_torchrun(rank: int, world_size: int, local_rank: int) -> dict[str, str]:
    """Return the variables that torchrun sets besides MASTER_ADDR and MASTER_PORT; all ranks are on one host."""
    numbers = {"RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": local_rank, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    numbers |= dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE", "LOCAL_WORLD_SIZE"), world_size)
    numbers |= {"TORCHELASTIC_RESTART_COUNT": 0}
    return {name: str(number) for name, number in numbers.items()}


def main(command: list[str]) -> int:
    parent = os.getppid()
    set_parent_death_signal(signal.SIGTERM, parent)
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        client = connect_to(os.environ["LANTERNE_STORE"], os.environ["LANTERNE_TOKEN"])
        place = _place()
        expected = int(os.environ["LANTERNE_WORLD_SIZE"])
        if place is None or place[1] != expected:
            found = "no variables that say its rank and size" if place is None else f"a world of {place[1]} ranks"
            client.call(
                Kind.FAULT, [3, f"got {found} in a process that it started, expected a world of {expected}".encode()]
            )
            return 3
        rank, world_size, local_rank = place
        reader, _writer = _signals_to_a_socket()
        client.call(Kind.GUARD, [rank, world_size, 0])
        client.add(STARTED_KEY)
        os.environ |= _as_torchrun(rank, world_size, local_rank)
        return Guard(command, rank, client, reader, int(os.environ.get("LANTERNE_RESTARTS", "0"))).run()
    except LanterneError as error:
        sys.stderr.write(f"lanterne: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
