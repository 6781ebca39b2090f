"""The two-datacenter model against the figures that the paper prints, and those that follow from its setting."""

import pytest

from evaluation.papers.crosspipe.performance_model import LLAMA3_405B, Transformer, TwoDatacenters, compare
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.planners.bounds import lower_bound

SLOW = TwoDatacenters(latency_s=4e-3, bandwidth_bytes_per_s=4e9)


def test_a_transformer_counts_its_parameters():
    # Two layers: 2 d (d + d / 2) for attention with half as many key heads, 3 d f; embedding and output d v each.
    tiny = Transformer(num_layers=2, hidden=4, feedforward=6, num_heads=2, num_kv_heads=1, vocabulary=10)
    assert tiny.layer_parameters == 2 * 4 * 6 + 3 * 4 * 6
    assert tiny.parameters == 2 * 120 + 80
    assert tiny.layer_flops(3) == (2 * 120 * 3, 2 * 9 * 4)


def test_llama_is_as_large_as_printed():
    assert LLAMA3_405B.parameters == pytest.approx(406e9, rel=1e-3)


def test_the_forward_of_a_stage_takes_as_long_as_printed():
    forward, backward, weight = SLOW.stage_times_s
    assert forward == pytest.approx(0.109, abs=5e-4)
    assert weight < forward < backward and backward + weight == pytest.approx(2 * forward)


def test_what_the_link_carries():
    assert SLOW.message_nbytes == 8192 * 16384 * 2 * 64
    assert 32 * SLOW.message_time_s == pytest.approx(137.4, abs=0.1)
    assert SLOW.data_parallel_sync_s == pytest.approx(2 * 4e-3 + 202.92, abs=0.01)


def test_a_slow_link_favours_the_pipeline_by_half_not_threefold():
    found = compare(SLOW, 1.0)
    assert found.scheduler == "UD"
    assert found.speedup == pytest.approx(1.47, abs=0.01)
    # The plan is as fast as the link allows: 137 s of messages, the way there and back.
    assert found.pipeline_s == pytest.approx(lower_bound(SLOW.pipeline_problem, unidirectional(16)), rel=0.02)


def test_a_wide_link_makes_them_equal():
    wide = compare(TwoDatacenters(latency_s=4e-3, bandwidth_bytes_per_s=1024e9), 1.0)
    assert wide.slowdown < 1.02 and 1 < wide.speedup < 1.1
    medium = compare(TwoDatacenters(latency_s=4e-3, bandwidth_bytes_per_s=64e9), 1.0)
    assert medium.slowdown == pytest.approx(1.25, abs=0.03)  # printed: 1.3, of a longer plan
