"""The GPU suite: `LANTERNE_REQUIRE=gpu ./run test tests/gpu` on a machine with one GPU."""

import os
from pathlib import Path

import pytest

from lanterne.errors import Unavailable
from lanterne.kernels.arrays import require_device


def pytest_collection_modifyitems(items):
    # pytest hands every item of the session to this hook, also those of other folders.
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session", autouse=True)
def cupy():
    """The cupy module; without a GPU every test is skipped, or fails if LANTERNE_REQUIRE names gpu."""
    try:
        require_device()
    except Unavailable as error:
        if "gpu" in os.environ.get("LANTERNE_REQUIRE", "").split(","):
            pytest.fail(f"LANTERNE_REQUIRE names gpu, but: {error}", pytrace=False)
        pytest.skip(str(error))
    import cupy

    return cupy
