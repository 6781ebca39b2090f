"""How long F, B and W take on a device: events on its stream around what each call of a stage queues there.

A stage on a device returns before the device is done, so the CPU's clock says nothing of it:

    times = DeviceTimes(CudaRuntime(), stream)
    stages = {number: times.watch(stage) for number, stage in stages.items()}
    profiler = Profiler(plane, times.durations_s)

Paper: Wu et al. 2025 (ADAPTRA), section 7.2, which times every operator of an iteration by CUDA events.
"""

import time
from dataclasses import replace

import numpy as np

from lanterne.errors import TransportTimeout
from lanterne.transport.timeouts import DEFAULT_TIMEOUT_S
from lanterne.transport.pauses import Pauses

# The calls of a stage that make up an action, by its kind.
CALLS = {"F": 1, "B": 1, "W": 1, "BW": 2}
# How often an event is watched to place the device's clock: the quickest counts.
LOOKS = 5


def until_done(runtime, event, timeout_s=None):
    """Return once `event` of `runtime`, a CudaRuntime, is done.

    Args:
        timeout_s: seconds to wait at most; None for LANTERNE_TIMEOUT_S, 60.

    Raises:
        TransportTimeout: it is not done by then.
        TransportError: work on the device has failed.
    """
    limit_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
    polls, pauses, deadline = 0, Pauses(), time.monotonic() + limit_s
    while not runtime.is_done(event):
        if time.monotonic() > deadline:
            raise TransportTimeout(
                f"device {runtime.device_id}: what a stage has queued was not done within {limit_s:g} s; look at its "
                "kernels, or allow more time (LANTERNE_TIMEOUT_S)"
            )
        pauses.pause(polls)
        polls += 1


class DeviceTimes:
    """Times what watched stages queue on one stream, an iteration at a time.

    Args:
        runtime: a CudaRuntime.
        stream: where the stages compute; None for the current one.
    """

    def __init__(self, runtime, stream=None):
        self.runtime, self.stream = runtime, runtime.as_stream(stream)
        self._spans = []

    def watch(self, stage):
        """`stage`, which is timed from now on: what the executor is to be given in its place."""
        return WatchedStage(stage, self)

    def forget(self):
        """An iteration begins."""
        self._spans.clear()

    def _look(self):
        """(an event, when it was done in s, how many s off that may be)."""
        before_s, event = time.monotonic(), self.runtime.record(self.stream, timed=True)
        until_done(self.runtime, event)
        off_s = 0.5 * (time.monotonic() - before_s)
        return event, before_s + off_s, off_s

    def timed(self, call, *args, **options):
        """call(*args, **options), between two events.

        Cost: some microseconds of the CPU, none of the device.
        """
        start = self.runtime.record(self.stream, timed=True)
        result = call(*args, **options)
        self._spans.append((start, self.runtime.record(self.stream, timed=True)))
        return result

    def durations_s(self, measured):
        """(num_actions,) float64, seconds of the device in each action of the iteration that has just ended.

        Where the device was idle before an action, the time that the CPU took to queue it counts too.

        Args:
            measured: what execute returned.

        Raises:
            TransportError: work on the device has failed.

        Cost: waits until the device is done.
        """
        elapsed_s = self.runtime.elapsed_s
        return np.array([sum(elapsed_s(*span) for span in spans) for spans in self._by_action(measured)])

    def placed(self, measured):
        """`measured` by the device's clock: when actions started and ended there, off by what half an event takes (us).

        What the CPU noted otherwise is kept where it fits: a message is sent no sooner than its action has ended.

        Raises:
            TransportError: work on the device has failed.

        Cost: waits until the device is done.
        """
        spans = self._by_action(measured)
        event, done_s, _ = min((self._look() for _ in range(LOOKS)), key=lambda look: look[2])
        start_s = np.array([done_s - self.runtime.elapsed_s(each[0][0], event) for each in spans])
        end_s = np.array([done_s - self.runtime.elapsed_s(each[-1][1], event) for each in spans])
        ready_s, sent_s = np.minimum(measured.ready_s, start_s), np.maximum(measured.sent_s, end_s)
        return replace(measured, start_s=start_s, end_s=end_s, ready_s=ready_s, sent_s=sent_s)

    def _by_action(self, measured):
        """The (start, stop) events of each action's calls, once the device is done."""
        # One after the other: no action may take longer than the timeout, all together may.
        for _, stop in self._spans:
            until_done(self.runtime, stop)
        each = iter(self._spans)
        return [[next(each) for _ in range(CALLS[action.kind])] for action in measured.actions]


class WatchedStage:
    """A Stage whose F, B and W are timed; in all else the stage itself."""

    def __init__(self, stage, times):
        self._stage, self._times = stage, times

    def __getattr__(self, name):
        return getattr(self._stage, name)

    def begin(self, *args, **options):
        """As Stage.begin; all stages of a rank begin before the first computes."""
        self._times.forget()
        self._stage.begin(*args, **options)

    def forward(self, *args, **options):
        """As Stage.forward."""
        return self._times.timed(self._stage.forward, *args, **options)

    def backward_input(self, *args, **options):
        """As Stage.backward_input."""
        return self._times.timed(self._stage.backward_input, *args, **options)

    def backward_weight(self, *args, **options):
        """As Stage.backward_weight."""
        return self._times.timed(self._stage.backward_weight, *args, **options)
