"""A job whose rank 2 computes slowly from iteration 60 on: `lanterne watch -n 4 -- python examples/train.py`."""

import time

import numpy as np

import lanterne

ITERATIONS, COMPUTE_S, SLOW_RANK, SLOW_FROM = 120, 0.02, 2, 60

with lanterne.init() as comm:
    gradients = np.ones(10_000, np.float32)
    for iteration in range(ITERATIONS):
        time.sleep(COMPUTE_S * (2 if comm.rank == SLOW_RANK and iteration >= SLOW_FROM else 1))
        comm.all_reduce(gradients, gradients, op="mean")
    assert (gradients == 1).all()
    if comm.rank == 0:
        print(f"{ITERATIONS} iterations")
