"""Time the links between GPUs: messages of device memory over NCCL, by the devices' clocks.

Each direction of a link by itself: on the streams of both ends follow a small message both ways, which brings them
together, one direction, then the other; the receiver's events before and after a message tell what it took. Nothing of
that is the host's: what it takes to queue messages does not count, nor what another process takes of its cores.
Paper: Wu et al. (GREYHOUND), section 4.3; StragglAR, section 4.1: times by CUDA events.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from lanterne.collectives.communicator import core_of
from lanterne.failslow.validate.link_kinds import UNKNOWN, KindFinder
from lanterne.failslow.validate.links import Link
from lanterne.kernels.staging import wait_for
from lanterne.transport.base import Recv, Send

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.collectives.execute.requests import MessageRequest
    from lanterne.kernels.cuda.device_view import DeviceView

# Of what came from a peer: (latency, [by repetition] [by size] (that of a transfer, what this end waited for a core)).
Received: TypeAlias = tuple[float, list[list[tuple[float, float]]]]
# Of a text that ranks tell each other: a GPU's PCI address, a link's kind, why it is unknown.
TEXT_NBYTES = 192
# Small messages there and back, so many at once, and how often.
PINGS, ROUNDS = 5, 4


class DeviceWire:
    """This rank's end of links between devices. All ranks of `comm`, whose transport is nccl, make one together.

    Attributes: `path`, what the messages go over, for people.

    Raises:
        Unavailable: no room on the device.
    """

    path = "device memory over nccl"

    def __init__(self, comm: Communicator) -> None:
        runtime = comm.transport.runtime
        assert runtime is not None, "of nccl"
        self._comm, self._runtime = comm, runtime
        # Before NCCL makes connections, which it tells of once.
        self._kinds = KindFinder()
        self._stream = runtime.new_stream()
        self._small = runtime.empty(1), runtime.empty(1)
        self._buffers = self._small
        # NCCL's communicator of these ranks: of all of them, not of the first pair.
        core_of(comm).device_side(self._small[0])

    def measure(self, peer: int, sizes: Sequence[int], repetitions: int, patience_s: float) -> Received:
        """Time the link with `peer`, which calls this too; what comes from there.

        Args:
            sizes, repetitions, patience_s: of measure_links.
        """
        least_s = self._latency_s(peer)
        told = np.empty(1)
        self._comm.send_recv(np.array([least_s]), told, peer)
        if max(least_s, told[0]) > patience_s:
            repetitions = 1
        else:
            self._transfer_s(peer, min(sizes))
        return least_s, [[(self._transfer_s(peer, nbytes), 0.0) for nbytes in sizes] for _ in range(repetitions)]

    def kinds(self, hosts: Sequence[int], ways: Iterable[Link]) -> tuple[dict[Link, str], str]:
        """({directed link of `ways`: what it is}, why one is unknown or ""), alike on all ranks.

        All call it, once messages have gone over these links. `hosts`: of each rank.
        """
        addresses = [address for (address,) in self._told([self._runtime.identity])]
        mine, silent = self._kinds.own_kinds(self._comm.rank, list(zip(hosts, addresses, strict=True)))
        everyone = self._told([*mine, silent])
        kinds = {(src, dst): everyone[src][dst] for src, dst in ways}
        return kinds, next((everyone[src][-1] for (src, _), kind in kinds.items() if kind == UNKNOWN), "")

    def _told(self, texts: Sequence[str]) -> list[list[str]]:
        """The `texts` of every rank, as many on all."""
        mine = np.zeros((len(texts), TEXT_NBYTES), np.uint8)
        for row, text in zip(mine, texts, strict=True):
            told = text.encode()[:TEXT_NBYTES]
            row[: len(told)] = np.frombuffer(told, np.uint8)
        everyone = np.empty((self._comm.world_size, *mine.shape), np.uint8)
        self._comm.all_gather(mine, everyone)
        return [[row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rank] for rank in everyone]

    def _latency_s(self, peer: int) -> float:
        """Half of what a message of a byte takes there and back: the least mean of some."""
        found = []
        for _ in range(ROUNDS):
            started = [self._together(peer)]
            events = [self._event()]
            for _ in range(PINGS):
                started += self._there_and_back(peer, self._small)
            events.append(self._event())
            found += self._times_s(events, started)
        return min(found) / (2 * PINGS)

    def _transfer_s(self, peer: int, nbytes: int) -> float:
        """Seconds that `nbytes` from `peer` take; as many go there."""
        if self._buffers[0].size < nbytes:
            self._buffers = self._runtime.empty(nbytes), self._runtime.empty(nbytes)
        out, into = (_part(buffer, nbytes) for buffer in self._buffers)
        started = [self._together(peer)]
        events = [self._event()]
        for sends in self._order(peer):
            started.append(self._start(sends, out if sends else into, peer))
            events.append(self._event())
        first_s, second_s = self._times_s(events, started)
        return second_s if self._order(peer)[0] else first_s

    def _order(self, peer: int) -> tuple[bool, bool]:
        """Whether this rank's first message is one that it sends: the lower rank's is, and the other's last."""
        return (True, False) if self._comm.rank < peer else (False, True)

    def _there_and_back(self, peer: int, buffers: tuple[DeviceView, DeviceView]) -> list[MessageRequest]:
        return [self._start(sends, buffers[not sends], peer) for sends in self._order(peer)]

    def _start(self, sends: bool, buffer: DeviceView, peer: int) -> MessageRequest:
        start = self._comm.start_send if sends else self._comm.start_recv
        return start(buffer, peer, self._stream)

    def _together(self, peer: int) -> MessageRequest:
        """A byte both ways at once: the streams of both ends go on together."""
        out, into = self._small
        return core_of(self._comm).messages.start(((Recv, into), (Send, out)), peer, 0, self._stream)

    def _event(self) -> Any:
        return self._runtime.record(self._stream, timed=True)

    def _times_s(self, events: list[Any], started: list[MessageRequest]) -> list[float]:
        """Seconds between neighbouring events, once all are done, and no message is under way."""
        runtime, timeout_s = self._runtime, self._comm.timeout_s
        for request in started:
            request.wait(timeout_s)
        wait_for(lambda: runtime.is_done(events[-1]), "messages between devices", timeout_s)
        return [runtime.elapsed_s(before, after) for before, after in itertools.pairwise(events)]


def _part(buffer: DeviceView, nbytes: int) -> DeviceView:
    return buffer if buffer.size == nbytes else replace(buffer, size=nbytes)
