"""What the judge of a board expects where ranks give a call up: who was missing then, and nobody else."""

import pytest

from evaluation.simulation.seats import POLICIES, SeatCall, SeatLog, judge_play
from lanterne.transport.board.sequencer import ABORT, NORMAL, TIMEOUT, Record

RANKS = 4
# The play keeps rank 3 away; rank 1 may be late, too, since it was kept away before.
CALL = SeatCall(1, "away 1", POLICIES[2], (0.0,) * RANKS, (0.0,) * RANKS, away=3)


def problems_of(record, came_s, gave_up_s):
    """What is wrong if ranks came at `came_s`, rank 0 gave up then (None: nobody did), and all were told `record`."""
    told = [(2.0, record)]
    logs = {rank: SeatLog({1: at_s}, {1: at_s}, records=told, is_over=True) for rank, at_s in enumerate(came_s)}
    if gave_up_s is not None:
        logs[0].gave_up[1] = gave_up_s
    return list(judge_play([CALL], logs, calm=True))


def gave_up(*absent):
    return Record(1, ABORT, absent[0], cause=TIMEOUT, text=" ".join(map(str, absent)))


RIGHT = {
    "the one that is kept away": (gave_up(3), (0.0, 0.1, 0.0, 1.0), 0.3),
    "and one that was before": (gave_up(1, 3), (0.0, 0.9, 0.0, 1.0), 0.3),
    "one that comes at that moment, missing": (gave_up(1, 3), (0.0, 0.301, 0.0, 1.0), 0.3),
    "one that comes at that moment, there": (gave_up(3), (0.0, 0.301, 0.0, 1.0), 0.3),
    "all came before anybody gave up": (Record(1, NORMAL, 3, 1.0), (0.0, 0.1, 0.0, 1.1), None),
}
WRONG = {
    "another": (gave_up(1), (0.0, 0.1, 0.0, 1.0), 0.3),
    "one too many": (gave_up(1, 3), (0.0, 0.1, 0.0, 1.0), 0.3),
    "one too few": (gave_up(3), (0.0, 0.9, 0.0, 1.0), 0.3),
    "not the first of them": (gave_up(3, 1), (0.0, 0.9, 0.0, 1.0), 0.3),
    "nobody gave up": (gave_up(3), (0.0, 0.1, 0.0, 1.0), None),
    "all were there": (gave_up(3), (0.0, 0.1, 0.0, 0.2), 0.3),
    "no end": (Record(1, NORMAL, 3, 0.9), (0.0, 0.1, 0.0, 1.0), 0.3),
}


@pytest.mark.parametrize("name", RIGHT)
def test_who_was_missing_is_told(name):
    assert problems_of(*RIGHT[name]) == []


@pytest.mark.parametrize("name", WRONG)
def test_anything_else_is_seen(name):
    assert len(problems_of(*WRONG[name])) == 1
