"""The score of the closed loop sees every kind of mistake."""

import pytest

from evaluation import loop_score
from evaluation.loop_score import FIRST, LAST, judge


def job(*incidents, acted=True):
    incidents = [dict(zip(("what", "named", "ended"), one, strict=True)) for one in incidents]
    done = [{"kind": "validate", "seconds": 0.5, "suspects": []}]
    done += [{"kind": "mitigate", "seconds": 0.1, "suspects": [one["what"]]} for one in incidents if acted]
    return {"incidents": incidents, "acted": done, "iteration_s": [0.1] * 10}


GOOD = ("link 0-1", FIRST + 1, LAST + 1)


@pytest.mark.parametrize(
    ("run", "wanted", "right", "needless"),
    [
        (job(), None, True, 0),
        (job(("rank 1", 30, 40)), None, False, 1),
        (job(GOOD), "link 0-1", True, 0),
        (job(), "link 0-1", False, 0),
        (job(GOOD, acted=False), "link 0-1", False, 0),
        (job(GOOD, ("rank 1", 30, 40)), "link 0-1", False, 1),
        (job(("link 0-1", FIRST + 5, LAST + 1)), "link 0-1", False, 0),
        (job(("link 0-1", FIRST + 1, None)), "link 0-1", False, 0),
        (job(("link 0-1", FIRST + 1, LAST + 6)), "link 0-1", False, 0),
        (job(("link 0-1", FIRST + 1, LAST - 9), ("link 0-1", LAST - 5, LAST + 1)), "link 0-1", False, 0),
        (job(("link 0-1", FIRST - 2, LAST + 1)), "link 0-1", False, 1),
    ],
)
def test_judge(run, wanted, right, needless):
    said = judge(run, wanted)
    assert (said["right"], said["needless"], said["examined"], said["examining_s"]) == (right, needless, 1, 0.05)


def test_a_loop_that_does_nothing_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(loop_score, "run_job", lambda *layout: job())
    assert loop_score.main(["--kinds", "healthy 2 x 2"]) == 0
    assert loop_score.main(["--kinds", "healthy 2 x 2", "rank 1"]) == 1
