"""Data planes over threads: the same losses, the times that the simulator gives, links that change, errors."""

import numpy as np
import pytest

import lanterne
from lanterne.errors import InputError, PeerFailed
from lanterne.pipeline.execute.execute import execute
from lanterne.pipeline.execute.measured import gather, timeline
from lanterne.pipeline.execute.stage_timed import timed_stages
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes import plane_makers as planes
from lanterne.pipeline.planes.plane_makers import PLANES, find_plane, make_plane, predict
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.analysis import senders
from lanterne.pipeline.simulate.check_plan import check
from lanterne.transport.shaped import Link

# Delegates are processes, and streams those of a device: tested with their own files.
HERE = [name for name in PLANES if name not in ("delegate", "streams")]
# Whether ranks share memory matters to these.
NEAR_OR_FAR = [(name, near) for name in HERE for near in (True, False) if near or name in ("paired", "unbounded")]
PROBLEM = Problem(2, 4, 3, 3, 2, [8])
UNIT_S = 1e-3
LINKS = {pair: Link(8e-3) for pair in ((0, 1), (1, 0))}


@pytest.fixture
def set_near(monkeypatch):
    """A function that makes pairs of ranks share memory or not: True, False or a list of pairs."""

    def set_pairs(near):
        if near is not True:
            monkeypatch.setattr(planes, "near_pairs", lambda comm: near or [])

    return set_pairs


def timed(name, scheduler, links=LINKS, change=None, iterations=1):
    checked = check(plan(PROBLEM, scheduler), PROBLEM, memory=False)

    def job(comm):
        found = []
        with make_plane(name, comm, links) as plane:
            for iteration in range(iterations):
                if change and iteration:
                    change(plane)
                comm.barrier()
                stages = timed_stages(PROBLEM, checked.plan.placement, comm.rank, UNIT_S)
                columns = gather(execute(checked, stages, comm, plane=plane), checked, comm)
                found.append((columns, timeline(columns, checked, PROBLEM, UNIT_S)))
        return found

    results = lanterne.spawn(2, job)
    for (mine, _), (other, _) in zip(*results, strict=True):
        assert all(np.array_equal(mine[name], other[name], equal_nan=True) for name in mine), (mine, other)
    return checked, results[0]


@pytest.mark.parametrize("scheduler", ["1f1b", "zb_v", "crosspipe"])
@pytest.mark.parametrize(("name", "near"), NEAR_OR_FAR)
def test_no_message_comes_early(set_near, name, near, scheduler):
    """It takes its link's 8 ms, for `paired` from when its receiver, too, had nothing else to do; 1F1B receives no
    message for a later one.
    """
    set_near(near)
    _, [(_, measured)] = timed(name, scheduler)
    sender, rank_of = senders(measured), measured.plan.rank_of
    for receiver in np.flatnonzero(sender >= 0).tolist():
        if rank_of[receiver] == rank_of[sender[receiver]]:
            continue
        left = measured.end[sender[receiver]]
        if (name, scheduler) == ("paired", "1f1b") and receiver not in measured.plan.offsets:
            left = max(left, measured.end[receiver - 1])
        assert measured.start[receiver] >= left + 8 - 1e-6, receiver


@pytest.mark.timing
@pytest.mark.parametrize(("name", "near"), NEAR_OR_FAR)
def test_a_link_can_heal_between_iterations(set_near, name, near):
    set_near(near)

    def heal(plane):
        for pair in LINKS:
            plane.set_link(*pair, Link())

    checked, [_, (columns, _)] = timed(name, "1f1b", change=heal, iterations=2)
    words = [str(action) for rank in checked.plan.ranks for action in rank]
    # Not one message may take 8 ms any more; a busy machine may be slow once, but not each time.
    waits = [columns["ready_s"][words.index(f"F1.{m}")] - columns["end_s"][words.index(f"F0.{m}")] for m in range(4)]
    assert min(waits) < 8e-3


@pytest.mark.parametrize("name", ["paired", "unbounded"])
def test_some_ranks_share_memory(set_near, name):
    set_near([(0, 1), (2, 3)])

    def job(comm):
        with make_plane(name, comm) as plane:
            peers = [peer for peer in range(4) if peer != comm.rank]
            receives = {peer: [plane.receive((1,), np.dtype(int), peer) for _ in range(3)] for peer in peers}
            for value in range(3):
                for peer in peers:
                    buffer = plane.lend((1,), np.dtype(int), peer)
                    buffer[:] = 10 * comm.rank + value
                    plane.send(buffer, peer)
            got = {peer: [receive.wait().tolist() for receive in receives[peer]] for peer in peers}
            plane.finish()
            comm.barrier()
            return got == {peer: [[10 * peer + value] for value in range(3)] for peer in peers}

    assert lanterne.spawn(4, job, timeout_s=20.0) == [True] * 4


def test_an_unknown_plane_is_named():
    with pytest.raises(InputError, match="data plane: got 'carrier', expected one of inline"):
        find_plane("carrier")


def test_predictions_differ_as_the_planes_do():
    checked = check(plan(PROBLEM, "gpipe"), PROBLEM, memory=False)
    makespans = {name: predict(name, checked, PROBLEM).makespan for name in PLANES}
    assert makespans["inline"] > makespans["unbounded"] == makespans["delegate"] == makespans["paired_o"]
    assert makespans["paired"] > makespans["paired_o"]
    assert predict("inline", checked, PROBLEM, queue=9).makespan <= makespans["inline"]


def test_who_is_gone_is_named_by_its_number_in_the_job():
    def run(comm):
        pipeline = comm.split(comm.rank // 2, comm.rank)
        plane = make_plane("delegate", pipeline, {})

        def gone():
            raise PeerFailed(1, "it is gone")

        plane.delegates.progress = gone
        with pytest.raises(PeerFailed, match="it is gone") as failed:
            plane.progress()
        plane.close()
        return failed.value.rank

    assert lanterne.spawn(4, run) == [1, 1, 3, 3]
