"""`lanterne demo`: three blows, who was named when, what was done, beside the same job left alone."""

import json
import sys

import pytest

from lanterne.bench import cli
from lanterne.bench.demo import blows
from lanterne.collectives.jobs import spawn

REBALANCE = {"strategy": "rebalance"}


def made_up(**changes):
    """(work, found) of a run in which all was named and mitigated, but for `changes` of the loop's."""
    work = blows.work_of(8e-3, 0, 60.0)
    events = work["events"]
    names = ("link 0-1", "rank 2", "rank 1")
    slow = [any(e["first"] <= i < e["last"] for e in events) for i in range(work["iterations"])]

    def run(factor):
        return [{"iteration": i, "time_s": 0.1 * (factor if s else 1.0), "loss": 1.0} for i, s in enumerate(slow)]

    acted = [
        {"kind": "mitigate", "iteration": e["first"] + 4, "at": e["first"] + 5, "suspects": [what], **REBALANCE}
        for e, what in zip(events, names, strict=True)
    ]
    incidents = [
        {"what": what, "suspected": e["first"], "named": e["first"] + 3, "ended": e["last"] + 3, "severity": 2.0}
        for e, what in zip(events, names, strict=True)
    ]
    found = {"without": {"results": run(2.0), "tokens": 512}}
    loop = {"incidents": incidents, "acted": acted, "decisions": [], "lines": ["# said"]} | changes
    return work, found | {"with": {"results": run(1.25), "tokens": 512, **loop}}


def test_the_summary_and_the_picture(tmp_path, capsys):
    document = blows.summed_up(*made_up())
    assert document["closed"] and not document["wrong"] and document["usual_s"] == 0.1
    for one in document["blows"]:
        assert (one["named"] - one["first"], one["strategies"]) == (3, ["rebalance"]), one
        assert (one["alone_s"], one["mitigated_s"]) == (0.2, 0.125), one
    blows.print_blows(document, sys.stdout)
    shown = capsys.readouterr().out
    assert "rank 2" in shown and "three blows in all: 14.4 s left alone, 9 s mitigated" in shown
    blows.plot_blows(str(tmp_path / "demo.png"), document)
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    json.dumps(document, allow_nan=False)


def test_its_job_on_threads():
    """Short stretches: that it runs twice, and is slow where it should be; who is named takes its time."""
    work = blows.work_of(2e-3, 0, 60.0, scale=0.1)
    found = spawn(blows.RANKS, blows.run_blows, work, timeout_s=60.0)[0]
    document = blows.summed_up(work, found)
    assert not document["cut_short"] and document["blows"][1]["alone_s"] > 1.3 * document["usual_s"]
    losses = [[one["loss"] for one in found[name]["results"]] for name in ("without", "with")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert found["without"]["incidents"] == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("--pace 0", "1ms to 1s"),
        ("--timeout 0", "more than 0"),
        ("--limit 0", "more than 0"),
        ("--transport carrier", "local, mpi, ucx"),
        ("--plot picture.doc", "ends in .png, .svg or .pdf"),
        ("--slow-link 1=30ms", "`pipeline train --adapt --slow-link I=T@FROM:TO`"),
        ("-n 4", "or `demo` without it"),
        ("--trace trace.json", "`pipeline run --adapt --trace`"),
    ],
)
def test_bad_input_is_one_line(options, expected, capsys):
    assert cli.main(["demo", *options.split()]) == 2
    said = capsys.readouterr().err
    assert expected in said and said.count("\n") == 1
