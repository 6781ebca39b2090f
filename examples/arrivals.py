"""Who comes last to the all-reduces of a job, how often, and by how much: what `auto` itself has found out."""

import time

import numpy as np

import lanterne

RANKS, CALLS, SLOW_RANK, LATE_S = 4, 10, 2, 0.03


def main(comm: lanterne.Communicator) -> int | None:
    """One rank: the rank that came last in over half of the calls, None if none did."""
    x = np.ones(1 << 20, np.float32)
    for _ in range(CALLS):
        time.sleep(LATE_S if comm.rank == SLOW_RANK else 0.0)
        comm.all_reduce(x, x, op="mean")
    comm.arrivals()  # each rank tells what it has not told yet
    comm.barrier()
    arrivals = comm.arrivals()
    if comm.rank == 0:
        median_ms = 1e3 * float(np.median(arrivals.delays_s))
        print(f"{arrivals.calls} calls; last: {arrivals.last.tolist()} times by rank; by {median_ms:.1f} ms")
    return arrivals.late_rank()


assert lanterne.spawn(RANKS, main) == [SLOW_RANK] * RANKS
