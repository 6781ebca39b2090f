"""A data plane that notes when messages left and came, and takes some links off the usual way, by delegates.

Which links may change between iterations; all ranks change it alike, so a message is expected where it is sent.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from math import inf, nan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import LanterneError
from lanterne.pipeline.planes.data_plane import Buffer, DataPlane, Receive, Shape
from lanterne.transport.shaped import Link

if TYPE_CHECKING:
    from lanterne.pipeline.device.device_stage import Device


class ObservedPlane(DataPlane):
    """The usual data plane, and one more for each link that is taken off it.

    Args:
        rank: this rank.
        usual: the DataPlane of all links to begin with; closed with this one.
        make_other: makes the DataPlane of a pair of ranks; called on all ranks of the pipeline alike.
    """

    def __init__(
        self, rank: int, usual: DataPlane, make_other: Callable[[tuple[int, int]], DataPlane] | None = None
    ) -> None:
        self.rank = rank
        self.usual = usual
        self.in_order: int | None = usual.in_order
        self._make_other = make_other
        # Pair -> its plane; peer -> the plane of the pair with this rank; and links that were changed.
        self._others: dict[tuple[int, int], DataPlane] = {}
        self._ways: dict[int, DataPlane] = {}
        self._links: dict[tuple[int, int], Link] = {}
        # By a received buffer's id, the plane that gave it.
        self._lenders: dict[int, DataPlane] = {}
        self._device: Device | None = None
        # What `produced_bytes_per_s` was before this iteration; by peer, when messages were handed over, their bytes.
        self._produced_bytes_per_s = 0.0
        self._handed: dict[int, tuple[list[float], list[int]]] = {}
        self.begin()

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """The pairs of ranks that are off the usual plane, sorted."""
        return tuple(sorted(self._others))

    def begin(self) -> None:
        """Forget the times noted so far: a new iteration begins."""
        self._produced_bytes_per_s = self.produced_bytes_per_s
        self._handed = {}
        self._given_s: list[float] = []
        self._gone_s: list[float] = []
        self._after_s: list[float] = []
        self._before_s: list[float] = []
        self._pending: dict[int, deque[ObservedReceive]] = {}

    @property
    def produced_bytes_per_s(self) -> float:
        """The rate at which this rank has produced messages for one peer, by the quickest quarter of an iteration's."""
        rates = [
            max(sizes) / float(np.quantile(np.diff(given_s), 0.25))
            for given_s, sizes in self._handed.values()
            if len(given_s) > 1
        ]
        return max([self._produced_bytes_per_s, *rates])

    def times(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """(given_s, gone_s, after_s, before_s) of the messages of this iteration.

        By what this rank sent, in order: when it handed the message over, and when it could go on; it left between the
        two. By what it received, in the order in which the executor asked: when the message was last seen not to be
        here (-inf: never), and when to be here (nan: not yet); it came between the two.
        """
        given_s, gone_s = np.array(self._given_s, float), np.array(self._gone_s, float)
        return given_s, gone_s, np.array(self._after_s, float), np.array(self._before_s, float)

    def divert(self, pairs: Iterable[tuple[int, int]]) -> None:
        """From now on `pairs` of ranks are off the usual plane, and no others.

        All ranks call it alike, between iterations; where a pair goes back, once all have ended the one before.

        Raises:
            LanterneError: the plane of a pair cannot be made.
        """
        wanted = {(min(pair), max(pair)) for pair in pairs}
        for pair in sorted(self._others.keys() - wanted):
            self._others.pop(pair).close()
        for pair in sorted(wanted - self._others.keys()):
            assert self._make_other is not None, "who diverts pairs says how"
            plane = self._others[pair] = self._make_other(pair)
            for ends, link in self._links.items():
                plane.set_link(*ends, link)
            if self._device is not None:
                plane.stage_on(self._device)
        self._ways = {sum(pair) - self.rank: plane for pair, plane in self._others.items() if self.rank in pair}

    def poll(self, action: object = None) -> None:
        """Note which messages have come by now; for after every action (execute's `after`).

        Cost: a test per peer, some microseconds each.
        """
        for pending in self._pending.values():
            while pending and pending[0].test():
                pending.popleft()

    def lend(self, shape: Shape, dtype: np.dtype[Any], peer: int) -> Buffer:
        return self._way(peer).lend(shape, dtype, peer)

    def send(self, buffer: Buffer, peer: int, timeout_s: float | None = None) -> bool:
        self._given_s.append(time.monotonic())
        given_s, sizes = self._handed.setdefault(peer, ([], []))
        given_s.append(self._given_s[-1])
        sizes.append(buffer.nbytes)
        waited = self._way(peer).send(buffer, peer, timeout_s)
        self._gone_s.append(time.monotonic())
        return waited

    def receive(self, shape: Shape, dtype: np.dtype[Any], peer: int) -> Receive:
        way = self._way(peer)
        receive = ObservedReceive(self, len(self._before_s), way, way.receive(shape, dtype, peer))
        self._after_s.append(-inf)
        self._before_s.append(nan)
        self._pending.setdefault(peer, deque()).append(receive)
        return receive

    def release(self, buffer: Buffer) -> None:
        self._lenders.pop(id(buffer)).release(buffer)

    def finish(self, timeout_s: float | None = None) -> None:
        self.usual.finish(timeout_s)
        for plane in self._ways.values():
            plane.finish(timeout_s)

    def set_link(self, source: int, destination: int, link: Link) -> None:
        self._links[source, destination] = link
        for plane in self._all():
            plane.set_link(source, destination, link)

    def stage_on(self, device: "Device") -> None:
        self._device = device
        for plane in self._all():
            plane.stage_on(device)

    def fail(self, error: LanterneError) -> None:
        for plane in self._all():
            plane.fail(error)

    def close(self) -> None:
        for plane in self._all():
            plane.close()

    def _way(self, peer: int) -> DataPlane:
        return self._ways.get(peer, self.usual)

    def _all(self) -> list[DataPlane]:
        return [*self._others.values(), self.usual]


class ObservedReceive(Receive):
    """A receive that notes between which two looks its message came, whether or not somebody waited for it."""

    __slots__ = ("_index", "_is_here", "_plane", "_receive", "_way")

    def __init__(self, plane: ObservedPlane, index: int, way: DataPlane, receive: Receive) -> None:
        self._plane = plane
        self._index = index
        self._way = way
        self._receive = receive
        self._is_here = False

    @property
    def looked_s(self) -> float:
        return self._receive.looked_s

    def test(self) -> bool:
        if not self._is_here:
            self._is_here = self._receive.test()
            self._note()
        return self._is_here

    def wait(self, timeout_s: float | None = None) -> Buffer:
        was_here = self.test()
        buffer = self._receive.wait(timeout_s)
        if not was_here:
            self._is_here = True
            self._note()
        self._plane._lenders[id(buffer)] = self._way
        return buffer

    def _note(self) -> None:
        """The message has been looked for."""
        self._plane._after_s[self._index] = self._receive.looked_s
        if self._is_here:
            self._plane._before_s[self._index] = time.monotonic()
