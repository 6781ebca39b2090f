"""Files are written whole or not at all; links, pipes and devices are written through."""

import json
import os
import stat
import subprocess
import sys
import threading
from argparse import Namespace

import pytest

from lanterne.bench.cli import main
from lanterne.bench.output.report import OUTPUTS, check_outputs, tell, write_atomically, write_json
from lanterne.errors import InputError


def test_a_file_is_replaced_whole(tmp_path):
    file = tmp_path / "result.json"
    file.write_text("old" * 1000)
    write_json(file, {"a": 1})
    assert json.loads(file.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]


def test_what_json_has_no_number_for_is_null_with_a_reason(tmp_path):
    file = tmp_path / "result.json"
    document = {"results": [{"seconds": 1.5, "ratios": (float("nan"), 2.0)}], "bars": [{"found": float("inf")}]}
    write_json(file, document)
    assert json.loads(file.read_text()) == {
        "results": [{"seconds": 1.5, "ratios": [None, 2.0]}],
        "bars": [{"found": None}],
        "not_finite": [
            {"at": "results[0].ratios[0]", "reason": "not a number"},
            {"at": "bars[0].found", "reason": "inf"},
        ],
    }
    assert document["bars"] == [{"found": float("inf")}]


@pytest.mark.parametrize(("path", "on_output", "on_error"), [(None, "table", ""), ("-", '{\n "a": 1\n}\n', "table")])
def test_people_and_programs_are_told_apart(path, on_output, on_error, capsys):
    tell(path, {"a": 1}, lambda document, file: file.write("table"))
    assert tuple(capsys.readouterr()) == (on_output, on_error)


def test_a_link_stays_a_link(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_atomically(link, b"new")
    assert link.is_symlink() and target.read_bytes() == b"new"


def test_a_pipe_stays_a_pipe(tmp_path):
    fifo, got = tmp_path / "fifo", []
    os.mkfifo(fifo)
    reader = threading.Thread(target=lambda: got.append(fifo.read_bytes()))
    reader.start()
    write_atomically(fifo, b"data")
    reader.join(10)
    assert got == [b"data"] and stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.parametrize("place", [".", "absent/result.json", "file/result.json"])
def test_what_cannot_be_written_is_bad_input_and_leaves_nothing(tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        write_atomically(tmp_path / place, b"data")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("said", "text"),
    [(("Unable to allocate 100 TiB",), "out of memory: Unable to allocate 100 TiB"), ((), "out of memory")],
)
def test_memory_that_is_not_there_is_one_line_and_exit_1(monkeypatch, capsys, said, text):
    def run(args):
        raise MemoryError(*said)

    monkeypatch.setattr("lanterne.bench.info.run", run)
    assert main(["info"]) == 1
    assert capsys.readouterr().err == f"lanterne: {text}\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_full_standard_output_is_one_line_and_exit_1():
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "lanterne", "--version"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
        other = subprocess.run(
            [sys.executable, "-m", "lanterne", "schedule", "all_reduce", "-n", "2"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert result.returncode != 0
    assert other.returncode == 1
    assert other.stderr == "lanterne: cannot write standard output: No space left on device\n"


@pytest.mark.parametrize("option", OUTPUTS)
def test_a_file_that_could_not_be_written_is_told_before_the_work(option, tmp_path):
    check_outputs(Namespace(**{option: str(tmp_path / "a.png")}))
    missing = tmp_path / "no" / "a.png"
    with pytest.raises(InputError, match=f"--{option}: cannot write {missing}: No such file or directory"):
        check_outputs(Namespace(**{option: str(missing)}))
    with pytest.raises(InputError, match=f"--{option}: cannot write {tmp_path}: Is a directory"):
        check_outputs(Namespace(**{option: str(tmp_path)}))


def test_a_folder_without_permission_is_told_before_the_work(tmp_path, monkeypatch):
    plain, link, device = tmp_path / "a.json", tmp_path / "b.json", "/dev/null"
    link.symlink_to(tmp_path / "not yet there.json")
    # Root may write anywhere, so what the system says of a folder and of a device is put in its place.
    monkeypatch.setattr("os.access", lambda path, mode: str(path) == device)
    check_outputs(Namespace(json=device))
    for path in (plain, link):
        with pytest.raises(InputError, match=f"--json: cannot write {path}: Permission denied"):
            check_outputs(Namespace(json=str(path)))
    monkeypatch.setattr("os.access", lambda path, mode: path == tmp_path)
    for path in (plain, link):
        check_outputs(Namespace(json=str(path)))
