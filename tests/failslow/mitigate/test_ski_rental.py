"""The ski-rental planner: algorithm 1 by hand, its bound, and what does not help."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.errors import InputError
from lanterne.failslow.mitigate.ski_rental import IGNORE, MitigationPlanner, Strategy, paper_strategies


def applied_at(planner, iterations, iteration_s=1.5, healthy_s=1.0, **kwargs):
    found = {}
    for i in range(1, iterations + 1):
        strategy = planner.observe(iteration_s, healthy_s, **kwargs)
        if strategy is not None:
            found[strategy.name] = i
    return found


def test_algorithm_1_by_hand():
    """0.5 s lost an iteration: 1 s after 2, 60 s after 120, 1800 s after 3600. One strategy an iteration."""
    planner = MitigationPlanner(paper_strategies(), "compute")
    assert applied_at(planner, 4000) == {"ignore": 1, "rebalance": 2, "topology": 120, "restart": 3600}
    assert planner.lost_s == pytest.approx(2000.0)


def test_rebalancing_does_not_help_a_link():
    planner = MitigationPlanner(paper_strategies(), "communication")
    assert list(applied_at(planner, 4000)) == ["ignore", "topology", "restart"]


def test_what_would_not_gain_is_passed_over():
    planner = MitigationPlanner(paper_strategies(), "compute")
    assert "rebalance" not in applied_at(planner, 200, forecast_s={"rebalance": 1.499, "topology": 1.2})
    assert "topology" in planner.applied


def test_a_healthy_job_pays_nothing():
    assert list(applied_at(MitigationPlanner(paper_strategies(), "compute"), 500, iteration_s=0.9)) == ["ignore"]


@given(lost_s=st.floats(0.01, 10.0), overhead_s=st.floats(0.1, 500.0), iterations=st.integers(1, 2000))
def test_never_twice_as_dear_as_knowing(lost_s, overhead_s, iterations):
    """One strategy that cures: rent plus price is at most twice the best in hindsight, plus one iteration."""
    planner = MitigationPlanner((IGNORE, Strategy("cure", overhead_s)), "compute")
    paid_s = 0.0
    for _ in range(iterations):
        cured = "cure" in planner.applied
        paid_s += 0.0 if cured else lost_s
        if not cured and (strategy := planner.observe(1.0 + lost_s, 1.0)) is not None:
            paid_s += strategy.overhead_s
    assert paid_s <= 2 * min(overhead_s, iterations * lost_s) + 2 * lost_s + 1e-6


def test_bad_input():
    with pytest.raises(InputError, match="expected 0 or more"):
        MitigationPlanner([Strategy("x", -1.0)], "compute")
    with pytest.raises(InputError, match="no strategy against"):
        MitigationPlanner(paper_strategies(), "weather")
