"""The transports by name, loaded when asked for."""

from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from lanterne.errors import InputError, Unavailable, one_of
from lanterne.transport.job.bootstrap import in_a_job, is_started_by_mpi
from lanterne.transport.networks import has_rdma, is_encrypted, refuse_if_encrypted

if TYPE_CHECKING:
    from lanterne.transport.base import Transport
    from lanterne.transport.rank_group import Group

# name -> (module, class, one line). A class takes (group, timeout_s).
TRANSPORTS: dict[str, tuple[str, str, str]] = {
    "mpi": ("mpi.over_mpi", "MpiTransport", "MPI point to point, through mpi4py"),
    "ucx": ("ucx.over_ucx", "UcxTransport", "UCX: RDMA where there is a NIC, shared memory and TCP elsewhere"),
    "tcp": ("tcp.over_tcp", "TcpTransport", "TCP connections of our own, sealed between hosts: no library"),
    "nccl": (
        "nccl.over_nccl",
        "NcclTransport",
        "NCCL between GPUs, through CuPy; host memory beside it by mpi, ucx or TCP",
    ),
}


def find_transport(name: str) -> tuple[str, str, str]:
    """The line of TRANSPORTS of transport `name`.

    Raises:
        InputError: no transport of that name.
    """
    if name not in TRANSPORTS:
        raise InputError(f"transport: {one_of(name, ('local', *TRANSPORTS))}")
    return TRANSPORTS[name]


def open_transport(
    name: str, group: "Group", timeout_s: float | None = None, before: "Transport | None" = None
) -> "Transport":
    """Open transport `name` between the ranks of `group`.

    Args:
        before: this rank's transport of that name in the epoch before, whose communicator NCCL may grow; it stays open.

    Raises:
        InputError: no transport of that name, or it encrypts nothing and is to.
        Unavailable: its library is missing here.
    """
    module, cls, _ = find_transport(name)
    if name != "tcp" and len(set(group.hosts)) > 1:
        refuse_if_encrypted(f"transport {name} between hosts")
    makes = getattr(import_module(f".{module}", __package__), cls)
    opened: Transport = makes(group, timeout_s, before=before) if name == "nccl" else makes(group, timeout_s)
    return opened


def usual_transport() -> str:
    """The transport of a command that names none: mpi where MPI is, or started it, else ucx where that is, else tcp."""
    try:
        by_mpi, is_rank = is_started_by_mpi(), in_a_job()
    except InputError:
        return "mpi"  # Half a job: the command says what is wrong.
    if by_mpi:
        return "mpi"
    if not is_rank and find_spec("mpi4py"):
        from lanterne.transport.job.launch import find_mpiexec

        with suppress(Unavailable):
            find_mpiexec()
            return "mpi"
    return "ucx" if find_spec("ucxx") or find_spec("ucp") else "tcp"


def host_transport(group: "Group", timeout_s: float | None = None, *, by_mpi: bool = True) -> str:
    """The transport for host memory of a job, the same on every rank: mpi under an MPI launcher, else ucx or tcp.

    Not `by_mpi`: the job is not the launcher's.

    It is ucx where every rank has it, and all share a host, or all hosts have RDMA; networks.py says why. It is tcp
    between hosts where one rank says that it is to be encrypted.

    Raises:
        InputError: LANTERNE_ENCRYPT is neither 0 nor 1.
        TransportTimeout, PeerFailed: as Group.exchange.
    """
    if by_mpi and is_started_by_mpi() and not (is_encrypted() and len(set(group.hosts)) > 1):
        return "mpi"
    one_host = len(set(group.hosts)) == 1
    # Where it is not to be used it is not loaded either, which takes half a second.
    takes_ucx = (one_host or (has_rdma() and not is_encrypted())) and has_ucx()
    ranks = group.exchange("lanterne/host-transport", bytes((takes_ucx,)), timeout_s)
    return "ucx" if all(told == b"\1" for told in ranks) else "tcp"


def has_ucx() -> bool:
    """Whether UCX and its Python load here."""
    from lanterne.transport.ucx.worker import load_ucxx

    try:
        load_ucxx()
    except Unavailable:
        return False
    return True
