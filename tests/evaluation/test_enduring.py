"""The benchmark of what going on costs: its order, its bars, its table, and, slow, its job."""

import io
import json
import subprocess
import sys

import pytest

from evaluation import enduring
from evaluation.__main__ import EVALUATE
from evaluation.enduring import call_records, in_turn, measure_calls, print_results, training_records
from lanterne.collectives.jobs import spawn

CALLS = {
    "small": {"before": [14e-6, 12e-6, 30e-6], "never": [10e-6, 10e-6, 10e-6]},
    "large": {"before": [1.005, 1.0, 1.2], "never": [1.0, 1.0, 1.0]},
    "grow": {"before": [50e-6]},
}
TRAINING = {
    "plain": {"seconds": [1.0, 2.0], "shares": [0.0, 0.0], "passing": [0.0, 0.0]},
    "enduring": {"seconds": [1.01, 2.02], "shares": [1.0, 1.5], "passing": [0.0, 0.0]},
    "copies": {"seconds": [1.1, 2.2], "shares": [2.0, 2.5], "passing": [0.3, 0.4]},
}


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_each_is_as_often_first_as_last(names):
    orders = [in_turn(number, names) for number in range(2 * len(names))]
    assert all(sorted(order) == [*names] for order in orders)
    ends = [[order[at] for order in orders].count(name) for at in (0, -1) for name in names]
    assert set(ends) == {2}


def test_what_it_costs_is_told_by_pairs():
    small, large, grow = call_records(CALLS)
    assert small["more"] == pytest.approx(4e-6) and not small["met"]
    assert large["more"] == pytest.approx(0.005) and large["met"]
    assert grow["met"] and grow["without"] is None
    enduring, copies, kept, passing = training_records(TRAINING)
    assert (enduring["more"], enduring["met"]) == (pytest.approx(0.01), True)
    assert (copies["more"], copies["met"]) == (pytest.approx(0.1), False)
    assert (kept["more"], kept["met"]) == (1.0, True)
    assert (passing["more"], passing["bar"]) == (pytest.approx(0.35), None)
    assert call_records({}) == training_records({}) == []


@pytest.mark.parametrize(
    ("with_bars", "small", "kept"), [(False, "", ""), (True, "3 us missed", "1.00")], ids=["", "bars"]
)
def test_the_table(with_bars, small, kept):
    file = io.StringIO()
    document = {"results": [*call_records(CALLS), *training_records(TRAINING)], "wrong": 3}
    print_results(document, file, with_bars=with_bars)
    lines = [" ".join(line.split()) for line in file.getvalue().splitlines()]
    assert f"all_reduce of 8 B 10 us 14 us 4 us {small}".strip() in lines
    assert "all_reduce of 64 MiB 1 s 1 s 0.5 % 1.0 %"[: None if with_bars else -6] in lines
    assert f"shares kept, --copies 1 1.25 2.25 1.00 {kept}".strip() in lines
    assert lines[-1] == "3 elements or losses are wrong"


@pytest.mark.parametrize(
    ("words", "said"), [(["-n", "3"], "-n: got 3, expected a multiple of 2"), (["--only", "x"], "--only: got 'x'")]
)
def test_what_it_refuses(capsys, words, said):
    assert EVALUATE.main(["enduring", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_the_job():
    words = ["bench", "enduring", "--blocks", "2", "--iterations", "2", "--json", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "evaluation", *words], check=False, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == 0 and len(found["results"]) == 7
    assert all(each["with"] > 0 for each in found["results"])


@pytest.mark.parametrize(("mute", "wrong"), [(None, False), ("before", True), ("never", True)])
def test_a_call_that_is_not_made_is_wrong(mute, wrong, monkeypatch):
    monkeypatch.setattr(enduring, "LARGE_NBYTES", 1 << 10)
    monkeypatch.setattr(enduring, "SMALL_CALLS", 2)

    def program(comm):
        contenders = {name: Contender(comm, name == mute) for name in ("before", "never")}
        return measure_calls(**contenders, blocks=1)

    class Contender:
        def __init__(self, comm, is_mute):
            self.rank, self.world_size, self.barrier, self.grow = comm.rank, comm.world_size, comm.barrier, lambda: None
            self.all_reduce = (lambda x, out: None) if is_mute else comm.all_reduce

    assert [found > 0 for _, found in spawn(2, program)] == [wrong, wrong]
