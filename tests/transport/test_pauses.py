"""Waits yield, then nap; after a slow yield they nap at once, for a while."""

import pytest

from lanterne.transport import pauses
from lanterne.transport.pauses import CROWDED_S, MAX_NAP_S, NAP_S, SLOW_YIELD_S, SPIN_S, YIELDS, YIELDS_LEAST, Pauses


class Machine:
    """A clock that stands still but for yields and naps, which are counted."""

    def __init__(self, cores):
        self.cores, self.now_s, self.yield_s, self.yields, self.naps = cores, 1000.0, 3e-6, 0, 0

    def cpu_count(self):
        return self.cores

    def monotonic(self):
        return self.now_s

    def sched_yield(self):
        self.yields += 1
        self.now_s += self.yield_s

    def sleep(self, seconds):
        assert NAP_S <= seconds <= MAX_NAP_S
        self.naps += 1
        self.last_nap_s = seconds
        self.now_s += 50e-6


@pytest.fixture
def machine(monkeypatch):
    machine = Machine(4)
    monkeypatch.setattr(pauses, "os", machine)
    monkeypatch.setattr(pauses, "time", machine)
    return machine


@pytest.mark.parametrize(
    ("ranks_here", "yields"), [(1, YIELDS), (4, YIELDS), (8, 200), (16, 100), (1000, YIELDS_LEAST)]
)
def test_yields_before_the_first_nap(machine, ranks_here, yields):
    waiting = Pauses(ranks_here)
    napped = [waiting.pause(idle) for idle in range(yields + 5)]
    assert napped == [False] * yields + [True] * 5
    assert (machine.yields, machine.naps) == (yields, 5)


def test_naps_grow_with_the_wait_but_stay_a_small_part_of_it(machine):
    waiting, start_s, naps_s = Pauses(16), machine.now_s, []
    for idle in range(200):
        before_s = machine.now_s
        if waiting.pause(idle):
            machine.now_s += machine.last_nap_s
            naps_s.append(machine.last_nap_s)
            # Of what was waited before it; the first ones are as short as the kernel makes them.
            assert machine.last_nap_s - NAP_S <= 0.25 * (before_s - start_s)
    assert naps_s == sorted(naps_s)
    assert (naps_s[0], naps_s[-1]) == (NAP_S, MAX_NAP_S)


def test_after_a_slow_yield_every_wait_naps_for_a_while(machine):
    waiting = Pauses()
    machine.yield_s = 2 * SLOW_YIELD_S
    assert not waiting.pause(1)
    until_s = machine.now_s + CROWDED_S
    while machine.now_s < until_s:
        assert waiting.pause(1)
    machine.yield_s = SLOW_YIELD_S / 2
    assert [waiting.pause(1) for _ in range(10)] == [False] * 10


def test_finer_naps_grow_less(machine):
    waiting, finer = Pauses(16), Pauses(16).finer()
    assert finer.yields == waiting.yields
    for idle in range(waiting.yields, waiting.yields + 20):
        assert waiting.pause(idle)
        coarse_s = machine.last_nap_s
        assert finer.pause(idle)
        assert NAP_S <= machine.last_nap_s <= NAP_S + 0.2 * coarse_s


def test_no_nap_goes_beyond_what_is_due(machine):
    waiting = Pauses(16)
    late = waiting.yields + 1000
    assert waiting.pause(late, machine.now_s + SPIN_S + 20e-6)
    assert machine.last_nap_s == pytest.approx(20e-6)
    assert not waiting.pause(late, machine.now_s + SPIN_S / 2)
    assert not waiting.pause(late, machine.now_s - 1)
