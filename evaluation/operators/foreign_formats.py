"""A trace of operations, written as clusters write their calls: what the readers must make the same of.

Formats: those that failslow/locate/formats reads, whose docstrings name their sources.
"""

import gzip
import json
import pickle
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

# A call by what it is: rank, step, kind, peer (-1: none), group, desc, number, start_s and took_s.
Call: TypeAlias = dict[str, Any]
# Of each rank, in the order of their beginnings.
Calls: TypeAlias = Mapping[int, list[Call]]

COLLECTIVES = {"grads-reduce-scatter": "_reduce_scatter_base", "params-all-gather": "_allgather_base"}
NCCL = {
    "grads-reduce-scatter": "ReduceScatter",
    "params-all-gather": "AllGather",
    "embedding-grads-all-reduce": "AllReduce",
}
DAY_S = 86_400.0


def calls_of(
    columns: Mapping[str, NDArray[Any]],
    thin: float = 0.0,
    seed: int = 0,
    skew_s: Mapping[int, float] | None = None,
    drop_ranks: Collection[int] = (),
) -> dict[int, list[Call]]:
    """The Calls that a trace's columns tell, on each rank's own clock, without a share of the rows.

    Args:
        thin: the share of rows that is lost; `seed`: which.
        skew_s: how far each rank's clock is ahead.
        drop_ranks: those that write nothing.
    """
    rng = np.random.default_rng(seed)
    size = {name: len(values) for name, values in columns.items()}["step"]
    steps = np.unique(columns["step"])
    ends = columns["start_ts"].astype(float) + columns["duration"].astype(float)
    longest = {step: ends[columns["step"] == step].max() for step in steps}
    begin: dict[Any, float] = {}
    now_s = 1.7e9
    for step in steps:
        begin[step] = now_s
        now_s += longest[step] + 0.05
    ranks = columns["rank"].astype(int).tolist()
    place = {r: (int(d), int(s)) for r, d, s in zip(ranks, columns["dp_rank"], columns["stage"], strict=True)}
    at = {where: r for r, where in place.items()}
    stages = 1 + max(s for _, s in place.values())
    groups = {s: tuple(sorted(r for r, (_, p) in place.items() if p == s)) for s in range(stages)}
    ends_of = {d: tuple(sorted({at[d, 0], at[d, stages - 1]})) for d in {d for d, _ in place.values()}}
    found: dict[int, list[Call]] = {}
    numbers: dict[Any, int] = {}
    order = np.lexsort((columns["start_ts"].astype(float), columns["step"], ranks))
    for row in order[:size].tolist():
        rank, step, kind = int(ranks[row]), columns["step"][row], str(columns["optype"][row])
        replica, stage = place[rank]
        call: Call = {"rank": rank, "step": int(step), "kind": kind, "peer": -1}
        call |= {"group": groups[stage], "desc": f"DP{stage}"}
        call["start_s"] = begin[step] + float(columns["start_ts"][row]) + (skew_s or {}).get(rank, 0.0)
        call["took_s"] = float(columns["duration"][row])
        if kind.endswith(("-send", "-recv")):
            ahead = 1 if kind in ("forward-send", "backward-recv") else -1
            call |= {"peer": at[replica, stage + ahead], "group": tuple(sorted(at[replica, s] for s in range(stages)))}
            call["desc"] = f"PP{replica}"
        elif kind == "embedding-grads-all-reduce":
            call |= {"group": ends_of[replica], "desc": f"EMBD{replica}"}
        elif kind.endswith("compute"):
            call["group"] = ()
        elif kind not in COLLECTIVES:
            continue
        key = rank, call["group"], call["peer"] >= 0
        call["number"] = numbers[key] = numbers.get(key, 0) + 1
        if rank not in drop_ranks and rng.random() >= thin:
            found.setdefault(rank, []).append(call)
    return found


def _name(call: Call) -> str:
    return "send" if call["kind"].endswith("send") else "recv"


def write_flight_recorder(folder: Path, calls: Calls, as_json: bool = False, timing: bool = True) -> None:
    """Dumps of PyTorch's Flight Recorder, a file for each rank; without `timing` they have no durations."""
    groups = sorted({call["group"] for own in calls.values() for call in own if call["group"]})
    names = {group: str(i + 1) for i, group in enumerate(groups)}
    desc = {call["group"]: call["desc"] for own in calls.values() for call in own if call["group"]}
    for rank, own in calls.items():
        entries: list[dict[str, Any]] = []
        for call in own:
            if not call["group"]:
                continue
            start_ns, took_s = int(call["start_s"] * 1e9), call["took_s"]
            end_ns = int((call["start_s"] + took_s) * 1e9)
            is_p2p, local = call["peer"] >= 0, call["group"].index(rank)
            name = COLLECTIVES.get(call["kind"], "all_reduce")
            if is_p2p:
                arrow = "->" if _name(call) == "send" else "<-"
                name = f"{_name(call)} {local}{arrow}{call['group'].index(call['peer'])}"
            entries.append({
                "frames": [], "record_id": len(entries), "pg_id": int(names[call["group"]]),
                "process_group": (names[call["group"]], call["desc"]),
                "collective_seq_id": 0 if is_p2p else call["number"], "p2p_seq_id": call["number"] if is_p2p else 0,
                "is_p2p": is_p2p, "op_id": len(entries), "profiling_name": f"nccl:{name}", "input_sizes": [[3, 4]],
                "input_dtypes": ["Float"], "time_created_ns": start_ns - 1000, "state": "completed", "retired": True,
                "time_discovered_started_ns": start_ns, "time_discovered_completed_ns": end_ns,
                "timeout_ms": 600000, **({"duration_ms": took_s * 1e3} if timing else {}),
            })  # fmt: skip
        config = {names[g]: {"name": names[g], "desc": desc[g], "ranks": str(list(g))} for g in groups if rank in g}
        dump = {"version": "2.4", "entries": entries, "pg_config": config, "pg_status": {}}
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(json.dumps(dump).encode() if as_json else pickle.dumps(dump, protocol=2))


def write_inspector(folder: Path, calls: Calls, verbose: bool = True) -> None:
    """Lines of NCCL Inspector; `verbose` ones tell when calls began."""
    for rank, own in calls.items():
        with open(folder / f"host{rank // 8}-pid{1000 + rank}.log", "w") as file:
            for call in own:
                if not call["group"]:
                    continue
                kind = "p2p" if call["peer"] >= 0 else "coll"
                began_us, took_us = call["start_s"] * 1e6, call["took_s"] * 1e6
                name = _name(call).title() if kind == "p2p" else NCCL[call["kind"]]
                perf: dict[str, Any] = {kind: name, f"{kind}_sn": call["number"], f"{kind}_msg_size_bytes": 4096}
                perf[f"{kind}_exec_time_us"] = took_us
                if kind == "p2p":
                    perf["p2p_peer"] = call["group"].index(call["peer"])
                if verbose:
                    kernel = {"channel_id": 0, "kernel_start_ts": began_us, "kernel_stop_ts": began_us + took_us}
                    perf["event_trace_ts"] = {f"{kind}_start_ts": began_us, "kernel_events": [kernel]}
                group = call["group"]
                header: dict[str, Any] = {"id": f"0x{hash(group) & 0xFFFFFFFF:x}", "rank": group.index(rank)}
                header |= {"n_ranks": len(group), "nnodes": 1}
                about: dict[str, Any] = {"inspector_output_format_version": "v4.0", "hostname": f"host{rank // 8}"}
                about |= {"pid": 1000 + rank, "dump_timestamp_us": int(began_us + took_us)}
                line: dict[str, Any] = {"header": header, "metadata": about}
                file.write(json.dumps(line | {f"{kind}_perf": perf}) + "\n")


def write_kineto(folder: Path, calls: Calls, packed: bool = False, seq: bool = True) -> None:
    """Traces of torch.profiler, `packed` by gzip; older ones number no collectives (`seq`)."""
    world = 1 + max(calls)
    for rank, own in calls.items():
        events: list[dict[str, Any]] = []
        spans: dict[int, tuple[float, float]] = {}
        for call in own:
            ts, dur = call["start_s"] * 1e6, call["took_s"] * 1e6
            low, high = spans.get(call["step"], (ts, ts))
            spans[call["step"]] = min(low, ts), max(high, ts + dur)
            if not call["group"]:
                events.append({"ph": "X", "cat": "kernel", "name": "sm90_gemm", "ts": ts, "dur": dur, "args": {}})
                continue
            is_p2p = call["peer"] >= 0
            args: dict[str, Any] = {
                "Collective name": _name(call) if is_p2p else COLLECTIVES.get(call["kind"], "allreduce"),
                "Process Group Name": call["desc"], "Process Group Ranks": str(list(call["group"])),
                "Group size": len(call["group"]), "In msg nelems": 1024, "dtype": "Float",
                **({"Seq": call["number"]} if seq else {}),
            }  # fmt: skip
            if is_p2p:
                args["Dst Rank" if _name(call) == "send" else "Src Rank"] = call["group"].index(call["peer"])
            name = "ncclDevKernel_SendRecv" if is_p2p else "ncclDevKernel_Generic"
            events.append({"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": args})
        for step, (low, high) in spans.items():
            name = f"ProfilerStep#{step}"
            events.append({"ph": "X", "cat": "user_annotation", "name": name, "ts": low, "dur": high - low})
        about = {"backend": "nccl", "rank": rank, "world_size": world}
        text = json.dumps({"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}).encode()
        path = folder / f"trace-rank{rank}.json{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(text) if packed else text)


WRITERS: dict[str, Callable[[Path, Calls], None]] = {
    "flight recorder": write_flight_recorder,
    "flight recorder, JSON": partial(write_flight_recorder, as_json=True, timing=False),
    "inspector": write_inspector,
    "inspector, not verbose": partial(write_inspector, verbose=False),
    "kineto": write_kineto,
    "kineto, packed": partial(write_kineto, packed=True),
}
