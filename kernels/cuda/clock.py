"""When a device reached what was queued on its streams, by this machine's monotonic clock; nothing waits for it.

An event tells a time of the device only beside another one. So an anchor is taken now and then: an event on a stream of
its own, on which nothing else runs, between two looks at the host's clock. Standard library only.
Paper: Wu et al. (GREYHOUND), section 4.3: calls are timed by CUDA events around them.
"""

import time
from collections import deque
from typing import Any, Protocol, TypeAlias

# An event or a stream of whatever library.
Event: TypeAlias = Any
Stream: TypeAlias = Any
# CUDA tells milliseconds as a float of 24 bits, so that over 16 s they are known to a microsecond.
ANCHOR_S, MAX_ANCHORS = 5.0, 16
TRIES, ANCHOR_LIMIT_S = 5, 0.05


class EventSource(Protocol):
    """The verbs of a device that a clock is made of; a CudaRuntime has them."""

    def new_stream(self) -> Stream: ...
    def record(self, stream: Stream, *, timed: bool = False) -> Event: ...
    def is_done(self, event: Event) -> bool: ...
    def elapsed_s(self, start: Event, stop: Event) -> float: ...


class DeviceClock:
    """Tells when events of one device were reached.

    Attributes: `error_s`, half of what lay between the host's looks at the latest anchor; inf before the first.
    """

    def __init__(self, source: EventSource) -> None:
        self._source = source
        self._stream = source.new_stream()
        # (its event, when it was reached)
        self._anchors: deque[tuple[Event, float]] = deque(maxlen=MAX_ANCHORS)
        self.error_s: float = float("inf")

    def anchor(self, limit_s: float = ANCHOR_LIMIT_S) -> bool:
        """Take a new anchor where the latest is too old; False if there is none, the device being slow to answer.

        Cost: some 50 us of the CPU every ANCHOR_S, at most `limit_s`.
        """
        if self._anchors and time.monotonic() - self._anchors[-1][1] < ANCHOR_S:
            return True
        best: tuple[float, Event, float] | None = None
        deadline_s = time.monotonic() + limit_s
        for _ in range(TRIES):
            before_s = time.monotonic()
            event = self._source.record(self._stream, timed=True)
            while not self._source.is_done(event):
                if time.monotonic() > deadline_s:
                    return self._keep(best)
                # Others of this process may go on.
                time.sleep(0)
            after_s = time.monotonic()
            if best is None or after_s - before_s < best[0]:
                best = after_s - before_s, event, (before_s + after_s) / 2
        return self._keep(best)

    def _keep(self, best: tuple[float, Event, float] | None) -> bool:
        if best is not None:
            self.error_s = best[0] / 2
            self._anchors.append(best[1:])
        return bool(self._anchors)

    def time_s(self, event: Event, queued_s: float) -> float:
        """When `event`, a timed one that is done, was reached, of time.monotonic(); there is an anchor.

        Args:
            queued_s: when it was recorded, which the device cannot have been before.
        """
        anchor, at_s = next((one for one in reversed(self._anchors) if one[1] <= queued_s), self._anchors[0])
        # An event from before the first anchor: the interval is asked for in its order.
        if at_s > queued_s:
            return at_s + self._signed_s(anchor, event)
        return max(queued_s, at_s + self._source.elapsed_s(anchor, event))

    def _signed_s(self, anchor: Event, event: Event) -> float:
        forth_s = self._source.elapsed_s(anchor, event)
        return forth_s if forth_s > 0.0 else -self._source.elapsed_s(event, anchor)
