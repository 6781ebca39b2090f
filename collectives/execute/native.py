"""The transport library's own collectives, as the algorithm "native": those of MPI, and NCCL's all-reduce.

The blocking call is the library's blocking call, as its users know it: it has no timeout and notices no death (give
`timeout_s` for its nonblocking form, which has both), and nothing checks that the ranks agree.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from lanterne.collectives.execute.arguments import CheckedCall, Key
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.execute.plans import offered_algorithms
from lanterne.collectives.execute.requests import NativeRequest
from lanterne.errors import InputError, TransportError
from lanterne.kernels.dtypes import Dtype
from lanterne.transport.base import Transport

_MPI_COLLECTIVES = {
    "all_reduce": "Allreduce",
    "reduce_scatter": "Reduce_scatter_block",
    "all_gather": "Allgather",
    "broadcast": "Bcast",
    "reduce": "Reduce",
    "all_to_all": "Alltoall",
    "barrier": "Barrier",
}
_MPI_HAS_NO = ("bfloat16", "float16")
_MPI_OPS = {"sum": "SUM", "mean": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}


def offers(transport: Transport, collective: str, dtype_name: str | None = None) -> bool:
    """True if `transport` has a `collective` of its own; of elements of `dtype_name`, if given."""
    computes = collective in ("all_reduce", "reduce_scatter", "reduce")
    if transport.name == "nccl":
        return collective == "all_reduce" and dtype_name not in ("int16", "uint16")
    return transport.name == "mpi" and collective in _MPI_COLLECTIVES and not (computes and dtype_name in _MPI_HAS_NO)


def algorithm_names(communicator: CommunicatorBase, collective: str) -> tuple[str, ...]:
    """What Communicator.algorithms gives."""
    names = offered_algorithms(collective, communicator.world_size)
    return (*names, "native") if offers(communicator.transport, collective) else names


def is_queued(communicator: CommunicatorBase, call: CheckedCall) -> bool:
    """True where `call` is one of NCCL's, which is queued on streams like a plan.

    Raises:
        InputError: device arrays, and the transport's library does not take them; or host arrays, and it does not.
    """
    name = communicator.transport.name
    if not offers(communicator.transport, call.key.collective, call.key.dtype):
        _refuse(communicator, call.key.collective)
    if (name == "nccl") != (call.entry is not None):
        raise InputError(
            f"native over {name}: got {'device' if call.entry else 'host'} arrays, expected "
            f"{'host' if call.entry else 'device'} arrays, or another algorithm"
        )
    return name == "nccl"


def call(communicator: CommunicatorBase, call: CheckedCall) -> None:
    """Run `call` with the library's blocking call.

    Raises:
        InputError: the transport's library has no such collective, or not of this dtype.
    """
    comm, arguments = _prepare(communicator, call)
    _run(getattr(comm, _MPI_COLLECTIVES[call.key.collective]), arguments)
    _end_mean(communicator, call)


def start(communicator: CommunicatorBase, call: CheckedCall) -> NativeRequest:
    """Start `call` with the library's nonblocking call and return its request; errors as `call`."""
    comm, arguments = _prepare(communicator, call)
    verb = getattr(comm, "I" + _MPI_COLLECTIVES[call.key.collective].lower())
    return NativeRequest(
        communicator, str(call.key), lambda: _run(verb, arguments), lambda: _end_mean(communicator, call)
    )


def _run(verb: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    from mpi4py import MPI

    try:
        return verb(*arguments)
    except MPI.Exception as error:
        raise TransportError(f"mpi: {error.Get_error_string()}") from error


def _prepare(communicator: CommunicatorBase, call: CheckedCall) -> tuple[Any, tuple[Any, ...]]:
    """The MPI communicator and the arguments of the MPI call."""
    key = call.key
    if not offers(communicator.transport, key.collective):
        _refuse(communicator, key.collective)
    is_queued(communicator, call)
    from mpi4py import MPI

    comm = _mpi_communicator(communicator)
    if key.collective == "barrier":
        return comm, ()
    kind = _datatype(MPI, key, call.dtype)
    source: Any = None if call.in_array is None else [call.in_array, kind]
    target = None if call.out_array is None else [call.out_array, kind]
    if call.in_place and key.collective != "broadcast":
        source = MPI.IN_PLACE if key.collective != "reduce_scatter" else source
        if key.collective == "reduce_scatter":
            raise InputError("native reduce_scatter: got in place arrays, expected separate ones")
    if key.collective == "broadcast":
        return comm, (target, key.root)
    if key.op is None:
        return comm, (source, target)
    op = getattr(MPI, _MPI_OPS[key.op])
    return comm, (source, target, op) if key.root is None else (source, target, op, key.root)


def _refuse(communicator: CommunicatorBase, collective: str) -> None:
    raise InputError(
        f"algorithm: got 'native' over {communicator.transport.name}, which has no {collective} of its own; "
        f"expected one of {', '.join(algorithm_names(communicator, collective))}"
    )


def _datatype(MPI: ModuleType, key: Key, dtype: Dtype) -> Any:
    """The MPI datatype of the elements; bytes in groups where nothing is computed.

    Raises:
        InputError: this MPI cannot reduce the dtype.
    """
    if key.op is None:
        return MPI.BYTE
    found = MPI.DATATYPE_NULL
    if dtype.name not in _MPI_HAS_NO:
        import numpy as np

        found = MPI._typedict.get(np.dtype(dtype.name).char, MPI.DATATYPE_NULL)
    if found == MPI.DATATYPE_NULL:
        raise InputError(f"native {key.collective}: got dtype {dtype.name}, which this MPI cannot reduce")
    return found


def _mpi_communicator(communicator: CommunicatorBase) -> Any:
    """An MPI communicator of exactly these ranks, apart from the point-to-point messages of the transport."""
    if communicator.mpi_communicator is None:
        transport: Any = communicator.transport  # An MpiTransport, by its name.
        base = transport.mpi_communicator
        group = base.Get_group().Incl(communicator.ranks)
        communicator.mpi_communicator = base.Create_group(group, communicator.communicator_id % 4096)
    return communicator.mpi_communicator


def _end_mean(communicator: CommunicatorBase, call: CheckedCall) -> None:
    if call.key.op == "mean" and call.out_array is not None:
        from lanterne.kernels.reduce import divide

        divide(call.out_array, communicator.world_size, dtype=call.key.dtype)
