"""Dumps of torch's own recorder of gloo, of a job in which one rank never comes to a call."""

import os
import subprocess
import sys

from processes import free_port
from torch_jobs import needs_torch

from lanterne.failslow.locate.calls_verdicts import diagnose
from lanterne.failslow.locate.formats.folder import read_folder

pytestmark = needs_torch
SIZE, ABSENT = 4, 2
# Rank, folder: five calls of all, one of a group, and one to which a rank does not come.
PROGRAM = f"""
import os, sys
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
rank, folder = int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo")
group, store = dist.new_group([0, 1]), dist.distributed_c10d._get_default_store()
for _ in range(5):
    dist.all_reduce(torch.ones(8))
if rank < 2:
    dist.all_reduce(torch.ones(4), group=group)
if rank != {ABSENT}:
    work = dist.all_reduce(torch.ones(8), async_op=True)
store.set(f"called {{rank}}", "yes")
store.wait([f"called {{other}}" for other in range({SIZE})])
open(f"{{folder}}/pickle/fr_trace_rank_{{rank}}", "wb").write(_dump_fr_trace())
open(f"{{folder}}/json/rank{{rank}}.json", "wb").write(_dump_fr_trace_json())
# A call that waits for a rank is over once that has ended; the store ends with rank 0.
for moment in ("dumped", "through"):
    store.set(f"{{moment}} {{rank}}", "yes")
    if moment == "dumped" or rank == 0:
        store.wait([f"{{moment}} {{other}}" for other in range({SIZE})])
os._exit(0)
"""


def test_the_rank_that_did_not_come_is_named_from_both_forms_of_a_dump(tmp_path):
    for form in ("pickle", "json"):
        (tmp_path / form).mkdir()
    shared = os.environ | {"WORLD_SIZE": str(SIZE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= {"OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "200", "TORCH_NCCL_TRACE_BUFFER_SIZE": "200"}
    ranks = [
        subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], env=shared | {"RANK": str(rank)})
        for rank in range(SIZE)
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0] * SIZE
    finally:
        for rank in ranks:
            rank.kill()
    for form in ("pickle", "json"):
        verdicts, _ = diagnose(read_folder(tmp_path / form).calls)
        assert [(one.cause, one.ranks, one.conclusive) for one in verdicts] == [("worker", (ABSENT,), True)], form
