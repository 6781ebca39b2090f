"""Calls that were started advance while their user does something else, and whatever ends their process ends them."""

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from driven_machine import DrivenMachine

from lanterne.collectives.execute.background import (
    COMPUTES_S,
    FULL_S,
    GATHER_PART,
    GATHER_S,
    LISTEN_S,
    SPIN_S,
    Computing,
    Listening,
    Lull,
)
from lanterne.collectives.jobs import spawn
from lanterne.errors import TransportTimeout
from lanterne.transport.machine import Machine

JOB = Path(__file__).with_name("background_job.py")
LAUNCH = """import sys
from lanterne.transport.job.launch import launch
sys.exit(launch(sys.argv[1:], 2, "direct"))"""


# What one job goes through, in this order.
CASES = "completes", "two_threads", "dead_thread", "forked"


def run(*cases):
    if "ucx" not in os.environ.get("LANTERNE_REQUIRE", "").split(",") and find_spec("ucxx") is None:
        pytest.skip("ucxx is not installed (extra ucx)")
    command = [sys.executable, "-c", LAUNCH, sys.executable, JOB, *cases]
    environment = os.environ | {"LANTERNE_TRIALS": "off", "LANTERNE_TIMEOUT_S": "40"}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)


@pytest.fixture(scope="module")
def job():
    """The finished job of all CASES."""
    return run(*CASES)


@pytest.mark.parametrize("case", CASES)
def test_in_the_background(job, case):
    assert (job.stdout.count(f"{case} fine\n"), job.returncode) == (2, 0), job.stdout + job.stderr


def test_a_death_is_noticed_in_the_background():
    done = run("killed")
    assert done.stdout == "killed fine\n", done.stdout + done.stderr


@pytest.mark.parametrize(("case", "what"), [("exits", "the end has come before that of"), ("closes", "closed before")])
def test_the_end_with_a_call_under_way_is_one_line(case, what):
    done = run(case)
    assert done.stdout == f"{case} fine\n" * 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("log: ")]
    assert len(lines) == 1 and what in lines[0] and "all_reduce(algorithm=ring" in lines[0], done.stderr
    assert "Traceback" not in done.stderr


def polls(comm):
    """Rank 1 does not come; how often rank 0 has tested."""
    x = np.ones(1 << 16, np.float32)
    if comm.rank == 1:
        time.sleep(1.5)
        return 0
    comm.timeout_s = 0.3
    request, tests = comm.start_all_reduce(x, x, algorithm="ring"), 0
    with pytest.raises(TransportTimeout) as raised:
        while not request.test():
            tests += 1
            time.sleep(1e-3)
    assert raised.value.peers == (1,)
    return tests


def test_a_loop_of_tests_has_the_timeout():
    assert spawn(2, polls)[0] > 10


class Still:
    """A machine, a transport, an engine and naps in one, of which a Listening sees what the test sets."""

    def __init__(self):
        self.at_s, self.ready, self.is_woken, self.closed, self.done = 0.0, (3,), True, False, []
        self.machine, self.lock = self, self
        self.now_s = lambda: self.at_s
        self.sleep = lambda seconds: self.done.append(("sleep", seconds))
        self.give_way = lambda: self.done.append("yield")
        self.poller = lambda: self
        self.register = lambda fd, mask: self.done.append(("register", fd))
        self.unregister = lambda fd: self.done.append(("unregister", fd))
        self.pause = lambda idle, due_s: self.done.append("nap")
        self.watch = lambda: self.ready
        self.comes_after_s = 0.0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def poll(self, limit_ms):
        self.done.append(("poll", limit_ms))
        self.at_s += min(self.comes_after_s, limit_ms / 1e3)
        return [(3, 1)] if self.comes_after_s <= limit_ms / 1e3 else []

    def pauses(self, idle, due_s=float("inf"), again=False):
        """What one pause of a wait that began at 0 does; `again`: the one after it."""
        listening = Listening(self, self, self)
        self.at_s = 0.0
        listening.pause(1)
        self.at_s, self.done[:] = 1.0 if idle > 1 else 0.0, []
        listening.pause(idle, due_s)
        if again:
            self.done.clear()
            listening.pause(idle + 1, due_s)
        return self.done


def test_a_wait_yields_then_sleeps_until_something_comes():
    still = Still()
    assert still.pauses(1) == ["yield"]
    limit_ms = LISTEN_S * 1e3
    assert still.pauses(2) == [("register", 3), ("poll", limit_ms)]
    # What woke it was not enough: more is let come.
    assert still.pauses(2, again=True) == [("poll", limit_ms), ("sleep", GATHER_S)]
    still.comes_after_s = 1.0
    assert still.pauses(2) == [("register", 3), ("poll", limit_ms)]
    assert still.pauses(2, due_s=1.001)[-1] == ("poll", pytest.approx(1.0))
    assert still.pauses(2, due_s=0.5)[-1] == ("poll", 0.0)


def test_a_wait_sleeps_on_no_descriptor_where_another_takes_what_comes():
    still = Still()
    still.is_woken = False
    assert still.pauses(2) == ["nap"]
    still.is_woken, still.ready = True, None
    assert still.pauses(2) == []
    assert still.pauses(3) == [("sleep", FULL_S)]


def test_the_first_wake_is_looked_at_at_once_and_later_ones_let_more_come():
    machine = DrivenMachine()
    lull = Lull(machine)
    lull.begin(machine.at_s)
    machine.at_s += GATHER_S
    lull.gather()
    assert machine.naps == 0
    lull.gather()
    assert machine.last_nap_s == pytest.approx(GATHER_PART * GATHER_S)
    machine.at_s += 1.0
    lull.gather()
    assert machine.last_nap_s == GATHER_S
    # Something has moved: from the beginning again.
    lull.begin(machine.at_s)
    lull.gather()
    assert machine.naps == 2


@pytest.mark.parametrize(
    ("lulls_s", "spins"), [((), True), ((2e-4,), True), ((2e-3, 2e-3), False), ((2e-3, *[1e-4] * 5), True)]
)
def test_what_follows_long_lulls_is_not_yielded_for(lulls_s, spins):
    machine = DrivenMachine()
    lull = Lull(machine)
    lull.begin(machine.at_s)
    for lull_s in lulls_s:
        machine.at_s += lull_s
        lull.begin(machine.at_s)
    assert lull.spins(machine.at_s) == spins
    assert not lull.spins(machine.at_s + SPIN_S)


def test_what_is_shorter_than_a_waking_is_not_waited_for():
    machine = DrivenMachine()
    lull = Lull(machine)
    lull.begin(machine.at_s)
    lull.gather()
    machine.at_s += SPIN_S
    lull.gather()
    assert machine.naps == 0


@pytest.mark.parametrize(("part", "computes"), [(0.9, True), (0.3, True), (0.1, False), (0.0, False)])
def test_a_program_computes_where_its_other_threads_take_much_of_a_core(part, computes):
    machine = DrivenMachine()
    computing = Computing(machine)
    for look in range(3):
        machine.at_s += COMPUTES_S
        machine.others_s += part * COMPUTES_S
        assert computing.look() == computes, look
    # A look sooner than that learns nothing new.
    machine.others_s += 1.0
    assert computing.look() == computes


def test_what_others_compute_is_measured():
    machine = Machine()
    before_s = machine.others_cpu_s()
    sum(range(10**6))
    mine_s = machine.others_cpu_s() - before_s
    done = []
    machine.thread("computes", lambda: done.append(sum(range(10**7)))).join()
    assert mine_s < machine.others_cpu_s() - before_s
