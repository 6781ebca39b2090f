"""What a thread gets of the cores: which it may use, and what it waits for one."""

import os
import subprocess
import sys
import time

from lanterne.failslow.validate.cores import pinned, spread_cores, waited_s


def test_a_pinned_block_runs_on_its_core_and_goes_back():
    mine = os.sched_getaffinity(0)
    with pinned(max(mine)):
        assert os.sched_getaffinity(0) == {max(mine)}
    with pinned(None):
        assert os.sched_getaffinity(0) == mine
    # A core that is not there.
    with pinned(100_000):
        assert os.sched_getaffinity(0) == mine
    assert os.sched_getaffinity(0) == mine


def test_cores_that_are_halves_of_one_come_once_where_that_is_enough(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda thread: {1, 2, 3, 4, 5})
    monkeypatch.setattr("lanterne.failslow.validate.cores._halves", lambda core: {core % 4, core % 4 + 4})
    assert spread_cores(4) == [1, 2, 3, 4]
    assert spread_cores(5) == [1, 2, 3, 4, 5]


def test_who_shares_a_core_waits_for_it():
    core = min(os.sched_getaffinity(0))
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other, pinned(core):
        try:
            other.stdout.readline()
            before_s, until_s = waited_s(), time.thread_time() + 0.02
            while time.thread_time() < until_s:
                pass
            assert waited_s() - before_s > 1e-3
        finally:
            other.kill()
    # A thread that there is not.
    assert waited_s((1 << 30,)) >= before_s
