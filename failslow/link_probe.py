"""Time the links between ranks, both directions at once, pass by pass.

A transfer is timed from the sender's start, which a small head tells, to the last byte at its receiver, less what the
fastest small message took by the same two clocks: so neither the difference of the clocks, nor the latency, nor what
the other direction does counts as bandwidth. The latency is that of small messages: one way where both ends share a
clock, else half of the way there and back.
"""

import contextlib
import time
from typing import NamedTuple

import numpy as np

from .probe import DATA, HEAD, READY

PINGS = 20
# Polls without a nap; a load in the background needs the interpreter, which a poll holds.
NAP_S = 20e-6


class LinkSamples(NamedTuple):
    """One direction of a link: `latency_s`, the least of some messages, and `times_s`, {nbytes: transfers, seconds}."""

    latency_s: float
    times_s: dict


def measure_links(probe, passes, sizes, repetitions, background=contextlib.nullcontext):
    """Time every link of `passes`, pass by pass; all ranks of `probe` call it.

    Args:
        passes: of links (a, b), no rank twice in a pass.
        sizes: bytes of the transfers.
        background: makes the context in which a rank's own transfers run.

    Returns:
        {(src, dst): LinkSamples}, both directions of every link, on all ranks.
    """
    comm, mine = probe.comm, {}
    for batch in passes:
        for turn in probe.pair_turns(batch):
            peer = next((a + b - comm.rank for a, b in turn if comm.rank in (a, b)), None)
            probe.barrier()
            if peer is not None:
                with background():
                    mine[peer] = _measure(probe, peer, sizes, repetitions)
    probe.barrier()
    return _collect(probe, passes, mine, sizes, repetitions)


def _measure(probe, peer, sizes, repetitions):
    """(least difference of the clocks at the ends of a message from `peer`, transfers by repetition and size)."""
    _exchange(probe, peer, min(sizes), 0.0)
    difference_s = min(_ping(probe.comm, peer) for _ in range(PINGS))
    times_s = [[_exchange(probe, peer, nbytes, difference_s) for nbytes in sizes] for _ in range(repetitions)]
    return difference_s, times_s


def _ping(comm, peer):
    stamp = np.empty(1)
    first = comm.rank < peer
    if first:
        comm.send(np.array([time.monotonic()]), peer, tag=HEAD)
    comm.recv(stamp, peer, tag=HEAD)
    difference_s = time.monotonic() - stamp[0]
    if not first:
        comm.send(np.array([time.monotonic()]), peer, tag=HEAD)
    return difference_s


def _exchange(probe, peer, nbytes, difference_s):
    """Send `nbytes` to `peer` and receive as many; the seconds that these took."""
    comm = probe.comm
    outgoing, incoming = (buffer[:nbytes] for buffer in probe.buffers(nbytes))
    stamp = np.empty(1)
    head, data = comm.start_recv(stamp, peer, tag=HEAD), comm.start_recv(incoming, peer, tag=DATA)
    # Both ends have posted their receives: neither waits for the other any more.
    comm.send_recv(np.empty(0, np.uint8), np.empty(0, np.uint8), peer, tag=READY)
    leaving = (
        comm.start_send(np.array([time.monotonic()]), peer, tag=HEAD),
        comm.start_send(outgoing, peer, tag=DATA),
    )
    ended_s = _arrival_s(comm, data)
    for request in (head, *leaving):
        probe.wait(request)
    return max(ended_s - float(stamp[0]) - difference_s, 1e-9)


def _arrival_s(comm, request):
    deadline_s = time.monotonic() + comm.timeout_s
    while not request.test():
        time.sleep(NAP_S)
        if time.monotonic() > deadline_s:
            request.wait(0.0)
    return time.monotonic()


def _collect(probe, passes, mine, sizes, repetitions):
    comm = probe.comm
    table = np.full((comm.world_size, 1 + repetitions * len(sizes)), np.nan)
    for peer, (difference_s, times_s) in mine.items():
        table[peer] = [difference_s, *np.ravel(times_s)]
    everyone = probe.gather(table)
    found = {}
    for a, b in (link for batch in passes for link in batch):
        for src, dst in ((a, b), (b, a)):
            latency_s = everyone[dst, src, 0]
            if probe.machines[a] != probe.machines[b]:
                latency_s = (everyone[a, b, 0] + everyone[b, a, 0]) / 2
            times_s = everyone[dst, src, 1:].reshape(repetitions, len(sizes))
            by_size = {nbytes: tuple(times_s[:, i].tolist()) for i, nbytes in enumerate(sizes)}
            found[src, dst] = LinkSamples(float(latency_s), by_size)
    return found
