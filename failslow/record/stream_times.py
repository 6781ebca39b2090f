"""Times of calls that are queued on a device's streams: those of the device, by events around them.

The program's thread records two events around a call and goes on; a thread of the recorder's own asks now and then
which of them are done, and writes down when they were. Nothing waits for a stream, and none waits for anything: a
stream that never ends leaves its calls open in the log, as a call that does not return would be.
Standard library only, and of the program's own libraries what it has loaded itself.

Paper: Wu et al. (GREYHOUND), section 4.3; differs: of each call also when it began, by a clock that all ranks of a
machine share, so that who comes late is seen, not only how long calls take.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from lanterne.failslow.record.bounds import OPEN
from lanterne.failslow.record.call_ring import Channel
from lanterne.kernels.cuda.clock import DeviceClock, EventSource

# An event or a stream of the program's library.
Event: TypeAlias = Any
Stream: TypeAlias = Any


LOOK_S = 0.05  # chosen: the times are known, whenever they are asked for


CAPTURE_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class Mark(NamedTuple):
    """A call that begins on `stream`, as seen by `calls`; `start` is None in a group, which begins later."""

    calls: QueuedCalls
    stream: Stream
    start: Event | None
    queued_s: float


class Timed(NamedTuple):
    """What is to be written once `stop` is done."""

    mark: Mark
    stop: Event
    channel: Channel
    place: int


class CallGroups:
    """What a thread has between ncclGroupStart and ncclGroupEnd: calls that begin together, at the end of it."""

    def __init__(self) -> None:
        self._local = threading.local()

    @property
    def calls(self) -> list[tuple[Mark, Channel, int]] | None:
        """The calls of this thread's group up to now; None outside of one."""
        found: list[tuple[Mark, Channel, int]] | None = getattr(self._local, "calls", None)
        return found

    def open(self) -> None:
        """A group begins, perhaps inside another."""
        self._local.depth = getattr(self._local, "depth", 0) + 1
        if self._local.depth == 1:
            self._local.calls = []

    def close(self, launch: Callable[[], Any]) -> Any:
        """The result of `launch`, which ends a group, and begins its calls where no other group is around it."""
        self._local.depth = max(0, getattr(self._local, "depth", 0) - 1)
        calls = self.calls
        if self._local.depth or calls is None:
            return launch()
        self._local.calls = None
        marks: dict[tuple[QueuedCalls, Stream], Mark | None] = {}
        for mark, _, _ in calls:
            if (mark.calls, mark.stream) not in marks:
                marks[mark.calls, mark.stream] = mark.calls.begin(mark.stream)
        try:
            return launch()
        finally:
            for mark, channel, index in calls:
                end(marks[mark.calls, mark.stream], channel, index)


def end(mark: Mark | None, channel: Channel, index: int) -> None:
    """All of the call that began at `mark` is queued; its place in the log is `index` of `channel`."""
    with suppress(Exception):
        if mark is not None and mark.calls.end(mark, channel, index):
            return
    channel.end(index, time.monotonic())


class QueuedCalls:
    """Times the queued calls of one device.

    Args:
        source: its events.
        groups: of the library whose calls they are.
        is_captured: whether a stream is being captured: then nothing runs, and nothing is timed.
        adopt: run first on the thread that asks.
    """

    def __init__(
        self,
        source: EventSource,
        groups: CallGroups | None = None,
        is_captured: Callable[[Stream], bool] = lambda stream: False,
        adopt: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._groups = groups or CallGroups()
        self._is_captured = is_captured
        self._adopt = adopt
        self._clock: DeviceClock | None = None
        self._pending: deque[Timed] = deque()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def begin(self, stream: Stream) -> Mark | None:
        """A call begins on `stream`; None where it cannot be timed."""
        if len(self._pending) >= OPEN or self._ended.is_set():
            return None
        start = None
        try:
            if self._is_captured(stream):
                return None
            if self._groups.calls is None:
                start = self._source.record(stream, timed=True)
        except Exception:
            return None
        return Mark(self, stream, start, time.monotonic())

    def end(self, mark: Mark, channel: Channel, index: int) -> bool:
        """See the function `end`; whether the call's end will be written."""
        if mark.start is None:
            calls = self._groups.calls
            if calls is None:
                return False
            calls.append((mark, channel, index))
            return True
        self._pending.append(Timed(mark, self._source.record(mark.stream, timed=True), channel, index))
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="lanterne-device-times", daemon=True)
                    self._thread.start()
        return True

    def _run(self) -> None:
        self._adopt()
        while not self._ended.wait(LOOK_S):
            self.look()

    def look(self) -> None:
        """Write down what is done; never waits for a stream."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        # A device that has failed answers nothing any more; its calls stay open.
        with suppress(Exception):
            if self._clock is None:
                self._clock = DeviceClock(self._source)
            if not self._pending or not self._clock.anchor():
                return
            stuck: set[Stream] = set()
            for _ in range(len(self._pending)):
                call = self._pending.popleft()
                # What follows on the same stream is not done either.
                if call.mark.stream in stuck or not self._source.is_done(call.stop):
                    stuck.add(call.mark.stream)
                    self._pending.append(call)
                    continue
                start_s, end_s = (
                    self._clock.time_s(event, call.mark.queued_s) for event in (call.mark.start, call.stop)
                )
                call.channel.begun(call.place, start_s)
                call.channel.end(call.place, max(start_s, end_s))

    def stop(self) -> None:
        """A last look: the program ends."""
        if self._thread is not None:
            self._ended.set()
            # The thread may be in a driver that hangs, and holds the lock then.
            if self._lock.acquire(timeout=LOOK_S):
                try:
                    self._look()
                finally:
                    self._lock.release()
            self._thread.join(LOOK_S)


class CupyEvents:
    """Events by CuPy on device `device_id`; streams are addresses."""

    def __init__(self, cupy: Any, device_id: int) -> None:
        self._cuda, self._device_id = cupy.cuda, device_id
        self._kept: list[Any] = []

    def new_stream(self) -> Stream:
        self._kept.append(self._cuda.Stream(non_blocking=True))
        return self._kept[-1].ptr

    def record(self, stream: Stream, *, timed: bool = False) -> Event:
        event = self._cuda.Event(disable_timing=not timed)
        self._cuda.runtime.eventRecord(event.ptr, stream)
        return event

    def is_done(self, event: Event) -> bool:
        return bool(self._cuda.runtime.eventQuery(event.ptr) == 0)

    def elapsed_s(self, start: Event, stop: Event) -> float:
        return 1e-3 * float(self._cuda.get_elapsed_time(start, stop))

    def is_captured(self, stream: Stream) -> bool:
        return bool(self._cuda.runtime.streamIsCapturing(stream))

    def adopt(self) -> None:
        with suppress(Exception):
            self._cuda.Device(self._device_id).use()
        relax_captures()


class TorchEvents:
    """Events by PyTorch on device `device_id`; streams are PyTorch's."""

    def __init__(self, torch: Any, device_id: int) -> None:
        self._torch = torch
        self._cuda = torch.cuda
        self._device_id = device_id

    def new_stream(self) -> Stream:
        return self._cuda.Stream(self._device_id)

    def record(self, stream: Stream, *, timed: bool = False) -> Event:
        event = self._cuda.Event(enable_timing=timed)
        event.record(stream)
        return event

    def is_done(self, event: Event) -> bool:
        return bool(event.query())

    def elapsed_s(self, start: Event, stop: Event) -> float:
        return 1e-3 * float(start.elapsed_time(stop))

    def is_captured(self, stream: Stream) -> bool:
        return bool(self._cuda.is_current_stream_capturing())

    def adopt(self) -> None:
        with suppress(Exception):
            self._cuda.set_device(self._device_id)
        relax_captures()


def relax_captures() -> None:
    """Let this thread ask about events while another captures in CUDA's strictest mode, which that would break."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(CAPTURE_RELAXED)))
