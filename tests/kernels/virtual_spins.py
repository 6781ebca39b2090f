"""SpinKernels on a clock that only work moves."""

import itertools


class VirtualSpins:
    """SpinKernels on a clock that only work moves: `now_s`."""

    def __init__(self):
        self.now_s, self.stamps, self._slots = 0.0, {}, itertools.count()

    def new_slot(self):
        return next(self._slots)

    def stamp(self, slot, stream):
        stream.work.put(lambda: self.stamps.__setitem__(slot, self.now_s))

    def spin_until(self, slot, duration_s, stream):
        stream.work.put(lambda: setattr(self, "now_s", max(self.now_s, self.stamps[slot] + duration_s)))

    def work(self, duration_s, stream):
        stream.work.put(lambda: setattr(self, "now_s", self.now_s + duration_s))
