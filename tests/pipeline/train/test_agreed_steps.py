"""Wherever ranks are when one dies, and whatever they know: what is left is one complete state, bit by bit.

A pipeline of three, and three copies with ZeRO-1. Of each iteration ranks have computed, then have what came from the
rank before (ready), then know that all are (agreed), then have stepped. None is past ready before all are there.
"""

from itertools import product

import numpy as np
import pytest

import lanterne
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.train.adam import Adam
from lanterne.pipeline.train.rank_layout import fit_layout
from lanterne.pipeline.train.replicas import ReplayedReplicas, SpacedReplicas, hand_around, replay
from lanterne.pipeline.train.state import TrainingState, move_state, seat_gradients
from lanterne.pipeline.train.trainer import Trainer, plans

RANKS, TOTAL, AT = 3, 6, 4
PHASES = COMPUTED, READY, AGREED, STEPPED = range(4)
CASES = [
    (dead, dict(zip((rank for rank in range(RANKS) if rank != dead), phases, strict=True)))
    for dead in range(RANKS)
    for phases in product(PHASES, repeat=RANKS - 1)
    if max(phases) < AGREED or COMPUTED not in phases
]


def batches(number):
    inputs = np.random.default_rng(number).standard_normal((TOTAL, 2, 6))
    return inputs, np.tanh(inputs)


def trainer_of(comm, sharded):
    layout = fit_layout(RANKS, 1 if sharded else RANKS, 1, RANKS)
    copies, places, _ = layout.shape
    planned = plans(Problem(places, TOTAL // copies, 1, 1, 1), "1f1b", (TOTAL // copies,) * copies)
    return Trainer(
        comm, mlp((6,) * (RANKS + 1), 2), batches, planned, layout=layout, sharded=sharded,
        optimizer=lambda: Adam(0.01, weight_decay=0.1),
    )  # fmt: skip


SHARDED = pytest.mark.parametrize(
    "sharded",
    [pytest.param(False, id="pipeline"), pytest.param(True, id="ZeRO-1", marks=pytest.mark.slow)],
)


class Stopped(Exception):
    """This rank has come so far."""


def stop(seat, trainer, phase):
    """Run an iteration of `trainer` so far, as far as this rank knows: what is sent to it is taken from the wire."""
    copies = trainer.copies

    def agree(copies):
        if phase > COMPUTED:
            return seat.agree(copies)
        copies.wait()
        if isinstance(seat, ReplayedReplicas):
            hand_around(seat._comm, seat_gradients(copies), [np.empty(count, np.float32) for count in seat._its_counts])
        else:
            for request in seat._coming[1]:
                request.wait()
        raise Stopped

    def all_are_ready():
        if phase == READY:
            raise Stopped

    def step():
        # With ZeRO-1 the parts of the others are not heard of.
        for stage in trainer.stages if phase == STEPPED else ():
            copies.update(stage)
        raise Stopped

    trainer.use(agree=agree)
    copies.step, trainer.comm.barrier = step, all_are_ready
    with pytest.raises(Stopped):
        trainer.iteration()
    del copies.step, trainer.comm.barrier


def outcomes(make_seat, sharded):
    """(by iteration the vectors of the state where nobody dies, by case what those that are left find together).

    What is found is (iteration, vectors); each case begins with two iterations in which nobody dies.
    """

    def run(comm):
        trainer, states, found = trainer_of(comm, sharded), [], []
        for _ in range(AT + 2):
            states.append(trainer.state())
            trainer.iteration()
        for dead, phases in CASES:
            trainer.restore(states[AT - 2])
            for stage in trainer.stages.values():
                stage.gradients[...] = 0
            seat = make_seat(trainer)
            seat.meet()
            trainer.use(agree=seat.agree)
            for _ in range(2):
                seat.begin()
                trainer.iteration()
            seat.begin()
            stop(seat, trainer, phases.get(comm.rank, READY))
            rest = comm.split(int(comm.rank == dead), comm.rank)
            state, _ = move_state(rest, [] if comm.rank == dead else seat.states())
            found.append(None if state is None else (state.iteration, vectors(state)))
            rest.close()
        trainer.close()
        return [vectors(state) for state in states], found

    every = lanterne.spawn(RANKS, run)
    survivors = [min(rank for rank in range(RANKS) if rank != dead) for dead, _ in CASES]
    return every[0][0], [every[rank][1][at] for at, rank in enumerate(survivors)]


def vectors(state):
    return [*state.vectors.values()]


def is_ready(phases, dead):
    """By rank after the dead one: whether it has all that it needs of that."""
    return phases[(dead + 1) % RANKS] > COMPUTED


@SHARDED
def test_gradients_are_replayed_or_nobody_has_stepped(sharded):
    expected, found = outcomes(lambda trainer: ReplayedReplicas(trainer, copies=True), sharded)
    wanted = [AT if COMPUTED in phases.values() else AT + 1 for _, phases in CASES]
    assert [each[0] for each in found] == wanted
    np.testing.assert_array_equal([each[1] for each in found], [expected[at] for at in wanted])


@SHARDED
def test_at_intervals_the_last_copy_stays_until_all_have_the_next(sharded):
    expected, found = outcomes(lambda trainer: SpacedReplicas(trainer, every=2), sharded)
    wanted = [AT if is_ready(phases, dead) else AT - 2 for dead, phases in CASES]
    assert [each[0] for each in found] == wanted
    np.testing.assert_array_equal([each[1] for each in found], [expected[at] for at in wanted])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_replayed_step_is_the_step_bit_by_bit(dtype):
    random = np.random.default_rng(3)
    sizes, at_once, steps = (5, 1, 300_001), Adam(0.1, weight_decay=0.2), 3
    sets = [random.standard_normal(sum(sizes)).astype(dtype) for _ in range(steps)]
    weights = random.standard_normal(sum(sizes)).astype(dtype)
    cuts = np.cumsum(sizes)[:-1]
    own = np.split(weights, cuts)
    zeros = [np.zeros(2 * size, dtype) for size in sizes]
    values = np.concatenate([part for pair in zip(own, zeros, strict=True) for part in pair])
    held = TrainingState(7, 0, len(values), np.empty((0, 2), np.int64), values)
    for gradients in sets:
        replay(held, np.split(gradients, cuts), Adam(0.1, weight_decay=0.2))
        at_once.step(weights, gradients)
    of_stages = np.split(held.values, 3 * cuts)
    its = [np.concatenate([part.reshape(3, -1)[row] for part in of_stages]) for row in range(3)]
    np.testing.assert_array_equal(its, [weights, at_once.mean, at_once.square])
    assert (held.iteration, held.steps) == (7 + steps, steps)
