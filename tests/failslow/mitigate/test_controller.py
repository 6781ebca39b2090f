"""The decisions of the controller, on a simulated job: every order in which things can happen, and no job needed."""

from itertools import pairwise, permutations
from math import nan

import pytest

from lanterne.failslow.mitigate.controller import Controller
from lanterne.failslow.mitigate.decision import ControllerSettings, Seen
from lanterne.failslow.mitigate.strategies import Arrangement, Forecaster, Slowness
from lanterne.pipeline.plan.problem import Problem

COPIES, PLACES, TOTAL, WORK_S, WAIT_S = 4, 2, 32, 6e-3, 1e-3
HOME = Arrangement(
    tuple(tuple((copy * PLACES + place,) for place in range(PLACES)) for copy in range(COPIES)), (8,) * 4
)
PROBLEM = Problem(PLACES, TOTAL // COPIES, WORK_S / 3, WORK_S / 3, WORK_S / 3)


class Job:
    """A job that is as slow as the forecaster says, and that does at once what it is told.

    Args:
        events: (first, last, what, severity) with `what` as the controller names it.
        silent: ranks that report nothing.
    """

    def __init__(self, events, silent=(), settings=None, examines=True, sure_from=0, before=None, adapts=False):
        self.events, self.silent, self.examines, self.sure_from, self.number = events, silent, examines, sure_from, 0
        self.truth = Forecaster(PROBLEM, "zb_h1", WAIT_S, adapts=adapts)
        self.controller = Controller(
            HOME,
            lambda work_s, wait_s: Forecaster(PROBLEM, "zb_h1", wait_s, adapts=adapts),
            settings,
            before=before or {},
            planned_s=(2.0, 2.0),
            adapts=adapts,
        )
        self.now = HOME

    def slow(self):
        ranks, links = {}, {}
        for first, last, what, severity in self.events:
            kind, which = what.split()
            if first <= self.number < last and kind == "rank":
                ranks[int(which)] = severity
            elif first <= self.number < last and kind == "link":
                links[tuple(map(int, which.split("-")))] = severity
        return Slowness(ranks, links)

    def all_slow(self):
        return next((s for first, last, what, s in self.events if what == "all 0" and first <= self.number < last), 1.0)

    def seen(self):
        slow, factor = self.slow(), self.all_slow()
        time_s = factor * self.truth.iteration_s(self.now, slow) * (1 + 0.01 * (self.number % 3))
        seats = self.now.seats()
        compute_s = {rank: factor * WORK_S * slow.ranks.get(rank, 1.0) for rank in seats if rank not in self.silent}
        links = {}
        for pipeline in self.now.ranks:
            pair = tuple(sorted((pipeline[0][0], pipeline[1][0])))
            links[pair] = (slow.links.get(pair, 0.0),) * 2
        links |= {link: (slow.links.get(link, 0.0),) * 2 for link in self.controller.probes}
        waits = {}
        for place in range(PLACES):
            group = self.now.group(place)
            worst = max([0.0, *(extra for link, extra in slow.links.items() if set(link) <= set(group))])
            waits |= {rank: (self.number, self.number + WAIT_S + 2 * worst) for rank in group}
        tested = {rank: slow.ranks.get(rank, 1.0) for rank in HOME.seats().keys() - seats.keys()}
        return Seen(self.number, time_s, compute_s, links, waits, tested)

    def run(self, iterations):
        for _ in range(iterations):
            decision = self.controller.update(self.seen())
            if decision is not None and decision.kind == "validate":
                slow = self.slow()
                truth = {f"rank {rank}": factor for rank, factor in slow.ranks.items()}
                truth |= {f"link {a}-{b}": extra for (a, b), extra in slow.links.items()}
                if self.number < self.sure_from:
                    truth = dict.fromkeys(decision.suspects, nan)
                decision = self.controller.validated(
                    {name: truth.get(name, 0.0) for name in decision.suspects} if self.examines else {}
                )
            if decision is not None and decision.arrangement is not None:
                self.now = decision.arrangement
            self.number += 1
        return self.controller


def kinds(controller):
    return [decision.strategy or decision.kind for decision in controller.decisions]


SLOW = {"rank 3": 2.0, "rank 0": 1.5, "link 0-1": 40e-3, "link 0-2": 40e-3, "link 5-7": 60e-3}


@pytest.mark.parametrize("what", SLOW)
def test_named_mitigated_and_reverted(what):
    controller = Job([(30, 70, what, SLOW[what])]).run(100)
    [incident] = controller.incidents
    assert incident["what"] == what
    assert incident["named"] - 30 < 5
    assert 70 <= incident["ended"] < 76
    assert any(decision.kind == "mitigate" for decision in controller.decisions)
    assert controller.now == HOME and not controller.slow
    assert "report" not in kinds(controller)


def test_a_link_in_a_pipeline_is_left_to_a_schedule_that_adapts_and_all_else_is_not():
    """Neither suspected nor reported as slow without a cause; a slow rank beside it is named and worked around."""
    left = Job([(30, 70, "link 0-1", 40e-3)], adapts=True).run(100)
    assert left.decisions == [] and left.incidents == []
    # Once ranks move, link 0-1 may be one between copies.
    stays = ControllerSettings(topology_s=100, restart_s=100)
    for what, settings, named in (("rank 3", stays, ["rank 3"]), ("link 0-2", None, ["link 0-2", "link 0-1"])):
        events = [(30, 70, "link 0-1", 40e-3), (35, 70, what, SLOW[what])]
        both = Job(events, settings=settings, adapts=True).run(100)
        assert [incident["what"] for incident in both.incidents] == named
        assert "mitigate" in [decision.kind for decision in both.decisions] and both.now == HOME


def test_a_forecast_counts_a_plan_that_adapts_where_it_is_faster():
    fixed, adapts = (Forecaster(PROBLEM, "zb_h1", adapts=adapts) for adapts in (False, True))
    slow = Slowness({}, {(0, 1): WORK_S})
    assert adapts.iteration_s(HOME, slow) < 0.95 * fixed.iteration_s(HOME, slow)
    assert adapts.iteration_s(HOME, Slowness({}, {})) == pytest.approx(fixed.iteration_s(HOME, Slowness({}, {})))


def test_a_slow_rank_gets_fewer_microbatches_and_a_link_is_moved_out_of_the_way():
    by_rank = Job([(30, 70, "rank 3", 2.0)], settings=ControllerSettings(topology_s=100, restart_s=100)).run(60)
    assert by_rank.now.ranks == HOME.ranks
    assert by_rank.now.microbatches[1] < min(by_rank.now.microbatches[i] for i in (0, 2, 3))
    assert sum(by_rank.now.microbatches) == TOTAL
    by_link = Job([(30, 70, "link 0-2", 0.1)], settings=ControllerSettings(restart_s=100)).run(60)
    seats = by_link.now.seats()
    assert sorted(seats) == list(range(8))
    # Neither a neighbour in a pipeline nor in the same group.
    assert seats[0][0] != seats[2][0] and seats[0][1] != seats[2][1]


def test_what_is_saved_is_what_iterations_would_have_taken_at_home():
    job, saved_s = Job([(30, 70, "rank 3", 2.0)]), 0.0
    while job.number < 100:
        if job.now != HOME and job.slow():
            saved_s += job.truth.iteration_s(HOME, job.slow()) - job.seen().iteration_s
        job.run(1)
    assert saved_s > 0 and job.controller.saved_s == pytest.approx(saved_s, rel=0.15)
    assert Job([]).run(60).saved_s == 0.0


def test_a_restart_is_last_and_leaves_the_slow_rank_out():
    settings = ControllerSettings(rebalance_s=0.01, topology_s=0.3, restart_s=1.0)
    controller = Job([(30, 400, "rank 3", 30.0)], settings=settings).run(200)
    assert kinds(controller)[-1] == "restart" and 3 not in controller.now.seats()
    assert sum(controller.now.microbatches) == TOTAL


def test_a_rank_that_was_left_out_comes_back_once_it_is_well():
    settings = ControllerSettings(rebalance_s=0.01, topology_s=0.3, restart_s=1.0)
    job = Job([(30, 200, "rank 3", 30.0)], settings=settings)
    assert 3 not in job.run(150).now.seats()
    controller = job.run(60)
    [incident] = controller.incidents
    assert 200 <= incident["ended"] < 205 and controller.now == HOME and not controller.slow


def test_a_healthy_job_is_left_alone():
    assert Job([]).run(300).decisions == []


@pytest.mark.parametrize(
    ("order", "apart"), list(zip(permutations(("rank 3", "link 0-2", "rank 6")), (1, 7, 25) * 2, strict=True))
)
def test_incidents_that_overlap_in_any_order_are_all_named_and_all_end(order, apart):
    """The second begins before, while or after the first is mitigated; they end in the order in which they began."""
    severity = {"rank 3": 2.0, "link 0-2": 60e-3, "rank 6": 3.0}
    events = [(30 + apart * i, 90 + apart * i, what, severity[what]) for i, what in enumerate(order)]
    controller = Job(events).run(220)
    named = {incident["what"]: incident for incident in controller.incidents}
    assert sorted(named) == sorted(order)
    assert all(incident["ended"] is not None for incident in controller.incidents)
    assert controller.now == HOME and not controller.slow


@pytest.mark.parametrize("length", range(1, 12))
def test_an_incident_that_ends_while_it_is_dealt_with_leaves_nothing_behind(length):
    controller = Job([(30, 30 + length, "rank 3", 2.0)]).run(80)
    assert controller.now == HOME and not controller.slow
    assert all(incident["ended"] is not None for incident in controller.incidents)


def test_a_job_that_ends_inside_an_incident_says_so():
    controller = Job([(30, 1000, "rank 3", 2.0)]).run(60)
    [incident] = controller.state()["incidents"]
    assert incident["ended"] is None and controller.state()["slow"] == [{"what": "rank 3", "severity": 2.0}]


def test_nobody_is_blamed_without_evidence():
    """All ranks slow alike, a slow rank that reports nothing, and suspects that cannot be examined."""
    alike = Job([(30, 70, "all 0", 1.6)]).run(100)
    assert alike.incidents == [] and kinds(alike) == ["report"]
    settings = ControllerSettings(acquitted=1000)
    unexamined = Job([(30, 70, "rank 3", 2.0)], examines=False, settings=settings).run(100)
    assert unexamined.incidents == [] and set(kinds(unexamined)) == {"validate", "report"}


def test_a_rank_that_reports_nothing_is_not_blamed_nor_are_others():
    job = Job([(40, 80, "rank 3", 2.0)])
    job.run(30)
    job.silent = (3,)
    controller = job.run(60)
    assert controller.incidents == [] and controller.now == HOME


def test_without_any_report_of_a_rank_nothing_is_known_and_nothing_done():
    controller = Job([(40, 80, "rank 3", 2.0)], silent=(0, 2, 4, 6)).run(120)
    assert controller.health.forecaster is None and controller.decisions == []


def test_who_passes_the_examination_is_left_alone_each_time_for_twice_as_long():
    controller = Job([(30, 400, "rank 3", 2.0)], examines=False, settings=ControllerSettings(acquitted=20)).run(250)
    asked = [decision.iteration for decision in controller.decisions if decision.kind == "validate"]
    assert [later - one for one, later in pairwise(asked)] == [20, 40, 80]


def test_who_may_be_slow_is_examined_again_soon():
    controller = Job([(30, 400, "rank 3", 2.0)], sure_from=40).run(60)
    asked = [decision.iteration for decision in controller.decisions if decision.kind == "validate"]
    assert [later - one for one, later in pairwise(asked)] == [3, 6]
    assert controller.state()["slow"] == [{"what": "rank 3", "severity": 2.0}]


def test_who_becomes_much_slower_after_an_acquittal_is_examined_again_at_once():
    job = Job(
        [(30, 40, "rank 3", 1.3), (40, 90, "rank 3", 3.0)], examines=False, settings=ControllerSettings(acquitted=1000)
    )
    asked = [decision.iteration for decision in job.run(100).decisions if decision.kind == "validate"]
    assert len(asked) == 2 and 40 <= asked[1] < 45


def test_who_is_acquitted_and_then_only_a_little_slow_is_left_alone():
    job = Job(
        [(30, 40, "rank 3", 1.5), (40, 90, "rank 3", 1.2)], examines=False, settings=ControllerSettings(acquitted=1000)
    )
    assert kinds(job.run(100)).count("validate") == 1


def test_times_that_cannot_be_change_nothing():
    controller = Job([]).run(30)
    for time_s in (float("nan"), float("inf"), 0.0, -1.0):
        assert controller.update(Seen(31, time_s, {})) is None, time_s


@pytest.mark.parametrize("last", [70, 0], ids=["still slow", "well by now"])
def test_a_job_that_goes_on_from_another_knows_who_was_slow(last):
    job = Job([(0, last, "rank 3", 2.0)], before={3: 2.0})
    controller = job.run(8)
    assert controller.slow_ranks == {3: 2.0} and not controller.slow
    job.run(92)
    assert [one["what"] for one in controller.incidents] == ["rank 3"] * (last > 0)
    assert controller.now == HOME and not controller.slow and not controller.slow_ranks
    if last:
        assert controller.incidents[0]["named"] == 11 and 70 <= controller.incidents[0]["ended"] < 76
        assert kinds(controller)[0] == "rebalance" and "report" not in kinds(controller)
        assert controller.health.usual_s == pytest.approx(job.truth.iteration_s(HOME, Slowness({}, {})), rel=0.05)
