"""May a node join: against its own sweeps, other hosts', and what it was named for."""

import pytest

from lanterne.failslow.operate.admission import judge_sweep, sweep_entry, sweep_values, too_few
from lanterne.failslow.operate.history import job_entry

NAME = "float32 product, alone"


def sweeps(host, values, first_s=0.0):
    return [sweep_entry(host, {NAME: value}, f"{host}-{i}", first_s + i) for i, value in enumerate(values)]


@pytest.mark.parametrize(
    ("entries", "now", "words"),
    [
        ([], 9.0, []),
        (sweeps("h", [1.0, 1.01, 0.99, 1.0, 1.0]), 1.1, []),
        (sweeps("h", [1.0, 1.01, 0.99, 1.0, 1.0]), 1.3, [f"{NAME}: 1.30 times its own usual (5 sweeps)"]),
        # Four tell nothing, and one of five was as slow; of eight one may have been disturbed.
        (sweeps("h", [1.0] * 4), 1.3, []),
        (sweeps("h", [1.0] * 4 + [1.2]), 1.3, []),
        (sweeps("h", [1.0] * 7 + [1.2]), 1.3, [f"{NAME}: 1.30 times its own usual (8 sweeps)"]),
        # Sweeps that differ by a third say nothing of 1.3.
        (sweeps("h", [1.0, 1.4, 0.7, 1.3, 0.8]), 1.3, []),
        (sweeps("h", [1.0, 1.4, 0.7, 1.3, 0.8]), 4.0, [f"{NAME}: 4.00 times its own usual (5 sweeps)"]),
        # A better node than it was, and one of which two others are known.
        (sweeps("h", [1.0] * 4), 0.5, []),
        (sweeps("i", [1.0] * 2), 2.0, []),
        (sweeps("i", [1.0] * 3), 2.0, [f"{NAME}: 2.00 times other hosts' usual (3 sweeps)"]),
        # Slower than others it always was.
        ([*sweeps("i", [1.0] * 9), *sweeps("h", [2.0] * 5)], 2.0, []),
        # Refused, it comes again.
        (
            [*sweeps("i", [1.0] * 9), *sweeps("h", [2.0] * 2)],
            2.0,
            [f"{NAME}: 2.00 times other hosts' usual (9 sweeps)"],
        ),
        # Only the latest count; what is no time does not.
        (
            [*sweeps("h", [9.0] * 20), *sweeps("h", [1.0] * 16, 100.0)],
            1.3,
            [f"{NAME}: 1.30 times its own usual (16 sweeps)"],
        ),
        (sweeps("h", ["x", None, -1.0, float("nan"), 10**400]), 9.0, []),
    ],
)
def test_against_sweeps_of_before(entries, now, words):
    assert judge_sweep(entries, "h", {NAME: now}) == words


@pytest.mark.parametrize(("own", "others", "is_few"), [(4, 2, True), (5, 0, False), (0, 3, False)])
def test_too_few_sweeps_are_told(own, others, is_few):
    entries = [*sweeps("h", [1.0] * own), *sweeps("i", [1.0] * others)]
    assert (
        (f"{own} of its own are known, {others} of other" in too_few(entries, "h"))
        == is_few
        == bool(too_few(entries, "h"))
    )


def test_a_chronic_host_is_told():
    named = {"what": "incident", "host": "h", "text": "slow since 3"}
    entries = [named | {"id": f"{i}", "job": f"{i}", "time_s": 1e5 * i} for i in range(3)]
    (found,) = judge_sweep([*entries, job_entry("x", ["h"], 0.0)], "h", {})
    assert found == "it is chronic: named in 3 of its 4 jobs, the last time: slow since 3"
    assert judge_sweep(entries, "i", {}) == []


def test_the_values_of_a_validation():
    compute = [
        {"rank": 0, "load": "a", "when": "alone", "wall_s": [5.0, 9.0, 5.0], "cpu_s": []},
        {"rank": 0, "load": "a", "when": "alone", "wall_s": [2.0], "cpu_s": []},  # measured again
        {"rank": 1, "load": "a", "when": "alone", "wall_s": [4.0], "cpu_s": []},
        {"rank": 2, "load": "a", "when": "alone", "wall_s": [7.0], "cpu_s": []},
    ]
    links = [
        {"src": 0, "dst": 1, "when": "alone", "latency_s": 1.0, "nbytes": 10, "time_s": [30.0, 20.0]},
        {"src": 1, "dst": 2, "when": "alone", "latency_s": 3.0, "nbytes": 10, "time_s": [50.0]},
    ]
    assert sweep_values({0: "h", 1: "h", 2: "i"}, compute, links) == {
        "h": {
            "a, alone": 3.0,
            "a byte within, alone": 2.0,
            "latency within, alone": 1.0,
            "a byte between hosts, alone": 5.0,
            "latency between hosts, alone": 3.0,
        },
        "i": {"a, alone": 7.0, "a byte between hosts, alone": 5.0, "latency between hosts, alone": 3.0},
    }
