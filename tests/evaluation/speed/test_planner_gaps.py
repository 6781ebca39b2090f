"""./run evaluate planner: its problems are reproducible and its gaps are between what is known."""

import json
from dataclasses import replace
from functools import partial

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.speed import planner_gaps
from evaluation.speed.planner_gaps import random_problem
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.planners.bounds import lower_bound
from lanterne.pipeline.schedules.one_f_one_b import one_f_one_b


def test_a_seed_names_a_problem():
    assert random_problem(5) == random_problem(5) != random_problem(6)


def test_records(capsys):
    assert EVALUATE.main(["planner", "--problems", "2", "--seed", "2", "--effort", "0.1", "--json", "-"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [record["seed"] for record in results] == [2, 3]
    assert all(record["lower_bound"] <= record["best_known"] <= record["makespan"] for record in results)


def test_other_kinds_of_problems(capsys):
    words = ["--kind", "shared,bidirectional", "--problems", "1", "--effort", "0.1", "--solver", "0.5", "--json", "-"]
    assert EVALUATE.main(["planner", *words]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [record["kind"] for record in results] == ["shared", "bidirectional"]
    assert all(record["lower_bound"] <= record["best_known"] <= record["makespan"] for record in results)


@pytest.mark.parametrize("words", [["--problems", "0"], ["--seed", "-1"], ["--solver", "0"], ["--kind", "ring"]])
def test_bad_input(capsys, words):
    assert EVALUATE.main(["planner", *words]) == 2
    assert "got" in capsys.readouterr().err


@pytest.mark.parametrize("plans", [True, False])
def test_the_gap_is_small_where_the_planner_plans(plans, capsys, monkeypatch):
    if not plans:
        static = partial(replace, proved_bound=lower_bound(random_problem(3), unidirectional(6)))
        monkeypatch.setattr(planner_gaps, "plan", lambda problem, name, **options: static(one_f_one_b(problem)))
    assert EVALUATE.main(["planner", "--problems", "1", "--seed", "3", "--effort", "0.1", "--json", "-"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["results"]
    assert (record["makespan"] < 1.05 * record["lower_bound"]) == plans
