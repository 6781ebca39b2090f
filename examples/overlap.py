"""Gradients in buckets: each all-reduce starts as soon as its bucket is there, and runs beside what is computed next.

`mpiexec -n 4 python examples/overlap.py`, or alone.
"""

import numpy as np

import lanterne

BUCKETS, ELEMENTS = 6, 200_000

with lanterne.init() as comm:
    weights = np.random.default_rng(comm.rank).random((256, 256))
    buckets, requests = [], []
    for index in range(BUCKETS):
        weights = np.tanh(weights @ weights.T / 256)  # the backward pass of this bucket's layers
        buckets.append(np.full(ELEMENTS, float(index + comm.rank), np.float32))
        requests.append(comm.start_all_reduce(buckets[-1], buckets[-1], op="mean"))
    for index, (bucket, request) in enumerate(zip(buckets, requests, strict=True)):
        request.wait(timeout_s=30.0)
        assert (bucket == index + (comm.world_size - 1) / 2).all()
    if comm.rank == 0:
        print(f"{BUCKETS} buckets, the mean over {comm.world_size} ranks")
