"""Runs of one's own as `pipeline calibrate` reads them: each plan over links as they are, and without their delays."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from lanterne.bench.pipeline.measure import MeasuredIterations, PipelineCase
from lanterne.errors import InputError
from lanterne.pipeline.calibrate.runs import PROFILE
from lanterne.pipeline.plan.costs import Floats
from lanterne.pipeline.plan.plan import KIND, KIND_INDEX, STAGE, Plan
from lanterne.pipeline.plan.problem import Problem

# Data plane -> the policy that its runs are recorded as.
POLICIES = {"delegate": "zb_delegates", "streams": "zb"}


def healthy_of(case: PipelineCase) -> PipelineCase:
    """The case whose links take no time, to be run beside `case`.

    Raises:
        InputError: a plan or a data plane that no recorded run describes.
    """
    plan = case.checked.plan
    if case.plane not in POLICIES:
        raise InputError(f"--record: got data plane {case.plane}, expected one of {', '.join(POLICIES)}")
    if plan.placement.name != "unidirectional" or any(a.kind == "BW" or a.parts > 1 for r in plan.ranks for a in r):
        raise InputError(f"--record: got a plan of {plan.scheduler}, expected one stage per rank, of whole F, B and W")
    return case._replace(problem=undelayed(case.problem))


def undelayed(problem: Problem) -> Problem:
    """The problem with links that take no time."""
    return dataclasses.replace(problem, link_latency=(0.0,) * (problem.stages - 1), link_bandwidth=None)


def recorded(case: PipelineCase, healthy: MeasuredIterations, slow: MeasuredIterations) -> dict[str, Any]:
    """A run of `calibrate`, from what was measured of `case` and of its healthy_of; times in ms."""
    plan, problem, unit_ms = case.checked.plan, case.problem, case.unit_s * 1e3
    profile = profile_ms_of(plan, (healthy.timeline.end - healthy.timeline.start) * unit_ms)
    nbytes = max(problem.message_nbytes)
    delays = [
        {"src": src, "dst": dst, "ms": (problem.latency(src, dst) + problem.occupancy(src, dst, nbytes)) * unit_ms}
        for src in range(problem.stages)
        for dst in (src - 1, src + 1)
        if 0 <= dst < problem.stages
    ]
    iterations_ms = [1e3 * makespan_s for makespan_s in healthy.makespan_s]
    return {
        "id": f"{plan.scheduler}/{case.plane}",
        "model": "recorded",
        "gpu": "recorded",
        "policy": POLICIES[case.plane],
        "stages": problem.stages,
        "microbatches": problem.microbatches,
        "ranks_per_host": problem.stages,
        "message_bytes": nbytes,
        "profile_ms": profile,
        "delayed_sends": [delay for delay in delays if delay["ms"] > 0],
        "delegates": case.options.get("queues", 1) if case.plane == "delegate" else 0,
        "order": ["".join(action.kind for action in rank) for rank in plan.ranks],
        "healthy_ms": {
            "min": min(iterations_ms),
            "q1": lower_quartile(iterations_ms),
            "median": statistics.median(iterations_ms),
            "n": len(iterations_ms),
        },
        "slow_ms": 1e3 * statistics.median(slow.makespan_s),
    }


def profile_ms_of(plan: Plan, took_ms: Floats) -> dict[str, list[float]]:
    """The profile of a run in which the actions of `plan`, (num_actions,), took so long: medians by stage."""
    return {
        key: [
            float(np.median(took_ms[(plan.columns[KIND] == KIND_INDEX[kind]) & (plan.columns[STAGE] == stage)]))
            for stage in range(plan.placement.num_stages)
        ]
        for key, kind in zip(PROFILE, "FBW", strict=True)
    }


def lower_quartile(values: Sequence[float]) -> float:
    """A quarter of `values` are below it."""
    return float(np.quantile(np.array(values), 0.25))
