"""The score of validations sees every kind of mistake."""

import pytest

from evaluation import validate_score
from evaluation.validate_score import judge

RANK = {"kind": "compute", "ranks": [1], "links": []}
LINK = {"kind": "link", "ranks": [], "links": [[1, 0]]}
CARD = {"kind": "links", "ranks": [1], "links": []}


def found(*findings, unsure=(), **severities):
    validation = {"findings": list(findings), "unsure": list(unsure), "took_s": 1.0}
    names = {name.replace("_", " ", 1).replace("_", "-"): value for name, value in severities.items()}
    return {"validation": validation, "severities": names, "examined_s": 0.1}


@pytest.mark.parametrize(
    ("kind", "run", "right", "needless"),
    [
        ("healthy", found(rank_1=0.0), True, []),
        ("healthy", found(unsure=[RANK], rank_1=None), True, []),
        ("healthy", found(LINK), False, ["link 0-1"]),
        ("healthy", found(link_0_1=2e-3), False, []),
        ("slow rank", found(RANK, rank_1=2.0, link_0_1=0.0), True, []),
        ("slow rank", found(CARD, rank_1=2.0), False, ["links of rank 1"]),
        ("slow rank", found(RANK, rank_1=None), False, []),
        ("slow link", found(LINK, link_0_1=5e-3), True, []),
        ("slow link", found(LINK, RANK, link_0_1=5e-3), False, ["rank 1"]),
        ("slow link", found(unsure=[LINK], link_0_1=5e-3), False, []),
    ],
)
def test_judge(kind, run, right, needless):
    said = judge(kind, run)
    assert (said["right"], said["needless"]) == (right, needless)


def test_a_validation_that_finds_nothing_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(validate_score, "on_ranks", lambda *job: found(rank_1=0.0, link_0_1=0.0))
    assert [validate_score.main(["--kinds", kind]) for kind in validate_score.KINDS] == [0, 1, 1]
