"""Calls on device tensors, staged: copied to pinned host memory, done by the host's group, and copied back.

| thread | step |
| --- | --- |
| the caller's | checks the tensors, has a stream of the lane wait, returns a Work |
| the lane's first | waits until the caller's stream has reached the call, copies what is read, starts the host's call |
| the lane's second | waits for the host's call, copies what was written, lets the lane's stream go on |

Collectives share one lane, since all ranks call them in one order. Messages to or from a peer have a lane of their own.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from lanterne.collectives.communicator import Communicator
from lanterne.errors import InputError, TransportTimeout
from lanterne.torch.accelerators import Accelerator
from lanterne.torch.device_lanes import End, Lane, LaneCall
from lanterne.torch.device_works import DeviceWork, JoinedWork
from lanterne.torch.group_base import GroupBase
from lanterne.torch.step_log import StepLog
from lanterne.torch.tensor_views import check_dtype, check_unshared
from lanterne.torch.torch_internals import seconds, torch_errors

# What a verb does with the tensors of its first arguments: i reads them, o writes them, b both.
ROLES: dict[str, str] = {
    "allreduce": "b",
    "allreduce_coalesced": "b",
    "broadcast": "b",
    "reduce": "b",
    "allgather": "oi",
    "allgather_coalesced": "oi",
    "all_gather_single": "oi",
    "all_gather_single_coalesced": "oi",
    "gather": "oi",
    "scatter": "oi",
    "reduce_scatter": "oi",
    "reduce_scatter_single": "oi",
    "reduce_scatter_single_coalesced": "oi",
    "all_to_all_single": "oi",
    "alltoall": "oi",
    "send": "i",
    "recv": "o",
    "recv_anysource": "o",
    "barrier": "",
}
MESSAGES = ("send", "recv", "recv_anysource")
COLLECTIVES_LANE = "collectives"


class Copy(NamedTuple):
    """A tensor and its copy in host memory; the tensor's memory is kept as long as this is."""

    on_device: torch.Tensor
    on_host: torch.Tensor


class DeviceLanes:
    """The lanes of one group on one device, and the errors of their calls.

    Args:
        accelerator: of the device.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.device: torch.device | None = None
        self._lanes: dict[str, Lane] = {}
        self._failed: list[LaneCall] = []

    def check(self, verb: str, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        """Raise InputError unless a call can take these tensors; raise what an earlier call failed with."""
        self._raise_failed()
        for tensor in (*read, *written):
            expected = self.device or (*read, *written)[0].device
            if tensor.device != expected:
                raise InputError(f"{verb}: got a tensor on {tensor.device}, expected {expected} as before")
            if tensor.layout is not torch.strided:
                raise InputError(f"{verb}: got a tensor of {tensor.layout}, expected a dense one")
            check_dtype(tensor)
        for tensor in written:
            check_unshared(tensor)
        for tensor in (*read, *written):
            if not tensor.is_contiguous():
                raise InputError(
                    f"{verb}: got a tensor of shape {tuple(tensor.shape)} and strides {tensor.stride()}, expected a "
                    "contiguous one"
                )
        if self.accelerator.is_capturing():
            raise InputError(f"{verb}: got a call while a graph is captured, expected none: the CPU takes part in it")

    def lane(self, name: str, device: torch.device) -> Lane:
        """Return the Lane `name`, made when first needed."""
        if self.device is None:
            self.device = device if device.index is not None else _with_index(self.accelerator, device)
        if name not in self._lanes:
            self._lanes[name] = Lane(self.accelerator, self.device, name, self._failed.append)
        return self._lanes[name]

    def settle(self, limit_s: float) -> None:
        """Have the CPU wait for all calls, `limit_s` for those of each lane; raise what one failed with."""
        for name, lane in self._lanes.items():
            if not lane.drain(limit_s):
                raise TransportTimeout(f"calls on {self.device} ({name}) did not end within {limit_s:g} s")
        self._raise_failed()

    def _raise_failed(self) -> None:
        while self._failed:
            call = self._failed.pop(0)
            if not call.is_raised:
                call.check()

    def close(self, limit_s: float) -> None:
        """End all lanes; each waits at most `limit_s` for its calls."""
        lanes, self._lanes = self._lanes, {}
        for lane in lanes.values():
            lane.close(limit_s)


class StagedCalls:
    """Verbs on device tensors, through pinned host memory.

    Args:
        host: group of the same ranks that nothing else uses.
    """

    def __init__(self, host: GroupBase, accelerator: Accelerator) -> None:
        self.host = host
        self._accelerator = accelerator
        self._lanes = DeviceLanes(accelerator)
        self._together: list[DeviceWork] | None = None

    @property
    def steps(self) -> StepLog | None:
        """The late ranks of the all_reduces on the device; None before the first call."""
        return None if self._lanes.device is None else self.host.steps

    @property
    def communicator(self) -> Communicator:
        """The Communicator that sums what was copied to the host."""
        return self.host.communicator

    def call(self, verb: str, device: torch.device, args: Sequence[Any], options: dict[str, Any]) -> DeviceWork:
        """Queue `verb` of the group with these arguments."""
        opts = _options_of(args, options)
        roles = _roles_of(verb, opts, self.host.rank())
        read, written = ([*_tensors_in(role, roles, args)] for role in ("i", "o"))
        with torch_errors():
            self._lanes.check(verb, read, written)
            lane = self._lanes.lane(_lane_name(verb, args), device)
        if opts is not None:
            # The lane's threads start it, and wait.
            opts.asyncOp = True
        limit_s = self._limit_s(opts, options)
        copies: list[list[Copy]] = [[] for _ in roles]
        # Memory is pinned here: that may wait for the device, and so for the calls whose streams the lane holds up.
        host_args = [self._on_host(arg, copies[index]) if index < len(roles) else arg for index, arg in enumerate(args)]
        there = [copy for role, made in zip(roles, copies, strict=True) if role != "o" for copy in made]
        back = [copy for role, made in zip(roles, copies, strict=True) if role != "i" for copy in made]
        del copies

        def start(_call: LaneCall) -> End:
            with self._accelerator.module.stream(lane.incoming):
                for copy in there:
                    copy.on_host.copy_(copy.on_device, non_blocking=True)
            self._finish_copies(verb, lane, lane.incoming, limit_s)
            # What is only read is not needed any more.
            there.clear()
            work = getattr(self.host, verb)(*host_args, **options)

            def end() -> Any:
                work.wait()
                with self._accelerator.module.stream(lane.outgoing):
                    for copy in back:
                        copy.on_device.copy_(copy.on_host, non_blocking=True)
                self._finish_copies(verb, lane, lane.outgoing, limit_s)
                return work

            return end

        call = lane.submit(verb, start, limit_s)
        source = (lambda done: done.source_rank()) if verb in MESSAGES else None
        blocks = verb == "barrier"
        result = written or read
        work = DeviceWork(self._accelerator, call, lane.stream, result, limit_s, blocks=blocks, source=source)
        if self._together is not None:
            self._together.append(work)
        return work

    def _on_host(self, arg: Any, copies: list[Copy]) -> Any:
        """Return `arg`, a tensor or lists of them, in host memory; adds the pairs to `copies`."""
        if isinstance(arg, torch.Tensor):
            copies.append(Copy(kept(arg), self._accelerator.pinned(arg)))
            return copies[-1].on_host
        return [self._on_host(each, copies) for each in arg] if isinstance(arg, (list, tuple)) else arg

    def _finish_copies(self, verb: str, lane: Lane, stream: Any, limit_s: float) -> None:
        if not lane.reached(stream.record_event(), limit_s):
            raise TransportTimeout(f"{verb}: copies between device and host did not end within {limit_s:g} s")

    def _limit_s(self, opts: Any, options: dict[str, Any]) -> float:
        limit_s = seconds(options.get("timeout"))
        return self.host._limit_s(opts) if limit_s is None else limit_s

    def start_coalescing(self, _device: torch.device) -> None:
        """Collect the Works of the calls from now on."""
        self._together = []

    def end_coalescing(self, _device: torch.device) -> JoinedWork:
        """Return the Works since `start_coalescing` as one."""
        together, self._together = self._together or [], None
        return JoinedWork(together)

    def set_timeout(self, timeout_s: float) -> None:
        """Set the default timeout of calls."""
        self.host.communicator.timeout_s = timeout_s

    def settle(self) -> None:
        """Have the CPU wait for all calls; raise what one failed with."""
        self._lanes.settle(self.host.communicator.timeout_s)

    def abort(self) -> None:
        """End all calls, those under way too."""
        self.host.abort()

    def close(self) -> None:
        """Let the calls that are queued end, then the group of the host."""
        self._lanes.close(self.host.communicator.timeout_s)
        self.host.shutdown()


def tensors_of(arg: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in `arg`, a tensor or lists of them."""
    if isinstance(arg, torch.Tensor):
        yield arg
    elif isinstance(arg, (list, tuple)):
        for each in arg:
            yield from tensors_of(each)


def kept(tensor: torch.Tensor) -> torch.Tensor:
    """Return the memory of `tensor`, which autograd does not watch; it is kept until the call has ended.

    A copy into `tensor.detach()` would count as a change, at any time: autograd refuses tensors that have changed.
    """
    return tensor.data


def _tensors_in(role: str, roles: str, args: Sequence[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors in `args` that have `role` or both."""
    for each, arg in zip(roles, args, strict=False):
        if each in (role, "b"):
            yield from tensors_of(arg)


def _options_of(args: Sequence[Any], options: dict[str, Any]) -> Any:
    """Return torch's options among the arguments of a call; None without any."""
    return next((each for each in (*reversed(args), *options.values()) if hasattr(each, "asyncOp")), None)


def _roles_of(verb: str, opts: Any, rank: int) -> str:
    """Return the letters of ROLES for this rank."""
    if opts is not None and verb == "broadcast":
        return "i" if opts.rootRank == rank else "o"
    if opts is not None and verb == "reduce" and opts.rootRank != rank:
        return "i"
    return ROLES[verb]


def _lane_name(verb: str, args: Sequence[Any]) -> str:
    if verb not in MESSAGES:
        return COLLECTIVES_LANE
    return f"{'send' if verb == 'send' else 'recv'} {'any' if verb == 'recv_anysource' else args[1]}"


def _with_index(accelerator: Accelerator, device: torch.device) -> torch.device:
    return torch.device(device.type, accelerator.module.current_device())
