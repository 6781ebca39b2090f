"""Checkpoints: whole or not there, whatever happens; refused where they do not belong."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from lanterne.errors import InputError
from lanterne.pipeline.train.checkpoint import load, save
from lanterne.pipeline.train.state import TrainingState

ABOUT = {"width": 8, "text": "abc"}


def state(seed=0, count=50):
    vectors = np.random.default_rng(seed).normal(size=(3, count)).astype(np.float32)
    return TrainingState.of_vectors(3 + seed, 4 + seed, *vectors)


def test_round_trip(tmp_path):
    save(tmp_path / "x", state(), ABOUT)
    save(tmp_path / "x", state(1), ABOUT)
    found = load(tmp_path / "x", ABOUT)
    for name, value in vars(state(1)).items():
        np.testing.assert_array_equal(getattr(found, name), value, err_msg=name)
    assert found.values.dtype == np.float32
    assert os.listdir(tmp_path) == ["x"]


WRITER = """
import sys
import numpy as np
from lanterne.pipeline.train.checkpoint import TrainingState, save
number = 0
while True:
    save(sys.argv[1], TrainingState.of_vectors(number, number, *np.full((3, 200_000), number, np.float32)), {})
    number += 1
"""


def test_killed_at_any_time_a_whole_one_is_there(tmp_path):
    path = tmp_path / "x"
    for trial in range(6):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
        deadline = time.monotonic() + 30
        before = path.stat().st_mtime_ns if path.exists() else 0
        while (not path.exists() or path.stat().st_mtime_ns == before) and time.monotonic() < deadline:
            time.sleep(1e-3)
        time.sleep(0.0037 * trial)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        found = load(path, {})
        assert (found.values == found.iteration).all(), trial
    save(path, state(), {})
    assert os.listdir(tmp_path) == ["x"]


def test_what_is_no_checkpoint_of_this_run(tmp_path):
    path = tmp_path / "x"
    save(path, state(), ABOUT)
    with pytest.raises(InputError, match="was saved with width 8, expected 16, as this run has it"):
        load(path, ABOUT | {"width": 16})
    data = path.read_bytes()
    for wrong in (b"", b"nothing", data[: len(data) // 2], data[:-10] + b"0123456789"):
        path.write_bytes(wrong)
        with pytest.raises(InputError, match="is no checkpoint of lanterne"):
            load(path, ABOUT)
    np.savez(tmp_path / "other.npz", parameters=np.zeros(3))
    with pytest.raises(InputError, match="is no checkpoint of lanterne"):
        load(tmp_path / "other.npz", ABOUT)
    with pytest.raises(InputError, match=r"cannot read .*: No such file or directory"):
        load(tmp_path / "missing", ABOUT)
    with pytest.raises(InputError, match=r"cannot write .*: No such file or directory"):
        save(tmp_path / "missing" / "x", state(), ABOUT)
