"""How large messages are and how many are under way, from the model."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.collectives.cost import CostModel
from lanterne.collectives.pacing import (
    CREDITS,
    LEAST_PIECE_NBYTES,
    LEAST_SEGMENT_NBYTES,
    LOADED_STARTS,
    MAX_SEGMENTS,
    OVERLAPPED,
    SEGMENT_NBYTES,
    START_NBYTES,
    credits,
    piece_nbytes,
    segment_nbytes,
    sustained,
)
from lanterne.transport.base import Capabilities

# As measured: 8 hosts at 200 Mbit/s; 4 ranks that share memory.
LAB, HOST = CostModel(3e-4, 4.2e-8), CostModel(1.3e-4, 5e-10)
PACED = SimpleNamespace(capabilities=Capabilities(receiver_paced_nbytes=8192))


def test_slow_networks_get_short_segments_and_memory_long_ones():
    assert 128 << 10 <= segment_nbytes(LAB, 2 << 20) <= 512 << 10
    assert segment_nbytes(HOST, 8 << 20) == segment_nbytes(None, 8 << 20) == SEGMENT_NBYTES
    assert segment_nbytes(None, 1 << 30) == (1 << 30) // MAX_SEGMENTS


def test_two_messages_make_the_bandwidth_delay_product_of_a_loaded_network():
    assert CREDITS * piece_nbytes(LAB) == pytest.approx(LOADED_STARTS * 3e-4 / 4.2e-8, rel=1e-3)
    assert credits(LAB, PACED, piece_nbytes(LAB)) == CREDITS
    assert credits(LAB, PACED, piece_nbytes(LAB) // 4) == 4 * CREDITS
    assert credits(LAB, PACED, 1 << 30) == 1
    assert credits(LAB, PACED, 1 << 30, pieces=False) == CREDITS


def test_no_credits_where_receives_do_not_pace_senders():
    assert credits(None, PACED, 1 << 17) is None
    assert credits(LAB, PACED, 4096) is None
    for paced_nbytes in (None, 0):
        unpaced = SimpleNamespace(capabilities=Capabilities(receiver_paced_nbytes=paced_nbytes))
        assert credits(LAB, unpaced, 1 << 17) is None


def test_what_a_bucket_lets_through_is_not_sustained():
    bucket = CostModel(3e-4, 0.0, 0.0, ((64.0, 3e-4, 1e-8), (32768.0, 0.0, 1.7e-8), (262144.0, 0.0, 4e-8)))
    assert sustained(bucket).beta_s_per_byte == pytest.approx(4e-8, rel=0.02)
    assert sustained(bucket).alpha_s == pytest.approx(OVERLAPPED * (3e-4 + 1e-8 * START_NBYTES))


@given(st.floats(0, 1.0), st.floats(0, 1e-6), st.integers(1, 1 << 32), st.booleans())
def test_bounds_whatever_the_model(alpha, beta, chunk_nbytes, late):
    model = CostModel(alpha, beta)
    least = LEAST_PIECE_NBYTES if late else LEAST_SEGMENT_NBYTES
    found = segment_nbytes(model, chunk_nbytes, late)
    assert found * MAX_SEGMENTS >= chunk_nbytes
    assert least <= found <= max(SEGMENT_NBYTES, -(-chunk_nbytes // MAX_SEGMENTS))
    assert LEAST_PIECE_NBYTES <= piece_nbytes(model) <= SEGMENT_NBYTES
