"""A stand-in for a device's events: streams go on, or do not, as a test says, and the device's clock is its own."""

import time


class VirtualEvent:
    def __init__(self):
        self.at_s = None


class VirtualDevice:
    """The verbs of an EventSource; `offset_s` is how far its clock is ahead of the host's.

    Attributes: `asked`, how often it was asked for an event; `fails`: it answers nothing any more.
    """

    def __init__(self, offset_s=1000.0):
        self.offset_s, self.held, self.asked, self.fails = offset_s, {}, 0, False
        self.names = iter(range(100, 1000))

    def new_stream(self):
        return next(self.names)

    def hold(self, stream):
        """What comes on `stream` from now on is not reached."""
        self.held[stream] = []

    def release(self, stream, at_s=None):
        """`stream` goes on; at `at_s` of the host's clock, else now."""
        for event in self.held.pop(stream):
            event.at_s = self.offset_s + (time.monotonic() if at_s is None else at_s)

    def record(self, stream, *, timed=False):
        assert timed and not self.fails
        event = VirtualEvent()
        if stream in self.held:
            self.held[stream].append(event)
        else:
            event.at_s = self.offset_s + time.monotonic()
        return event

    def is_done(self, event):
        assert not self.fails
        self.asked += 1
        return event.at_s is not None

    def elapsed_s(self, start, stop):
        return stop.at_s - start.at_s
