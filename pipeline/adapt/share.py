"""What one rank finds out and all go by."""

import json

import numpy as np

from lanterne.errors import InputError, LanterneError


def from_first(comm, make, timeout_s=None):
    """The value that `make()`, called on rank 0 of `comm` only, returns, on every rank: anything that JSON holds.

    Args:
        timeout_s: how long the others wait for it; None for the communicator's.

    Raises:
        LanterneError: make raised it; an InputError on the other ranks too if it was one.
    """
    value, error = None, None
    if comm.rank == 0:
        try:
            value = make()
        except LanterneError as raised:
            error = raised
    words = json.dumps([value, None if error is None else [isinstance(error, InputError), str(error)]]).encode()
    size = np.array([len(words)])
    comm.broadcast(size, timeout_s=timeout_s)
    data = np.frombuffer(bytearray(words), np.uint8) if comm.rank == 0 else np.empty(size[0], np.uint8)
    comm.broadcast(data)
    value, told = json.loads(data.tobytes())
    if error is not None:
        raise error
    if told is not None:
        raise (InputError if told[0] else LanterneError)(told[1])
    return value
