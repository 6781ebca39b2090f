"""A job that is watched and mitigated outlives its ranks, wherever they are by then: the losses stay the same."""

import json

import numpy as np
import pytest

import lanterne
from lanterne.failslow.mitigate.closed_loop import ClosedLoop, observed
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.train.adam import Adam
from lanterne.pipeline.train.enduring import Enduring
from lanterne.pipeline.train.rank_layout import fit_layout
from lanterne.pipeline.train.trainer import Trainer, plans

TOTAL, ITERATIONS, LAYERS = 8, 8, 4
HOME = [[[0], [1]], [[2], [3]]]


def batches(number):
    inputs = np.random.default_rng(number).standard_normal((TOTAL, 2, 6))
    return inputs, np.tanh(inputs)


def make(comm, planned, layout):
    return Trainer(
        comm, mlp((6,) * (LAYERS + 1), 2), batches, planned, layout=layout, optimizer=lambda: Adam(0.01), plane=observed
    )


def loop_of(comm, **options):
    layout = fit_layout(comm.world_size, 2, 1, LAYERS)
    copies, places, _ = layout.shape
    counts = [TOTAL // copies + (copy < TOTAL % copies) for copy in range(copies)]
    return ClosedLoop(comm, make, plans(Problem(places, max(counts), 2, 2, 1), "zb_h1", counts), layout, **options)


@pytest.fixture(scope="module")
def alone():
    """The losses of one process."""

    def run(comm):
        loop = loop_of(comm)
        return [loop.iteration().losses for _ in range(ITERATIONS)]

    return lanterne.spawn(1, run)[0]


def fallen(steps, rank, at, where):
    """By rank that lived: ({iteration: losses}, changes, iterations that it was out).

    `steps`: iteration -> (ranks, microbatches) from then on.
    """
    found = {}

    def run(comm):
        def prepared(comm):
            loop = loop_of(comm)
            iterate, rearrange, barrier = loop.iteration, loop._rearrange, loop.comm.barrier

            def fall(now):
                if comm.transport.rank == rank and loop.iterations == at and now == where:
                    raise ZeroDivisionError(f"rank {rank} falls at {where} of {at}")

            def amid():
                fall("rearranging")
                barrier()

            def iteration():
                if comm.world_size == 4 and loop.iterations in steps:
                    ranks, microbatches = steps[loop.iterations]
                    arrangement = {"ranks": ranks, "microbatches": microbatches}
                    loop.comm.barrier = amid
                    rearrange(json.loads(json.dumps({"kind": "revert", "arrangement": arrangement})))
                    loop.comm.barrier = barrier
                fall("beginning")
                return iterate()

            loop.iteration = iteration
            return loop

        training, losses, out = Enduring(comm, prepared, copies=1), {}, []
        while training.iterations < ITERATIONS:
            done = training.iteration()
            if done is not None:
                losses[done.number] = done.losses
            if training.trainer is None:
                out.append(training.iterations - 1)
        training.finish(lambda comm: None)
        found[comm.transport.rank] = losses, training.changes, out

    with pytest.raises(ZeroDivisionError):
        lanterne.spawn(4, run)
    return found


MOVED = {2: ([[[3], [1]], [[2], [0]]], [5, 3])}
CASES = {
    "where it was": ({}, 1, 4, "beginning", {}),
    "after places were changed": (MOVED, 0, 4, "beginning", {}),
    "as soon as they were": (MOVED, 3, 2, "beginning", {}),
    "while they are changed": (MOVED, 1, 2, "rearranging", {}),
    "while two are out": ({2: (HOME[:1], [8])}, 0, 4, "beginning", {2: [2, 3], 3: [2, 3]}),
    "one that is out": ({2: (HOME[1:], [8])}, 1, 4, "beginning", {0: [2, 3]}),
    "while a restart is under way": ({3: (HOME[:1], [8])}, 2, 3, "rearranging", {}),
    "once they are in again": ({2: (HOME[1:], [8]), 4: (HOME, [4, 4])}, 0, 5, "beginning", {1: [2, 3]}),
}


@pytest.mark.parametrize(("steps", "rank", "at", "where", "outside"), CASES.values(), ids=CASES)
def test_the_losses_are_those_of_one_process(alone, steps, rank, at, where, outside):
    found = fallen(steps, rank, at, where)
    assert sorted(found) == [each for each in range(4) if each != rank]
    heard = set()
    for losses, changes, out in found.values():
        heard |= losses.keys()
        for number, values in losses.items():
            np.testing.assert_allclose(values, alone[number], rtol=1e-5, err_msg=f"iteration {number}")
        (change,) = changes
        assert change.ranks == 3 and change.source == "memory" and change.repeated <= 2, (change, out)
    assert heard >= {*range(ITERATIONS)} - {at, at - 1}
    assert {number: out for number, (_, _, out) in found.items() if out} == outside
