"""Jobs that become slow, and what was said of them live, as the score reads it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from evaluation.operators import live_score
from evaluation.operators.live_score import LINK, STEP_S, LiveChange, _named, make_job

LINES = """lanterne watch: 10:00:00 iteration 40: perhaps onset at 38: 1.2 times as long as before
lanterne watch: 10:00:01 iteration 43: onset at 38: 1.3 times as long as before
lanterne watch:   ranks wait for cores that other work has, rank 2 5 ms an iteration more than before: a busy host
lanterne watch: 10:00:02 iteration 60: slow for another reason now
lanterne watch:   nobody comes late, the calls themselves take 9 ms an iteration more: a link or the network
lanterne watch: 10:00:03 iteration 70: slow for another reason now
lanterne watch:   rank 2 by 9 ms, rank 1 by 8.1 ms an iteration more than before come later than the others"""


def test_ranks_and_links_that_were_named():
    assert _named(LINES.splitlines()) == [(60, frozenset()), (70, frozenset({1, 2}))]


def test_a_job_with_a_slow_link_names_no_rank():
    job, ranks, (change,) = make_job(LINK, 5)
    (link,) = job["links"]
    assert job["slow"] == [] and change == LiveChange(link["first"], frozenset())
    assert (link["ends"][1] - link["ends"][0]) % ranks == 1 and 0.3 <= 8 * link["latency_s"] / STEP_S <= 2.0


def test_a_job_with_a_rank_at_a_tenth_more():
    job, _, (change,) = make_job("mpi4py-tenth", 5)
    assert [(one["factor"], {one["rank"]}) for one in job["slow"]] == [(1.1, change.ranks)]
    assert job["links"] == [] and make_job("mpi4py-one", 5)[0]["slow"][0]["factor"] >= 1.3


@pytest.mark.parametrize(("kind", "code"), [("mpi4py-healthy", 0), ("mpi4py-one", 1), (LINK, 1)])
def test_a_watch_that_says_nothing_is_right_of_healthy_jobs_alone(kind, code, monkeypatch, capsys):
    def watched(command, **options):
        Path(command[command.index("--json") + 1]).write_text('{"incidents": []}')
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(live_score.subprocess, "run", watched)
    assert live_score.main(["--kinds", kind]) == code
