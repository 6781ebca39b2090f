"""lanterne schedule: makes, reads, prints and writes schedules; nothing invalid passes."""

import json
import sys
from xml.etree import ElementTree

import pytest

from lanterne.bench.cli import main
from lanterne.collectives.algorithms.catalogue import make_schedule
from lanterne.collectives.schedule.formats.export_json import from_json, to_json


def run(capsys, *arguments):
    code = main(["schedule", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_table_shows_rounds_and_cost(capsys):
    code, out, _ = run(capsys, "all_reduce", "--algorithm", "ring", "-n", "8")
    assert code == 0
    assert "ring_all_reduce(world_size=8): 14 rounds, 8 chunks, 112 transfers" in out
    assert "cost 14 alpha + 1.75 s beta in lockstep; s = 1 GiB" in out
    assert "rank 0  7>1+  6>1+" in out


def test_late_rank(capsys):
    code, out, _ = run(
        capsys,
        "all_reduce",
        "--algorithm",
        "late_join",
        "-n",
        "5",
        "--chunks",
        "9",
        "--late-rank",
        "2",
        "--delay",
        "1s",
    )
    assert code == 0
    assert "join: 11 rounds" in out
    assert "rank 2 late" in out
    assert "from the late rank's arrival" in out


@pytest.mark.parametrize("algorithm", ["ring", "allpairs", "late_join"])
def test_json_is_the_schedule(capsys, tmp_path, algorithm):
    path = tmp_path / "schedule.json"
    assert (
        run(capsys, "all_reduce", "--algorithm", algorithm, "-n", "6", "--format", "json", "--output", str(path))[0]
        == 0
    )
    assert from_json(json.loads(path.read_text())) == make_schedule("all_reduce", algorithm, 6)
    assert run(capsys, str(path), "--format", "json")[1] == path.read_text()


def test_svg_has_an_arrow_per_message(capsys):
    _, out, _ = run(capsys, "broadcast", "--algorithm", "binomial", "-n", "8", "--root", "3", "--format", "svg")
    root = ElementTree.fromstring(out)
    assert sum("marker-end" in line.attrib for line in root.iter("{http://www.w3.org/2000/svg}line")) == 7


def test_list_says_why_not(capsys):
    _, out, _ = run(capsys, "reduce_scatter", "--list", "-n", "6")
    assert [line.split()[0] for line in out.splitlines()] == ["ring", "bruck", "rhd", "allpairs", "hier_ring"]
    assert "not for 6 ranks: expected a power of two" in out


def test_an_invalid_file_names_round_and_transfer(capsys, tmp_path):
    document = to_json(make_schedule("all_reduce", "ring", 4))
    rounds = document["phases"][0]["rounds"]
    rounds[0].append(rounds[0][2])
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(document))
    code, out, err = run(capsys, str(path))
    assert (code, out) == (2, "")
    assert (
        "ring_all_reduce(world_size=4): round 0, transfer 2->3 chunk 1: rank 3 already contains rank 2's contribution"
        in err
    )
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all_reduced"], "collective: got 'all_reduced' (did you mean 'all_reduce'?), expected one of all_reduce"),
        (["nowhere.json"], "schedule nowhere.json: No such file"),
        (["all_reduce", "--algorithm", "rings"], "algorithm: got 'rings'"),
        (["all_reduce", "-n", "0"], "-n: got 0, expected 1 to 2048"),
        (["all_reduce", "-n", "x"], "got 'x', expected a whole number"),
        (["all_reduce", "--algorithm", "ring", "--chunks", "3"], "got 3 chunks, expected a multiple of 8"),
        (["all_reduce", "--algorithm", "ring", "-n", "4", "--late-rank", "4"], "--late-rank: got 4, expected 0 to 3"),
        (["all_reduce", "--delay", "-1s"], "expected"),
        (
            ["all_reduce", "--topology", "dgx-2x2", "--arrivals", "0,1"],
            "--arrivals: got 2, expected one for each of 4 ranks",
        ),
        (["all_reduce", "--arrivals", "0,-1"], "--arrivals: got '-1', expected multiples of s/rate from 0 to 1000000"),
        (["all_reduce", "--arrivals", "0,nan"], "--arrivals: got 'nan', expected a number, or a time with its unit"),
        (
            ["all_gather", "--arrivals", "0,1"],
            "--arrivals: got them beside all_gather of 1073741824 bytes, expected an",
        ),
        (["all_reduce", "--arrivals", "0,1", "--nbytes", "0"], "--arrivals: got them beside all_reduce of 0 bytes"),
        (["all_reduce", "--arrivals", "0"], "--arrivals: got '0', expected at least two, separated by commas"),
        (["all_reduce", "--arrivals", "0,1,2", "-n", "4"], "--arrivals: got 3 beside -n 4, expected one for each rank"),
        (["all_reduce", "--output", "/nowhere/x"], "cannot write /nowhere/x"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"phases": 3}', "[" * 100_000, "\x00", '{"world_size": 1e99}'])
def test_broken_files(capsys, tmp_path, text):
    path = tmp_path / "broken.json"
    path.write_text(text)
    code, _, err = run(capsys, str(path))
    assert code == 2
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["all_reduce", "-n", "100000"], "-n: got 100000, expected 1 to 2048"),
        (["all_reduce", "--list", "-n", "0"], "-n: got 0, expected 1 to 2048"),
    ],
)
def test_numbers_of_ranks_are_bounded(argv, message, capsys):
    assert main(["schedule", *argv]) == 2
    assert message in capsys.readouterr().err


def test_a_file_says_its_own_options(tmp_path, capsys):
    file = tmp_path / "ring.json"
    assert main(["schedule", "all_reduce", "-n", "3", "--format", "json", "--output", str(file)]) == 0
    assert main(["schedule", str(file)]) == 0
    assert main(["schedule", str(file), "-n", "3"]) == 2
    assert "--ranks: got one beside" in capsys.readouterr().err


def test_a_root_where_there_is_none_is_refused(tmp_path, capsys):
    file = tmp_path / "ring.json"
    assert main(["schedule", "all_reduce", "-n", "3", "--format", "json", "--output", str(file)]) == 0
    file.write_text(json.dumps(json.loads(file.read_text()) | {"root": 1}))
    assert main(["schedule", str(file)]) == 2
    assert "got root 1, expected none for all_reduce" in capsys.readouterr().err


def test_traces_are_a_file_for_each_rank(capsys, tmp_path):
    words = "all_reduce --algorithm ring -n 3 --format chakra".split()
    assert run(capsys, *words, "--output", str(tmp_path / "trace"))[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trace.0.et", "trace.1.et", "trace.2.et"]
    code, _, err = run(capsys, *words)
    assert code == 2
    assert "--output: got none for chakra" in err


def test_an_mscclpp_plan_is_not_taken_for_ours(capsys, tmp_path):
    path = tmp_path / "plan.json"
    assert main(["schedule", "all_reduce", "--format", "mscclpp-json", "--output", str(path)]) == 0
    code, out, err = run(capsys, str(path))
    assert (code, out) == (2, "")
    assert "MSCCL++ plan, which is written and not read" in err


def test_a_module_of_the_current_folder_is_found(capsys, tmp_path, monkeypatch):
    source = "from lanterne.collectives.algorithms.ring import ring_all_reduce\n"
    (tmp_path / "of_this_folder.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", str(tmp_path))])
    code, out, _ = run(capsys, "all_reduce", "--algorithm", "of_this_folder:ring_all_reduce", "-n", "4")
    assert code == 0
    assert "ring" in out
