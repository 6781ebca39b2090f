"""Calls on device tensors by torch's own backend for the device, and large all-reduces by lanterne.

An all_reduce for which ranks may be late is done by a Communicator of device memory, in the order of a lane
(device_lanes.py). All other calls go to torch's backend. A collective of that waits for the all-reduces before it, so
that both queue their work in the same order on every rank; messages do not wait.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from lanterne.collectives.communicator import Communicator, core_of
from lanterne.collectives.late.calls import LEAST_NBYTES
from lanterne.errors import TransportTimeout
from lanterne.kernels.dtypes import Op
from lanterne.torch.accelerators import Accelerator
from lanterne.torch.device_calls import COLLECTIVES_LANE, MESSAGES, DeviceLanes, kept, tensors_of
from lanterne.torch.device_lanes import End, LaneCall
from lanterne.torch.device_works import DeviceWork
from lanterne.torch.group_base import GroupBase
from lanterne.torch.step_log import StepLog
from lanterne.torch.torch_internals import op_of, torch_errors

# Ops and dtypes of gradients; torch's backend does all others.
OPS: tuple[Op, ...] = ("sum", "mean")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class NativeCalls:
    """Verbs on device tensors by torch's own backend for them and, for large all_reduces, by lanterne.

    Args:
        host: group of the same ranks; it has the defaults of timeouts.
        make_inner: returns a group or backend of torch's own, at the first call: jobs on the CPU need none.
        join: returns the Communicator of device memory; all ranks call it at the first large all_reduce.
    """

    def __init__(
        self, host: GroupBase, accelerator: Accelerator, make_inner: Callable[[], Any], join: Callable[[], Communicator]
    ) -> None:
        self._host = host
        self._accelerator = accelerator
        self._make_inner = make_inner
        self._inner: Any = None
        self._join = join
        self._lanes = DeviceLanes(accelerator)
        self._communicator: Communicator | None = None
        self._last: LaneCall | None = None
        # Dtype, op and size of the calls whose kernels and scratch memory are there.
        self._prepared: set[tuple[torch.dtype, Op, int]] = set()
        self._coalesces = False
        self._steps: StepLog | None = None

    @property
    def _torchs(self) -> Any:
        """The group of torch's own backend, made when first asked for."""
        if self._inner is None:
            self._inner = self._make_inner()
        return self._inner

    @property
    def communicator(self) -> Communicator:
        """The Communicator of device memory, made when first asked for."""
        if self._communicator is None:
            self._communicator = self._join()
            self._communicator.timeout_s = self._host.communicator.timeout_s
            self._steps = StepLog(self._communicator)
        return self._communicator

    @property
    def steps(self) -> StepLog | None:
        """The late ranks of the all_reduces by lanterne; None before the first."""
        return self._steps

    def call(self, verb: str, _device: torch.device, args: Sequence[Any], options: dict[str, Any]) -> Any:
        """Queue `verb` with these arguments."""
        if verb == "allreduce" and not options and len(args) == 2 and not self._coalesces:
            tensors = list(tensors_of(args[0]))
            if len(tensors) == 1 and self._is_late_call(tensors[0], args[1]):
                return self._all_reduce(tensors[0], args[1])
        if self._last is not None and verb not in MESSAGES:
            if not self._last.done.query():
                self._accelerator.module.current_stream().wait_event(self._last.done)
            self._last = None
        return getattr(self._torchs, verb)(*args, **options)

    def _is_late_call(self, tensor: torch.Tensor, opts: Any) -> bool:
        """Return whether the ranks find out who is late in this call; alike on all ranks."""
        if tensor.nbytes < LEAST_NBYTES or tensor.dtype not in DTYPES or not hasattr(opts, "reduceOp"):
            return False
        if op_of(opts.reduceOp) not in OPS or tensor.layout is not torch.strided or not tensor.is_contiguous():
            return False
        if self._accelerator.is_capturing():
            return False
        with torch_errors():
            return core_of(self.communicator).late.policy("all_reduce", tensor.nbytes, on_host=False) is not None

    def _all_reduce(self, tensor: torch.Tensor, opts: Any) -> DeviceWork:
        comm, op, limit_s = self.communicator, op_of(opts.reduceOp), self._host._limit_s(opts)
        with torch_errors():
            self._lanes.check("all_reduce", (), [tensor])
            lane = self._lanes.lane(COLLECTIVES_LANE, tensor.device)
        self._prepare(tensor, op, limit_s)
        memory, steps = kept(tensor), self.steps
        assert steps is not None, "there is a communicator"

        def start(call: LaneCall) -> End:
            steps.begins(memory.nbytes)
            self._accelerator.all_reduce(comm, memory, op, lane.incoming, limit_s)
            lane.open_after(call, lane.incoming)
            ended = lane.incoming.record_event()

            def end() -> object:
                if not lane.reached(ended, limit_s):
                    raise TransportTimeout(f"all_reduce: did not end within {limit_s:g} s")
                steps.ends()
                return memory

            return end

        self._last = lane.submit("all_reduce", start, limit_s)
        return DeviceWork(self._accelerator, self._last, lane.stream, [tensor], limit_s)

    def _prepare(self, tensor: torch.Tensor, op: Op, limit_s: float) -> None:
        """Reduce another tensor like `tensor` first, if none was: on the caller's stream, with no stream held up.

        What is loaded and allocated then may wait for the whole device: for ever, were a call of the lane to do it.
        """
        kind = tensor.dtype, op, tensor.numel()
        if kind in self._prepared:
            return
        lane = self._lanes.lane(COLLECTIVES_LANE, tensor.device)
        with torch_errors():
            if not lane.drain(limit_s):
                raise TransportTimeout(f"all_reduce: calls before it did not end within {limit_s:g} s")
            stream = self._accelerator.module.current_stream(tensor.device)
            self._accelerator.all_reduce(self.communicator, torch.zeros_like(tensor), op, stream, limit_s)
        self._prepared.add(kind)

    def start_coalescing(self, device: torch.device) -> None:
        """Have torch's backend collect the calls from now on."""
        self._coalesces = True
        self._torchs._start_coalescing(device)

    def end_coalescing(self, device: torch.device) -> Any:
        """Return the Work of the calls since `start_coalescing`."""
        self._coalesces = False
        return self._torchs._end_coalescing(device)

    def set_timeout(self, timeout_s: float) -> None:
        """Set the default timeout of the all_reduces by lanterne."""
        if self._communicator is not None:
            self._communicator.timeout_s = timeout_s

    def settle(self) -> None:
        """Have the CPU wait for the all_reduces by lanterne; raise what one failed with."""
        self._lanes.settle(self._host.communicator.timeout_s)

    def abort(self) -> None:
        """End all calls, those under way too."""
        if self._communicator is not None:
            self._communicator.abort("aborted by its user")
        if self._inner is not None:
            self._inner.abort()

    def close(self) -> None:
        """Let the calls that are queued end, then the communicator and torch's backend."""
        self._lanes.close(self._host.communicator.timeout_s)
        if self._communicator is not None:
            self._communicator.close()
        if self._inner is not None:
            self._inner.shutdown()
