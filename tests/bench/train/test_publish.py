"""Training tells its page and metrics how it goes."""

import argparse
import socket

import pytest

import lanterne
from lanterne.bench import cli
from lanterne.bench.train.publish import TrainingPublisher
from lanterne.errors import InputError
from lanterne.failslow.operate.metrics import job_metrics
from lanterne.failslow.operate.publisher import Publisher


@pytest.mark.parametrize("words", ["--stages 2", "--stages 1 --data-parallel 2 --mitigate"])
def test_training_is_published(tmp_path, monkeypatch, capsys, words):
    told, offered = [], []
    monkeypatch.setattr(Publisher, "publish", lambda self, status: told.append(status))
    monkeypatch.setattr(Publisher, "offer", lambda self, make: offered.append(make))
    (tmp_path / "text").write_text("so many words of a text " * 40)
    command = f"pipeline train -n 2 --transport local --data {tmp_path}/text --iterations 6 --listen 127.0.0.1:0"
    model = "--width 8 --heads 2 --blocks 2 --length 8 --rows 1 --microbatches 4 --scheduler 1f1b"
    assert cli.main([*command.split(), *model.split(), *words.split()]) == 0
    assert "# page at http://127.0.0.1:" in capsys.readouterr().err
    (make,), (last,) = offered, told
    asked = make()
    assert (asked["ended"], last["ended"]) == (False, True), "made when somebody asks, and at the end"
    assert asked["iterations"] == last["iterations"] and last["iterations"]["count"] == 6
    names = {metric.name for metric in job_metrics(last)}
    assert "lanterne_calls_begun_early_total" in names
    assert ("lanterne_saved_seconds" in names) == ("--mitigate" in words)


@pytest.mark.parametrize("words", ["--listen x"])
def test_bad_input(tmp_path, capsys, words):
    assert cli.main(["pipeline", "train", "-n", "2", "--data", "none", *words.split()]) == 2
    assert words.split()[0] in capsys.readouterr().err


def test_a_port_that_the_rank_before_holds_is_taken_once_that_lets_go(caplog):
    def run(comm):
        with socket.create_server(("127.0.0.1", 0)) as before:
            listen = f"127.0.0.1:{before.getsockname()[1]}"
            publisher = TrainingPublisher(argparse.Namespace(listen=listen))
            with pytest.raises(InputError, match=f"--listen: got {listen}"):
                publisher.follow(comm, None, must=True)
            for _ in range(2):
                publisher.follow(comm, None)
        publisher.follow(comm, None)
        with socket.create_connection(("127.0.0.1", int(listen.rpartition(":")[2]))):
            publisher.close()
        return len([record for record in caplog.records if "tried again" in record.getMessage()])

    assert lanterne.spawn(1, run) == [1]
