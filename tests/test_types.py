"""What type checkers tell the users of lanterne: nothing of a right program, and every slip of a wrong one."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Without PyTorch's types nobody can say whether its modules are used well.
CHECKED = [path for path in EXAMPLES if find_spec("torch") or "torch" not in path.stem]
# Each line has one slip, which the checkers must see; the first three lines have none.
SLIPS = """\
import numpy as np
import lanterne
comm = lanterne.init(); x = np.ones(4, np.float32)
comm.all_reduc(x, x)
lanterne.init(transprot="mpi")
lanterne.inti()
found = lanterne.inti
from lanterne import inti
comm.all_reduce(x, x, op=3)
comm.all_reduce(x, x, algoritm="ring")
comm.all_reduce()
comm.start_all_reduce(x, x).wiat()
comm.start_all_reduce(x, x).wait(timeout_s="long")
comm.broadcast(x, root="first")
comm.world_sise + 1
comm.rank.upper()
lanterne.spawn("four", print)
lanterne.PeerFailed(1).rnak
comm.split(color=[]).rank
comm.split(0).rnak
lanterne.spawn(2, lambda comm: comm.all_reduc(x, x))
lanterne.spawn(2, lambda comm, root: comm.broadcast(x, root=root), 0, 1)
"""
NUM_RIGHT = 3
CHECKERS = {
    "mypy": ("mypy", "--strict", "--no-error-summary", "--hide-error-context", "--cache-dir"),
    "pyright": ("basedpyright", "--pythonpath", sys.executable),
}


def complaints(checker, folder, *files):
    """{(file name, line number)} of the errors that `checker` finds, run as a user would outside the checkout."""
    words = [*CHECKERS[checker], *([str(folder / "cache")] if checker == "mypy" else [])]
    command = [sys.executable, "-P", "-m", *words, *map(str, files)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    lines = [line.strip() for line in result.stdout.splitlines() if " error: " in line or " - error: " in line]
    assert result.returncode in (0, 1), result.stdout + result.stderr
    return {(Path(line.split(":")[0]).name, int(line.split(":")[1])) for line in lines}


@pytest.fixture
def checker(request):
    pytest.importorskip(CHECKERS[request.param][0])
    return request.param


@pytest.mark.parametrize("checker", CHECKERS, indirect=True)
def test_every_slip_of_a_user_is_seen_and_nothing_else(checker, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.pyright]\ntypeCheckingMode = "standard"\n')
    wrong = tmp_path / "wrong.py"
    wrong.write_text(SLIPS)
    found = complaints(checker, tmp_path, wrong, *CHECKED)
    assert found == {("wrong.py", line) for line in range(NUM_RIGHT + 1, len(SLIPS.splitlines()) + 1)}
