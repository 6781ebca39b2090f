"""Ranks that hang are named from what Flight Recorder, RAS and the Inspector wrote, and nobody else is."""

import json
import pickle
import random
from pathlib import Path

import pytest

from lanterne.errors import InputError
from lanterne.failslow.locate.calls_verdicts import diagnose
from lanterne.failslow.locate.formats.folder import read_folder

REAL = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "fr_traces"


def named(folder):
    """Ranks of the verdicts, and whether all of them are conclusive."""
    verdicts, _ = diagnose(read_folder(folder).calls)
    return [verdict.ranks for verdict in verdicts if verdict.cause != "none"], all(one.conclusive for one in verdicts)


def entry(number, name="nccl:all_reduce", state="scheduled", size=1024, kind="Float", **more):
    return {
        "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number, "profiling_name": name,
        "state": state, "retired": state == "completed", "is_p2p": False, "input_sizes": [[size]],
        "input_dtypes": [kind], "time_created_ns": 10**9 * number, **more,
    }  # fmt: skip


def message(number, text, state="completed"):
    return entry(0, text, state, p2p_seq_id=number, is_p2p=True)


def write(folder, dumps, ranks=4, name="dump_{}"):
    """Dumps of ranks: their entries, or (entries, last enqueued, last completed)."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str([*range(ranks)])}}
    for rank, told in dumps.items():
        entries, *status = told if isinstance(told, tuple) else (told,)
        content = {"version": "2.10", "entries": entries, "pg_config": config, "pg_status": {}}
        if status:
            content["pg_status"]["0"] = {"last_enqueued_collective": status[0], "last_completed_collective": status[1]}
        (folder / name.format(rank)).write_bytes(pickle.dumps(content))


@pytest.mark.parametrize(
    ("recording", "ranks"), [("gpu_error_1st", (12, 14)), ("lock_gil_1st", (9, 14)), ("lock_gil_2nd", (10, 15))]
)
def test_real_recordings_of_hung_jobs(recording, ranks):
    if not REAL.exists():
        pytest.skip("the recordings are not here")
    assert named(REAL / recording) == ([ranks], True)


def test_a_rank_whose_device_stopped_is_behind_by_its_status(tmp_path):
    write(tmp_path, {rank: ([entry(10), entry(11)], 11, 9) for rank in (0, 2, 3)} | {1: ([entry(8), entry(9)], 9, 7)})
    assert named(tmp_path) == ([(1,)], True)


def test_calls_that_are_retired_are_over_whatever_their_state(tmp_path):
    old = [entry(number, "gloo:all_reduce", retired=True) for number in range(1, 7)]
    write(tmp_path, {rank: [*old, entry(7, "gloo:all_reduce")] for rank in (0, 1, 3)} | {2: old})
    assert named(tmp_path) == ([(2,)], True)


def test_a_root_that_has_left_is_not_named_but_the_rank_that_never_began(tmp_path):
    inside = [entry(11, "nccl:broadcast")]
    write(tmp_path, {0: ([], 11, 11), 1: (inside, 11, 10), 2: (inside, 11, 10), 3: ([], 10, 10)})
    assert named(tmp_path) == ([(3,)], True)


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_stage_that_sends_nothing_is_at_the_end_of_the_chain(tmp_path, backend):
    sent = [message(i, f"{backend}:send 0->1") for i in (1, 2)]
    first = [message(i, f"{backend}:recv 1<-0") for i in (1, 2)]
    write(tmp_path, {
        0: [*sent, message(3, f"{backend}:recv 0<-1", "scheduled")],
        1: first,
        2: [message(1, f"{backend}:recv 2<-1", "scheduled")],
        3: [message(1, f"{backend}:recv 3<-2", "scheduled")],
    })  # fmt: skip
    assert named(tmp_path) == ([(1,)], True)


@pytest.mark.parametrize("odd", [{"size": 1025}, {"kind": "Int"}, {"name": "nccl:barrier"}])
def test_a_call_of_another_size_or_type_is_named(tmp_path, odd):
    write(tmp_path, {rank: [entry(11, **(odd if rank == 2 else {}))] for rank in range(4)})
    assert named(tmp_path) == ([(2,)], True)


def test_two_ranks_in_two_calls_are_a_tie(tmp_path):
    write(tmp_path, {0: [entry(11)], 1: [entry(11, "nccl:_allgather_base")]}, ranks=2)
    assert named(tmp_path) == ([(0, 1)], False)


def test_calls_that_need_not_be_alike_are_no_mismatch(tmp_path):
    write(tmp_path, {rank: [entry(11, "nccl:all_to_all", size=rank)] for rank in range(4)})
    assert named(tmp_path) == ([], False)


@pytest.mark.parametrize("name", ["dump_2_rank_{}", "rank_{}_20260901", "job8123.rank{}.attempt2", "trace_{}_of_4"])
def test_of_two_dumps_of_a_rank_the_latest_counts_whatever_their_names(tmp_path, name):
    early = [entry(number, state="completed") for number in range(1, 5)]
    write(tmp_path, {rank: [*early[:3], entry(4)] if rank else early[:3] for rank in range(4)}, name="a_rank{}")
    done = [entry(number, state="completed") for number in range(5, 21)]
    write(tmp_path, {rank: done if rank == 3 else [*done, entry(21)] for rank in range(4)}, name=name)
    assert named(tmp_path) == ([(3,)], True)
    assert sum("several dumps" in note for note in read_folder(tmp_path).calls.notes) == 4


def ras_rank(rank, calls=100, **status):
    return {
        "rank": rank, "host": "n0", "pid": 7, "cuda_dev": rank, "collective_counts": {"AllReduce": calls},
        "status": {"init_state": 0, "async_error": 0, "abort_flag": False} | status,
    }  # fmt: skip


def write_ras(folder, ranks, name="a.json"):
    document = {"communicators": [{"hash": "0xa", "size": len(ranks), "ranks": ranks}], "timestamp": name}
    (folder / name).write_text(json.dumps(document))


def test_ranks_of_one_process_are_told_apart_by_their_gpu(tmp_path):
    for name in ("a.json", "b.json"):
        write_ras(tmp_path, [ras_rank(rank, 99 if rank == 3 else 100) for rank in range(8)], name)
    assert named(tmp_path) == ([(3,)], True)


@pytest.mark.parametrize("status", [{"async_error": 1}, {"init_state": 2}, {"abort_flag": True}])
def test_what_ras_reports_of_a_rank_names_it(tmp_path, status):
    write_ras(tmp_path, [ras_rank(rank, **(status if rank == 1 else {})) for rank in range(4)])
    assert named(tmp_path) == ([(1,)], True)


def test_a_remote_error_is_that_of_another_rank(tmp_path):
    codes = {0: 6, 1: 6, 2: 1, 3: 6}
    write_ras(tmp_path, [ras_rank(rank, async_error=code) for rank, code in codes.items()])
    assert named(tmp_path) == ([(2,)], True)
    write_ras(tmp_path, [ras_rank(rank, async_error=6) for rank in range(4)])
    assert named(tmp_path) == ([], False)


TEXT = """NCCL version 2.27.3 compiled with CUDA 12.9
Communicators... (0.00s)
    0         1         1         4         4         4   RUNNING  MISMATCH
Warnings
#0-0 (a1b2c3d4e5f60718) MISMATCH
  Communicator ranks have different collective operation counts
  3 ranks have launched up to operation {}
  1 rank has launched up to operation 99
  Rank 2 -- GPU 2 managed by process 502 on node 10.0.0.1
"""


@pytest.mark.parametrize(("others", "is_clear"), [(100, False), (140, True)])
def test_the_text_of_ras_names_the_rank_that_is_behind(tmp_path, others, is_clear):
    (tmp_path / "ras.txt").write_text(TEXT.format(others))
    assert named(tmp_path) == ([(2,)], is_clear)


def test_calls_after_one_header_are_those_of_its_communicator(tmp_path):
    for rank in range(4):
        header = {"header": {"id": "0x1", "rank": rank, "n_ranks": 4}, "dump_stats": {}}
        calls = [
            {"coll_perf": {"coll": "AllReduce", "coll_sn": i, "coll_exec_time_us": 200 if rank == 2 else 5200 + rank}}
            for i in range(20)
        ]
        about = {"metadata": {"hostname": "n0", "pid": rank, "dump_timestamp_us": 10**15}}
        (tmp_path / f"{rank}.log").write_text("\n".join(map(json.dumps, [header | about, *calls])))
    assert named(tmp_path) == ([(2,)], True)


def kineto(rank, ranks=4, slow=False, about=True, call="ncclDevKernel_AllReduce", category="kernel"):
    """A trace of 8 steps of 10 ms, in which a slow rank computes twice as long."""
    events = []
    for step in range(8):
        at, own = 10_000.0 * step, 8_000.0 if slow else 4_000.0
        args = {"Collective name": "allreduce", "Process Group Name": "0", "Process Group Ranks": str([*range(ranks)])}
        args |= {"Group size": ranks, "Seq": step}
        events += [
            {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": 10_000},
            {"ph": "X", "cat": "kernel", "name": "sgemm", "ts": at + 100, "dur": own},
            {"ph": "X", "cat": category, "name": call, "ts": at + 200 + own, "dur": 9_000 - own, "args": args},
        ]
    told = {"distributedInfo": {"rank": rank, "world_size": ranks}} if about else {}
    return json.dumps({"traceEvents": events, **told})


@pytest.mark.parametrize(
    "bad", [r'{"ph": "X", "name": "C:\temp\x"}', '{"ph": "X", "name": "a\x01"}', '{"ph": "X", "na']
)
def test_one_bad_event_costs_itself(tmp_path, bad):
    for rank in range(4):
        text = kineto(rank, slow=rank == 1)
        (tmp_path / f"{rank}.json").write_text(text.replace("[{", f"[{bad}, {{", 1) if rank else text)
    assert named(tmp_path) == ([(1,)], True)
    assert len(read_folder(tmp_path).calls.compute) == 32


def test_calls_of_gloo_are_calls(tmp_path):
    for rank in range(4):
        (tmp_path / f"{rank}.json").write_text(kineto(rank, 4, rank == 1, True, "gloo:all_reduce", "user_annotation"))
    assert named(tmp_path) == ([(1,)], True)


def test_a_rank_that_was_not_profiled_is_no_suspect(tmp_path):
    (tmp_path / "rank0.json").write_text(kineto(0, ranks=2))
    (verdict,), _ = diagnose(read_folder(tmp_path).calls)
    assert (verdict.cause, verdict.conclusive) == ("none", False) and verdict.missing


def test_why_nothing_is_known_is_said(tmp_path):
    (tmp_path / "trace.json").write_text(kineto(0, about=False))
    with pytest.raises(InputError, match="1 not used: a Kineto trace that does not tell its rank"):
        read_folder(tmp_path)


SECTIONS = {
    "counts of two collectives": (
        "#0-0 (a1) MISMATCH\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        "  7 ranks have launched up to operation 140\n"
        "  Rank 5 has launched up to operation 99 -- GPU 1 (NVML 5) managed by process 505 on node n1\n\n"
        "  Communicator ranks have different Broadcast operation counts\n"
        "  7 ranks have launched up to operation 3\n"
        "  Rank 5 has not launched any operations -- GPU 1 (NVML 5) managed by process 505 on node n1\n"
    ),
    "an error": (
        "#0-0 (a1) ERROR\n  Asynchronous errors on 4 ranks\n  3 ranks reported Remote error\n"
        "  Rank 1 -- GPU 1 managed by process 501 on node n0\n"
        "  Rank 5 reported System error -- GPU 1 managed by process 505 on node n1\n"
    ),
    "lost": "#0-0 (a1) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: 5\n",
    "dead": (
        "DEAD\n  1 job process is considered dead\n  Process 505 on node n1 managing GPU 1\n\n"
        "#0-0 (a1) INCOMPLETE\n  Missing communicator data from 1 rank\n"
        "  Rank 5 -- GPU 1 managed by process 505 on node n1\n"
    ),
    "aborted": (
        "#0-0 (a1) MISMATCH\n  Communicator ranks have different status\n  7 ranks have status RUNNING\n"
        "  Rank 5 has status ABORT -- GPU 1 managed by process 505 on node n1\n"
    ),
}  # fmt: skip


def ras_text(sections):
    table = "    0  1  2  4  8  8  RUNNING  MISMATCH\n    1  4  1  2  2  8  RUNNING  OK\n"
    return f"NCCL version 2.28.9 compiled with CUDA 13.0\n\nCommunicators... (0.00s)\n{table}\n{sections}"


@pytest.mark.parametrize("section", SECTIONS.values(), ids=SECTIONS.keys())
def test_every_section_of_the_text_names_its_rank(tmp_path, section):
    (tmp_path / "ras.txt").write_text(ras_text(section))
    assert named(tmp_path) == ([(5,)], True)


def test_a_rank_of_a_smaller_communicator_is_no_rank_of_the_job(tmp_path):
    section = SECTIONS["counts of two collectives"].replace("#0-0", "#1-2").replace("Rank 5", "Rank 0")
    (tmp_path / "ras.txt").write_text(ras_text(section))
    (verdict,), _ = diagnose(read_folder(tmp_path).calls)
    assert (verdict.cause, verdict.ranks, verdict.conclusive) == ("worker", (), False)
    assert "process 505 on n1" in verdict.evidence["missing"][0]["process"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_events_of_ras_name_the_process_that_died(tmp_path, form):
    kinds = [("PEER_NEW", 505), ("PEER_DEAD", 506), ("PEER_CONNECTING", 506), ("PEER_DEAD", 505)]
    if form == "text":
        lines = [
            f"[2026-01-01 10:00:0{i}] {kind}: Process {pid} on node n1 managing GPU 1 "
            for i, (kind, pid) in enumerate(kinds)
        ]
        text = "RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...\n" + "\n".join(lines)
    else:
        events = [
            {"event": kind, "peer": {"host": "n1", "pid": pid, "cuda_devs": [1]}, "details": ""} for kind, pid in kinds
        ]
        text = "\n".join(json.dumps({"timestamp": "2026", "group": "LIFECYCLE", **event}, indent=2) for event in events)
    (tmp_path / "events").write_text(text)
    (verdict,), _ = diagnose(read_folder(tmp_path).calls)
    assert (verdict.ranks, [one["process"] for one in verdict.evidence["missing"]]) == ((), ["process 505 on n1"])
    write_ras(tmp_path, [ras_rank(rank) | {"host": "n1", "pid": 500 + rank} for rank in range(8)])
    assert named(tmp_path) == ([(5,)], True)


def write_inspector(folder, groups, slow, steps=30, seed=1, place=lambda rank: ("n0", 100 + rank), name="{}.log"):
    """Lines of 8 ranks: in each step a call of their group and then one of all; calls of the first group are slower."""
    rng = random.Random(seed)
    lines = {rank: [] for rank in range(8)}
    for step in range(steps):
        now_us = {rank: 20_000.0 * step + 5000 + rng.gauss(0, 50) for rank in range(8)}
        for number, ranks in enumerate([*groups, tuple(range(8))]):
            end_us = max(now_us[rank] for rank in ranks) + 2000 * (slow if number == 0 else 1.0) * (
                1 + rng.gauss(0, 0.01)
            )
            for local, rank in enumerate(ranks):
                host, pid = place(rank)
                about = {"hostname": host, "pid": pid, "dump_timestamp_us": end_us}
                header = {"id": f"0x{name[:-6]}{number}", "rank": local, "n_ranks": len(ranks)}
                call = {"coll": "AllReduce", "coll_sn": step, "coll_msg_size_bytes": 4096 * len(ranks)}
                call["coll_exec_time_us"] = end_us - now_us[rank]
                lines[rank].append({"header": header, "metadata": about, "coll_perf": call})
                now_us[rank] = end_us + 3000 + rng.gauss(0, 50)
    for rank, own in lines.items():
        with open(folder / name.format(rank), "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in own)


COPIES = [[(0, 1, 2, 3), (4, 5, 6, 7)], [(0, 4), (1, 5), (2, 6), (3, 7)]]


@pytest.mark.parametrize("groups", COPIES, ids=["two", "four"])
@pytest.mark.parametrize("slow", [1.0, 1.15, 2.5])
def test_a_slow_group_is_compared_with_its_copies(tmp_path, groups, slow):
    write_inspector(tmp_path, groups, slow)
    verdicts, _ = diagnose(read_folder(tmp_path).calls)
    links = [(one.cause, one.ranks) for one in verdicts if one.cause != "none"]
    assert links == ([("link", groups[0])] if slow > 1 else [])


@pytest.mark.parametrize("name", ["{}.log", "job-{}.log"])
def test_pods_of_equal_names_are_told_apart_by_their_files(tmp_path, name):
    write_inspector(tmp_path, COPIES[1], 1.5, place=lambda rank: ("trainer", 7), name=name)
    verdicts, _ = diagnose(read_folder(tmp_path).calls)
    assert [(one.cause, one.ranks) for one in verdicts] == [("link", (0, 4))]


def test_two_jobs_whose_processes_have_equal_names(tmp_path):
    write_inspector(tmp_path, COPIES[1], 1.0, name="a-{}.log")
    write_inspector(tmp_path, COPIES[1], 1.5, name="b-{}.log", seed=2)
    (verdict,), _ = diagnose(read_folder(tmp_path).calls)
    assert (verdict.cause, verdict.ranks, verdict.evidence["job"]) == ("link", (0, 4), "0xb-4")


def test_several_gpus_of_a_process_in_smaller_groups_cannot_be_told_apart(tmp_path):
    write_inspector(tmp_path, COPIES[1], 2.5, place=lambda rank: (f"n{rank // 4}", 7), name="all.log")
    (verdict,), _ = diagnose(read_folder(tmp_path).calls)
    assert (verdict.cause, verdict.conclusive) == ("none", False)
    assert "one process for each GPU" in verdict.missing[0]


def test_whoever_waits_for_a_rank_without_a_dump_is_not_named(tmp_path):
    done = [entry(1, state="completed")]
    # Rank 2's dump is lost; 1 waits for it, and so is late to the call in which 3 is; 0 never came to it.
    write(tmp_path, {0: done, 1: [*done, message(1, "nccl:recv 1<-2", "scheduled")], 3: [*done, entry(2)]})
    verdicts, _ = diagnose(read_folder(tmp_path).calls)
    assert [(one.ranks, one.evidence["state"]) for one in verdicts] == [((0,), "missing"), ((2,), "silent")]
