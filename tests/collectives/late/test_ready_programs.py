"""Programs made before they are needed: one of each role, once, so that no call with a late rank waits for a compiler."""

import time
from types import SimpleNamespace

import pytest

from lanterne.collectives.algorithms.hierarchical.compose import roles_with
from lanterne.collectives.communicator import core_of
from lanterne.collectives.execute.arguments import Key
from lanterne.collectives.jobs import spawn
from lanterne.collectives.late.ready_programs import IdleTime, ReadyPrograms
from lanterne.collectives.schedule.cost import CostModel
from lanterne.transport.board.late_policy import Option, Policy, to_text
from tests.collectives.late.test_calls import check

KEY = Key("all_reduce", "auto", "sum", "float32", 8, None, None, None, None, None)
CHOICES = ("late_join/56", 0.8, 1.0), ("late_chain/56", 0.9, 0.9), ("late_hybrid/56/14", 0.2, 1.5)
POLICY = Policy(1.0, tuple(Option(*choice) for choice in CHOICES))


class SpiedPrograms:
    """Keeps which programs rank `rank` of `n` was asked to make: (choice, role)."""

    def __init__(self, rank, n):
        self._rank, self._n = rank, n
        self.made = []

    def role_of(self, key, late):
        roles = roles_with((tuple(range(self._n)),), late)
        return roles.rank_of.index(self._rank), roles.nodes

    def find(self, key, dtype, form):
        self.made.append((key.algorithm, key.joined, self.role_of(key, key.late_rank)[0]))


def calls_of(n, rank, calls, *, entry=None):
    """What is made after a call, and while so many wait."""
    programs = SpiedPrograms(rank, n)
    ready = ReadyPrograms(programs, rank, n)
    call = SimpleNamespace(key=KEY, in_place=False, dtype=None, entry=entry)
    idle = SimpleNamespace(use=lambda work: work())
    ready.meanwhile(call, to_text(POLICY), idle)
    assert programs.made == [], "nothing is known of the first call before it is over"
    ready.after(call, to_text(POLICY))
    own = list(programs.made)
    for _ in range(calls):
        ready.meanwhile(call, to_text(POLICY), idle)
    ready.after(call, to_text(POLICY))
    return own, programs.made[len(own) :]


@pytest.mark.parametrize(("n", "rank", "others"), [(8, 0, [0]), (8, 3, [2, 3]), (8, 7, [6]), (3, 1, [0, 1])])
def test_each_role_is_made_once_the_likely_ones_first(n, rank, others):
    own, waited = calls_of(n, rank, 20)
    assert {role for *_, role in own} == {n - 1}
    assert own[0] == ("late_join", None, n - 1)
    assert len(set(own + waited)) == len(own + waited)
    every = {(option.choice.partition("/")[0], role) for option in POLICY.options for role in (*others, n - 1)}
    assert {(algorithm, role) for algorithm, _, role in own + waited} == every
    assert {algorithm for algorithm, *_ in waited[: len(others)]} == {"late_join"}


def test_of_many_ranks_and_on_devices_nothing_is_made_meanwhile():
    own, waited = calls_of(1000, 5, 20)
    assert own
    assert waited == []
    assert calls_of(8, 3, 20, entry=object()) == ([], [])


def test_a_part_of_a_wait_is_used():
    now_s, used = 0.0, []

    def work():
        nonlocal now_s
        used.append(now_s)
        now_s += 0.01

    idle = IdleTime(SimpleNamespace(now_s=lambda: now_s))
    while now_s < 0.1:
        idle.use(work)
        now_s += 0.001
    # After 4 ms, then a quarter of the time.
    assert used == pytest.approx([0.005, 0.045, 0.085])


def run_late(comm):
    """How often this rank made a program while it waited for rank 1, which is late to the second call."""
    # So slow that others begin without a late rank after a tenth of a second.
    comm.tuning.adopt(CostModel(1e-4, 1 / 1e6), "test")
    assert check(comm, 0) == 0
    ready, made = core_of(comm).late.ready, []
    make = ready._make
    ready._make = lambda *given: made.append(make(*given))
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.5)
    assert check(comm, 1) == 0
    return len(made)


def test_ranks_that_wait_for_others_make_programs():
    made = spawn(4, run_late)
    assert all(made[:1] + made[2:]), made
