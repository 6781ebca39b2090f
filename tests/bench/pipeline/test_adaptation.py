"""Pipelines beside each other while a link is slow: with a plan that stays, that adapts, and with full knowledge."""

import json

import pytest

from lanterne.bench.cli import main
from lanterne.bench.pipeline.adaptation import disturbed
from lanterne.pipeline.adapt.injection import InjectedEvent
from lanterne.pipeline.plan.problem import Problem

RUN = ["pipeline", "run", "--stages", "4", "--microbatches", "8", "--forward", "3ms", "--scheduler", "zb_h2"]
LOCAL = ["--transport", "local"]


def test_conditions_become_a_problem():
    problem = Problem(3, 4, 1.0, 2.0, 1.0, link_latency=(0.0, 0.5), message_nbytes=10)
    events = [
        InjectedEvent(2, 4, (1,), 0.25),
        InjectedEvent(3, 5, (0,), bandwidth_bytes_per_s=5.0),
        InjectedEvent(4, 6, rank=1, slowdown=2.0),
    ]
    assert disturbed(problem, events, 0) == (problem, set())
    slow, pairs = disturbed(problem, events, 3)
    assert (slow.latency(1, 2), slow.latency(2, 1), slow.latency(0, 1)) == (0.75, 0.75, 0.0)
    assert (slow.occupancy(0, 1, 10), slow.occupancy(1, 2, 10)) == (2.0, 0.0) and pairs == {(0, 1), (1, 2)}
    assert disturbed(problem, events, 5)[0].forward == (1.0, 2.0, 1.0)


@pytest.mark.slow
def test_a_run_that_adapts(tmp_path, capsys):
    path, picture = tmp_path / "run.json", tmp_path / "run.svg"
    argv = [*RUN, *LOCAL, "--slow-link", "1=20ms@4:12", "--iterations", "20", "--adapt", "--json", str(path)]
    assert main([*argv, "--plot", str(picture)]) == 0
    fixed, adapts, known = json.loads(path.read_text())["results"]
    assert [len(record["iteration_s"]) for record in (fixed, adapts, known)] == [20] * 3
    outcome = adapts["outcomes"][0]
    assert outcome["links"] == [1] and outcome["change"]["slow_links"] == [[1, 2]] and outcome["lag"] >= 2
    assert outcome["change"]["findings"]["link 1-2"] == 1 and adapts["changes"][-1]["slow_links"] == []
    assert fixed["changes"] == known["changes"] == [] and adapts["disturbed_s"] < fixed["disturbed_s"]
    assert "full knowledge" in capsys.readouterr().out and picture.stat().st_size > 1000


@pytest.mark.timing
def test_a_slow_rank_without_adapting(tmp_path):
    path = tmp_path / "run.json"
    argv = [*RUN, *LOCAL, "--slow-rank", "2=2x@1:2", "--iterations", "3", "--json", str(path)]
    assert main(argv) == 0
    (fixed,) = json.loads(path.read_text())["results"]
    assert fixed["iteration_s"][1] > 8 * 3 * 6e-3 > fixed["undisturbed_s"] * 0.5


@pytest.mark.parametrize(
    "more, words",
    [
        (["--slow-link", "3=1ms"], "got link 3, expected 0 to 2"),
        (["--slow-rank", "4=2x"], "got rank 4, expected 0 to 3"),
        (["--slow-link", "1=200mbit"], "got a bandwidth and messages of no bytes"),
        (["--events", "nowhere.json"], "cannot read nowhere.json"),
        (["--adapt", "--iterations", "0"], "--iterations"),
        (["--slow-link", "1=1ms", "--trace", "run.json"], "--trace: got it beside --adapt or events"),
        (["--slow-link", "1=1ms", "--check"], "--check: got it beside events, expected --adapt too"),
    ],
)
def test_bad_input(more, words, capsys):
    assert main([*RUN, *LOCAL, *more]) == 2
    assert words in capsys.readouterr().err


def test_training_adapts_and_the_losses_stay(tmp_path):
    text, path = tmp_path / "text", tmp_path / "train.json"
    text.write_text("the lantern is the rider who comes in last. " * 40)
    argv = ["pipeline", "train", "-n", "2", *LOCAL, "--data", str(text), "--blocks", "2", "--width", "16"]
    argv += ["--length", "16", "--iterations", "14", "--microbatches", "6", "--slow-link", "0=60ms@8:14", "--adapt"]
    assert main([*argv, "--check", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["check"]["same"] and document["events"][0]["links"] == [0]
    assert document["changes"][0]["findings"] == {"calibrated": 1}
    assert any(change["slow_links"] == [[0, 1]] for change in document["changes"])
