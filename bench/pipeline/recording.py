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
    check_recordable(plan)
    return case._replace(problem=undelayed(case.problem))


def undelayed(problem: Problem) -> Problem:
    """The problem with links that take no time."""
    return dataclasses.replace(problem, link_latency=(0.0,) * (problem.stages - 1), link_bandwidth=None)


def recorded(case: PipelineCase, healthy: MeasuredIterations, slow: MeasuredIterations) -> dict[str, Any]:
    """A run of `calibrate`, from what was measured of `case` and of its healthy_of; times in ms."""
    plan, problem, unit_ms = case.checked.plan, case.problem, case.unit_s * 1e3
    nbytes = max(problem.message_nbytes)
    delays = [
        {"src": src, "dst": dst, "ms": (problem.latency(src, dst) + problem.occupancy(src, dst, nbytes)) * unit_ms}
        for src in range(problem.stages)
        for dst in (src - 1, src + 1)
        if 0 <= dst < problem.stages
    ]
    delegates = case.options.get("queues", 1) if case.plane == "delegate" else 0
    took_ms = (healthy.timeline.end - healthy.timeline.start) * unit_ms
    healthy_ms = [1e3 * makespan_s for makespan_s in healthy.makespan_s]
    return about_run(plan, POLICIES[case.plane], delegates, nbytes, took_ms, healthy_ms) | {
        "id": f"{plan.scheduler}/{case.plane}",
        "delayed_sends": [delay for delay in delays if delay["ms"] > 0],
        "slow_ms": 1e3 * statistics.median(slow.makespan_s),
    }


def check_recordable(plan: Plan, option: str = "--record") -> None:
    """Raise InputError, in the name of `option`, for a plan that no recorded run describes."""
    if plan.placement.name != "unidirectional" or any(a.kind == "BW" or a.parts > 1 for r in plan.ranks for a in r):
        raise InputError(f"{option}: got a plan of {plan.scheduler}, expected one stage per rank, of whole F, B and W")


def about_run(
    plan: Plan, policy: str, delegates: int, message_nbytes: float, took_ms: Floats, healthy_ms: Sequence[float]
) -> dict[str, Any]:
    """Return what runs of one plan have in common.

    Args:
        took_ms: (num_actions,) of a healthy iteration; healthy_ms: whole ones.
    """
    return {
        "model": "recorded",
        "gpu": "recorded",
        "policy": policy,
        "delegates": delegates,
        "stages": plan.placement.num_stages,
        "microbatches": plan.microbatches,
        "ranks_per_host": plan.placement.num_ranks,
        "message_bytes": message_nbytes,
        "profile_ms": profile_ms_of(plan, took_ms),
        "order": ["".join(action.kind for action in rank) for rank in plan.ranks],
        "healthy_ms": {
            "min": min(healthy_ms),
            "q1": float(np.quantile(np.array(healthy_ms), 0.25)),
            "median": statistics.median(healthy_ms),
            "n": len(healthy_ms),
        },
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
