"""The iteration model by hand, and that its calls are priced by the cost model."""

import pytest

from evaluation.papers.stragglar.figure_13 import tasks
from evaluation.papers.stragglar.gpu_servers import exposed_s, prices
from evaluation.papers.stragglar.iteration import AllReduce, Compute, iteration_s
from lanterne.collectives.schedule.cost import CostModel


def together(call, start_s):
    """Price every call at a second from when its last rank calls."""
    return [max(start_s) + 1.0] * len(start_s)


def test_calls_block_or_overlap():
    both = (0, 1)
    work = [Compute(both, 2.0), Compute((1,), 1.0), AllReduce(both, 8), Compute(both, 4.0)]
    assert iteration_s(work, 2, together) == 3 + 1 + 4
    work[2] = AllReduce(both, 8, overlapped=True)
    # Rank 1 computes until 7, the call is done at 4.
    assert iteration_s(work, 2, together) == 7
    # Calls follow each other: from 3, 4, 5 and, after the last computing, 7.
    assert iteration_s([*work[:2], *[work[2]] * 3, work[3], work[2]], 2, together) == 8
    assert iteration_s([], 2, together) == 0


def test_groups_wait_for_their_own_ranks():
    groups = [AllReduce((0, 1), 8), AllReduce((2, 3), 8)]
    assert iteration_s([Compute((3,), 5.0), *groups, AllReduce((0, 2), 8)], 4, together) == 7


def test_a_call_of_one_late_rank_costs_what_the_cost_model_says():
    links = CostModel(3e-6, 1 / 450e9)
    for name in ("ring", "stragglar"):
        work = [Compute((7,), 5e-3), AllReduce(tuple(range(8)), 1 << 30)]
        found_s = iteration_s(work, 8, prices(name, 7, links))
        assert found_s == pytest.approx(5e-3 + exposed_s(name, 8, 1 << 30, links, 5e-3), rel=1e-9)
    # A group without the late rank goes around the ring.
    work = [AllReduce((0, 1, 2, 3), 1 << 20)]
    assert iteration_s(work, 8, prices("stragglar", 7, links)) == iteration_s(work, 8, prices("ring", 7, links))


def test_bert_large_has_its_parameters_and_calls():
    whole, parts = (list(tasks(8, tensor, False, 0.0)) for tensor in (1, 4))
    gradients = [task for task in whole if isinstance(task, AllReduce)]
    assert len(gradients) == 25 and sum(task.nbytes for task in gradients) == pytest.approx(4 * 334e6, rel=0.01)
    calls = [task for task in parts if isinstance(task, AllReduce)]
    # Of each of 24 layers 4 for activations by each of 2 groups, and for gradients one by each of 4.
    assert len(calls) == 24 * 2 * 4 + 25 * 4
    assert sum(t.nbytes for t in calls if len(t.group) == 2) == pytest.approx(sum(t.nbytes for t in gradients))
