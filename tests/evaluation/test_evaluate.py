"""`./run evaluate`: each command teaches, and a program of evaluation/ is a command too."""

import importlib
import subprocess
import sys

import pytest

from evaluation.__main__ import COMMANDS, EVALUATE


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_that_teaches(name, capsys):
    module = importlib.import_module(f"evaluation.{COMMANDS[name][0]}")
    with pytest.raises(SystemExit, match="0"):
        EVALUATE.main([name, "--help"])
    text = capsys.readouterr().out
    assert text.startswith(f"usage: ./run evaluate {name} ")
    assert module.__doc__.strip().splitlines()[0] in text


@pytest.mark.parametrize("name", EVALUATE.starts_jobs)
def test_a_command_that_starts_jobs_refuses_to_run_inside_one(name, monkeypatch, capsys):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    assert EVALUATE.main([name]) == 2
    assert capsys.readouterr().err == f"lanterne: {name}: got a job around it, expected none: it starts its own\n"


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (["detector.score", "--help"], 0, "usage: ./run evaluate detector.score "),
        (["schedules", "-n", "3", "--algorithm", "ring"], 0, "ring"),
        (["ddpp"], 2, "command: got 'ddpp' (did you mean 'ddp'?), expected one of"),
    ],
    ids=["program", "command", "neither"],
)
def test_words_find_their_program(words, code, part):
    command = [sys.executable, "-P", "-m", "evaluation", *words]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == code
    assert part in result.stdout + result.stderr
