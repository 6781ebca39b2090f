"""Device arrays straight into MPI's calls, where the MPI says that it takes them; and how it is asked."""

import importlib.util
from pathlib import Path

import pytest
from verdicts import assert_right, run_checks

from lanterne.errors import InputError
from lanterne.transport.mpi import library as mpi_cuda

SCRIPT = Path(__file__).with_name("device_over_mpi.py")
_spec = importlib.util.spec_from_file_location("device_over_mpi", SCRIPT)
job = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(job)


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    report = tmp_path_factory.mktemp("direct") / "report"
    return run_checks(SCRIPT, [], report, job.CHECKS, 3, environment={"LANTERNE_MPI_CUDA": "1"}, timeout_s=120)


@pytest.mark.parametrize("check", job.CHECKS, ids=lambda check: check.__name__)
def test_over_mpi(verdicts, check):
    _, output, found = verdicts
    assert_right(found[check.__name__], 3, output)


@pytest.fixture
def asked(monkeypatch):
    """Ask again: a function of (what MPI answers, None if it cannot be asked; variables)."""

    def ask(answer, **variables):
        mpi_cuda.is_cuda_aware.cache_clear()
        monkeypatch.setattr(mpi_cuda, "_query", lambda: None if answer is None else lambda: answer)
        for name in (mpi_cuda.VARIABLE, *mpi_cuda.SWITCHES):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return mpi_cuda.is_cuda_aware()

    yield ask
    mpi_cuda.is_cuda_aware.cache_clear()


@pytest.mark.parametrize(
    ("answer", "variables", "expected"),
    [
        (1, {}, True),
        (0, {}, False),
        (None, {}, False),
        (None, {"MV2_USE_CUDA": "1"}, True),
        (None, {"MPICH_GPU_SUPPORT_ENABLED": "0"}, False),
        (0, {"MPICH_GPU_SUPPORT_ENABLED": "1"}, False),
        (0, {"LANTERNE_MPI_CUDA": "1"}, True),
        (1, {"LANTERNE_MPI_CUDA": "0"}, False),
    ],
)
def test_who_is_believed(asked, answer, variables, expected, caplog):
    caplog.set_level("INFO", "lanterne.transport")
    assert asked(answer, **variables) is expected
    assert ("straight into MPI's calls" if expected else "through pinned memory") in caplog.text


def test_a_wrong_variable(asked):
    with pytest.raises(InputError, match="LANTERNE_MPI_CUDA: got 'yes', expected 0 or 1"):
        asked(1, LANTERNE_MPI_CUDA="yes")
