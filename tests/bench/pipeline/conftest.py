import fcntl
import os
from pathlib import Path

import pytest

from lanterne.pipeline.planners.best import load_search


@pytest.fixture(scope="session", autouse=True)
def compiled_search():
    """Commands that plan say so where they had to do with slow loops, as on a new machine.

    One process compiles, and the others wait for what it writes: all at once would take all the longer.
    """
    with Path(os.environ["LANTERNE_CACHE"], "compiled_search.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        load_search()
