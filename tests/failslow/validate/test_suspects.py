"""Suspects alone: what a Validation says of each, and who is tested beside them."""

import pytest

import lanterne
from lanterne.failslow.validate.judge import Finding
from lanterne.failslow.validate.suspects import Examiner, severities
from lanterne.failslow.validate.validation import Validation
from lanterne.pipeline.adapt.suspect import Suspect
from lanterne.pipeline.planes.plane_makers import shaped
from lanterne.transport.shaped import Link


def validation(*found, unsure=(), seconds=None):
    """Ranks 0 to 3, links 0-1 and 2-3, with the transfers' `seconds` by direction; else 1."""
    usual = dict.fromkeys(((0, 1), (1, 0), (2, 3), (3, 2)), 1.0)
    links = [
        {"src": a, "dst": b, "when": "alone", "latency_s": 0.0, "nbytes": 1, "time_s": (9.0, best_s)}
        for (a, b), best_s in (usual | (seconds or {})).items()
    ]
    compute = [{"rank": rank} for rank in range(4)]
    return Validation(found, unsure, (), (0, 1, 2, 3), (0,) * 4, (((0, 1), (2, 3)),), (1,), compute, links, 0.1)


def test_severities_are_of_those_that_were_found_slow():
    rank = Finding("compute", (2,), (), "alone", 1.7, "")
    link = Finding("link", (), ((1, 0),), "alone", 3.0, "")
    found = validation(rank, link, seconds={(1, 0): 4.0})
    suspects = ("rank 2", "rank 3", "rank 9", "link 0-1", "link 2-3", "link 0-3")
    # Of a link the mean of both ways; who was not tested is absent.
    assert severities(found, suspects) == {"rank 2": 1.7, "rank 3": 0.0, "link 0-1": 1.5, "link 2-3": 0.0}


def test_a_slow_network_card_is_a_fault_of_each_of_its_links():
    card = Finding("links", (1,), (), "alone", 3.0, "")
    found = validation(card, seconds={(0, 1): 3.0, (1, 0): 3.0})
    assert severities(found, ("link 0-1", "link 2-3", "rank 1")) == {"link 0-1": 2.0, "link 2-3": 0.0, "rank 1": 0.0}


def test_of_what_a_busy_machine_may_explain_nothing_is_known():
    rank = Finding("compute", (2,), (), "alone", 1.7, "")
    link = Finding("link", (), ((1, 0),), "alone", 3.0, "")
    suspects = ("rank 2", "rank 3", "link 0-1", "link 2-3")
    nan = pytest.approx(float("nan"), nan_ok=True)
    unknown = {"rank 2": nan, "rank 3": 0.0, "link 0-1": nan, "link 2-3": 0.0}
    assert severities(validation(unsure=(rank, link)), suspects) == unknown
    # What is slow without doubt is so whatever else was doubted.
    assert severities(validation(rank, unsure=(rank, link)), suspects) == unknown | {"rank 2": 1.7}


@pytest.mark.parametrize("suspects", [("link 0-2", "link 1-3"), ("link 0-2", "rank 1")], ids=", ".join)
def test_a_slow_link_is_measured_over_what_the_work_goes_over(suspects):
    links = {way: Link(latency_s=20e-3) for way in ((0, 2), (2, 0))}

    def examine(comm):
        return Examiner(comm, shaped(comm, links).transport).examine([*map(Suspect, suspects)])

    outcomes = lanterne.spawn(4, examine)
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert outcomes[0]["link 0-2"] == pytest.approx(20e-3, rel=0.5)
    assert set(outcomes[0]) == set(suspects) and outcomes[0].get("link 1-3", 0.0) < 10e-3


def test_a_rank_that_is_well_is_told_so_by_few_of_many():
    """Ranks 4 and 5 are neither suspects nor witnesses: they wait, and learn what was found."""
    outcomes = lanterne.spawn(6, lambda comm: Examiner(comm, nbytes=4096).examine((Suspect.rank(0),)))
    assert outcomes == [outcomes[0]] * 6 and set(outcomes[0]) == {"rank 0"}


def test_without_peers_nobody_is_tested():
    everything = (Suspect.rank(0), Suspect.rank(1), Suspect.link(0, 1))
    assert lanterne.spawn(2, lambda comm: Examiner(comm).examine(everything)) == [{}, {}]
