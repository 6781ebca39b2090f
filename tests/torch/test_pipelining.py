"""torch.distributed.pipelining runs our plans from their CSV, and learns what a Trainer learns from them."""

import json
import os
from importlib.util import find_spec

import pytest

from evaluation.__main__ import EVALUATE

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(
        find_spec("torch") is None and "torch" not in os.environ.get("LANTERNE_REQUIRE", "").split(","),
        reason="PyTorch is not installed (extra torch); ./run test -m torch",
    ),
]


def test_the_same_plans_give_the_same_losses(tmp_path):
    options = ["--ranks", "2", "--schedulers", "1f1b,zb_h1,best", "--width", "16", "--blocks", "1", "--iterations", "2"]
    assert EVALUATE.main(["torch-pipelining", *options, "--json", str(tmp_path / "found.json")]) == 0
    results = json.loads((tmp_path / "found.json").read_text())["results"]
    assert [record["scheduler"] for record in results] == ["1f1b", "zb_h1", "best"]
    assert all(record["difference"] < 1e-4 and record["ratio"] > 0 for record in results)
