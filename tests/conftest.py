"""What all tests share: nothing is read from or left in the user's cache, no marked process outlives its test."""

import os
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "transport"))
from processes import marked, new_mark  # noqa: E402

with suppress(ImportError):  # tests/gpu does without
    from hypothesis import HealthCheck, settings

    # How long an example takes depends on what else runs on the machine.
    settings.register_profile("lanterne", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("lanterne")

os.environ["LANTERNE_CACHE"] = tempfile.mkdtemp(prefix="lanterne-test-cache-")
# Every new group of ranks would try its algorithms for 3 s; a test that wants it says so.
os.environ["LANTERNE_TRIALS"] = "off"


@pytest.fixture
def mark():
    """The mark of a test's processes (processes.MARK in their environment); what still lives at its end is killed."""
    mark = new_mark()
    yield mark
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)
