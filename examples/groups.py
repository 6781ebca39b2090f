"""Ranks in groups: gradients summed over the data-parallel ranks of each stage, activations sent to the next stage.

`mpiexec -n 4 python examples/groups.py`, or alone.
"""

import numpy as np

import lanterne

with lanterne.init() as comm:
    stages = 2 if comm.world_size % 2 == 0 else 1
    stage, replica = comm.rank % stages, comm.rank // stages
    with comm.split(stage) as same_stage, comm.split(replica) as pipeline:
        gradients = np.full(1000, float(comm.rank), np.float32)
        same_stage.all_reduce(gradients, gradients)
        assert (gradients == sum(range(stage, comm.world_size, stages))).all()
        activations = np.full(16, float(replica))
        if pipeline.rank < stages - 1:
            pipeline.send(activations, peer=pipeline.rank + 1)
        if pipeline.rank > 0:
            received = np.empty_like(activations)
            pipeline.recv(received, peer=pipeline.rank - 1)
            assert (received == activations).all()
    if comm.rank == 0:
        print(f"{stages} stages, {comm.world_size // stages} replicas of each")
