"""Verdicts on profiles: what changes, how soon, and what does not; on made-up delays and on recorded ones."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lanterne.pipeline.adapt import decide
from lanterne.pipeline.adapt.decide import AdaptSettings, Decider
from lanterne.pipeline.adapt.link_delay import LinkDelay
from lanterne.pipeline.adapt.profile import Profile, make_profile, report_length
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.pipeline.simulate.simulate import simulate

SETTINGS = AdaptSettings()

SECONDS = Problem(4, 12, 0.01, 0.01, 0.01)


def seen(iteration, delays=None, noise=None, forward_s=0.01):
    links = {}
    for i in range(3):
        for pair in ((i, i + 1), (i + 1, i)):
            delay_s = (delays or {}).get(i, 0.0) + (abs(noise.normal()) * 0.5e-3 if noise is not None else 0.0)
            links[pair] = LinkDelay(delay_s, delay_s, 0.0, 5)
    durations_s = {kind: np.full(4, forward_s) for kind in "FBW"}
    return Profile(iteration, np.zeros(4), np.ones(4), durations_s, links, np.zeros(4))


def decisions(delays_at, iterations, problem=SECONDS, noise=None):
    """The changes when iteration i has the link delays delays_at(i), every report being there at once."""
    decider = Decider(check(plan(SECONDS, "zb_h2"), SECONDS), problem, SETTINGS, in_order=1)
    verdicts = [decider.after(seen(i, delays_at(i), noise), i + 1) for i in range(iterations)]
    return [verdict["change"] for verdict in verdicts if verdict and "change" in verdict], decider


def test_onset_and_relief_take_two_and_three_iterations():
    changes, decider = decisions(lambda i: {2: 0.02} if 10 <= i < 30 else {}, 60)
    assert [(c["noticed"], c["running_from"], c["scheduler"]) for c in changes] == [(11, 12, "best"), (32, 33, "zb_h2")]
    assert changes[0]["slow_links"] == [[2, 3]] and changes[1]["slow_links"] == []
    assert decider.running is decider.initial
    # By hand: 390 ms and one delay is what no plan can be below here.
    assert [c["predicted_s"] for c in changes] == [pytest.approx(0.41, rel=0.01), pytest.approx(0.39)]


def test_bounds_as_wide_as_actions_do_not_keep_a_link_from_healing():
    """A rank that always computes when a message comes finds it there afterwards."""
    decider, verdicts = Decider(check(plan(SECONDS, "zb_h2"), SECONDS), SECONDS, SETTINGS, in_order=1), []
    for iteration in range(30):
        profile = seen(iteration, {2: 0.025} if 5 <= iteration < 15 else {})
        if iteration >= 15:
            profile.links.update({(2, 3): LinkDelay(-0.0094, 0.0005), (3, 2): LinkDelay(-0.0006, 0.0095)})
        verdicts.append(decider.after(profile, iteration + 1))
    changes = [verdict["change"] for verdict in verdicts if verdict]
    assert [(change["noticed"], change["slow_links"]) for change in changes] == [(6, [[2, 3]]), (17, [])]
    assert decider.running is decider.initial


def test_a_link_that_costs_little_stays_where_it_is(monkeypatch):
    monkeypatch.setattr(decide, "MIN_DIVERT_GAIN", 0.9)
    assert decisions(lambda i: {2: 0.02} if i >= 10 else {}, 30)[1].slow_links == []


def test_a_delay_that_the_plan_absorbs_changes_nothing():
    assert decisions(lambda i: {1: 0.009} if i > 5 else {}, 30)[0] == []


def test_noise_changes_nothing():
    assert decisions(lambda i: {}, 300, noise=np.random.default_rng(1))[0] == []


def test_noise_as_large_as_actions_changes_nothing_once_it_is_known():
    random = np.random.default_rng(2)

    def delays(i):
        return {link: abs(random.normal()) * 0.008 for link in range(3)}

    changes, _ = decisions(delays, 300, problem=None)
    assert [change["findings"] for change in changes] == [{"calibrated": 1}]


@pytest.mark.parametrize(("cap", "limit"), [(1.5, 6), (4, 16), (None, None)])
def test_new_plans_keep_to_the_memory_that_activations_were_measured_to_take(cap, limit):
    """Four activations of a kilobyte are held under zb_h1; the cap, in multiples of that, says how many may be."""
    nominal = Problem(4, 12, 1, 1, 1)
    first = check(plan(nominal, "zb_h1"), nominal)
    nbytes = 1e3 * np.array(first.peak_memory)
    decider, changes = Decider(first, None, SETTINGS, 1, cap and cap * 4e3), []
    for iteration in range(20):
        delays = {1: 0.03} if iteration >= 10 else {}
        verdict = decider.after(seen(iteration, delays)._replace(held_nbytes=nbytes), iteration + 1)
        changes += [verdict["change"]] if verdict else []
    assert changes[-1]["slow_links"] == [[1, 2]]
    most = max(decider.running.peak_memory)
    assert most > 4 if limit is None else 4 < most <= limit
    assert (decider.running.problem.max_inflight_activations is None) == (limit is None)


def test_single_late_iterations_change_nothing():
    assert decisions(lambda i: {1: 0.05} if i % 3 == 0 else {}, 200)[0] == []


def test_a_flapping_link_is_given_up_on():
    changes, _ = decisions(lambda i: {1: 0.03} if i % 12 < 6 else {}, 600)
    assert len(changes) <= 12 and changes[-1]["slow_links"] == [[1, 2]]


def test_the_undisturbed_problem_is_measured_where_none_is_given():
    nominal = Problem(4, 12, 1, 1, 1)
    decider = Decider(check(plan(nominal, "zb_h1"), nominal), None, SETTINGS, in_order=1)
    verdicts = [decider.after(seen(i, {1: 0.004}, forward_s=0.01), i + 1) for i in range(8)]
    assert [bool(verdict) for verdict in verdicts] == [False] * 6 + [True, False]
    assert decider.base.forward == pytest.approx((0.01,) * 4)
    assert decider.base.latency(1, 2) == pytest.approx(0.004) and decider.base.latency(0, 1) == 0
    assert decider.after(seen(8, {1: 0.004, 2: 0.03}), 9) is None
    assert decider.after(seen(9, {1: 0.004, 2: 0.03}), 10)["change"]["slow_links"] == [[2, 3]]


# Reports of four ranks that train a small GPT on two cores, beside two programs that spin; link 1-2 is 20 ms slow from
# SLOW_AT on. float32 of seconds since each iteration began, `lanterne pipeline train -n 4 --adapt` without its changes.
CROWDED, SLOW_AT = Path(__file__).parents[1].joinpath("data") / "crowded.npz", 40


def recorded():
    """(CheckedPlan, the reports of each iteration)."""
    with np.load(CROWDED) as file:
        nominal = Problem.from_dict(json.loads(str(file["problem"])))
        checked, rows = check(Plan.from_dict(json.loads(str(file["plan"]))), nominal), file["reports"].astype(float)
    ends = np.cumsum([report_length(checked, rank) for rank in range(4)])[:-1]
    return checked, [np.split(row, ends) for row in rows]


def test_on_a_crowded_machine_nothing_changes_until_a_link_is_slow():
    checked, rows = recorded()
    decider, changes = Decider(checked, None, SETTINGS, in_order=1), []
    for iteration, reports in enumerate(rows):
        profile = make_profile(checked, reports, None, decider.occupancy_s)
        if (verdict := decider.after(profile, iteration + 1)) and "change" in verdict:
            changes.append(verdict["change"])
    calibrated, slow, *more = changes
    assert (calibrated["findings"], calibrated["scheduler"], more) == ({"calibrated": 1}, None, [])
    assert (slow["noticed"], slow["slow_links"], slow["scheduler"]) == (SLOW_AT + 1, [[1, 2]], "best")
    assert 0.015 < min(slow["delays_s"]["1-2"], slow["delays_s"]["2-1"]) < 0.021


def wandering(slow_until, wanders_s):
    """Verdicts where iterations vary by `wanders_s` and link 2-3 is slow from iteration 20 on: iteration -> dict."""
    decider, found = Decider(check(plan(SECONDS, "zb_h2"), SECONDS), SECONDS, SETTINGS, in_order=1), {}
    for i in range(50):
        profile = seen(i, {2: 0.02} if 20 <= i < slow_until else {})
        found[i] = decider.after(profile._replace(ended_s=np.full(4, 1.0 + wanders_s * (i % 2))), i + 1)
    return {i: verdict for i, verdict in found.items() if verdict}


def test_what_saves_more_than_iterations_vary_is_done_at_once():
    assert [verdict.keys() >= {"change"} for verdict in wandering(50, 0.001).values()] == [True]
    assert min(wandering(50, 0.001)) == 21


def test_the_more_iterations_vary_the_longer_a_link_must_be_slow():
    """Noise of a mean falls with the square root of their number: twice the gain takes four times two iterations."""
    gain_s = wandering(50, 0.3)[21]["held"]["gain_s"]
    verdicts = wandering(50, 1.99 * gain_s)
    held, change = verdicts[21]["held"], verdicts[27]["change"]
    assert len(verdicts) == 2
    assert (held["findings"], held["needed"], held["varies_s"]) == ({"link 2-3": 1}, 8, pytest.approx(1.99 * gain_s))
    assert (change["running_from"], change["slow_links"]) == (28, [[2, 3]])


def test_only_links_on_the_usual_plane_block():
    decider = Decider(check(plan(SECONDS, "zb_h2"), SECONDS), SECONDS, SETTINGS, in_order=1)
    slow = replace(SECONDS, link_latency=(0.003, 0.0, 0.04))
    both, one, none = ([[0, 1], [2, 3]], [[2, 3]], [])
    free_s, little_s, blocked_s = (
        decider._predicted(decider.running.plan, slow, [(0, 1), (2, 3)], links) for links in (both, one, none)
    )
    assert free_s == simulate(decider.running.plan, slow).makespan
    assert blocked_s == pytest.approx(simulate(decider.running.plan, slow, in_order=True, queue=1).makespan)
    assert free_s <= little_s < free_s + 12 * 0.003 < blocked_s
