"""`lanterne bench`: its contract, its exit codes, its bad input."""

import json
import os
import pty
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lanterne.bench import cli
from lanterne.bench.collective.all_reduce import chosen, name_of, over_best
from lanterne.bench.collective.settings import parse
from lanterne.collectives.algorithms.catalogue import UNSCHEDULED, make_schedule
from lanterne.collectives.auto.tuning import Choice
from lanterne.collectives.schedule.formats.export_json import to_json

KEYS = {
    "collective", "algorithm", "transport", "device", "ranks", "nbytes", "count", "dtype", "op", "late_rank", "delay_s",
    "time_s", "late_s", "algbw_gbytes_per_s", "busbw_gbytes_per_s", "wrong",
}  # fmt: skip


def bench(*argv, launcher=()):
    command = [*launcher, sys.executable, "-m", "lanterne", "bench", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_who_looks_sees_progress():
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "lanterne", "bench", *"all_reduce -n 2 --bytes 1K --iterations 2".split()]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=slave, text=True, timeout=240, check=False)
    os.close(slave)
    said = os.read(master, 65536).decode()
    os.close(master)
    assert result.returncode == 0 and "wrong" in result.stdout and "\x1b" not in result.stdout
    assert "starting 2 ranks" in said and "1/1 1 KiB ring 2/2" in said and said.endswith("\x1b[K")


def test_contract(tmp_path):
    file = tmp_path / "result.json"
    result = bench(
        *"all_reduce -n 3 --algorithm ring,native --bytes 4K,1M --late-rank 2 --delay 0,5ms --iterations 3".split(),
        *("--json", str(file)),
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    document = json.loads(file.read_text())
    assert document["schema_version"] == 1 and document["environment"]["cpus"] >= 1 and "bench" in document["argv"]
    records = document["results"]
    assert len(records) == 2 * 2 * 2
    for record in records:
        assert record.keys() >= KEYS, record
        assert record["wrong"] == 0 and record["ranks"] == 3 and len(record["time_s"]) == 3, record
        late = record["delay_s"] > 0
        assert record["late_rank"] == (2 if late else None), record
        assert len(record["late_s"]) == (3 if late else 0), record
        assert (record["algbw_gbytes_per_s"] is None) == late, record
        if not late:
            assert record["busbw_gbytes_per_s"] == pytest.approx(record["algbw_gbytes_per_s"] * 4 / 3), record
    # The table is rendered from the same records, and shown once.
    assert result.stdout.count("#wrong") == 1
    assert sum(line.startswith(("ring ", "native ")) for line in result.stdout.splitlines()) == 8


def test_json_on_standard_output_is_alone_there(capsys):
    words = "bench all_gather -n 2 --transport local --algorithm ring --bytes 64 --json -"
    assert cli.main(words.split()) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["results"][0]["nbytes"] == 64 and "#wrong" in err


def test_all_is_every_algorithm_that_can_run_here(tmp_path):
    file = tmp_path / "result.json"
    words = "all_reduce -n 2 --algorithm all --bytes 1K --late-rank 1 --delay 0,1ms --iterations 1 --json".split()
    result = bench(*words, str(file))
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    records = json.loads(file.read_text())["results"]
    assert {record["algorithm"] for record in records} >= {"ring", "late_join", *UNSCHEDULED}
    assert {record["wrong"] for record in records} == {0}


@pytest.mark.parametrize("algorithm", UNSCHEDULED)
def test_what_has_no_schedule_may_be_named(algorithm):
    assert bench(*f"all_reduce -n 2 --algorithm {algorithm} --bytes 1K --iterations 1".split()).returncode == 0


def test_under_a_foreign_mpiexec(tmp_path):
    file = tmp_path / "result.json"
    mpiexec = sys.executable.rsplit("/", 1)[0] + "/mpiexec"
    result = bench(
        *"all_reduce --bytes 1K --algorithm ring --iterations 2 --json".split(),
        str(file),
        launcher=[mpiexec, "-n", "2"],
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(file.read_text())["results"][0]["ranks"] == 2


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["all_redcue"], "bench: got 'all_redcue' (did you mean 'all_reduce'?), expected one of all_reduce, "),
        (["all_reduce", "-n", "0"], "-n: got 0, expected 1 to"),
        (["all_reduce", "-n", "two"], "-n/--ranks: got 'two', expected a whole number"),
        (["all_reduce", "-n", "2", "--transport", "pigeon"], "got 'pigeon', expected one of"),
        (["all_reduce", "-n", "2", "--transport", "local", "--algorithm", "rign"], "got 'rign'"),
        (["all_reduce", "-n", "2", "--bytes", "many"], "--bytes: got 'many', expected a size"),
        (["all_reduce", "-n", "2", "--min-bytes", "2K", "--max-bytes", "1K"], "expected 0 < min <= max"),
        (["all_reduce", "-n", "2", "--dtype", "complex64"], "--dtype: got 'complex64'"),
        (["all_reduce", "-n", "2", "--late-rank", "2"], "--late-rank: got 2, expected 0 to 1"),
        (["all_reduce", "-n", "2", "--late-rank", "-1"], "--late-rank: got -1, expected 0 to 1"),
        (["all_reduce", "-n", "2", "--bytes", "1K,0"], "--bytes: got 1K,0, expected sizes of at least 1"),
        (["all_reduce", "-n", "2", "--op", "avg"], "--op: got 'avg', expected one of sum, prod"),
        (["all_reduce", "-n", "2", "--delay", "5ms"], "without --late-rank"),
        (["all_reduce", "-n", "2", "--late-rank", "0", "--delay", "soon"], "--delay: got 'soon', expected a time"),
        (["all_reduce", "-n", "2", "--bytes", "100TiB"], "--bytes, --max-bytes: got 100 TiB, expected at most"),
        (["all_reduce", "-n", "2", "--bytes", "1e30"], "expected at most"),
        (["all_reduce", "-n", "2", "--timeout", "0"], "--timeout: got 0, expected more than 0"),
        (["all_reduce", "--transport", "local"], "-n: got none"),
        (["all_reduce", "-n", "2", "--emulate", "fast"], "--emulate: got 'fast', expected a rate"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(argv, part, capsys):
    assert cli.main(["bench", *argv]) == 2
    out, err = capsys.readouterr()
    assert part in err and err.count("\n") == 1, err
    assert out == ""


def test_bad_input_that_only_ranks_find_is_one_line_and_exit_2():
    result = bench("all_reduce", "-n", "2", "--dtype", "float16", "--algorithm", "native")
    assert result.returncode == 2, result.stderr
    assert "got 'native' for all_reduce of float16" in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(("collective", "native", "op"), [("all_reduce", False, "sum"), ("all_gather", True, None)])
def test_the_default_leaves_out_what_mpi_cannot_reduce(tmp_path, collective, native, op):
    file = tmp_path / "result.json"
    result = bench(
        collective, "-n", "2", "--dtype", "float16", "--bytes", "1K", "--iterations", "1", "--json", str(file)
    )
    assert result.returncode == 0, result.stderr
    records = json.loads(file.read_text())["results"]
    assert ("native" in {record["algorithm"] for record in records}) == native
    assert {(record["op"], record["wrong"]) for record in records} == {(op, 0)}


def test_a_missed_bar_is_exit_1():
    words = "bench all_reduce -n 2 --transport local --algorithm ring --bytes 1K --iterations 2 --min-busbw".split()
    assert cli.main([*words, "0.000001"]) == 0
    assert cli.main([*words, "1e9"]) == 1


def test_over_best_is_over_the_fastest_fixed_algorithm_in_the_same_rounds_of_the_case():
    case = {"nbytes": 64, "delay_s": 0.0}
    # The second round was disturbed, and rhd is the quicker of the two in every round.
    results = [
        {"algorithm": "auto", "time_s": [2.0, 40.0, 2.2], **case},
        {"algorithm": "native", "time_s": [0.1, 0.1, 0.1], **case},
        {"algorithm": "ring", "time_s": [3.0, 30.0, 2.9], **case},
        {"algorithm": "rhd", "time_s": [2.0, 20.0, 2.0], **case},
        {"algorithm": "ring", "time_s": [0.5] * 3, **case | {"nbytes": 128}},
        {"algorithm": "ring", "time_s": [0.5] * 3, **case | {"delay_s": 0.1}},
    ]
    assert over_best(results, results[0]) == pytest.approx(1.1)
    assert over_best(results, results[3]) == 1.0
    assert over_best(results[:2], results[0]) is None


def test_auto_is_named_by_what_ran_most():
    comm = SimpleNamespace(tuning=SimpleNamespace(choose=lambda collective, nbytes: Choice("ring", None, "given")))
    for ran, counted, label in [
        ({}, {}, "auto (ring)"),
        ({"": 2, "late_join/8": 4, "late_hybrid/8/4": 1}, {"ring": 2, "late_join": 4, "late_hybrid": 1}, "late_join"),
    ]:
        choice = chosen(comm, "all_reduce", 1024, ran)
        assert choice == {"algorithm": "ring", "num_chunks": None, "reason": "given", "ran": counted}, (
            ran,
            counted,
            label,
        )
        assert label in name_of({"algorithm": "auto", "chosen": choice}), (ran, counted, label)
    assert name_of({"algorithm": "ring", "chosen": None}) == "ring"


def test_the_main_job_shows_the_gain_over_emulated_links_first(tmp_path):
    file, picture = tmp_path / "result.json", tmp_path / "late.svg"
    words = "--bytes 256K --emulate 100mbit --delay 0,30ms --iterations 3 --json".split()
    result = bench(*words, str(file), "--plot", str(picture))
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    records = json.loads(file.read_text())["results"]
    linked = [record for record in records if record["emulated_bytes_per_s"]]
    assert records[: len(linked)] == linked and {record["emulated_bytes_per_s"] for record in linked} == {12.5e6}
    assert {record["algorithm"] for record in linked} == {"auto", "ring"}
    assert {record["algorithm"] for record in records[len(linked) :]} == {"auto", "ring", "native"}
    assert not any(record["wrong"] for record in records)
    # Nothing is faster than the links: each rank has 3/2 of the buffer to send, and to receive.
    ring = [record for record in linked if record["algorithm"] == "ring"]
    assert all(min(record["late_s"] or record["time_s"]) > 1.5 * record["nbytes"] / 12.5e6 for record in ring)
    assert result.stdout.count("emulated links, 100 Mbit/s") == 2 and "emulated links" in picture.read_text()


@pytest.mark.parametrize(
    ("words", "rates"),
    [
        ("", [12.5e6, None]),
        ("--emulate 1gbit", [125e6, None]),
        ("all_reduce -n 2 --emulate 1gbit", [125e6]),
        ("all_reduce -n 2", [None]),
        ("--rate 200mbit", [None]),  # as on the emulated cluster, whose links are emulated already
    ],
)
def test_which_links_are_emulated(words, rates):
    parts = parse(cli.LANTERNE.build_parser("bench").parse(words.split()))
    assert [part.emulated_bytes_per_s for part in parts] == rates


def test_schedules_of_files_are_measured_beside_ours(tmp_path, capsys):
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps(to_json(make_schedule("all_reduce", "bruck", 3))))
    words = f"bench all_reduce --transport local --bytes 4K --iterations 1 --algorithm ring,{path},hier_slow.0".split()
    assert cli.main([*words, "-n", "3", "--json", "-"]) == 0
    records = json.loads(capsys.readouterr().out)["results"]
    assert [record["algorithm"] for record in records] == ["ring", str(path), "hier_slow.0"]
    assert [record["wrong"] for record in records] == [0, 0, 0]
    assert cli.main([*words, "-n", "4"]) == 2
    assert "theirs.json' for all_reduce" in capsys.readouterr().err
