"""Calls that find out who is late, under orders of events that are drawn from seeds.

The communicators and the board are the real ones, in a world that decides what happens next (ordered_world.py). In
every order each call ends alike on all ranks: with the right result, or with the same error, and the next call works.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from ordered_world import World

from lanterne.collectives.algorithms.late import any_arrival
from lanterne.collectives.communicator import Communicator, core_of
from lanterne.collectives.late import calls as late
from lanterne.collectives.schedule.cost import CostModel
from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology
from lanterne.errors import InputError, LanterneError, PeerFailed, TransportTimeout
from lanterne.transport.board import seat as board
from lanterne.transport.board import sequencer
from lanterne.transport.board.late_policy import ANY, Option, Start

SLOW = CostModel(1e-4, 1 / 50e6)
COUNT = 1 << 15
CALL = COUNT, "float32"
# After so many events nobody and nothing is starved any longer, and after four times as many an order has no end.
UNFAIR_STEPS = 10_000
# Calls that a rank has under way at once, at most; drawn for each rank.
IN_FLIGHT = 1, 2, 4


@pytest.fixture(autouse=True)
def cores_do_not_matter(monkeypatch):
    """Calls ask from the same size on, whether ranks share cores here or not."""
    monkeypatch.setattr(late, "SHARED", 1)


class Rank:
    """One rank's program: a call for each (count, dtype) of `calls`, some of IN_FLIGHT started at a time.

    Attributes: `outcomes`, of each complete call None or its error; `wrong`, elements of all results.
    """

    def __init__(self, world, rank, calls, topology=None):
        self.comm = Communicator(world.transports[rank])
        self.comm.tuning.adopt(SLOW, "test", (), topology)
        self.comm.timeout_s = 1e9
        self._calls, self._requests = calls, {}
        self.outcomes, self.wrong = [], 0

    @property
    def started(self):
        return len(self.outcomes) + len(self._requests)

    @property
    def done(self):
        return len(self.outcomes) == len(self._calls)

    def start(self):
        number = self.started
        count, dtype = self._calls[number]
        x = (np.arange(count) % 13 + self.comm.rank + number).astype(dtype)
        out = np.full_like(x, -1)
        try:
            self._requests[number] = self.comm.start_all_reduce(x, out), x, out
        except LanterneError as error:
            self._end(number, error)

    def poll(self):
        number = len(self.outcomes)
        if number not in self._requests:
            return
        request, x, out = self._requests[number]
        try:
            if not request.test():
                return
        except LanterneError as error:
            self._end(number, error)
            return
        n = self.comm.world_size
        expected = (x - self.comm.rank) * n + n * (n - 1) // 2
        self.wrong += int(np.count_nonzero(out != expected))
        self._end(number, None)

    def _end(self, number, error):
        self._requests.pop(number, None)
        self.outcomes.append(error)

    def die(self):
        """Make no further call; the board learns of it."""
        self.comm.transport.world.lose(core_of(self.comm).late.key, self.comm.rank)
        self._calls = self._calls[: self.started]

    def give_up(self):
        """Ask the board to end the call that this rank is in, as a wait does whose time is over."""
        number = len(self.outcomes)
        if number in self._requests:
            core_of(self.comm).late.seat.give_up(self._requests[number][0]._turn.number)


@pytest.fixture
def run():
    """Let `scripts`, every rank's calls, happen in the order of `seed`; the ranks."""

    def run(seed, scripts, may_start=lambda ranks, rank: True, impatient=lambda call: 0.0, topology=None):
        world = World(len(scripts), seed)
        ranks = [Rank(world, rank, calls, topology) for rank, calls in enumerate(scripts)]
        reluctant = world.random.choices((1, 0.1, 0.01), k=len(ranks))
        in_flight = world.random.choices(IN_FLIGHT, k=len(ranks))

        def act(index):
            rank = ranks[index]
            starts = not rank.done and rank.started < min(len(scripts[index]), len(rank.outcomes) + in_flight[index])
            if starts and world.random.random() < reluctant[index] and may_start(ranks, index):
                rank.start()
            elif world.random.random() < impatient(len(rank.outcomes)):
                rank.give_up()
            else:
                rank.poll()

        acts = [partial(act, index) for index in range(len(ranks))]
        for step in range(5 * UNFAIR_STEPS):
            possible = [act for act, rank in zip(acts, ranks, strict=True) if not rank.done]
            if not possible:
                return ranks
            if step == UNFAIR_STEPS:
                world.be_fair()
                reluctant = [1] * len(ranks)
            world.step(possible)
        pytest.fail(f"seed {seed}: no end; calls complete: {[len(rank.outcomes) for rank in ranks]}")

    return run


def check_alike(ranks, seed):
    """Every call ended alike everywhere, those without an error with the right result."""
    assert [rank.wrong for rank in ranks] == [0] * len(ranks), f"seed {seed}"
    for number, outcomes in enumerate(zip(*(rank.outcomes for rank in ranks), strict=True)):
        kinds = {type(outcome) for outcome in outcomes}
        assert len(kinds) == 1, f"seed {seed}, call {number}: {outcomes}"
        if kinds == {TransportTimeout}:
            assert len({outcome.peers for outcome in outcomes}) == 1, f"seed {seed}, call {number}: {outcomes}"


@pytest.mark.parametrize("n", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_every_order_gives_the_right_result(run, n):
    begun_early = []
    for seed in range(15):
        ranks = run(seed, [[CALL, CALL, (COUNT + 7, "float32")]] * n)
        check_alike(ranks, seed)
        assert all(outcome is None for rank in ranks for outcome in rank.outcomes), seed
        arrivals = [rank.comm.arrivals() for rank in ranks]
        assert all(its.to_json() == arrivals[0].to_json() for its in arrivals), f"seed {seed}"
        begun_early.append(arrivals[0].begun_early)
    # The orders are of all kinds: of their three calls most wait for everybody, or all begin early.
    assert min(begun_early) <= 1 and max(begun_early) == 3


@pytest.fixture
def several(monkeypatch):
    """Calls begin without up to three ranks, one time slice after the others have come."""
    monkeypatch.setattr(late, "LEAST_SEVERAL_S", 0.0)
    monkeypatch.setattr(late, "MOST_JOIN", 100.0)

    def always(policy, *past):
        return {option.late: (Start(1e-4, option),) for option in reversed(policy.options)}

    monkeypatch.setattr(sequencer, "starts", always)


@pytest.mark.parametrize("n", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_every_order_with_several_late_ranks(run, several, n):
    grouped = 0
    for seed in range(8):
        ranks = run(seed, [[CALL, CALL, (COUNT + 7, "float32")]] * n)
        check_alike(ranks, seed)
        assert all(outcome is None for rank in ranks for outcome in rank.outcomes), seed
        ran = [core_of(rank.comm).late.ran for rank in ranks]
        assert all(its == ran[0] for its in ran), f"seed {seed}"
        grouped += sum(count for choice, count in ran[0].items() if choice.startswith("late_group/"))
    assert grouped > 5


def test_giving_up_with_several_late_ranks(run, several):
    ended = []
    for seed in range(10):
        ranks = run(seed, [[CALL] * 4] * 4, impatient=lambda call: 0.05)
        check_alike(ranks, seed)
        ended += [type(outcome) for outcome in ranks[0].outcomes]
    assert set(ended) == {type(None), TransportTimeout}


@pytest.fixture
def spread(monkeypatch):
    """Calls begin with two ranks, one time slice after these have come, and take in the others; two rounds ahead."""
    any_arrival.load().join()
    option = Option("any_arrival/10/2", 1.0, 1.0, ANY)
    monkeypatch.setattr(late, "LEAST_SEVERAL_S", 0.0)
    monkeypatch.setattr(late, "any_option", lambda *args: option)
    monkeypatch.setattr(sequencer, "starts", lambda *args: dict.fromkeys((2, 3, 4), (Start(1e-4, option),)))


PAIRS = ((0, 1), (2, 3), (4, 5))
IN_PAIRS = Topology(
    PAIRS,
    (
        LinkClass(INSIDE, replace(SLOW, beta_s_per_byte=1e-10), tuple((rank,) for rank in range(6))),
        LinkClass(NIC, SLOW, PAIRS),
    ),
)


@pytest.mark.parametrize(("n", "topology"), [(5, None), (6, IN_PAIRS)], ids=["alone", "pairs"])
def test_every_order_of_ranks_that_are_taken_in(run, spread, n, topology):
    began = 0
    for seed in range(12):
        ranks = run(seed, [[CALL, CALL, (COUNT + 7, "float32")]] * n, topology=topology)
        check_alike(ranks, seed)
        assert all(outcome is None for rank in ranks for outcome in rank.outcomes), seed
        ran = [core_of(rank.comm).late.ran for rank in ranks]
        assert all(its == ran[0] for its in ran), f"seed {seed}"
        began += ran[0]["any_arrival/10/2"]
    assert began > 10


@pytest.mark.parametrize(("n", "topology"), [(5, None), (6, IN_PAIRS)], ids=["alone", "pairs"])
def test_giving_up_while_ranks_are_taken_in(run, spread, n, topology):
    ended, began = [], 0
    for seed in range(12):
        ranks = run(seed, [[CALL] * 4] * n, impatient=lambda call: 0.002, topology=topology)
        check_alike(ranks, seed)
        ended += [type(outcome) for outcome in ranks[0].outcomes]
        began += max(core_of(rank.comm).late.ran["any_arrival/10/2"] for rank in ranks)
    assert set(ended) == {type(None), TransportTimeout} and began > 5


@pytest.mark.parametrize("n", [3])
def test_giving_up_at_any_moment_ends_the_call_alike(run, n):
    """A rank may lose its patience at any moment: then all get the result, or all TransportTimeout, and go on."""
    ended = []
    for seed in range(12):
        ranks = run(seed, [[CALL] * 4] * n, impatient=lambda call: 0.05)
        check_alike(ranks, seed)
        ended += [type(outcome) for outcome in ranks[0].outcomes]
    assert set(ended) == {type(None), TransportTimeout}


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_never_comes_is_named_and_the_group_goes_on(run, absent):
    n = 4

    def may_start(ranks, rank):
        # Into its call 1 the absent rank comes once all others have given that up.
        others_are_through = all(len(other.outcomes) > 1 for other in ranks if other is not ranks[absent])
        return rank != absent or ranks[absent].started != 1 or others_are_through

    alone = 0
    for seed in range(10):
        ranks = run(seed, [[CALL] * 3] * n, may_start, impatient=lambda call: 0.1 * (call == 1))
        check_alike(ranks, seed)
        alone += ranks[0].outcomes[1].peers == (absent,)
        for index, rank in enumerate(ranks):
            error = rank.outcomes[1]
            # Whose letter was still on its way when the others lost their patience is named too.
            assert isinstance(error, TransportTimeout) and absent in error.peers, f"seed {seed}, rank {index}"
            assert ("this rank came after" in str(error)) == (index in error.peers), (seed, index, rank)
    assert alone


@pytest.mark.parametrize("begins", [None, "spread"])
def test_a_rank_that_dies_before_it_comes_is_named_on_all(run, request, begins):
    n, dead = 4, 1
    if begins:
        request.getfixturevalue(begins)

    def may_start(ranks, rank):
        if rank != dead or ranks[dead].started != 1:
            return True
        if len(ranks[dead].outcomes) == 1:
            ranks[dead].die()
        return False

    for seed in range(12):
        ranks = run(seed, [[CALL] * 2] * n, may_start)
        for index, rank in enumerate(ranks):
            assert rank.wrong == 0, f"seed {seed}, rank {index}"
            # Of the death, a rank that is in call 0 still may hear by another one, which is not.
            errors = [outcome for outcome in rank.outcomes if outcome is not None]
            assert len(rank.outcomes[1:]) == (index != dead) <= len(errors), (seed, index, rank)
            assert all(isinstance(error, PeerFailed) and error.rank == dead for error in errors), (seed, errors)


@pytest.mark.parametrize("other", [(COUNT // 2, "float32"), (COUNT + 1, "float32"), (COUNT, "int32")])
def test_another_size_or_dtype_is_an_error_on_all(run, other):
    n = 4
    for seed in range(2 * n):
        odd = seed % n
        ranks = run(seed, [[CALL, other if rank == odd else CALL] for rank in range(n)])
        for index, rank in enumerate(ranks):
            # Of the error, a rank that is in call 0 still may hear by another one, which is not.
            assert rank.wrong == 0 and isinstance(rank.outcomes[0], InputError | None), (seed, index)
            assert isinstance(rank.outcomes[1], InputError), (seed, index)
            assert str(rank.outcomes[1]).count("rank ") >= 2, (seed, rank)


def test_a_lost_letter_is_found(run, monkeypatch):
    """The test itself: a seat whose letter is lost makes it fail."""
    monkeypatch.setitem(globals(), "UNFAIR_STEPS", 5000)
    arrive = board.LocalSeat.arrive

    def lossy(seat, number, *rest, **options):
        if seat._rank != 1 or number != 2:
            arrive(seat, number, *rest, **options)

    monkeypatch.setattr(board.LocalSeat, "arrive", lossy)
    with pytest.raises(pytest.fail.Exception, match="no end"):
        run(0, [[CALL, CALL]] * 3)
