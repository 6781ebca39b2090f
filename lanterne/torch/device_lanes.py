"""Calls on a device in one order: a stream is held up while a thread does each call, and no CPU of the program waits.

| stream | what it does |
| --- | --- |
| the caller's | what the program queues; it waits for a call where the program calls `wait` |
| `stream` | waits for each call: for the caller's stream, then at a Gate until the call has ended |
| `incoming`, `outgoing` | copies, or the call itself |

Two threads do the calls of a lane: one starts them in order, the other ends them in order. So later calls are under way
while an earlier one has not ended.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import torch

from lanterne.errors import LanterneError, TransportTimeout
from lanterne.torch.accelerators import Accelerator, Gate
from lanterne.torch.torch_internals import as_torch
from lanterne.transport.machine import THIS_MACHINE
from lanterne.transport.pauses import Pauses
from lanterne.transport.waiting import wait

# End a call; its result is kept as LaneCall.value.
End = Callable[[], Any]
Start = Callable[["LaneCall"], End]


class LaneCall:
    """A call of a Lane.

    Attributes:
        verb: for errors.
        entry: event of the caller's stream: this rank has arrived.
        done: event of the lane's stream: the call has ended.
        limit_s: timeout of the stream's arrival.
        number: of the lane's Gate.
        is_open: whether a stream opens the gate, which is then not opened by the CPU.
        error: what it failed with; None: nothing so far.
        is_raised: whether the program knows of the error.
        value: what the end of the call returned.
    """

    __slots__ = (
        "_ended",
        "_start",
        "done",
        "entry",
        "error",
        "is_open",
        "is_raised",
        "limit_s",
        "number",
        "value",
        "verb",
    )

    def __init__(self, verb: str, entry: Any, number: int, done: Any, start: Start, limit_s: float) -> None:
        self.verb = verb
        self.entry = entry
        self.number = number
        self.done = done
        self.limit_s = limit_s
        self.is_open = self.is_raised = False
        self.error: BaseException | None = None
        self.value: Any = None
        self._start: Start | None = start
        self._ended = threading.Event()

    def start(self) -> End:
        """Start the call, in the lane's first thread; forgets the memory that only the start needs."""
        start, self._start = self._start, None
        assert start is not None
        return start(self)

    def end(self) -> None:
        """Note that the call has ended."""
        self._ended.set()

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait(self, limit_s: float) -> bool:
        """Have the CPU wait for the end of the call; return whether it came within `limit_s`."""
        return self._ended.wait(limit_s)

    def check(self) -> None:
        """Raise what the call failed with, if that is known."""
        if self.error is not None:
            self.is_raised = True
            raise as_torch(self.error) if isinstance(self.error, LanterneError) else self.error


class Lane:
    """Calls on `device` in one order.

    Args:
        name: of its threads.
        report: called with each call that has failed, in the lane's thread.
    """

    def __init__(
        self, accelerator: Accelerator, device: torch.device, name: str, report: Callable[[LaneCall], None]
    ) -> None:
        self._accelerator = accelerator
        self._device = device
        self._report = report
        self._gate: Gate = accelerator.gate(device)
        self.stream, self.incoming, self.outgoing = (accelerator.new_stream(device) for _ in range(3))
        self._pauses: Pauses = THIS_MACHINE.pauses(1)
        self._lock = threading.Lock()
        self._last: LaneCall | None = None
        self._starts: SimpleQueue[LaneCall | None] = SimpleQueue()
        self._ends: SimpleQueue[tuple[LaneCall, End | None] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, args=(loop,), name=f"lanterne-{name}-{what}", daemon=True)
            for what, loop in (("starts", self._start_calls), ("ends", self._end_calls))
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, verb: str, start: Start, limit_s: float) -> LaneCall:
        """Queue a call behind what the current stream was given so far, and return at once."""
        with self._lock:
            entry = self._accelerator.module.current_stream(self._device).record_event()
            self.stream.wait_event(entry)
            number = self._gate.hold(self.stream)
            call = LaneCall(verb, entry, number, self.stream.record_event(), start, limit_s)
            self._starts.put(call)
            self._last = call
        return call

    def drain(self, limit_s: float) -> bool:
        """Have the CPU wait until all calls have ended; return whether they have within `limit_s`."""
        with self._lock:
            last = self._last
        return last is None or last.wait(limit_s)

    def open_after(self, call: LaneCall, stream: Any) -> None:
        """Let the lane's stream go on behind `call` once `stream` reaches this point; without the CPU."""
        self._gate.open(call.number, stream)
        call.is_open = True

    def reached(self, event: Any, limit_s: float) -> bool:
        """Return True once `event` is done, False if it is not within `limit_s`; the CPU of this thread waits."""
        return wait(event.query, limit_s, self._pauses)

    def close(self, limit_s: float) -> None:
        """Let the calls that are queued end, and the threads; each waits at most `limit_s`."""
        self._starts.put(None)
        for thread in self._threads:
            thread.join(limit_s)

    def _run(self, loop: Callable[[], None]) -> None:
        self._accelerator.adopt_thread(self._device)
        loop()

    def _start_calls(self) -> None:
        while (call := self._starts.get()) is not None:
            end: End | None = None
            try:
                if not self.reached(call.entry, call.limit_s):
                    raise TransportTimeout(
                        f"{call.verb}: the stream of its call did not reach it within {call.limit_s:g} s"
                    )
                end = call.start()
            except Exception as error:
                call.error = error
            self._ends.put((call, end))
        self._ends.put(None)

    def _end_calls(self) -> None:
        while (item := self._ends.get()) is not None:
            call, end = item
            try:
                if end is not None:
                    call.value = end()
            except Exception as error:
                call.error = error
            if call.error is not None:
                self._report(call)
            if call.error is not None or not call.is_open:
                # A stream that waits for a call that failed would wait for ever.
                self._gate.open(call.number)
            # The memory of the call is free now.
            del item, end
            call.end()
