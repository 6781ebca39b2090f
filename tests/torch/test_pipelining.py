"""torch.distributed.pipelining runs our plans from their CSV, and learns what a Trainer learns from them."""

import json

from torch_jobs import needs_torch

from evaluation.__main__ import EVALUATE

pytestmark = needs_torch


def test_the_same_plans_give_the_same_losses(tmp_path):
    options = ["--ranks", "2", "--schedulers", "1f1b,zb_h1,best", "--width", "16", "--blocks", "1", "--iterations", "2"]
    assert EVALUATE.main(["torch-pipelining", *options, "--json", str(tmp_path / "found.json")]) == 0
    results = json.loads((tmp_path / "found.json").read_text())["results"]
    assert [record["scheduler"] for record in results] == ["1f1b", "zb_h1", "best"]
    assert all(record["difference"] < 1e-4 and record["ratio"] > 0 for record in results)
