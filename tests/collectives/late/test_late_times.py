"""What calls with a late rank cost, in virtual time (timed_world.py): the same number on every machine.

Times are x: from the last rank's call to the last completion, in multiples of what a port takes for all buffers.
"""

from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np
import pytest
from layer_schedules import late_all_gather, late_reduce_scatter
from timed_world import RATE_BYTES_PER_S, TimedWorld

from lanterne.collectives.algorithms.late import any_arrival
from lanterne.collectives.auto import pacing
from lanterne.collectives.communicator import Communicator, core_of
from lanterne.collectives.execute.compile_program import _ActionLog
from lanterne.collectives.late import calls as late
from lanterne.collectives.late import options as late_options
from lanterne.collectives.late.turn import COMPLETE, Turn
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology
from lanterne.transport.board.arrival_bound import least_after
from lanterne.transport.board.late_policy import from_text
from lanterne.transport.board.sequencer import LEAST_TOOK

HOSTS, COUNT = 8, 1 << 18
UNIT_S = 4 * COUNT / RATE_BYTES_PER_S
MODEL = CostModel(1e-4, 1 / RATE_BYTES_PER_S, serial_messages=True)
# A call that waits for all, or for the late rank's join and nothing else, at best.
BOUND = 2 * (HOSTS - 1) / HOSTS


class Job:
    """HOSTS ranks, whose calls begin and end as time passes."""

    def __init__(self, letter_s, slowdown=None, topology=None, count=COUNT):
        self.count, nodes = count, () if topology is None else topology.nodes
        self.world = TimedWorld(HOSTS, letter_s, slowdown, nodes)
        self.comms = [Communicator(transport) for transport in self.world.transports]
        for comm in self.comms:
            comm.tuning.adopt(MODEL, "test", (), topology)
            if topology is not None:
                node_of = {rank: str(number) for number, ranks in enumerate(nodes) for rank in ranks}
                core_of(comm).hosts = comm.hosts = tuple(node_of[rank] for rank in range(HOSTS))
            comm.timeout_s = 1e9

    def x(self, delays, calls=1):
        """The x of so many calls, started at once; rank r comes after delays[r] of all of them."""
        return self.left(delays, calls, gap=0.0) / calls

    def layers(self, delays, layers, *, queue, comms=None, algorithms=("auto", "auto")):
        """The x of an all_gather and a reduce_scatter of each of so many layers, as FSDP's backward pass has them.

        In multiples of what a port takes for all layers; `queue`: all are started at once, else each after the last.
        `comms`: of each rank, the communicator of each call (None: one for all); `algorithms` of the two.
        """
        world, unit_s, requests = self.world, layers * self.count * UNIT_S / COUNT, [[] for _ in self.comms]
        comms = comms or [[comm] * (2 * layers) for comm in self.comms]
        began, ended = [0.0] * HOSTS, [0.0] * HOSTS
        shards = [np.full(self.count // HOSTS, rank + 1, np.float32) for rank in range(HOSTS)]
        gradients = [np.full(self.count, rank + 1, np.float32) for rank in range(HOSTS)]
        gathered = np.empty((HOSTS, layers, self.count), np.float32)
        summed = np.empty((HOSTS, layers, self.count // HOSTS), np.float32)

        def start_next(rank):
            layer, reduces = divmod(len(requests[rank]), 2)
            comm, algorithm = comms[rank][2 * layer + reduces], algorithms[reduces]
            if reduces:
                call = comm.start_reduce_scatter(gradients[rank], summed[rank, layer], algorithm=algorithm)
            else:
                call = comm.start_all_gather(shards[rank], gathered[rank, layer], algorithm=algorithm)
            requests[rank].append(call)

        def start(rank):
            began[rank] = world.at_s
            for _ in range(2 * layers if queue else 1):
                start_next(rank)
            world.woken.add(rank)

        def poll(rank):
            cores, its = {core_of(comm) for comm in comms[rank]}, requests[rank]
            while any([core.progress() for core in cores]) or (its and its[-1].done and len(its) < 2 * layers):
                if its[-1].done and len(its) < 2 * layers:
                    start_next(rank)
            if not ended[rank] and len(its) == 2 * layers and all(each.done for each in its):
                ended[rank] = world.at_s

        for rank, delay in enumerate(delays):
            world.at(world.at_s + 0.01 + delay * unit_s, partial(start, rank))
        world.run([partial(poll, rank) for rank in range(HOSTS)], lambda: all(ended))
        assert (gathered == np.concatenate(shards)).all() and (summed == HOSTS * (HOSTS + 1) / 2).all()
        return (max(ended) - max(began)) / unit_s

    def more_comms(self, count):
        """Of each rank, so many communicators more."""
        found = [[Communicator(each, None, 1 + i) for i in range(count)] for each in self.world.transports]
        for comm in chain.from_iterable(found):
            comm.tuning.adopt(MODEL, "test", ())
            comm.timeout_s = 1e9
        return found

    def left(self, delays, calls, gap):
        """The same in multiples of one call's x, from the last start: calls begin `gap` x after one another."""
        world, unit_s = self.world, self.count * UNIT_S / COUNT
        requests, began, ended = [[] for _ in self.comms], [0.0] * HOSTS, [0.0] * HOSTS
        ins = [np.full(self.count, rank + 1, np.float32) for rank in range(HOSTS)]
        outs = [[np.full(self.count, -1, np.float32) for _ in range(calls)] for _ in self.comms]

        def start(rank, out):
            began[rank] = world.at_s
            requests[rank].append(self.comms[rank].start_all_reduce(ins[rank], out))
            world.woken.add(rank)

        def poll(rank):
            core = core_of(self.comms[rank])
            while core.progress():
                pass
            if not ended[rank] and len(requests[rank]) == calls and all(each.done for each in requests[rank]):
                ended[rank] = world.at_s

        for rank, delay in enumerate(delays):
            for number, out in enumerate(outs[rank]):
                world.at(world.at_s + 0.01 + (delay * calls + gap * number) * unit_s, partial(start, rank, out))
        world.run([partial(poll, rank) for rank in range(HOSTS)], lambda: all(ended))
        assert all((out == HOSTS * (HOSTS + 1) / 2).all() for its in outs for out in its)
        return (max(ended) - max(began)) / unit_s


@pytest.fixture(autouse=True)
def cores_do_not_matter(monkeypatch):
    """Calls ask from the same size on, whether ranks share cores here or not."""
    monkeypatch.setattr(late, "SHARED", 1)


@pytest.fixture(autouse=True, scope="module")
def rounds_can_be_made():
    """What begins with two ranks is loaded, so that the same calls begin by it in each run."""
    any_arrival.load().join()
    assert any_arrival.is_loaded()


@pytest.fixture
def one_after_the_other(monkeypatch):
    """A function that has calls end before those behind them go on."""

    def patch():
        inner = Turn.next
        monkeypatch.setattr(Turn, "next", lambda turn, before, room: inner(turn, before, room and before == COMPLETE))

    return patch


def late_by(delay):
    return [0.0] * (HOSTS - 1) + [delay]


def test_a_queue_with_a_late_rank(one_after_the_other):
    job = Job(letter_s=1e-3)
    long, short = job.x(late_by(1.1), calls=4), job.x(late_by(0.5), calls=4)
    # One pass of the late rank's buffers is 1; by 0.5 of all only some of the calls can be begun without it.
    assert long < 1.15 and short < 1.45
    one_after_the_other()
    assert job.x(late_by(1.1), calls=4) > long + 0.3
    assert job.x(late_by(0.5), calls=4) > short + 0.1


def test_two_late_ranks_together(monkeypatch):
    """The others begin without both once they know, and whole messages pass through the ports in turn: 1.33.

    Short ones, of which more meet.
    """
    monkeypatch.setattr(pacing, "LEAST_PIECE_NBYTES", 16 << 10)

    def x():
        job, delays = Job(letter_s=1e-3), [*late_by(0.0)[2:], 1.1, 1.1]
        job.x(delays)
        return job.x(delays)

    together = x()
    assert together < 1.35
    monkeypatch.setattr(_ActionLog, "limit_sends", lambda log, window: None)
    assert x() > together + 0.03


@pytest.mark.slow
def test_one_late_rank_of_large_calls():
    """Its own bytes, and no more than some chunks; of several calls in a queue the same."""
    job = Job(letter_s=1e-3, count=4 * COUNT)
    assert job.x(late_by(1.1)) < 1.05
    assert job.x(late_by(1.1), calls=6) < 1.04 and job.x(late_by(0.5), calls=6) < 1.5


@pytest.mark.parametrize("queue", [False, True])
def test_layers_of_fsdp_take_what_the_ring_takes(queue):
    """Twice (n-1)/n of all, whether each waits for the one before it or all are in a queue; docs/torch.md says why."""
    assert Job(letter_s=1e-3).layers(late_by(1.1), 4, queue=queue) < BOUND + 0.04


@pytest.mark.parametrize("layers", [1, 4])
def test_layers_of_fsdp_in_a_queue_could_take_one_pass(layers):
    """By schedules that know who is late, in calls that do not wait for each other; with nobody late they are worse."""
    job = Job(letter_s=1e-3, count=COUNT // 56 * 56)
    schedules = check(late_all_gather(HOSTS)), check(late_reduce_scatter(HOSTS))
    run = partial(job.layers, layers=layers, queue=True, comms=job.more_comms(2 * layers), algorithms=schedules)
    # In a first call ranks compare what they were given.
    assert run(late_by(0.0)) > BOUND
    assert run(late_by(2.0)) < 1.02


@pytest.mark.slow
@pytest.mark.parametrize(("delays", "bar"), [((1.1, 1.1), 1.22), ((0.5, 1.0, 1.5), 1.35)])
def test_several_late_ranks_of_large_calls(delays, bar):
    """8 ranks, 4 MiB; what the schedule's rounds alone take with two late is 1.20, letters 0.01.

    With half as long chunks 1.206 in place of 1.216; but each takes cores of which there is no end here.
    """
    job, delays = Job(letter_s=1e-3, count=4 * COUNT), [*late_by(0.0)[len(delays) :], *delays]
    job.x(delays)
    assert job.x(delays) < bar


EVENLY = [1.1 * rank / (HOSTS - 1) for rank in range(HOSTS)]


def choices_of(job):
    """How often each algorithm ran."""
    return core_of(job.comms[0]).late.ran


@pytest.mark.parametrize("delays", [EVENLY, EVENLY[::-1], [0.0, 0.3, 0.31, 0.5, 0.05, 0.9, 1.0, 0.2]])
def test_ranks_that_come_one_after_the_other_are_taken_in(delays):
    """From the first call on that knows: 1.04 to 1.07 of what ports allow; a ring takes 1.76."""
    job = Job(letter_s=1e-3, count=4 * COUNT)
    first = job.x(delays)
    times = [job.x(delays) for _ in range(3)]
    assert first > BOUND and max(times) < 1.10 * least_after(delays)
    assert choices_of(job)["any_arrival/64/4"] == 3


PAIRS = tuple((rank, rank + 1) for rank in range(0, HOSTS, 2))
IN_PAIRS = Topology(
    PAIRS,
    (
        LinkClass(INSIDE, replace(MODEL, beta_s_per_byte=0.02 / RATE_BYTES_PER_S), tuple((r,) for r in range(HOSTS))),
        LinkClass(NIC, MODEL, PAIRS),
    ),
)


@pytest.mark.parametrize("delays", [[0, 0, 0.3, 0.35, 0.7, 0.7, 1, 1.1], [0.9, 0.9, 0.6, 0.3, 0.1, 0.4, 0.5, 0.1]])
def test_hosts_whose_ranks_come_one_after_the_other_are_taken_in(delays):
    """Each with its last rank: 1.09 and 1.06 of what four ports allow; a ring of hosts takes 1.51."""
    job = Job(letter_s=1e-3, topology=IN_PAIRS, count=8 * COUNT)
    first = job.x(delays)
    times = [job.x(delays) for _ in range(3)]
    assert first > 1.5 and max(times) < 1.10 * least_after([max(delays[rank] for rank in pair) for pair in PAIRS])
    assert [name for name, count in choices_of(job).items() if count == 3] == ["any_arrival/64/2"]


@pytest.mark.parametrize("topology", [None, IN_PAIRS], ids=["alone", "pairs"])
@pytest.mark.parametrize(
    ("op", "dtype", "count"),
    [("mean", np.float32, 4 * COUNT - 77), ("max", np.int64, 4 * COUNT), ("sum", np.float64, 4 * COUNT - 77)],
)
def test_ranks_that_are_taken_in_get_the_right_result_in_place(op, dtype, count, topology):
    job = Job(letter_s=1e-3, topology=topology, count=count)
    world, rng = job.world, np.random.default_rng(count)
    for _ in range(2):
        arrays = [rng.integers(0, 800, count).astype(dtype) for _ in range(HOSTS)]
        expected = {"mean": np.mean, "max": np.max, "sum": np.sum}[op](arrays, axis=0).astype(dtype)
        requests = [None] * HOSTS

        def start(rank, arrays=arrays, requests=requests):
            requests[rank] = job.comms[rank].start_all_reduce(arrays[rank], arrays[rank], op=op)
            world.woken.add(rank)

        for rank, delay in enumerate(EVENLY):
            world.at(world.at_s + 0.01 + delay * 4 * count / RATE_BYTES_PER_S, partial(start, rank))
        polls = [core_of(comm).progress for comm in job.comms]
        world.run(polls, lambda requests=requests: all(each is not None and each.done for each in requests))
        assert all(np.array_equal(array, expected) for array in arrays)
    assert sum(count for name, count in choices_of(job).items() if name.startswith("any_arrival")) == 1


def test_ranks_that_are_taken_in_bring_letters_that_take_long():
    """Rounds are granted in time if a letter takes as long as two of them."""
    job = Job(letter_s=5e-3, count=4 * COUNT)
    job.x(EVENLY)
    assert job.x(EVENLY) < 1.25 * least_after(EVENLY)


def test_a_queue_of_calls_to_which_ranks_come_spread():
    job = Job(letter_s=1e-3, count=4 * COUNT)
    job.x(EVENLY, calls=2)
    assert job.x(EVENLY, calls=3) < BOUND + 0.02


def test_calls_are_priced_by_their_own_size():
    """Not as the next power of two, which takes up to twice as long: ranks then seem to arrive closer together."""
    late_ranks = core_of(Job(letter_s=1e-3).comms[0]).late
    whole, part = (from_text(late_ranks.policy("all_reduce", nbytes, on_host=True)) for nbytes in (16 << 20, 9 << 20))
    assert part.normal_s == pytest.approx(whole.normal_s * 9 / 16)
    assert [each.choice for each in part.options] == [each.choice for each in whole.options]
    for name in ("before_s", "join_s"):
        times = [[getattr(each, name) for each in policy.options] for policy in (whole, part)]
        assert times[1] == pytest.approx([9 / 16 * each for each in times[0]])


def test_what_calls_of_a_queue_took_is_counted_from_the_end_of_the_one_before():
    """Else the last ones seem to take several times what is predicted, and are begun in other ways."""
    job = Job(letter_s=1e-3)
    times = [job.x(late_by(1.1), calls=6) for _ in range(8)]
    assert max(times[2:]) == pytest.approx(min(times[2:]), 0.01)


def test_what_takes_longer_than_predicted_is_left(monkeypatch):
    """Nobody is really late, and rounds take twice what the board was told: from the fourth call on it knows."""
    monkeypatch.setattr(late_options, "ROUNDS_MORE", -32)
    job, delays = Job(letter_s=1e-3, count=4 * COUNT), [0.018 * rank for rank in range(HOSTS)]
    usual = job.x(delays)
    times = [job.x(delays) for _ in range(6)]
    assert choices_of(job)["any_arrival/64/4"] == LEAST_TOOK + 1
    assert times == pytest.approx([usual] * 6, 0.01)


@pytest.mark.slow
def test_buckets_of_a_slow_backward():
    """A bucket's time between starts, one rank behind by 1.1 of all: what is left after its last start, in buckets."""
    assert Job(letter_s=1e-3, count=4 * COUNT).left(late_by(1.1), calls=8, gap=1.0) < 1.3


def test_one_slow_nic_costs_what_its_bytes_do():
    """A rank at a quarter of the rate: 4 for its bytes. A ring takes 7, and a late rank beside it 6.3."""
    nodes = tuple((rank,) for rank in range(HOSTS))
    slowdown = [4.0 if rank == 5 else 1.0 for rank in range(HOSTS)]
    job = Job(1e-3, slowdown, Topology(nodes, (LinkClass(NIC, MODEL, nodes, tuple(slowdown)),)))
    delays = [[1.1 * (rank == late) for rank in range(HOSTS)] for late in (None, 2, 5)]
    nobody, other, slow = (job.x(each) for each in delays)
    assert max(other, slow) < 4.5
    assert nobody < 5.0
    assert Job(1e-3, slowdown).x(delays[0]) > 6.5


@pytest.mark.slow
@pytest.mark.parametrize("late", [0, 3, 7])
def test_one_late_rank_over_uneven_hosts(monkeypatch, late):
    """Hosts of 1, 3 and 4 ranks, 8 MiB: one pass of the buffer through each NIC, whoever is late."""
    nodes = ((0,), (1, 2, 3), (4, 5, 6, 7))
    inside = LinkClass(INSIDE, replace(MODEL, beta_s_per_byte=0.02 / RATE_BYTES_PER_S), tuple((r,) for r in range(8)))
    topology = Topology(nodes, (inside, LinkClass(NIC, MODEL, nodes)))

    def x():
        job, delays = Job(1e-3, topology=topology, count=8 * COUNT), [1.1 * (rank == late) for rank in range(HOSTS)]
        job.x(delays)
        return job.x(delays)

    assert x() < 1.1
    # With the credits of ranks of the largest node, and those of all nodes in one line.
    inner, alike = _ActionLog.limit_receives, tuple((rank, HOSTS + rank) for rank in range(HOSTS))
    monkeypatch.setattr(_ActionLog, "limit_receives", lambda log, window, rank, nodes: inner(log, window, rank, alike))
    monkeypatch.setattr(Topology, "sharers_of_nic", lambda topology, rank: topology.nic_sharers)
    assert x() > 1.15


def test_a_queue_without_one():
    job = Job(letter_s=1e-3)
    assert BOUND < job.x(late_by(0.0), calls=4) < BOUND + 0.15


def test_the_way_to_the_board_does_not_count_in_a_queue():
    near, far = (Job(letter_s).x(late_by(0.5), calls=4) for letter_s in (1e-4, 3e-3))
    assert far < near + 0.15
