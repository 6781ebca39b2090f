"""lanterne.torch.rebalance: a slow rank gets fewer microbatches, and the gradient stays that of the batch."""

from pathlib import Path

import pytest
from torch_jobs import SIZE, needs_torch, run

JOB = Path(__file__).with_name("rebalanced_rank.py")
pytestmark = needs_torch


@pytest.mark.parametrize("backend", ["gloo", "lanterne"])
def test_counts_follow_the_speed_and_weights_are_those_of_one_process(backend):
    found = [said["found"] for said, _, _ in run(backend, job=JOB)]
    counts = [its for its, _ in found]
    assert counts == counts[:1] * SIZE
    assert all(difference < 2e-6 for _, difference in found), found
    # Even, then by speed since a look in the slow steps, then more again: on a busy machine sleeps are not exact.
    assert counts[0][0] == [8, 8, 8]
    assert all(sum(each) == 24 for each in counts[0])
    assert counts[0][12][1] <= 5, counts[0]
    assert counts[0][-1][1] > counts[0][12][1], counts[0]


def test_what_cannot_be_is_refused():
    import torch
    import torch.distributed as dist

    import lanterne.torch

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        with pytest.raises(ValueError, match="got 1 microbatches on 1 ranks, expected at least 2"):
            lanterne.torch.rebalance(model, 1)
        with pytest.raises(ValueError, match="got every 0, expected at least 1 step"):
            lanterne.torch.rebalance(model, 4, every=0)
    finally:
        dist.destroy_process_group()
