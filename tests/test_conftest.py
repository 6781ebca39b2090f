"""The marker `timing`: what fails runs again; the last failure is a skip on a busy machine, else a failure."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import pytest

@pytest.mark.timing
def test_of_times():
    assert 1 == 2, "too late"

def test_of_values():
    assert 1 == 2
"""
CONFTEST = """
import importlib.util
spec = importlib.util.spec_from_file_location("own_conftest", {path!r})
own = importlib.util.module_from_spec(spec)
spec.loader.exec_module(own)
own.busy_cores = lambda: {cores}
pytest_runtest_protocol, pytest_unconfigure = own.pytest_runtest_protocol, own.pytest_unconfigure
"""
AGAIN = """
import pytest
made = []

@pytest.fixture(scope="module")
def job():
    made.append(len(made))
    return made[-1]

{mark}
def test_first(job):
    assert job == {passes_at}
"""


@pytest.fixture
def run(tmp_path, request):
    """A function: run the program of tests where so many cores are busy."""

    def run(program, cores):
        path = str(request.config.rootpath / "tests" / "conftest.py")
        (tmp_path / "conftest.py").write_text(CONFTEST.format(path=path, cores=cores))
        (tmp_path / "test_x.py").write_text(program)
        command = [sys.executable, "-P", "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-W", "ignore", str(tmp_path)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(("cores", "told"), [(2.0, "1 failed, 1 skipped"), (0.0, "2 failed")])
def test_only_tests_of_times_and_only_on_a_busy_machine(run, cores, told):
    result = run(PROGRAM, cores)
    assert told in result.stdout, result.stdout + result.stderr
    assert ("the machine is busy (2.0 cores)" in result.stdout) == (cores > 1)


@pytest.mark.parametrize("cores", [2.0, 0.0])
@pytest.mark.parametrize(
    ("mark", "passes_at", "told"),
    [
        ("@pytest.mark.timing", 2, "1 passed"),
        ("@pytest.mark.alone", 2, "1 passed"),
        ("@pytest.mark.alone", 3, "1 failed"),
        ("", 1, "1 failed"),
    ],
)
def test_what_decides_by_times_runs_again_with_fixtures_made_anew(run, mark, passes_at, told, cores):
    result = run(AGAIN.format(mark=mark, passes_at=passes_at), cores)
    assert told in result.stdout, result.stdout + result.stderr


# What a user's shell, or the job that it is in, may set.
HOSTILE = {
    **{"HOME": "/proc/none", "UV_CACHE_DIR": "/proc/none/uv", "UV_PYTHON": "3.9", "PIP_REQUIRE_VIRTUALENV": "1"},
    **{
        "LC_ALL": "C",
        "LANG": "de_DE.UTF-8",
        "TZ": "Asia/Kathmandu",
        "COLUMNS": "40",
        "NO_COLOR": "1",
        "FORCE_COLOR": "1",
    },
    **{"PYTHONWARNINGS": "default", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "Qt5Agg"},
    **{"LANTERNE_TIMEOUT_S": "7", "LANTERNE_TRANSPORT": "tcp", "LANTERNE_TOKEN": "0" * 32, "LANTERNE_LOCK": "full"},
    **{"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"},
}


def test_tests_pass_whatever_the_users_shell_sets(request):
    command = [
        sys.executable,
        "-P",
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "tests/test_run.py",
        "tests/test_screens.py",
    ]
    words = ["tests/bench/test_cli.py", "-k", "lock_follows or in_a_pipe or help_of_a_command or inside_of_one"]
    result = subprocess.run(
        [*command, *words],
        cwd=request.config.rootpath,
        # It is no worker of the run that it is in.
        env={name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"} | HOSTILE,
        umask=0o077,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0 and " passed" in result.stdout, result.stdout + result.stderr
