"""A trace of operations, written as clusters write their calls: what the readers must make the same of."""

import gzip
import json
import pickle

import numpy as np

COLLECTIVES = {"grads-reduce-scatter": "_reduce_scatter_base", "params-all-gather": "_allgather_base"}
NCCL = {
    "grads-reduce-scatter": "ReduceScatter",
    "params-all-gather": "AllGather",
    "embedding-grads-all-reduce": "AllReduce",
}
DAY_S = 86_400.0


def calls_of(columns, thin=0.0, seed=0, skew_s=None, drop_ranks=()):
    """{rank: [call as a dict]} in the order of their beginnings, on each rank's own clock, without a share of rows."""
    rng = np.random.default_rng(seed)
    size = {name: len(values) for name, values in columns.items()}["step"]
    steps = np.unique(columns["step"])
    ends = columns["start_ts"].astype(float) + columns["duration"].astype(float)
    longest = {step: ends[columns["step"] == step].max() for step in steps}
    begin, now_s = {}, 1.7e9
    for step in steps:
        begin[step] = now_s
        now_s += longest[step] + 0.05
    ranks = columns["rank"].astype(int).tolist()
    place = {r: (int(d), int(s)) for r, d, s in zip(ranks, columns["dp_rank"], columns["stage"], strict=True)}
    at = {where: r for r, where in place.items()}
    stages = 1 + max(s for _, s in place.values())
    groups = {s: tuple(sorted(r for r, (_, p) in place.items() if p == s)) for s in range(stages)}
    ends_of = {d: tuple(sorted({at[d, 0], at[d, stages - 1]})) for d in {d for d, _ in place.values()}}
    found, numbers = {}, {}
    order = np.lexsort((columns["start_ts"].astype(float), columns["step"], ranks))
    for row in order[:size].tolist():
        rank, step, kind = int(ranks[row]), columns["step"][row], str(columns["optype"][row])
        replica, stage = place[rank]
        call = {"rank": rank, "step": int(step), "kind": kind, "peer": -1, "group": groups[stage], "desc": f"DP{stage}"}
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


def _name(call):
    return "send" if call["kind"].endswith("send") else "recv"


def write_flight_recorder(folder, calls, as_json=False, timing=True):
    groups = sorted({call["group"] for own in calls.values() for call in own if call["group"]})
    names = {group: str(i + 1) for i, group in enumerate(groups)}
    desc = {call["group"]: call["desc"] for own in calls.values() for call in own if call["group"]}
    for rank, own in calls.items():
        entries = []
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


def write_inspector(folder, calls, verbose=True):
    for rank, own in calls.items():
        with open(folder / f"host{rank // 8}-pid{1000 + rank}.log", "w") as file:
            for call in own:
                if not call["group"]:
                    continue
                kind = "p2p" if call["peer"] >= 0 else "coll"
                began_us, took_us = call["start_s"] * 1e6, call["took_s"] * 1e6
                name = _name(call).title() if kind == "p2p" else NCCL[call["kind"]]
                perf = {kind: name, f"{kind}_sn": call["number"], f"{kind}_msg_size_bytes": 4096}
                perf[f"{kind}_exec_time_us"] = took_us
                if kind == "p2p":
                    perf["p2p_peer"] = call["group"].index(call["peer"])
                if verbose:
                    kernel = {"channel_id": 0, "kernel_start_ts": began_us, "kernel_stop_ts": began_us + took_us}
                    perf["event_trace_ts"] = {f"{kind}_start_ts": began_us, "kernel_events": [kernel]}
                header = {"id": f"0x{hash(call['group']) & 0xFFFFFFFF:x}", "rank": call["group"].index(rank)}
                about = {"inspector_output_format_version": "v4.0", "hostname": f"host{rank // 8}", "pid": 1000 + rank}
                about["dump_timestamp_us"] = int(began_us + took_us)
                line = {"header": header | {"n_ranks": len(call["group"]), "nnodes": 1}, "metadata": about}
                file.write(json.dumps(line | {f"{kind}_perf": perf}) + "\n")


def write_kineto(folder, calls, packed=False, seq=True):
    world = 1 + max(calls)
    for rank, own in calls.items():
        events = []
        spans = {}
        for call in own:
            ts, dur = call["start_s"] * 1e6, call["took_s"] * 1e6
            low, high = spans.get(call["step"], (ts, ts))
            spans[call["step"]] = min(low, ts), max(high, ts + dur)
            if not call["group"]:
                events.append({"ph": "X", "cat": "kernel", "name": "sm90_gemm", "ts": ts, "dur": dur, "args": {}})
                continue
            is_p2p = call["peer"] >= 0
            args = {
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
