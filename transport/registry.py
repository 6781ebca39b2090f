"""The transports by name, loaded when asked for."""

from importlib import import_module

from lanterne.errors import InputError, one_of

# name -> (module, class, one line). A class takes (group, timeout_s).
TRANSPORTS = {
    "mpi": ("mpi.transport", "MpiTransport", "MPI point to point, through mpi4py"),
    "ucx": ("ucx.transport", "UcxTransport", "UCX: RDMA where there is a NIC, shared memory and TCP elsewhere"),
    "nccl": (
        "nccl.transport",
        "NcclTransport",
        "NCCL between GPUs, through CuPy; host memory beside it by mpi, ucx or TCP",
    ),
}


def find_transport(name):
    """The line of TRANSPORTS of transport `name`.

    Raises:
        InputError: no transport of that name.
    """
    if name not in TRANSPORTS:
        raise InputError(f"transport: {one_of(name, ('local', *TRANSPORTS))}")
    return TRANSPORTS[name]


def open_transport(name, group, timeout_s=None):
    """The transport `name` between the ranks of `group` (bootstrap.Group).

    Raises:
        InputError: no transport of that name.
        Unavailable: its library is missing here.
    """
    module, cls, _ = find_transport(name)
    return getattr(import_module(f".{module}", __package__), cls)(group, timeout_s)
