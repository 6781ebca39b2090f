"""What all tests share: nothing is read from the user's cache or left behind, no marked process outlives its test."""

import os
import re
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
CACHE = os.environ["LANTERNE_CACHE"] if IS_WORKER else tempfile.mkdtemp(prefix="lanterne-test-cache-")
# Variables of a user's shell that steer what is tested, apart from those that say where packages and modules lie, and
# those that the tests themselves read.
STEERS = re.compile(
    r"(LANTERNE|UV|PIP|LC|OMP|OPENBLAS|MKL|NUMBA|MPL|PYTHON|SLURM|PMI|PMIX|OMPI|TORCHELASTIC)_?[A-Z_]+"
    r"|(LOCAL_|GROUP_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|JOB_COMPLETION_INDEX"
    r"|LANG(UAGE)?|TZ|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|PY_COLORS"
)
KEPT = re.compile(
    r"LANTERNE_(REQUIRE|MSCCLPP|PICTURES|TEST_\w+)|PYTHON(PATH|PYCACHEPREFIX)"
    r"|(UV|PIP)_(CACHE_DIR|CERT|CONFIG_FILE|DEFAULT_TIMEOUT|FIND_LINKS|HTTP_TIMEOUT|OFFLINE|PROXY|\w*INDEX\w*)"
)


def settle_environment():
    """Give all tests, and what they start, one environment, whatever the user's shell is set to."""
    for name in [name for name in os.environ if STEERS.fullmatch(name) and not KEPT.fullmatch(name)]:
        del os.environ[name]
    os.environ["LANG"] = "C.UTF-8"
    if not os.access(os.environ.get("HOME", ""), os.W_OK):
        os.environ["HOME"] = CACHE
    time.tzset()
    os.umask(0o022)


# A worker has it from the process that started it.
if not IS_WORKER:
    settle_environment()
os.environ["LANTERNE_CACHE"] = CACHE
# Every new group of ranks would try its algorithms for 3 s; a test that wants it says so.
os.environ["LANTERNE_TRIALS"] = "off"

# What tests of several folders share is imported by its own name.
HERE = Path(__file__).resolve().parent
if sys.dont_write_bytecode:
    # Else each of some thousand ranks would compile what it imports: most of its start.
    sys.dont_write_bytecode = False
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(HERE.parent / ".pytest_cache" / "bytecode")
sys.path[:0] = [
    str(HERE / folder)
    for folder in ("bench", "collectives", "evaluation", "failslow", "kernels", "pipeline", "torch", "transport")
]
from processes import marked, new_mark  # noqa: E402

from lanterne.collectives.auto.load_meter import BUSY_CORES, machine_s  # noqa: E402

with suppress(ImportError):  # tests/gpu does without
    from hypothesis import HealthCheck, settings

    # How long an example takes depends on what else runs on the machine.
    settings.register_profile("lanterne", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("lanterne")


def mpi_leftovers():
    """The files that an MPICH which is killed leaves: those of mpiexec, and memory that no process shares any more."""
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            mapped.update(re.findall(r"/dev/shm/mpich_shm_\S+", maps.read_text()))
    segments = {path for path in Path("/dev/shm").glob("mpich_shm_*") if str(path) not in mapped}
    return segments.union(Path("/tmp").glob("hydra_hwloc_xmlfile_*"))


BEFORE = set() if IS_WORKER else mpi_leftovers()


def pytest_unconfigure():
    """The process that began this run, once its workers have ended, removes its cache and what its MPI jobs left."""
    if IS_WORKER:
        return
    shutil.rmtree(CACHE, ignore_errors=True)
    for path in mpi_leftovers() - BEFORE:
        with suppress(OSError):  # another user's
            path.unlink()


# Folders whose tests compute and wait for nothing.
PURE = (
    *("kernels", "collectives/schedule", "collectives/algorithms", "collectives/auto"),
    *("pipeline/plan", "pipeline/schedules", "pipeline/simulate", "pipeline/planners", "pipeline/model"),
    *("failslow/detect", "failslow/locate", "failslow/mitigate", "bench/output"),
)
# What decides by times that it measures, or drives jobs that do: it runs alone, all else in three processes at once.
ALONE = (
    *("collectives/auto/test_learn.py", "collectives/auto/test_trials.py", "collectives/auto/test_device_trials.py"),
    *("failslow/validate", "failslow/mitigate/test_closed_loop.py"),
    *("bench/collective/test_late_bars.py", "bench/demo", "bench/lab", "bench/failslow"),
)
# Of the pure ones, what takes many seconds all the same, and is left out of `./run test -m quick`.
NOT_QUICK = (
    *(*ALONE, "kernels/cuda/test_cuda_kernels.py", "collectives/schedule/test_export.py"),
    *("failslow/mitigate/test_controller.py", "failslow/locate/test_locate.py"),
    *("pipeline/planners/test_best.py", "pipeline/simulate/test_check_plan.py"),
)
# What decides by times has failed when it failed this often in a row.
TIMING_TRIES = 3
# An sdist leaves out what only redoes our own figures.
HAS_EVALUATION = (Path(__file__).parent.parent / "evaluation" / "__init__.py").exists()


def pytest_ignore_collect(collection_path, config):
    """What an sdist leaves out is not tested there; where only what runs alone is asked for, all else is not read."""
    place = collection_path.relative_to(HERE).as_posix() if collection_path.is_relative_to(HERE) else ""
    if config.option.markexpr.startswith("alone and") and place.endswith(".py") and "conftest" not in place:
        return None if place.startswith(ALONE) else True
    if not HAS_EVALUATION and collection_path.suffix == ".py":
        text = collection_path.read_text()
        return True if re.search(r"^(from|import) evaluation\b", text, re.MULTILINE) else None
    return None


def pytest_collection_modifyitems(items):
    for item in items:
        place = item.path.relative_to(HERE).as_posix()
        if place.startswith(ALONE):
            item.add_marker(pytest.mark.alone)
        if place.startswith(PURE) and place not in NOT_QUICK:
            item.add_marker(pytest.mark.quick)


def busy_cores(duration_s=0.5):
    """Cores that others use on this machine while this process sleeps; its threads are not others."""

    def busy_s():
        return machine_s()[0] - time.process_time()

    start_s, before_s = time.monotonic(), busy_s()
    time.sleep(duration_s)
    return (busy_s() - before_s) / (time.monotonic() - start_s)


def pytest_runtest_protocol(item, nextitem):
    """What decides by times and fails runs again, with fixtures made anew, since one pause of the machine fails it.

    On a busy machine a test of what happens when says nothing: where its last try fails, it is skipped, with the load.
    """
    is_timing = item.get_closest_marker("timing") is not None
    if not is_timing and not item.get_closest_marker("alone"):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for tries_left in reversed(range(TIMING_TRIES)):
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        if not tries_left or not any(report.failed for report in reports):
            break
        item.session._setupstate.teardown_exact(None)
    for report in reports:
        if is_timing and report.failed and (cores := busy_cores()) > BUSY_CORES:
            said = " ".join(report.longreprtext.split())[-200:]
            why = f"the machine is busy ({cores:.1f} cores), and this is a test of times: {said}"
            report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {why}")
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture
def mark():
    """The mark of a test's processes (processes.MARK in their environment); what still lives at its end is killed."""
    mark = new_mark()
    yield mark
    for pid in marked(mark):
        os.kill(pid, signal.SIGKILL)
