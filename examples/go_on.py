"""A rank is killed in the middle of a run; the others go on, and take it back in once it has been started again."""

import os
import signal
import subprocess
import sys
import time

import numpy as np

import lanterne

STEPS, RANKS, VICTIM = 60, 4, 2


def agree(comm: lanterne.Communicator, step: int, weights: np.ndarray) -> int:
    """Have the weights of the rank that is furthest, and its step; a new one has step -1; if all are new it begins."""
    steps = np.empty(comm.world_size, np.int64)
    comm.all_gather(np.array([step]), steps)
    comm.broadcast(weights, root=int(steps.argmax()))
    return max(0, int(steps.max()))


def main() -> None:
    """One rank."""
    comm = lanterne.init(timeout_s=20)
    gradient, total, weights = np.ones(1000), np.empty(1000), np.zeros(1000)
    step = -1 if comm.epoch else 0
    changed = comm.epoch > 0
    while True:
        try:
            if changed:
                step = agree(comm, step, weights)
                print(f"step {step}: rank {comm.rank} of {comm.world_size}, new: {comm.newcomers}", flush=True)
            if step == STEPS:
                break
            if step == 10 and not comm.epoch and comm.rank == VICTIM and comm.world_size == RANKS:
                os.kill(os.getpid(), signal.SIGKILL)
            comm.all_reduce(gradient, total)
            weights += total / comm.world_size
            step += 1
            time.sleep(0.05)
            after = comm.grow()  # between two steps: takes in who waits, else the same
        except lanterne.TransportError as error:
            print(f"step {step}: {error}", flush=True)
            after = comm.shrink()  # those that live; the step is done again
        changed, comm = after is not comm, after
    assert (weights == STEPS).all()
    comm.close()


if "RANK" in os.environ:
    main()
else:
    launch = [sys.executable, "-m", "lanterne", "launch", "-n", str(RANKS), "--restarts", "1", "--"]
    sys.exit(subprocess.run([*launch, sys.executable, __file__], check=False).returncode)
