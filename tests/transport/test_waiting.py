"""The one way to wait: when it ends, what it looks at meanwhile, and when pauses begin anew."""

import itertools

import pytest
from driven_machine import DrivenMachine

from lanterne.transport.waiting import CHECK_S, MOVED, POLLS_PER_CHECK, never, wait


class Counted:
    """Pauses of 0.1 ms, all of them naps or none; `idle`, what each was told."""

    def __init__(self, naps=True):
        self.machine, self.naps, self.idle, self.due_s = DrivenMachine(), naps, [], []

    def pause(self, idle, due_s):
        self.idle.append(idle)
        self.due_s.append(due_s)
        self.machine.at_s += 1e-4
        return self.naps


def test_it_ends_with_the_look_that_finds_something():
    pauses, found = Counted(), iter([False, False, True])
    assert wait(lambda: next(found), 1.0, pauses)
    assert pauses.idle == [1, 2]


def test_what_is_there_costs_no_pause():
    pauses = Counted()
    assert wait(lambda: True, 0.0, pauses)
    assert pauses.idle == []


def test_pauses_begin_anew_when_something_moves():
    pauses, found = Counted(), iter([False, False, MOVED, False, True])
    assert wait(lambda: next(found), 1.0, pauses)
    assert pauses.idle == [1, 2, 1]


@pytest.mark.parametrize("naps", [True, False], ids=["naps", "yields"])
def test_it_ends_with_its_time(naps):
    pauses = Counted(naps)
    assert not wait(never, 0.05, pauses)
    assert 0.05 < pauses.machine.at_s - 100 < 0.05 + 2e-4 + (0 if naps else POLLS_PER_CHECK * 1e-4)


def test_what_moves_on_and_on_ends_with_its_time_too():
    pauses = Counted()

    def look():
        pauses.machine.at_s += 1e-4
        return MOVED

    assert not wait(look, 0.05, pauses)


def test_it_looks_elsewhere_now_and_then_and_at_the_end():
    pauses, looked_s = Counted(), []
    assert not wait(never, 0.0105, pauses, looked_s.append)
    gaps_s = [after - before for before, after in itertools.pairwise(looked_s)]
    assert len(looked_s) == 11 and min(gaps_s[:-1]) >= CHECK_S
    assert looked_s[-1] == pauses.machine.at_s


def test_what_it_sees_elsewhere_ends_it():
    def meanwhile(_now_s):
        raise ValueError("a rank has died")

    with pytest.raises(ValueError, match="died"):
        wait(never, 1.0, Counted(), meanwhile)


class Stopped(Counted):
    """As Counted, of a process that is stopped for a second at its third nap."""

    def pause(self, idle, due_s):
        self.machine.at_s += len(self.idle) == 2
        return super().pause(idle, due_s)


def test_what_came_while_it_was_stopped_is_there_though_time_is_over():
    pauses = Stopped()
    assert wait(lambda: pauses.machine.at_s > 101.0, 0.5, pauses)


def test_what_came_while_it_was_stopped_counts_more_than_what_befell_others_then():
    pauses = Stopped()

    def meanwhile(now_s):
        if now_s > 101.0:
            raise ValueError("a rank has left")

    assert wait(lambda: pauses.machine.at_s > 101.0, 5.0, pauses, meanwhile)
    with pytest.raises(ValueError, match="left"):
        wait(never, 5.0, Stopped(), meanwhile)


def test_pauses_know_when_it_is_due():
    pauses = Counted()
    assert wait(lambda: pauses.machine.at_s > 100.0005, 1.0, pauses, due_s=lambda: 100.0005)
    assert set(pauses.due_s) == {100.0005}
    late = Counted()
    assert not wait(never, 1e-3, late, due_s=lambda: 200.0)
    assert set(late.due_s) == {100.0 + 1e-3}
