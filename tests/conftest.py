"""What all tests share: nothing is read from the user's cache or left behind, no marked process outlives its test."""

import os
import re
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

# What tests of several folders share is imported by its own name.
HERE = Path(__file__).resolve().parent
sys.path[:0] = [
    str(HERE / folder) for folder in ("bench", "collectives", "failslow", "kernels", "pipeline", "transport")
]
from processes import marked, new_mark  # noqa: E402

with suppress(ImportError):  # tests/gpu does without
    from hypothesis import HealthCheck, settings

    # How long an example takes depends on what else runs on the machine.
    settings.register_profile("lanterne", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("lanterne")

CACHE = os.environ["LANTERNE_CACHE"] = tempfile.mkdtemp(prefix="lanterne-test-cache-")
# Every new group of ranks would try its algorithms for 3 s; a test that wants it says so.
os.environ["LANTERNE_TRIALS"] = "off"


def mpi_leftovers():
    """The files that an MPICH which is killed leaves: those of mpiexec, and memory that no process shares any more."""
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            mapped.update(re.findall(r"/dev/shm/mpich_shm_\S+", maps.read_text()))
    segments = {path for path in Path("/dev/shm").glob("mpich_shm_*") if str(path) not in mapped}
    return segments.union(Path("/tmp").glob("hydra_hwloc_xmlfile_*"))


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left():
    """The cache of this run is removed, and what its MPI jobs left."""
    before = mpi_leftovers()
    yield
    shutil.rmtree(CACHE, ignore_errors=True)
    for path in mpi_leftovers() - before:
        with suppress(OSError):  # another user's
            path.unlink()


@pytest.fixture
def mark():
    """The mark of a test's processes (processes.MARK in their environment); what still lives at its end is killed."""
    mark = new_mark()
    yield mark
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)
