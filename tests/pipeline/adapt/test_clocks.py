"""Clocks of several hosts, here of threads whose clocks were put forward or back."""

import threading
import time

import pytest

import lanterne
from lanterne.pipeline.adapt import clocks


class Clock:
    """A stand-in for the module `time` whose monotonic() is, in each thread, off by what that thread said."""

    def __init__(self):
        self.own = threading.local()

    def monotonic(self):
        return time.monotonic() + getattr(self.own, "off_s", 0.0)


@pytest.mark.parametrize("off_s", [(0.0, 5.0, -3.25), (1e6, 0.0, 0.0)])
@pytest.mark.parametrize("root", [0, 2])
def test_offsets_are_as_near_as_the_error_says(off_s, root, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(clocks, "time", clock)

    def job(comm):
        clock.own.off_s = off_s[comm.rank]
        return clocks.clock_offsets(comm, root)

    results = lanterne.spawn(3, job)
    assert [found is None for found in results] == [rank != root for rank in range(3)]
    for rank, (offset_s, error_s) in enumerate(zip(*results[root], strict=True)):
        assert abs(offset_s - (off_s[root] - off_s[rank])) <= error_s + 1e-9, (rank, offset_s, error_s)
        assert (error_s > 0) == (rank != root), (rank, offset_s, error_s)


def test_threads_share_a_clock():
    assert lanterne.spawn(2, clocks.share_a_clock) == [True, True]
