"""What clusters write is read whatever is wrong with it, of all ranks together, and says who is slow or missing."""

import contextlib
import functools
import gzip
import json
import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from call_logs import job_calls, write_logs
from hypothesis import given
from hypothesis import strategies as st

from evaluation.operators import foreign_formats as encoders
from evaluation.operators.foreign_formats import WRITERS
from evaluation.trace_jobs import SlowWorker, make_trace
from lanterne.errors import InputError
from lanterne.failslow.locate.activity import activity
from lanterne.failslow.locate.calls_verdicts import diagnose
from lanterne.failslow.locate.formats import folder as formats_folder
from lanterne.failslow.locate.formats.flight_recorder import load_pickle
from lanterne.failslow.locate.formats.folder import read_folder
from lanterne.failslow.locate.formats.foreign_calls import CallBuilder
from lanterne.failslow.locate.formats.identity import Member, global_ranks
from lanterne.failslow.locate.trace import read_records

REAL = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "traces"
# Days apart.
SKEW_S = {rank: encoders.DAY_S * rank for rank in range(200)}
JOBS = {
    "healthy": ({}, ("none", ())),
    "worker": ({"workers": {(2, 1): 1.3}}, ("worker", (9,))),
    "link": ({"links": {(1, 2): 20.0}}, ("link", (6, 7))),
    "stage": ({"stage_factors": {3: 1.5}}, ("stage", ())),
    "data parallel": ({"replicas": 8, "stages": 1, "microbatches": 1, "workers": {(3, 0): 1.5}}, ("worker", (3,))),
}


@functools.cache
def calls_of_job(job, thin):
    """The calls of 10 steps of one of JOBS, the same for every format."""
    return encoders.calls_of(make_trace(steps=10, **JOBS[job][0]), thin, 1, SKEW_S)


@functools.cache
def real_calls(name, thin):
    """Those of a production trace."""
    return encoders.calls_of(read_records(REAL / f"trace-{name}.parquet"), thin, 1, SKEW_S)


def verdicts_of(folder):
    return diagnose(read_folder(folder).calls)


@pytest.mark.parametrize("thin", [0.0, 0.1])
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("job", JOBS)
def test_every_format_says_what_is_slow(tmp_path, job, writer, thin):
    _, (cause, ranks) = JOBS[job]
    WRITERS[writer](tmp_path, calls_of_job(job, thin))
    verdicts, _ = verdicts_of(tmp_path)
    assert [(verdict.cause, verdict.ranks) for verdict in verdicts] == [(cause, ranks)]
    assert cause != "stage" or verdicts[0].stage == 3
    json.dumps([verdict.evidence for verdict in verdicts])


@pytest.mark.parametrize("thin", [0.0, 0.1])
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(("name", "cause", "stage", "saving"), [("SE", "data", None, 0.26), ("ST", "stage", 3, 0.146)])
def test_production_traces_in_every_format(tmp_path, name, cause, stage, saving, writer, thin):
    pytest.importorskip("pyarrow")
    if not REAL.exists():
        pytest.skip("the production traces are not here")
    WRITERS[writer](tmp_path, real_calls(name, thin))
    (verdict,) = verdicts_of(tmp_path)[0]
    assert (verdict.cause, verdict.stage) == (cause, stage)
    assert verdict.saving == pytest.approx(saving, abs=0.001 if thin == 0.0 else 0.07)


def test_silent_ranks_are_suspects_beside_what_is_found(tmp_path):
    calls = encoders.calls_of(make_trace(workers={(2, 1): 1.3}), drop_ranks=(5,))
    encoders.write_flight_recorder(tmp_path, calls)
    verdicts, _notes = verdicts_of(tmp_path)
    assert [(v.cause, v.ranks) for v in verdicts] == [("worker", (9,)), ("worker", (5,))]
    assert verdicts[1].evidence["state"] == "silent"


def test_our_own_call_logs(tmp_path):
    write_logs(tmp_path, job_calls(4, 60, late=(2, 0, 60, 4e-3)))
    (verdict,) = verdicts_of(tmp_path)[0]
    assert (verdict.cause, verdict.ranks) == ("worker", (2,))
    assert verdict.evidence["places"]["2"]["host"] == "h"


def write_durations(folder, late, calls=36, thin=0.0, ranks=4):
    """NCCL Inspector's lines of durations alone, a share lost: `late` tells to which calls rank 2 comes last."""
    draw = random.Random(1)
    for rank in range(ranks):
        with open(folder / f"rank{rank}.jsonl", "w") as file:
            for call in (call for call in range(calls) if draw.random() >= thin):
                header = {"id": "0x1", "rank": rank, "n_ranks": ranks}
                took_us = 900 if late(call) and rank != 2 else 100
                perf = {"coll": "AllReduce", "coll_sn": call, "coll_exec_time_us": took_us}
                file.write(json.dumps({"header": header, "metadata": {"pid": rank}, "coll_perf": perf}) + "\n")


@pytest.mark.parametrize("thin", [0.0, 0.1])
@pytest.mark.parametrize("late", [lambda call: True, lambda call: call % 4 == 1, lambda call: call < 18])
def test_durations_alone_tell_who_comes_last(tmp_path, late, thin):
    """In every call, in the same one of every step, or for a while."""
    write_durations(tmp_path, late, calls=60, thin=thin)
    (verdict,), _notes = verdicts_of(tmp_path)
    assert (verdict.cause, verdict.ranks, verdict.evidence["state"]) == ("worker", (2,), "late")


@pytest.mark.parametrize("thin", [0.0, 0.1])
@pytest.mark.parametrize("calls", [{3, 4, 11, 20, 24, 33}, {1, 9, 12, 13, 14, 30}])
def test_who_comes_last_now_and_then_is_not_blamed(tmp_path, calls, thin):
    write_durations(tmp_path, calls.__contains__, thin=thin)
    (verdict,), _ = verdicts_of(tmp_path)
    assert verdict.cause == "none"


def test_what_cannot_be_told_says_what_would_tell(tmp_path):
    entry = {"process_group": ["0", "d"], "profiling_name": "nccl:all_reduce"}
    entries = [entry | {"collective_seq_id": i} for i in range(9)]
    for rank in range(2):
        (tmp_path / f"dump_{rank}").write_text(json.dumps({"version": "2.4", "entries": entries}))
    (verdict,), notes = verdicts_of(tmp_path)
    assert verdict.cause == "none" and "TORCH_NCCL_ENABLE_TIMING" in verdict.evidence["needs"]
    assert any("TORCH_NCCL_ENABLE_TIMING" in note for note in notes)


# -- hangs


def dump(last, ranks=4, state="scheduled", name="all_reduce", version="2.4", seq="collective_seq_id"):
    """A Flight Recorder dump whose last call, number `last`, has not ended."""
    entries = [
        {"process_group": ("0", "default_pg"), seq: i, "profiling_name": "nccl:" + ("all_reduce" if i < last else name),
         "state": "completed" if i < last else state, "time_created_ns": 10**9 * i}
        for i in range(1, last + 1)
    ]  # fmt: skip
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    return {"version": version, "entries": entries, "pg_config": config}


@pytest.mark.parametrize("seq", ["collective_seq_id", "seq_id"])
@pytest.mark.parametrize("missing", [(2,), (1, 3)])
def test_the_rank_that_did_not_come_to_a_collective(tmp_path, missing, seq):
    for rank in range(4):
        content = dump(60, state="completed", seq=seq) if rank in missing else dump(61, seq=seq)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content))
    (verdict,) = verdicts_of(tmp_path)[0]
    assert (verdict.cause, verdict.ranks, verdict.evidence["state"]) == ("worker", missing, "missing")
    assert "all_reduce 61" in verdict.evidence["missing"][0]["because"]


@pytest.mark.parametrize(("unread", "found"), [((1,), [((2,), "missing"), ((1,), "silent")]), ((1, 2), [])])
def test_a_rank_whose_dump_was_not_read_is_not_said_to_have_not_come(tmp_path, unread, found):
    for rank in range(4):
        content = dump(60, state="completed") if rank == 2 else dump(61)
        data = pickle.dumps(content)
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(data[:20] if rank in unread else data)
    verdicts, notes = verdicts_of(tmp_path)
    assert [(v.ranks, v.evidence["state"]) for v in verdicts if v.cause == "worker"] == found
    assert found or any("what ranks 1, 2 wrote, which tells" in note for note in notes)


def test_dumps_of_several_versions_are_read_together(tmp_path):
    versions = {"1.0": "seq_id", "2.2": "seq_id", "2.4": "collective_seq_id", None: "seq_id"}
    for rank, (version, seq) in enumerate(versions.items()):
        last, state = (60, "completed") if rank == 1 else (61, "scheduled")
        content = dump(last, state=state, version=version, seq=seq)
        # The first of all was the list of calls alone.
        content = content if version else content["entries"]
        (tmp_path / f"dump_{rank}").write_text(json.dumps(content))
    (verdict,) = verdicts_of(tmp_path)[0]
    assert (verdict.cause, verdict.ranks, verdict.evidence["state"]) == ("worker", (1,), "missing")


def test_another_call_and_a_dump_that_is_not_there(tmp_path):
    for rank in range(4):
        content = dump(61, name="barrier" if rank == 1 else "all_reduce")
        (tmp_path / f"dump{rank}").write_bytes(pickle.dumps(content))
    (verdict,) = verdicts_of(tmp_path)[0]
    assert verdict.ranks == (1,) and "barrier where others called all_reduce" in str(verdict.evidence)
    (tmp_path / "dump1").unlink()
    (verdict,) = verdicts_of(tmp_path)[0]
    assert verdict.ranks == (1,), "its dump is not there: the one that all wait for"


def ras(counts, dead=(), comma=True, at="2026-01-01"):
    status = {"init_state": 0, "async_error": 0, "abort_flag": False}
    ranks = [
        {"rank": r, "host": f"n{r}", "pid": 10 + r, "cuda_dev": r, "status": status,
         "collective_counts": {"AllReduce": c}}
        for r, c in counts.items()
    ]  # fmt: skip
    missing = [
        {"rank": r, "host": f"n{r}", "pid": 10 + r, "cuda_dev": r, "nvml_dev": 0,
         "status": {"unresponsive": True, "considered_dead": False}}
        for r in dead
    ]  # fmt: skip
    one = {"hash": "0xa", "secondary_hash": "0xb:0xc", "size": len(counts) + len(dead)}
    one |= {"ranks": ranks, "missing_ranks": missing}
    text = json.dumps({"nccl_version": "2.28.9", "timestamp": at, "communicators": [one]}, indent=1)
    return text if comma else text.replace('"nvml_dev": 0,', '"nvml_dev": 0')


@pytest.mark.parametrize("comma", [True, False])
def test_ras_names_ranks_that_do_not_answer_or_are_behind(tmp_path, comma):
    (tmp_path / "ras.json").write_text(ras({0: 9, 1: 9, 3: 9}, dead=(2,), comma=comma))
    (verdict,) = verdicts_of(tmp_path)[0]
    assert (verdict.cause, verdict.ranks) == ("worker", (2,))
    assert verdict.evidence["places"]["2"] == {"host": "n2", "pid": 12, "gpu": 2}
    (tmp_path / "ras.json").write_text(ras({0: 61, 1: 60, 2: 61}))
    (tmp_path / "ras-later.json").write_text(ras({0: 61, 1: 60, 2: 61}, at="2026-01-02"))
    (verdict,) = verdicts_of(tmp_path)[0]
    assert verdict.ranks == (1,) and "its last there is 60" in str(verdict.evidence)
    (tmp_path / "ras-later.json").write_text(ras({0: 75, 1: 74, 2: 75}, at="2026-01-02"))
    assert verdicts_of(tmp_path)[0][0].cause == "none", "it moves: a matter of the moment"


# -- bad input


def test_what_cannot_be_used_is_counted_and_the_rest_used(tmp_path):
    encoders.write_inspector(tmp_path, encoders.calls_of(make_trace(workers={(2, 1): 1.3})))
    path = next(tmp_path.glob("*1000.log"))
    lines = path.read_text().splitlines()
    lines[3] = lines[3][:40]
    lines[4] = lines[4].replace('_exec_time_us": ', '_exec_time_us": -')
    lines[5] = '{"header": {}, "coll_perf": {"coll_exec_time_us": NaN}}'
    lines[6] = "[1, 2]"
    path.write_text("\n".join(lines))
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "notes\n.txt").write_text("nothing of ours")
    calls = read_folder(tmp_path).calls
    assert calls.skipped == {
        "a line that is cut off, or no JSON": 1,
        "a time that is no number, or negative": 1,
        "an Inspector line without a rank": 1,
        "a line that is not the Inspector's": 1,
    }
    assert sorted(note.split(":")[0] for note in calls.notes) == ["empty.log", "notes\\n.txt"]
    assert [verdict.ranks for verdict in diagnose(calls)[0]] == [(9,)]


HUGE = {"30 digits": 10**30, "400 digits": 10**400, "text": "9" * 400, "infinite": float("inf"), "minuses": "--5"}
of_huge = pytest.mark.parametrize("value", HUGE.values(), ids=HUGE)


def used_of(path, one, two):
    """How many calls rank 0's content and rank 1's tell, files `path` of a rank."""
    for rank, content in enumerate((one, two)):
        Path(str(path).format(rank)).write_text(content if isinstance(content, str) else json.dumps(content))
    return sorted(read_folder(path.parent).calls.rank.tolist())


@of_huge
@pytest.mark.parametrize("key", ["time_discovered_started_ns", "duration_ms", "collective_seq_id", "profiling_name"])
def test_a_number_that_is_too_large_spoils_its_call_alone(tmp_path, key, value):
    one = dump(9, state="completed")
    one["entries"][3][key] = f"send 0->{value}" if key == "profiling_name" else value
    used = used_of(tmp_path / "dump_{}", one, dump(9, state="completed"))
    assert used.count(1) == 9 and used.count(0) >= 8


@of_huge
def test_numbers_of_a_trace_that_are_too_large(tmp_path, value):
    about = {"world_size": value, "rank": value}
    kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "ts": 1, "dur": 5, "args": {"Group size": value}}
    events = [kernel, kernel | {"args": {"In msg nelems": 1 << 61, "dtype": "Long"}}, kernel | {"ts": value}]
    events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{value}", "ts": 1, "dur": 9})
    traces = [{"distributedInfo": one, "traceEvents": events} for one in (about, {"world_size": 2, "rank": 1})]
    assert used_of(tmp_path / "trace-rank{}.json", *traces) == [0, 0, 0, 1, 1, 1]
    assert read_folder(tmp_path).calls.expected == (0, 1)


def inspector_lines(*ranks, pids=None, size=2, kernels=({"kernel_start_ts": 1},), took_us=5):
    """An Inspector's line of each of `ranks` of a communicator of `size`."""
    events = {"coll_start_ts": 1, "kernel_events": kernels}
    perf = {"coll": "AllReduce", "coll_sn": 1, "coll_exec_time_us": took_us, "event_trace_ts": events}
    return "".join(
        json.dumps({
            "header": {"id": "0x1", "rank": rank, "n_ranks": size}, "metadata": {"hostname": "h", "pid": pid},
            "coll_perf": perf,
        }) + "\n"
        for rank, pid in zip(ranks, pids or ranks, strict=True)
    )  # fmt: skip


BEYOND = "an Inspector line of a rank that its communicator does not have"
NO_TIME = "a time that is no number, or negative"


@pytest.mark.parametrize(
    ("bad", "skipped"),
    [
        (inspector_lines(0, pids=[9]), {"a call of a process whose rank another has": 1}),
        (inspector_lines(5), {BEYOND: 1}),
        (inspector_lines(0, kernels=5), {}),
        (inspector_lines(0, took_us=10**400), {NO_TIME: 1}),
        (inspector_lines(0, size=10**9), {}),
    ],
    ids=["a restarted process", "rank 5 of 2", "no kernel events", "a time of 400 digits", "10^9 ranks"],
)
def test_a_bad_line_of_the_inspector_spoils_no_other(tmp_path, bad, skipped):
    (tmp_path / "0.log").write_text(bad)
    (tmp_path / "1.log").write_text(inspector_lines(0, 1))
    calls = read_folder(tmp_path).calls
    assert calls.skipped == skipped
    assert sorted(calls.rank.tolist()) == ([0, 1] if skipped else [0, 0, 1])
    assert calls.expected == calls.groups[0].ranks == (0, 1)


def test_ras_of_a_process_that_started_again_and_of_more_ranks_than_any_job_has(tmp_path):
    (tmp_path / "1.json").write_text(ras({0: 61, 1: 60, 2: 61}).replace('"pid": 10', '"pid": 99'))
    (tmp_path / "2.json").write_text(ras({0: 61, 1: 60, 2: 61}, at="2026-01-02"))
    other = ras({0: 9, 1: 9}, at="2026-01-03").replace("0xa", "0xc")
    (tmp_path / "3.json").write_text(other.replace('"size": 2', '"size": 1000000000'))
    calls = read_folder(tmp_path).calls
    assert calls.skipped == {"a RAS process whose rank another has": 1}
    assert (calls.expected, calls.processes[0].pid) == ((0, 1, 2), 10)


def test_packed_files_that_are_corrupt_or_unpack_to_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(formats_folder, "MAX_NBYTES", 1 << 20)
    (tmp_path / "dump_0").write_text(json.dumps(dump(9)))
    corrupt = bytearray(gzip.compress(json.dumps({"traceEvents": list(range(50_000))}).encode()))
    corrupt[5000:5010] = b"\xff" * 10
    (tmp_path / "a.json.gz").write_bytes(corrupt)
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b"{\n%s}" % (b" " * (1 << 20))))
    (tmp_path / "c.log.gz").write_bytes(gzip.compress(inspector_lines(1).encode() + b" " * (1 << 20)))
    calls = read_folder(tmp_path).calls
    assert sorted(set(calls.rank.tolist())) == [0, 1]
    too_much = "got more than 1048576 bytes unpacked, expected at most these"
    assert calls.notes[0].startswith("a.json.gz: not used: Error -3 while decompressing data")
    assert calls.notes[1] == f"b.json.gz: not used: {too_much}"
    assert calls.notes[2] == f"c.log.gz: used up to where it broke off: {too_much}"


@pytest.mark.timeout(20)
def test_a_broken_ras_document_of_many_empty_lines_is_refused_at_once(tmp_path):
    (tmp_path / "ras.json").write_text('{"communicators": [{"hash": "1"' + "\n" * 200_000 + "}")
    with pytest.raises(InputError, match=r"ras\.json: not used"):
        read_folder(tmp_path)


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/lanterne-was-here",)


@pytest.mark.parametrize("value", [Evil(), np.float64(1.0), {"entries": [Evil()]}])
def test_a_pickle_that_would_run_something_is_not_read(tmp_path, value):
    (tmp_path / "dump_0").write_bytes(pickle.dumps(value))
    with pytest.raises(InputError, match="holds more than data"):
        read_folder(tmp_path)
    assert not Path("/tmp/lanterne-was-here").exists()


def test_lists_as_torch_writes_them():
    content = b"\x80\x02}(X\x01\x00\x00\x00actorch.jit._pickle\nbuild_intlist\n(](K\x01K\x02etRu."
    assert load_pickle(content) == {"a": [1, 2]}


@given(data=st.binary(max_size=200))
def test_any_pickle_is_read_or_refused(data):
    with contextlib.suppress(ValueError):
        load_pickle(b"\x80" + data)


HEADS = [b"", b"\x80\x02", b'{"traceEvents": [', b'{"header": {', b"\x1f\x8b", b"["]


@given(data=st.binary(max_size=120), head=st.sampled_from(HEADS))
def test_any_file_is_read_or_refused(tmp_path_factory, data, head):
    folder = tmp_path_factory.mktemp("any")
    (folder / "file_0").write_bytes(head + data)
    with pytest.raises(InputError):
        read_folder(folder)


def test_a_kineto_trace_that_is_cut_off_is_used_up_to_there(tmp_path):
    encoders.write_kineto(tmp_path, encoders.calls_of(make_trace(workers={(2, 1): 1.3})))
    path = tmp_path / "trace-rank3.json"
    path.write_text(path.read_text()[:-2000])
    (tmp_path / "trace-rank4.json.gz").write_bytes(gzip.compress((tmp_path / "trace-rank4.json").read_bytes())[:-30])
    (tmp_path / "trace-rank4.json").unlink()
    verdicts, _ = verdicts_of(tmp_path)
    assert (verdicts[0].cause, verdicts[0].ranks) == ("worker", (9,))
    notes = read_folder(tmp_path).calls.notes
    assert any("rank3.json: 1 of " in note for note in notes)
    assert any("rank4.json.gz: not used" in note for note in notes)


@pytest.mark.parametrize("job", ["worker", "data parallel"])
def test_a_rank_that_tells_its_steps_but_of_no_call_when_it_was(tmp_path, job):
    encoders.write_kineto(tmp_path, calls_of_job(job, 0.0))
    path = tmp_path / "trace-rank5.json"
    trace = json.loads(path.read_text())
    for event in trace["traceEvents"]:
        if event["cat"] == "kernel":
            event["ts"] = None
    path.write_text(json.dumps(trace))
    assert verdicts_of(tmp_path)[0][0].ranks == JOBS[job][1][1]


# -- what is lost, and what only seems slow


def read_back(folder, trace, thin):
    """The calls of a made trace, written by Flight Recorder without a share of its rows and read."""
    encoders.write_flight_recorder(folder, encoders.calls_of(make_trace(**trace), thin, 1, SKEW_S))
    return read_folder(folder).calls


def test_waiting_sends_do_not_look_blocking_where_microbatches_vary_much(tmp_path):
    """Compute varies by 30 %: only where sends wait it tells whether these block; else forwards seem short."""
    trace = make_trace(2, 4, 6, 29, noise=0.02, uneven=0.3, long_replicas={1: 1.45}, seed=8)
    encoders.write_flight_recorder(tmp_path, encoders.calls_of(trace, 0.1, 8))
    (verdict,), _ = verdicts_of(tmp_path)
    assert (verdict.cause, verdict.saving) == ("data", pytest.approx(0.27, abs=0.03))


def test_who_sends_to_a_slow_rank_computes_as_long_as_its_peers(tmp_path):
    # Of two replicas, its peer would seem the slower one if its waiting sends were taken for blocking.
    table = read_back(tmp_path, {"replicas": 2, "microbatches": 4, "steps": 25, "workers": {(0, 0): 2.8}}, 0.0)
    trace = activity(table).trace
    own, peer = np.median(trace.compute_s[1].sum(axis=2), axis=0)
    assert own == pytest.approx(peer, rel=0.02)
    assert [verdict.ranks for verdict in diagnose(table)[0]] == [(0,)]


def test_what_is_filled_in_does_not_make_stages_alike(tmp_path):
    noisy = {"replicas": 3, "stages": 2, "microbatches": 4, "steps": 25, "noise": 0.05, "seed": 5}
    table = read_back(tmp_path, {**noisy, "workers": {(0, 0): 1.2}}, 0.1)
    assert [verdict.ranks for verdict in diagnose(table)[0]] == [(0,)]


def test_a_worker_that_is_slow_in_some_steps_is_not_uneven_data(tmp_path):
    # Of the last stage a forward and its backward are known by their sum alone: they are no evidence of each other.
    rare = {(1, 1): SlowWorker(2.7, share=0.15)}
    table = read_back(tmp_path, {"replicas": 8, "stages": 2, "steps": 36, "workers": rare}, 0.1)
    assert [verdict.cause for verdict in diagnose(table)[0]] == ["none"]


def test_a_message_of_which_one_end_lost_its_step_is_no_slow_link(tmp_path):
    table = read_back(tmp_path, {"replicas": 8, "steps": 23, "noise": 0.005, "workers": {(4, 2): 2.9}}, 0.1)
    links = activity(table).trace.links
    assert max(float(alone.max()) for alone in links.values()) < 0.03
    assert [verdict.ranks for verdict in diagnose(table)[0]] == [(18,)]


def without(calls, lost):
    """Flight Recorder calls of all ranks but those for which `lost` says so, of (rank, call)."""
    return {rank: [call for call in own if not lost(rank, call)] for rank, own in calls.items()}


def ends_step(call):
    """Whether it is the collective by which steps are told apart."""
    return call["kind"] == "grads-reduce-scatter"


def test_messages_keep_their_places_where_steps_lost_their_first(tmp_path):
    calls = encoders.calls_of(make_trace(replicas=3, stages=3, microbatches=6, steps=9, noise=0.005), 0.0, 1, SKEW_S)
    # Rank 0 tells steps 1, 2, 7 and 8, the first message of two of them being lost: the first ones are 11 apart.
    first = {step: min(c["number"] for c in calls[0] if c["step"] == step and c["peer"] >= 0) for step in range(9)}

    def lost(rank, call):
        if call["peer"] >= 0:
            return rank == 0 and call["step"] in (1, 7) and call["number"] == first[call["step"]]
        return rank == 0 and ends_step(call) and call["step"] in (3, 5)

    encoders.write_flight_recorder(tmp_path, without(calls, lost))
    table = read_folder(tmp_path).calls
    own, *peers = np.median(activity(table).trace.compute_s[0].sum(axis=2), axis=0)
    assert own == pytest.approx(np.mean(peers), rel=0.02)
    assert [verdict.cause for verdict in diagnose(table)[0]] == ["none"]


def test_a_message_that_most_steps_lost_is_one_of_its_own(tmp_path):
    calls = encoders.calls_of(make_trace(replicas=3, stages=2, microbatches=6, steps=9, noise=0.005), 0.0, 1, SKEW_S)
    sends = [call for call in calls[0] if call["kind"] == "forward-send"]
    second = {id(own[1]) for step in (1, 3, 4, 6, 8) for own in [[one for one in sends if one["step"] == step]]}
    encoders.write_flight_recorder(tmp_path, without(calls, lambda rank, call: id(call) in second))
    table = read_folder(tmp_path).calls
    own, *peers = np.median(activity(table).trace.compute_s[0].sum(axis=2), axis=0)
    assert own == pytest.approx(np.mean(peers), rel=0.02)


def test_a_step_whose_last_call_a_rank_lost_ends_when_it_does_on_others(tmp_path):
    slow = {(0, 1): SlowWorker(1.5)}
    calls = encoders.calls_of(make_trace(replicas=3, stages=2, steps=9, workers=slow), 0.0, 1, SKEW_S)
    encoders.write_flight_recorder(
        tmp_path, without(calls, lambda rank, call: rank == 1 and ends_step(call) and call["step"] in (2, 4, 7))
    )
    table = read_folder(tmp_path).calls
    trace = activity(table).trace
    own = trace.compute_s[1][:, 0].sum(axis=1) / trace.compute_s[1][:, 1].sum(axis=1)
    # Of eight steps six lost a call at the beginning or at the end.
    assert (trace.known[1][:, 0].mean(axis=1) > 0.8).all() and own == pytest.approx(np.full(8, 1.5), rel=0.05)
    assert [verdict.ranks for verdict in diagnose(table)[0]] == [(1,)]


def test_steps_that_a_slow_worker_does_not_tell_do_not_speak_for_it(tmp_path):
    slow = {(0, 0): SlowWorker(2.0, first=10, stop=21)}
    calls = encoders.calls_of(make_trace(replicas=2, steps=23, noise=0.005, workers=slow), 0.0, 1, SKEW_S)
    encoders.write_flight_recorder(
        tmp_path, without(calls, lambda rank, call: rank == 0 and ends_step(call) and call["step"] in (12, 16))
    )
    (verdict,), _ = verdicts_of(tmp_path)
    assert (verdict.cause, verdict.ranks) == ("worker", (0,))
    assert verdict.evidence["workers"][0]["slowdown"] == pytest.approx(2.0, rel=0.05)


def test_ranks_of_a_part_of_the_job_are_not_the_jobs():
    hosts = [Member("host2", 7), Member("host2", 8), Member("host10", 5), Member("host10", 6)]
    parts = {"a": (2, {0: hosts[0], 1: hosts[2]}), "b": (2, {0: hosts[1], 1: hosts[3]})}
    chain = {**parts, "c": (2, {0: hosts[0], 1: hosts[1]})}
    found, jobs = global_ranks(chain, CallBuilder())
    assert (found["a", 1], found["b", 0], found["b", 1], jobs) == (2, 1, 3, ())
    backwards = {"world": (4, dict(enumerate(reversed(hosts)))), **parts}
    found, jobs = global_ranks(backwards, CallBuilder())
    assert (found["a", 0], found["a", 1], found["b", 1], jobs) == (3, 1, 0, ())


def test_communicators_without_a_common_process_are_jobs_of_their_own():
    jobs = {name: (2, {rank: Member("h", pid + rank) for rank in range(2)}) for name, pid in (("a", 10), ("b", 90))}
    found, parts = global_ranks(jobs, CallBuilder())
    assert parts == (("a", 0, 2), ("b", 2, 2)) and found["b", 1] == 3


def test_gpus_of_one_process_are_ranks_of_their_own():
    into = CallBuilder()
    one_process = {"a": (4, {rank: Member("h", 5) for rank in range(4)})}
    assert global_ranks(one_process, into)[0] == {("a", rank): rank for rank in range(4)}
    by_gpu = {"a": (2, {0: Member("h", 5, 1), 1: Member("h", 5, 0)}), "b": (1, {0: Member("h", 5, 1)})}
    found, _ = global_ranks(by_gpu, into)
    assert found["b", 0] == found["a", 0] and not into.skipped
    found, _ = global_ranks({**one_process, "b": (1, {0: Member("h", 5)})}, into)
    assert ("b", 0) not in found and sum(into.skipped.values()) == 1


def test_a_small_file_that_unpacks_to_gigabytes_is_refused_early(tmp_path):
    """Of 32 MiB of blanks in 32 KiB no more is unpacked than MAX_RATIO allows."""
    with gzip.open(tmp_path / "a.json.gz", "wb", 9) as file:
        for _ in range(32):
            file.write(b" " * (1 << 20))
    with pytest.raises(InputError, match=r"a\.json\.gz: not used: got more than 16777216 bytes unpacked"):
        read_folder(tmp_path)
