"""The traces with a known cause are what they say, and the judge sees every kind of mistake."""

import json

import pytest

from evaluation import locate_score
from evaluation.locate_score import LabelledTrace, judge
from lanterne.failslow.locate.locate import Verdict


def verdict(cause, *ranks):
    return Verdict(cause, ranks, None, 0.1)


WORKER = LabelledTrace("worker", {}, workers=frozenset({5}), allowed=frozenset({"stage"}))
LINK = LabelledTrace("link", {}, links=frozenset({(2, 3)}))
DATA = LabelledTrace("data", {}, needed=frozenset({"data"}))


@pytest.mark.parametrize(
    ("case", "verdicts", "right", "blamed"),
    [
        (WORKER, [verdict("worker", 5)], True, False),
        (WORKER, [verdict("worker", 5), verdict("stage")], True, False),
        (WORKER, [verdict("worker", 5), verdict("data")], False, False),
        (WORKER, [verdict("worker", 5, 6)], False, True),
        (WORKER, [verdict("none")], False, False),
        (LINK, [verdict("link", 2, 3)], True, False),
        (LINK, [verdict("link", 3, 4)], False, True),
        (DATA, [verdict("data")], True, False),
        (DATA, [verdict("none")], False, False),
        (DATA, [verdict("data"), verdict("worker", 1)], False, True),
        (LabelledTrace("healthy", {}), [verdict("none")], True, False),
        (LabelledTrace("healthy", {}), [verdict("stage")], False, False),
    ],
)
def test_judge(case, verdicts, right, blamed):
    assert judge(case, verdicts) == (right, blamed)


def test_cases_are_a_function_of_the_seed():
    assert locate_score.make_cases(15) == locate_score.make_cases(15)
    assert locate_score.make_cases(15) != locate_score.make_cases(15, seed=7)
    assert len({case.kind for case in locate_score.make_cases(15)}) == len(locate_score.KINDS)


def test_command(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["x", "--traces", "15", "--json", "-"])
    assert locate_score.main() == 0
    records = json.loads(capsys.readouterr().out)["results"]
    assert records[-1]["kind"] == "all"
    assert records[-1]["traces"] == 15
    assert records[-1]["right"] >= 14 / 15
    assert records[-1]["blamed"] == 0.0


def test_who_names_nothing_is_right_of_healthy_jobs_alone(monkeypatch):
    monkeypatch.setattr("lanterne.failslow.locate.locate.locate", lambda trace: [verdict("none")])
    monkeypatch.setattr("lanterne.failslow.locate.trace.build_trace", lambda records: None)
    monkeypatch.setattr("evaluation.trace_jobs.make_trace", lambda **options: None)
    *_, found = locate_score.score(locate_score.make_cases(15))
    assert (found["traces"], found["right"], found["blamed"]) == (15, 3 / 15, 0.0)
