"""Schedulers of others, by the name of a function or an entry point."""

from importlib import metadata

import pytest

from lanterne.collectives.algorithms import outside
from lanterne.errors import InputError
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import ENTRY_POINTS, load, plan

GPIPE = "lanterne.pipeline.schedules.gpipe:gpipe"


def test_a_function_plans():
    problem = Problem(2, 3, 1, 1, 1)
    assert plan(problem, GPIPE).ranks == plan(problem, "gpipe").ranks


def test_packages_offer_theirs(monkeypatch):
    point = metadata.EntryPoint("theirs", GPIPE, ENTRY_POINTS)
    monkeypatch.setattr(outside, "_entry_points", lambda group: [point] if group == ENTRY_POINTS else [])
    outside.offered.cache_clear()
    try:
        assert load("theirs") is load("gpipe")
        with pytest.raises(InputError, match="did you mean 'theirs'"):
            load("thiers")
    finally:
        outside.offered.cache_clear()


@pytest.mark.parametrize(("name", "message"), [("gpip", "did you mean 'gpipe'"), ("nowhere:f", "No module named")])
def test_what_is_not_there_is_told(name, message):
    with pytest.raises(InputError, match=message):
        load(name)
