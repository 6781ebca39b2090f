"""Causes put into synthetic traces come out; real traces get their known answer; nothing is blamed without evidence."""

from pathlib import Path

import numpy as np
import pytest

from evaluation.trace_jobs import SlowWorker, make_trace
from lanterne.failslow.locate.locate import locate
from lanterne.failslow.locate.replay import step_s
from lanterne.failslow.locate.trace import build_trace, read_records, read_trace

DATA = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "traces"
STRUCTURE = {"stage", "data"}


def verdicts(**kwargs):
    return locate(build_trace(make_trace(**kwargs)))


def rank(replica, stage, stages=4):
    return replica * stages + stage


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("replicas", [2, 4, 8])
@pytest.mark.parametrize("kwargs", [{}, {"noise": 0.05}, {"microbatches": 2}, {"steps": 6}], ids=str)
def test_healthy(replicas, kwargs, seed):
    found = verdicts(replicas=replicas, seed=seed, **kwargs)
    assert [(v.cause, v.ranks, v.stage, v.saving) for v in found] == [("none", (), None, 0.0)]


@pytest.mark.parametrize("replicas", [2, 8])
@pytest.mark.parametrize("where", [(0, 0), (1, 3), (1, 2)])
@pytest.mark.parametrize("factor", [1.1, 1.3, 2.0])
def test_slow_worker(replicas, where, factor):
    found = verdicts(replicas=replicas, workers={where: factor})
    assert [v.cause for v in found] == ["worker"]
    assert found[0].ranks == (rank(*where),)
    assert found[0].stage == where[1]
    evidence = found[0].evidence["workers"][0]
    assert evidence["slowdown"] == pytest.approx(factor, rel=0.03)
    assert evidence["idle_share"] < evidence["peers_idle_share"]
    assert evidence["last_arriver_share"] >= 0.8


@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_a_healthy_job_says_how_small_a_slowdown_would_have_been_seen(noise):
    options = {"replicas": 4, "noise": noise, "steps": 24, "microbatches": 2}
    (healthy,) = verdicts(**options, seed=3)
    seen = healthy.evidence["least_slowdown"]
    assert healthy.conclusive and 1.05 < seen["worker"] < 1.2 and seen["link"] >= 1.5 - 1e-9
    found = [verdicts(**options, seed=seed, workers={(1, 2): seen["worker"]}) for seed in range(20)]
    named = [[(one.cause, one.ranks) for one in found if one.cause == "worker"] for found in found]
    assert named.count([("worker", (rank(1, 2),))]) >= 17


def test_too_few_steps_or_replicas_are_no_health():
    for options in ({"replicas": 1}, {"steps": 4}):
        (one,) = verdicts(**options)
        assert (one.cause, one.conclusive, len(one.missing)) == ("none", False, 1), options


def test_saving_of_a_worker_is_what_fixing_it_saves():
    """Measured against a second trace in which nothing is slow."""
    slow, healthy = (build_trace(make_trace(workers=w, noise=0.0)) for w in ({(1, 2): 1.5}, None))

    before, after = (step_s(t.order, t.compute_s, t.links).mean() for t in (slow, healthy))
    assert locate(slow)[0].saving == pytest.approx(1 - after / before, rel=0.01)


def test_two_slow_workers_are_both_named():
    found = verdicts(replicas=8, workers={(1, 2): 1.5, (5, 0): 1.5})
    assert (found[0].cause, set(found[0].ranks)) == ("worker", {rank(1, 2), rank(5, 0)})


def test_a_worker_that_becomes_slow():
    found = verdicts(steps=30, workers={(1, 2): SlowWorker(1.4, first=18)})
    assert (found[0].cause, found[0].ranks) == ("worker", (rank(1, 2),))
    assert abs(found[0].evidence["workers"][0]["first_step"] - 18) <= 1


@pytest.mark.parametrize("uneven", [0.1, 0.3])
def test_slow_worker_among_uneven_data_and_stages(uneven):
    found = verdicts(replicas=8, steps=40, workers={(3, 1): 1.6}, uneven=uneven, stage_factors={3: 1.3})
    assert (found[0].cause, found[0].ranks) == ("worker", (rank(3, 1),))
    assert {v.cause for v in found[1:]} <= STRUCTURE


@pytest.mark.parametrize("where", [(0, 0), (2, 1), (3, 2)])
def test_slow_link(where):
    found = verdicts(links={where: 20.0})
    assert (found[0].cause, found[0].ranks) == ("link", (rank(*where), rank(where[0], where[1] + 1)))
    assert found[0].evidence["slowdown"] == pytest.approx(20.0, rel=0.1)
    assert {v.cause for v in found} == {"link"}


def test_slow_worker_and_slow_link():
    found = verdicts(workers={(1, 2): 1.5}, links={(3, 0): 60.0})
    assert {(v.cause, v.ranks) for v in found} == {("worker", (rank(1, 2),)), ("link", (rank(3, 0), rank(3, 1)))}


def test_uneven_stages_blame_no_worker():
    found = verdicts(stage_factors={3: 1.6})
    assert [(v.cause, v.ranks, v.stage) for v in found] == [("stage", (), 3)]


def test_uneven_data_blames_no_worker():
    found = verdicts(replicas=16, steps=30, uneven=0.3)
    assert [(v.cause, v.ranks) for v in found] == [("data", ())]
    assert found[0].evidence["forward_backward_correlation"] > 0.95


@pytest.mark.filterwarnings("error")
def test_operations_that_took_no_time():
    columns = make_trace()
    columns["duration"] = np.where((columns["mb_id"] == 1) & (columns["step"] == 2), 0.0, columns["duration"])
    assert [v.cause for v in locate(build_trace(columns))] == ["none"]


def test_a_slow_step_is_not_enough():
    """Two bad steps of one worker: long, but no persistence."""
    columns = make_trace(steps=20)
    hit = (columns["dp_rank"] == 1) & (columns["stage"] == 1) & np.isin(columns["step"], (4, 11))
    columns["duration"] = np.where(hit & np.char.endswith(columns["optype"], "compute"), 5.0, 1.0) * columns["duration"]
    assert [v.cause for v in locate(build_trace(columns))] == ["none"]


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_a_replica_with_the_longer_data_blames_no_worker(stages):
    found = verdicts(stages=stages, steps=30, uneven=0.3, long_replicas={1: 1.4})
    assert {(v.cause, v.ranks) for v in found} == {("data", ())}


def test_a_slow_worker_of_the_replica_with_the_longer_data():
    found = verdicts(steps=30, uneven=0.2, long_replicas={1: 1.3}, workers={(1, 2): 1.6})
    assert (found[0].cause, found[0].ranks) == ("worker", (rank(1, 2),))


def test_workers_that_all_stall_now_and_then_are_not_blamed():
    """Of so many, some stall in four of five steps by chance."""
    assert [v.cause for v in verdicts(replicas=8, stages=6, microbatches=7, steps=23, stalls=0.026)] == ["none"]


def test_two_replicas_of_which_one_is_slow_for_half_the_time():
    found = verdicts(replicas=2, stages=1, steps=36, noise=0.05, workers={(0, 0): SlowWorker(2.1, first=2, stop=20)})
    assert (found[0].cause, found[0].ranks) == ("worker", (0,))


def test_one_replica_blames_no_worker():
    assert [v.cause for v in verdicts(replicas=1, workers={(0, 2): 1.5})] == ["stage"]


@pytest.mark.parametrize(("name", "cause", "stage"), [("ST", "stage", 3), ("SE", "data", None)])
def test_real_traces(name, cause, stage):
    path = DATA / f"trace-{name}.parquet"
    if not path.is_file():
        pytest.skip(f"no real trace at {path}")
    pytest.importorskip("pyarrow")
    found = locate(read_trace(path))
    assert [(v.cause, v.ranks, v.stage) for v in found] == [(cause, (), stage)]
    assert found[0].saving > 0.1


@pytest.mark.parametrize(("name", "where", "rank_there"), [("ST", (0, 3), 6), ("ST", (1, 1), 3), ("SE", (7, 1), 78)])
def test_a_slow_worker_put_into_real_traces(name, where, rank_there):
    path = DATA / f"trace-{name}.parquet"
    if not path.is_file():
        pytest.skip(f"no real trace at {path}")
    pytest.importorskip("pyarrow")
    columns = read_records(path)
    there = (columns["dp_rank"] == where[0]) & (columns["stage"] == where[1])
    slow = there & np.char.endswith(columns["optype"], "compute")
    columns["duration"] = np.where(slow, 1.5, 1.0) * columns["duration"]
    found = locate(build_trace(columns))
    assert (found[0].cause, found[0].ranks) == ("worker", (rank_there,))
    assert found[0].evidence["workers"][0]["slowdown"] == pytest.approx(1.5, rel=0.05)
    assert [v.cause for v in found[1:]] == [{"ST": "stage", "SE": "data"}[name]]
