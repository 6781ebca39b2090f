import fcntl
import os
from pathlib import Path

import pytest

from lanterne.pipeline.planners.best import load_search


@pytest.fixture(scope="session", autouse=True)
def compiled_search():
    """Compile the search first, since commands print a note where it is not compiled.

    One process compiles while the others wait: all at once would take longer.
    """
    with Path(os.environ["LANTERNE_CACHE"], "compiled_search.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        load_search()
