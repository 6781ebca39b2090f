"""Folders as six producers write them, with the answer that is right: a pure function of a seed.

Jobs run a step of computing, calls of tensor-parallel groups, calls of data-parallel groups and one call of all. One
fault is drawn: none, a slow worker, a slow group, a rank that never comes, one that calls something else, one whose
device stops, one that NCCL reports. Files have odd names, older dumps, bad bytes and clocks that are apart.

Nothing here is shared with the readers, with their tests or with the other makers.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import pickle
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.random import Generator

from lanterne.bench.output import report
from lanterne.bench.output.units import whole
from lanterne.errors import LanterneError

if TYPE_CHECKING:
    from lanterne.failslow.locate.locate import Verdict

STEP_CALLS = (("tp", "all_reduce", 4 << 20), ("tp", "all_reduce", 4 << 20), ("dp", "all_reduce", 64 << 20),
              ("all", "all_reduce", 1024))  # fmt: skip
MICROBATCHES = 3
MS = 1e-3


class Shape(NamedTuple):
    """A job: `dp` replicas of `tp` ranks each, `steps` of them."""

    dp: int
    tp: int
    steps: int

    @property
    def ranks(self) -> range:
        """Its ranks."""
        return range(self.dp * self.tp)

    def groups(self) -> dict[str, list[tuple[int, ...]]]:
        """Return the groups of each kind."""
        rows = [tuple(range(first, first + self.tp)) for first in range(0, self.dp * self.tp, self.tp)]
        return {"tp": rows, "dp": list(zip(*rows, strict=True)), "all": [tuple(self.ranks)]}


@dataclass
class Call:
    """A call of a rank: `state` is "done", "started" or "queued"; times in seconds of one clock."""

    kind: str
    ranks: tuple[int, ...]
    number: int
    step: int
    name: str
    nbytes: int
    start_s: float
    end_s: float
    state: str = "done"


@dataclass(frozen=True)
class Fault:
    """What is wrong: `kind`, `ranks` that are to be named, `factor` of what is slow, and when it hangs."""

    kind: str
    ranks: tuple[int, ...] = ()
    factor: float = 1.0
    step: int = -1
    slot: int = 0


@dataclass(frozen=True)
class DrawnFolder:
    """A folder to be located in: `producer`, `fault`, and the right answer.

    Attributes: `cause`, `ranks`: as `locate` says them; `may_lack_ranks`: its text does not list all processes;
    `lost`: a rank of which nothing was written, which may be named besides, as such.
    """

    producer: str
    fault: Fault
    cause: str
    ranks: tuple[int, ...]
    may_lack_ranks: bool
    lost: int | None = None


@dataclass
class World:
    """A job that ran: the calls of each rank, and its computing (step, start_s, took_s)."""

    shape: Shape
    calls: dict[int, list[Call]] = field(default_factory=dict)
    compute: dict[int, list[tuple[int, float, float]]] = field(default_factory=dict)


def run_job(rng: Generator, shape: Shape, fault: Fault, noise: float) -> World:
    """Return what happens in a job with `fault`."""
    world = World(shape, {rank: [] for rank in shape.ranks}, {rank: [] for rank in shape.ranks})
    groups, now = shape.groups(), dict.fromkeys(shape.ranks, 0.0)
    numbers: dict[tuple[int, ...], int] = {}
    stuck: set[int] = set()
    for step in range(shape.steps):
        for slot, (kind, name, nbytes) in enumerate(STEP_CALLS):
            for ranks in groups[kind]:
                numbers[ranks] = number = numbers.get(ranks, 0) + 1
                is_here = (step, slot) == (fault.step, fault.slot) and set(fault.ranks) <= set(ranks)
                begun: dict[int, Call] = {}
                for rank in ranks:
                    if rank in stuck or (is_here and fault.kind == "absent" and rank in fault.ranks):
                        stuck.add(rank)
                        continue
                    if slot < 3:
                        own_s = 8 * MS * float(np.exp(noise * rng.normal()))
                        own_s *= fault.factor if fault.kind == "worker" and rank in fault.ranks else 1.0
                        world.compute[rank].append((step, now[rank], own_s))
                        now[rank] += own_s
                    other = is_here and fault.kind in ("size", "name") and rank in fault.ranks
                    begun[rank] = Call(
                        kind, ranks, number, step, "all_gather" if other and fault.kind == "name" else name,
                        nbytes + 4 if other and fault.kind == "size" else nbytes, now[rank], np.nan, "started",
                    )  # fmt: skip
                    world.calls[rank].append(begun[rank])
                if len(begun) < len(ranks) or (is_here and fault.kind in ("size", "name")):
                    stuck.update(begun)
                    continue
                took_s = {"tp": 2 * MS, "dp": 12 * MS, "all": 0.2 * MS}[kind] * float(np.exp(noise / 2 * rng.normal()))
                took_s *= fault.factor if fault.kind == "group" and ranks == fault.ranks else 1.0
                end_s = max(call.start_s for call in begun.values()) + took_s
                for rank, call in begun.items():
                    if is_here and fault.kind == "stopped" and rank in fault.ranks:
                        stuck.add(rank)
                        continue
                    call.end_s, call.state = end_s, "done"
                    now[rank] = end_s
    return world


def run_messages(rng: Generator, shape: Shape, fault: Fault) -> World:
    """Return the calls of pipelines of `tp` stages: messages forward and back, then a call of each stage's replicas.

    The rank of `fault` stops before its `slot`-th call of the step: whoever waits for it, and for these, hangs.
    """
    world = World(shape, {rank: [] for rank in shape.ranks}, {rank: [] for rank in shape.ranks})
    numbers: dict[Any, int] = {}
    stuck: set[int] = set()
    sent: set[tuple[int, int, int, str, int]] = set()
    for step in range(fault.step + 1):
        todo = {rank: _stage_calls(rank, shape) for rank in shape.ranks}
        moved = True
        arrived: dict[tuple[int, ...], dict[int, Call]] = {}
        left = dict.fromkeys(shape.ranks, fault.slot)
        while moved:
            moved = False
            for rank in shape.ranks:
                while todo[rank] and rank not in stuck:
                    if step == fault.step and rank in fault.ranks and not left[rank]:
                        stuck.add(rank)
                        break
                    left[rank] -= 1
                    kind, peer, word, m = todo[rank].pop(0)
                    ranks = _pipeline_of(rank, shape) if kind != "dp" else _replicas_of(rank, shape)
                    key = (rank, ranks, kind == "dp")
                    numbers[key] = number = numbers.get(key, 0) + 1
                    at = step + 0.01 * number
                    name = (
                        "all_reduce" if kind == "dp" else f"{kind} {ranks.index(rank)}{ARROWS[kind]}{ranks.index(peer)}"
                    )
                    call = Call(kind, ranks, number, step, name, 1 << 20, at, at + 0.005, "started")
                    world.calls[rank].append(call)
                    moved = True
                    if kind == "send":
                        sent.add((step, rank, peer, word, m))
                        call.state = "done"
                    elif kind == "recv":
                        stuck.add(rank)
                    else:
                        arrived.setdefault(ranks, {})[rank] = call
                        stuck.add(rank)
            for rank in shape.ranks:
                if not world.calls[rank] or rank not in stuck or (call := world.calls[rank][-1]).state == "done":
                    continue
                if call.kind == "recv":
                    word, m = _stage_calls(rank, shape)[len(_stage_calls(rank, shape)) - len(todo[rank]) - 1][2:]
                    peer = call.ranks[int(call.name.rpartition("-")[2])]
                    if (step, peer, rank, word, m) not in sent:
                        continue
                elif len(arrived[call.ranks]) < len(call.ranks):
                    continue
                call.state, moved = "done", True
                stuck.discard(rank)
    return world


ARROWS = {"send": "->", "recv": "<-"}


def _pipeline_of(rank: int, shape: Shape) -> tuple[int, ...]:
    first = rank // shape.tp * shape.tp
    return tuple(range(first, first + shape.tp))


def _replicas_of(rank: int, shape: Shape) -> tuple[int, ...]:
    return tuple(range(rank % shape.tp, shape.dp * shape.tp, shape.tp))


def _stage_calls(rank: int, shape: Shape) -> list[tuple[str, int, str, int]]:
    """Return (kind, peer, "F" or "B", microbatch) of a stage's calls of a step, all forwards first."""
    stage, last = rank % shape.tp, shape.tp - 1
    calls: list[tuple[str, int, str, int]] = []
    for m in range(MICROBATCHES):
        calls += [("recv", rank - 1, "F", m)] * (stage > 0) + [("send", rank + 1, "F", m)] * (stage < last)
    for m in range(MICROBATCHES):
        calls += [("recv", rank + 1, "B", m)] * (stage < last) + [("send", rank - 1, "B", m)] * (stage > 0)
    return [*calls, ("dp", -1, "", 0)]


# -- producers


def _hosts(world: World, a_host: int) -> dict[int, tuple[str, int, int]]:
    return {rank: (f"node{rank // a_host:02}", 4000 + 7 * (rank % a_host), rank % a_host) for rank in world.shape.ranks}


def flight_recorder(rng: Generator, world: World, folder: Path, spared: tuple[int, ...], backend: str = "nccl") -> bool:
    """Write dumps of PyTorch's Flight Recorder: of nccl, with the last calls and their status, or of gloo.

    One of a rank that is not in `spared` may be missing: return whether it is.
    """
    groups = [ranks for kind in world.shape.groups().values() for ranks in kind]
    names = {ranks: str(place) for place, ranks in enumerate(sorted(set(groups), key=lambda one: (-len(one), one)))}
    form = str(rng.choice(["nccl_trace_rank_{}", "dump_2026_09_01_rank{}.bin", "rank-{}-of-512.attempt3", "fr_{}"]))
    size, as_json, timing = int(rng.choice([12, 40, 2000])), bool(rng.random() < 0.3), bool(rng.random() < 0.7)
    # Pipelines are drawn without durations.
    timing &= any(world.compute.values())
    has_old, has_lost = rng.random() < 0.2, rng.random() < 0.15
    for rank, calls in world.calls.items():
        entries = [
            _entry(call, names[call.ranks], backend, 1e9 * (1.7e9 + 13.0 * rank), timing, place)
            for place, call in enumerate(calls)
        ]
        own = sorted(
            {call.ranks for call in calls} | {one for one in groups if rank in one}, key=lambda one: names[one]
        )
        status = {}
        for ranks in own:
            of = [call for call in calls if call.ranks == ranks]
            done = [call.number for call in of if call.state == "done"]
            status[names[ranks]] = {
                "last_enqueued_collective": max((call.number for call in of), default=-1),
                "last_started_collective": max((call.number for call in of), default=-1),
                "last_completed_collective": max(done, default=-1),
            }
        config = {
            names[ranks]: {"name": names[ranks], "desc": f"group{names[ranks]}", "ranks": str(list(ranks))}
            for ranks in own
        }
        if has_lost and rank == max(set(world.calls) - set(spared)):
            # Its host was lost with its dump.
            continue
        dumps = [(form.format(rank), entries[-size:])]
        if has_old:
            dumps.append((f"old_{form.format(rank)}", entries[: len(entries) // 3]))
        for file, kept in dumps:
            dump = {"version": "2.10", "entries": kept, "pg_config": config}
            dump |= {"pg_status": status} if kept is dumps[0][1] else {}
            (folder / file).write_bytes(json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2))
    return has_lost


def _entry(call: Call, group: str, backend: str, clock_ns: float, timing: bool, place: int) -> dict[str, Any]:
    is_done, is_message = call.state == "done", call.kind in ARROWS
    start_ns = int(clock_ns + 1e9 * call.start_s)
    state = "completed" if is_done else "started"
    entry: dict[str, Any] = {
        "record_id": place, "pg_id": int(group), "process_group": [group, f"group{group}"], "op_id": place,
        "collective_seq_id": 0 if is_message else call.number, "p2p_seq_id": call.number if is_message else 0,
        "is_p2p": is_message, "profiling_name": f"{backend}:{call.name}",
        "input_sizes": [[call.nbytes // 4]], "input_dtypes": ["Float"], "output_sizes": [[call.nbytes // 4]],
        "time_created_ns": start_ns - 20_000, "state": "scheduled" if backend == "gloo" else state, "retired": is_done,
        "timeout_ms": 600_000, "frames": [],
    }  # fmt: skip
    if backend != "gloo" and timing:
        entry["time_discovered_started_ns"] = start_ns
        entry["time_discovered_completed_ns"] = int(clock_ns + 1e9 * call.end_s) if is_done else None
        if is_done:
            entry["duration_ms"] = 1e3 * (call.end_s - call.start_s)
    return entry


def inspector(rng: Generator, world: World, folder: Path, prefix: str = "", of_dump: bool = False) -> bool:
    """Write NCCL Inspector's lines, verbose or not; return whether processes have all GPUs of their host.

    Of these nothing tells which GPU a rank of a smaller communicator is. With `of_dump`, as version 4.3, the
    communicator precedes the calls of a dump, of which nothing tells when they were.
    """
    a_host = world.shape.tp * int(rng.integers(1, world.shape.dp + 1))
    one_process, verbose = bool(rng.random() < 0.2), bool(rng.random() < 0.5)
    places, noisy, in_pods = _hosts(world, a_host), bool(rng.random() < 0.3), bool(rng.random() < 0.2)
    ids = {ranks: f"0x{rng.integers(1 << 60):x}" for kind in world.shape.groups().values() for ranks in kind}
    lines: dict[str, list[tuple[float, str]]] = {}
    for rank, calls in world.calls.items():
        host, pid, _ = places[rank]
        pid = 4000 if one_process else pid
        host, pid = ("trainer", 7) if in_pods and not one_process else (host, pid)
        for call in calls:
            if call.state != "done":
                continue
            took_us, start_us = 1e6 * (call.end_s - call.start_s), 1e6 * (1.7e9 + call.start_s)
            header = {"id": ids[call.ranks], "rank": call.ranks.index(rank), "n_ranks": len(call.ranks), "nnodes": 2}
            about = {
                "inspector_output_format_version": "v4.0", "git_rev": "", "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": round(start_us + took_us), "hostname": host, "pid": pid,
            }  # fmt: skip
            perf: dict[str, Any] = {
                "coll": "".join(word.title() for word in call.name.split("_")), "coll_sn": call.number,
                "coll_msg_size_bytes": call.nbytes, "coll_exec_time_us": round(took_us), "coll_algobw_gbs": 1.0,
            }  # fmt: skip
            if verbose:
                event = {"channel_id": 0, "kernel_start_ts": start_us, "kernel_stop_ts": start_us + took_us}
                perf["event_trace_ts"] = {"coll_start_ts": start_us - 30, "kernel_events": [event]}
            if of_dump:
                perf.pop("event_trace_ts", None)
                line = json.dumps({"header": header, "metadata": about | {"dump_timestamp_us": 1}, "dump_stats": {}})
                line += "\n" + json.dumps({"coll_perf": perf})
            else:
                line = json.dumps({"header": header, "metadata": about, "coll_perf": perf})
            file = f"pod{rank}.log" if in_pods and not one_process else f"{host}-pid{pid}.log"
            lines.setdefault(file, []).append((call.end_s, line))
    for name, own in lines.items():
        rows = [line for _, line in sorted(own)]
        if noisy:
            rows.insert(len(rows) // 2, rows[len(rows) // 2][:40])
        (folder / f"{prefix}{name}").write_text("\n".join(rows))
    return one_process


def ras(rng: Generator, world: World, folder: Path, fault: Fault) -> bool:
    """Write RAS documents, or its default text; return False for the text."""
    a_host = world.shape.tp * int(rng.integers(1, world.shape.dp + 1))
    places, as_text = _hosts(world, a_host), bool(rng.random() < 0.4)
    kinds = world.shape.groups()
    groups = [
        (f"#{place}-{i}", f"{place}{i:015x}", ranks)
        for place, kind in enumerate(("all", "dp", "tp"))
        for i, ranks in enumerate(kinds[kind])
    ]
    for turn in range(2):
        documents, sections = [], []
        for mark, name, ranks in groups:
            rows, lost = [], []
            counts = {r: sum(c.ranks == ranks for c in world.calls[r]) for r in ranks}
            for local, rank in enumerate(ranks):
                host, pid, gpu = places[rank]
                row = {"rank": local, "host": host, "pid": pid, "cuda_dev": gpu, "nvml_dev": gpu}
                is_it = rank in fault.ranks
                if is_it and fault.kind == "lost":
                    lost.append(row | {"status": {"unresponsive": True, "considered_dead": bool(turn)}})
                    continue
                code = 2 if is_it and fault.kind == "error" else 6 if fault.kind == "error" else 0
                status = {"init_state": 0, "async_error": code, "finalize_called": False, "abort_flag": False}
                told = {"Broadcast": 1, "AllReduce": counts[rank]}
                rows.append(row | {"status": status, "collective_counts": told})
            documents.append({
                "hash": name, "secondary_hash": "0", "size": len(ranks), "ranks_count": len(rows), "ranks": rows,
                "missing_ranks_count": len(lost), "missing_ranks": lost,
            })  # fmt: skip
            sections += _sections(f"{mark} ({name})", rows, lost, fault)
        if as_text:
            table = "".join(
                f"  {place} {len(kinds[kind]):9}  2  {a_host} {len(kinds[kind][0]):9} {len(world.calls)}  RUNNING  OK\n"
                for place, kind in enumerate(("all", "dp", "tp"))
            )
            head = (
                "NCCL version 2.28.9 compiled with CUDA 13.0\n\nJob summary\n===========\n\nCommunicators... (0.1s)\n"
            )
            text = head + "=============\n\nGroup  Comms\n" + table + "\nWarnings\n========\n\n" + "\n".join(sections)
            (folder / f"ras{turn}.txt").write_text(text)
        else:
            content = {"nccl_version": "2.28.9", "timestamp": f"2026-09-01 10:00:{turn}0", "communicators": documents}
            (folder / f"ras{turn}.json").write_text(json.dumps(content, indent=1))
    return not as_text


def _sections(mark: str, rows: list[dict[str, Any]], lost: list[dict[str, Any]], fault: Fault) -> list[str]:
    """Return the sections of the text on communicator `mark`."""
    place = "GPU {cuda_dev} managed by process {pid} on node {host}"
    found = []
    if lost:
        found += [f"{mark} INCOMPLETE", f"  Missing communicator data from {len(lost)} rank"]
        found += [f"  Rank {one['rank']} -- {place.format(**one)}" for one in lost]
    odd = [one for one in rows if one["status"]["async_error"] == 2]
    if odd:
        found += [f"{mark} ERROR", f"  Asynchronous errors on {len(rows)} ranks"]
        found += [f"  {len(rows) - len(odd)} ranks reported Remote error"]
        found += [f"  Rank {one['rank']} reported System error -- {place.format(**one)}" for one in odd]
    counts = [one["collective_counts"]["AllReduce"] for one in rows]
    if len(set(counts)) > 1:
        found += [f"{mark} MISMATCH", "  Communicator ranks have different AllReduce operation counts"]
        for value in sorted(set(counts), key=counts.count, reverse=True):
            told = f"launched up to operation {value}" if value else "not launched any operations"
            its = [one for one, count in zip(rows, counts, strict=True) if count == value]
            if len(its) == 1:
                found.append(f"  Rank {its[0]['rank']} has {told} -- {place.format(**its[0])}")
                continue
            found.append(f"  {len(its)} ranks have {told}")
            if len(its) <= min(10, len(rows) / 4):
                found += [f"  Rank {one['rank']} -- {place.format(**one)}" for one in its]
    return [*found, ""]


def kineto(rng: Generator, world: World, folder: Path) -> None:
    """Write traces of torch.profiler, packed or not, some with a bad byte or cut off."""
    packed, bad = bool(rng.random() < 0.4), int(rng.integers(4))
    names = {ranks: f"{kind}_{i}" for kind, its in world.shape.groups().items() for i, ranks in enumerate(its)}
    for rank, calls in world.calls.items():
        clock_us = 1e6 * 1000.0 * rank
        events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}]
        for _, start_s, took_s in world.compute[rank]:
            event = {"ph": "X", "cat": "kernel", "name": "cutlass_gemm<128>", "pid": 0, "tid": 7, "args": {"stream": 7}}
            events.append(event | {"ts": clock_us + 1e6 * start_s, "dur": 1e6 * took_s})
        for call in calls:
            args = {
                "Collective name": call.name.replace("_", ""), "dtype": "Float", "In msg nelems": call.nbytes // 4,
                "Group size": len(call.ranks), "Process Group Name": names[call.ranks], "Seq": call.number,
                "Process Group Ranks": f"[{', '.join(map(str, call.ranks))}]",
            }  # fmt: skip
            event = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "args": args}
            events.append(event | {"ts": clock_us + 1e6 * call.start_s, "dur": 1e6 * (call.end_s - call.start_s)})
        starts: dict[int, float] = {}
        for call in calls:
            starts.setdefault(call.step, call.start_s - 9 * MS)
        for step, start_s in starts.items():
            length_s = starts.get(step + 1, calls[-1].end_s) - start_s
            event = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
            events.append(event | {"ts": clock_us + 1e6 * start_s, "dur": 1e6 * length_s})
        about = {"backend": "nccl", "rank": rank, "world_size": len(world.shape.ranks)}
        text = json.dumps({"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}, indent=bad or None)
        if bad == 1 and rank == 0:
            text = text.replace("cutlass_gemm<128>", "cutlass\x02gemm", 1)
        elif bad == 2 and rank == 1:
            text = text.replace("cutlass_gemm<128>", "C:\\Users\\gemm", 1)
        name, data = f"host_{1000 + 37 * rank}.17600000{rank:02}.pt.trace.json", text.encode()
        (folder / f"{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(data) if packed else data)


def call_logs(rng: Generator, world: World, folder: Path) -> None:
    """Write the call logs that `lanterne watch --keep` leaves."""
    from lanterne.failslow.record.call_ring import RingWriter

    numbers = {ranks: i for i, ranks in enumerate(r for kind in world.shape.groups().values() for r in kind)}
    for ranks, number in numbers.items():
        (folder / f"group-{number}.json").write_text(json.dumps(ranks))
    for rank, calls in world.calls.items():
        header = {"rank": rank, "pid": 900 + rank, "host": "h", "boot": "b", "world_size": len(world.shape.ranks)}
        writer = RingWriter(folder / f"rank-{rank}-{900 + rank}.calls", header, int(rng.choice([1024, 4096])))
        for call in calls:
            channel = writer.channel(call.name, len(call.ranks), numbers[call.ranks])
            index = channel.begin(call.nbytes, 50.0 + 1000 * rank + call.start_s)
            if call.state == "done":
                channel.end(index, 50.0 + 1000 * rank + call.end_s)


def trace(rng: Generator, world: World, folder: Path) -> None:
    """Write a trace of operations as CSV or JSON, of a job whose stages are the ranks of a tensor-parallel group."""
    names = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "mb_id")
    rows: list[tuple[Any, ...]] = []
    for rank in world.shape.ranks:
        place = rank // world.shape.tp, rank % world.shape.tp, rank
        for i, (step, start_s, took_s) in enumerate(world.compute[rank]):
            kind = ("forward-compute", "backward-compute")[i % 3 > 0]
            rows.append((*place, step, kind, start_s, took_s, 0 if i % 3 < 2 else 1))
        for call in world.calls[rank]:
            if call.kind == "dp":
                took_s = call.end_s - call.start_s
                rows.append((*place, call.step, "grads-reduce-scatter", call.start_s, took_s, -1))
    if rng.random() < 0.5:
        with open(folder / "trace.csv", "w", newline="") as file:
            csv.writer(file).writerows([names, *rows])
    else:
        content = [dict(zip(names, row, strict=True)) for row in rows]
        (folder / "trace.json").write_text(json.dumps(content))


# -- drawing

SLOW, HANGS = ("none", "worker", "group"), ("absent", "size", "name", "stopped")
# Of each producer the faults that its records can show.
PRODUCERS: dict[str, tuple[str, ...]] = {
    "flight recorder": (*HANGS, *HANGS, "none"),
    "flight recorder, gloo": ("absent", "size", "name"),
    "flight recorder, messages": ("silent stage",),
    "inspector": SLOW,
    "inspector 4.3": SLOW,
    "ras": ("none", "absent", "lost", "error"),
    "kineto": SLOW,
    "call logs": (*SLOW, "absent"),
    "trace": SLOW,
}


def draw(
    seed: int, folder: Path, producer: str | None = None, kind: str | None = None, factor: float = 0.0
) -> DrawnFolder:
    """Write the folder of `seed`, and return what is right to say of it.

    Args:
        producer, kind, factor: of PRODUCERS, of the fault, and of what is slow, where they are given.
    """
    rng = np.random.default_rng([7_310, seed])
    producer = producer or list(PRODUCERS)[seed % len(PRODUCERS)]
    drawn = str(rng.choice(PRODUCERS[producer]))
    kind = kind or drawn
    shape = Shape(int(rng.integers(2, 5)), int(rng.choice([2, 4])), int(rng.integers(12, 40)))
    if producer == "trace" and kind == "worker" and shape.dp == 2 and shape.tp == 2:
        shape = shape._replace(dp=3)
    # By numbers of its own, so that a folder is the same but for its fault.
    fault = _fault(np.random.default_rng([7_311, seed]), kind, shape, factor)
    if kind == "silent stage":
        world = run_messages(rng, shape, fault)
    else:
        world = run_job(rng, shape, fault, float(rng.choice([0.005, 0.02])))
    writers: dict[str, Callable[[], bool | None]] = {
        "flight recorder": lambda: flight_recorder(rng, world, folder, fault.ranks),
        "flight recorder, gloo": lambda: flight_recorder(rng, world, folder, fault.ranks, "gloo"),
        "flight recorder, messages": lambda: flight_recorder(
            rng, world, folder, fault.ranks, str(rng.choice(["nccl", "gloo"]))
        ),
        "inspector": lambda: inspector(rng, world, folder),
        "inspector 4.3": lambda: inspector(rng, world, folder, of_dump=True),
        "ras": lambda: ras(rng, world, folder, fault),
        "kineto": lambda: kineto(rng, world, folder),
        "call logs": lambda: call_logs(rng, world, folder),
        "trace": lambda: trace(rng, world, folder),
    }
    answer = bool(writers[producer]())
    if producer == "inspector" and not answer and rng.random() < 0.2:
        # Another job, which is healthy, wrote there, too.
        rng = np.random.default_rng([7_312, seed])
        inspector(rng, run_job(rng, shape, Fault("none"), 0.01), folder, "second-")
    is_dim, may_lack = producer.startswith("inspector") and answer, producer == "ras" and not answer
    lost = max(set(shape.ranks) - set(fault.ranks)) if producer.startswith("flight") and answer else None
    if rng.random() < 0.3:
        (folder / "README.txt").write_text("notes on this run\n")
    cause = "none" if is_dim else {"none": "none", "group": "link"}.get(kind, "worker")
    return DrawnFolder(producer, fault, cause, () if cause == "none" else fault.ranks, may_lack, lost)


def _fault(rng: Generator, kind: str, shape: Shape, factor: float) -> Fault:
    if kind == "group":
        groups = shape.groups()["dp"]
        return Fault(kind, groups[int(rng.integers(len(groups)))], factor or float(rng.uniform(1.15, 2.5)))
    if kind == "none":
        return Fault(kind)
    rank = int(rng.integers(len(shape.ranks)))
    if kind == "silent stage":
        return Fault(kind, (rank,), step=int(rng.integers(1, shape.steps)), slot=int(rng.integers(3)))
    if kind == "worker":
        return Fault(kind, (rank,), factor or float(rng.uniform(1.1, 2.0)))
    # A call of two ranks has no majority: what differs is named in the call of all.
    slot = 3 if kind in ("size", "name") else int(rng.choice([0, 1, 2, 3]))
    return Fault(
        kind,
        (rank,),
        step=shape.steps - 1 if kind in ("lost", "error") else int(rng.integers(4, shape.steps)),
        slot=slot,
    )


# -- scoring


def judge(drawn: DrawnFolder, verdicts: Sequence[Verdict]) -> tuple[bool, bool]:
    """Return whether `verdicts` are right, and whether they name a rank that is innocent."""
    told = [one for one in verdicts if one.evidence.get("state") != "silent"]
    named = {rank for verdict in told if verdict.cause in ("worker", "link") for rank in verdict.ranks}
    named |= {rank for one in verdicts if one not in told for rank in one.ranks if rank != drawn.lost}
    is_named = named == set(drawn.ranks) or (drawn.may_lack_ranks and not named)
    causes = {verdict.cause for verdict in told} or {"none"}
    return causes == {drawn.cause} and is_named, not named <= set(drawn.ranks)


def score(count: int, seed: int, **given: Any) -> list[dict[str, Any]]:
    """Return a record for each producer and fault, and for all: folders, how many right, how many blame an innocent."""
    from lanterne.bench.failslow.locate import located

    found: dict[tuple[str, str], list[tuple[int, bool, bool]]] = {}
    for number in range(seed, seed + count):
        report.progress(f"folder {number - seed + 1} of {count}")
        with tempfile.TemporaryDirectory() as name:
            one = draw(number, Path(name), **given)
            try:
                answer = judge(one, located(Path(name))[0])
            except LanterneError:
                answer = False, False
        for key in ((one.producer, one.fault.kind), ("all", "all")):
            found.setdefault(key, []).append((number, answer[0], answer[1]))
    report.progress("")
    return [
        {
            "producer": producer, "fault": fault, "folders": len(rows), "right": sum(right for _, right, _ in rows),
            "innocents": sum(blamed for *_, blamed in rows),
            "wrong": [number for number, right, _ in rows if not right],
        }
        for (producer, fault), rows in sorted(found.items())
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="./run evaluate operators.drawn_folders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folders", type=whole(1), default=200, metavar="N", help="how many (default 200)")
    parser.add_argument("--seed", type=whole(0), required=True, metavar="N", help="of the first one; take a fresh one")
    parser.add_argument("--producer", choices=PRODUCERS, help="one of these alone")
    parser.add_argument("--fault", help="one of its faults alone, such as group or none")
    parser.add_argument("--factor", type=float, default=0.0, metavar="X", help="of what is slow (default: drawn)")
    parser.add_argument("--json", metavar="FILE", help="write everything ('-' for standard output)")
    args = parser.parse_args(arguments)
    records = score(args.folders, args.seed, producer=args.producer, kind=args.fault, factor=args.factor)
    if args.json:
        report.write_json(args.json, report.envelope(seed=args.seed, results=records))
    if args.json != "-":
        rows = [[r["producer"], r["fault"], r["folders"], r["right"], r["innocents"], r["wrong"][:8]] for r in records]
        columns = ["producer", "fault", "folders", "right", "with innocents", "wrong"]
        report.print_table([(name, "") for name in columns], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
