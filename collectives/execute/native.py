"""The transport library's own collectives, as the algorithm "native": those of MPI, and NCCL's all-reduce.

The blocking call is the library's blocking call, as its users know it: it has no timeout and notices no death (give
`timeout_s` for its nonblocking form, which has both), and nothing checks that the ranks agree.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from lanterne.collectives.algorithms.catalogue import NATIVE, SHARED
from lanterne.collectives.auto.predict import can_go_through_memory
from lanterne.collectives.execute.arguments import CheckedCall, Form, Key
from lanterne.collectives.execute.communicator_base import CommunicatorBase
from lanterne.collectives.execute.plans import SignatureExchange, offered_algorithms
from lanterne.collectives.execute.requests import CallRequest
from lanterne.errors import InputError, TransportError
from lanterne.kernels.dtypes import BITWISE_OPS, COMPLEX, LOGICAL_OPS, LONG, Dtype, kernel_op
from lanterne.transport.base import Request, Transport

_MPI_COLLECTIVES = {
    "all_reduce": "Allreduce",
    "reduce_scatter": "Reduce_scatter_block",
    "all_gather": "Allgather",
    "broadcast": "Bcast",
    "reduce": "Reduce",
    "all_to_all": "Alltoall",
    "gather": "Gather",
    "scatter": "Scatter",
    "scan": "Scan",
    "exscan": "Exscan",
    "barrier": "Barrier",
}
# Where parts differ.
_MPI_COUNTED = {
    "all_gather": "Allgatherv",
    "reduce_scatter": "Reduce_scatter",
    "gather": "Gatherv",
    "scatter": "Scatterv",
    "all_to_all": "Alltoallv",
}
_MPI_HAS_NO = ("bfloat16", "float16")
_MPI_OPS = {op: op.upper() for op in ("sum", "prod", "min", "max", *BITWISE_OPS, *LOGICAL_OPS)}
# MPI's bools have truth values only.
_MPI_OPS_OF_BOOLS = {"band": "LAND", "bor": "LOR", "bxor": "LXOR"}
_NCCL_HAS_NO = ("int16", "uint16", *COMPLEX, *LONG)


def offers(transport: Transport, collective: str, dtype_name: str | None = None) -> bool:
    """True if `transport` has a `collective` of its own; of elements of `dtype_name`, if given."""
    computes = collective in ("all_reduce", "reduce_scatter", "reduce", "scan", "exscan")
    if transport.name == "nccl":
        return collective == "all_reduce" and dtype_name not in _NCCL_HAS_NO
    return transport.name == "mpi" and collective in _MPI_COLLECTIVES and not (computes and dtype_name in _MPI_HAS_NO)


def algorithm_names(communicator: CommunicatorBase, collective: str) -> tuple[str, ...]:
    """What Communicator.algorithms gives."""
    names = offered_algorithms(collective, communicator.world_size)
    if communicator.shares_memory and can_go_through_memory(collective):
        names = (*names, SHARED)
    return (*names, NATIVE) if offers(communicator.transport, collective) else names


def is_queued(communicator: CommunicatorBase, call: CheckedCall) -> bool:
    """True where `call` is one of NCCL's, which is queued on streams like a plan.

    Raises:
        InputError: device arrays, and the transport's library does not take them; or host arrays, and it does not.
    """
    name = communicator.transport.name
    if not offers(communicator.transport, call.key.collective, call.key.dtype):
        _refuse(communicator, call.key.collective)
    if name == "nccl" and call.key.op in (*BITWISE_OPS, *LOGICAL_OPS):
        raise InputError(f"native over nccl: got op {call.key.op}, which NCCL has not; expected another algorithm")
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
    _run(getattr(comm, _verb(call.key)), arguments)
    _end_mean(communicator, call)


def start(communicator: CommunicatorBase, call: CheckedCall) -> CallRequest:
    """Return the request of `call` by the library's nonblocking call; errors as `call`."""
    made = MpiCall(communicator, call)
    return CallRequest(communicator, made, made, call.in_place)


class MpiCall:
    """One nonblocking collective of MPI's: both the plan and the execution of a CallRequest.

    Attributes:
        signature: what the call is.
        remaining: 1 until it is complete, then 0.
        agreement, completion: None. The ranks agree on nothing first, and no stream has the call.
    """

    agreement: SignatureExchange | None = None
    completion: Request | None = None

    def __init__(self, communicator: CommunicatorBase, call: CheckedCall) -> None:
        comm, self._arguments = _prepare(communicator, call)
        self._verb = getattr(comm, "I" + _verb(call.key).lower())
        self._communicator = communicator
        self._call = call
        self.signature: str = str(call.key)
        self.remaining: int = 1

    def is_ready(self) -> bool:
        return True

    def start(self) -> None:
        """Start MPI's call."""
        self._request = _run(self._verb, self._arguments)

    def advance(self) -> bool:
        """Return whether MPI's call is complete."""
        if self._request.Test():
            _end_mean(self._communicator, self._call)
            self.remaining = 0
        return not self.remaining

    def pending_peers(self) -> list[int]:
        """Return all other ranks: the library does not say which it waits for."""
        communicator = self._communicator
        return [peer for peer in communicator.ranks if peer != communicator.transport.rank]

    def give_back(self, _: object, __: Form) -> None:
        """Do nothing: each call is made for itself."""


def _verb(key: Key) -> str:
    return (_MPI_COLLECTIVES if key.counts is None else _MPI_COUNTED)[key.collective]


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
    target: Any = None if call.out_array is None else [call.out_array, kind]
    if key.collective == "broadcast":
        return comm, (target, key.root)
    if key.counts is not None:
        source, target = _counted(call, kind, comm.rank)
    if key.collective == "exscan" and target is None:
        # Rank 0 gets nothing, but has to give memory.
        target = [np.empty_like(call.in_array), kind]
    if call.in_place and key.collective == "scatter":
        target = MPI.IN_PLACE
    elif call.in_place:
        source = MPI.IN_PLACE
    arguments = [source, target]
    if key.counts is not None and key.collective == "reduce_scatter":
        arguments.append(key.counts)
    if key.op is not None:
        op = kernel_op(key.op, call.dtype)
        names = _MPI_OPS_OF_BOOLS if call.dtype.kind == "bool" else _MPI_OPS
        arguments.append(getattr(MPI, names[op]))
    if key.root is not None:
        arguments.append(key.root)
    return comm, tuple(arguments)


def _counted(call: CheckedCall, kind: Any, rank: int) -> tuple[Any, Any]:
    """What MPI takes for arrays whose parts differ: counts in bytes, where nothing is computed."""
    key = call.key
    unit = call.dtype.nbytes if key.op is None else 1
    counts = [count * unit for count in call.counts or key.counts or ()]
    given, got = counts, counts
    if key.collective == "all_to_all":
        given, got = counts[: len(counts) // 2], counts[len(counts) // 2 :]
    one = [counts[rank], kind]
    # All parts, or this rank's own.
    source = [*one] if key.collective in ("all_gather", "gather") else [given, None, kind]
    target = [*one] if key.collective in ("reduce_scatter", "scatter") else [got, None, kind]
    if key.collective == "reduce_scatter":
        source = [sum(counts), kind]
    return (
        None if call.in_array is None else [call.in_array, *source],
        None if call.out_array is None else [call.out_array, *target],
    )


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
