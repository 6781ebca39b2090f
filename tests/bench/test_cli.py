"""The command line: help without heavy imports, one line for every error, exit codes."""

import argparse
import importlib
import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lanterne import __main__ as entry
from lanterne.bench import cli, command_line
from lanterne.bench.output.given_options import GivenOptions
from lanterne.errors import InputError, LanterneError, Unavailable

HEAVY = {"numba", "mpi4py", "matplotlib", "ortools", "networkx", "ucxx", "cupy"}


def run(*argv):
    return subprocess.run(
        [sys.executable, "-m", "lanterne", *argv], capture_output=True, text=True, timeout=120, check=False
    )


def test_help_names_every_command():
    result = run("--help")
    assert result.returncode == 0
    for name, (_, line) in cli.COMMANDS.items():
        assert f"  {name} " in result.stdout and line in result.stdout, (name, line)


def test_help_of_a_family_lists_its_commands(capsys):
    assert cli.main(["pipeline", "--help"]) == 0
    said = capsys.readouterr().out
    assert [name for name in cli.COMMANDS if f"  {name} " in said] == [*cli.LANTERNE.family("pipeline")]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help_that_teaches(name, capsys):
    module = importlib.import_module(f"lanterne.bench.{cli.COMMANDS[name][0]}")
    with pytest.raises(SystemExit, match="0"):
        cli.main([*name.split(), "--help"])
    text = capsys.readouterr().out
    assert text.startswith(f"usage: lanterne {name}")
    assert module.__doc__.strip().splitlines()[0] in text


def test_help_loads_nothing_heavy():
    code = f"""
import contextlib, sys
from lanterne.bench import cli
for name in cli.COMMANDS:
    with contextlib.suppress(SystemExit):
        cli.main([*name.split(), "--help"])
    assert not {HEAVY!r} & sys.modules.keys(), (name, {HEAVY!r} & sys.modules.keys())
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("usage: lanterne ") >= len(cli.COMMANDS)


def test_version():
    assert run("--version").stdout == "lanterne 0.1.0\n"


@pytest.mark.parametrize("argv", [["bench"], ["pipeline", "plan"], ["bench", "p2p"]], ids=" ".join)
def test_help_of_a_command_is_its_own(argv, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["help", *argv])
    assert capsys.readouterr().out.startswith(f"usage: lanterne {' '.join(argv)} ")


@pytest.mark.parametrize("argv", [["info"], ["schedule", "all_reduce", "-n", "4"], ["detect", "--help"]])
def test_a_closed_output_is_one_line(argv):
    command = [sys.executable, "-m", "lanterne", *argv]
    closed = 'exec "$@" >&-'
    result = subprocess.run(["sh", "-c", closed, "sh", *command], stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "lanterne: cannot write standard output: it is closed\n"


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["nope"], "command: got 'nope', expected one of"),
        (["inof"], "did you mean 'info'?"),
        (
            ["bench", "all_reduce", "--algoritm", "ring"],
            "option: got '--algoritm' (did you mean '--algorithm'?), expected",
        ),
        (
            ["bench", "all_reduce", "--algoritm=ring"],
            "option: got '--algoritm' (did you mean '--algorithm'?), expected",
        ),
        (
            ["bench", "all_reduce", "--zzz"],
            "option: got '--zzz', expected one that the help lists (see `lanterne bench",
        ),
        (["info", "now"], "got 'now' too many, expected nothing more (see `lanterne info --help`)"),
        (["bench", "all_reduec"], "got 'all_reduec' (did you mean 'all_reduce'?), expected one of"),
        (
            ["schedule", "all_reduce", "--algorithm", "rign"],
            "got 'rign' for all_reduce (did you mean 'ring'?), expected",
        ),
        (["schedule", "all_reduce", "--format", "jsn"], "--format: got 'jsn' (did you mean 'json'?), expected one of"),
        (
            ["pipeline", "plan", *"--scheduler zbv --stages 2 --microbatches 2 --forward 1ms".split()],
            "got 'zbv' (did you mean 'zb_v'?), expected one of",
        ),
        (["rebalance", "--time", "1,2", "--microbatches", "8"], "got '--time' (did you mean '--times'?), expected"),
        (["help", "inof"], "did you mean 'info'?"),
        (["pipeline"], "command: got 'pipeline', expected one of pipeline plan, pipeline check, "),
        (["pipeline", "trian"], "command: got 'pipeline trian' (did you mean 'pipeline train'?), expected one of"),
        (["pipeline", "train", "--data", __file__, "--checkpoint", "/no/such/folder/x.npz"], "cannot write /no/such"),
        (["info", "--jso", "x"], "--jso"),
        (
            ["info", "--json", "/no/such/folder/x.json"],
            "cannot write /no/such/folder/x.json: No such file or directory",
        ),
        (["detect", "no.csv", "--plot", "x.gif"], "cannot draw x.gif: expected a name that ends in .png, .svg or .pdf"),
        (["bench", "--transport", "nccl"], "--transport: got nccl with --device cpu, expected --device cuda"),
        (["bench", "--algorithm", "rong"], "auto, native or all"),
        (["bench", "--algorithm", "no.module:function"], "--algorithm: algorithm no.module:function: No module"),
        (["bench", "--late-rank", "1", "--delay", "-5ms"], "--delay: got '-5ms', expected a time"),
    ],
)
def test_bad_words_are_one_line_and_exit_2(argv, part):
    result = run(*argv)
    assert result.returncode == 2
    assert part in result.stderr
    assert result.stderr.startswith("lanterne: ") and result.stderr.count("\n") == 1


@pytest.mark.parametrize("old", cli.LANTERNE.moved)
def test_a_removed_command_or_option_names_its_replacement(old, capsys):
    assert cli.main([*old.split(), "--help"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"expected {cli.LANTERNE.moved[old]}" in said
    if name := cli._MOVED.get(old):
        evaluation = pytest.importorskip("evaluation.__main__", reason="an sdist leaves it out")
        assert name in evaluation.COMMANDS


def test_words_of_the_users_program_are_its_own():
    assert cli.main(["launch", "-n", "1", "--", "true", "--spares"]) == 0


def test_a_value_is_no_command_that_has_moved():
    cli.LANTERNE.refuse_moved("bench", ["all_reduce", "--transport", "mpi"])
    with pytest.raises(InputError, match="--otlp"):
        cli.LANTERNE.refuse_moved("watch", ["--otlp=http://h", "--", "true"])
    cli.LANTERNE.refuse_moved("watch", ["--", "true", "--otlp"])


def test_no_words_show_the_help_and_exit_2():
    result = run()
    assert result.returncode == 2 and "commands:" in result.stderr and result.stdout == ""


@pytest.mark.parametrize(("error", "code"), [(InputError, 2), (Unavailable, 3), (LanterneError, 1)])
def test_errors_become_exit_codes(monkeypatch, capsys, error, code):
    def fail(_args):
        raise error("what, where, got, expected")

    info = importlib.import_module("lanterne.bench.info")
    monkeypatch.setattr(info, "run", fail)
    assert cli.main(["info"]) == code
    assert capsys.readouterr().err == "lanterne: what, where, got, expected\n"


def test_the_longest_name_wins(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "bench info", ("info", "two words"))
    assert cli.LANTERNE.find_command(["bench", "info", "--json", "-"]) == ("bench info", ["--json", "-"])
    assert cli.LANTERNE.find_command(["bench", "all_reduce"]) == ("bench", ["all_reduce"])
    assert cli.LANTERNE.find_command(["nothing"]) == (None, ["nothing"])


@pytest.mark.parametrize("name", cli.LANTERNE.starts_jobs)
def test_what_starts_jobs_is_not_for_inside_of_one(name, monkeypatch, capsys):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert cli.main(name.split()) == 2
    assert capsys.readouterr().err == f"lanterne: {name}: got a job around it, expected none: it starts its own\n"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_forty_digits_are_no_whole_number(name):
    parser = cli.LANTERNE.build_parser(name)
    for action in parser._actions:
        if action.type is not None and action.type is not float:
            with pytest.raises(
                argparse.ArgumentError, match=r"^argument .*: got '1{40}', expected a whole number of at most"
            ):
                parser._get_value(action, "1" * 40)


@pytest.mark.parametrize("text", ["abc", "-1", "nan", ""])
def test_a_default_timeout_that_cannot_be(text):
    environment = {**os.environ, "LANTERNE_TIMEOUT_S": text}
    command = [sys.executable, "-m", "lanterne", "info"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert result.stderr == f"lanterne: LANTERNE_TIMEOUT_S: got {text!r}, expected a positive number of seconds\n"


@pytest.mark.parametrize(
    ("command", "ended", "code"),
    [("pipeline train", 137, 1), ("pipeline train", 143, 143), ("lab", 137, 137), ("demo", 1, 1)],
)
def test_a_rank_that_a_signal_ended_is_a_failure(command, ended, code, monkeypatch):
    args = GivenOptions(run=lambda args: ended)
    parser = SimpleNamespace(parse=lambda rest: args)
    monkeypatch.setattr(command_line.CommandLine, "build_parser", lambda self, name: parser)
    monkeypatch.setattr(command_line, "check_outputs", lambda args: None)
    assert cli.main(command.split()) == code


def test_an_error_is_short_whatever_it_quotes(capsys):
    for text, most in (("x" * 5000, 300), ("/" + "y" * 5000, 500), (" ".join(["column"] * 5000), 700)):
        assert cli.main(["schedule", text]) == 2, text
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and len(err) < most, text


@pytest.mark.parametrize("limit", [1 << 28, resource.RLIM_INFINITY])
def test_libraries_that_the_address_space_has_no_room_for_are_one_line(monkeypatch, capsys, limit):
    def cannot_load():
        raise OSError("libx.so: failed to map segment from shared object")

    monkeypatch.setattr(cli, "main", cannot_load)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, limit))
    if limit == resource.RLIM_INFINITY:
        with pytest.raises(OSError, match="failed to map"):
            entry.main()
        return
    assert entry.main() == 3
    error = capsys.readouterr().err
    assert "got 268 MB of address space" in error and error.count("\n") == 1


@pytest.mark.parametrize("line", ["demo", "pipeline train --data x"])
def test_a_seed_below_0_is_refused(line, capsys):
    assert cli.main([*line.split(), "--seed", "-1"]) == 2
    assert "--seed: got '-1', expected a whole number of at least 0" in capsys.readouterr().err
