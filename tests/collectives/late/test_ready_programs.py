"""Programs made before they are needed, one of each role, once: no call with a late rank waits for a compiler."""

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


def made_after(n, rank, *, entry=None):
    """(algorithm, role) of what is made after a first call."""
    programs = SpiedPrograms(rank, n)
    ready = ReadyPrograms(programs, rank, n)
    call = SimpleNamespace(key=KEY, in_place=False, dtype=None, entry=entry)
    for policy in (POLICY, POLICY):
        ready.note(call, to_text(policy))
    assert not programs.made, "others are under way"
    ready.make()
    ready.note(call, to_text(POLICY))
    ready.make()
    made = list(programs.made)
    for normal_s in (2.0, 3.0):
        ready.note(call, to_text(POLICY._replace(normal_s=normal_s)))
    ready.make()
    assert len(programs.made) == 3 * len(made), "of other policies, too, all that were over meanwhile"
    return made


LIKELY = {option.choice.partition("/")[0] for option in likely(POLICY, 0)}


@pytest.mark.parametrize(
    ("n", "rank", "roles"),
    [(8, 0, {0, 7}), (8, 3, {2, 3, 7}), (8, 7, {6, 7}), (3, 1, {0, 1, 2}), (1000, 5, {999})],
)
def test_after_the_first_call_the_likely_ones_of_each_role_are_made_once(n, rank, roles):
    assert len(LIKELY) > 1
    assert sorted(made_after(n, rank)) == sorted((each, role) for each in LIKELY for role in roles)


def test_of_devices_nothing_is_made():
    assert made_after(8, 3, entry=object()) == []


def run_late(comm):
    """How many programs were made in and after each of three calls, to the last two of which rank 1 is late."""
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
        assert check(comm, 0) == 0, late_s
        counts.append(len(made) - before)
    return counts, dict(core_of(comm).late.ran)


def test_once_the_first_call_is_over_late_ranks_wait_for_no_compiler():
    counts, ran = zip(*spawn(4, run_late), strict=True)
    assert min(first for first, *_ in counts) > 1
    assert [others for _, *others in counts] == [[0, 0]] * 4
    assert ran[0][""] <= 1 and sum(ran[0].values()) == 3
