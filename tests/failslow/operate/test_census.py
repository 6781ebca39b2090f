"""A census of probes: each job is counted once, and spells last as long as sweeps tell."""

import json

import pytest

from lanterne.failslow.operate.census import CAUSES, census, probe_entry
from lanterne.failslow.operate.history import FileHistory, parse_entries
from lanterne.failslow.validate.judge import Finding

MINUTE_S = 60.0


def found(kind, ratio=2.0):
    return Finding(kind, (0,), (), "alone", ratio, "")


def probes(job, kinds, hosts=("h",), every_min=10):
    """Return sweeps `every_min` apart, each of which found the kinds of its item."""
    return [
        probe_entry(job, MINUTE_S * every_min * i, MINUTE_S * every_min, hosts, [found(kind) for kind in each])
        for i, each in enumerate(kinds)
    ]


def by_cause(entries, scale="1 host"):
    return {row.cause: row for row in census(entries) if row.scale == scale}


def test_each_job_is_counted_once_by_what_it_met():
    entries = [
        *probes("well", [[], [], []]),
        *probes("starved", [["contention"], []]),
        *probes("slow", [[], ["compute"], ["compute"]]),
        *probes("both", [["compute"], ["link"]]),
        *probes("at once", [["compute", "links"]]),
        *probes("across", [["link"], []], hosts=("h", "i")),
        *probes("across, well", [[]], hosts=("h", "i")),
    ]
    one, several = by_cause(entries), by_cause(entries, "several hosts")
    assert {cause: row.jobs for cause, row in one.items()} == dict(zip(CAUSES, (1, 1, 1, 0, 2), strict=True))
    assert {cause: row.jobs for cause, row in several.items()} == dict(zip(CAUSES, (1, 0, 0, 1, 0), strict=True))
    # Of 11 sweeps on one host 5 found nothing, and one two things at once.
    assert {cause: row.probes for cause, row in one.items()} == dict(zip(CAUSES, (5, 1, 4, 2, 1), strict=True))
    assert sum(row.jobs for row in (*one.values(), *several.values())) == 7


def test_spells_last_until_the_next_sweep_that_finds_nothing():
    row = by_cause(probes("j", [[], ["link"], ["link"], [], ["link"], []]))["network"]
    assert (row.spells, row.spell_s) == (2, pytest.approx((20 + 10) / 2 * MINUTE_S))
    # Of a spell that had not ended, as long as it was seen; of a sweep alone nothing.
    assert by_cause(probes("j", [["link"], ["link"], ["link"]]))["network"].spell_s == 20 * MINUTE_S
    assert by_cause(probes("j", [["link"]], every_min=0))["network"].spell_s == 0.0


def test_sweeps_far_apart_are_spells_of_their_own():
    entries = probes("j", [["compute"], ["compute"]])
    late = probes("j", [["compute"]])[0] | {"time_s": 5000.0}
    row = by_cause([*entries, late])["computing"]
    assert (row.spells, row.probes) == (2, 3) and row.spell_s == pytest.approx(10 * MINUTE_S / 2)


def test_the_slowest_of_a_cause_counts_and_ratios_are_their_mean():
    entry = probe_entry("j", 0.0, 0.0, ["h"], [found("link", 2.0), found("links", 4.0)])
    assert entry["slow"] == {"network": 4.0}
    other = probe_entry("k", 0.0, 0.0, ["h"], [found("link", 3.0)])
    assert by_cause([entry, other])["network"].ratio == 3.5


def test_a_file_gives_back_what_was_kept_and_refuses_what_is_no_probe(tmp_path):
    history = FileHistory(tmp_path / "probes.jsonl")
    history.add(probes("j", [["compute"], []]))
    entries, unused = history.read()
    assert unused == 0 and by_cause(entries)["computing"].jobs == 1
    good = entries[0]
    bad = [{"slow": {"network": "2"}}, {"slow": []}, {"hosts": []}, {"every_s": -1}, {"every_s": None}, {"job": 3}]
    lines = [json.dumps(good | change).encode() for change in bad]
    assert parse_entries(lines) == ([], len(bad))
    assert census([]) == []
