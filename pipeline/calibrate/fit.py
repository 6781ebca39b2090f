"""Finds from recorded runs what a message costs on each kind of GPU."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from lanterne.errors import InputError
from lanterne.pipeline.calibrate.parameters import SEEN, DeviceCalibration, GpuCalibration, GpuParameters
from lanterne.pipeline.calibrate.prediction import fitted_gap, healthy_run, slow_run
from lanterne.pipeline.calibrate.runs import RecordedRun, spread
from lanterne.pipeline.simulate.devices import DeviceRun

# What a doubtful run weighs.
DOUBTFUL = 0.25
# Name -> (where the search begins, its first step, its last).
STEPS = {
    "hold_ms_per_mbyte": (1 / 6, 0.05, 0.002),
    "hold_per_sender_ms": (0.3, 0.15, 0.005),
    "message_cost_ms": (0.8, 0.25, 0.01),
    "message_cost_per_rank_ms": (0.4, 0.15, 0.005),
}
# Found only from runs in which ranks share a host; from others they come from the GPU with most runs.
OF_SHARED_HOSTS = ("hold_per_sender_ms", "message_cost_per_rank_ms")
SPINS = (1.0, 0.02, 0.002)
# What it costs these two, as an error, to be twice as large as where the search began: runs hardly tell them apart.
STAY = 0.004


class PreparedRun(NamedTuple):
    """A run whose healthy iteration is understood.

    Attributes:
        gaps_ms: between two actions, if hosts issue as recorded, and if they issue as if messages took no time.
        over_delegates: None where it was slow over NCCL.
    """

    run: RecordedRun
    slow_ms: float
    gaps_ms: tuple[float, float]
    over_delegates: DeviceRun | None


def prepare(runs: Sequence[RecordedRun]) -> list[PreparedRun]:
    """The PreparedRuns of those of `runs` that say how long a healthy and a slow iteration took."""
    # Here, since it needs Numba: runs are timed by the thousand.
    from lanterne.pipeline.simulate.compiled import load

    load()
    prepared = []
    for run in runs:
        if run.slow_ms is not None and run.baseline_ms is not None:
            gap = instant = fitted_gap(healthy_run(run), run.baseline_ms)
            if _may_be_instant(run):
                instant = fitted_gap(healthy_run(run, instant_issue=True), run.baseline_ms)
            delegated = slow_run(run, GpuParameters()) if run.delegates else None
            prepared.append(PreparedRun(run, run.slow_ms, (gap, instant), delegated))
    return prepared


def _may_be_instant(run: RecordedRun) -> bool:
    return run.tensor_parallel > 1 and run.policy != "1f1b"


def calibrate(prepared: Sequence[PreparedRun]) -> DeviceCalibration:
    """The DeviceCalibration with which the runs are predicted best.

    Raises:
        InputError: no run says how long both iterations took.

    Cost: some 10 s for 100 runs of 8 stages x 24 microbatches.
    """
    if not prepared:
        raise InputError("runs: got none with healthy_ms and slow_ms, expected at least one")
    by_gpu: dict[str, list[PreparedRun]] = {}
    for each in prepared:
        by_gpu.setdefault(each.run.gpu, []).append(each)
    gpus: dict[str, GpuCalibration] = {}
    start = GpuParameters()
    for name, own in sorted(by_gpu.items(), key=lambda item: -len(item[1])):
        parameters = _parameters(own, start if gpus else None)
        start = start if gpus else parameters
        seen = {key: spread(value for each in own for value in values(each.run)) for key, values in SEEN.items()}
        gpus[name] = GpuCalibration(parameters, len(own), seen)
    return DeviceCalibration(gpus)


def _parameters(prepared: Sequence[PreparedRun], other: GpuParameters | None) -> GpuParameters:
    """The GpuParameters of one kind of GPU; what its runs do not show is as on the `other` kind."""
    values = {key: first for key, (first, _, _) in STEPS.items()}
    if other is not None:
        values |= {key: getattr(other, key) for key in OF_SHARED_HOSTS}
    spin, instant = _over_nccl(prepared, other)
    delegated = [each for each in prepared if each.over_delegates is not None]
    shared = any(each.run.ranks_per_host > 1 for each in delegated)
    free = [key for key in STEPS if shared or key not in OF_SHARED_HOSTS]
    if not shared and other is None:
        values |= dict.fromkeys(OF_SHARED_HOSTS, 0.0)
    if delegated:
        values |= _lowest(
            lambda trial: _loss(delegated, lambda each: _over_delegates(each, values | trial, instant)),
            {key: (values[key], *STEPS[key][1:]) for key in free},
        )
    gap = statistics.median(each.gaps_ms[instant] for each in prepared)
    found = GpuParameters(spin=spin, instant_issue=float(instant), gap_ms=gap, **values)
    return GpuParameters(*(round(value, 4) for value in found))


def _over_nccl(prepared: Sequence[PreparedRun], other: GpuParameters | None) -> tuple[float, bool]:
    """(spin, instant_issue), of the runs that were slow over NCCL."""
    over_nccl = [each for each in prepared if each.over_delegates is None]
    spin, instant = (other.spin, bool(other.instant_issue)) if other else (1.0, False)

    def loss(spin: float, instant: bool, runs: Sequence[PreparedRun]) -> float:
        parameters = GpuParameters(spin=spin, instant_issue=float(instant))
        return _loss(runs, lambda each: slow_run(each.run, parameters).makespan(gap=each.gaps_ms[instant]))

    telling = [each for each in over_nccl if _may_be_instant(each.run)]
    if telling:
        instant = loss(spin, True, telling) < loss(spin, False, telling)
    if over_nccl:
        spin = _lowest(lambda trial: loss(trial["spin"], instant, over_nccl), {"spin": SPINS})["spin"]
    return spin, instant


def _over_delegates(each: PreparedRun, values: Mapping[str, float], instant: bool) -> float:
    assert each.over_delegates is not None
    run, parameters = each.run, GpuParameters(**values)
    return each.over_delegates.makespan(
        gap=each.gaps_ms[instant],
        message_cost=parameters.cost_ms(run.ranks_per_host),
        hold=parameters.hold_ms(run.message_nbytes, run.ranks_per_host, run.delegates),
    )


def _loss(prepared: Sequence[PreparedRun], predict: Callable[[PreparedRun], float]) -> float:
    """The mean error, where large ones count more, doubtful runs less, and each policy as much as each other."""
    weights: dict[str, float] = {}
    losses: dict[str, float] = {}
    for each in prepared:
        error = abs(predict(each) / each.slow_ms - 1)
        weight = DOUBTFUL if each.run.is_doubtful else 1.0
        policy = each.run.policy
        weights[policy] = weights.get(policy, 0.0) + weight
        losses[policy] = losses.get(policy, 0.0) + weight * (error + 4 * error**2)
    return statistics.mean(losses[policy] / weights[policy] for policy in weights)


def _lowest(
    loss: Callable[[dict[str, float]], float], search: Mapping[str, tuple[float, float, float]]
) -> dict[str, float]:
    """Values, none below 0, at which `loss` is lowest nearby: one moves at a time, in steps that are halved."""
    best = {key: first for key, (first, _, _) in search.items()}
    steps = {key: step for key, (_, step, _) in search.items()}

    def total(trial: dict[str, float]) -> float:
        moved = sum((trial[key] / search[key][0] - 1) ** 2 for key in OF_SHARED_HOSTS if key in search)
        return loss(trial) + STAY * moved

    lowest = total(best)
    while any(steps[key] > last for key, (_, _, last) in search.items()):
        moved = False
        for key in search:
            for sign in (1, -1):
                trial = best | {key: max(best[key] + sign * steps[key], 0.0)}
                found = total(trial)
                if found < lowest - 1e-9:
                    best, lowest, moved = trial, found, True
                    break
        if not moved:
            steps = {key: step / 2 for key, step in steps.items()}
    return best
