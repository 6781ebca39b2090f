"""What `auto` measures and chooses: the fit, the cache, the override, and that all ranks agree."""

import logging

import numpy as np
import pytest

from lanterne.collectives.algorithms.catalogue import find_algorithm, make_schedule
from lanterne.collectives.auto.pacing import OVERLAPPED
from lanterne.collectives.auto.predict import (
    MIN_CHUNK_NBYTES,
    Factor,
    chunk_count,
    correction,
    in_series,
    predictions,
    starts_part,
)
from lanterne.collectives.auto.tuning import override
from lanterne.collectives.communicator import Communicator
from lanterne.collectives.jobs import spawn
from lanterne.collectives.schedule.cost import CostModel, Piece, price
from lanterne.collectives.topology.topology import INSIDE, NIC, LinkClass, Topology
from lanterne.errors import InputError
from lanterne.transport.local import LocalWorld


def test_all_ranks_choose_alike_and_say_why(caplog):
    caplog.set_level(logging.INFO, "lanterne.collectives")

    def main(comm):
        comm.tuning.learn()
        out = np.empty(1000, np.float32)
        comm.all_reduce(np.ones(1000, np.float32), out)
        tuning = comm.tuning
        return (
            tuning.choose("all_reduce", 4000),
            tuning.model,
            tuning.factors,
            tuning.explain("all_reduce", 4096),
            float(out[0]),
        )

    results = spawn(5, main)
    assert all(result == results[0] for result in results)
    choice, model, factors, explained, value = results[0]
    assert value == 5.0
    assert (choice.algorithm, choice.num_chunks) == explained[0][:2]
    assert [row[2] for row in explained] == sorted(row[2] for row in explained)
    name, chunks, time_s, _ = explained[-1]
    expected_s = price(make_schedule("all_reduce", name, 5, chunks), 4096, model).makespan_s
    assert time_s == expected_s * correction(factors, "all_reduce", name, 4096)
    assert f"all_reduce of 4000 bytes: {choice.algorithm}, predicted to take" in caplog.text


def test_groups_go_by_the_model_of_their_parent():
    def main(comm):
        group = comm.split(comm.rank % 2)
        return comm.tuning.source, group.tuning.source, group.tuning.model == comm.tuning.model

    assert spawn(4, main) == [("threads", "threads", True)] * 4


@pytest.mark.parametrize(("nbytes", "algorithm"), [(2**10, "recursive_doubling"), (2**22, "rhd"), (2**30, "ring")])
def test_few_rounds_for_small_buffers_few_bytes_for_large_ones_and_a_stream_for_those_that_are_cut(nbytes, algorithm):
    communicator = Communicator(LocalWorld(8).transport(0))
    communicator.tuning.adopt(CostModel(3e-6, 1 / 450e9, serial_messages=True), "given")
    assert communicator.tuning.choose("all_reduce", nbytes).algorithm == algorithm


@pytest.mark.parametrize("nbytes", [32 << 10, 4 << 20, 64 << 20])
def test_starts_of_a_ring_whose_chunks_are_cut_pass_beside_its_bytes(nbytes):
    """8 hosts at 200 Mbit/s, as measured: a ring of 4 MiB takes 1.78 of a buffer's time on a link."""
    pieces = Piece(64.0, 1.5e-4, 0.0), Piece(4096.0, 0.0, 3.6e-8), Piece(262144.0, 6e-4, 4.5e-8)
    model = CostModel(1.5e-4, 0.0, 0.0, pieces, serial_messages=True)
    rows = {row.algorithm: row.time_s for row in predictions("all_reduce", 8, nbytes, model)}
    whole_s = nbytes * 4.5e-8
    if nbytes > 1 << 20:
        assert 1.75 * whole_s <= rows["ring"] <= 1.8 * whole_s and rows["ring"] < 1.001 * min(rows.values())
    else:
        # Of one message each: every round waits for the one before.
        assert rows["ring"] == price(make_schedule("all_reduce", "ring", 8), nbytes, model).makespan_s


def test_what_trials_found_turns_the_choice():
    communicator = Communicator(LocalWorld(8).transport(0))
    model = CostModel(3e-6, 1 / 450e9, serial_messages=True)
    factors = (Factor("all_reduce", "rhd", 1 << 20, 3.0), Factor("all_reduce", "ring", 1 << 30, 3.0))
    communicator.tuning.adopt(model, "given", factors)
    assert communicator.tuning.choose("all_reduce", 1 << 20).algorithm != "rhd"
    assert communicator.tuning.choose("all_reduce", 1 << 30).algorithm != "ring"


@pytest.mark.parametrize(("gain", "is_turned"), [(0.99, False), (0.9, True)])
def test_what_trials_find_hardly_quicker_does_not_turn_it(gain, is_turned):
    communicator = Communicator(LocalWorld(8).transport(0))
    communicator.tuning.adopt(CostModel(3e-6, 1 / 450e9, serial_messages=True), "given")
    favourite, second = communicator.tuning.explain("all_reduce", 1 << 10)[:2]
    factors = (Factor("all_reduce", second[0], 1 << 10, gain * favourite[2] / second[2]),)
    communicator.tuning.adopt(communicator.tuning.model, "given", factors)
    assert communicator.tuning.explain("all_reduce", 1 << 10)[0][0] == second[0]
    assert communicator.tuning.choose("all_reduce", 1 << 10).algorithm == (second if is_turned else favourite)[0]


def test_of_sizes_too_long_to_try_the_ring_is_as_good_as_what_is_hardly_faster():
    communicator = Communicator(LocalWorld(8).transport(0))
    factors = (Factor("all_reduce", "ring", 1 << 20, 1.2), Factor("all_reduce", "rhd", 1 << 20, 1.0))
    communicator.tuning.adopt(CostModel(3e-4, 4e-8), "given", factors)
    rows = communicator.tuning.explain("all_reduce", 1 << 24)
    assert rows[0][0] != "ring"
    assert communicator.tuning.choose("all_reduce", 1 << 24).algorithm == "ring"
    assert communicator.tuning.choose("all_reduce", 1 << 20).algorithm == rows[0][0]


def test_where_rounds_overlap_what_small_calls_took_longer_counts_little_for_large_ones():
    factors = (Factor("all_reduce", "ring", 1 << 16, 3.0),)
    sizes = 1 << 10, 1 << 16, 1 << 20
    assert [correction(factors, "all_reduce", "ring", n, overlaps=True) for n in sizes] == pytest.approx(
        [3.0, 3.0, 1 + 0.1 * 2 / 16]
    )
    communicator = Communicator(LocalWorld(8).transport(0))
    slow = tuple(Factor("all_reduce", name, 1 << 16, 3.0) for name in ("ring", "rhd", "bruck", "allpairs"))
    communicator.tuning.adopt(CostModel(6e-4, 4.5e-8), "given", slow)
    assert communicator.tuning.choose("all_reduce", 4 << 20).algorithm == "ring"


def test_a_correction_is_a_line_in_the_logarithm_of_the_size():
    factors = (Factor("all_reduce", "ring", 1 << 10, 1.0), Factor("all_reduce", "ring", 1 << 20, 3.0))
    at = [correction(factors, "all_reduce", "ring", nbytes) for nbytes in (1, 1 << 10, 1 << 15, 1 << 20, 1 << 30)]
    assert at == pytest.approx([1.0, 1.0, 2.0, 3.0, 1 + 2 / 1024])
    assert correction(factors, "all_reduce", "rhd", 1 << 20) == correction((), "all_gather", "ring", 8) == 1.0


def test_without_a_model_there_is_a_choice_but_no_explanation():
    communicator = Communicator(LocalWorld(4).transport(0))
    choice = communicator.tuning.choose("all_reduce", 1000)
    assert choice.algorithm in communicator.algorithms("all_reduce") and choice.reason == "not measured"
    with pytest.raises(InputError, match="without a cost model"):
        communicator.tuning.explain("all_reduce", 1000)


@pytest.mark.parametrize(
    "collective", ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all", "barrier"]
)
def test_every_collective_has_a_choice(collective):
    def main(comm):
        return comm.tuning.choose(collective, 1 << 20).algorithm in comm.algorithms(collective)

    assert spawn(3, main) == [True] * 3


@pytest.mark.parametrize(
    ("text", "collective", "expected"),
    [
        ("", "all_reduce", None),
        ("ring", "all_reduce", "ring"),
        ("ring", "broadcast", None),
        ("all_reduce=tree,broadcast=chain", "broadcast", "chain"),
        ("all_reduce=tree", "reduce", None),
        ("chain, ring", "all_reduce", "ring"),
    ],
)
def test_the_override(monkeypatch, text, collective, expected):
    monkeypatch.setenv("LANTERNE_ALGORITHM", text)
    assert override(collective, 4) == expected


@pytest.mark.parametrize("text", ["all_reduce=rign", "rign", "reduce_everything=ring", "all_gather=rhd"])
def test_a_bad_override_is_an_error(monkeypatch, text):
    monkeypatch.setenv("LANTERNE_ALGORITHM", text)
    with pytest.raises(InputError, match="got"):
        override("all_gather" if "gather" in text else "all_reduce", 3)


def test_the_override_is_obeyed(monkeypatch):
    monkeypatch.setenv("LANTERNE_ALGORITHM", "all_reduce=tree")
    assert spawn(3, lambda comm: comm.tuning.choose("all_reduce", 8).algorithm) == ["tree"] * 3


@pytest.mark.parametrize("nbytes", [1 << 20, 8 << 20, 64 << 20])
def test_a_bucket_does_not_make_chunks_over_nodes_cheaper_than_the_link(nbytes):
    """2 nodes of 4 ranks that share a NIC, whose first messages pass at twice its rate."""
    bucket = CostModel(1e-4, 0.0, 0.0, (Piece(64.0, 1e-4, 1e-8), Piece(32768.0, 0.0, 2e-8), Piece(262144.0, 0.0, 4e-8)))
    nodes = ((0, 1, 2, 3), (4, 5, 6, 7))
    alone = tuple((rank,) for rank in range(8))
    inside = CostModel(3e-4, 3e-9, serial_messages=True)
    topology = Topology(nodes, (LinkClass(INSIDE, inside, alone), LinkClass(NIC, bucket, nodes)))
    for row in predictions("all_reduce", 8, nbytes, topology):
        if row.algorithm.startswith("hier"):
            assert nbytes * 4e-8 <= row.time_s <= 1.5 * nbytes * 4e-8, row
            # A chunk costs a start, so there are not more than pay.
            assert row.num_chunks is None or row.num_chunks * 3e-4 <= nbytes * 4e-8, row


@pytest.mark.parametrize("nodes", [((0,), (1, 2, 3), (4, 5, 6, 7)), ((0, 1), (2, 3), (4, 5), (6, 7))])
def test_a_pipeline_over_nodes_is_taken_before_rounds_with_as_many_bytes(nodes):
    """Hosts that share 200 Mbit/s, 8 MiB: rings of hosts took 1.36 and 1.52 of a buffer's time, rounds 1.5 and 1.65.

    Short calls go in few rounds.
    """
    links = slow_hosts(nodes)
    large, small = (
        [row.algorithm for row in predictions("all_reduce", 8, size, links)] for size in (8 << 20, 64 << 10)
    )
    assert large[0] == "hier_ring" and small.index("hier_bruck") < small.index("hier_ring")


@pytest.mark.parametrize("nbytes", [1 << 20, 8 << 20])
def test_starts_of_a_ring_of_nodes_pass_beside_its_bytes(nbytes):
    """Each link of 3 hosts carries 4/3 of the buffer, chunk behind chunk; in whole rounds starts would add a tenth."""
    links = slow_hosts(((0,), (1, 2, 3), (4, 5, 6, 7)), start_s=4e-4)
    row = next(row for row in predictions("all_reduce", 8, nbytes, links) if row.algorithm == "hier_ring")
    assert row.overlaps and 4 / 3 <= row.time_s / (nbytes * 4e-8) < 1.4


@pytest.mark.parametrize("nodes", [((0,), (1, 2, 3), (4, 5, 6, 7)), ((0, 1, 2, 3), (4, 5, 6, 7))])
@pytest.mark.parametrize("nbytes", [1 << 20, 8 << 20])
def test_chunks_of_ranks_that_share_a_nic_are_no_shorter_than_others(nodes, nbytes):
    line, links = find_algorithm("all_reduce", "hier_late_join"), slow_hosts(nodes, start_s=1e-6)
    assert chunk_count(line, 8, nbytes, links) == nbytes // MIN_CHUNK_NBYTES


@pytest.mark.parametrize("name", ["hier_late_join", "hier_late_chain", "hier_slow.0", "hier_late_slow.0"])
def test_starts_of_a_join_of_nodes_pass_beside_its_bytes_once_its_pipeline_is_full(name):
    """Waiting by a ring of nodes was taken for quicker than it, whose starts counted whole: 1.09 of the best."""
    line, links = find_algorithm("all_reduce", name), slow_hosts(((0, 1), (2, 3), (4, 5), (6, 7)))
    few, some, many = (starts_part(line, chunks, 8 << 20, links) for chunks in (2, 50, 5000))
    assert 1 > few > 0.7 and few > some > many and many == pytest.approx(OVERLAPPED, abs=0.01)
    assert starts_part(find_algorithm("all_reduce", "hier_bruck"), 50, 8 << 20, links) == 1


@pytest.mark.parametrize(("nodes", "longer"), [(((0,), (1,), (2,)), False), (((0,), (1, 2)), True)])
def test_messages_between_nodes_start_no_sooner_than_those_inside_where_there_are_some(nodes, longer):
    nic, inside = CostModel(1e-6, 1e-9), CostModel(5e-6, 1e-11)
    links = Topology(nodes, (LinkClass(INSIDE, inside, ((0,), (1,), (2,))), LinkClass(NIC, nic, nodes)))
    assert in_series(links).links[1].model.alpha_s == (5e-6 if longer else 1e-6)


def slow_hosts(nodes, start_s=1e-4):
    """Hosts of the ranks `nodes`, which share 200 Mbit/s."""
    alone = tuple((rank,) for ranks in nodes for rank in ranks)
    inside, nic = CostModel(start_s, 8e-10, serial_messages=True), CostModel(start_s, 4e-8, serial_messages=True)
    return Topology(nodes, (LinkClass(INSIDE, inside, alone), LinkClass(NIC, nic, nodes)))


def test_nor_many_small_messages_cheaper_than_few_large_ones():
    """A tree of small chunks, as a network with a slow link of a bucket's burst was measured."""
    pieces = Piece(64.0, 5e-4, 0.0), Piece(4096.0, 0.0, 1.2e-7), Piece(32768.0, 0.0, 1.6e-7)
    model = CostModel(5e-4, 0.0, 0.0, pieces, serial_messages=True)
    rows = {row.algorithm: row.time_s for row in predictions("all_reduce", 8, 4 << 20, model)}
    assert rows["ring"] < rows["tree"] and rows["ring"] == pytest.approx(1.75 * (4 << 20) * 1.6e-7, rel=0.02)


@pytest.mark.parametrize("nbytes", [256 << 10, 1 << 20, 2 << 20])
def test_nor_of_calls_shorter_than_the_longest_that_were_measured(nbytes):
    """Buckets of a MiB on 4 hosts at 200 Mbit/s: the tree took 1.5 times what the ring does."""
    pieces = (
        *(Piece(64.0, 8e-5, 4e-9), Piece(4096.0, 0.0, 2.4e-8), Piece(32768.0, 0.0, 3.6e-8)),
        *(Piece(262144.0, 0.0, 3.9e-8), Piece(1048576.0, 0.0, 3.95e-8)),
    )
    model = CostModel(8e-5, 0.0, 5e-10, pieces, serial_messages=True)
    rows = {row.algorithm: row.time_s for row in predictions("all_reduce", 4, nbytes, model)}
    assert rows["tree"] > 1.3 * rows["ring"] and rows["rhd"] <= rows["ring"]


@pytest.mark.parametrize(
    ("n", "nbytes", "beta", "shared"),
    [
        (2, 4 << 20, 1e-6, True),
        (2, 8 << 20, 1e-9, False),
        (4, 32 << 10, 1e-6, True),
        (4, 256 << 10, 1e-9, True),
        (4, 256 << 10, 1e-7, False),  # somebody may be late
        (4, 512 << 10, 1e-9, False),
    ],
)
def test_what_goes_through_memory(n, nbytes, beta, shared):
    def chosen(comm):
        comm.tuning.adopt(CostModel(1e-5, beta), "test")
        return [comm.tuning.choose(name, nbytes, shared=True).algorithm for name in ("all_reduce", "all_gather")]

    reduces, moves = spawn(n, chosen)[0]
    assert (reduces == "shared") == shared
    assert moves == "shared"
