"""Whatever is wrong with one file of a folder, the others are read and judged all the same."""

import gzip
import json
import pickle
import random

import pytest

from lanterne.errors import InputError
from lanterne.failslow.locate.calls_verdicts import diagnose
from lanterne.failslow.locate.formats.folder import read_folder
from lanterne.failslow.record.call_ring import BEGUN_OFFSET, RingWriter

TURNS = 160
# What stands where something else was expected.
ODD = [None, True, -1, 0, 5, 0.5, float("nan"), "", "x", "--5", "[1,", "\ud800", [], {}, [-1], [[1]], {"a": 1}, "deep"]
HUGE = [1 << 16, 1 << 61, 10**9, 10**30, 10**400, 1e308, float("inf"), "9" * 400]


def entry(number, **other):
    """A collective of Flight Recorder's."""
    times = {"time_created_ns": 1000, "time_discovered_started_ns": 1000, "time_discovered_completed_ns": 1500}
    about = {"process_group": ["0", "d"], "profiling_name": "nccl:all_reduce", "state": "completed", "duration_ms": 0.5}
    return {"collective_seq_id": number, "input_sizes": [[3, 4]], "input_dtypes": ["Float"]} | about | times | other


def dump(ranks):
    """What the first of `ranks` writes: three collectives and a message."""
    message = entry(9, p2p_seq_id=1, is_p2p=True, profiling_name="nccl:send 0->1")
    config = {"0": {"name": "0", "desc": "d", "ranks": str(ranks)}}
    return {"version": "2.4", "rank": ranks[0], "entries": [*map(entry, range(3)), message], "pg_config": config}


def member(rank, **other):
    """A rank of a RAS document's."""
    about = {"rank": rank, "host": "h1", "pid": 10 + rank, "cuda_dev": rank, "status": {"considered_dead": False}}
    return about | {"collective_counts": {"AllReduce": 3 - rank}} | other


def documents():
    """{file: its content, before it is encoded}, one of each format."""
    communicator = {"hash": "1", "secondary_hash": "2", "size": 3, "ranks": [member(0), member(1)]}
    communicator["missing_ranks"] = [member(2)]
    args = {"Collective name": "allreduce", "Process Group Name": "x", "Process Group Ranks": "[0, 1]", "Seq": 1}
    args |= {"Group size": 2, "In msg nelems": 4, "dtype": "Float"}
    kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "ts": 10, "dur": 5, "args": args}
    message = kernel | {"args": args | {"Collective name": "send", "Dst Rank": 1}}
    step = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0, "dur": 50}
    events = [kernel, message, kernel | {"name": "gemm"}, step]
    about = {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "x", "ranks": [0, 1]}]}
    trace = {"distributedInfo": about, "hostname": "h", "traceEvents": events}
    trace_ts = {"coll_start_ts": 1, "kernel_events": [{"kernel_start_ts": 1}]}
    call = {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 4, "coll_exec_time_us": 5}
    call["event_trace_ts"] = trace_ts
    line = {"header": {"id": "0x1", "rank": 0, "n_ranks": 2}, "coll_perf": call}
    line["metadata"] = {"hostname": "h1", "pid": 1, "dump_timestamp_us": 9}
    message = {"p2p": "Send", "p2p_sn": 1, "p2p_peer": 1, "p2p_msg_size_bytes": 4, "p2p_exec_time_us": 5}
    lines = [line, {"header": line["header"], "metadata": line["metadata"], "p2p_perf": message}]
    lines.append(line | {"header": {"id": "0x1", "rank": 1, "n_ranks": 2}, "metadata": {"hostname": "h2", "pid": 1}})
    return {
        "dump_0": dump([0, 1]),
        "pickled_0": dump([0, 1]),
        "ras.json": {"timestamp": "t", "communicators": [communicator]},
        "trace-rank0.json": trace,
        "trace-rank0.json.gz": trace,
        "lines.log": lines,
        "rank-0-1.calls": {"rank": 0, "world_size": 2, "pid": 1, "host": "h", "capacity": 16, "record_nbytes": 48},
    }


def log_of(folder, header):
    """A call log's bytes, with this header."""
    writer = RingWriter(folder / "made", {}, capacity=16)
    for number in range(20):
        writer.channel("all_reduce", 2, 0)(4096, float(number), number + 0.5)
    content = (folder / "made").read_bytes()
    (folder / "made").unlink()
    return json.dumps(header).encode()[:BEGUN_OFFSET].ljust(BEGUN_OFFSET, b"\0") + content[BEGUN_OFFSET:]


def encoded(name, content, folder):
    """The bytes of a file."""
    if name.endswith(".calls"):
        return log_of(folder, content)
    if name.startswith("pickled"):
        return pickle.dumps(content, protocol=2)
    lines = content if name.endswith(".log") and isinstance(content, list) else [content]
    data = "\n".join(map(json.dumps, lines)).replace('"deep"', "[" * 9999 + "]" * 9999).encode()
    return gzip.compress(data, 1) if name.endswith(".gz") else data


def mutated(value, draw, share):
    """`value` with parts left out, of another type, or too large."""
    if draw.random() < share:
        return draw.choice([draw.choice(ODD), draw.choice(HUGE), [value], {"a": value}, str(value)])
    if isinstance(value, dict):
        return {key: mutated(one, draw, share) for key, one in value.items() if draw.random() > share / 2}
    if isinstance(value, list):
        twice = value + value[:1] if draw.random() < 2 * share else value
        return [mutated(one, draw, share) for one in twice if draw.random() > share / 2]
    return value


def damaged(data, draw):
    """Cut off, or with other bytes at a place or two."""
    data, kind = bytearray(data or b" "), draw.randrange(3)
    if kind == 0:
        return bytes(data[: draw.randrange(len(data) + 1)])
    for _ in range(draw.randrange(1, 4)):
        at, count = draw.randrange(len(data)), draw.choice([1, 8, 10])
        others = draw.choice([draw.randbytes(count), b"\xff" * count, b"\0" * count])
        data[at : at + (count if kind == 1 else 0)] = others
    return bytes(data)


@pytest.mark.parametrize("name", documents())
def test_a_broken_file_does_not_keep_another_from_being_used(tmp_path, name):
    draw = random.Random(name)
    (tmp_path / "dump_77").write_text(json.dumps(dump([77, 78])))
    content = documents()[name]
    for turn in range(TURNS):
        data = encoded(name, mutated(content, draw, draw.choice([0.0, 0.03, 0.1])), tmp_path)
        (tmp_path / name).write_bytes(damaged(data, draw) if draw.random() < 0.4 else data)
        calls = read_folder(tmp_path).calls
        assert (calls.rank == 77).sum() == 4, f"turn {turn}"
        diagnose(calls)


@pytest.mark.parametrize("key", ["profiling_name", "input_sizes", "process_group"])
def test_lists_that_hold_each_other_are_refused_at_once(tmp_path, key):
    bomb = ["x"]
    for _ in range(60):
        bomb = [bomb, bomb]
    entry = {"pg_id": 0, "process_group": ("0", "a"), "collective_seq_id": 1, "profiling_name": "nccl:all_reduce"}
    (tmp_path / "dump_rank0").write_bytes(pickle.dumps({"entries": [entry | {key: bomb}], "pg_config": {}}))
    with pytest.raises(InputError, match="hold each other"):
        read_folder(tmp_path)


def test_numbers_of_ras_text_that_no_job_has(tmp_path):
    counts = "  3 ranks have launched up to operation 7\n  Rank 99999999999 has launched up to operation 4 -- GPU 1"
    section = f"#0-0 (ab) MISMATCH\n  Communicator ranks have different A operation counts\n{counts}"
    table = "Communicators... (0.0s)\n   0 1 1 1 99999999999 1 RUNNING OK"
    (tmp_path / "ras.txt").write_text(f"NCCL version 2.28\n{table}\n{section} managed by process 3 on node n\n")
    with pytest.raises(InputError, match="a RAS rank without a number"):
        read_folder(tmp_path)
