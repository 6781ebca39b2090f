"""Stand-ins on this machine's clock: spin kernels, and a plane of streams whose receives wait for the stream."""

import itertools
import time

from host_device import until

from lanterne.pipeline.planes import streams


class HostSpins:
    """SpinKernels on the clock of this machine."""

    def __init__(self):
        self.stamps, self._slots = {}, itertools.count()

    def new_slot(self):
        return next(self._slots)

    def stamp(self, slot, stream):
        stream.put(lambda: self.stamps.__setitem__(slot, time.monotonic()))

    def spin_until(self, slot, duration_s, stream):
        stream.put(lambda: time.sleep(max(0.0, self.stamps[slot] + duration_s - time.monotonic())))


class Waiting(streams.Streams):
    """For stages that compute at once, and not on a stream."""

    def receive(self, *message):
        receive = super().receive(*message)
        wait = receive.wait

        def waited(timeout_s=None):
            buffer = wait(timeout_s)
            until(lambda: self._device.runtime.is_idle(self._device.runtime.default))
            return buffer

        return _Receive(waited)


class _Receive:
    def __init__(self, wait):
        self.wait = wait

    def test(self):
        return True
