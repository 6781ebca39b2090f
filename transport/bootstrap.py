"""How a process finds its job: its rank, the others, and the store where they meet, before any transport exists.

`connect()` looks, in this order, for
1. our launcher (`-n`): LANTERNE_STORE=host:port and LANTERNE_TOKEN, with RANK and WORLD_SIZE;
2. an MPI launcher: rank 0 starts the store and broadcasts its address and a fresh token over MPI;
3. torchrun-style variables RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: rank 0 starts the store there, no MPI needed. Ranks on
   other hosts than the first need a LANTERNE_TOKEN that is the same on all;
4. none of these: a job of one rank.

The store listens on loopback where all ranks share a host, else on one address only: LANTERNE_BIND, MASTER_ADDR (3), or the one
that this host's name has (2). LANTERNE_PORT overrides MASTER_PORT.
"""

import atexit
import os
import secrets
import socket
import sys
import time
import weakref
from ipaddress import ip_address

from ..errors import InputError, PeerFailed, TransportError, TransportTimeout, Unavailable
from .store_client import StoreClient
from .store_process import StoreProcess
from .wire import Kind, unpack_fields

# A look at the control socket costs a system call, so waiting loops take one only so often.
LOOK_S = 2e-3
# What a rank sent before it left may still be on its way; a wait on it that lasts longer will never end.
LEFT_GRACE_S = 1.0
FOREVER_S = 1e6
# Variables that MPI launchers set; the first names hold the world size.
MPI_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
MPI_VARIABLES = (*MPI_SIZE_VARIABLES, "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Without LANTERNE_TOKEN, on loopback only: no secret, so it keeps out accidents but no local user.
OPEN_TOKEN = "loopback-without-a-secret"


class Group:
    """The ranks of a job, and what they can tell each other before and beside any transport. For one thread of each rank.

    Attributes:
        rank, world_size: ints.
        host: this host's identity (str); `hosts` has every rank's. Equal: same kernel, and shared memory is shared.
        store: the StoreClient; None in a job of one rank.
        ends_together: set by who will call `end_together`, so that `leave` keeps the connection for it.
    """

    def __init__(self, rank, world_size, store=None, store_process=None, timeout_s=None):
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.host = host_identity()
        self.hosts = (self.host,)
        self.ends_together = False
        self._store_process = store_process
        self._failed, self._left = {}, {}
        self._next_look = 0.0
        self._closed = False
        self._pid = os.getpid()
        if store is not None:
            self._join(timeout_s)

    def _join(self, timeout_s):
        try:
            self.store.call(Kind.JOIN, [self.rank, self.world_size], timeout_s)
            hosts = self.exchange("lanterne/hosts", self.host.encode(), timeout_s)
        except BaseException:
            self.store.close()
            raise
        self.hosts = tuple(host.decode(errors="replace") for host in hosts)
        atexit.register(self._leave_at_exit)
        itself = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: itself() and itself()._forget())

    def exchange(self, name, payload, timeout_s=None):
        """Give every rank each rank's bytes: a list by rank. All ranks call it with the same `name`, in the same order.

        Raises:
            TransportTimeout: a rank did not come in time; names those.
            PeerFailed: a rank died or left before it came.
        """
        if self.store is None:
            return [bytes(payload)]
        encoded = name.encode()
        self._look()
        self._check_all_present()
        try:
            return self.store.call(Kind.GATHER, [encoded, payload], timeout_s, f"exchange {name!r}", self._check_all_present)
        except TransportTimeout as error:
            absent = self.store.call(Kind.ABSENT, [encoded], 1.0)
            names = ", ".join(map(str, absent))
            raise TransportTimeout(f"{error}: rank {self.rank} waits for rank {names}", absent) from error

    def barrier(self, name="lanterne/barrier", timeout_s=None):
        """Return once every rank has called it. Raises as `exchange`."""
        self.exchange(name, b"", timeout_s)

    def check_peers(self, peers=None):
        """Raise PeerFailed if one of the ranks `peers` (default: any) has died, or left LEFT_GRACE_S ago although it is still
        waited for. For waiting loops: it never blocks.

        Raises:
            TransportError: the store is lost, so deaths could no longer be noticed.

        Cost: some 0.2 us; one system call every LOOK_S.
        """
        try:
            if self.store is not None and not self._closed and time.monotonic() >= self._next_look:
                self._look()
                self._next_look = time.monotonic() + LOOK_S
        finally:
            # A death that was told before the store was lost says more than that loss.
            if self._failed:
                for rank in self._failed if peers is None else peers:
                    if rank in self._failed:
                        raise PeerFailed(rank, self._failed[rank])
        if self._left and peers is not None:
            for rank in peers:
                if time.monotonic() - self._left.get(rank, float("inf")) > LEFT_GRACE_S:
                    raise PeerFailed(rank, "it has left the job")

    def failed(self):
        """The dead ranks and why, as far as is known without asking: a dict, first death first."""
        return dict(self._failed)

    def check_mpi_world(self, size):
        """Raise Unavailable if MPI made a world of `size` ranks, not of ours: two MPI installations are mixed up.

        So that a user reads it once, the ranks other than 0 end quietly with the same exit code (3).
        """
        if size == self.world_size:
            return
        self.close()
        _mixed_up_mpi(self.rank, size, self.world_size)

    def leave(self):
        """Say goodbye: the end of this process is no death from now on. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self.store is None or os.getpid() != self._pid:
            return
        atexit.unregister(self._leave_at_exit)
        try:
            self.store.call(Kind.LEAVE, timeout_s=5.0)
        except TransportError:
            pass  # the store is gone: there is nobody to tell
        if not self.ends_together:
            self.store.close()
        if self._store_process is not None:
            self._store_process.close()

    close = leave

    def end_together(self, willing):
        """Whether every rank is `willing` to end in order, as MPI_Finalize needs, which would wait for ever for one that is not.

        For the end of the process, once, also after `leave`. Returns when all have said so, or one has not or has died.
        """
        if self.store is None:
            return willing
        self._leave_at_exit()
        try:
            return willing and bool(self.store.call(Kind.END, [1], FOREVER_S)[0])
        except TransportError:
            return False
        finally:
            self.store.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def _leave_at_exit(self):
        # A script that just ends has left. An uncaught exception, or an end after another's death, is a death.
        if self._failed or hasattr(sys, "last_value"):
            self._closed = True
            self.store.close()
        self.leave()

    def _forget(self):
        # A forked child must not keep the connection open when its parent dies, nor speak on it.
        self._closed = True
        self.store.close()

    def _look(self):
        try:
            self.store.pump()
        finally:
            self._read_notices()

    def _read_notices(self):
        notices = self.store.notices
        while notices:
            kind, body = notices.popleft()
            if kind == Kind.DIED_NOTICE:
                rank, reason = unpack_fields(body, "ib")
                self._failed.setdefault(rank, reason.decode(errors="replace"))
            elif kind == Kind.LEFT_NOTICE:
                (rank,) = unpack_fields(body, "i")
                self._left[rank] = time.monotonic()

    def _check_all_present(self):
        self._read_notices()
        for rank, reason in self._failed.items():
            raise PeerFailed(rank, reason)
        for rank in self._left:
            raise PeerFailed(rank, "it has left the job")


def in_a_job():
    """Whether a launcher, ours or another, started this process as one of its ranks."""
    launched = "LANTERNE_STORE" in os.environ or any(name in os.environ for name in MPI_VARIABLES)
    return launched or all(name in os.environ for name in TORCHRUN_VARIABLES)


def launched_rank():
    """The rank that a launcher gave this process in its environment; 0 where it gave none."""
    for name in ("RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"):
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return 0


def connect(timeout_s=None):
    """The Group of the job that this process belongs to; see the module. Returns once all ranks are there.

    Args:
        timeout_s: seconds to wait for the store and for the other ranks; None for LANTERNE_TIMEOUT_S, 60.

    Raises:
        InputError: a variable has no valid value.
        Unavailable: the store cannot listen where it should, or MPI launcher and library do not belong together.
        TransportTimeout: a rank, or the store, did not come.
    """
    if "LANTERNE_STORE" in os.environ:
        return _connect_to_launcher(timeout_s)
    if any(name in os.environ for name in MPI_VARIABLES):
        return _connect_by_mpi(timeout_s)
    if all(name in os.environ for name in TORCHRUN_VARIABLES):
        return _connect_by_torchrun(timeout_s)
    return Group(0, 1)


def host_identity():
    """A string that two processes share exactly if they share a kernel and its shared memory. LANTERNE_HOST_ID overrides it."""
    if "LANTERNE_HOST_ID" in os.environ:
        return os.environ["LANTERNE_HOST_ID"]
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/ipc')}"
    except OSError:
        return socket.gethostname()


def _connect_to_launcher(timeout_s):
    rank, world_size = _rank_and_world_size()
    host, _, port = os.environ["LANTERNE_STORE"].rpartition(":")
    client = StoreClient((host, _port("LANTERNE_STORE", port)), os.environ.get("LANTERNE_TOKEN", ""), timeout_s)
    return Group(rank, world_size, client, timeout_s=timeout_s)


def _connect_by_mpi(timeout_s):
    from .mpi import finalize_with, load_mpi

    comm = load_mpi().COMM_WORLD
    expected = next((int(os.environ[name]) for name in MPI_SIZE_VARIABLES if name in os.environ), comm.size)
    if comm.size != expected:
        rank = next((int(os.environ[name]) for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ), 0)
        _mixed_up_mpi(rank, comm.size, expected)
    if comm.size == 1:
        return Group(0, 1)
    hosts = _mpi_all_gather(comm, host_identity().encode())
    process, message = None, b""
    if comm.rank == 0:
        # A failure is broadcast too, so that no rank waits for what will never come.
        try:
            token = secrets.token_hex(16)
            process = StoreProcess(token, _listen_address(len(set(hosts)) > 1), until="members")
            message = f"{process.address[0]} {process.address[1]} {token}".encode()
        except (Unavailable, InputError) as error:
            message = b"!" + str(error).encode()
    message = _mpi_all_gather(comm, message)[0].decode()
    if message.startswith("!"):
        raise Unavailable(message[1:])
    host, port, token = message.split(" ")
    group = Group(comm.rank, comm.size, StoreClient((host, int(port)), token, timeout_s), process, timeout_s)
    finalize_with(group)
    return group


def _mpi_all_gather(comm, payload):
    """Every rank's bytes, by rank, at most 512 each; buffers only, since mpi4py's lower-case verbs would unpickle."""
    import numpy as np

    slot_nbytes = 512
    mine = np.zeros(slot_nbytes, np.uint8)
    mine[: len(payload)] = np.frombuffer(payload, np.uint8)
    slots = np.empty((comm.size, slot_nbytes), np.uint8)
    comm.Allgather(mine, slots)
    return [slot.tobytes().rstrip(b"\0") for slot in slots]


def _connect_by_torchrun(timeout_s):
    rank, world_size = _rank_and_world_size()
    if world_size == 1:
        return Group(0, 1)
    host = os.environ["MASTER_ADDR"]
    # torchrun's own agent listens on MASTER_PORT, for torch.distributed; the store then takes the next port.
    taken = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    port = _port("MASTER_PORT", os.environ["MASTER_PORT"]) + taken
    if "LANTERNE_PORT" in os.environ:
        port = _port("LANTERNE_PORT", os.environ["LANTERNE_PORT"])
    token = os.environ.get("LANTERNE_TOKEN")
    bind = os.environ.get("LANTERNE_BIND", host)
    if token is None:
        public = next((address for address in (host, bind) if not _is_loopback(address)), None)
        if public is not None:
            raise InputError(
                f"MASTER_ADDR: got {public} and no LANTERNE_TOKEN, expected LANTERNE_TOKEN to be set alike on all ranks "
                "(a secret of 16 characters or more), or a loopback address"
            )
        token = OPEN_TOKEN
    process = StoreProcess(token, bind, port, until="members") if rank == 0 else None
    return Group(rank, world_size, StoreClient((host, port), token, timeout_s, early=True), process, timeout_s)


def _rank_and_world_size():
    numbers = []
    for name in ("RANK", "WORLD_SIZE"):
        text = os.environ.get(name, "")
        if not (text.isascii() and text.isdigit()):
            raise InputError(f"{name}: got {text!r}, expected a number")
        numbers.append(int(text))
    rank, world_size = numbers
    if not rank < world_size:
        raise InputError(f"RANK: got {rank}, expected less than WORLD_SIZE, {world_size}")
    return rank, world_size


def _port(name, text):
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16):
        raise InputError(f"{name}: got port {text!r}, expected 1 to 65535")
    return int(text)


def _is_loopback(host):
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise InputError(f"MASTER_ADDR: got {host!r}, which has no address: {error.strerror}") from error
    return all(ip_address(address.partition("%")[0]).is_loopback for address in found)


def _listen_address(several_hosts):
    """The one address that rank 0's store listens on: LANTERNE_BIND, loopback on a single host, else this host's own."""
    if "LANTERNE_BIND" in os.environ:
        return os.environ["LANTERNE_BIND"]
    if not several_hosts:
        return "127.0.0.1"
    for info in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
        if not ip_address(info[4][0].partition("%")[0]).is_loopback:
            return info[4][0]
    raise Unavailable(f"store: {socket.gethostname()} has only loopback addresses; set LANTERNE_BIND to one the other hosts reach")


def _mixed_up_mpi(rank, size, expected):
    if rank != 0:
        sys.exit(3)
    if os.environ.get("LANTERNE_LAUNCHER") == "direct":
        raise Unavailable("MPI: this job was launched without it; launch it with mpiexec, or use a transport that needs no MPI")
    raise Unavailable(
        f"MPI: got a world of {size} ranks, expected {expected}: the mpiexec and the MPI library of mpi4py do not belong "
        "together; use the mpiexec of the MPI that `python -c 'from mpi4py import MPI; print(MPI.Get_library_version())'` names"
    )
