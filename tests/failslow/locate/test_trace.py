"""Reading traces: every format, what is left out, what is refused."""

import csv
import json
import re

import numpy as np
import pytest

from evaluation.trace_jobs import make_trace, one_f_one_b
from lanterne.errors import InputError
from lanterne.failslow.locate.locate import locate
from lanterne.failslow.locate.replay import pipeline_s, step_s
from lanterne.failslow.locate.trace import REQUIRED, build_trace, filled, read_trace

SMALL = {"replicas": 2, "stages": 2, "microbatches": 2, "steps": 6}


def records(columns):
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*(c.tolist() for c in columns.values()), strict=True)
    ]


def write(path, columns):
    if path.suffix == ".json":
        path.write_text(json.dumps(records(columns)))
    elif path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(records(columns))
    else:
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pa.table({name: values.tolist() for name, values in columns.items()}), path)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".json"])
def test_every_format_reads_alike(tmp_path, suffix):
    columns = make_trace(**SMALL)
    read, built = read_trace(write(tmp_path / f"t{suffix}", columns)), build_trace(columns)
    assert read.ranks.tolist() == [[0, 1], [2, 3]]
    assert read.order == built.order
    for actions, a, b in zip(read.order, read.compute_s, built.compute_s, strict=True):
        np.testing.assert_array_equal(a, b, err_msg=str(actions))


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_order_is_that_of_the_schedule(stages):
    trace = build_trace(make_trace(stages=stages, microbatches=6))
    assert [[op[:2] for op in order] for order in trace.order] == [one_f_one_b(s, stages, 6) for s in range(stages)]


def test_replay_agrees_with_the_simulation_that_made_the_trace():
    columns = make_trace(noise=0.1, uneven=0.2)
    trace = build_trace(columns)
    ends = np.zeros((len(trace.steps), 4, 4))
    compute = np.char.endswith(columns["optype"], "compute")
    places = tuple(columns[c][compute] for c in ("step", "dp_rank", "stage"))
    np.maximum.at(ends, places, (columns["start_ts"] + columns["duration"])[compute])
    np.testing.assert_allclose(pipeline_s(trace.order, trace.compute_s, trace.links), ends, rtol=0.02)


def test_replay_is_monotone():
    trace = build_trace(make_trace(noise=0.1))
    base_s = step_s(trace.order, trace.compute_s, trace.links)
    for stage in range(4):
        longer = [d * (1.2 if s == stage else 1.0) for s, d in enumerate(trace.compute_s)]
        assert (step_s(trace.order, longer, trace.links) > base_s).all(), stage


def test_replay_golden():
    """2 stages, 2 microbatches, F = 1, B = 2, 1F1B: (m + p - 1)(F + B) = 9."""
    order = tuple(tuple((*op, 0) for op in one_f_one_b(stage, 2, 2)) for stage in range(2))
    compute_s = [np.array([[[1.0 if kind == "F" else 2.0 for kind, _, _ in operations]]]) for operations in order]
    assert step_s(order, compute_s).tolist() == [9.0]
    assert step_s(order, compute_s, {(0, "forward"): np.array([[0.5]])}).tolist() == [9.5]


def test_replay_of_interleaved_chunks():
    """2 stages, 2 chunks, 1 microbatch: the chunks go round twice, so nothing overlaps: 4 (F + B)."""
    order = tuple((("F", 0, 0), ("F", 0, 1), ("B", 0, 1), ("B", 0, 0)) for _ in range(2))
    compute_s = [np.array([[[1.0, 1.0, 2.0, 2.0]]])] * 2
    assert step_s(order, compute_s).tolist() == [12.0]


def test_replay_of_a_circle():
    order = ((("F", 0, 0), ("B", 0, 0)), (("B", 0, 0), ("F", 0, 0)))
    broken = ((("B", 0, 0), ("F", 0, 0)), (("F", 0, 0), ("B", 0, 0)))
    ones = [np.ones((1, 1, 2))] * 2
    assert step_s(order, ones).shape == (1,)
    with pytest.raises(InputError, match=r"stage 1, operation .* waits for ever"):
        step_s((*broken, ()), [*ones, np.ones((1, 1, 0))])
    with pytest.raises(InputError, match="waits for ever"):
        step_s(broken, ones)


def test_steps_with_holes_are_left_out_and_said():
    columns = make_trace(**SMALL)
    keep = ~((columns["step"] == 2) & (columns["dp_rank"] == 1) & (columns["mb_id"] >= 0))
    trace = build_trace({name: values[keep] for name, values in columns.items()})
    assert trace.steps.tolist() == [0, 1, 3, 4, 5]
    assert trace.notes == ("1 of 6 steps left out, where a worker lacks half of its operations",)


def test_a_silent_worker_is_named():
    columns = make_trace(**SMALL)
    keep = ~((columns["rank"] == 3) & (columns["step"] > 0))
    trace = build_trace({name: values[keep] for name, values in columns.items()})
    told = "dp_rank 1 stage 1 (rank 3) reports in fewer than half of the steps: taken to be as the other's"
    assert trace.notes[0] == told
    assert (len(trace.steps), trace.ranks.tolist()) == (6, [[0, 1], [2, 3]])
    assert {d.shape for d in trace.compute_s} == {(6, 2, 4)}


@pytest.mark.parametrize("seed", range(3))
def test_a_worker_that_says_nothing_hides_no_slow_one_of_the_other_replica(seed):
    """Of two replicas both are compared: the slow worker is no slow stage, and the silent one has the next number."""
    columns = make_trace(replicas=2, workers={(1, 2): 1.5}, seed=seed)
    trace = build_trace({name: values[columns["rank"] != 3] for name, values in columns.items()})
    assert trace.notes[0].startswith("dp_rank 0 stage 3 reports in fewer")
    found = locate(trace)
    assert [(v.cause, v.ranks, v.evidence.get("state")) for v in found] == [
        ("worker", (6,), None),
        ("worker", (3,), "silent"),
    ]


@pytest.mark.parametrize("column", REQUIRED)
def test_missing_columns_are_named(tmp_path, column):
    columns = make_trace(**SMALL)
    del columns[column]
    with pytest.raises(InputError, match=f"no column {column}, expected it"):
        read_trace(write(tmp_path / "t.csv", columns))


def changed(column, value):
    columns = make_trace(**SMALL)
    columns[column] = columns[column].copy()
    columns[column][7] = value
    return columns


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("duration", -1.0, "record 7, column duration: got -1.0"),
        ("duration", np.nan, "record 7"),
        ("start_ts", np.inf, "record 7, column start_ts"),
        ("duration", 1e308, "record 7, column duration: got 1e[+]308"),
        ("rank", 2**60, "record 7, column rank: got 115.*, expected a number"),
    ],
)
def test_bad_numbers_are_left_out_and_said(column, value, text):
    trace = build_trace(changed(column, value))
    assert re.match(f"1 of .* records left out.*{text}", trace.notes[0])
    whole = build_trace(make_trace(**SMALL))
    assert (trace.order, len(trace.steps)) == (whole.order, SMALL["steps"])
    columns = make_trace(**SMALL)
    columns[column] = np.full(len(columns[column]), value)
    with pytest.raises(InputError, match="record 0"):
        build_trace(columns)


@pytest.mark.parametrize("lost", [0.1, 0.3])
def test_lost_records_are_taken_to_be_as_usual(lost):
    columns = make_trace(workers={(2, 1): 1.3})
    keep = np.random.default_rng(3).random(len(columns["step"])) >= lost
    trace = build_trace({name: values[keep] for name, values in columns.items()})
    assert any("are missing, and taken to be as usual" in note for note in trace.notes)
    (found,) = locate(trace)
    assert (found.cause, found.ranks) == ("worker", (9,))


def test_a_stage_without_work_is_named():
    columns = make_trace(**SMALL)
    kind = np.where(columns["stage"] == 1, "optimizer", columns["optype"])
    with pytest.raises(InputError, match="got no compute operation of stage 1"):
        build_trace(columns | {"optype": kind})


def test_message_numbers_may_be_large():
    columns = make_trace(**SMALL)
    links = build_trace(columns).links
    numbered = build_trace(columns | {"seq_id": columns["mb_id"] + 2.0**40}).links
    assert links.keys() == numbered.keys() != set()
    for key, alone in links.items():
        np.testing.assert_array_equal(numbered[key], alone, err_msg=str(key))


def test_missing_microbatch_of_other_operations_is_fine():
    columns = make_trace(**SMALL)
    columns["mb_id"] = np.where(columns["mb_id"] < 0, np.nan, columns["mb_id"])
    assert len(build_trace(columns).steps) == SMALL["steps"]


@pytest.mark.parametrize("column", ["step", "duration", "dp_rank"])
@pytest.mark.parametrize("bad", [None, "x"])
def test_parquet_with_holes_or_text(tmp_path, column, bad):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    lists = {name: values.tolist() for name, values in make_trace(**SMALL).items()}
    if bad is not None:
        lists[column] = [str(value) for value in lists[column]]
    lists[column][0] = bad
    parquet.write_table(pa.table(lists), tmp_path / "t.parquet")
    trace = read_trace(tmp_path / "t.parquet")
    assert f"record 0, column {column}: got" in trace.notes[0] and len(trace.steps) == SMALL["steps"]


def test_a_worker_that_never_reports():
    """The other replicas are judged without its own; where each has such a worker, nothing can be."""
    columns = make_trace(**SMALL | {"replicas": 4}, workers={(3, 1): 1.5})
    silent = columns["rank"] == 3
    trace = build_trace({name: values[~silent] for name, values in columns.items()})
    assert trace.notes[0].startswith("dp_rank 1 stage 1 reports in fewer") and trace.links
    assert (trace.replicas, locate(trace)[0].ranks) == (3, (7,))
    silent = np.isin(columns["rank"], [0, 3, 4, 7])
    with pytest.raises(InputError, match=r"dp_rank 0 stage 0, dp_rank 1 stage 1, .* report in fewer than half"):
        build_trace({name: values[~silent] for name, values in columns.items()})


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("t.json", '[{"step": 1, ', "no valid JSON"),
        ("t.json", "3", "expected a list of records"),
        ("t.json", "[]", "no records"),
        ("t.csv", "", "got an empty file"),
        ("t.csv", ",".join(REQUIRED) + "\n", "no records"),
        ("t.csv", ";".join(REQUIRED) + "\n", "got columns separated by ';', expected commas"),
        ("t.csv", ",".join(REQUIRED[:3]) + "\n", "no column step, .*, expected all; got dp_rank, stage, rank$"),
        ("t.csv", "a,b\n", "expected all; got none of them"),
        ("t.csv", ",".join(REQUIRED) + "\n0,0,0,0,forward-compute,x,1,0\n", "column start_ts"),
        ("t.csv", ",".join(REQUIRED) + "\n0,0,0,0,optimizer,0,1,0\n", "no forward-compute"),
        ("t.parquet", "not parquet", "no readable parquet"),
        ("t.txt", "", "expected one of .parquet"),
    ],
)
def test_bad_files(tmp_path, name, content, text):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=text):
        read_trace(tmp_path / name)


def test_no_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_trace(tmp_path / "t.csv")


def test_a_slow_worker_does_not_show_in_what_others_lack():
    """Of a microbatch what most stages show is the data's."""
    order = [tuple(("FB"[k % 2], k // 2, 0) for k in range(8))] * 3
    compute_s = [np.ones((6, 2, 8)) for _ in order]
    compute_s[0][3, 0] = 2.7
    compute_s[2][3, 0, ::2] = np.nan
    assert filled(compute_s, order)[2][3, 0] == pytest.approx(np.ones(8))


def test_what_is_filled_in_is_not_longer_beside_a_slow_worker():
    """Of two stages the other's operations of the same microbatches are twice as long, in five of twelve steps."""
    order = [tuple((kind, m, 0) for m in range(4) for kind in "FB")] * 2
    compute_s = [np.ones((12, 3, 8)), np.ones((12, 3, 8))]
    compute_s[1][:5, 0] = 2.0
    compute_s[0][2, 0, 2:] = compute_s[1][3, 0, 4:] = compute_s[0][4, 0] = np.nan
    first, last = filled(compute_s, order)
    assert first[:, 0] == pytest.approx(np.ones((12, 8))) and last[3, 0] == pytest.approx(np.full(8, 2.0))
