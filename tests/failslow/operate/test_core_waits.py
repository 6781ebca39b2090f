"""For how long a thread has waited for a core: Linux tells, it is asked seldom, and whatever fails is unknown."""

import os
import subprocess
import sys
import threading
import time
from math import inf

import pytest

from lanterne.failslow.operate.core_waits import EVERY_S, CoreWaits
from lanterne.failslow.record.call_ring import RECORD, RingReader, RingWriter


def waits_of_this_thread():
    waits = CoreWaits(threading.get_native_id())
    if waits.due_s == inf:
        pytest.skip("this system does not tell how long threads wait for cores")
    return waits


def test_beside_another_on_its_core_a_thread_waits():
    waits, cores = waits_of_this_thread(), os.sched_getaffinity(0)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            for pid in (0, other.pid):
                os.sched_setaffinity(pid, {min(cores)})
            before_us, until_s = waits.read(0.0), time.thread_time() + 0.2
            while time.thread_time() < until_s:
                pass
            assert waits.read(0.0) - before_us > 20_000
        finally:
            os.sched_setaffinity(0, cores)
            other.kill()


def test_it_is_written_with_calls_and_read_seldom(tmp_path):
    waits = waits_of_this_thread()
    writer = RingWriter(tmp_path / "calls", {}, 16, waits)
    told = iter((30_000_000, 50_000_000, 90_000_000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", lambda *_: b"1 %d 1" % next(told))
        channel = writer.channel("call", 4, 7)
        channel(8, 1.0, 1.0 + EVERY_S / 2)
        channel(8, 1.0 + 2 * EVERY_S, 1.0 + 4 * EVERY_S)
    records = RingReader(tmp_path / "calls").take_records()
    rows = [RECORD.unpack_from(records, at) for at in (0, RECORD.size)]
    assert [row[5:7] for row in rows] == [(30_000, 30_000), (50_000, 90_000)]


@pytest.mark.parametrize("thread", [None, 2**31 - 1], ids=["none", "gone"])
def test_where_nobody_tells_nobody_waits(thread):
    waits = CoreWaits(thread)
    assert waits.due_s == inf and waits.read(1.0) == 0 and waits.due_s == inf


def test_a_thread_that_has_ended_waits_no_more():
    thread_id, ended = [], threading.Event()
    thread = threading.Thread(target=lambda: (thread_id.append(threading.get_native_id()), ended.wait()))
    thread.start()
    while not thread_id:
        time.sleep(0.001)
    waits = CoreWaits(thread_id[0])
    ended.set()
    thread.join()
    # The kernel's part of it may end a little later.
    while waits.due_s < inf:
        waits.read(time.monotonic())
    assert waits.read(time.monotonic()) == waits.waited_us
