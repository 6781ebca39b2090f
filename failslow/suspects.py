"""A quick test of suspects alone, while the job is paused: what they are blamed for, against peers that are not.

validate.py tests a whole job in some 20 s; this takes some 50 ms, so that a short incident is over no sooner.
"""

import time
from statistics import median, median_low

import numpy as np

from . import gemm

PINGS, WITNESSES, SAMPLE_S = 3, 3, 5e-3
# Of the product: some 0.3 ms on a CPU core.
SIDE = 160
TAG = 27


def examine(comm, wire, suspects, slowdown=1.0):
    """{name: severity} of suspects: the factor of a "rank R"'s core time, the seconds more of a "link A-B".

    Every rank calls it alike, and has the result.

    Args:
        comm: the Communicator of all ranks.
        wire: one of the same ranks, over what the work goes over.
        slowdown: of this rank's computing, for experiments.
    """
    ranks = [int(name.split()[1]) for name in suspects if name.startswith("rank")]
    links = [tuple(map(int, name.split()[1].split("-"))) for name in suspects if name.startswith("link")]
    found = _links(comm, wire, links) if links else {}
    return found | (_ranks(comm, ranks, slowdown) if ranks else {})


def _links(comm, wire, links):
    n = comm.world_size
    others = [(a, b) for a in range(n) for b in range(a + 1, n) if (a, b) not in links]
    # Witnesses that have no end in common with a suspect, where there are such.
    ends = {end for link in links for end in link}
    witnesses = sorted(others, key=lambda link: len(ends & set(link)))[:WITNESSES]
    mine = np.full(len(links) + len(witnesses), np.nan)
    for index, (a, b) in enumerate([*links, *witnesses]):
        if comm.rank in (a, b):
            mine[index] = ping_s(wire, a + b - comm.rank, first=comm.rank == a)
    table = np.empty((n, len(mine)))
    comm.all_gather(mine, table.reshape(-1))
    seconds = np.nanmin(table, axis=0)
    usual_s = median(seconds[len(links) :]) if witnesses else 0.0
    return {f"link {a}-{b}": float(seconds[index] - usual_s) for index, (a, b) in enumerate(links)}


def ping_s(comm, peer, first, pings=PINGS):
    """Half of the shortest round trip of an empty message, seconds, on the rank that is `first`; else nan."""
    empty, shortest_s = np.empty(0, np.uint8), float("inf")
    for _ in range(pings):
        began_s = time.monotonic()
        if first:
            comm.send(empty, peer, tag=TAG)
        comm.recv(empty, peer, tag=TAG)
        if not first:
            comm.send(empty, peer, tag=TAG)
        shortest_s = min(shortest_s, time.monotonic() - began_s)
    return shortest_s / 2 if first else float("nan")


def _ranks(comm, ranks, slowdown):
    peers = [rank for rank in range(comm.world_size) if rank not in ranks][:WITNESSES]
    tested, mine = [*ranks, *peers], np.full(1, np.nan)
    if comm.rank in tested:
        a, b, out = (np.ones((SIDE, SIDE), np.float32) for _ in range(3))
        load = gemm.Load("float32 product", lambda: np.matmul(a, b, out=out))
        load.run()
        mine[0] = min(gemm.sample(load, SAMPLE_S, slowdown).cpu_s)
    table = np.empty((comm.world_size, 1))
    comm.all_gather(mine, table.reshape(-1))
    if not peers:
        return {}
    usual_s = median_low(table[rank, 0] for rank in peers)
    return {f"rank {rank}": float(table[rank, 0] / usual_s) for rank in ranks}
