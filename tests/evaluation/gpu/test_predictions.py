"""./run evaluate gpu.predictions: the prices of a late rank and of a cut NIC, and the page that is committed."""

import json
from pathlib import Path

import pytest

from evaluation.gpu import predictions
from evaluation.gpu.charges import Charges, Item, queued, time_s
from evaluation.gpu.predictions import MIB, TWO, failover_rows, late_rows

RESULTS = Path(predictions.__file__).parents[1] / "results"


def test_a_late_rank_costs_a_ring_all_and_a_late_join_its_join():
    rows = {(row["machine"][0], row["nbytes"], row["delay"]): row["exposed_s"] for row in late_rows(quick=True)}
    for nbytes in (MIB, 16 * MIB):
        on_time, late = rows["8", nbytes, "none"], rows["8", nbytes, "ideal"]
        assert late["ring"] == pytest.approx(on_time["ring"], rel=0.1)
        assert late["late_join"] < 0.75 * on_time["late_join"] and late["stragglar"] < 0.75 * on_time["stragglar"]
        # Between nodes a ring through all ranks has one NIC's bytes on each.
        assert rows["2", nbytes, "none"]["hier_ring"] < 0.3 * rows["2", nbytes, "none"]["ring"]


def test_nics_carry_what_leaves_a_node_and_start_times_are_kept():
    costs = Charges(0.0, 10.0, 100.0, 1000.0, 7.0, 2.0, 4.0, nic_bytes_per_s=1.0, nic_hop_s=5000.0, node_ranks=1)
    send, receive = (Item("group", "messages", 0, ((sends, 60, peer),)) for sends, peer in ((True, 1), (False, 0)))
    assert time_s([[send], [receive]], costs) == 100 + 60 + 5000
    assert time_s([[send], [receive]], costs._replace(node_ranks=2)) == 100 + 30 + 1000
    assert time_s([[send], [receive]], costs, starts_s=[0.0, 40.0]) == 40 + 100 + 60 + 5000


def test_native_goes_by_all_nics_of_a_node():
    nbytes, ring = 1 << 30, TWO.native_s(16, 1 << 30)
    assert ring == pytest.approx(8.4e-6 + 28 * 3.4e-6 + 2 * 14e-6 + 2 * 15 / 16 * nbytes / 360e9)
    slow = TWO._replace(nic_bytes_per_s=10e9).native_s(16, nbytes)
    assert slow - ring == pytest.approx(2 * 15 / 16 * nbytes * (1 / 80e9 - 1 / 360e9))


def test_a_cut_nic_is_seen_and_what_was_under_way_is_sent_again():
    reset, silent, alone = failover_rows()
    again_s = 4 * (64 << 20) / 50e9
    assert reset["stall_s"] == pytest.approx(3.3e-3 + again_s)
    # As long as it took between CPU ranks.
    assert silent["seen_s"] == pytest.approx(predictions.MEASURED_SILENT_S, rel=0.02)
    assert alone["stall_s"] is None and alone["seen_s"] > 30 > silent["stall_s"]


def test_the_committed_page_is_what_the_command_says():
    """Its rows of the smallest size, computed anew."""
    document = json.loads((RESULTS / "gpu-predictions.json").read_text())
    assert document["date"] == "2026-11-29" and document["charges"] == TWO._asdict()
    quick = late_rows(quick=True)
    kept = {(row["machine"], row["nbytes"], row["delay"]): row for row in document["late"]}
    for row in quick:
        found = kept[row["machine"], row["nbytes"], row["delay"]]
        assert found["exposed_s"] == pytest.approx(row["exposed_s"])
        assert f"{1e6 * row['native_s']:.0f} | {row['gain_over_native']:.2f} ({row['best']}) |" in PAGE
    assert len(queued(16, "hier_ring", MIB, predictions.dgx(2, 8))) == 16


PAGE = (RESULTS / "gpu-predictions.md").read_text()
