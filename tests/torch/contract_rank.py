"""One rank of test_contract.py: torch's own functions of fault tolerance (2.14) over lanterne.

`python contract_rank.py CHECK...`: each makes a default group of three ranks with `enable_reconfigure=True`.
"""

import json
import os
import sys
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ErrorType

import lanterne.torch

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STORE = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), SIZE, RANK == 0)
LIMIT = timedelta(seconds=30)


class Job:
    """The default group of one check, and the ranks' exchange of handles beside it."""

    def __init__(self, name):
        self.store = dist.PrefixStore(name, STORE)
        self._rounds = 0
        self._uuid = 0
        store = dist.PrefixStore(f"{name} init", STORE)
        dist.init_process_group(
            "lanterne", store=store, rank=RANK, world_size=SIZE, timeout=LIMIT, enable_reconfigure=True
        )
        assert isinstance(dist.group.WORLD, lanterne.torch.ReconfigurableGroup)
        assert dist._supports_reconfigure()

    def handles(self):
        """The handles of all ranks, in the order of their first numbers."""
        self._rounds += 1
        self.store.set(f"{self._rounds} {RANK}", dist._get_reconfigure_handle())
        return [self.store.get(f"{self._rounds} {rank}").decode() for rank in range(SIZE)]

    def meet(self, handles):
        """Make the group of those ranks; each call has a number that none of this rank's had."""
        self._uuid += 1
        assert dist._reconfigure(self._uuid, handles, timeout=LIMIT).wait()

    def whole(self):
        self.meet(self.handles())
        expect(RANK, SIZE)


def expect(rank, size):
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size), (dist.get_rank(), dist.get_world_size())
    dist.all_reduce(x := torch.full((4,), rank + 1.0))
    assert x.tolist() == [size * (size + 1) / 2] * 4, x
    dist.broadcast(y := torch.tensor([float(rank)]), size - 1)
    assert y.tolist() == [size - 1.0]


def check_all(job):
    job.whole()
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    sent, received = torch.full((4,), RANK + 1.0), torch.zeros(4)
    works = [dist.isend(sent, after), dist.irecv(received, before)]
    for work in works:
        work.wait()
    assert received.tolist() == [before + 1.0] * 4


def check_without_the_last_rank(job):
    without(job, SIZE - 1)


def check_without_a_middle_rank(job):
    without(job, SIZE // 2)


def without(job, left_out):
    job.whole()
    handles = job.handles()
    if left_out != RANK:
        job.meet([handle for rank, handle in enumerate(handles) if rank != left_out])
        expect(RANK - (left_out < RANK), SIZE - 1)
    job.handles()


def check_down_and_up_and_down(job):
    job.meet([dist._get_reconfigure_handle()])
    expect(0, 1)
    job.whole()
    job.meet([dist._get_reconfigure_handle()])
    expect(0, 1)
    job.handles()


def check_the_same_again(job):
    job.whole()
    job.whole()


def check_a_rank_that_comes_later(job):
    handles = job.handles()
    if RANK < 2:
        job.meet(handles[:2])
        expect(RANK, 2)
    else:
        job._uuid += 1
    job.whole()


def check_two_parts_become_one(job):
    handles = job.handles()
    job.meet(handles[:1] if RANK == 0 else handles[1:])
    expect(0 if RANK == 0 else RANK - 1, 1 if RANK == 0 else 2)
    job.whole()


def check_a_set_of_handles(job):
    handles = job.handles()
    job.meet(set(handles))
    expect(sorted(handles).index(dist._get_reconfigure_handle()), SIZE)


def check_after_an_abort(job):
    job.whole()
    dist.group.WORLD.abort()
    assert dist.get_backend_impl().get_error() == ErrorType.SUCCESS
    job.whole()


def check_after_a_timeout(job):
    job.whole()
    dist.group.WORLD.set_timeout(timedelta(milliseconds=50))
    if RANK == 1:
        try:
            dist.all_reduce(torch.ones(4))
        except RuntimeError as error:
            assert "Timed out" in str(error), error
        else:
            raise AssertionError("no timeout")
        assert dist.get_backend_impl().get_error() == ErrorType.TIMEOUT
    else:
        time.sleep(0.5)
    dist.group.WORLD.set_timeout(LIMIT)
    job.whole()


def check_what_is_refused(job):
    mine = dist._get_reconfigure_handle()
    job.meet([mine])
    for uuid, handles, kind, words in (
        (1, [mine], RuntimeError, "already used"),
        (2, ["127.0.0.1:1/x"], ValueError, "also this rank's"),
        (2, [mine, mine], ValueError, "expected different ones"),
    ):
        try:
            dist._reconfigure(uuid, handles)
        except kind as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"nothing was raised, expected {words!r}")
    expect(0, 1)
    job.handles()


def main():
    for name in sys.argv[1:]:
        said = ""
        try:
            job = Job(name)
            globals()[name](job)
            dist.destroy_process_group()
        except Exception:
            said = traceback.format_exc()
        print(json.dumps({"name": name, "said": said}), flush=True)
        if said:
            return


if __name__ == "__main__":
    main()
