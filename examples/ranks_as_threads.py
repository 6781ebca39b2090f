"""Four ranks in one process, for tests and notebooks; one of them comes late, and the others start without it."""

import time

import numpy as np
from numpy.typing import NDArray

import lanterne


def main(comm: lanterne.Communicator) -> tuple[NDArray[np.float32], float]:
    """One rank: the sum, and how long its call took, in seconds."""
    x = np.full(1 << 20, comm.rank + 1, np.float32)
    if comm.rank == 3:
        time.sleep(0.05)
    start_s = time.monotonic()
    request = comm.start_all_reduce(x, x)
    request.wait(timeout_s=10.0)
    return x, time.monotonic() - start_s


for rank, (total, taken_s) in enumerate(lanterne.spawn(4, main)):
    assert (total == 10).all()
    print(f"rank {rank}: {1e3 * taken_s:.1f} ms")
