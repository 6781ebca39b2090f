"""The README's Python runs as printed, and its commands exist."""

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lanterne.bench import cli

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", TEXT, re.S)
COMMANDS = [
    line.split("#")[0].strip() for block in re.findall(r"```sh\n(.*?)```", TEXT, re.S) for line in block.splitlines()
]
MPIEXEC = str(Path(sys.executable).parent / "mpiexec")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@pytest.mark.parametrize("launcher", [(), (MPIEXEC, "-n", "3")], ids=["alone", "mpiexec"])
@pytest.mark.parametrize("index", range(len(SNIPPETS)))
def test_snippets(tmp_path, index, launcher):
    program = tmp_path / "snippet.py"
    program.write_text(SNIPPETS[index])
    result = run(*launcher, sys.executable, str(program))
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist_and_their_options_parse(command):
    words = shlex.split(command.split(" | ")[0])
    if words[:2] == ["./run", "test"]:
        return
    if words[1:2] == ["-m"]:
        assert find_spec(words[2]), command
        return
    words = words[words.index("lanterne") + 1 :] if "lanterne" in words else words[1:]
    if words == ["--help"]:
        return
    name, rest = cli.find_command(words)
    assert name is not None, command
    cli.build_parser(name).parse_args(rest)
