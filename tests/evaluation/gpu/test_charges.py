"""./run evaluate gpu.charges: what a call asks of NCCL, as the stand-ins of the transport count it, and its price."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from device_ranks import over_nccl, synchronize
from nccl_ranks import HostArray, Job

from evaluation.gpu import charges
from evaluation.gpu.charges import Charges, Item, queued, row, time_s
from lanterne.collectives.auto.tuning import GPUS
from lanterne.collectives.execute import stream_program

MIB = 1 << 20


@pytest.mark.parametrize("algorithm", ["ring", "late_join"])
def test_groups_and_messages_are_those_of_the_stand_ins_of_nccl(algorithm):
    job, nbytes = Job(3), 2 * MIB
    asked = []
    start, submit = job.nccl.groupStart, job.nccl.submit
    job.nccl.groupStart = lambda: (asked.append("group"), start())[1]
    job.nccl.submit = lambda *arguments: (asked.append("message"), submit(*arguments))[1]

    def program(comm):
        comm.tuning.adopt(GPUS, "threads")
        x, out = HostArray(np.ones(nbytes // 4, np.float32)), HostArray(np.zeros(nbytes // 4, np.float32))
        comm.all_reduce(x, out, algorithm=algorithm, late_rank=2 if algorithm == "late_join" else None)
        synchronize(comm)
        return float(out.values[0]), float(out.values[-1])

    assert over_nccl(3, program, job=job) == [(3.0, 3.0)] * 3
    queue = [item for items in queued(3, algorithm, nbytes) for item in items]
    groups = [item for item in queue if item.kind == "group" and item.messages]
    assert asked.count("group") == len(groups)
    assert asked.count("message") == sum(len(group.messages) for group in groups)


# Before groups took in others, and messages were of 2 MiB: groups and host calls of 64 MiB, then of 1 MiB.
BEFORE = {
    ("ring", 3): (44, 294, 4, 34),
    ("ring", 8): (56, 372, 14, 99),
    ("ring", 16): (60, 398, 30, 203),
    ("late_join", 3): (40, 276, 6, 48),
    ("late_join", 8): (66, 442, 14, 94),
    ("late_join", 16): (96, 608, 18, 116),
}


@pytest.mark.parametrize(("algorithm", "ranks"), BEFORE)
def test_groups_and_host_calls_are_at_most_half_of_what_they_were(algorithm, ranks):
    groups, calls, short_groups, short_calls = BEFORE[algorithm, ranks]
    large, small = (row(ranks, algorithm, nbytes, Charges()) for nbytes in (64 * MIB, MIB))
    assert large["groups"] <= groups / 2 and large["host_calls"] <= calls / 2, large
    # A ring of short messages has the rounds that it has; its folds take no events any more.
    most = short_groups if algorithm == "ring" else short_groups / 2
    assert small["groups"] <= most and small["host_calls"] <= 0.7 * short_calls, small


def test_the_clock_adds_launches_groups_hops_and_bytes():
    costs = Charges(1.0, 10.0, 100.0, 1000.0, 7.0, 2.0, 4.0)
    send, receive = (Item("group", "messages", 5, ((sends, 60, peer),)) for sends, peer in ((True, 1), (False, 0)))
    fold = Item("kernel", "messages", 6, nbytes=8)
    # 5 host calls, the group, 60 bytes at 2 a second, a hop, and the fold: 7 and 8 bytes at 4.
    assert time_s([[send], [receive, fold]], costs) == 5 + 100 + 30 + 1000 + 9
    assert time_s([[send], [receive, fold]], costs, captured=True) == 10 + 100 + 30 + 1000 + 9
    # Two messages into one port share it.
    both = Item("group", "messages", 5, ((False, 60, 0), (False, 60, 1)))
    assert time_s([[send._replace(messages=((True, 60, 2),))]] * 2 + [[both]], costs) == 5 + 100 + 60 + 1000
    # A fold on another stream waits for the event, which waits for the group.
    recorded, waited = Item("record", "messages", 6, event=3), Item("wait", "work", 7, event=3)
    assert time_s([[send], [receive, recorded, waited, fold._replace(stream="work")]], costs) == 5 + 100 + 30 + 1009


def test_ranks_whose_messages_never_meet_are_told():
    alone = Item("group", "messages", 1, ((True, 60, 1),))
    with pytest.raises(AssertionError, match="1 pieces of work wait for each other"):
        time_s([[alone], []], Charges())


def test_groups_that_take_in_others_cost_the_cpu_less_and_the_device_little(monkeypatch):
    merged = row(16, "late_join", MIB // 4, Charges())
    monkeypatch.setattr(stream_program, "MERGED_NBYTES", 0)
    apart = row(16, "late_join", MIB // 4, Charges())
    assert merged["groups"] < apart["groups"] and merged["nodes"] < apart["nodes"]
    assert merged["eager_s"] < 0.85 * apart["eager_s"] and merged["captured_s"] < 1.1 * apart["captured_s"]


def test_the_command_writes_what_it_prints(tmp_path, capsys):
    file = tmp_path / "charges.json"
    options = ["-n", "4", "--bytes", "1M", "--algorithms", "ring", "--link", "80gbit"]
    assert charges.main([*options, "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["charges"]["link_bytes_per_s"] == 1e10
    (found,) = document["rows"]
    assert (found["groups"], found["messages_per_rank"], found["smallest_message_nbytes"]) == (6, 12, MIB // 4)
    # One kernel, six hops, 1.5 MiB through the port.
    assert found["native_s"] == pytest.approx(8.4e-6 + 6 * 3.4e-6 + 1.5 * MIB / 1e10)
    shown = capsys.readouterr().out
    assert shown.splitlines()[-1].split()[:2] == ["ring", "4"]


@pytest.mark.parametrize(("algorithm", "ranks"), [("allpairs", 8), ("allpairs", 16), ("ring", 8), ("late_join", 3)])
def test_groups_are_as_large_as_their_scratch_may_be(algorithm, ranks, monkeypatch):
    """Of 1 GiB, where each rank of allpairs receives from all others at once."""
    scratch = []
    monkeypatch.setattr(charges.ChargedSide, "region", lambda _, nbytes: (scratch.append(nbytes), REGION)[1])
    items = queued(ranks, algorithm, 1 << 30)
    assert max(scratch) <= 256 * MIB
    groups = [item for item in items[0] if item.kind == "group" and item.messages]
    received = [max(sum(nbytes for sends, nbytes, _ in group.messages if not sends) for group in groups)]
    assert min(received) > 25 * MIB


REGION = SimpleNamespace(address=0)
