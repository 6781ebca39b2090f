"""What tests of the emulated cluster share."""

import os

import pytest

from lanterne.bench.lab import network as lab_network
from lanterne.errors import Unavailable


@pytest.fixture
def needs_lab():
    """Skip where this machine cannot emulate a cluster, fail where LANTERNE_REQUIRE says that it must."""
    try:
        lab_network.check_available()
    except Unavailable as error:
        if "lab" in os.environ.get("LANTERNE_REQUIRE", "").split(","):
            pytest.fail(str(error))
        pytest.skip(str(error))
