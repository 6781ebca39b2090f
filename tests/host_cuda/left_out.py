"""A pytest plugin of `run`: the tests of tests/gpu that cannot run on the host's CUDA are skipped, with the reason.

Those that read one job's verdicts stay together where pytest runs in several processes: the job runs once.
"""

import re

import pytest
from xdist.scheduler import LoadScopeScheduling

WITHOUT_NUMBA = "Numba's kernels and arrays need NVIDIA's compiler and more of the driver"
# By a part of the test's name.
REASONS = {
    "numba": WITHOUT_NUMBA,
    "foreign_arrays": WITHOUT_NUMBA,
    "2e-05": "a launch alone takes longer here, and calibration takes it off the delay",
    "31_bits": "gigabytes, element by element on a CPU",
}


def pytest_configure(config):
    config.option.reportchars += "s"


class JobsTogether(LoadScopeScheduling):
    """Of one process is what one job over NCCL, so many ranks by so and so a binding, tells; all else is by itself."""

    def _split_scope(self, nodeid):
        found = re.search(r"over_nccl\w*\[(\d+)-", nodeid)
        return f"{found[1]} {'nccl4py' in nodeid}" if found else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    # Groups of pytest-xdist 3.8 go by an attribute that pytest 9.2 does not have.
    return JobsTogether(config, log)


def pytest_collection_modifyitems(items):
    for item in items:
        reasons = [reason for part, reason in REASONS.items() if part in item.name and item.get_closest_marker("gpu")]
        if reasons:
            item.add_marker(pytest.mark.skip(reason=f"host CUDA: {reasons[0]}"))
