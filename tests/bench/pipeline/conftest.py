import pytest

from lanterne.pipeline.planners.best import load_search


@pytest.fixture(scope="session", autouse=True)
def compiled_search():
    """Commands that plan say so where they had to do with slow loops, as on a new machine."""
    load_search()
