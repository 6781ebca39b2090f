"""The labelled set is what its seed says, files are what labels say, and answers of anybody are scored."""

import json

import pytest

from evaluation.operators import trace_set

COUNT = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set") / "new"
    assert trace_set.main(["--write", str(folder), "--traces", str(COUNT)]) == 0
    return folder


def test_the_set_is_what_its_seed_says(folder, capsys):
    labels = trace_set.read_labels(folder)
    assert trace_set.main(["--digest", "--traces", str(COUNT)]) == 0
    # Quoted beside scores: another digest is another set.
    assert capsys.readouterr().out.strip() == trace_set.digest(labels) == DIGEST
    assert [one["missing"] for one in labels] == [0.0, 0.0, 0.1]
    assert len(list(folder.iterdir())) == COUNT + 1


DIGEST = "f93b9905e9046235"


def test_answers_are_scored(folder, tmp_path, capsys):
    labels = trace_set.read_labels(folder)
    right = {
        one["file"]: [{"cause": "worker", "ranks": one["workers"]}] if one["workers"] else [{"cause": "none"}]
        for one in labels
    }
    answers = tmp_path / "answers.json"
    wrong = {key: [{"cause": "worker", "ranks": [99]}] for key in right}
    for given, share, blamed in ((right, 1.0, 0.0), ({}, 0.0, 0.0), (wrong, 0.0, 1.0)):
        answers.write_text(json.dumps(given))
        assert trace_set.main(["--score", str(folder), "--answers", str(answers), "--json", "-"]) == 0, (
            given,
            share,
            blamed,
        )
        document = json.loads(capsys.readouterr().out)
        found = document["results"][-1]
        assert (found["kind"], found["traces"], found["right"], found["blamed"]) == ("all", COUNT, share, blamed), (
            given,
            share,
            blamed,
        )
        assert document["digest"] == trace_set.digest(labels), (given, share, blamed)


def test_our_own_answers(folder):
    labels = trace_set.read_labels(folder)
    found = trace_set.score(labels, trace_set.own_answers(folder, labels))
    assert found[-1]["right"] == 1.0 and found[-1]["blamed"] == 0.0


@pytest.mark.parametrize(
    "text",
    ["[]", '{"a": 1}', '{"a": [1]}', '{"a": [{"cause": "x"}]}', '{"a": [{"cause": "link", "ranks": ["1"]}]}', "{"],
)
def test_answers_of_another_form(folder, tmp_path, text, capsys):
    (tmp_path / "a.json").write_text(text)
    assert trace_set.main(["--score", str(folder), "--answers", str(tmp_path / "a.json")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_that_was_changed_and_a_folder_that_is_there(folder, tmp_path, capsys):
    assert trace_set.main(["--write", str(folder)]) == 2
    (tmp_path / "labels.json").write_text((folder / "labels.json").read_text())
    assert trace_set.main(["--score", str(tmp_path)]) == 2
    assert "is not the file" in capsys.readouterr().err
