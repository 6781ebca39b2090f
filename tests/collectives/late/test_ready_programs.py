"""Programs made before they are needed: one of each role, once, so that no call with a late rank waits for a compiler."""

import time
from types import SimpleNamespace

import pytest

from lanterne.collectives.algorithms.hierarchical.compose import roles_with
from lanterne.collectives.communicator import core_of
from lanterne.collectives.execute.arguments import Key
from lanterne.collectives.jobs import spawn
from lanterne.collectives.late.ready_programs import ReadyPrograms
from lanterne.collectives.schedule.cost import CostModel
from lanterne.transport.board.late_policy import Option, Policy, likely, to_text
from tests.collectives.late.test_calls import check

KEY = Key("all_reduce", "auto", "sum", "float32", 8, None, None, None, None, None)
CHOICES = ("late_join/56", 0.8, 1.0), ("late_chain/56", 0.9, 0.9), ("late_hybrid/56/14", 0.2, 1.5)
POLICY = Policy(1.0, tuple(Option(*choice) for choice in CHOICES))


class SpiedPrograms:
    """Keeps which programs rank `rank` of `n` was asked to make: (algorithm, role)."""

    def __init__(self, rank, n):
        self._rank, self._n = rank, n
        self.made = []

    def role_of(self, key, late):
        roles = roles_with((tuple(range(self._n)),), late)
        return roles.rank_of.index(self._rank), roles.nodes

    def find(self, key, dtype, form):
        self.made.append((key.algorithm, self.role_of(key, key.late_rank)[0]))


def made_after(n, rank, late_ranks, *, entry=None):
    """(choice, role) of what is made after a first call, and then after one in which each of `late_ranks` was late."""
    programs = SpiedPrograms(rank, n)
    ready = ReadyPrograms(programs, rank, n)
    call = SimpleNamespace(key=KEY, in_place=False, dtype=None, entry=entry)
    made = []
    for late_rank in (None, *late_ranks):
        if late_rank is not None:
            ready.expect(late_rank)
        ready.after(call, to_text(POLICY))
        made.append(programs.made)
        programs.made = []
        ready.after(call, to_text(POLICY))
        assert not programs.made, "once"
    return made


LIKELY = {option.choice.partition("/")[0] for option in likely(POLICY, 0)}


@pytest.mark.parametrize(("n", "rank", "others"), [(8, 0, {0}), (8, 3, {2, 3}), (8, 7, {6}), (3, 1, {0, 1})])
def test_after_the_first_call_those_without_a_past_of_each_role_and_those_should_one_be_late_oneself(n, rank, others):
    (made,) = made_after(n, rank, [])
    assert sorted(made) == sorted({("late_join", role) for role in others} | {(each, n - 1) for each in LIKELY})


@pytest.mark.parametrize(("late_rank", "role"), [(1, 2), (5, 3)])
def test_once_a_rank_was_late_those_should_it_be_again(late_rank, role):
    _, made, again = made_after(8, 3, [late_rank, late_rank])
    assert sorted(made) == sorted((each, role) for each in LIKELY)
    assert again == []


def test_of_many_ranks_only_what_is_of_one_that_was_late_and_of_devices_nothing():
    first, then = made_after(1000, 5, [7])
    assert {role for _, role in first} == {999} and {role for _, role in then} == {5}
    assert made_after(8, 3, [1], entry=object()) == [[], []]


def run_late(comm):
    """What this rank made in and after each of three calls, to the last two of which rank 1 is late."""
    # So slow that others begin without a late rank after a tenth of a second.
    comm.tuning.adopt(CostModel(1e-4, 1 / 1e6), "test")
    made = []
    programs = core_of(comm).late.plans.programs
    compile_one = programs._compile
    programs._compile = lambda *given: made.append(given[0].algorithm) or compile_one(*given)
    counts = []
    for late_s in (0.0, 0.5, 0.5):
        comm.barrier()
        if comm.rank == 1:
            time.sleep(late_s)
        before = len(made)
        assert check(comm, 0) == 0
        counts.append(len(made) - before)
    return counts, dict(core_of(comm).late.ran)


def test_who_is_late_again_waits_for_no_compiler():
    for (_, _, third), ran in spawn(4, run_late):
        assert third == 0
        assert sum(ran.values()) == 3 and ran[""] <= 1
