"""Synthetic traces: 1F1B steps of which one thing is slow, as records in columns. Made by its own small simulation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray


def one_f_one_b(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """The operations of `stage`, in order: (kind, microbatch)."""
    warm_up = min(stages - stage - 1, microbatches)
    order = [("F", m) for m in range(warm_up)]
    for m in range(microbatches - warm_up):
        order += [("F", warm_up + m), ("B", m)]
    return order + [("B", m) for m in range(microbatches - warm_up, microbatches)]


# (replica, stage), or (replica, boundary between two stages).
Place: TypeAlias = tuple[int, int]
# dp_rank, stage, step, optype, start_ts, duration, mb_id, seq_id.
TraceRow: TypeAlias = tuple[int, int, int, str, float, float, int, int]


@dataclass(frozen=True)
class SlowWorker:
    """A slow worker: by `factor`, in operations of `kinds`, in a `share` of the steps [first, stop)."""

    factor: float
    kinds: str = "FB"
    first: int = 0
    stop: int | None = None
    share: float = 1.0

    def steps(self, rng: np.random.Generator, count: int) -> NDArray[np.bool_]:
        """(count,) bool: the steps in which it is slow."""
        step = np.arange(count)
        return (step >= self.first) & (step < (self.stop or count)) & (rng.random(count) < self.share)


def make_trace(
    replicas: int = 4,
    stages: int = 4,
    microbatches: int = 8,
    steps: int = 20,
    workers: Mapping[Place, float | SlowWorker] | None = None,
    links: Mapping[Place, float] | None = None,
    stage_factors: Mapping[int, float] | None = None,
    uneven: float = 0.0,
    long_replicas: Mapping[int, float] | None = None,
    noise: float = 0.01,
    stalls: float = 0.0,
    seed: int = 1,
) -> dict[str, NDArray[Any]]:
    """Columns of a trace.

    Args:
        workers: (replica, stage) -> factor, or SlowWorker.
        links: (replica, boundary) -> factor on transfers, both directions.
        stage_factors: stage -> factor; uneven: spread of the microbatches' lengths (log scale).
        long_replicas: replica -> factor on the length of all its microbatches, at every stage alike.
        noise: of an operation (log scale); stalls: share of operations that take three times as long.
    """
    rng = np.random.default_rng(seed)
    slow = {where: w if isinstance(w, SlowWorker) else SlowWorker(w) for where, w in (workers or {}).items()}
    when = {where: worker.steps(rng, steps) for where, worker in slow.items()}
    hops = np.full((replicas, max(stages - 1, 0)), 0.002)
    for (replica, boundary), factor in (links or {}).items():
        hops[replica, boundary] *= factor
    usual = np.ones((replicas, stages, microbatches))
    usual *= np.array([(stage_factors or {}).get(stage, 1.0) for stage in range(stages)])[:, None]
    usual *= np.array([(long_replicas or {}).get(replica, 1.0) for replica in range(replicas)])[:, None, None]
    records: list[TraceRow] = []
    for step in range(steps):
        lengths = usual * np.exp(uneven * rng.normal(size=(replicas, 1, microbatches)))
        took = {}
        for kind, base_s in (("F", 0.05), ("B", 0.1)):
            took[kind] = base_s * lengths * np.exp(noise * rng.normal(size=lengths.shape))
            took[kind][rng.random(lengths.shape) < stalls] *= 3
            for where, worker in slow.items():
                if when[where][step] and kind in worker.kinds:
                    took[kind][where] *= worker.factor
        ends = np.empty((replicas, stages))
        for replica in range(replicas):
            its = {kind: seconds[replica].tolist() for kind, seconds in took.items()}
            ends[replica] = _pipeline(records, step, replica, its, hops[replica].tolist())
        for stage in range(stages):
            together = ends[:, stage].max() + 0.03
            for replica in range(replicas):
                end = ends[replica, stage]
                records.append((replica, stage, step, "grads-reduce-scatter", end, together - end, -1, 0))
    names = ("dp_rank", "stage", "step", "optype", "start_ts", "duration", "mb_id", "seq_id")
    columns = {name: np.array(values) for name, values in zip(names, zip(*records, strict=True), strict=True)}
    columns["rank"] = columns["dp_rank"] * stages + columns["stage"]
    return columns


def _pipeline(
    records: list[TraceRow],
    step: int,
    replica: int,
    took: Mapping[str, Sequence[Sequence[float]]],
    hops: Sequence[float],
) -> list[float]:
    """Run one replica's step, append its records, and return when each stage ends; `took`: kind, stage, microbatch."""
    stages, microbatches = len(hops) + 1, len(took["F"][0])
    orders = [one_f_one_b(stage, stages, microbatches) for stage in range(stages)]
    now, following = [0.0] * stages, [0] * stages
    done: dict[tuple[int, str, int], float] = {}
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
                records.append((replica, stage, step, optype, now[stage], took[kind][stage][m], m, m))
                now[stage] += took[kind][stage][m]
                done[stage, kind, m] = now[stage]
                following[stage] += 1
    return now
