"""Start of a process in its job: its rank, the other ranks, and their store, before any transport exists.

`connect()` asks `launchers.find_launch` what started this process:
1. our launcher (`-n`): LANTERNE_STORE, host:port or a URL, and LANTERNE_TOKEN, with RANK and WORLD_SIZE;
2. an MPI launcher: rank 0 starts the store and broadcasts its address and a fresh token over MPI;
3. torchrun-style variables RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: rank 0 starts the store there, without MPI.
   A MASTER_ADDR that is not loopback needs a LANTERNE_TOKEN that is the same on all ranks;
4. Slurm's srun without MPI: as 3, on the step's first host, at a port that follows from the job and the step. The token
   may come from the user's key (secret.py), as for 3 on loopback;
5. none of these: a job of one rank.

The store listens on one address only. It is loopback where all ranks share a host (2), MASTER_ADDR (3) or the first
host (4). Where MASTER_ADDR is another host than rank 0's, a rank there starts the store. Every other address that a
rank shows is the one by which it has reached the meeting place (`shown_address`). LANTERNE_BIND, an address or an
interface, overrides all of them, and LANTERNE_PORT overrides MASTER_PORT.

The job ends with the host of its store. Where LANTERNE_STORE is the URL of a Redis, the ranks find the store's address
there, and a store on another host takes over (transport/store/redis_lease.py); 3 and 4 need no address then.

`connect` has one deadline. A name that has no address yet, a store and ranks that are not there yet all share it.
"""

import fcntl
import logging
import os
import secrets
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from lanterne.errors import InputError, LanterneError, TransportError, TransportTimeout, Unavailable
from lanterne.transport.job.guard import descendants
from lanterne.transport.job.launchers import Launch, find_launch, find_step, in_a_batch_script, ranks_beside
from lanterne.transport.job.room import check_shared_memory, make_room_for_files
from lanterne.transport.job.secret import job_secret
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.networks import is_loopback
from lanterne.transport.rank_group import Group, host_identity, refuse_mixed_mpi
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.follow import begin, connect_to, follow, port_of
from lanterne.transport.store.process import StoreProcess
from lanterne.transport.store.redis_lease import RedisLease, is_url, lease_of
from lanterne.transport.store.terms import ANY, Terms
from lanterne.transport.timeouts import DEFAULT_TIMEOUT_S, RETRY_S

if TYPE_CHECKING:
    from mpi4py import MPI
SIOCGIFADDR = 0x8915  # Linux: ask for an interface's address
# Without LANTERNE_TOKEN and without a user's key, on loopback only: it keeps out accidents but no local user.
OPEN_TOKEN = "loopback-without-a-secret"
# How long the port of a job that was killed may still be taken; how long a rank beside MASTER_ADDR waits for rank 0's
# store before it starts one itself.
PORT_S, STANDS_IN_S = 4.0, 2.0
# Networks for documentation (RFC 5737, RFC 3849): the way there is the default route.
FAR_AWAY = ("192.0.2.1", "2001:db8::1")
STORE = "LANTERNE_STORE"

# Variables that are no more, and what replaces them.
REMOVED = {
    "LANTERNE_SPARE": "LANTERNE_JOIN, or --restarts of `lanterne launch`",
    "LANTERNE_WITNESS": "LANTERNE_STORE=redis://HOST:PORT, a Redis that outlives the hosts of the job",
}

log: logging.Logger = logging.getLogger(__name__)


def in_a_job() -> bool:
    """Return whether a launcher, ours or another, started this process as one of its ranks.

    Raises:
        InputError: a launcher gives half of its variables, or two contradict each other.
    """
    return find_launch(os.environ).launcher.way != "alone"


def is_started_by_mpi() -> bool:
    """Return whether an MPI launcher started this process, also on behalf of our launcher."""
    launch = find_launch(os.environ)
    return launch.launcher.way == "mpi" or os.environ.get("LANTERNE_LAUNCHER") == "mpi"


def launched_rank() -> int:
    """Return the rank that a launcher gave this process in its environment; 0 where it gave none."""
    with suppress(InputError):
        return find_launch(os.environ).rank
    return 0


def launched_world_size() -> int:
    """Return how many ranks a launcher started, as the environment says; 1 where it says nothing."""
    with suppress(InputError):
        return max(1, find_launch(os.environ).world_size)
    return 1


def connect(timeout_s: float | None = None) -> Group:
    """Return the Group of the job that this process belongs to, once all ranks are there; see the module.

    An error that ends the process is one line, without a traceback, for the person who starts the job.

    Args:
        timeout_s: seconds to wait for names, the store and the other ranks; None for LANTERNE_TIMEOUT_S, 60.

    Raises:
        InputError: a variable has no valid value, a launcher gives half of its variables, or two contradict each other.
        Unavailable: the store cannot listen where it should, or MPI launcher and library do not belong together.
        TransportTimeout: a rank, or the store, is missing.
    """
    try:
        _refuse_removed()
        return _connect(find_launch(os.environ), timeout_s)
    except LanterneError as error:
        tell_in_one_line(error)
        raise


def _refuse_removed() -> None:
    """Raise InputError where a variable is set that is no more."""
    for name, instead in REMOVED.items():
        if name in os.environ:
            raise InputError(f"{name}: got {os.environ[name]!r}, but it is no more; expected {instead}")


def _connect(launch: Launch, timeout_s: float | None) -> Group:
    if launch.world_size > 1:
        make_room_for_files(launch.world_size)
    match launch.launcher.way:
        case "store":
            return _connect_to_launcher(launch, timeout_s)
        case "mpi":
            return _connect_by_mpi(launch, timeout_s)
        case "address":
            return _connect_by_address(launch, _deadline_s(timeout_s))
        case "step":
            return _connect_by_step(launch, _deadline_s(timeout_s))
    if (num_tasks := in_a_batch_script(os.environ)) > 1:
        log.warning(
            "lanterne: this process is a job of one rank: it is Slurm's batch script, and no task of the %d; `srun` "
            "before the program starts it on all",
            num_tasks,
        )
    return Group(0, 1)


def ask_to_join(address: str, place: int | None, terms: Terms, timeout_s: float | None = None) -> tuple[Group, Terms]:
    """Return the Group that this process enters with the ranks of a running job, and its Terms (collectives/growth.py).

    An error that ends the process is one line, as of `connect`.

    Args:
        address: host:port of its store, or the URL of the Redis that says where it is.
        place: the rank that it was, or stands for; None: RANK, else any.

    Raises:
        InputError: an address or a place that cannot be.
        TransportError: it is not taken in; says why.
    """
    try:
        _refuse_removed()
        return _ask_to_join(address, place, terms, timeout_s)
    except LanterneError as error:
        tell_in_one_line(error)
        raise


def _ask_to_join(address: str, place: int | None, terms: Terms, timeout_s: float | None) -> tuple[Group, Terms]:
    host, _, port = address.rpartition(":")
    if not host:
        raise InputError(f"join: got {address!r}, expected host:port")
    number = os.environ.get("RANK", "")
    if place is None:
        place = int(number) if number.isdecimal() else ANY
    if type(place) is not int or place < ANY:
        raise InputError(f"join: got place {place!r}, expected a rank; spare places are no more: leave it out")
    until_s = _deadline_s(timeout_s)
    token = os.environ.get("LANTERNE_TOKEN")
    if not is_url(address):
        port_of("join", port)  # before a name is waited for
        _resolve("join", host, until_s)
    if token is None:
        if is_url(address) or not is_loopback(host):
            raise InputError(f"join: got {host} and no LANTERNE_TOKEN, expected that of the job")
        token = job_secret(f"port {port_of('join', port)}") or OPEN_TOKEN
    store = connect_to(address, token, _left_s(until_s))
    limit_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
    # Only our launcher has guards, each with a number.
    own = int(number) if number.isdecimal() and "LANTERNE_LAUNCHER" in os.environ else -1
    try:
        return Group.taken_in(store, terms, limit_s, place, own)
    except BaseException:
        store.close()
        raise


class MeetingPlace(Protocol):
    """Store of another library, where ranks meet before they have ours."""

    def set(self, key: str, value: str, /) -> object:
        """Store `value` under `key`."""

    def get(self, key: str, /) -> bytes:
        """Return the value of `key`, as soon as it is set."""
        ...


def connect_at(place: MeetingPlace, rank: int, world_size: int, timeout_s: float | None = None) -> Group:
    """Return the Group of `world_size` ranks that meet at `place`, where rank 0 publishes the address of our store.

    Raises:
        InputError: a rank that cannot be.
        Unavailable: rank 0 cannot listen.
        TransportTimeout: our store, or a rank, is missing; else the errors of `place`.
    """
    if not 0 <= rank < world_size:
        raise InputError(f"join: got rank {rank} of {world_size}, expected 0 to {world_size - 1}")
    if world_size == 1:
        return Group(0, 1)
    make_room_for_files(world_size)
    place.set(f"lanterne/host/{rank}", host_identity())
    process = None
    if rank == 0:
        hosts = {place.get(f"lanterne/host/{other}") for other in range(world_size)}
        process, told = _start_and_tell(several_hosts=len(hosts) > 1, reached=_reached(place))
        place.set("lanterne/store", told)
    return _group_at(place.get("lanterne/store").decode(), rank, world_size, process, timeout_s)


def _reached(place: object) -> str:
    """Return the address by which this host reaches `place`; empty where it does not say where it is."""
    while (inner := getattr(place, "underlying_store", None)) is not None:
        place = inner
    host, port = getattr(place, "host", ""), getattr(place, "port", 0)
    with suppress(OSError, TypeError):
        return _own_address((host, port)) if host else ""
    return ""


def _start_and_tell(*, several_hosts: bool, reached: str = "") -> tuple[StoreProcess | None, str]:
    """Start a store; return it, and its address and token for the other ranks, or an error for them."""
    try:
        token = secrets.token_hex(16)
        bind, lease = shown_address(reached, several_hosts=several_hosts), lease_of(token)
        process = begin(lease, token, bind, "members") if lease else StoreProcess(token, bind, until="members")
    except (Unavailable, InputError) as error:
        return None, f"!{error}"
    return process, f"{process.address[0]} {process.address[1]} {token}"


def _group_at(told: str, rank: int, world_size: int, process: StoreProcess | None, timeout_s: float | None) -> Group:
    """Return the Group at the store of `_start_and_tell`."""
    if told.startswith("!"):
        raise Unavailable(told[1:])
    host, port, token = told.split(" ")
    lease = lease_of(token)
    if lease is None:
        return Group(rank, world_size, StoreClient((host, int(port)), token, timeout_s), process, timeout_s)
    lease.bind = bind_beside(lease)
    return Group(rank, world_size, follow(lease, token, timeout_s), process, timeout_s)


def tell_in_one_line(told: LanterneError) -> None:
    """Have Python print the error `told` without a traceback if it ends this process."""

    def tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if error is told:
            sys.stderr.write(f"lanterne: {error}\n")
        else:
            before(kind, error, traceback)

    before = sys.excepthook
    if before is sys.__excepthook__ or before.__module__ == __name__:
        sys.excepthook = tell


def _deadline_s(timeout_s: float | None) -> float:
    """Return the deadline of a start of `timeout_s` seconds, by this machine's clock."""
    return THIS_MACHINE.now_s() + (DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s)


def _left_s(until_s: float) -> float:
    """Return how many seconds are left."""
    return max(round(until_s - THIS_MACHINE.now_s(), 1), 0.0)


def _connect_to_launcher(launch: Launch, timeout_s: float | None) -> Group:
    client = connect_to(os.environ[STORE], os.environ.get("LANTERNE_TOKEN", ""), timeout_s)
    return Group(launch.rank, launch.world_size, client, timeout_s=timeout_s)


def _connect_by_mpi(launch: Launch, timeout_s: float | None) -> Group:
    from lanterne.transport.mpi.library import choose_library, segments, unlink_segments
    from lanterne.transport.mpi.over_mpi import finalize_with, load_mpi

    choose_library(launch.launcher.library, launch.launcher.name)
    if "mpi4py.MPI" not in sys.modules:
        mpich = launch.launcher.library == "mpich"
        ranks = ranks_beside(os.environ, launch.world_size)
        taken = set[str]().union(*map(segments, descendants(os.getppid()))) if mpich else ()
        check_shared_memory(ranks, os.environ, mpich=mpich, segments=taken)
    comm = load_mpi().COMM_WORLD
    expected = launch.world_size or comm.size
    if comm.size != expected:
        refuse_mixed_mpi(launch.rank, comm.size, expected)
    if comm.size == 1:
        return Group(0, 1)
    hosts = _mpi_all_gather(comm, host_identity().encode())
    process, told = None, ""
    if comm.rank == 0:
        process, told = _start_and_tell(several_hosts=len(set(hosts)) > 1)
    message = _mpi_all_gather(comm, told.encode())[0].decode()
    unlink_segments()
    group = _group_at(message, comm.rank, comm.size, process, timeout_s)
    finalize_with(group)
    return group


def _mpi_all_gather(comm: "MPI.Intracomm", payload: bytes) -> list[bytes]:
    """Return the first 512 bytes of every rank, by rank; buffers only: mpi4py's lower-case verbs would unpickle."""
    import numpy as np

    slot_nbytes = 512
    mine = np.zeros(slot_nbytes, np.uint8)
    payload = payload[:slot_nbytes]
    mine[: len(payload)] = np.frombuffer(payload, np.uint8)
    slots = np.empty((comm.size, slot_nbytes), np.uint8)
    comm.Allgather(mine, slots)
    return [slot.tobytes().rstrip(b"\0") for slot in slots]


def _connect_by_address(launch: Launch, until_s: float) -> Group:
    if launch.world_size == 1:
        return Group(0, 1)
    if is_url(os.environ.get(STORE, "")):
        return _meet_in_redis(launch, f"port {os.environ.get('MASTER_PORT', '')}", until_s)
    host = os.environ["MASTER_ADDR"]
    # torchrun's own agent listens on MASTER_PORT, for torch.distributed; the store then takes the next port.
    taken = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    port = port_of("MASTER_PORT", os.environ["MASTER_PORT"]) + taken
    bind = address_of(os.environ.get("LANTERNE_BIND", "")) or host
    addresses = _resolve("MASTER_ADDR", host, until_s)
    token = os.environ.get("LANTERNE_TOKEN")
    if token is None:
        public = next((address for address in (*addresses, bind) if not is_loopback(address)), None)
        if public is not None:
            raise InputError(
                f"MASTER_ADDR: got {host if public in addresses else public} and no LANTERNE_TOKEN, expected "
                "LANTERNE_TOKEN to be set alike on all ranks (a secret of 16 characters or more), or a loopback address"
            )
        token = job_secret(f"port {port}") or OPEN_TOKEN
    return _meet(launch, (host, port), bind, token, until_s)


def _connect_by_step(launch: Launch, until_s: float) -> Group:
    step = find_step(os.environ)
    if is_url(os.environ.get(STORE, "")):
        return _meet_in_redis(launch, f"slurm {step.name}", until_s)
    _resolve("SLURM_STEP_NODELIST", step.host, until_s)
    bind = address_of(os.environ.get("LANTERNE_BIND", "")) or step.host
    token = os.environ.get("LANTERNE_TOKEN") or job_secret(f"slurm {step.name}")
    if token is None:
        if not is_loopback(bind):
            raise InputError(
                "LANTERNE_TOKEN: not set, and no folder to keep a key in, expected it before srun (export "
                "LANTERNE_TOKEN=$(python3 -c 'import secrets; print(secrets.token_hex(16))')), or a HOME or "
                "LANTERNE_CACHE that all hosts share"
            )
        token = OPEN_TOKEN
    return _meet(launch, (step.host, step.port), bind, token, until_s)


def _meet(launch: Launch, address: tuple[str, int], bind: str, token: str, until_s: float) -> Group:
    """Return the Group of the ranks that know `address`, where one of them starts the store."""
    host, port = address
    if "LANTERNE_PORT" in os.environ:
        port = port_of("LANTERNE_PORT", os.environ["LANTERNE_PORT"])
    client, process = _open_store(launch.rank, (host, port), bind, token, until_s)
    return Group(launch.rank, launch.world_size, client, process, _left_s(until_s))


def _meet_in_redis(launch: Launch, job: str, until_s: float) -> Group:
    """Return the Group of the ranks that find the address of their store in the Redis of LANTERNE_STORE.

    Args:
        job: its name, of which the token is made where none is set.
    """
    url = os.environ[STORE]
    token = os.environ.get("LANTERNE_TOKEN") or job_secret(job) or OPEN_TOKEN
    lease = RedisLease(url, token)
    if token == OPEN_TOKEN and not is_loopback(lease.host):
        raise InputError(f"{STORE}: got {lease.where} and no LANTERNE_TOKEN, expected the same secret on all ranks")
    lease.bind = bind_beside(lease)
    process = begin(lease, token, lease.bind, "members", _left_s(until_s)) if launch.rank == 0 else None
    client = follow(lease, token, _left_s(until_s))
    return Group(launch.rank, launch.world_size, client, process, _left_s(until_s))


def bind_beside(lease: RedisLease) -> str:
    """Return the address where a store of this host listens: LANTERNE_BIND, else that by which it reaches Redis."""
    try:
        return address_of(os.environ.get("LANTERNE_BIND", "")) or _own_address((lease.host, lease.port))
    except OSError as error:
        raise InputError(f"{STORE}: got {lease.where}, whose host has no address: {error.strerror or error}") from None


def _open_store(
    rank: int, address: tuple[str, int], bind: str, token: str, until_s: float
) -> tuple[StoreClient, StoreProcess | None]:
    """Return the client of the store at `address`, and the store's process where this rank has started it.

    Rank 0 starts it. Where `address` is no address of its host, the first rank on that host does.
    """
    may_be_elsewhere = bind == address[0] and not is_loopback(bind)
    if rank == 0:
        process = _start_store(token, bind, address[1], may_be_elsewhere=may_be_elsewhere)
    elif may_be_elsewhere and _is_first_here():
        with suppress(TransportTimeout):
            return StoreClient(address, token, min(STANDS_IN_S, _left_s(until_s)), early=True), None
        process = _start_store(token, bind, address[1], may_be_elsewhere=True, patience_s=0.0)
    else:
        process = None
    at = address if process is None else process.address
    return StoreClient(at, token, _left_s(until_s), early=True), process


def _is_first_here() -> bool:
    """Return whether this is the first rank of its host, as far as its launcher says."""
    return all(os.environ.get(name, "0") == "0" for name in ("LOCAL_RANK", "SLURM_LOCALID"))


def _own_address(address: tuple[str, int]) -> str:
    """Return the address of this host by which it reaches `address`."""
    family, kind, protocol, _, where = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as sock:
        sock.connect(where)  # nothing is sent
        return str(sock.getsockname()[0])


def _start_store(
    token: str, bind: str, port: int, *, may_be_elsewhere: bool, patience_s: float = PORT_S
) -> StoreProcess | None:
    """Start the store, at a port that the store of a job which was just killed may leave only now.

    Args:
        may_be_elsewhere: None is returned where `bind` is another host's, or a rank of this host was quicker.
    """
    deadline = THIS_MACHINE.now_s() + patience_s
    while True:
        try:
            return StoreProcess(token, bind, port, until="members")
        except Unavailable as error:
            if may_be_elsewhere and "Cannot assign" in str(error):
                log.info("lanterne: %s is no address of this host; a rank on that host is to start the store", bind)
                return None
            if "in use" not in str(error):
                raise
            if may_be_elsewhere and _answers((bind, port), token):
                return None
            if THIS_MACHINE.now_s() > deadline:
                raise
        THIS_MACHINE.sleep(RETRY_S)


def _answers(address: tuple[str, int], token: str) -> bool:
    """Return whether a store of this job is at `address`."""
    with suppress(TransportError):
        StoreClient(address, token, STANDS_IN_S).close()
        return True
    return False


def _resolve(variable: str, host: str, until_s: float) -> list[str]:
    """Return the addresses of `host`, of the variable `variable`; wait for its name, which a pod has once it runs."""
    warn_s = THIS_MACHINE.now_s() + STANDS_IN_S
    while True:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            return [str(info[4][0]).partition("%")[0] for info in found]
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            if getattr(error, "errno", None) is None or THIS_MACHINE.now_s() + RETRY_S > until_s:
                raise InputError(
                    f"{variable}: got {host!r}, which has no address: {reason}; expected a name or an address of rank "
                    "0's host that every rank can reach"
                ) from error
        if THIS_MACHINE.now_s() > warn_s:
            warn_s = float("inf")
            left_s = _left_s(until_s)
            log.warning("lanterne: %s: %r has no address yet (%s): waits %.0f s more", variable, host, reason, left_s)
        THIS_MACHINE.sleep(RETRY_S)


def address_of(name: str) -> str:
    """Return the address of the interface `name`, IPv4 before IPv6; any other name as it is."""
    if name not in [interface for _index, interface in socket.if_nameindex()]:
        return name
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, SIOCGIFADDR, struct.pack("256s", name.encode()))
            return socket.inet_ntoa(answer[20:24])
        except OSError as error:
            reason = error.strerror
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _index, _prefix, scope, _flags, interface = line.split()
            if interface == name and scope in ("00", "10"):  # global, or this host's own
                return socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
    raise Unavailable(f"address: interface {name} has no address: {reason}")


def interface_of(address: str) -> str:
    """Return the interface that has `address`; empty where none has."""
    for _index, interface in socket.if_nameindex():
        with suppress(Unavailable):
            if address_of(interface) == address:
                return interface
    return ""


def shown_address(reached: str, *, several_hosts: bool) -> str:
    """Return the address at which this rank listens for the others.

    It is LANTERNE_BIND, else loopback on a single host, else `reached`: the own address by which this rank has reached
    the meeting place. Only where that is loopback, or there is no such place as under MPI, it is a guess: the address
    of this host's name, or of the interface that leads out.

    Raises:
        Unavailable: nothing but loopback was found.
    """
    if asked := address_of(os.environ.get("LANTERNE_BIND", "")):
        return asked
    if not several_hosts:
        return "127.0.0.1"
    for address in (*filter(None, [reached]), *_guesses()):
        if not is_loopback(address):
            return address
    raise Unavailable(
        f"address: {socket.gethostname()} names no address but loopback, and no interface leads out; set "
        "LANTERNE_BIND to one that the other hosts reach"
    )


def _guesses() -> Iterator[str]:
    """Yield addresses of this host that others may reach: of its name, of its default routes, of its only interface."""
    with suppress(OSError):  # A host may not know its own name.
        for info in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            yield str(info[4][0])
    for far_away in FAR_AWAY:
        with suppress(OSError):
            yield _own_address((far_away, 9))
    found = []
    for _index, interface in socket.if_nameindex():
        with suppress(Unavailable):
            found += [address for address in [address_of(interface)] if not is_loopback(address)]
    if len(found) == 1:
        yield from found
