"""SimGrid, where the system's Python has it, judges our simulator of flows, and is given all that is sent."""

import subprocess

import numpy as np
import pytest

from evaluation.judges import compare
from evaluation.judges.compare import SYSTEM_PYTHON, document, judged
from lanterne.collectives.algorithms.catalogue import make_schedule
from lanterne.collectives.topology.presets import find_preset


def has_simgrid():
    try:
        return not subprocess.run([SYSTEM_PYTHON, "-c", "import simgrid"], capture_output=True, check=False).returncode
    except OSError:
        return False


def test_the_file_holds_every_message_of_every_rank():
    topology = find_preset("hosts-2x2")
    schedule = make_schedule("all_reduce", "hier_ring", 4, 8, nodes=topology.nodes)
    told = document(schedule, 800.0, topology, np.zeros(4))
    sent = [each for rank in told["ranks"] for messages, _ in rank["rounds"] for each in messages]
    assert sum(nbytes for _, nbytes in sent if nbytes > 0) == pytest.approx(100.0 * schedule.num_transfers)
    numbers = sorted(number for number, _ in sent)
    assert numbers == sorted([*range(len(sent) // 2)] * 2), "each once at its sender and once at its receiver"
    assert all(link < len(told["links"]) for *_, links, _ in told["routes"] for link in links)


@pytest.mark.skipif(not has_simgrid(), reason="apt-get install python3-simgrid")
@pytest.mark.parametrize("algorithm", ["ring", "tree", "hier_late_join"])
def test_simgrid_agrees(algorithm):
    row = judged(find_preset("hosts-3x2"), algorithm, 1 << 20, SYSTEM_PYTHON)
    assert row["ratio"] == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("ratio", "code"), [(1.0, 0), (0.0, 1), (1.1, 1)])
def test_times_that_differ_are_exit_code_1(ratio, code, monkeypatch, capsys):
    def judge(topology, algorithm, nbytes, python):
        times = {"model_s": 1.0, "flows_s": ratio, "simgrid_s": 1.0, "ratio": ratio}
        return {"topology": topology.name, "algorithm": algorithm, "nbytes": nbytes, "late_rank": None} | times

    monkeypatch.setattr(compare, "judged", judge)
    monkeypatch.setattr("sys.argv", ["x", "--check", "0.05", "--algorithm", "ring"])
    assert compare.main() == code
