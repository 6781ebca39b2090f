"""lanterne info --topology: of a file or a preset, and of a job's communicator."""

import json
from dataclasses import replace

import pytest

from lanterne.bench.cli import main
from lanterne.bench.topology.found import found, picture, ranks_in_short
from lanterne.collectives.communicator import core_of
from lanterne.collectives.jobs import spawn
from lanterne.collectives.topology.presets import PRESETS, find_preset
from lanterne.collectives.topology.topology_json import from_document


def test_a_preset_as_table_picture_and_json(capsys, tmp_path):
    path = tmp_path / "found.json"
    assert main(["info", "--topology", "fat-tree-5x2", "--json", str(path)]) == 0
    out = capsys.readouterr().out
    assert "fat-tree-5x2 (given): 5 nodes, 10 ranks" in out
    assert "├─ trunk 1600 Gbit/s: ranks 0 to 7\n│  └─ nodes 0 to 3, alike: ranks 0 to 1, ...\n" in out
    document = json.loads(path.read_text())
    assert document["source"] == "given"
    assert from_document(document["topology"]) == find_preset("fat-tree-5x2")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_a_picture_with_all_ranks(name):
    lines = list(picture(find_preset(f"{name}-4x2")))
    assert lines[0] == f"{name}-4x2: 8 ranks"
    assert len(lines) > 2


def test_what_a_job_has_found():
    def job(communicator):
        core_of(communicator).hosts = communicator.hosts = tuple("aabb")
        flat, source = found(communicator)
        given = find_preset("hosts-2x2")
        communicator.tuning.adopt(given.slowest, "measured", (), given)
        told = replace(given, in_rounds=False), "measured"
        return flat.nodes, [links.kind for links in flat.links], source, found(communicator) == told

    assert spawn(4, job) == [(((0, 1), (2, 3)), ["inside", "nic"], "threads", True)] * 4


def test_ranks_in_few_words():
    assert [ranks_in_short(ranks) for ranks in ([4], [1, 2, 3], [0, 2], range(0, 20, 2))] == [
        "rank 4", "ranks 1 to 3", "ranks 0, 2", "ranks 0, 2, 4, 6, 8, 10, ... (10)"
    ]  # fmt: skip


def test_without_a_job_or_a_file_it_says_how(capsys):
    assert main(["info", "--topology"]) == 2
    assert "expected a launcher around it" in capsys.readouterr().err
