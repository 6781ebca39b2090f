"""How long a link takes that carries nothing: one small message between two iterations."""

import time

import numpy as np

TAG = 26


def probe_message(comm, link):
    """Seconds of a message from the first rank of `link` to the second, on that one; nan on the others.

    Both call it. Clocks must agree, as on one host. Cost: the second waits for it, the first does not.
    """
    stamp = np.array([time.monotonic()])
    if comm.rank == link[0]:
        comm.start_send(stamp, link[1], tag=TAG)
    if comm.rank != link[1]:
        return np.nan
    comm.recv(stamp, link[0], tag=TAG)
    return time.monotonic() - stamp[0]
