"""A data plane that routes each peer's messages over one of several planes, and notes when they left and came.

Every link can go its own way: most inline, those that are slow by delegates. Which way may change between iterations;
all ranks change it alike, so a message is expected where it is sent.
"""

import time
from collections import deque
from math import inf, nan

import numpy as np

from ..errors import InputError
from .plane import DataPlane, Receive


class ObservedPlane(DataPlane):
    """Data planes side by side, one per peer.

    Args:
        planes: name -> DataPlane, the first being that of all peers to begin with; or name -> a function that makes
            it, called on all ranks alike (`make`) before a link is routed over it. Closed with this one.

    Attributes:
        routes: peer -> name, for the peers that are not on the first plane.
    """

    def __init__(self, planes):
        if not planes or callable(next(iter(planes.values()))):
            raise InputError("planes: got no plane, expected one to begin with")
        self.planes, self.routes = dict(planes), {}
        self._default = next(iter(planes))
        self._lenders, self._links = {}, {}
        self.begin()

    @property
    def in_order(self):
        """That of the plane of most peers, the first."""
        return self.planes[self._default].in_order

    def begin(self):
        """Forget the times noted so far: a new iteration begins."""
        self._left_s, self._after_s, self._before_s, self._pending = [], [], [], {}

    def times(self):
        """(left_s, after_s, before_s) of the messages of this iteration: three float64 arrays.

        By what this rank sent, in order: when the message could leave. By what it received, in the order in which the
        executor asked: when it was seen not to be here yet (-inf: never), and when to be here (nan: not yet).
        """
        return tuple(np.array(times, float) for times in (self._left_s, self._after_s, self._before_s))

    def make(self, name):
        """Make the plane `name` if it is not made; all ranks call it alike."""
        if name not in self.planes:
            raise InputError(f"plane: got {name!r}, expected one of {', '.join(self.planes)}")
        if callable(plane := self.planes[name]):
            plane = self.planes[name] = plane()
            for (source, destination), link in self._links.items():
                plane.set_link(source, destination, link)

    def route(self, routes):
        """Between iterations: from now on, peer -> name of its plane is `routes`; both ends of a link call it alike."""
        for name in dict.fromkeys(routes.values()):
            self.make(name)
        self.routes = dict(routes)

    def poll(self, action=None):
        """Note which messages have come by now; for after every action (execute's `after`).

        Cost: a test per peer, some microseconds each.
        """
        for pending in self._pending.values():
            while pending and pending[0].test():
                pending.popleft()

    def lend(self, shape, dtype, peer):
        return self._way(peer).lend(shape, dtype, peer)

    def send(self, buffer, peer, timeout_s=None):
        way, left_s = self._way(peer), time.monotonic()
        waited = way.send(buffer, peer, timeout_s)
        # Where one send may be open, a rank that waited did so for the one before this, which could not leave earlier.
        self._left_s.append(time.monotonic() if waited and way.in_order == 1 else left_s)
        return waited

    def receive(self, shape, dtype, peer):
        way = self._way(peer)
        receive = ObservedReceive(self, len(self._before_s), way, way.receive(shape, dtype, peer))
        self._after_s.append(-inf)
        self._before_s.append(nan)
        self._pending.setdefault(peer, deque()).append(receive)
        return receive

    def release(self, buffer):
        self._lenders.pop(id(buffer)).release(buffer)

    def finish(self, timeout_s=None):
        for plane in self._made():
            plane.finish(timeout_s)

    def set_link(self, source, destination, link):
        self._links[source, destination] = link
        for plane in self._made():
            plane.set_link(source, destination, link)

    def fail(self, error):
        for plane in self._made():
            plane.fail(error)

    def close(self):
        for plane in self._made():
            plane.close()

    def _way(self, peer):
        return self.planes[self.routes.get(peer, self._default)]

    def _made(self):
        return [plane for plane in self.planes.values() if not callable(plane)]


class ObservedReceive(Receive):
    """A receive that notes when its message came: at a moment, if somebody waited for it, else between two looks."""

    __slots__ = ("_index", "_is_here", "_plane", "_receive", "_way")

    def __init__(self, plane, index, way, receive):
        self._plane, self._index, self._way, self._receive = plane, index, way, receive
        self._is_here = False

    def test(self):
        if self._is_here:
            return True
        looked_s = time.monotonic()
        if self._receive.test():
            self._note(looked_s, None)
        else:
            self._plane._after_s[self._index] = looked_s
        return self._is_here

    def wait(self, timeout_s=None):
        was_here = self.test()
        buffer = self._receive.wait(timeout_s)
        if not was_here:
            now_s = time.monotonic()
            self._note(now_s, now_s)
        self._plane._lenders[id(buffer)] = self._way
        return buffer

    def _note(self, before_s, after_s):
        """The message came before `before_s`, and after `after_s` if that is known; a plane may know better."""
        came_s = getattr(self._receive, "came_s", None)
        plane, self._is_here = self._plane, True
        if came_s is not None:
            before_s = after_s = came_s
        plane._before_s[self._index] = before_s
        if after_s is not None:
            plane._after_s[self._index] = after_s
