"""How large messages are and how many are under way, from the model."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.collectives.algorithms.catalogue import find_algorithm, make_schedule
from lanterne.collectives.auto.pacing import (
    CREDITS,
    CROSSINGS,
    EXCHANGES,
    LEAST_HALF_NBYTES,
    LEAST_PIECE_NBYTES,
    LEAST_SEGMENT_NBYTES,
    LOADED_STARTS,
    MAX_SEGMENTS,
    OVERLAPPED,
    PIECES,
    ROUNDS,
    SEGMENT_NBYTES,
    START_NBYTES,
    STREAM,
    STREAM_SEGMENTS,
    credits,
    over_nodes,
    piece_nbytes,
    segment_nbytes,
    start_s,
    sustained,
    traffic_of,
)
from lanterne.collectives.schedule.cost import CostModel
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
    # Each costs cores its time, however soon it starts.
    assert piece_nbytes(replace(LAB, alpha_s=1e-4)) == LEAST_PIECE_NBYTES
    assert credits(LAB, PACED, piece_nbytes(LAB)) == CREDITS
    assert credits(LAB, PACED, piece_nbytes(LAB) // 4) == 4 * CREDITS
    assert credits(LAB, PACED, 1 << 30) == 1
    assert credits(LAB, PACED, 1 << 30, EXCHANGES) == credits(LAB, PACED, 1 << 17, STREAM) == CREDITS


def test_ranks_that_share_a_nic_share_what_is_under_way_there():
    assert credits(LAB, PACED, piece_nbytes(LAB), sharers=CREDITS) == 1
    assert credits(LAB, PACED, piece_nbytes(LAB) // 4, sharers=4) == CREDITS
    assert credits(LAB, PACED, piece_nbytes(LAB), sharers=64) == 1


def test_messages_between_nodes_start_no_sooner_than_those_inside():
    assert start_s(over_nodes(HOST, [LAB])) == pytest.approx(LAB.alpha_s)
    assert over_nodes(LAB, [HOST]) == over_nodes(LAB, []) == LAB
    bucket = CostModel(1e-4, 0.0, 0.0, ((64.0, 1e-4, 1e-8), (32768.0, 0.0, 1.7e-8), (262144.0, 0.0, 4e-8)))
    assert start_s(over_nodes(bucket, [LAB])) == pytest.approx(LAB.alpha_s)


def test_streams_are_short_on_slow_networks_and_free_in_memory():
    assert 64 << 10 <= segment_nbytes(LAB, 512 << 10, STREAM) <= 128 << 10
    # Of a chunk that is long each part costs a core its time, and the last one delays the end.
    assert segment_nbytes(LAB, 2 << 20, STREAM) == (2 << 20) // STREAM_SEGMENTS
    assert segment_nbytes(LAB, 64 << 20, STREAM) == SEGMENT_NBYTES
    assert segment_nbytes(HOST, 8 << 20, STREAM) == SEGMENT_NBYTES
    assert credits(HOST, PACED, 1 << 20, STREAM) is None


@pytest.mark.parametrize(
    ("collective", "algorithm", "expected"),
    [
        ("all_reduce", "ring", STREAM),
        ("broadcast", "chain", STREAM),
        ("all_reduce", "rhd", ROUNDS),
        ("all_reduce", "allpairs", ROUNDS),
        ("all_reduce", "late_chain", PIECES),
        ("all_reduce", "stragglar", EXCHANGES),
    ],
)
def test_a_stream_comes_from_one_peer(collective, algorithm, expected):
    line = find_algorithm(collective, algorithm)
    assert traffic_of(make_schedule(collective, algorithm, 8), line.chunked) == expected


def test_a_late_rank_over_nodes_crosses_to_them():
    nodes, line = ((0,), (1, 2, 3)), find_algorithm("all_reduce", "hier_late_join")
    schedule = make_schedule("all_reduce", line.name, 4, 12, late_rank=3, nodes=nodes)
    assert traffic_of(schedule, line.chunked, nodes) == CROSSINGS


def test_no_credits_where_receives_do_not_pace_senders():
    assert credits(None, PACED, 1 << 17) is None
    assert credits(LAB, PACED, 4096) is None
    assert credits(LAB, PACED, 1 << 17, ROUNDS) is None
    for paced_nbytes in (None, 0):
        unpaced = SimpleNamespace(capabilities=Capabilities(receiver_paced_nbytes=paced_nbytes))
        assert credits(LAB, unpaced, 1 << 17) is None, paced_nbytes


def test_what_a_bucket_lets_through_is_not_sustained():
    bucket = CostModel(3e-4, 0.0, 0.0, ((64.0, 3e-4, 1e-8), (32768.0, 0.0, 1.7e-8), (262144.0, 0.0, 4e-8)))
    assert sustained(bucket).beta_s_per_byte == pytest.approx(4e-8, rel=0.02)
    assert sustained(bucket).alpha_s == pytest.approx(OVERLAPPED * (3e-4 + 1e-8 * START_NBYTES))


@given(
    st.floats(1e-6, 1.0),
    st.floats(1e-12, 1e-6),
    st.integers(1, 1 << 26),
    st.sampled_from([PIECES, CROSSINGS]),
    st.integers(1, 64),
)
def test_late_cells_are_not_so_short_that_nothing_grants_them(alpha, beta, chunk_nbytes, traffic, sharers):
    """Cells of a chunk are as equal as can be, so that halves of just over the least are no shorter than that."""
    cell_nbytes = segment_nbytes(CostModel(alpha, beta), chunk_nbytes, traffic, sharers)
    cells = -(-chunk_nbytes // cell_nbytes)
    assert cells == 1 or chunk_nbytes // cells >= LEAST_HALF_NBYTES


def test_cells_that_cross_to_a_shared_nic_are_short_there():
    """As long as four that are under way to it at once may be, or twice that where they cannot be cut."""
    piece = LEAST_PIECE_NBYTES
    for chunk_nbytes, expected in ((64 << 10, 16 << 10), (65 << 10, 65 << 8), (31 << 10, 31 << 10)):
        assert segment_nbytes(replace(LAB, alpha_s=1e-4), chunk_nbytes, CROSSINGS, 4) == expected, chunk_nbytes
    assert segment_nbytes(replace(LAB, alpha_s=1e-4), 128 << 10, CROSSINGS) == piece


@given(st.floats(0, 1.0), st.floats(0, 1e-6), st.integers(1, 1 << 32), st.sampled_from([ROUNDS, STREAM, PIECES]))
def test_bounds_whatever_the_model(alpha, beta, chunk_nbytes, traffic):
    model = CostModel(alpha, beta)
    least = LEAST_HALF_NBYTES if traffic == PIECES else LEAST_SEGMENT_NBYTES
    found = segment_nbytes(model, chunk_nbytes, traffic)
    assert found * MAX_SEGMENTS >= chunk_nbytes
    assert least <= found <= max(SEGMENT_NBYTES, -(-chunk_nbytes // MAX_SEGMENTS))
    assert LEAST_PIECE_NBYTES <= piece_nbytes(model) <= SEGMENT_NBYTES
