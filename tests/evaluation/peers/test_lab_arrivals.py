"""Patterns of arrivals on the emulated cluster: what is drawn, how it is compared, and a small run."""

import itertools
import json
import subprocess
import sys

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.peers.lab_arrivals import PATTERNS, compare, draw


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("hosts", [2, 8])
def test_patterns_are_drawn_from_the_seed(name, hosts):
    drawn = draw(name, 20, hosts, 7)
    assert drawn == draw(name, 20, hosts, 7)
    assert {len(delays) for delays in drawn} == {hosts} and all(0 <= d < 2 for delays in drawn for d in delays)


def test_what_the_patterns_are():
    assert draw("alternating", 3, 3, 0) == [[0, 0, 1.2], [0, 0, 0.3], [0, 0, 1.2]]
    assert [number for number, delays in enumerate(draw("seldom", 16, 4, 0)) if any(delays)] == [5, 13]
    late = [delays.index(1.1) for delays in draw("moving", 30, 4, 0)]
    assert set(late) == set(range(4)) and all(one != other for one, other in itertools.pairwise(late))
    assert draw("spread", 5, 4, 0) != draw("spread", 5, 4, 1)


def test_calls_are_compared_with_the_same_arrivals():
    results = [
        {"pattern": pattern, "algorithm": algorithm, "x": x, "delays": [[0.0, 0.0, 1.0]] * len(x)}
        for pattern, algorithm, x in [
            ("spread", "auto", [2.0, 1.0, 1.0]),
            ("spread", "ring", [1.0, 2.0, 2.0]),
            ("seldom", "auto", [3.0]),
            ("seldom", "ring", [1.5]),
        ]
    ]
    rows = {(row["pattern"], row["algorithm"]): row for row in compare(results)}
    assert rows["spread", "auto"] == {
        "pattern": "spread",
        "algorithm": "auto",
        "calls": 3,
        "x": 1.0,
        "bound": 1.0,
        "ratio": 0.5,
        "ratio_p90": 0.5,
        "worst": 2.0,
        "worst_ratio": 1.0,
    }
    assert rows["all", "auto"]["ratio_p90"] == 2.0 and rows["all", "auto"]["worst_ratio"] == 1.5
    assert {row["ratio"] for (_, algorithm), row in rows.items() if algorithm == "ring"} == {1.0}


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--patterns", "sprad"], "--patterns: got 'sprad', expected some of nobody, steady"),
        (
            ["--algorithm", "any_arrival,ring", "--ranks-per-host", "2"],
            "--algorithm: got any_arrival beside --ranks-per-host, expected one",
        ),
        (["--algorithm", "auto,late_join"], "--algorithm: got late_join, which is to be told who is late"),
        (["--bytes", "2"], "--bytes: got 2, expected at least 4"),
    ],
)
def test_bad_input(words, part, capsys):
    assert EVALUATE.main(["lab-arrivals", *words]) == 2
    assert part in capsys.readouterr().err


@pytest.mark.slow
def test_a_small_run(needs_lab, tmp_path):
    words = ["--hosts", "3", "--bytes", "256K", "--patterns", "steady,spread", "--calls", "2", "--json", "found.json"]
    words += ["--algorithm", "auto,any_arrival,ring"]
    command = [sys.executable, "-m", "evaluation", "lab-arrivals", *words]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert said.returncode == 0, said.stderr
    document = json.loads((tmp_path / "found.json").read_text())
    assert document["wrong"] == 0 and [len(record["x"]) for record in document["results"]] == [2] * 6
    assert "steady" in said.stdout and "of worst" in said.stdout
