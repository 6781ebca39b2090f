"""Folders of every producer are drawn with what is right to say of them, and judged by that."""

import json

import pytest

from evaluation.operators import drawn_folders
from evaluation.operators.drawn_folders import PRODUCERS, DrawnFolder, Fault, draw, judge
from lanterne.bench.failslow.locate import located
from lanterne.failslow.locate.locate import Verdict


@pytest.mark.parametrize(
    ("producer", "kind"), sorted({(producer, kind) for producer, kinds in PRODUCERS.items() for kind in kinds})
)
def test_every_fault_of_every_producer_is_named(tmp_path, producer, kind):
    drawn = draw(11, tmp_path, producer, kind, 1.5)
    assert judge(drawn, located(tmp_path)[0]) == (True, False)


def test_a_folder_is_the_same_but_for_its_fault(tmp_path):
    written = []
    for name, factor in (("a", 1.5), ("b", 1.5), ("c", 2.0)):
        (tmp_path / name).mkdir()
        draw(3, tmp_path / name, "trace", "worker", factor)
        written.append({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()})
    assert written[0] == written[1] != written[2]


@pytest.mark.parametrize(
    ("cause", "ranks", "state", "answer"),
    [
        ("worker", (1,), {}, (True, False)),
        ("worker", (1, 2), {}, (False, True)),
        ("link", (1,), {}, (False, False)),
        ("none", (), {}, (False, False)),
        ("worker", (3,), {"state": "silent"}, (False, False)),
        ("worker", (2,), {"state": "silent"}, (False, True)),
    ],
)
def test_what_is_judged_right(cause, ranks, state, answer):
    drawn = DrawnFolder("kineto", Fault("worker", (1,)), "worker", (1,), False, lost=3)
    assert judge(drawn, [Verdict(cause, ranks, None, 0.0, state)]) == answer


def test_the_score_counts_and_names_what_is_wrong(capsys, monkeypatch):
    assert (
        drawn_folders.main(["--seed", "7", "--folders", "3", "--producer", "ras", "--fault", "error", "--json", "-"])
        == 0
    )
    total = json.loads(capsys.readouterr().out)["results"][0]
    assert (total["folders"], total["right"], total["innocents"], total["wrong"]) == (3, 3, 0, [])
    monkeypatch.setattr(drawn_folders, "judge", lambda drawn, verdicts: (False, True))
    assert drawn_folders.main(["--seed", "7", "--folders", "2"]) == 0
    assert "[7, 8]" in capsys.readouterr().out
