"""any_arrival against the linear program: drawn vectors and those of a file."""

import json

import numpy as np
import pytest

from evaluation.speed.any_arrivals import draw, main, most_merges
from lanterne.transport.board.arrival_bound import after_merges, merges_before


def test_drawn_vectors_end_near_the_bound(tmp_path, capsys):
    file = tmp_path / "found.json"
    assert main(["--ranks", "5", "--vectors", "12", "--seed", "3", "--json", str(file)]) == 0
    records = json.loads(file.read_text())["vectors"]
    assert len(records) == 12 and all(0.99 * each["bound"] < each["x"] < 1.2 * each["bound"] for each in records)
    assert len({each["x"] for each in records}) > 6
    assert "over the bound" in capsys.readouterr().out


def test_vectors_of_a_file(tmp_path):
    """By hand: two of three merge half a buffer before the last, so the bound is 1 of s/rate."""
    file, out = tmp_path / "vectors.json", tmp_path / "out.json"
    file.write_text("[[0, 0, 1]]")
    assert main(["--file", str(file), "--json", str(out)]) == 0
    (record,) = json.loads(out.read_text())["vectors"]
    assert record["bound"] == pytest.approx(1.0) and record["ring"] == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("words", "text", "part"),
    [
        (["--ranks", "17"], "", "--ranks: got 17, expected 2 to 16"),
        (["--file", "vectors.json"], "[[0, -1]]", "none negative"),
        (["--file", "vectors.json"], "{", "expected a JSON list"),
        (["--file", "nowhere.json"], "", "expected a JSON list"),
    ],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, words, text, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vectors.json").write_text(text)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert part in said and said.count("\n") == 1


@pytest.mark.parametrize("ranks", [3, 4, 5, 8])
def test_the_greedy_bound_is_nearly_the_linear_programs(ranks):
    rng = np.random.default_rng(100 + ranks)
    for _ in range(40):
        arrivals = draw(rng, ranks)
        merges, most = merges_before(arrivals), most_merges(arrivals)
        assert merges <= most + 1e-6
        assert after_merges(ranks, merges) <= 1.035 * after_merges(ranks, most)
