"""Start of a job of N ranks on this host, which is watched, and leaves nothing behind.

Every rank runs below a guard (guard.py), whether mpiexec starts it or the launcher. The store belongs to the launcher:
it ends with the launcher, and without a store the guards end their ranks.
"""

import logging
import os
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from lanterne.errors import InputError, LanterneError, TransportError, TransportTimeout, Unavailable
from lanterne.transport.job.guard import BAD_INPUT, STARTED_KEY, set_parent_death_signal, survivors_s
from lanterne.transport.job.launchers import FIRST_STEP_PORT, NUM_STEP_PORTS
from lanterne.transport.job.room import NO_TCP, check_shared_memory, make_room_for_files
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.mpi.library import unlink_segments
from lanterne.transport.own_python import own_python
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.follow import begin, follow
from lanterne.transport.store.membership.guards import UNKNOWN_CODE
from lanterne.transport.store.process import StoreProcess
from lanterne.transport.store.redis_lease import lease_of
from lanterne.transport.wire import Kind, unpack_fields, unpack_ranks

MAX_WORLD_SIZE, MAX_RESTARTS, MAX_STORES = 1024, 1000, 5
# How long mpiexec may take to end after its last rank, or guards after the store; and all after a signal.
END_S, STOP_S = 5.0, 3.0
# How long the launcher may take until all guards have started, and for each of them.
START_S, START_RANK_S = 60.0, 1.0
JOB_VARIABLE = "LANTERNE_JOB"
HERE = "127.0.0.1"
# With the 8 queues that CUDA has by default, streams that have nothing to do with each other may wait for each other:
# kernels/arrays.py, which sets it too; a rank may use CUDA before lanterne does.
RANK_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "32"}
# MPICH: on this host only, also in an allocation of a batch system. Open MPI as root and with more ranks than cores: it
# refuses without the first ones, and without the last its waiting ranks starve the others.
MPI_ENVIRONMENT = {
    "HYDRA_LAUNCHER": "fork",
    "HYDRA_RMK": "user",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_threads_pthreads_yield_strategy": "nanosleep",
}

# Other hosts must not reach a port of MPI's: UCX under MPICH then opens none, Open MPI and OFI on loopback.
ONE_HOST_ENVIRONMENT = {
    "UCX_TLS": NO_TCP,
    "FI_TCP_IFACE": "lo",
    "OMPI_MCA_oob_tcp_if_include": "lo",
    "OMPI_MCA_btl_tcp_if_include": "lo",
    "PRTE_MCA_oob_tcp_if_include": "lo",
    "PRTE_MCA_prte_if_include": "lo",
}

OUTER_JOB = re.compile("PMI_|PMIX_(?!MCA)|HYDI_|MPI_LOCAL|OMPI_COMM_WORLD_")

Process: TypeAlias = subprocess.Popen[bytes]

log: logging.Logger = logging.getLogger(__name__)


def launch(
    command: Sequence[str],
    world_size: int,
    launcher: str = "mpi",
    timeout_s: float | None = None,
    env: Mapping[str, str] | None = None,
    *,
    restarts: int = 0,
) -> int:
    """Run `command` as `world_size` ranks on this host and return the job's exit code.

    The code is 0 if every rank's is, else that of the first rank that failed, 128 + n if signal n killed it. When a
    rank dies, the others learn of it through their Group. A rank that still runs LANTERNE_GRACE_S (10) seconds later is
    ended. Where LANTERNE_STORE names a Redis, the job outlives its store, up to MAX_STORES times.

    Args:
        launcher: "mpi" (through mpiexec) or "direct" (no MPI; ranks find the job by `bootstrap.connect`).
        timeout_s: end the job after this many seconds; None: never.
        env: more variables for the ranks.
        restarts: how often a rank is started again after a failure; its `lanterne.init` waits until it is taken in.
            A rank whose exit code is 2, of bad input, is not, and 2 is the job's code.

    Raises:
        InputError: no such command or launcher, or a world size that is none; restarts by mpiexec.
        Unavailable: no mpiexec, or one that does not make one world of `world_size` ranks; too little shared memory,
            too few file descriptors.
        TransportTimeout: `timeout_s` is over; names the ranks that still ran.
        KeyboardInterrupt: Ctrl-C; the ranks have ended.
    """
    if type(world_size) is not int or not 1 <= world_size <= MAX_WORLD_SIZE:
        raise InputError(f"launch: got {world_size} ranks, expected 1 to {MAX_WORLD_SIZE}")
    if not command or shutil.which(command[0]) is None:
        raise InputError(f"launch: got command {' '.join(command)!r}, expected a program that can be run")
    if launcher not in ("mpi", "direct"):
        raise InputError(f"launch: got launcher {launcher!r}, expected 'mpi' or 'direct'")
    if launcher == "mpi" and restarts:
        raise InputError("launch: got restarts by mpiexec, whose ranks end together, expected tcp or ucx")
    if not 0 <= restarts <= MAX_RESTARTS:
        raise InputError(f"launch: got {restarts} restarts, expected 0 to {MAX_RESTARTS}")
    survivors_s()  # refuses what cannot be, before anything is started
    mpiexec = find_mpiexec() if launcher == "mpi" else None
    make_room_for_files(world_size)
    job = secrets.token_hex(8)
    token = secrets.token_hex(16)
    lease = lease_of(token, HERE)
    with _stopping_signals() as stopped, begin(lease, token, HERE, "owner") if lease else StoreProcess(token) as store:
        variables: dict[str, str] = {
            **RANK_ENVIRONMENT,
            **MPI_ENVIRONMENT,
            **(ONE_HOST_ENVIRONMENT if mpiexec else {}),
            # Without the traces of an MPI job that we are ourselves a rank of.
            **{name: value for name, value in os.environ.items() if not OUTER_JOB.match(name)},
            # Ranks write through pipes, and cannot see a terminal, nor its width.
            **_terminals(),
            **(env or {}),
            "LANTERNE_STORE": lease.url if lease else f"{store.address[0]}:{store.address[1]}",
            "LANTERNE_TOKEN": token,
            "LANTERNE_LAUNCHER": launcher,
            "LANTERNE_WORLD_SIZE": str(world_size),
            "LANTERNE_RESTARTS": str(restarts),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_ports(1 + restarts)),
            "TORCHELASTIC_MAX_RESTARTS": str(restarts),
            JOB_VARIABLE: job,
        }
        check_shared_memory(world_size, variables, mpich=mpiexec is not None)
        client = follow(lease, token) if lease else StoreClient(store.address, token)
        watch = JobWatch(client, world_size, mpiexec or "launch", stopped)
        processes: list[Process] = []
        try:
            _start_guards(processes, command, world_size, mpiexec, variables)
            return watch.run(processes, timeout_s)
        finally:
            # Before the store ends: ranks and guards would report that they have lost it.
            _stop(processes, job, signal.SIGKILL if mpiexec else signal.SIGTERM)
            watch.close()
            store.close()
            if lease is not None:
                with suppress(LanterneError):  # It expires by itself.
                    lease.release()
            _end(processes, job)


def find_mpiexec() -> str:
    """Return the mpiexec next to this Python, else the one on PATH.

    Raises:
        Unavailable: there is none.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec") or shutil.which("mpirun")
    if found is None:
        raise Unavailable(
            f"no mpiexec beside {sys.executable} or on PATH; `{sys.executable} -m pip install mpich` installs one"
        )
    return found


class JobWatch:
    """Follow a job through the store until it has ended."""

    def __init__(
        self,
        client: StoreClient,
        world_size: int,
        starter: str,
        stopped: Sequence[int],
    ) -> None:
        self._client = client
        self._stores = 0
        self._poll = THIS_MACHINE.poller()
        self._starter = starter
        self._stopped = stopped
        self._codes: dict[int, int] = {}  # of the ranks that have ended, first end first
        self._lost: set[int] = set()  # ranks that the others went on without
        self._again: set[int] = set()  # that were started again, and not taken in yet
        self._needed = set(range(world_size))  # the job ends with these
        self._world_size = world_size
        self._start_s = START_S + START_RANK_S * world_size
        client.call(Kind.WATCH)

    def run(self, processes: Sequence[Process], timeout_s: float | None) -> int:
        """Return the job's exit code, once all `processes` (mpiexec, or the guards) have ended."""
        deadline = THIS_MACHINE.now_s() + (float("inf") if timeout_s is None else timeout_s)
        started_by = THIS_MACHINE.now_s() + self._start_s
        poll = self._poll
        poll.register(self._client, select.POLLIN)
        pidfds = [os.pidfd_open(process.pid) for process in processes]
        try:
            for pidfd in pidfds:
                poll.register(pidfd, select.POLLIN)
            while True:
                self._read_notices()
                if self._stopped:
                    return 128 + self._stopped[0]
                for process, pidfd in zip(processes, pidfds, strict=True):
                    if process.returncode is None and process.poll() is not None:
                        poll.unregister(pidfd)
                if all(process.returncode is not None for process in processes):
                    self._read_notices()
                    return self._exit_code(processes)
                if self._needed <= self._codes.keys():
                    deadline = min(deadline, THIS_MACHINE.now_s() + END_S)
                if THIS_MACHINE.now_s() >= started_by:
                    self._check_started()
                    started_by = float("inf")
                if THIS_MACHINE.now_s() >= deadline:
                    return self._overdue(timeout_s)
                poll.poll(min(0.2, max(0.0, deadline - THIS_MACHINE.now_s())) * 1e3 + 1)
        finally:
            for pidfd in pidfds:
                os.close(pidfd)

    def close(self) -> None:
        """Close the connection to the store; log the clients that it has refused."""
        with suppress(TransportError):
            if refused := self._client.refused():
                log.warning("lanterne: %s", refused)
        self._client.close()

    def _check_started(self) -> None:
        started = self._client.add(STARTED_KEY, 0)
        if started < self._world_size:
            raise Unavailable(
                f"{self._starter}: started {started} ranks in {self._start_s:g} s, expected {self._world_size}"
            )

    def _read_notices(self) -> None:
        try:
            self._client.pump()
        except TransportError as error:
            self._take_over(error)
        while self._client.notices:
            kind, body = self._client.notices.popleft()
            if kind == Kind.FAULT_NOTICE:
                _code, text = unpack_fields(body, "ib")
                raise Unavailable(f"{self._starter}: {text.decode(errors='replace')}")
            if kind == Kind.ENDED_NOTICE:
                rank, code, reason = unpack_fields(body, "iib")
                if rank in self._codes:
                    continue  # Its guard has reported it to another store, too.
                self._codes[rank] = code
                # A rank that ended with a code of its own has had the chance to say why.
                level = logging.INFO if 0 <= code < 128 else logging.WARNING
                log.log(level, "lanterne: rank %d %s", rank, reason.decode(errors="replace"))
            if kind == Kind.GOES_ON_NOTICE:
                self._go_on(*map(unpack_ranks, unpack_fields(body, "bb")))
            if kind == Kind.RESTART_NOTICE:
                rank, reason = unpack_fields(body, "ib")
                self._again.add(rank)
                log.warning("lanterne: rank %d %s, and is started again", rank, reason.decode(errors="replace"))

    def _take_over(self, error: TransportError) -> None:
        """Go on with another store, as the lease in Redis allows."""
        lost = self._client
        if lost.successor is None or self._stores == MAX_STORES:
            raise TransportError(f"launch: the store was killed, so the job is ended ({error})") from error
        self._stores += 1
        log.warning("lanterne: the store was killed, and is started again")
        self._poll.unregister(lost)
        self._client = lost.successor(START_S)
        lost.close()
        self._poll.register(self._client, select.POLLIN)
        try:
            self._client.call(Kind.WATCH)
        except TransportError as another:
            self._take_over(another)

    def _go_on(self, before: Sequence[int], now: Sequence[int]) -> None:
        """Record that the ranks `now` go on, of those `before`."""
        lost, new = set(before) - set(now) - self._lost, set(now) & self._lost | set(now) - set(before)
        self._lost = (self._lost | lost) - new
        self._again -= set(now)
        if lost:
            log.warning("lanterne: rank %s go on without rank %s", _join(now), _join(sorted(lost)))
        if new:
            log.warning("lanterne: rank %s was taken in: %s go on", _join(sorted(new)), _join(now))

    def _exit_code(self, processes: Sequence[Process]) -> int:
        launcher_code = next((process.returncode for process in processes if process.returncode != 0), 0)
        # Ranks that the others went on without do not count; if none went on, all count.
        outside = {rank for rank in self._lost | self._again if self._codes.get(rank) != BAD_INPUT}
        counted = {rank: code for rank, code in self._codes.items() if rank not in outside} or self._codes
        failures = [code for code in counted.values() if code != 0]
        if not failures and len(self._codes) < self._world_size:
            if launcher_code != -signal.SIGPIPE:  # else its reader has ended
                log.warning("rank %s did not report how it ended", _join(self._running()))
            failures = [UNKNOWN_CODE]
        code = next((code for code in failures if code != UNKNOWN_CODE), launcher_code or 1) if failures else 0
        return code if code >= 0 else 128 - code

    def _overdue(self, timeout_s: float | None) -> int:
        running = self._running()
        if not running:
            return self._exit_code(())
        raise TransportTimeout(f"launch: rank {_join(running)} still ran after {timeout_s:g} s and was ended", running)

    def _running(self) -> list[int]:
        return sorted(self._needed - self._codes.keys())


def _free_ports(count: int) -> int:
    """Return the first of `count` free ports in a row: of torch's store, one for each attempt."""
    while True:
        first = FIRST_STEP_PORT + secrets.randbelow(NUM_STEP_PORTS - count)
        with suppress(OSError):
            for port in range(first, first + count):
                THIS_MACHINE.listen("127.0.0.1", port).close()
            return first


def _join(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))


def _terminals() -> dict[str, str]:
    """Return the widths of the terminals of standard error and output, where they are terminals."""
    columns: dict[str, str] = {}
    for name, file in (("LANTERNE_PROGRESS", sys.stderr), ("LANTERNE_COLUMNS", sys.stdout)):
        with suppress(AttributeError, OSError, ValueError):  # closed, or no terminal
            columns[name] = str(os.get_terminal_size(file.fileno()).columns)
    return columns


def _start_guards(
    processes: list[Process],
    command: Sequence[str],
    world_size: int,
    mpiexec: str | None,
    variables: dict[str, str],
) -> None:
    guard = [*own_python(), "-m", "lanterne.transport.job.guard", *command]
    if mpiexec is not None:
        processes.append(_popen([mpiexec, "-n", str(world_size), *guard], variables))
        return
    for rank in range(world_size):
        place = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank)}
        processes.append(_popen(guard, variables | place))


def _popen(command: Sequence[str], variables: Mapping[str, str]) -> Process:
    return start_child(command, env=variables, stdin=subprocess.DEVNULL, start_new_session=True)


def start_child(command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """Start a process that gets SIGTERM when this thread ends, even by SIGKILL; `options` as of Popen."""
    # It makes system calls only, so no lock that another thread held at the fork can block it.
    tie = partial(set_parent_death_signal, signal.SIGTERM, os.getpid())
    return subprocess.Popen(command, preexec_fn=tie, **options)  # noqa: PLW1509 (system calls only)


@contextmanager
def _stopping_signals() -> Iterator[list[int]]:
    """Yield a list of the SIGTERM and SIGHUP received meanwhile; only the main thread receives them."""
    stopped: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, lambda number, _frame: stopped.append(number)) for number in numbers]
    try:
        yield stopped
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _stop(processes: Sequence[Process], job: str, number: int) -> None:
    """End a job that was interrupted or is overdue, without a report; remove MPICH's shared memory.

    Args:
        number: the signal. Guards end their ranks at SIGTERM. Hydra would report each rank that ends before others, so
            it gets SIGKILL, which ends the processes below it.
    """
    if all(process.poll() is not None for process in processes):
        return
    pids = processes_of(job)
    for pid in pids:
        unlink_segments(pid)
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
    deadline = THIS_MACHINE.now_s() + STOP_S
    while THIS_MACHINE.now_s() < deadline and any(map(lives, pids)):
        THIS_MACHINE.sleep(0.01)


def lives(pid: int) -> bool:
    """Return whether process `pid` exists and has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _end(processes: Sequence[Process], job: str) -> None:
    """End the rest: give guards that have lost their store time to end their ranks, then kill by the job's id."""
    deadline = THIS_MACHINE.now_s() + END_S
    for process in processes:
        try:
            process.wait(max(0.0, deadline - THIS_MACHINE.now_s()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    while THIS_MACHINE.now_s() < deadline + END_S and (pids := processes_of(job)):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        THIS_MACHINE.sleep(0.01)


def processes_of(job: str) -> list[int]:
    """Return the pids of our processes that have the job's id in their environment."""
    marker = f"{JOB_VARIABLE}={job}".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if marker in file.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            continue
    return found
