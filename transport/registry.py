"""The transports by name, loaded when asked for."""

from importlib import import_module
from typing import TYPE_CHECKING

from lanterne.errors import InputError, one_of

if TYPE_CHECKING:
    from lanterne.transport.base import Transport
    from lanterne.transport.rank_group import Group

# name -> (module, class, one line). A class takes (group, timeout_s).
TRANSPORTS: dict[str, tuple[str, str, str]] = {
    "mpi": ("mpi.over_mpi", "MpiTransport", "MPI point to point, through mpi4py"),
    "ucx": ("ucx.over_ucx", "UcxTransport", "UCX: RDMA where there is a NIC, shared memory and TCP elsewhere"),
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


def open_transport(name: str, group: "Group", timeout_s: float | None = None) -> "Transport":
    """The transport `name` between the ranks of `group`.

    Raises:
        InputError: no transport of that name.
        Unavailable: its library is missing here.
    """
    module, cls, _ = find_transport(name)
    opened: "Transport" = getattr(import_module(f".{module}", __package__), cls)(group, timeout_s)
    return opened
