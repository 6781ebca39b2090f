"""Helpers that make no arrays: compiled without counting references, and refused where they do make some."""

import numpy as np
import pytest
from numba.core.errors import NumbaError

from lanterne.pipeline.plan.costs import Floats
from lanterne.pipeline.planners.list_rules import _choose, _first, _is_early
from lanterne.pipeline.simulate.compiled import inner

pytestmark = pytest.mark.skipif(not hasattr(_choose, "py_func"), reason="NUMBA_DISABLE_JIT")


@pytest.mark.parametrize("helper", [_choose, _first, _is_early], ids=lambda helper: helper.py_func.__name__)
def test_the_list_rules_count_no_references(helper):
    """Counting took four fifths of their time."""
    assert helper.targetoptions["_nrt"] is False


def test_a_helper_that_makes_an_array_is_refused():
    @inner
    def makes_one(values: Floats) -> float:
        return float(np.empty_like(values)[0])

    with pytest.raises(NumbaError, match="Only accept returning of array passed into the function as argument"):
        makes_one(np.ones(2))
