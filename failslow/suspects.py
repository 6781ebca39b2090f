"""A quick test of suspects alone, while the job is paused: what they are blamed for, against peers that are not.

validate.py tests a whole job in some 20 s; this takes some 50 ms, so that a short incident is over no sooner.
"""

import time
from math import nan
from statistics import median, median_low

import numpy as np

from . import gemm

PINGS, WITNESSES, SAMPLE_S = 3, 3, 5e-3
# Of the product: some 0.3 ms on a CPU core.
SIDE = 160
TAG = 27


class Examiner:
    """One rank's end; every rank makes the same calls.

    Args:
        comm: the Communicator of all ranks.
        wire: one of the same ranks, over what the work goes over.
        slowdown: a function that gives the factor of this rank's computing, for experiments.
    """

    def __init__(self, comm, wire, slowdown=lambda: 1.0):
        self.comm, self.wire, self._slowdown, self._usual_s = comm, wire, slowdown, nan
        a, b, out = (np.ones((SIDE, SIDE), np.float32) for _ in range(3))
        self._load = gemm.Load("float32 product", lambda: np.matmul(a, b, out=out))

    def examine(self, suspects):
        """{name: severity} of suspects: the factor of a "rank R"'s core time, the seconds more of a "link A-B".

        Every rank has the result. Who cannot be tested is absent.
        """
        ranks = [int(name.split()[1]) for name in suspects if name.startswith("rank")]
        links = [tuple(map(int, name.split()[1].split("-"))) for name in suspects if name.startswith("link")]
        found = self._links(links) if links else {}
        if ranks:
            peers = [rank for rank in range(self.comm.world_size) if rank not in ranks][:WITNESSES]
            times_s = self.compare(peers, ranks)
            found |= {f"rank {rank}": times_s[rank] / self._usual_s for rank in ranks if peers}
        return found

    def compare(self, peers, others=()):
        """{rank: core seconds of a product} of `peers`, whose median is what `retest` compares with, and `others`."""
        tested, mine = {*peers, *others}, np.full(1, nan)
        if self.comm.rank in tested:
            mine[0] = self._product_s()
        table = np.empty(self.comm.world_size)
        self.comm.all_gather(mine, table)
        if peers:
            self._usual_s = median_low(table[rank] for rank in peers)
        return {rank: float(table[rank]) for rank in tested}

    def retest(self):
        """The factor of this rank's core time now over its peers' at the last comparison; only this rank calls it."""
        return self._product_s() / self._usual_s

    def _product_s(self):
        self._load.run()
        return min(gemm.sample(self._load, SAMPLE_S, self._slowdown()).cpu_s)

    def _links(self, links):
        n = self.comm.world_size
        others = [(a, b) for a in range(n) for b in range(a + 1, n) if (a, b) not in links]
        # Witnesses that have no end in common with a suspect, where there are such.
        ends = {end for link in links for end in link}
        witnesses = sorted(others, key=lambda link: len(ends & set(link)))[:WITNESSES]
        mine = np.full(len(links) + len(witnesses), nan)
        for index, (a, b) in enumerate([*links, *witnesses]):
            if self.comm.rank in (a, b):
                mine[index] = ping_s(self.wire, a + b - self.comm.rank, first=self.comm.rank == a)
        table = np.empty((n, len(mine)))
        self.comm.all_gather(mine, table.reshape(-1))
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
    return shortest_s / 2 if first else nan
