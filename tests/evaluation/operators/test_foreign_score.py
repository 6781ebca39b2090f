"""Traces are scored in every format against what is known of them."""

import json
from functools import partial

import pytest

from evaluation import locate_score
from evaluation.locate_score import LabelledTrace
from evaluation.operators import foreign_score
from evaluation.operators.foreign_formats import WRITERS
from evaluation.operators.foreign_score import OWN, KnownTrace, score
from evaluation.operators.trace_set import csv_of
from evaluation.trace_jobs import make_trace
from lanterne.failslow.locate.locate import Verdict

SLOW = make_trace(replicas=3, stages=2, microbatches=3, steps=6, workers={(2, 1): 2.0})


@pytest.mark.parametrize(("slow", "right", "blamed"), [((5,), 1.0, 0.0), ((4,), 0.0, 1.0)])
def test_every_format_is_judged(slow, right, blamed):
    def judge(verdicts):
        named = tuple(rank for verdict in verdicts for rank in verdict.ranks)
        return named == slow, named != slow

    records = score(iter([KnownTrace("worker", SLOW, judge)]), 0.1, 1)
    assert {(r["format"], r["kind"]) for r in records} == {(n, k) for n in (OWN, *WRITERS) for k in ("worker", "all")}
    assert {(r["traces"], r["right"], r["blamed"]) for r in records} == {(1, right, blamed)}


def test_traces_of_a_folder_are_compared_with_the_whole(tmp_path, capsys):
    (tmp_path / "slow.csv").write_bytes(csv_of(SLOW))
    assert foreign_score.main(["--folder", str(tmp_path), "--thin", "0", "--json", "-"]) == 0
    records = json.loads(capsys.readouterr().out)["results"]
    assert [r["right"] for r in records if r["kind"] == "slow.csv"] == [1.0] * (1 + len(WRITERS))


def test_who_names_nothing_is_right_of_nothing(monkeypatch):
    nothing = [Verdict("none", (), None, 0.0)]
    monkeypatch.setattr(foreign_score, "locate", lambda trace: nothing)
    monkeypatch.setattr(foreign_score, "diagnose", lambda calls: (nothing, None))
    judge = partial(locate_score.judge, LabelledTrace("worker", {}, workers=frozenset({5})))
    records = score(iter([KnownTrace("worker", SLOW, judge)]), 0.1, 1)
    assert {(r["traces"], r["right"], r["blamed"]) for r in records} == {(1, 0.0, 0.0)}


def test_the_note_counts_all_readings(tmp_path, capsys):
    for name in ("one", "two"):
        (tmp_path / f"{name}.csv").write_bytes(csv_of(SLOW))
    assert foreign_score.main(["--folder", str(tmp_path), "--thin", "0"]) == 0
    assert f"blamed in 0 of {2 * len(WRITERS)} readings" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"), [(["--thin", "1"], "at least 0 and less than 1"), (["--folder", "."], "holds no trace")]
)
def test_what_cannot_be_scored(tmp_path, monkeypatch, options, says, capsys):
    monkeypatch.chdir(tmp_path)
    assert foreign_score.main(options) == 2
    assert says in capsys.readouterr().err
