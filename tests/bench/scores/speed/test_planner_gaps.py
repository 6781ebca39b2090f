"""lanterne bench planner: its problems are reproducible and its gaps are between what is known."""

import json

import pytest

from lanterne.bench.cli import main
from lanterne.bench.scores.speed.planner_gaps import random_problem


def test_a_seed_names_a_problem():
    assert random_problem(5) == random_problem(5) != random_problem(6)


def test_records(capsys):
    assert main(["bench", "planner", "--problems", "2", "--seed", "2", "--effort", "0.1", "--json", "-"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [record["seed"] for record in results] == [2, 3]
    assert all(record["lower_bound"] <= record["best_known"] <= record["makespan"] for record in results)


def test_other_kinds_of_problems(capsys):
    words = ["--kind", "shared,bidirectional", "--problems", "1", "--effort", "0.1", "--solver", "0.5", "--json", "-"]
    assert main(["bench", "planner", *words]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [record["kind"] for record in results] == ["shared", "bidirectional"]
    assert all(record["lower_bound"] <= record["best_known"] <= record["makespan"] for record in results)


@pytest.mark.parametrize("words", [["--problems", "0"], ["--seed", "-1"], ["--solver", "0"], ["--kind", "ring"]])
def test_bad_input(capsys, words):
    assert main(["bench", "planner", *words]) == 2
    assert "got" in capsys.readouterr().err
