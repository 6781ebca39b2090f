"""Time the links between ranks, both directions at once, pass by pass.

A transfer is timed from the sender's start, which a small head tells, to the last byte at its receiver, beside the
fastest small message by the same two clocks: so their difference, and what the other direction does, does not count.
The latency is that of small messages: one way where both ends share a clock, else half of the way there and back.
What its ends wait for their cores meanwhile, on a machine that has other work, is taken down beside it.
Links between GPUs are timed by those (device_links.py), in the same passes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from lanterne.collectives.message_lanes import Lane
from lanterne.failslow.validate.cores import waited_s
from lanterne.failslow.validate.device_links import Received
from lanterne.failslow.validate.links import Link
from lanterne.failslow.validate.probe import Probe

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.collectives.execute.requests import MessageRequest

# Small messages: so many, but no more than the fewest once they have taken so long.
PINGS, FEWEST_PINGS, PINGS_S = 20, 3, 0.1
# Polls without a nap; a load in the background needs the interpreter, which a poll holds. Longer transfers are polled
# less often: a rank that hardly computes need not wait for its core.
NAP_S, NAP_SHARE = 20e-6, 0.02

# What computes beside transfers: makes a context that gives the native ids of its threads.
Beside: TypeAlias = Callable[[], AbstractContextManager[Sequence[int]]]


class LinkSamples(NamedTuple):
    """One direction of a link: `latency_s`, the least of some messages, and `times_s`, {nbytes: transfers, seconds}.

    A transfer takes from its start to the last byte: with its latency. `waits_s`: {nbytes: what both ends waited for
    their cores during each}.
    """

    latency_s: float
    times_s: dict[int, tuple[float, ...]]
    waits_s: dict[int, tuple[float, ...]]

    def least_s(self, nbytes: int) -> tuple[float, ...]:
        """What each transfer took at least: without all waits for a core."""
        pairs = zip(self.times_s[nbytes], self.waits_s[nbytes], strict=True)
        return tuple(max(time_s - wait_s, 0.0) for time_s, wait_s in pairs)


def pooled(parts: Sequence[LinkSamples]) -> LinkSamples:
    """The LinkSamples of several measurements of one link, as one."""
    times_s = {nbytes: tuple(s for one in parts for s in one.times_s[nbytes]) for nbytes in parts[0].times_s}
    waits_s = {nbytes: tuple(s for one in parts for s in one.waits_s[nbytes]) for nbytes in parts[0].times_s}
    return LinkSamples(min(one.latency_s for one in parts), times_s, waits_s)


def nothing() -> AbstractContextManager[Sequence[int]]:
    """No work beside transfers."""
    return contextlib.nullcontext(())


def measure_links(
    probe: Probe,
    passes: Sequence[Sequence[Link]],
    sizes: Sequence[int],
    repetitions: int,
    background: Beside = nothing,
    patience_s: float = inf,
) -> dict[Link, LinkSamples]:
    """Time every link of `passes`, pass by pass; all ranks of `probe` call it.

    Args:
        passes: of links (a, b), no rank twice in a pass.
        sizes: bytes of the transfers.
        background: what computes beside a rank's own transfers.
        patience_s: where even the quickest small message takes longer, further repetitions are spared: what else could
            have disturbed one is little beside it. All small messages take twice as long at most, but for the fewest.

    Returns:
        LinkSamples by (src, dst), both directions of every link, on all ranks.
    """
    comm = probe.comm
    mine: dict[int, Received] = {}
    if not passes:
        return {}
    for batch in passes:
        for turn in probe.turns(batch):
            peer = next((a + b - comm.rank for a, b in turn if comm.rank in (a, b)), None)
            probe.barrier()
            if peer is not None:
                with background() as threads:
                    mine[peer] = _measure(probe, peer, sizes, repetitions, patience_s, threads)
    probe.barrier()
    return _collect(probe, passes, mine, sizes, repetitions)


def _measure(
    probe: Probe, peer: int, sizes: Sequence[int], repetitions: int, patience_s: float, threads: Iterable[int]
) -> Received:
    """What came from `peer`: the latency is the least difference of the clocks at the ends of a message."""
    if probe.device_wire is not None:
        return probe.device_wire.measure(peer, sizes, repetitions, patience_s)
    least_s, quickest_s = _ping(probe.wire, peer, min(PINGS_S, 2 * patience_s))
    if quickest_s > patience_s:
        repetitions = 1
    else:
        _exchange(probe, peer, min(sizes), threads)
    return least_s, [[_exchange(probe, peer, nbytes, threads) for nbytes in sizes] for _ in range(repetitions)]


def _ping(comm: Communicator, peer: int, limit_s: float) -> tuple[float, float]:
    """Small messages both ways at once, for `limit_s`.

    Returns:
        (the least difference of the clocks at the ends of one from `peer`, the least that the lower rank's exchanges
        took by its own clock: the same on both). The lower rank says how many.
    """
    first, began_s = comm.rank < peer, time.monotonic()
    least_s = took_s = told_s = inf
    stamp, count, more = np.empty(3), 0, True
    while more:
        start_s, told_s = time.monotonic(), took_s
        count += 1
        more = count < FEWEST_PINGS or (count < PINGS and start_s - began_s < limit_s)
        comm.send_recv(np.array([start_s, more, told_s]), stamp, peer, tag=Lane.PROBE_HEAD)
        end_s = time.monotonic()
        least_s, took_s = min(least_s, end_s - stamp[0]), min(took_s, end_s - start_s)
        if not first:
            more, told_s = bool(stamp[1]), float(stamp[2])
    return least_s, told_s


def _exchange(probe: Probe, peer: int, nbytes: int, threads: Iterable[int]) -> tuple[float, float]:
    """Send `nbytes` to `peer` and receive as many.

    Returns:
        (the difference of the clocks at the ends of what came, what this thread and `threads` waited for a core).
    """
    comm = probe.wire
    outgoing, incoming = (buffer[:nbytes] for buffer in probe.buffers(nbytes))
    stamp = np.empty(1)
    head, data = comm.start_recv(stamp, peer, tag=Lane.PROBE_HEAD), comm.start_recv(incoming, peer, tag=Lane.PROBE_DATA)
    # Both ends have posted their receives: neither waits for the other any more.
    comm.send_recv(np.empty(0, np.uint8), np.empty(0, np.uint8), peer, tag=Lane.PROBE_READY)
    before_s = waited_s(threads)
    leaving = (
        comm.start_send(np.array([time.monotonic()]), peer, tag=Lane.PROBE_HEAD),
        comm.start_send(outgoing, peer, tag=Lane.PROBE_DATA),
    )
    ended_s = _arrival_s(comm, data)
    for request in (head, *leaving):
        probe.wait(request)
    return ended_s - float(stamp[0]), waited_s(threads) - before_s


def _arrival_s(comm: Communicator, request: MessageRequest) -> float:
    began_s = now_s = time.monotonic()
    while not request.test():
        time.sleep(max(NAP_S, NAP_SHARE * (now_s - began_s)))
        now_s = time.monotonic()
        if now_s > began_s + comm.timeout_s:
            request.wait(0.0)
    return time.monotonic()


def _collect(
    probe: Probe, passes: Sequence[Sequence[Link]], mine: Mapping[int, Received], sizes: Sequence[int], repetitions: int
) -> dict[Link, LinkSamples]:
    comm = probe.comm
    table = np.full((comm.world_size, 1 + 2 * repetitions * len(sizes)), np.nan)
    for peer, (least_s, measured) in mine.items():
        table[peer, : 1 + np.size(measured)] = [least_s, *np.ravel(measured)]
    everyone = probe.gather(table)
    found = {}
    for a, b in (link for batch in passes for link in batch):
        for src, dst in ((a, b), (b, a)):
            latency_s = everyone[dst, src, 0]
            if probe.machines[a] != probe.machines[b]:
                latency_s = (everyone[a, b, 0] + everyone[b, a, 0]) / 2
            # The clocks' difference is what a small message seems to take, less what it takes.
            here, there = (everyone[at][1:].reshape(repetitions, len(sizes), 2) for at in ((dst, src), (src, dst)))
            times_s = np.maximum(here[..., 0] - everyone[dst, src, 0] + latency_s, 1e-9)
            waits_s = here[..., 1] + there[..., 1]
            done = ~np.isnan(times_s).any(axis=1)
            by_size = (
                {nbytes: tuple(values[done, i].tolist()) for i, nbytes in enumerate(sizes)}
                for values in (times_s, waits_s)
            )
            found[src, dst] = LinkSamples(float(latency_s), *by_size)
    return found
