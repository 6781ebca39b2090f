"""The sum of every rank's array, on every rank: `mpiexec -n 4 python examples/all_reduce.py`, or alone."""

import numpy as np

import lanterne

with lanterne.init() as comm:
    x = np.full(1000, comm.rank + 1.0, np.float32)
    y = np.empty_like(x)
    comm.all_reduce(x, y)
    assert (y == sum(range(1, comm.world_size + 1))).all()
    if comm.rank == 0:
        print(f"{comm.world_size} ranks: the sum is {y[0]:.0f}")
