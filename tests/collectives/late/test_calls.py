"""Calls that find out who is late, between threads: results, and what a rank that does not come or disagrees does."""

import os
import random
import threading
import time

import numpy as np
import pytest

from lanterne.collectives.communicator import Communicator, core_of
from lanterne.collectives.execute import plans
from lanterne.collectives.jobs import spawn
from lanterne.collectives.late import calls as late
from lanterne.collectives.late import options as late_options
from lanterne.collectives.late.calls import GRACE_S, LateRequest
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology, nodes_of
from lanterne.errors import InputError, PeerFailed, TransportTimeout
from lanterne.transport.board import sequencer
from lanterne.transport.local import LocalWorld
from lanterne.transport.machine import THIS_MACHINE

# A network so slow that a small all_reduce is worth asking the board.
SLOW = CostModel(1e-4, 1 / 50e6)
COUNT = 1 << 16


@pytest.fixture(autouse=True)
def cores_do_not_matter(monkeypatch):
    """Calls ask from the same size on, whether ranks share cores here or not."""
    monkeypatch.setattr(late, "SHARED", 1)


def check(comm, number, count=COUNT, **options):
    """One all_reduce of whole numbers whose every element is known; the number of wrong ones."""
    n, index = comm.world_size, np.arange(count) % 13
    out = np.full(count, -1, np.float32)
    comm.all_reduce((index + comm.rank + number % 5).astype(np.float32), out, **options)
    return int(np.count_nonzero(out != (index + number % 5) * n + n * (n - 1) // 2))


def run_late(comm, calls, late_rank, delay_s, count=COUNT):
    comm.tuning.adopt(SLOW, "test")
    wrong = 0
    for number in range(calls):
        comm.barrier()
        if comm.rank == late_rank:
            time.sleep(delay_s)
        wrong += check(comm, number, count)
    comm.arrivals()  # Reports the calls that did not ask, which count once every rank has.
    comm.barrier()
    return wrong, comm.arrivals()


@pytest.mark.parametrize("n", [3, 8])
def test_others_begin_without_the_late_rank(n):
    for wrong, arrivals in spawn(n, run_late, 4, 1, 0.3):
        assert wrong == 0, (wrong, arrivals)
        assert arrivals.calls == 4, (wrong, arrivals)
        # The first call also makes its schedules, on whichever rank comes to that first; and machines are busy.
        assert arrivals.begun_early >= 2, (wrong, arrivals)
        assert arrivals.last[1] >= 3, (wrong, arrivals)
        assert arrivals.late_rank(delay_s=0.05) == 1, (wrong, arrivals)


def test_every_rank_has_the_same_arrivals():
    documents = [arrivals.to_json() for _, arrivals in spawn(4, run_late, 5, 2, 0.02)]
    assert all(document == documents[0] for document in documents)


class Spying:
    """A LocalTransport that keeps when this rank posted what to whom."""

    def __init__(self, inner, posts):
        self._inner, self._posts = inner, posts

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def _post(self, ops):
        self._posts += [(time.monotonic(), self._inner.rank, op.peer) for op in ops if op.nbytes > 1024]
        return self._inner._post(ops)


def test_nothing_is_posted_with_the_late_rank_before_it_comes():
    n, late_rank, posts, came = 4, 2, [], []
    world = LocalWorld(n)

    def run(rank):
        comm = Communicator(Spying(world.transport(rank, 20), posts))
        comm.tuning.adopt(SLOW, "test")
        if rank == late_rank:
            time.sleep(0.3)
            came.append(time.monotonic())
        assert check(comm, 0) == 0

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    before = [(rank, peer) for at_s, rank, peer in posts if at_s < came[0]]
    assert before, "the others did not begin"
    assert all(late_rank not in pair for pair in before)
    assert any(late_rank in (rank, peer) for at_s, rank, peer in posts if at_s > came[0])


def randomised(comm, calls, seed):
    comm.tuning.adopt(SLOW, "test")
    shared, mine = random.Random(seed), random.Random(f"{seed} {comm.rank}")
    wrong = 0
    for number in range(calls):
        count = shared.choice((COUNT // 2, COUNT // 2 + 7, COUNT // 4 + 1))
        late_rank = shared.randrange(2 * comm.world_size)
        # Mostly too short to begin without it, now and then long enough on any machine.
        delay_s = shared.random() * 2e-3 if shared.random() < 0.97 else 0.05
        time.sleep(delay_s if comm.rank == late_rank else mine.choice((0, 0, 1e-4)))
        wrong += check(comm, number, count, op="sum")
    return wrong, settled(comm)


def run_two_late(comm, calls, delay_s):
    """Ranks 1 and 3 come `delay_s` late, the latter a little later still."""
    comm.tuning.adopt(CostModel(1e-4, 1 / 4e6), "test")
    wrong = 0
    for number in range(calls):
        comm.barrier()
        if comm.rank in (1, 3):
            time.sleep(delay_s + 0.01 * (comm.rank == 3))
        wrong += check(comm, number, 4 * COUNT)
    return wrong, dict(core_of(comm).late.ran), comm.arrivals()


@pytest.mark.timing
def test_others_begin_without_two_late_ranks():
    """Once the board has seen that the last two come late together."""
    found = spawn(6, run_two_late, 5, 0.5)
    for wrong, ran, arrivals in found:
        assert wrong == 0, (wrong, ran, arrivals)
        assert ran == found[0][1], (wrong, ran, arrivals)
        assert sum(count for choice, count in ran.items() if choice.startswith("late_group/")) >= 2, (
            wrong,
            ran,
            arrivals,
        )
        assert arrivals.begun_early >= 2, (wrong, ran, arrivals)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "calls"), [(3, 300), (4, 400), (5, 250)])
def test_many_random_delays(n, calls):
    for wrong, arrivals in spawn(n, randomised, calls, n, timeout_s=60):
        assert wrong == 0, (wrong, arrivals)
        assert arrivals.calls == calls, (wrong, arrivals)
        assert 0 < arrivals.begun_early < calls, (wrong, arrivals)
        assert (arrivals.last > 0).all(), (wrong, arrivals)


def test_random_delays():
    for wrong, arrivals in spawn(4, randomised, 150, 1, timeout_s=60):
        assert wrong == 0, (wrong, arrivals)
        assert arrivals.calls == 150, (wrong, arrivals)


def one_stays_away(comm, absent):
    """Call 0 is whole; `absent` misses call 1, until long after; calls 2 and 3 are whole again."""
    comm.tuning.adopt(SLOW, "test")
    assert check(comm, 0) == 0
    if comm.rank == absent:
        time.sleep(1.0)
        with pytest.raises(TransportTimeout, match="after the others"):
            check(comm, 1)
    else:
        with pytest.raises(TransportTimeout) as raised:
            check(comm, 1, timeout_s=0.3)
        assert raised.value.peers == (absent,)
        assert f"rank {absent}" in str(raised.value)
    assert check(comm, 2) == 0
    assert check(comm, 3, algorithm="ring") == 0
    return check(comm, 4)


@pytest.mark.parametrize("absent", [0, 3])
def test_the_group_goes_on_after_a_timeout(absent):
    assert spawn(4, one_stays_away, absent, timeout_s=20) == [0] * 4


def queue_without(comm, absent, step):
    """Three calls at once, which `absent` starts long after, to every `step`th element; then a whole one."""
    comm.tuning.adopt(SLOW, "test")
    x, outs = np.full(COUNT, comm.rank, np.float32), [np.empty(step * COUNT, np.float32)[::step] for _ in range(3)]
    assert check(comm, 0) == 0
    if comm.rank == absent:
        time.sleep(1.0)
    requests = [comm.start_all_reduce(x, out) for out in outs]
    for number, request in enumerate(requests):
        started_s = time.monotonic()
        with pytest.raises(TransportTimeout, match=f"rank {absent}|after the others") as raised:
            request.wait(20 if number else 0.3)
        assert raised.value.peers == (absent,) and (not number or time.monotonic() < started_s + 10), (number, request)
        with pytest.raises(TransportTimeout):
            request.test()
    return check(comm, 1)


@pytest.mark.parametrize(("absent", "step"), [(0, 1), (3, 1), (0, 2)])
def test_every_call_behind_one_that_a_rank_misses_ends_with_it(absent, step):
    assert spawn(4, queue_without, absent, step, timeout_s=20) == [0] * 4


def late_for_a_queue(comm, late_rank, delay_s):
    """Six calls at once, three of each size; the order in which they end here, and what ran."""
    comm.tuning.adopt(SLOW, "test")
    n, wrong = comm.world_size, 0
    for number in range(3):
        counts = [COUNT, COUNT, COUNT // 2, COUNT // 2, COUNT, COUNT // 2]
        inputs = [np.full(count, comm.rank + index + number, np.float32) for index, count in enumerate(counts)]
        outs = [np.empty_like(x) for x in inputs]
        comm.barrier()
        if comm.rank == late_rank:
            time.sleep(delay_s)
        requests = [comm.start_all_reduce(x, out) for x, out in zip(inputs, outs, strict=True)]
        requests[-1].wait()
        assert all(request.done for request in requests), f"queue {number}: a later call ended first"
        wrong += sum(int(np.count_nonzero(y != n * (n - 1) / 2 + n * (i + number))) for i, y in enumerate(outs))
    return wrong, dict(core_of(comm).late.ran), comm.arrivals().begun_early


@pytest.mark.timing
def test_others_begin_a_whole_queue_without_the_late_rank():
    found = spawn(4, late_for_a_queue, 2, 1.0)
    assert all(each == found[0] for each in found)
    wrong, ran, begun_early = found[0]
    assert wrong == 0 and sum(ran.values()) == 18
    # On any machine a second is long enough for most of them.
    assert begun_early >= 9


def stays_away_from_a_free_call(comm, absent):
    """Calls until one is free, which `absent` misses: it is named, and the communicator is closed."""
    comm.tuning.adopt(SLOW, "test")
    while not core_of(comm).late._free:
        comm.barrier()
        assert check(comm, 0) == 0
    with pytest.raises(TransportTimeout) as raised:
        if comm.rank == absent:
            time.sleep(1.0)
        check(comm, 1, timeout_s=0.3)
    assert raised.value.peers == (absent,) and core_of(comm).late.number
    with pytest.raises(TransportTimeout):
        check(comm, 2)
    return comm.rank


@pytest.mark.parametrize("absent", [0, 2])
def test_a_free_call_that_a_rank_misses_names_it_and_closes(absent, monkeypatch):
    monkeypatch.setattr(sequencer, "FREE_BELOW_S", 1.0)
    monkeypatch.setattr(sequencer, "ASKING_S", 1.0)
    with pytest.raises(TransportTimeout, match=f"rank {absent}"):
        spawn(3, lambda comm: stays_away_from_a_free_call(comm, absent) and core_of(comm).check_open(), timeout_s=20)


def two_stay_away(comm):
    comm.tuning.adopt(SLOW, "test")
    if comm.rank in (1, 2):
        time.sleep(0.8)
    with pytest.raises(TransportTimeout) as raised:
        check(comm, 0, timeout_s=0.2)
    assert raised.value.peers == (1, 2)
    return check(comm, 1)


@pytest.mark.timing
def test_two_absent_ranks_are_both_named():
    assert spawn(4, two_stay_away, timeout_s=20) == [0] * 4


def comes_with(comm, count, delay_s, errors):
    comm.tuning.adopt(SLOW, "test")
    if comm.rank == 2:
        time.sleep(delay_s)
    try:
        check(comm, 0, count if comm.rank == 2 else COUNT)
    except InputError as error:
        errors[comm.rank] = error
        raise


@pytest.mark.parametrize("delay_s", [0, 0.05, 0.3])
def test_another_size_is_an_error_on_all(delay_s):
    errors = {}
    with pytest.raises(InputError, match=f"rank 2 got .*count={COUNT // 2}"):
        spawn(4, comes_with, COUNT // 2, delay_s, errors, timeout_s=20)
    assert set(errors) == {0, 1, 2, 3}


def dies(comm):
    comm.tuning.adopt(SLOW, "test")
    if comm.rank == 1:
        time.sleep(0.2)
        raise KeyError("gone")
    with pytest.raises(PeerFailed) as raised:
        check(comm, 0)
    assert raised.value.rank == 1


def test_a_rank_that_dies_before_it_comes():
    with pytest.raises(KeyError):
        spawn(3, dies, timeout_s=GRACE_S + 20)


def two_in_flight(comm):
    comm.tuning.adopt(SLOW, "test")
    inputs = [np.full(COUNT, comm.rank + 10 * i, np.float32) for i in range(3)]
    outs = [np.empty(COUNT, np.float32) for _ in inputs]
    if comm.rank == 0:
        time.sleep(0.1)
    requests = [comm.start_all_reduce(x, y) for x, y in zip(inputs, outs, strict=True)]
    requests.insert(1, comm.start_all_reduce(inputs[0], inputs[0], algorithm="ring"))
    for request in reversed(requests):
        request.wait()
    n = comm.world_size
    errors = [float(out[COUNT // 2]) - n * (n - 1) / 2 - 10 * i * n for i, out in enumerate(outs)]
    return errors, comm.arrivals().begun_early


@pytest.mark.timing
def test_calls_in_flight_keep_their_order():
    for errors, begun_early in spawn(4, two_in_flight, timeout_s=20):
        assert errors == [0, 0, 0], (errors, begun_early)
        assert begun_early >= 1, (errors, begun_early)


def of_halves(comm):
    comm.tuning.adopt(SLOW, "test")
    half = comm.split(comm.rank % 2)
    comm.arrivals()  # Reports the calls of the split, which count once every rank has.
    comm.barrier()
    before = comm.arrivals().calls
    wrong = sum(check(half, number) + check(comm, number) for number in range(3))
    return wrong, calls_seen(half, 3), calls_seen(comm, before + 3) - before


def calls_seen(comm, expected):
    """The calls that the board has told of; of those that did not ask it hears afterwards."""
    deadline = time.monotonic() + 10
    while (calls := comm.arrivals().calls) < expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return calls


def test_groups_have_boards_of_their_own():
    assert spawn(6, of_halves, timeout_s=20) == [(0, 3, 3)] * 6


def never_asks(comm, count, **attributes):
    comm.tuning.adopt(SLOW, "test")
    for name, value in attributes.items():
        setattr(comm, name, value)
    if comm.rank == 1:
        time.sleep(0.1)
    wrong = check(comm, 0, count)
    return wrong, comm.arrivals().calls


def test_deterministic_asks_nobody():
    assert spawn(3, lambda comm: never_asks(comm, COUNT, deterministic=True)) == [(0, 0)] * 3


def settled(comm):
    """The arrivals once all ranks have reported."""
    comm.barrier()
    comm.arrivals()
    comm.barrier()
    return comm.arrivals()


def small(comm, calls):
    comm.tuning.adopt(SLOW, "test")
    for number in range(calls):
        comm.barrier()
        if comm.rank == 1:
            time.sleep(0.02)
        assert check(comm, number, 1 << 13) == 0, number
    assert core_of(comm).late.number == 0, "one asked"
    return settled(comm)


def asks(comm, ranks_here):
    comm.tuning.adopt(SLOW, "test")
    core_of(comm).pauses = THIS_MACHINE.pauses(ranks_here)
    return [
        core_of(comm).late.policy("all_reduce", nbytes, on_host=True) is not None for nbytes in (128 << 10, 512 << 10)
    ]


def test_where_ranks_share_cores_only_longer_calls_ask(monkeypatch):
    monkeypatch.setattr(late, "SHARED", 3)
    assert spawn(4, asks, 1) == [[True, True]] * 4
    assert spawn(4, asks, 10 * os.cpu_count()) == [[False, True]] * 4


def test_small_calls_ask_nobody_but_report():
    for arrivals in spawn(3, small, 70):
        assert (arrivals.calls, arrivals.begun_early) == (70, 0), arrivals
        assert arrivals.late_rank(delay_s=0.01) == 1, arrivals


def short_then_late(comm):
    """30 punctual calls, then the same rank late in each of 8."""
    # So slow that what a busy machine does to a rank is not late.
    comm.tuning.adopt(CostModel(1e-3, 1 / 5e6), "test")
    wrong = 0
    for number in range(38):
        comm.barrier()
        if number >= 30 and comm.rank == 2:
            time.sleep(0.4)
        wrong += check(comm, number)
    return wrong, settled(comm)


def test_short_punctual_calls_do_not_ask_each_time(monkeypatch):
    monkeypatch.setattr(sequencer, "FREE_BELOW_S", 1.0)
    asked = []
    inner = sequencer.Sequencer.arrive

    def arrive(board, rank, *rest, **options):
        asked.append(rank)
        return inner(board, rank, *rest, **options)

    monkeypatch.setattr(sequencer.Sequencer, "arrive", arrive)
    for wrong, arrivals in spawn(4, short_then_late):
        assert wrong == 0, (wrong, arrivals)
        assert arrivals.calls == 38, (wrong, arrivals)
        # At most FREE_CALLS go by before the delays are seen.
        assert arrivals.begun_early >= 8 - sequencer.FREE_CALLS - 1, (wrong, arrivals)
    assert len(asked) < 4 * 38
    assert len({asked.count(rank) for rank in range(4)}) == 1


def test_in_place_and_mean():
    def run(comm):
        comm.tuning.adopt(SLOW, "test")
        x = np.full(COUNT, comm.rank, np.float32)
        if comm.rank == 0:
            time.sleep(0.5)
        comm.all_reduce(x, x, op="mean")
        return x.min(), x.max(), comm.arrivals().begun_early

    assert spawn(5, run) == [(2.0, 2.0, 1)] * 5


def cut_short(comm, delay_s):
    """Calls to which rank 1 comes before the others can have summed up; how many elements are wrong."""
    comm.tuning.adopt(CostModel(1e-4, 1 / 1e6), "test")
    wrong = 0
    for number in range(5):
        comm.barrier()
        if comm.rank == 1:
            time.sleep(delay_s)
        wrong += check(comm, number)
    comm.barrier()
    return wrong


def test_short_delays_cut(monkeypatch):
    """By the model the reduce-scatter takes 0.22 s, so half of it is done by then."""
    do, choices = LateRequest._do, [set() for _ in range(4)]

    def seen(request, step):
        if step.record is not None:
            choices[request._communicator.rank].add(step.record.choice)
        return do(request, step)

    monkeypatch.setattr(LateRequest, "_do", seen)
    assert spawn(4, cut_short, 0.1) == [0] * 4
    assert all(any(choice.startswith("late_hybrid/") for choice in its) for its in choices)


def found_out(comm, hosts=None):
    comm.tuning.adopt(CostModel(1e-4, 1 / 5e6), "test")
    if hosts is not None:
        core_of(comm).hosts = comm.hosts = tuple(hosts)
        inside = LinkClass(INSIDE, CostModel(1e-5, 1e-9), tuple((rank,) for rank in range(len(hosts))))
        nodes = nodes_of(hosts)
        nic = LinkClass(NIC, CostModel(1e-4, 1 / 5e6), nodes)
        comm.tuning.adopt(nic.model, "test", (), Topology(nodes, (inside, nic)))
    x, y = np.ones(1 << 16, np.float32), np.empty(1 << 16, np.float32)
    for number in range(4):
        if comm.rank == 2:
            time.sleep(0.3)
        comm.all_reduce(x, y)
        assert (y == 5).all(), number
    return sum(count for choice, count in core_of(comm).late.ran.items() if choice)


def test_of_many_ranks_the_late_one_is_found_out(monkeypatch):
    """As of a thousand: options by law, each rank its own part."""
    monkeypatch.setattr(late, "MAX_PRICED_RANKS", 2)
    monkeypatch.setattr(late_options, "MAX_PRICED_RANKS", 2)
    monkeypatch.setattr(plans, "MAX_CHECKED_RANKS", 2)
    assert min(spawn(5, found_out)) > 0
    assert min(spawn(5, found_out, "abcba")) > 0
