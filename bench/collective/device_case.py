"""The buffers and calls of a benchmarked collective on a GPU: device arrays, eager calls or captured ones.

Calls are timed by the device: by events before and after each, told by this machine's clock (kernels/cuda/clock.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from lanterne.bench.collective.measure import ROOT, CollectiveCase, DtypeName
from lanterne.errors import Unavailable
from lanterne.kernels.cuda.clock import DeviceClock

if TYPE_CHECKING:
    from lanterne.collectives.captured import Captured
    from lanterne.collectives.communicator import Communicator
    from lanterne.kernels.cuda.runtime import CudaRuntime

# How long a device on which nothing runs may take to tell a time.
ANCHOR_LIMIT_S = 10.0


class DeviceCase(CollectiveCase):
    """A CollectiveCase with arrays on this rank's device. A call ends when its stream has.

    Args:
        graph: capture each algorithm's call at its first use, and launch the graph from then on.
        memory: a CudaMemory, or a stand-in.
    """

    clock = "device"

    def __init__(
        self,
        comm: Communicator,
        collective: str,
        count: int,
        dtype: DtypeName,
        op: str,
        graph: bool = False,
        memory: CudaMemory | None = None,
    ) -> None:
        super().__init__(comm, collective, count, dtype, op)
        self._memory = memory or CudaMemory(comm)
        self.source: NDArray[Any] = self._memory.put(self.source)
        self.out: NDArray[Any] = self._memory.put(self.out)
        # There, too: to fetch a GiB from a device after each call, and compare it here, takes longer than the calls.
        self._expected: Any = None if self.expected is None else self._memory.put(self.expected)
        self._graph = graph
        self._captured: dict[tuple[str, tuple[tuple[str, Any], ...]], Captured] = {}

    def reset(self) -> None:
        if self.collective == "broadcast" and self.comm.rank == ROOT:
            self._memory.copy(self.out, self.source)
        else:
            self._memory.fill(self.out, 0xA5)

    def call(self, algorithm: str, **options: Any) -> None:
        self._queue(algorithm, options)
        self._memory.synchronize()

    def timed(self, algorithm: str, **options: Any) -> tuple[float, float]:
        return self._memory.timed(lambda: self._queue(algorithm, options))

    def _queue(self, algorithm: str, options: dict[str, Any]) -> None:
        if self._graph and algorithm != "native":
            self._launch(algorithm, options)
        else:
            super().call(algorithm, **options)

    def result(self) -> NDArray[Any]:
        return self._memory.get(self.out)

    def num_different(self) -> int:
        return self._memory.num_different(self.out, self._expected)

    def close(self) -> None:
        for captured in self._captured.values():
            captured.close()
        self._captured = {}

    def _launch(self, algorithm: str, options: dict[str, Any]) -> None:
        key = algorithm, tuple(sorted(options.items()))
        if key not in self._captured:
            given = self.out if self.collective == "broadcast" else self.source
            options = options | self.named
            if self.collective in ("broadcast", "reduce"):
                options |= {"root": ROOT}
            if self.collective in ("all_reduce", "reduce", "reduce_scatter"):
                options |= {"op": self.op}
            self._captured[key] = self.comm.capture(self.collective, given, self.out, algorithm=algorithm, **options)
        self._captured[key].launch()


class CudaMemory:
    """CuPy's arrays on this rank's device; work is ordered on the current stream."""

    def __init__(self, comm: Communicator) -> None:
        import cupy

        from lanterne.kernels.cuda.runtime import own_device

        self._cupy: Any = cupy
        self._runtime = comm.transport.runtime or own_device(comm.rank)
        self._clock = DeviceClock(self._runtime)

    def put(self, array: NDArray[Any]) -> Any:
        return self._cupy.asarray(array)

    def fill(self, array: Any, byte: int) -> None:
        array.view(self._cupy.uint8).fill(byte)

    def copy(self, out: Any, array: Any) -> None:
        self._cupy.copyto(out, array)

    def get(self, array: Any) -> NDArray[Any]:
        return array.get()

    def num_different(self, array: Any, other: Any) -> int:
        return int(self._cupy.count_nonzero(array != other))

    def timed(self, queue: Callable[[], object]) -> tuple[float, float]:
        """When the stream came to what `queue()` queues, and when that was done."""
        return timed_on_device(self._runtime, self._clock, queue, self.synchronize)

    def synchronize(self) -> None:
        self._cupy.cuda.get_current_stream().synchronize()


def timed_on_device(
    runtime: CudaRuntime, clock: DeviceClock, queue: Callable[[], object], synchronize: Callable[[], object]
) -> tuple[float, float]:
    """When the current stream came to what `queue()` queues, and when that was done, of time.monotonic().

    Raises:
        Unavailable: the device does not tell its times.
    """
    # Work of before is over: an anchor is quick then.
    if not clock.anchor(ANCHOR_LIMIT_S):
        raise Unavailable(f"device {runtime.device_id}: no time of an event within {ANCHOR_LIMIT_S:g} s")
    stream, queued_s = runtime.current_stream(), time.monotonic()
    start = runtime.record(stream, timed=True)
    queue()
    stop = runtime.record(stream, timed=True)
    synchronize()
    return clock.time_s(start, queued_s), clock.time_s(stop, queued_s)
