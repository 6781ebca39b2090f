"""A Device on stand-ins: NumPy under CuPy's names, and streams that are threads."""

import time
from types import SimpleNamespace

import numpy as np

from lanterne.pipeline.device.device_stage import Device


class OnDevice(np.ndarray):
    """An array that came from the array module below."""


def array_module():
    """CuPy's functions that a Trainer and a figure ask for."""

    def asnumpy(array, out):
        out[...] = array
        return out

    def made(function):
        return lambda *args, **options: function(*args, **options).view(OnDevice)

    return SimpleNamespace(
        asarray=made(lambda array, dtype=None: np.array(array, dtype)),
        ascontiguousarray=made(np.ascontiguousarray),
        empty=made(np.empty),
        zeros=made(np.zeros),
        zeros_like=made(np.zeros_like),
        asnumpy=asnumpy,
    )


class HostDevice(Device):
    """Where stages compute at once, and not on a stream: what comes is waited for."""

    def fetch(self, buffer):
        array = super().fetch(buffer)
        until(lambda: self.runtime.is_idle(self.runtime.default))
        return array


def until(is_true):
    deadline_s = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(1e-4)
