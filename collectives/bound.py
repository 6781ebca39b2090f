"""Calls that are repeated with the same arrays: checked and resolved once."""

from lanterne.collectives.core import CommunicatorCore
from lanterne.collectives.execute.arguments import CallOptions, CheckedCall, resolve
from lanterne.collectives.execute.requests import CollectiveRequest
from lanterne.collectives.schedule.contracts import CONTRACTS
from lanterne.collectives.shared.shared_calls import SharedRequest
from lanterne.errors import InputError
from lanterne.kernels.arrays import Array, is_device_array
from lanterne.kernels.dtypes import Op
from lanterne.transport.timeouts import check_timeout_s

# What a method of the Communicator takes where nothing is said.
DEFAULT_OPS: dict[str, str] = {name: "sum" for name, contract in CONTRACTS.items() if contract.reduces}
DEFAULT_ROOTS: dict[str, int] = {name: 0 for name, contract in CONTRACTS.items() if contract.rooted}


class Bound:
    """A collective call on fixed host arrays; see Communicator.bind. Call it, or `start` it."""

    def __init__(
        self,
        communicator: CommunicatorCore,
        collective: str,
        in_array: Array | None,
        out_array: Array | None,
        op: Op | None,
        root: int | None,
        options: CallOptions,
    ) -> None:
        if is_device_array(in_array) or is_device_array(out_array):
            raise InputError("bind: got device arrays, expected host arrays; `capture` is for those, over nccl")
        op = DEFAULT_OPS.get(collective) if op is None else op
        root = DEFAULT_ROOTS.get(collective) if root is None else root
        out_array = in_array if collective == "broadcast" and out_array is None else out_array
        self._communicator = communicator
        self._arguments = collective, in_array, out_array, op, root, None, options
        self._asks = communicator.asks(collective, options)
        self._call, self._known = self._resolve()
        # Through shared memory there is one request, which is used again.
        self._shared: SharedRequest | None = None

    def __call__(self, timeout_s: float | None = None) -> None:
        """Run the call; raises as the communicator's method does."""
        if timeout_s is not None:
            check_timeout_s(timeout_s)
        communicator = self._communicator
        with communicator.lock:
            shared = self._shared
            if shared is not None and shared.done and self._known is communicator.tuning.model:
                communicator.check_open()
                request: CollectiveRequest = communicator.begin_again(shared, self._asks)
            else:
                request = communicator.begin_checked(self._now(), self._asks)
                self._shared = request if isinstance(request, SharedRequest) and not self._call.copies else None
        if not request.done:
            request._wait_as_call(self._arguments[0], timeout_s)

    def start(self) -> CollectiveRequest:
        """Start the call, which advances in the background, and return its request."""
        communicator = self._communicator
        with communicator.lock:
            request = communicator.begin_checked(self._now(), self._asks)
            communicator.engine.serve()
        return request

    def _resolve(self) -> tuple[CheckedCall, object]:
        """The call, and what it was chosen by."""
        return resolve(self._communicator, *self._arguments), self._communicator.tuning.model

    def _now(self) -> CheckedCall:
        """The call as it is chosen now, the communicator being open."""
        self._communicator.check_open()
        if self._call.copies or self._known is not self._communicator.tuning.model:
            self._call, self._known = self._resolve()
        return self._call
