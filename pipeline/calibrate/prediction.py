"""How long an iteration takes on real devices once links are slow, from a profile and a healthy iteration."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lanterne.errors import InputError
from lanterne.pipeline.calibrate.parameters import DeviceCalibration, GpuParameters, devices_of
from lanterne.pipeline.calibrate.runs import RecordedRun
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.simulate.devices import DeviceRun, Issued, issue_order, on_devices


class Forecast(NamedTuple):
    """What is predicted of a run.

    Attributes:
        slow_ms, healthy_ms: an iteration with slow links, and before; the latter as given where it was.
        parameters: the GpuParameters that were used, with the gap that fits the healthy iteration.
        beyond: a line for each way in which the run lies beyond what was seen; then it is extrapolated.
    """

    slow_ms: float
    healthy_ms: float
    parameters: GpuParameters
    beyond: list[str]


def predict_run(run: RecordedRun, calibration: DeviceCalibration) -> Forecast:
    """The Forecast of `run`; its own slow_ms is not looked at.

    Raises:
        InputError: the profile alone takes longer than the healthy iteration.

    Cost: some 50 ms for 8 stages x 24 microbatches.
    """
    parameters, beyond = calibration.find(run)
    healthy = healthy_run(run, instant_issue=bool(parameters.instant_issue))
    if run.baseline_ms is not None:
        parameters = parameters._replace(gap_ms=fitted_gap(healthy, run.baseline_ms))
    gap = parameters.gap_ms
    healthy_ms = healthy.makespan(gap=gap) if run.healthy_ms is None else run.healthy_ms
    return Forecast(slow_run(run, parameters).makespan(gap=gap), healthy_ms, parameters, beyond)


def healthy_run(run: RecordedRun, *, instant_issue: bool = False) -> DeviceRun:
    """The DeviceRun of `run` before links got slow; `instant_issue` as in GpuParameters."""
    issue = _issue(run, run.quiet_plan, run.issue if run.quiet_plan is run.plan else None, instant_issue)
    return on_devices(run.quiet_plan, run.quiet, devices_of(run, GpuParameters(), healthy=True), issue)


def slow_run(run: RecordedRun, parameters: GpuParameters) -> DeviceRun:
    """The DeviceRun of `run` under its slow links. A spinning kernel takes `spin` times what it was asked for."""
    problem = run.slow if run.delegates else _scaled(run.slow, parameters.spin)
    issue = None
    if not run.delegates and run.policy != "1f1b":
        issue = _issue(run, run.plan, run.issue, bool(parameters.instant_issue))
    return on_devices(run.plan, problem, devices_of(run, parameters), issue)


def _issue(
    run: RecordedRun, plan: CheckedPlan, recorded: Sequence[Sequence[Issued]] | None, instant: bool
) -> Sequence[Sequence[Issued]] | None:
    return issue_order(plan, instant=True) if instant and run.tensor_parallel > 1 else recorded


def _scaled(problem: Problem, factor: float) -> Problem:
    ranks = range(problem.stages)
    latency = tuple(tuple(problem.latency(src, dst) * factor for dst in ranks) for src in ranks)
    return dataclasses.replace(problem, link_latency=latency)


def fitted_gap(healthy: DeviceRun, healthy_ms: float) -> float:
    """The time between two actions with which an iteration takes `healthy_ms`; below 0 where the profile is too slow.

    Raises:
        InputError: the profile alone takes longer.
    """
    problem = healthy.problem
    least = -min(min(problem.durations[kind]) for kind in ("F", "B"))
    if healthy.makespan(gap=least) > healthy_ms:
        raise InputError(
            f"healthy_ms: got {healthy_ms:g}, expected {healthy.makespan(gap=least):g} or more, which the profile takes"
        )
    return _crossing(lambda gap: healthy.makespan(gap=gap) - healthy_ms, least, healthy_ms)


def _crossing(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that rises crosses 0 between `low` and `high`; it is convex, so secants come to it fast."""
    at_low, at_high = rising(low), rising(high)
    while high - low > 1e-9 * (1 + abs(high)) and at_high > 0:
        # The chord crosses too early, the middle may be too late: both shrink the bracket.
        chord = low - at_low * (high - low) / (at_high - at_low)
        for point in (chord, (low + high) / 2):
            if low < point < high:
                value = rising(point)
                if value < 0:
                    low, at_low = point, value
                else:
                    high, at_high = point, value
    return high
