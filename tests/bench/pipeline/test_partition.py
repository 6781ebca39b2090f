"""lanterne pipeline partition: its answer, its table and what it says to bad input."""

import json

import pytest

from lanterne.bench.cli import main


def test_the_answer_in_json(capsys):
    words = "--layers 80 --speeds 1,1,2,2 --layer-memory 2GiB --stage-memory 40GiB,40GiB,80GiB,50GiB --json -"
    assert main(["pipeline", "partition", *words.split()]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["num_layers"][3] <= 25 and sum(document["num_layers"]) == 80
    assert document["bottleneck"] == max(document["stage_times"]) == 14
    assert document["starts"][-1] == 80


def test_the_table(capsys):
    assert main(["pipeline", "partition", "--layers", "30", "--stages", "4", "--embedding", "1", "--output", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines[1:5]] == ["7", "8", "8", "7"]
    assert "slowest stage 8, 0.0% over perfectly divisible layers (8)" in lines[5]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--layers 3 --stages 4", "got 3, expected one or more for each of 4 stages"),
        ("--layers 0 --stages 1", "--layers: got 0"),
        ("--layers 4 --stages 0", "--stages: got 0"),
        ("--layers 10 --speeds 1,x", "--speeds: got '1,x'"),
        ("--layers 10 --speeds 1,0", "stage speeds: got"),
        ("--times 1,2 --stages 1 --output 3", "--times: got --embedding or --output too"),
        ("--layers 4 --stages 2 --layer-memory 1,2,3 --stage-memory 5", "--layer-memory: got 3 sizes, expected 1 or 4"),
        (
            "--layers 4 --stages 2 --layer-memory 10 --stage-memory 15",
            "memory: got stages of 15, 15, expected room for 4 layers, 40 in all",
        ),
        ("--layers 4 --stages 2 --stage-memory 15", "memory: got only one of"),
        ("--stages 2", "required"),
    ],
)
def test_bad_input(words, message, capsys):
    assert main(["pipeline", "partition", *words.split()]) == 2
    assert message in capsys.readouterr().err
