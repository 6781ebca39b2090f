"""The data plane of Megatron and CrossPipe's engine: a message moves once both its sender and its receiver posted it.

A receive is posted with the send before it, when the rank next has nothing else to do, and those before it from the
same peer with it, for peers match in order. A rank that computes meets nobody: a message that was ready meanwhile
begins to cross its link only then. Each direction has a stream of its own, so no send keeps its rank from computing.

Ranks of one host hand messages over in memory, and only tell when they would have met; see delegate.py.

Posted ahead, as CrossPipe orders communication for known delays, receives wait for their senders instead, and messages
leave when they are ready: the `_O` of its figure 11.

Paper: Chen et al. 2025 (CrossPipe), sections 6.3 and 7.1.
"""

import time
from collections import deque
from collections.abc import Collection
from math import inf
from typing import Any

import numpy as np

from lanterne.collectives.communicator import Communicator
from lanterne.pipeline.planes.data_plane import Buffer, Receive, Shape
from lanterne.pipeline.planes.delegate import DelegatePlane, DelegateReceive
from lanterne.pipeline.planes.inline import Inline
from lanterne.transport.rails.rail import MEMORY
from lanterne.transport.shaped import Links


class Paired(Inline):
    """Receives are posted late, when waited for.

    Args:
        comm, owned: as Inline has them; over a ShapedTransport with `rendezvous`.
    """

    def __init__(self, comm: Communicator, *, owned: bool = False) -> None:
        super().__init__(comm, None, owned=owned)
        # By peer, in order.
        self._coming: dict[int, list[PairedReceive]] = {}

    def receive(self, shape: Shape, dtype: np.dtype[Any], peer: int) -> Receive:
        coming = self._coming.setdefault(peer, [])
        coming.append(PairedReceive(self, shape, dtype, peer, len(coming)))
        return coming[-1]

    def finish(self, timeout_s: float | None = None) -> None:
        super().finish(timeout_s)
        self._coming = {}

    def post(self, receive: "PairedReceive") -> bool:
        """Post what peers must match up to `receive`: it and all before it from its peer; True once it is here."""
        posted = []
        for each in self._coming[receive.peer][: receive.index + 1]:
            if each.posted is None:
                each.posted = super().receive(each.shape, each.dtype, each.peer)
            posted.append(each.posted)
        # In order, for so the time of each is told: see ShapedTransport.
        return all([each.test() for each in posted])


class PairedReceive(Receive):
    """A message that is asked for and perhaps not posted."""

    __slots__ = ("_plane", "dtype", "index", "peer", "posted", "shape")

    def __init__(self, plane: Paired, shape: Shape, dtype: np.dtype[Any], peer: int, index: int) -> None:
        self._plane = plane
        self.shape: Shape = shape
        self.dtype: np.dtype[Any] = dtype
        self.peer: int = peer
        self.index: int = index
        self.posted: Receive | None = None

    @property
    def looked_s(self) -> float:
        return -inf if self.posted is None else self.posted.looked_s

    def test(self) -> bool:
        return self._plane.post(self)

    def wait(self, timeout_s: float | None = None) -> Buffer:
        self.test()
        assert self.posted is not None, "test() has posted it"
        return self.posted.wait(timeout_s)


class PairedInMemory(DelegatePlane):
    """The same between ranks of one host.

    Args:
        comm, links: as DelegatePlane has them.
        direct: a Paired for all other pairs.
        pairs: those that share memory.
    """

    def __init__(
        self, comm: Communicator, direct: Paired, links: Links | None, pairs: Collection[tuple[int, int]]
    ) -> None:
        super().__init__(comm, direct, links, pairs, rails=(MEMORY,))
        self._ends.rendezvous = True
        self._coming: dict[int, deque[MetReceive]] = {peer: deque() for peer in self._peers}

    def _receive(self, shape: Shape, dtype: np.dtype[Any], peer: int, buffer: Buffer | None) -> "MetReceive":
        receive = MetReceive(self, shape, dtype, peer, buffer)
        self._coming[peer].append(receive)
        return receive

    def post(self, receive: "MetReceive", peer: int) -> None:
        """As Paired.post."""
        now_s = time.monotonic()
        while receive.posted_s is None:
            self._coming[peer].popleft().post(now_s)


class MetReceive(DelegateReceive):
    """A message that begins to cross its link once it is posted for, too."""

    __slots__ = ("_departure_s", "_pair", "posted_s")

    def __init__(
        self, plane: PairedInMemory, shape: Shape, dtype: np.dtype[Any], peer: int, buffer: Buffer | None
    ) -> None:
        super().__init__(plane, shape, dtype, peer, buffer)
        self._pair = plane
        self._departure_s: float | None = None
        self.posted_s: float | None = None

    def post(self, now_s: float) -> None:
        """Post for it at `now_s`; in order, for so the time of each is told."""
        self.posted_s = now_s
        if self._departure_s is not None:
            super()._left(max(self._departure_s, now_s))

    def _left(self, departure_s: float) -> None:
        self._departure_s = departure_s
        if self.posted_s is not None:
            super()._left(max(departure_s, self.posted_s))

    def test(self) -> bool:
        self._pair.post(self, self._peer)
        return super().test()
