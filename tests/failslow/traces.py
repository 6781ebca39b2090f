"""Synthetic traces: 1F1B steps of which one thing is slow, as records in columns. Made by its own small simulation."""

import numpy as np


def one_f_one_b(stage, stages, microbatches):
    """The operations of `stage`, in order: (kind, microbatch)."""
    warm_up = min(stages - stage - 1, microbatches)
    order = [("F", m) for m in range(warm_up)]
    for m in range(microbatches - warm_up):
        order += [("F", warm_up + m), ("B", m)]
    return order + [("B", m) for m in range(microbatches - warm_up, microbatches)]


def make_trace(
    replicas=4,
    stages=4,
    microbatches=8,
    steps=20,
    workers=None,
    links=None,
    stage_factors=None,
    uneven=0.0,
    noise=0.01,
    seed=1,
):
    """Columns of a trace.

    Args:
        workers: (replica, stage) -> factor, or (factor, first step) for a worker that becomes slow.
        links: (replica, boundary) -> factor on transfers, both directions.
        stage_factors: stage -> factor; uneven: spread of the microbatches' lengths (log scale).
    """
    rng = np.random.default_rng(seed)
    records = []
    for step in range(steps):
        lengths = np.exp(uneven * rng.normal(size=(replicas, microbatches)))
        ends = np.zeros((replicas, stages))
        for replica in range(replicas):
            pace = np.array(
                [
                    _factor(workers, replica, stage, step) * (stage_factors or {}).get(stage, 1.0)
                    for stage in range(stages)
                ]
            )
            took = {
                (stage, kind, m): base * pace[stage] * lengths[replica, m] * np.exp(noise * rng.normal())
                for stage in range(stages) for m in range(microbatches) for kind, base in (("F", 0.05), ("B", 0.1))
            }  # fmt: skip
            hops = [0.002 * (links or {}).get((replica, boundary), 1.0) for boundary in range(stages - 1)]
            ends[replica] = _pipeline(records, step, replica, took, hops, microbatches)
        for stage in range(stages):
            together = ends[:, stage].max() + 0.03
            for replica in range(replicas):
                end = ends[replica, stage]
                records.append((replica, stage, step, "grads-reduce-scatter", end, together - end, -1, 0))
    names = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "mb_id", "seq_id")
    columns = {name: np.array(values) for name, values in zip(names, zip(*records, strict=True), strict=True)}
    columns["rank"] = columns["dp_rank"] * stages + columns["stage"]
    return columns


def _factor(workers, replica, stage, step):
    factor = (workers or {}).get((replica, stage), 1.0)
    if isinstance(factor, tuple):
        factor, first = factor
        return factor if step >= first else 1.0
    return factor


def _pipeline(records, step, replica, took, hops, microbatches):
    """Run one replica's step, append its records, and return when each stage ends."""
    stages = len(hops) + 1
    orders = [one_f_one_b(stage, stages, microbatches) for stage in range(stages)]
    now, following, done = [0.0] * stages, [0] * stages, {}
    while any(following[s] < len(orders[s]) for s in range(stages)):
        for stage in range(stages):
            while following[stage] < len(orders[stage]):
                kind, m = orders[stage][following[stage]]
                source = stage - 1 if kind == "F" else stage + 1
                if 0 <= source < stages:
                    if (source, kind, m) not in done:
                        break
                    name = "forward" if kind == "F" else "backward"
                    sent, ready = done[source, kind, m], now[stage]
                    arrival = max(sent, ready) + hops[min(source, stage)]
                    records.append((replica, source, step, f"{name}-send", sent, arrival - sent, -1, m))
                    records.append((replica, stage, step, f"{name}-recv", ready, arrival - ready, -1, m))
                    now[stage] = arrival
                optype = "forward-compute" if kind == "F" else "backward-compute"
                records.append((replica, stage, step, optype, now[stage], took[stage, kind, m], m, m))
                now[stage] += took[stage, kind, m]
                done[stage, kind, m] = now[stage]
                following[stage] += 1
    return now
