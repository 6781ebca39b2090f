"""Each program in examples/ does what it says, started as its first lines say."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = sorted(path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("__"))
MPIEXEC = str(Path(sys.executable).parent / "mpiexec")


def test_there_are_at_least_ten():
    assert len(PROGRAMS) >= 10


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_example(program, tmp_path):
    text = program.read_text()
    if "torch" in program.stem and find_spec("torch") is None:
        pytest.skip("PyTorch is not installed")
    launcher = [MPIEXEC, "-n", "4"] if "-n 4" in text else []
    command = [*launcher, sys.executable, str(program)]
    result = subprocess.run(
        command,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr
    assert result.stdout
