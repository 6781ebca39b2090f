"""How a process finds its job: its rank, the others, and the store where they meet, before any transport exists.

`connect()` looks, in this order, for
1. our launcher (`-n`): LANTERNE_STORE=host:port and LANTERNE_TOKEN, with RANK and WORLD_SIZE;
2. an MPI launcher: rank 0 starts the store and broadcasts its address and a fresh token over MPI;
3. torchrun-style variables RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: rank 0 starts the store there, without MPI.
   A MASTER_ADDR that is not loopback needs a LANTERNE_TOKEN that is the same on all ranks;
4. none of these: a job of one rank.

The store listens on one address only: loopback where all ranks share a host, else that of this host's name (2), or
MASTER_ADDR (3). LANTERNE_BIND, an address or an interface, overrides both, and LANTERNE_PORT overrides MASTER_PORT.
"""

import fcntl
import os
import secrets
import socket
import struct
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING

from lanterne.errors import InputError, Unavailable
from lanterne.transport.rank_group import Group, host_identity, refuse_mixed_mpi
from lanterne.transport.store.client import StoreClient
from lanterne.transport.store.process import StoreProcess

if TYPE_CHECKING:
    from mpi4py import MPI
# Variables that MPI launchers set; the first names hold the world size.
MPI_SIZE_VARIABLES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
MPI_VARIABLES = (*MPI_SIZE_VARIABLES, "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
SIOCGIFADDR = 0x8915  # Linux: ask for an interface's address
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Without LANTERNE_TOKEN, on loopback only: no secret, so it keeps out accidents but no local user.
OPEN_TOKEN = "loopback-without-a-secret"


def in_a_job() -> bool:
    """Whether a launcher, ours or another, started this process as one of its ranks.

    Raises:
        InputError: RANK and WORLD_SIZE without MASTER_ADDR or MASTER_PORT: every rank would believe itself alone.
    """
    if "LANTERNE_STORE" in os.environ or any(name in os.environ for name in MPI_VARIABLES):
        return True
    missing = [name for name in TORCHRUN_VARIABLES if name not in os.environ]
    if missing and "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(
            f"{missing[0]}: not set beside RANK and WORLD_SIZE, expected all of {', '.join(TORCHRUN_VARIABLES)}"
        )
    return not missing


def launched_rank() -> int:
    """The rank that a launcher gave this process in its environment; 0 where it gave none."""
    for name in ("RANK", "PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"):
        text = os.environ.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return 0


def connect(timeout_s: float | None = None) -> Group:
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
    if in_a_job():
        return _connect_by_torchrun(timeout_s)
    return Group(0, 1)


def _connect_to_launcher(timeout_s: float | None) -> Group:
    rank, world_size = _rank_and_world_size()
    host, _, port = os.environ["LANTERNE_STORE"].rpartition(":")
    client = StoreClient((host, _port("LANTERNE_STORE", port)), os.environ.get("LANTERNE_TOKEN", ""), timeout_s)
    return Group(rank, world_size, client, timeout_s=timeout_s)


def _connect_by_mpi(timeout_s: float | None) -> Group:
    from lanterne.transport.mpi.library import unlink_segments
    from lanterne.transport.mpi.over_mpi import finalize_with, load_mpi

    comm = load_mpi().COMM_WORLD
    expected = next((int(os.environ[name]) for name in MPI_SIZE_VARIABLES if name in os.environ), comm.size)
    if comm.size != expected:
        refuse_mixed_mpi(launched_rank(), comm.size, expected)
    if comm.size == 1:
        return Group(0, 1)
    hosts = _mpi_all_gather(comm, host_identity().encode())
    process, told = None, b""
    if comm.rank == 0:
        # A failure is broadcast too, so that no rank waits for what will never come.
        try:
            token = secrets.token_hex(16)
            process = StoreProcess(token, listen_address(several_hosts=len(set(hosts)) > 1), until="members")
            told = f"{process.address[0]} {process.address[1]} {token}".encode()
        except (Unavailable, InputError) as error:
            told = b"!" + str(error).encode()
    message = _mpi_all_gather(comm, told)[0].decode()
    unlink_segments()
    if message.startswith("!"):
        raise Unavailable(message[1:])
    host, port, token = message.split(" ")
    group = Group(comm.rank, comm.size, StoreClient((host, int(port)), token, timeout_s), process, timeout_s)
    finalize_with(group)
    return group


def _mpi_all_gather(comm: "MPI.Intracomm", payload: bytes) -> list[bytes]:
    """The first 512 bytes of every rank, by rank; buffers only: mpi4py's lower-case verbs would unpickle."""
    import numpy as np

    slot_nbytes = 512
    mine = np.zeros(slot_nbytes, np.uint8)
    payload = payload[:slot_nbytes]
    mine[: len(payload)] = np.frombuffer(payload, np.uint8)
    slots = np.empty((comm.size, slot_nbytes), np.uint8)
    comm.Allgather(mine, slots)
    return [slot.tobytes().rstrip(b"\0") for slot in slots]


def _connect_by_torchrun(timeout_s: float | None) -> Group:
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
    bind = address_of(os.environ.get("LANTERNE_BIND", "")) or host
    if token is None:
        public = next((address for address in (host, bind) if not _is_loopback(address)), None)
        if public is not None:
            raise InputError(
                f"MASTER_ADDR: got {public} and no LANTERNE_TOKEN, expected LANTERNE_TOKEN to be set alike on all "
                "ranks (a secret of 16 characters or more), or a loopback address"
            )
        token = OPEN_TOKEN
    process = StoreProcess(token, bind, port, until="members") if rank == 0 else None
    address = process.address if process else (host, port)
    return Group(rank, world_size, StoreClient(address, token, timeout_s, early=True), process, timeout_s)


def _rank_and_world_size() -> tuple[int, int]:
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


def _port(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 16):
        raise InputError(f"{name}: got port {text!r}, expected 1 to 65535")
    return int(text)


def _is_loopback(host: str) -> bool:
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise InputError(f"MASTER_ADDR: got {host!r}, which has no address: {error.strerror}") from error
    return all(ip_address(address.partition("%")[0]).is_loopback for address in found)


def address_of(name: str) -> str:
    """The address of the interface `name`; any other name as it is."""
    if name not in [interface for _index, interface in socket.if_nameindex()]:
        return name
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, SIOCGIFADDR, struct.pack("256s", name.encode()))
        except OSError as error:
            raise Unavailable(f"address: interface {name} has no IPv4 address: {error.strerror}") from error
    return socket.inet_ntoa(answer[20:24])


def listen_address(*, several_hosts: bool) -> str:
    """The one address that the store listens on: LANTERNE_BIND, loopback on a single host, else this host's own."""
    if asked := address_of(os.environ.get("LANTERNE_BIND", "")):
        return asked
    if not several_hosts:
        return "127.0.0.1"
    with suppress(socket.gaierror):  # A host may not know its own name.
        for info in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            address = str(info[4][0])
            if not ip_address(address.partition("%")[0]).is_loopback:
                return address
    raise Unavailable(
        f"address: {socket.gethostname()} names no address but loopback; set LANTERNE_BIND to one the other hosts reach"
    )
