import json
import os

import numpy as np
import pytest

from lanterne.bench.cli import main
from lanterne.bench.collective.arrivals_report import late_rank_of, print_arrivals
from lanterne.collectives.late.arrivals import MAX_DELAYS, ArrivalLog, Arrivals
from lanterne.errors import InputError


def log_of(ranks, delay_s=0.01, world_size=4):
    log = ArrivalLog(world_size)
    for index, rank in enumerate(ranks):
        log.note(rank, delay_s, index % 2 == 0)
    return log.snapshot()


def test_counts():
    arrivals = log_of([3, 3, 1, 3])
    assert (arrivals.calls, arrivals.begun_early) == (4, 2)
    assert arrivals.last.tolist() == [0, 1, 0, 3]
    assert arrivals.late_rank() == 3
    assert arrivals.late_rank(share=0.75) is None
    assert arrivals.late_rank(delay_s=0.01) is None
    assert log_of([]).late_rank() is None


def test_memory_is_bounded():
    arrivals = log_of([0] * (MAX_DELAYS + 10))
    assert (arrivals.calls, len(arrivals.delays_s), len(arrivals.ranks)) == (MAX_DELAYS + 10, MAX_DELAYS, MAX_DELAYS)


def test_json_round_trip():
    arrivals = log_of([3, 1, 1])
    again = Arrivals.from_json(json.loads(json.dumps(arrivals.to_json())))
    assert again.calls == 3
    assert again.begun_early == 2
    for name in ("last", "ranks", "delays_s", "arrivals_s"):
        np.testing.assert_array_equal(getattr(again, name), getattr(arrivals, name), err_msg=name)


def test_table(capsys):
    print_arrivals(log_of([3, 3, 1, 3]), None)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()]
    assert [row[:3] for row in rows] == [["1", "1", "25"], ["3", "3", "75"]]
    assert "10" in rows[0]


def test_profile(tmp_path):
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"arrivals": log_of([2, 2, 1]).to_json()}))
    assert late_rank_of(str(file)) == 2
    assert late_rank_of("7") == 7
    assert late_rank_of(None) is None
    file.write_text(json.dumps({"arrivals": log_of([0, 1, 2]).to_json()}))
    with pytest.raises(InputError, match="no rank came last in over half of 3"):
        late_rank_of(str(file))


@pytest.mark.parametrize("text", ["{}", "nonsense", '{"arrivals": {"calls": 1}}', "[]"])
def test_profile_that_is_none(tmp_path, text):
    file = tmp_path / "profile.json"
    file.write_text(text)
    with pytest.raises(InputError, match="expected a file of bench --arrivals"):
        late_rank_of(str(file))
    with pytest.raises(InputError, match="a readable file"):
        late_rank_of("absent.json")


def test_command(tmp_path, capsys):
    """The whole way: a recorded run names the late rank of the next."""
    file = str(tmp_path / "run.json")
    arguments = ["bench", "all_reduce", "-n", "3", "--transport", "local", "--iterations", "2"]
    late = ["--late-rank", "1", "--delay", "300ms", "--bytes", "32M"]
    assert main([*arguments, *late, "--algorithm", "auto", "--arrivals", "--json", file]) == os.EX_OK
    assert "were begun without the last rank" in capsys.readouterr().out
    with open(file) as opened:
        document = json.load(opened)
    assert document["arrivals"]["calls"] == 4
    assert all(times_s[1] == max(times_s) > 0.2 for times_s in document["arrivals"]["arrivals_s"])
    assert main(["cost", "all_reduce", "--arrivals", file, "--algorithm", "ring", "--nbytes", "32M"]) == os.EX_OK
    assert "4 of its calls" in capsys.readouterr().out
    assert late_rank_of(file) == 1
    small = ["--late-rank", file, "--delay", "1ms", "--bytes", "64K", "--algorithm", "late_join"]
    assert main([*arguments, *small]) == os.EX_OK
