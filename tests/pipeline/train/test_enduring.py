"""Training that outlives its ranks has the losses of training in which nobody died."""

import numpy as np
import pytest

import lanterne
from lanterne.collectives.execute import control, requests
from lanterne.errors import InputError, LanterneError
from lanterne.pipeline.model.stage_gpt import gpt
from lanterne.pipeline.model.text import Batches
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.train import trainer
from lanterne.pipeline.train.enduring import Enduring
from lanterne.pipeline.train.rank_layout import fit_layout
from lanterne.pipeline.train.state import TrainingState, move_state, places_of, runs_of
from lanterne.pipeline.train.trainer import Trainer, plans

SHAPE = vocabulary, length, width, heads, blocks, rows = 17, 8, 8, 2, 4, 2
MICROBATCHES, ITERATIONS = 6, 8
TOKENS = np.random.default_rng(0).integers(0, vocabulary, 500)


def trainer_of(comm, places, sharded=False):
    layout = fit_layout(comm.world_size, places, 1, blocks)
    copies, places, _ = layout.shape
    counts = [MICROBATCHES // copies + (copy < MICROBATCHES % copies) for copy in range(copies)]
    made = plans(Problem(places, max(counts), 1, 1, 1), "1f1b", counts)
    batches = Batches(TOKENS, MICROBATCHES, rows, length, 0)
    return Trainer(comm, gpt(*SHAPE), batches, made, layout=layout, dtype=np.float64, sharded=sharded)


@pytest.fixture(autouse=True)
def deaths_are_told_soon(monkeypatch):
    """Ranks that are threads need no tenth of a second to tell each other something."""
    for module in (control, requests, trainer):
        monkeypatch.setattr(module, "STALL_S", 0.02)
    monkeypatch.setattr(control, "FAREWELL_S", 0.05)


@pytest.fixture(scope="module")
def alone():
    """The losses of one process."""

    def run(comm):
        trainer = trainer_of(comm, 1)
        return [trainer.iteration().losses for _ in range(ITERATIONS)]

    return lanterne.spawn(1, run)[0]


def run_with_deaths(size, places, falls, **options):
    """By rank that lived: {iteration: losses}, changes. `falls`: {rank: (iteration, where)}."""
    found = {}

    def fall(comm, at):
        raise ZeroDivisionError(f"rank {comm.transport.rank} falls at {at}")

    def run(comm):
        sharded = options.get("sharded", False)
        more = {name: value for name, value in options.items() if name != "sharded"}

        def make(comm):
            trainer = trainer_of(comm, places, sharded)
            iteration, where = falls.get(comm.transport.rank, (None, None))
            step, wait = trainer.copies.step, trainer.copies.wait

            def executes(*args, **kwargs):
                if trainer.iterations == iteration and where == "execute":
                    fall(comm, where)
                return execute(*args, **kwargs)

            def waits():
                if trainer.iterations == iteration and where == "gradients":
                    fall(comm, where)
                wait()

            def steps():
                if trainer.iterations == iteration and where == "step":
                    fall(comm, where)
                step()
                if trainer.iterations == iteration and where == "losses":
                    fall(comm, where)

            execute, trainer.copies.step, trainer.copies.wait = trainer.use(executes), steps, waits
            return trainer

        training = Enduring(comm, make, **more)
        losses = {}
        while training.iterations < ITERATIONS:
            done = training.iteration()
            if done is not None:
                losses[done.number] = done.losses
        training.finish(lambda comm: None)
        found[comm.transport.rank] = losses, training.changes

    with pytest.raises(ZeroDivisionError):
        lanterne.spawn(size, run)
    return found


@pytest.mark.parametrize("where", ["execute", "gradients", "step", "losses"])
@pytest.mark.parametrize(
    ("size", "places", "falls", "options"),
    [
        (3, 1, (1,), {}),
        (4, 2, (3,), {"copies": 1}),
        (4, 2, (0,), {}),
        (4, 2, (2,), {"copies": 1, "sharded": True}),
        (3, 3, (1,), {"copies": 1, "every": 2}),
    ],
    ids=["copies of the whole", "2x2", "2x2, its copy has it all", "2x2 ZeRO-1", "pipeline of 3, every second"],
)
def test_losses_are_those_of_a_job_where_nobody_fell(alone, size, places, falls, options, where):
    found = run_with_deaths(size, places, {rank: (4, where) for rank in falls}, **options)
    assert sorted(found) == [rank for rank in range(size) if rank not in falls]
    heard = set()
    for rank, (losses, changes) in found.items():
        heard |= losses.keys()
        for number, values in losses.items():
            np.testing.assert_allclose(values, alone[number], rtol=1e-9, err_msg=f"rank {rank}, iteration {number}")
        (change,) = changes
        assert change.ranks == size - 1 and change.source == "memory", (losses, changes)
        assert change.repeated <= options.get("every", 1), (losses, changes)
        assert 4 - options.get("every", 1) <= change.iteration <= 5, (losses, changes)
    # The losses of an iteration in which all but the dead one had stepped may be heard of by nobody.
    assert heard >= {*range(ITERATIONS)} - {4}


def test_two_die_one_after_the_other(alone):
    found = run_with_deaths(4, 2, {3: (2, "execute"), 1: (5, "step")}, copies=1)
    assert sorted(found) == [0, 2]
    for rank, (losses, changes) in found.items():
        assert [change.ranks for change in changes] == [3, 2], (losses, changes)
        np.testing.assert_allclose(losses[ITERATIONS - 1], alone[-1], rtol=1e-9, err_msg=f"rank {rank}")


def test_what_only_the_dead_one_had_comes_from_the_checkpoint_or_is_named(alone):
    def at(comm, iteration):
        trainer = trainer_of(comm, 1)
        for _ in range(iteration):
            trainer.iteration()
        return trainer.state()

    saved = lanterne.spawn(1, at, 3)[0]
    found = run_with_deaths(3, 3, {1: (5, "execute")}, checkpoint=lambda: saved)
    for rank, (losses, changes) in found.items():
        (change,) = changes
        assert (change.iteration, change.source) == (3, "checkpoint"), (losses, changes)
        assert change.repeated in (1, 2), changes  # it may not have heard of the last one's losses yet
        np.testing.assert_allclose(losses[ITERATIONS - 1], alone[-1], rtol=1e-9, err_msg=f"rank {rank}")

    errors = []

    def run(comm):
        training = Enduring(comm, lambda comm: trainer_of(comm, 3))
        while comm.rank != 1 or training.iterations < 5:
            try:
                training.iteration()
            except LanterneError as error:
                errors.append(str(error))
                return
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lanterne.spawn(3, run)
    said = "those that are left do not have all of the state, and there is no checkpoint"
    assert len(errors) == 2 and all(said in each for each in errors)


def test_a_death_in_the_first_iteration_starts_again(alone):
    found = run_with_deaths(3, 3, {2: (0, "execute")})
    for rank, (losses, changes) in found.items():
        assert changes[0].iteration == 0 and changes[0].source in ("start", "memory"), (losses, changes)
        np.testing.assert_allclose(losses[ITERATIONS - 1], alone[-1], rtol=1e-9, err_msg=f"rank {rank}")


@pytest.mark.parametrize(
    ("size", "places", "most", "shape"),
    [
        (4, 2, 9, (2, 2, 1)),
        (3, 2, 9, (1, 3, 1)),
        (3, 2, 2, (3, 1, 1)),
        (5, 2, 9, (1, 5, 1)),
        (5, 2, 4, (5, 1, 1)),
        (6, 4, 9, (1, 6, 1)),
        (1, 4, 9, (1, 1, 1)),
        (6, None, 4, (2, 3, 1)),
    ],
)
def test_layouts_fit_as_many_ranks_as_there_are(size, places, most, shape):
    assert fit_layout(size, places, 1, most).shape == shape


def test_tensor_parts_must_divide():
    assert fit_layout(6, 2, 2, 9).shape == (1, 3, 2)
    with pytest.raises(InputError, match="got 3 ranks for 2 tensor parts"):
        fit_layout(3, 1, 2, 9)


@pytest.mark.parametrize(
    ("places", "options", "shares"),
    [
        (2, {}, 0),
        (2, {"copies": 1}, 0),
        (4, {"copies": 1}, 1),
        (2, {"copies": 1, "sharded": True}, 1),
        (4, {"copies": 1, "every": 2}, 2),
    ],
    ids=["2x2 without", "2x2", "pipeline of 4", "2x2 ZeRO-1", "every second"],
)
def test_a_rank_keeps_so_many_shares_of_state(places, options, shares):
    """Its neighbour's; at intervals its own too: the sum over the ranks, for these are not alike."""
    more = {name: value for name, value in options.items() if name != "sharded"}

    def run(comm):
        training = Enduring(comm, lambda comm: trainer_of(comm, places, options.get("sharded", False)), **more)
        for _ in range(3):
            training.iteration()
        states = training.kept.states()
        kept = sum(each.values.nbytes for each in states[1:])
        training.finish(lambda comm: None)
        # Runs are some bytes.
        assert kept <= training.kept.nbytes <= kept + 3000
        return kept, states[0].values.nbytes

    kept, own = np.sum(lanterne.spawn(4, run), axis=0)
    assert kept == shares * own


@pytest.mark.parametrize("sharded", [False, True])
def test_parts_are_what_the_state_says_and_have_all_of_it_together(sharded):
    def run(comm):
        trainer = trainer_of(comm, 2, sharded)
        for _ in range(2):
            trainer.iteration()
        whole, parts = trainer.state(), trainer.held()
        for part in parts:
            np.testing.assert_array_equal(part.values, whole.values[places_of(part.runs)])
            assert part.size == whole.size
        return np.concatenate([places_of(part.runs) for part in parts])

    places = np.concatenate(lanterne.spawn(4, run))
    counts = np.bincount(places)
    assert (counts == (1 if sharded else 2)).all()


def held(iteration, places, value):
    return TrainingState(iteration, iteration, 6, runs_of(np.array(places)), np.full(len(places), float(value)))


def test_the_latest_complete_state_is_taken():
    has = {
        0: [held(3, [0, 1, 2], 30), held(2, [0, 1, 2], 20)],
        1: [held(2, [3, 4, 5], 20), held(1, [3, 4, 5], 1)],
        2: [held(1, range(6), 1)],
    }

    def run(comm, without, wanted):
        state, latest = move_state(comm, [] if comm.rank in without else has[comm.rank], wanted)
        return None if state is None else (state.iteration, state.steps, state.values.tolist(), latest)

    assert lanterne.spawn(3, run, (), None) == [(2, 2, [20.0] * 6, 3)] * 3
    assert lanterne.spawn(3, run, (), np.array([[4, 1], [1, 2]])) == [(2, 2, [20.0] * 3, 3)] * 3
    assert lanterne.spawn(3, run, (1,), None) == [(1, 1, [1.0] * 6, 3)] * 3
    assert lanterne.spawn(3, run, (2, 0), None) == [None] * 3


def test_each_rank_gets_the_places_that_it_wants_whatever_overlaps():
    def run(comm, seed):
        drawn = np.random.default_rng((seed, comm.rank))
        mine = [np.flatnonzero(drawn.random(40) < 0.5) for _ in range(2)] + [np.arange(comm.rank, 40, 3)]
        parts = [TrainingState(5, 9, 40, runs_of(places), 100.0 + places) for places in mine if len(places)]
        wanted = drawn.permutation(40)[: drawn.integers(0, 40)]
        received, receive = [], comm.start_recv
        comm.start_recv = lambda array, *args, **more: received.append(array) or receive(array, *args, **more)
        state, _ = move_state(comm, parts, runs_of(wanted))
        np.testing.assert_array_equal(state.values, 100.0 + wanted)
        assert sum(map(len, received)) == len(np.setdiff1d(wanted, np.concatenate(mine))), "each place crosses once"

    for seed in range(5):
        lanterne.spawn(3, run, seed)
