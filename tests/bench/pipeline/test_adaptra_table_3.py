"""The trace that ships as an example is that of the experiments."""

from evaluation.papers.adaptra import figure_21 as simulated
from evaluation.papers.adaptra import figure_21_measured as measured
from lanterne.bench.pipeline.events_input import read_events


def test_the_example_is_the_papers_trace():
    *slow, dead = read_events("adaptra-table-3")
    assert [(e.first, e.last, e.links, round(e.latency_s * 1e3)) for e in slow] == list(simulated.EVENTS)
    assert (dead.first, dead.links, dead.down) == (simulated.DEAD_NIC_AT, measured.DEAD_LINKS, True)


def test_the_measured_one_is_a_tenth_as_long_with_the_same_ratios():
    *slow, dead = measured.events()
    assert [(e.first, e.last) for e in slow] == [(first // 10, last // 10) for first, last, _, _ in simulated.EVENTS]
    ratios = [e.latency_s / measured.PROBLEM.forward[0] for e in slow]
    wanted = [latency / simulated.QUIET.forward[0] for *_, latency in simulated.EVENTS]
    assert all(abs(one / other - 1) < 1e-9 for one, other in zip(ratios, wanted, strict=True))
    assert dead.down and dead.last == float("inf")


def test_what_it_reports():
    change = {"scheduler": "best"}
    outcome = {"first": 1, "last": 8, "links": [2], "lag": 3, "change": change, "before_s": 0.2, "after_s": 0.1}
    record = {"kind": "adapt", "outcomes": [outcome | {"share_of_known": 0.95}]}
    assert "links 2-3: after 3 iterations: best; 200 then 100 ms, 95.0% of" in measured.findings([record])[0]
    lag, least, median = measured.bars([record])
    assert (lag.found, lag.limit, lag.is_met, least.found, median.found) == (3, 5, True, 0.95, 0.95)
    unanswered = {"kind": "adapt", "outcomes": [outcome | {"change": None, "share_of_known": 0.95}]}
    assert not measured.bars([unanswered])[0].is_met
