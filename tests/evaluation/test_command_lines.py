"""Generated command lines: each option is tried, and each kind of fault is found."""

import subprocess
import sys
import time
from collections import Counter

import pytest

from evaluation.judges import command_lines
from evaluation.judges.command_lines import EACH, draw_lines, options_of, run_line
from lanterne.bench.cli import COMMANDS

NAP = [sys.executable, "-c", "import time; time.sleep(60)"]


def test_each_option_stands_in_three_lines_and_a_seed_draws_the_same():
    lines = draw_lines(1, 7)
    assert lines == draw_lines(1, 7) != draw_lines(1, 8)
    seen = Counter((name, word) for name, words in lines for word in set(words) if word.startswith("-"))
    for name in COMMANDS:
        for action in options_of(name):
            assert sum(seen[name, option] for option in action.option_strings) >= EACH, (name, action.option_strings)


def _raises(words):
    raise RuntimeError("a fault")


def _hangs(words):
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            continue


def _leaves_a_process(words):
    subprocess.Popen(NAP, start_new_session=True)
    return 0


def _prints_much(words):
    print("x" * 5000)
    return 2


@pytest.mark.parametrize(
    ("fault", "main"),
    [
        ("", lambda words: 2),
        ("traceback", _raises),
        ("endless", _hangs),
        ("left processes", _leaves_a_process),
        ("exit code 7", lambda words: 7),
        ("wide error", _prints_much),
    ],
)
def test_a_fault_is_found(fault, main, monkeypatch, tmp_path):
    monkeypatch.setattr(command_lines.cli, "main", main)
    monkeypatch.setattr(command_lines, "TO_END_S", 0.5)
    outcome = run_line("schedule", ("schedule",), tmp_path, 0.5)
    assert outcome.fault == fault
