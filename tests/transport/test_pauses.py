"""Waits yield, then nap; after a slow yield they nap at once, for a while."""

import pytest
from driven_machine import DrivenMachine

from lanterne.transport import pauses
from lanterne.transport.pauses import CROWDED_S, MAX_NAP_S, NAP_S, SLOW_YIELD_S, SPIN_S, YIELDS, YIELDS_LEAST, Woken


@pytest.fixture
def machine(monkeypatch):
    monkeypatch.setattr(pauses.os, "cpu_count", lambda: 4)
    return DrivenMachine(1000.0, yield_s=3e-6, nap_s=50e-6)


@pytest.mark.parametrize(
    ("ranks_here", "yields"), [(1, YIELDS), (4, YIELDS), (8, 200), (16, 100), (1000, YIELDS_LEAST)]
)
def test_yields_before_the_first_nap(machine, ranks_here, yields):
    waiting = machine.pauses(ranks_here)
    napped = [waiting.pause(idle) for idle in range(yields + 5)]
    assert napped == [False] * yields + [True] * 5
    assert (machine.yields, machine.naps) == (yields, 5)


def test_naps_grow_with_the_wait_but_stay_a_small_part_of_it(machine):
    waiting, start_s, naps_s = machine.pauses(16), machine.at_s, []
    for idle in range(200):
        before_s = machine.at_s
        if waiting.pause(idle):
            naps_s.append(machine.last_nap_s)
            # Of what was waited before it; the first ones are as short as the kernel makes them.
            assert machine.last_nap_s - NAP_S <= 0.25 * (before_s - start_s), idle
    assert naps_s == sorted(naps_s)
    assert (naps_s[0], naps_s[-1]) == (NAP_S, MAX_NAP_S)


def test_after_a_slow_yield_every_wait_naps_for_a_while(machine):
    waiting = machine.pauses()
    machine.yield_s = 2 * SLOW_YIELD_S
    assert not waiting.pause(1)
    until_s = machine.at_s + CROWDED_S
    while machine.at_s < until_s:
        assert waiting.pause(1)
    machine.yield_s = SLOW_YIELD_S / 2
    assert [waiting.pause(1) for _ in range(10)] == [False] * 10


def test_finer_naps_grow_less(machine):
    waiting, finer = machine.pauses(16), machine.pauses(16).finer()
    assert finer.yields == waiting.yields
    for idle in range(waiting.yields, waiting.yields + 20):
        assert waiting.pause(idle), idle
        coarse_s = machine.last_nap_s
        assert finer.pause(idle), idle
        assert NAP_S <= machine.last_nap_s <= NAP_S + 0.2 * coarse_s, idle


def test_no_nap_goes_beyond_what_is_due(machine):
    waiting = machine.pauses(16)
    late = waiting.yields + 1000
    assert waiting.pause(late, machine.at_s + SPIN_S + 20e-6)
    assert machine.last_nap_s == pytest.approx(20e-6)
    assert not waiting.pause(late, machine.at_s + SPIN_S / 2)
    assert not waiting.pause(late, machine.at_s - 1)


def test_what_something_wakes_yields_for_a_while_and_sleeps_then(machine):
    slept = []
    waiting = Woken(machine, slept.append, spin_s=7e-6)
    assert [waiting.pause(idle, machine.at_s + 1.0) for idle in (1, 2, 3, 4)] == [False] * 3 + [True]
    assert (machine.yields, slept) == (3, [1.0])
    assert not waiting.pause(1, machine.at_s + 1.0)
    machine.at_s += 1.0
    assert waiting.pause(2, machine.at_s - 0.5)
    assert slept[1:] == [0.0]
