"""The checkout that scores are taken of, and commands that are run in it."""

import subprocess
from pathlib import Path

ROOT: Path = Path(__file__).resolve().parent.parent


def said_by(*command: str) -> tuple[int, str]:
    """(exit code, last line) of a command in the checkout."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, (done.stdout + done.stderr).strip().rpartition("\n")[2]
