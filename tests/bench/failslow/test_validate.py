"""lanterne validate: options, bad input, and a rehearsal from the shell."""

import json
import subprocess
import sys

import pytest

from lanterne.bench import cli
from lanterne.bench.failslow.validate import slow_link, slow_rank
from lanterne.errors import InputError
from lanterne.failslow.validate.judge import Finding
from lanterne.failslow.validate.validate import Injected
from lanterne.transport.shaped import Link


def test_rehearsals():
    assert slow_rank("3=1.5x") == (3, Injected(1.5, 1.5))
    assert slow_rank("0=2x@together") == (0, Injected(1.0, 2.0))
    assert slow_link("0-1=20ms") == {(0, 1): Link(latency_s=20e-3), (1, 0): Link(latency_s=20e-3)}
    assert slow_link("2>0=50mbit") == {(2, 0): Link(bandwidth_bytes_per_s=6.25e6)}


@pytest.mark.parametrize("text", ["3", "3=", "3=0.5x", "a=2x", "3=2", "3=2x@later"])
def test_bad_slow_rank(text):
    with pytest.raises(InputError, match="--slow-rank"):
        slow_rank(text)


@pytest.mark.parametrize("text", ["0-1", "0-0=2ms", "0=2ms", "0-1=fast", "x-1=2ms"])
def test_bad_slow_link(text):
    with pytest.raises(InputError, match="--slow-link"):
        slow_link(text)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["-n", "1"],
        ["-n", "4", "--limit", "0s"],
        ["-n", "4", "--bytes", "0"],
        ["-n", "4", "--ranks", "a"],
        ["-n", "4", "--links", "3"],
        ["--transport", "local"],
        ["-n", "3", "--transport", "local", "--slow-rank", "7=2x"],
        ["-n", "3", "--transport", "local", "--ranks", "0,9"],
    ],
)
def test_bad_options_are_one_line_and_code_2(words, capsys, monkeypatch):
    monkeypatch.delenv("PMI_RANK", raising=False)
    assert cli.main(["validate", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_rehearsal_from_the_shell(tmp_path):
    file = tmp_path / "found.json"
    words = ["-n", "3", "--limit", "3s", "--bytes", "256K", "--slow-link", "1>2=20ms", "--slow-rank", "0=3x"]
    command = [sys.executable, "-m", "lanterne", "validate", *words, "--json", str(file)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1, result.stderr
    assert "SLOW link 1 -> 2: " in result.stdout and "latency 20" in result.stdout
    document = json.loads(file.read_text())
    assert document["schema_version"] == 1
    assert ["link", [[1, 2]]] in [[finding["kind"], finding["links"]] for finding in document["findings"]]
    # A transfer is complete no sooner than a small message is, which computing beside it delays.
    transfers = [record for record in document["links"] if record["when"] == "alone"]
    assert all(min(record["time_s"]) > record["latency_s"] / 2 for record in transfers)
    alone = [record for record in document["compute"] if record["when"] == "alone"]
    own_s = {rank: min(min(r["cpu_s"]) for r in alone if r["rank"] == rank and "32" in r["load"]) for rank in range(3)}
    assert own_s[0] > 2 * own_s[1] and own_s[0] > 2 * own_s[2]
    # Where others leave it no core to itself, nobody is blamed.
    assert {tuple(f["ranks"]) for f in document["findings"] if f["kind"] == "compute"} <= {(0,)}


def test_a_sweep_is_kept_and_judged_by_those_before(tmp_path):
    from types import SimpleNamespace

    from lanterne.bench.failslow.validate import admit

    def swept(wall_s, busy=()):
        compute = [{"rank": rank, "load": "a", "when": "alone", "wall_s": [wall_s], "cpu_s": []} for rank in (0, 1)]
        return SimpleNamespace(compute=compute, links=[], busy=busy, unsure=())

    where = str(tmp_path / "hosts.jsonl")
    first = [admit(where, swept(1.0), ("h", "h")) for _ in range(5)]
    assert [against for against, _ in first] == [{"h": []}] * 5
    assert "4 of its own are known, 0 of other hosts, of 5 or 3 that are needed" in first[-1][1]["h"]
    # Of a host whose cores other work used, nothing is said; none of the sweep is kept.
    contended = Finding("contention", (0,), (), "alone", 2.0, "")
    against, untold = admit(where, swept(9.0, busy=(contended,)), ("h", "i"))
    assert against["h"] == [] and "other work used the cores" in untold["h"]
    assert against["i"] == ["a, alone: 9.00 times other hosts' usual (5 sweeps)"]
    against, untold = admit(where, swept(2.0), ("h", "i"))
    assert against["h"] == ["a, alone: 2.00 times its own usual (5 sweeps)"]
    assert against["i"] == ["a, alone: 2.00 times other hosts' usual (5 sweeps)"] and set(untold.values()) == {""}


def probing(comm, path):
    """A probing job whose link is slow on purpose."""
    from lanterne.bench.failslow import validate as command

    args = command_arguments("-n", "3", "--limit", "2s", "--bytes", "64K", "--history", path, "--every", "1ms")
    options = command.parse(args) | {"slow_links": command.slow_link("1-2=30ms")}
    command.run_rank(comm, options, args)


def command_arguments(*words):
    return cli.LANTERNE.build_parser("validate").parse_args(words)


def test_a_probing_job_keeps_each_sweep_for_the_census(tmp_path, capsys, monkeypatch):
    from lanterne.bench.failslow import validate as command
    from lanterne.collectives.jobs import spawn
    from lanterne.failslow.operate.history import FileHistory

    path = tmp_path / "probes.jsonl"
    kept = command.keep_probe

    def keep_two(where, *about):
        kept(where, *about)
        if path.read_text().count("\n") == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(command, "keep_probe", keep_two)
    with pytest.raises(KeyboardInterrupt):
        spawn(3, probing, str(path), timeout_s=60.0)
    entries, unused = FileHistory(path).read()
    assert unused == 0 and len({entry["job"] for entry in entries}) == 1 and len(entries) == 2
    # A sweep takes longer than the millisecond between two.
    assert entries[0]["every_s"] > 0.1 and all(entry["slow"]["network"] > 2 for entry in entries)
    capsys.readouterr()
    assert cli.main(["history", str(path), "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["census"]
    met = {row["cause"]: row["probes"] for row in rows}
    assert met["network"] + met["several"] >= 2 and [row["scale"] for row in rows] == ["1 host"] * 5
    assert cli.main(["history", str(path)]) == 0
    assert "network" in capsys.readouterr().out
    assert cli.main(["history", str(path), "--host", "elsewhere", "--json", "-"]) == 0
    assert "census" not in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--admit", "."], "a folder, expected a file"),
        (["--admit", "x", "--slow-rank", "0=2x"], "got a rehearsal"),
        (["--history", "."], "--history: got ., a folder, expected a file"),
        (["--history", "x", "--slow-link", "0-1=2ms"], "--history: got a rehearsal"),
        (["--every", "10min"], "--every: got no --history"),
        (["--every", "0", "--history", "x"], "--every: got 0, expected more than 0"),
    ],
)
def test_histories_that_cannot_be(words, said, capsys):
    assert cli.main(["validate", "-n", "2", *words]) == 2
    assert said in capsys.readouterr().err
