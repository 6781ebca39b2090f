"""The memory that `auto` is measured with (learn.py, trials.py): of the host, or of the device over nccl."""

import numpy as np

from lanterne.kernels.cuda.device_view import DeviceView
from lanterne.kernels.staging import wait_for


def trial_array(communicator, count):
    """(count,) float32, of whatever values where it is device memory."""
    if not _is_on_device(communicator):
        return np.ones(count, np.float32)
    memory = communicator.transport.runtime.empty(4 * count, "trial")
    return DeviceView(memory.address, count, np.dtype(np.float32), owner=memory)


def finish(communicator):
    """Return once a call with such arrays is done, which over nccl has returned before."""
    if _is_on_device(communicator):
        runtime = communicator.transport.runtime
        done = runtime.record(runtime.current_stream())
        wait_for(lambda: runtime.is_done(done), "trial", communicator.timeout_s)


def _is_on_device(communicator):
    return communicator.transport.capabilities.stream_ordered
