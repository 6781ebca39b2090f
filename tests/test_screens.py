"""Commands on terminals that are narrow or want no colour, into pipes, without a home, a compiler, or a PATH."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from lanterne.bench.output import report

BIN = Path(sys.executable).parent
COLUMNS = 60
BENCH = "bench all_reduce -n 2 --transport tcp --bytes 4K --late-rank 1 --delay 5ms --iterations 1 --warmup 0".split()
WITHOUT = ("HOME", "XDG_CACHE_HOME", "LANTERNE_CACHE", "NO_COLOR", "COLUMNS")


def environment(**variables):
    return {name: value for name, value in os.environ.items() if name not in WITHOUT} | variables


def on_a_terminal(words, columns=COLUMNS, **variables):
    """(exit code, what `lanterne WORDS` writes to a terminal of so many columns)."""
    own, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [str(BIN / "lanterne"), *words], stdin=its, stdout=its, stderr=its, env=environment(**variables)
    )
    os.close(its)
    written = b""
    try:
        while chunk := os.read(own, 65536):
            written += chunk
    except OSError:  # the other end is closed
        pass
    os.close(own)
    return process.wait(60), written.decode()


def test_a_benchmark_fits_a_narrow_terminal_without_a_home_to_write_to():
    code, text = on_a_terminal(BENCH, HOME="/proc/none", NO_COLOR="1", TERM="xterm")
    assert code == 0, text
    # What progress has written is cleared before the next of it.
    shown = [re.split(r"\r\x1b\[K", line)[-1].rstrip("\r") for line in text.split("\n")]
    everything = [part for line in text.split("\n") for part in re.split(r"\r\x1b\[K|\r", line)]
    assert max(map(len, everything)) <= COLUMNS
    assert "\x1b" not in "".join(shown)
    assert sum(line.startswith("algorithm") for line in shown) > 1, text
    assert any(line.split()[-1:] == ["#wrong"] for line in shown)


def test_a_benchmark_in_a_pipe_needs_neither_a_home_nor_a_compiler():
    """Its table is one, as wide as it is, for whoever reads it by columns."""
    result = subprocess.run(
        [str(BIN / "lanterne"), *BENCH],
        check=False,
        env=environment(PATH=str(BIN)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    (header,) = (line for line in result.stdout.splitlines() if line.startswith("algorithm"))
    assert header.endswith("#wrong") and len(header) > COLUMNS


@pytest.mark.parametrize("limit", [None, 10, 30, 60, 200])
def test_a_table_is_folded_by_columns(monkeypatch, limit):
    monkeypatch.setattr(report, "columns_of", lambda file: limit)
    columns = [("scheduler", ""), ("plane", ""), *((f"c{i}", "s") for i in range(12))]
    rows = [[f"row{r}", "inline", *(f"{r}.{i}" for i in range(12))] for r in range(3)]
    out = io.StringIO()
    report.print_table(columns, rows, notes=["a note " * 12], left=(0, 1), file=out)
    lines = out.getvalue().splitlines()
    assert all(sum(f"{r}.{i}" in line.split() for line in lines) == 1 for r in range(3) for i in range(12))
    if limit is None or limit == 200:
        assert sum(line.startswith("row0") for line in lines) == 1
    else:
        table = [line for line in lines if not line.startswith("#")]
        assert max(map(len, table)) <= max(limit, len("scheduler  inline  10.11"))
        assert sum(line.startswith("row0") for line in table) > 1
        assert limit < 60 or all("inline" in line for line in table if line.startswith("row"))
