"""Ranks that make a group meet where others have met before, and where some have died."""

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from torch_jobs import needs_torch

pytestmark = needs_torch


@pytest.fixture
def store():
    import torch.distributed as dist

    return dist.HashStore()


def met(store, ranks, world_size, late=None, timeout_s=20.0):
    """What `meet` is on each of `ranks`, by rank; `late` comes 50 ms after the others."""
    from lanterne.torch.meeting import meet

    found = {}

    def come(rank):
        if rank == late:
            time.sleep(0.05)
        try:
            found[rank] = meet(store, "group", rank, world_size, timeout_s)
        except RuntimeError as error:
            found[rank] = error

    threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("late", range(4))
@pytest.mark.parametrize("before", [(), (0, 1, 2, 3), (1, 3)], ids=["first", "after one", "after one that failed"])
def test_nothing_is_read_that_was_written_before(store, before, late):
    from datetime import timedelta

    if before:
        store.set_timeout(timedelta(milliseconds=200))
        for meeting in met(store, before, 4).values():
            if before != (1, 3):
                meeting.set("address", "an old one")
        store.set_timeout(timedelta(seconds=20))
    found = met(store, range(4), 4, late)
    assert not any(meeting.has("address") for meeting in found.values())
    found[0].set("address", "the new one")
    assert [found[rank].get("address") for rank in range(4)] == [b"the new one"] * 4


def test_one_rank_meets_nobody(store):
    assert list(met(store, [0], 1)) == [0]


def test_rank_0_says_who_did_not_come(store):
    from lanterne.errors import TransportTimeout

    found = met(store, [0, 2], 4, timeout_s=0.3)[0]
    assert isinstance(found, TransportTimeout)
    assert (str(found), list(found.peers)) == ("ranks [1, 3] did not come within 0.3 s", [1, 3])


def test_torchrun_starts_all_again_after_a_death():
    # torchrun ends the survivors as soon as it sees the death; rank 0 has to have said by then what it saw.
    looks = "--monitor-interval 3"
    words = f"-m torch.distributed.run --nproc-per-node 2 --max-restarts 1 --standalone {looks}".split()
    job = subprocess.run(
        [sys.executable, "-P", *words, str(Path(__file__).with_name("restarted_rank.py"))],
        env=os.environ | {"LANTERNE_TRANSPORT": "tcp", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert job.returncode == 0, job.stderr
    assert "rank 1 failed" in job.stderr
    assert sorted(re.findall(r"restart \d rank \d", job.stdout)) == ["restart 1 rank 0", "restart 1 rank 1"]
