"""A pytest plugin of `run`: the tests of tests/gpu that cannot run on the host's CUDA are skipped, with the reason.

Those that read one job's verdicts stay together where pytest runs in several processes: the job runs once.
"""

import pytest

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


def pytest_collection_modifyitems(items):
    for item in items:
        reasons = [reason for part, reason in REASONS.items() if part in item.name and item.get_closest_marker("gpu")]
        if reasons:
            item.add_marker(pytest.mark.skip(reason=f"host CUDA: {reasons[0]}"))
        if "nccl_job" in getattr(item, "fixturenames", ()):
            job = item.callspec.params["world_size"], "nccl4py" in item.nodeid
            item.add_marker(pytest.mark.xdist_group(f"{job}"))
