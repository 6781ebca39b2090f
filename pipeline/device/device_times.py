"""How long F, B and W take on a device: events on its stream around what each call of a stage queues there.

A stage on a device returns before the device is done, so the CPU's clock says nothing of it:

    times = DeviceTimes(CudaRuntime(), stream)
    stages = {number: times.watch(stage) for number, stage in stages.items()}
    profiler = Profiler(plane, times.durations_s)

Paper: Wu et al. 2025 (ADAPTRA), section 7.2, which times every operator of an iteration by CUDA events.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import TransportTimeout
from lanterne.kernels.arrays import Event, Stream
from lanterne.kernels.cuda.runtime import CudaRuntime
from lanterne.pipeline.plan.action import Action
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.timeouts import DEFAULT_TIMEOUT_S
from lanterne.transport.waiting import wait

# How often an event is watched to place the device's clock: the quickest counts.
LOOKS = 5

Result = TypeVar("Result")
# A stage of pipeline/execute; what stands for it has all of its methods.
AnyStage = TypeVar("AnyStage")
# (start, stop).
Span: TypeAlias = tuple[Event, Event]


class TimedIteration(Protocol):
    """What is needed of pipeline/execute's Measured."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def actions(self) -> Sequence[Action]: ...

    @property
    def ready_s(self) -> NDArray[np.float64]: ...

    @property
    def sent_s(self) -> NDArray[np.float64]: ...


AnyIteration = TypeVar("AnyIteration", bound=TimedIteration)


def until_done(runtime: CudaRuntime, event: Event, timeout_s: float | None = None) -> None:
    """Return once `event` of `runtime` is done.

    Args:
        timeout_s: seconds to wait at most; None for LANTERNE_TIMEOUT_S, 60.

    Raises:
        TransportTimeout: it is not done by then.
        TransportError: work on the device has failed.
    """
    limit_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
    if not wait(lambda: runtime.is_done(event), limit_s, THIS_MACHINE.pauses()):
        raise TransportTimeout(
            f"device {runtime.device_id}: what a stage has queued was not done within {limit_s:g} s; look at its "
            "kernels, or allow more time (LANTERNE_TIMEOUT_S)"
        )


class DeviceTimes:
    """Times what watched stages queue on one stream, an iteration at a time.

    Args:
        stream: where the stages compute; None for the current one.
    """

    def __init__(self, runtime: CudaRuntime, stream: Stream = None) -> None:
        self.runtime = runtime
        self.stream: Stream = runtime.as_stream(stream)
        self._spans: list[Span] = []

    def watch(self, stage: AnyStage) -> AnyStage:
        """`stage`, which is timed from now on: what the executor is to be given in its place."""
        watched: Any = WatchedStage(stage, self)
        return watched

    def forget(self) -> None:
        """An iteration begins."""
        self._spans.clear()

    def _look(self) -> tuple[Event, float, float]:
        """(an event, when it was done in s, how many s off that may be)."""
        before_s, event = time.monotonic(), self.runtime.record(self.stream, timed=True)
        until_done(self.runtime, event)
        off_s = 0.5 * (time.monotonic() - before_s)
        return event, before_s + off_s, off_s

    def timed(self, call: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """call(*args, **options), between two events.

        Cost: some microseconds of the CPU, none of the device.
        """
        start = self.runtime.record(self.stream, timed=True)
        result = call(*args, **options)
        self._spans.append((start, self.runtime.record(self.stream, timed=True)))
        return result

    def durations_s(self, measured: TimedIteration) -> NDArray[np.float64]:
        """(num_actions,), seconds of the device in each action of the iteration that has just ended.

        Where the device was idle before an action, the time that the CPU took to queue it counts too.

        Args:
            measured: what execute returned.

        Raises:
            TransportError: work on the device has failed.

        Cost: waits until the device is done.
        """
        elapsed_s = self.runtime.elapsed_s
        return np.array([elapsed_s(*span) for span in self._by_action(measured)])

    def placed(self, measured: AnyIteration) -> AnyIteration:
        """`measured` by the device's clock: when actions started and ended there, off by what half an event takes (us).

        What the CPU noted otherwise is kept where it fits: a message is sent no sooner than its action has ended.

        Raises:
            TransportError: work on the device has failed.

        Cost: waits until the device is done.
        """
        spans = self._by_action(measured)
        event, done_s, _ = min((self._look() for _ in range(LOOKS)), key=lambda look: look[2])
        start_s = np.array([done_s - self.runtime.elapsed_s(start, event) for start, _ in spans])
        end_s = np.array([done_s - self.runtime.elapsed_s(stop, event) for _, stop in spans])
        ready_s, sent_s = np.minimum(measured.ready_s, start_s), np.maximum(measured.sent_s, end_s)
        return replace(measured, start_s=start_s, end_s=end_s, ready_s=ready_s, sent_s=sent_s)

    def _by_action(self, measured: TimedIteration) -> list[Span]:
        """The (start, stop) events of each action, once the device is done."""
        # One after the other: no action may take longer than the timeout, all together may.
        for _, stop in self._spans:
            until_done(self.runtime, stop)
        return self._spans[: len(measured.actions)]


class WatchedStage:
    """A Stage whose F, B and W are timed; in all else the stage itself."""

    def __init__(self, stage: Any, times: DeviceTimes) -> None:
        self._stage = stage
        self._times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def begin(self, *args: Any, **options: Any) -> None:
        """As Stage.begin; all stages of a rank begin before the first computes."""
        self._times.forget()
        self._stage.begin(*args, **options)

    def forward(self, *args: Any, **options: Any) -> Any:
        """As Stage.forward."""
        return self._times.timed(self._stage.forward, *args, **options)

    def backward_input(self, *args: Any, **options: Any) -> Any:
        """As Stage.backward_input."""
        return self._times.timed(self._stage.backward_input, *args, **options)

    def backward(self, *args: Any, **options: Any) -> Any:
        """As Stage.backward."""
        return self._times.timed(self._stage.backward, *args, **options)

    def backward_weight(self, *args: Any, **options: Any) -> None:
        """As Stage.backward_weight."""
        self._times.timed(self._stage.backward_weight, *args, **options)
