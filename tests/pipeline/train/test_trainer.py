"""Training on many ranks: the same losses and weights as one process, whatever the plan, copies, parts and changes."""

from dataclasses import replace

import numpy as np
import pytest

import lanterne
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology
from lanterne.errors import InputError, LanterneError
from lanterne.pipeline.model.stage_gpt import gpt
from lanterne.pipeline.model.text import Batches
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import SCHEDULERS
from lanterne.pipeline.train.adam import Adam
from lanterne.pipeline.train.rank_layout import Layout, make_layout
from lanterne.pipeline.train.trainer import Trainer, plans

TOTAL, ITERATIONS = 8, 4
# Something to learn: on noise, what little rounding differs grows a thousandfold within fifty steps of Adam.
SENTENCE = b"Whoever comes in last carries the lantern, and nobody on the road before him has to wait for it. "
TOKENS = np.frombuffer(SENTENCE * 8, np.uint8) % 11
BATCHES = Batches(TOKENS, TOTAL, rows=2, length=6, seed=3)
SCHEDULES = [name for name in SCHEDULERS if name not in ("alternating", "optimal")]


def model(tensor=None):
    return gpt(vocabulary=11, length=6, width=8, heads=4, blocks=3, rows=2, tensor=tensor)


def trainer(comm, planned, **options):
    options = {"dtype": np.float64} | options
    return Trainer(comm, model, BATCHES, planned, optimizer=lambda: Adam(0.01), **options)


def made(scheduler, stages, microbatches=(TOTAL,)):
    return plans(Problem(stages, TOTAL, 2, 2, 1, link_latency=1), scheduler, microbatches)


def train(comm, planned, iterations=ITERATIONS, **options):
    """(losses, the state at the end) of any training; every rank has the same of both."""
    training = trainer(comm, planned, **options)
    losses = np.array([training.iteration().losses for _ in range(iterations)])
    return losses, training.state()


@pytest.fixture(scope="module")
def one_process():
    return lanterne.spawn(1, train, made("1f1b", 1))[0]


def same(results, one_process, rtol=1e-10):
    for rank, (losses, state) in enumerate(results):
        at = f"rank {rank}"
        np.testing.assert_allclose(losses, one_process[0], rtol=rtol, err_msg=at)
        for name, share, atol in (("parameters", 1e-7, 1e-10), ("mean", 1e-6, 1e-12)):
            found, wanted = state.vectors[name], one_process[1].vectors[name]
            np.testing.assert_allclose(found, wanted, rtol=share, atol=atol, err_msg=at)
        assert (state.iteration, state.steps) == (ITERATIONS, ITERATIONS), (losses, state)


FIGURE = {np.float32: 1e-5, np.float64: 1e-10}


@pytest.fixture(scope="module")
def fifty_iterations():
    """dtype -> losses of one process."""
    one = made("1f1b", 1)
    return {
        dtype: lanterne.spawn(1, lambda comm, dtype=dtype: train(comm, one, 50, dtype=dtype))[0][0] for dtype in FIGURE
    }


LONG = [(name, np.float32) for name in SCHEDULES if name != "best"] + [("1f1b", np.float64)]


@pytest.mark.parametrize(
    ("scheduler", "dtype"),
    [("best", np.float32), ("zb_v", np.float64), *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_schedule_has_the_losses_of_one_process_for_fifty_iterations(scheduler, dtype, fifty_iterations):
    planned = made(scheduler, 2, (TOTAL // 2,) * 2)
    losses = [losses for losses, _ in lanterne.spawn(4, lambda comm: train(comm, planned, 50, dtype=dtype))]
    np.testing.assert_allclose(losses, [fifty_iterations[dtype]] * 4, rtol=FIGURE[dtype])


def test_on_nodes_copies_share_one_and_the_losses_stay(one_process):
    """As the communicator was told of its nodes: pipelines run across these."""
    nodes, alone = ((0, 2), (1, 3)), tuple((rank,) for rank in range(4))
    links = LinkClass(INSIDE, CostModel(1e-6, 1e-10), alone), LinkClass(NIC, CostModel(1e-5, 1e-9), nodes)
    topology, planned = Topology(nodes, links), made("1f1b", 2, (4, 4))

    def told(comm):
        comm.tuning.adopt(topology.slowest, "test", (), topology)
        return trainer(comm, planned).layout.ranks, *train(comm, planned)

    found = lanterne.spawn(4, told)
    assert {ranks for ranks, *_ in found} == {(((0,), (1,)), ((2,), (3,)))}
    same([trained for _, *trained in found], one_process)


@pytest.mark.parametrize(
    ("stages", "microbatches", "parts", "sharded"),
    [
        (1, (4, 4), 1, False),
        (2, (5, 3), 1, True),
        (1, (1, 3, 4), 1, True),
        (2, (8,), 2, False),
        (2, (4, 4), 2, False),
        (2, (4, 4), 2, True),
        (1, (8,), 4, False),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_copies_and_parts_train_as_one_process_does(stages, microbatches, parts, sharded, one_process):
    layout = make_layout(stages * len(microbatches) * parts, stages, len(microbatches), parts)
    planned = made("zb_h1", stages, microbatches)
    same(spawned(train, planned, layout=layout, sharded=sharded), one_process)


def spawned(function, *args, layout, **options):
    """The results of all ranks of `layout`."""
    return lanterne.spawn(int(np.prod(layout.shape)), lambda comm: function(comm, *args, layout=layout, **options))


CHANGES = {
    "other order": lambda: {"plans": made("gpipe", 2, (4, 4))},
    "other placement": lambda: {"plans": made("zb_v", 2, (4, 4))},
    "other microbatches": lambda: {"plans": made("zb_h1", 2, (6, 2))},
    "other ranks": lambda: {"layout": Layout((((3,), (0,)), ((2,), (1,))))},
    "other cut": lambda: {"starts": (0, 2, 8)},
    "other shape": lambda: {"plans": made("1f1b", 1, (4, 4)), "layout": make_layout(4, 1, 2, 2)},
}


@pytest.mark.parametrize(
    ("change", "sharded"),
    [*((change, index % 2 == 0) for index, change in enumerate(CHANGES)), ("other shape", True)],
)
def test_what_changes_between_iterations_changes_no_loss(change, sharded, one_process):
    def job(comm):
        training = trainer(comm, made("zb_h1", 2, (4, 4)), sharded=sharded)
        losses = [training.iteration().losses for _ in range(2)]
        training.change(**CHANGES[change]())
        losses += [training.iteration().losses for _ in range(ITERATIONS - 2)]
        return np.array(losses), training.state()

    same(lanterne.spawn(4, job), one_process)


@pytest.mark.parametrize("sharded", [False, True], ids=["all_reduce", "zero1"])
def test_a_state_goes_on_anywhere(sharded, one_process):
    """Taken from one process after two iterations, put into eight that shard and cut it; and back."""
    first, state = lanterne.spawn(1, train, made("1f1b", 1), 2)[0]

    def job(comm):
        training = trainer(comm, made("zb_h1", 2, (4, 4)), layout=make_layout(8, 2, 2, 2), sharded=sharded)
        training.restore(state)
        again = training.state()
        assert (again.iteration, again.steps) == (state.iteration, state.steps)
        np.testing.assert_array_equal(again.values, state.values)
        return np.array([*first, *(training.iteration().losses for _ in range(ITERATIONS - 2))]), training.state()

    same(lanterne.spawn(8, job), one_process)


def failure(world_size, function):
    """What every rank raises."""

    def attempt(comm):
        with pytest.raises(LanterneError) as caught:
            function(comm)
        return str(caught.value)

    return lanterne.spawn(world_size, attempt, timeout_s=20)


def test_what_does_not_fit():
    two = made("zb_h1", 2, (4, 4))

    def words(function, expected, world_size=4):
        assert all(expected in word for word in failure(world_size, function)), expected

    words(lambda comm: trainer(comm, two), "got 6 for 2 stages x 2 copies x 1 tensor parts, expected 4", 6)
    words(lambda comm: trainer(comm, two, layout=make_layout(4, 2)), "got (2, 2, 1) on 3 ranks, expected as many", 3)
    words(lambda comm: trainer(comm, two, layout=make_layout(4, 1, 4)), "got 2 for 4 copies, expected one for each")
    words(lambda comm: trainer(comm, made("zb_h1", 1, (4, 4)), layout=make_layout(4, 2)), "got 1 ranks, expected 2")
    words(lambda comm: trainer(comm, (two[0], made("zb_v", 2, (4,))[0])), "of one placement")
    words(lambda comm: trainer(comm, two, starts=(0, 9, 8)), "expected 3 ascending numbers from 0 to 8")
    words(lambda comm: trainer(comm, two, starts=(0, 2, 4, 8)), "expected 3 ascending numbers from 0 to 8")
    words(lambda comm: trainer(comm, made("zb_h1", 2, (4, 3))).iteration(), "got 8 microbatches, expected 7")
    other = made("gpipe", 2, (4, 4))
    words(lambda comm: trainer(comm, other if comm.rank == 3 else two), "than on rank")


def test_a_state_of_another_model_is_refused():
    state = lanterne.spawn(1, train, made("1f1b", 1), 1)[0][1]
    short = replace(state, size=state.size - 3)

    def job(comm):
        with pytest.raises(InputError, match="got 8598 numbers, expected 8601"):
            trainer(comm, made("1f1b", 2)).restore(short)

    lanterne.spawn(2, job)


@pytest.mark.parametrize(
    ("places", "microbatches", "sharded"),
    [(2, (TOTAL,), False), (4, (TOTAL,), True), (2, (7, 1), False), (2, (3, 5), True)],
)
def test_microbatches_that_go_both_ways(places, microbatches, sharded, one_process):
    """Two stages on each rank, whose weights the rank opposite has too; one copy's only microbatch goes one way."""
    problem = Problem(places, TOTAL, 2, 2, 1, link_latency=1)
    planned = plans(problem, "crosspipe", microbatches, placement="bidirectional")
    ranks = places * len(microbatches)
    layout = make_layout(ranks, places, len(microbatches))
    found = lanterne.spawn(ranks, lambda comm: train(comm, planned, layout=layout, sharded=sharded))
    same(found, one_process)


def test_a_stage_that_raises_ends_every_copy():
    def job(comm):
        training = trainer(comm, made("zb_h1", 2, (4, 4)))
        training.iteration()
        if comm.rank == 1:
            training.stages[1].backward_weight = lambda *args: 1 / 0
        training.iteration()

    for word in failure(4, job):
        assert "pipeline rank 1, W1.0: ZeroDivisionError: division by zero" in word, word


def any_training(random, world_size):
    """Options of a training that fits `world_size` ranks: (plans, options), whatever `random` says."""
    shapes = [
        (copies, places, world_size // copies // places)
        for copies in (1, 2, 3)
        for places in (1, 2, 3, 4)
        if world_size % (copies * places) == 0 and 4 % (world_size // copies // places) == 0
    ]
    copies, places, parts = shapes[random.integers(len(shapes))]
    cuts = np.sort(random.choice(np.arange(1, TOTAL), copies - 1, replace=False))
    microbatches = tuple(np.diff([0, *cuts, TOTAL]).tolist())
    while True:
        try:
            planned = made(SCHEDULES[random.integers(len(SCHEDULES))], places, microbatches)
            break
        except InputError:
            continue  # this one cannot plan so few microbatches
    order = random.permutation(world_size).reshape(copies, places, parts)
    num_stages = planned[0].plan.placement.num_stages
    inner = np.sort(random.choice(np.arange(1, 8), num_stages - 1, replace=False)).tolist()
    return planned, {"layout": Layout(order.tolist()), "starts": (0, *inner, 8)}


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
def test_any_training_that_changes_to_any_other(seed, one_process):
    random = np.random.default_rng(seed)
    world_size = int(random.choice([2, 4, 6, 8]))
    sharded = bool(random.integers(2))
    phases = [any_training(random, world_size) for _ in range(ITERATIONS)]

    def job(comm):
        planned, options = phases[0]
        training = trainer(comm, planned, sharded=sharded, **options)
        losses = [training.iteration().losses]
        for planned, options in phases[1:]:
            training.change(planned, **options)
            losses.append(training.iteration().losses)
        training.close()
        return np.array(losses), training.state()

    same(lanterne.spawn(world_size, job), one_process)
