"""The marker `timing`: a failure on a busy machine is a skip that says so, and a failure on a quiet one stays one."""

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
pytest_runtest_makereport, pytest_unconfigure = own.pytest_runtest_makereport, own.pytest_unconfigure
"""


@pytest.mark.parametrize(("cores", "told"), [(2.0, "1 failed, 1 skipped"), (0.0, "2 failed")])
def test_only_tests_of_times_and_only_on_a_busy_machine(tmp_path, request, cores, told):
    path = str(request.config.rootpath / "tests" / "conftest.py")
    (tmp_path / "conftest.py").write_text(CONFTEST.format(path=path, cores=cores))
    (tmp_path / "test_x.py").write_text(PROGRAM)
    command = [sys.executable, "-P", "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-W", "ignore", str(tmp_path)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told in result.stdout, result.stdout + result.stderr
    assert ("the machine is busy (2.0 cores)" in result.stdout) == (cores > 1)
