"""The Works of calls on a device: a wait is one of the current stream, and no CPU waits but for a barrier."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from lanterne.errors import TransportTimeout
from lanterne.torch.accelerators import Accelerator
from lanterne.torch.device_lanes import LaneCall
from lanterne.torch.torch_internals import Untraced, Work, as_torch, seconds


class DeviceWork(Untraced, Work):
    """Work of one LaneCall.

    Args:
        stream: the lane's.
        result: tensors that `get_future` and `result` return.
        limit_s: default timeout of waits of the CPU.
        blocks: `wait` is a wait of the CPU, as a barrier's.
        source: of the call's value: returns the rank that sent a message.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        call: LaneCall,
        stream: Any,
        result: Sequence[torch.Tensor],
        limit_s: float,
        *,
        blocks: bool = False,
        source: Callable[[Any], int] | None = None,
    ) -> None:
        super().__init__()
        self._accelerator = accelerator
        self._call = call
        self._stream = stream
        self._result = list(result)
        self._limit_s = limit_s
        self._blocks = blocks
        self._source = source

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Have the current stream wait for the call; raise its error if that is known by now."""
        self._call.check()
        self._accelerator.module.current_stream(self._stream.device).wait_event(self._call.done)
        if self._blocks:
            self._wait_for_end(seconds(timeout))
        return True

    def _wait_for_end(self, limit_s: float | None = None) -> None:
        limit_s = self._limit_s if limit_s is None else limit_s
        if not self._call.wait(limit_s):
            raise as_torch(TransportTimeout(f"{self._call.verb}: did not end within {limit_s:g} s"))
        self._call.check()

    def synchronize(self) -> None:
        """Do as `wait`."""
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        """Return whether the call has ended, successfully or not."""
        return self._call.has_ended

    def is_success(self) -> bool:
        """Return whether the call has ended successfully."""
        return self._call.has_ended and self._call.error is None

    def exception(self) -> BaseException | None:
        """Return the error of the call, or None."""
        return self._call.error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that are written."""
        return self._result

    def source_rank(self) -> int:
        """Return the rank that sent the message; the CPU waits for it."""
        if self._source is None:
            return -1
        self._wait_for_end()
        return self._source(self._call.value)

    _source_rank = source_rank

    def get_future(self) -> Any:
        """Return a completed future of `result`; the stream of whoever takes its value waits for the call."""
        future: Any = torch.futures.Future(devices=[self._stream.device])
        with self._accelerator.module.stream(self._stream):
            future.set_result(self._result)
        return future


class JoinedWork(Untraced, Work):
    """Works of coalesced calls as one."""

    def __init__(self, works: Sequence[Any]) -> None:
        super().__init__()
        self._works = list(works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Do as `wait` of each."""
        for work in self._works:
            work.wait(*(() if timeout is None else (timeout,)))
        return True

    def synchronize(self) -> None:
        """Do as `wait`."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether all calls have ended."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return whether all calls have ended successfully."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> BaseException | None:
        """Return the first error, or None."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that are written."""
        return [tensor for work in self._works for tensor in work.result()]
