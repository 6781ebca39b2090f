"""A small network trained by a pipeline over all ranks: `mpiexec -n 4 python examples/train_pipeline.py`, or alone."""

import numpy as np
from numpy.typing import NDArray

import lanterne
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.train.trainer import Trainer, plans


def batch(iteration: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Six microbatches of four rows: inputs, and targets."""
    x = np.random.default_rng(iteration).normal(size=(6, 4, 3))
    return x, x.sum(axis=2, keepdims=True)


with lanterne.init() as comm:
    problem = Problem(stages=comm.world_size, microbatches=6, forward=1, backward_input=1, backward_weight=1)
    trainer = Trainer(comm, mlp((3, 16, 16, 16, 1), rows=4), batch, plans(problem, "zb_h1"))
    losses = [trainer.iteration().loss for _ in range(20)]
    assert losses[-1] < losses[0]
    if comm.rank == 0:
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
