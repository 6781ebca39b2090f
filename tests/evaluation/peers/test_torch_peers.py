"""The comparisons with PyTorch: what differs, or is no number, is exit code 1. The jobs themselves need PyTorch."""

import json
from math import nan

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.peers import ddp, torch_pipelining

VERDICTS = [(0.0, 0, ""), (1.0, 1, ""), (nan, 1, "finite")]


@pytest.mark.parametrize(("difference", "code", "said"), VERDICTS)
def test_parameters_are_compared(difference, code, said, monkeypatch, capsys):
    turn = [{"backward": 1.0, "end": 1.0}] * 2
    record = {"cap_mb": 1.0, "nbytes": 8, "late": 0.0, "late_s": 0.0, "alone_s": 1.0, "difference": difference}
    found = {"torch": "2", "init_s": 1.0, "results": [record | {"samples": {key: [turn] for key in ddp.BACKENDS}}]}

    def start(words, ranks):
        with open(json.loads(words[-1])["out"], "w") as file:
            json.dump(found, file)
        return 0

    monkeypatch.setattr(ddp, "find_python", lambda *needs: "python")
    monkeypatch.setattr(ddp, "_on_this_host", start)
    assert EVALUATE.main(["ddp"]) == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("difference", "code", "said"), VERDICTS)
def test_losses_are_compared(difference, code, said, monkeypatch, capsys):
    losses = {"csv": 1.0 + difference, "comms": 1.0, "lanterne": 1.0}
    record = {"scheduler": "1f1b", "samples_s": {key: [1.0] for key in losses}, "losses": losses}
    monkeypatch.setattr(torch_pipelining, "find_python", lambda *needs: "python")
    monkeypatch.setattr(torch_pipelining, "_on_this_host", lambda *job: {"torch": "2", "results": [record]})
    assert EVALUATE.main(["torch-pipelining", "--ranks", "2"]) == code
    assert said in capsys.readouterr().err
