"""A rank of a job over nccl that loses its second rank, goes on, and takes it back; run by test_gpu_collectives.py."""

import os
import signal
import sys
import time

import cupy
import numpy as np

import lanterne

VICTIM, LIMIT_S = 1, 60.0


def summed(comm):
    """The sum of ones over all ranks, once it is known to be whole."""
    x, out = cupy.ones(1000, np.float32), cupy.zeros(1000, np.float32)
    comm.all_reduce(x, out, algorithm="ring")
    cupy.cuda.get_current_stream().synchronize()
    # What was queued on a stream raises in the next call, or in this one.
    comm.barrier()
    return set(out.get().tolist())


def main():
    comm = lanterne.init(transport="nccl", timeout_s=20)
    world_size = int(os.environ["WORLD_SIZE"])
    if not comm.epoch:
        assert summed(comm) == {float(world_size)}
        if comm.rank == VICTIM:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            while True:
                summed(comm)
        except lanterne.TransportError:
            comm = comm.shrink()
        assert summed(comm) == {float(world_size - 1)}
        until_s = time.monotonic() + LIMIT_S
        while (after := comm.grow()) is comm:
            assert time.monotonic() < until_s, "nobody came"
            time.sleep(0.05)
        comm = after
    assert summed(comm) == {float(world_size)} and comm.newcomers == (VICTIM,)
    sys.stdout.write(f"rank {comm.rank}: {comm.transport.channel.order}\n")
    comm.close()


main()
