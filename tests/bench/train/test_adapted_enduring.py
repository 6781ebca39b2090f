"""A job that adapts to its links outlives its ranks, wherever they are by then: the losses stay the same."""

from functools import partial

import numpy as np
import pytest

import lanterne
from lanterne.bench.train.adapt import Disturbed
from lanterne.pipeline.adapt import adapter
from lanterne.pipeline.adapt.decide import AdaptSettings
from lanterne.pipeline.adapt.injection import InjectedEvent, renumbered
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.plane_makers import adapting
from lanterne.pipeline.train.adam import Adam
from lanterne.pipeline.train.enduring import Enduring
from lanterne.pipeline.train.rank_layout import fit_layout
from lanterne.pipeline.train.trainer import Trainer, plans

TOTAL, ITERATIONS, LAYERS = 8, 7, 4
EVENTS = [InjectedEvent(2, links=(0,), down=True)]


def batches(number):
    inputs = np.random.default_rng(number).standard_normal((TOTAL, 2, 6))
    return inputs, np.tanh(inputs)


def trainer_of(comm, **options):
    layout = fit_layout(comm.world_size, 2, 1, LAYERS)
    copies, places, _ = layout.shape
    counts = [TOTAL // copies + (copy < TOTAL % copies) for copy in range(copies)]
    planned = plans(Problem(places, max(counts), 2, 2, 1), "zb_h1", counts)
    model = mlp((6,) * (LAYERS + 1), 2)
    return Trainer(comm, model, batches, planned, layout=layout, optimizer=lambda: Adam(0.01), **options)


@pytest.fixture(scope="module")
def alone():
    """The losses of one process."""

    def run(comm):
        trainer = trainer_of(comm)
        return [trainer.iteration().losses for _ in range(ITERATIONS)]

    return lanterne.spawn(1, run)[0]


def fallen(rank, at, where):
    """By rank that lived: ({iteration: losses}, changes, the number that its adapter counts to)."""
    found = {}

    def run(comm):
        def made(comm):
            trainer = trainer_of(comm, plane=adapting)
            places = range(trainer.layout.shape[1])
            disturbed = Disturbed(trainer, renumbered(EVENTS, {each: each for each in places}), adapts=True)
            agree, avoid = disturbed.adapter.agree, disturbed.adapter.avoid

            def fall(now):
                if comm.transport.rank == rank and trainer.iterations == at and now == where:
                    raise ZeroDivisionError(f"rank {rank} falls at {where} of {at}")

            def agreeing():
                fall("agreeing")
                return agree()

            def avoiding(pairs):
                fall("diverting")
                return avoid(pairs)

            disturbed.adapter.agree, disturbed.adapter.avoid = agreeing, avoiding
            return disturbed

        training, losses = Enduring(comm, made, copies=1), {}
        while training.iterations < ITERATIONS:
            done = training.iteration()
            if done is not None:
                losses[done.number] = done.losses
        training.finish(lambda comm: None)
        found[comm.transport.rank] = losses, training.changes, training.training.adapter.iteration

    with pytest.raises(ZeroDivisionError):
        lanterne.spawn(4, run)
    return found


# An iteration is counted before the ranks agree on what comes of it.
CASES = [
    pytest.param(1, 2, "diverting", id="while a path is given up"),
    pytest.param(2, 4, "agreeing", id="while they agree"),
    pytest.param(3, 0, "diverting", id="before anything", marks=pytest.mark.slow),
    pytest.param(0, 4, "diverting", id="when it was given up", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("rank", "at", "where"), CASES)
def test_the_losses_are_those_of_one_process(alone, monkeypatch, rank, at, where):
    # The search of the usual one compiles for long.
    monkeypatch.setattr(adapter, "AdaptSettings", partial(AdaptSettings, scheduler="zb_h1"))
    found = fallen(rank, at, where)
    assert sorted(found) == [each for each in range(4) if each != rank]
    heard = set()
    for each, (losses, changes, counted) in found.items():
        heard |= losses.keys()
        assert counted == ITERATIONS and [change.ranks for change in changes] == [3], f"rank {each}"
        for number, values in losses.items():
            np.testing.assert_allclose(values, alone[number], rtol=1e-5, err_msg=f"rank {each}, iteration {number}")
    assert heard >= {*range(ITERATIONS)} - {at, at - 1}
