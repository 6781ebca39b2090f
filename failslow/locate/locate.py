"""What makes a job's steps long: a slow worker, a slow link, an uneven stage, uneven data, or nothing.

Like is compared with like: a worker with the other replicas of its stage, a link with the same link of other
replicas. A difference is blamed only if it is large, stands clear of the noise, persists, and costs time: the step's
dependency graph, replayed with the suspect at its peers' speed, must become shorter. What a slow worker or link
explains is taken out before the structure of the job (stages, data) is judged.

Paper: Wu et al. (GREYHOUND), section 4.3, profiling and cross-group comparison; differs: time in a collective is no
sign of guilt (a slow worker waits least), so groups are compared by their shortest member, and blame needs a replay.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lanterne.failslow.evidence.comparison import (
    MIN_STEPS,
    PERSISTENT,
    Slow,
    against_peers,
    error_of,
    least_seen,
    log_s,
    noise_of,
    slow_places,
)
from lanterne.failslow.locate.replay import Operation, step_s
from lanterne.failslow.locate.trace import LEAST_TOLD, Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lanterne.failslow.evidence.comparison import Array, Steps


SLOW_WORKER = 1.05  # chosen: times the peers' computing, of a worker or a stage
SLOW_LINK = 1.5  # chosen: times the peers' messages
SLOW_GROUP = 1.10  # GREYHOUND, section 4.3: times the collectives of its copies
RARELY_SLOW = 0.02  # chosen: share of slow steps that any worker may have
BY_CHANCE = 0.01  # chosen: such spans expected among all workers by chance
DEAD = 100.0  # times its peers: no slowness any more
MIN_SAVING = 0.01  # chosen: share of the step that an incident must cost
MIN_STRUCTURAL_SAVING = 0.03  # share of the step that stages or data must cost
SHARED_DATA = 0.5  # correlation from which half of what microbatches differ by is the data's


@dataclass(frozen=True)
class Verdict:
    """One cause.

    Attributes: `saving`: share of the step time that its removal would save; `evidence`: plain numbers and lists;
    `conclusive`: whether the records suffice, for a name as for "none"; `missing`: what would tell more where not.
    """

    cause: str
    ranks: tuple[int, ...]
    stage: int | None
    saving: float
    evidence: dict[str, Any] = field(default_factory=dict)
    conclusive: bool = True
    missing: tuple[str, ...] = ()


def locate(trace: Trace) -> list[Verdict]:
    """The verdicts on a Trace: slow workers and links, then the job's structure, each by what it costs.

    One Verdict of cause "none" where nothing can be blamed.

    Cost: a replay per suspect; 0.1 s for 64 workers and 43 steps.
    """
    base_s = step_s(trace.order, trace.compute_s, trace.links)
    workers, compute_s = _workers(trace, base_s)
    links = _links(trace, compute_s) + _groups(trace, base_s)
    incidents = sorted(workers + links, key=lambda verdict: -verdict.saving)
    verdicts = incidents + _structure(trace, compute_s)
    if trace.silent:
        # Not compared with anybody, and so a suspect beside whatever was found among the others.
        because = "it tells too little to be judged: lost, or the one that all wait for"
        verdicts.append(silent(trace.silent, because))
    if verdicts:
        return verdicts
    lacking = [f"{MIN_STEPS} steps or more"] if len(trace.steps) < MIN_STEPS else []
    lacking += ["records of other ranks, to compare with"] if trace.replicas < 2 else []
    evidence = {"steps": len(trace.steps), "least_slowdown": _least_slowdown(trace), **variance_shares(trace.compute_s)}
    return [Verdict("none", (), None, 0.0, evidence, not lacking, tuple(lacking))]


def _least_slowdown(trace: Trace) -> dict[str, float]:
    """Return the times its peers from which on a worker, link or group would have been named, in all steps.

    A link must cost time besides, as much as MIN_SAVING.
    """
    import numpy as np

    if trace.replicas < 2 or len(trace.steps) < MIN_STEPS:
        return {}
    links = [against_peers(alone) for alone in trace.links.values() if (alone > 0).all()]
    seen = {
        "worker": [
            _costly(trace, stage, least_seen(one, float(np.log(SLOW_WORKER))))
            for stage, one in enumerate(_slowness(trace))
        ],
        "link": [least_seen(one, float(np.log(SLOW_LINK))) for one in links],
        "group": [least_group_seen(alone) for alone in _collectives(trace).values()],
    }
    return {name: max(found) for name, found in seen.items() if found}


def _costly(trace: Trace, stage: int, slowdown: float) -> float:
    """Return `slowdown`, or as much more of it as makes a worker of `stage` cost twice MIN_SAVING of the step.

    Once, as noise and the worker's replica have it, would leave half of such workers below it.
    """
    import numpy as np

    steps = np.arange(len(trace.steps))
    while slowdown < DEAD:
        slowed = _slowed(trace.compute_s, stage, 0, steps, float(np.log(slowdown)))
        saving = _most_saved(trace, slowed, trace.compute_s)
        if saving >= 2 * MIN_SAVING:
            break
        slowdown = 1 + (slowdown - 1) * max(1.1, min(2.0, 2 * MIN_SAVING / max(saving, 1e-6)))
    return slowdown


def silent(ranks: tuple[int, ...], because: str) -> Verdict:
    """Return the Verdict on ranks of which too little was read to judge them."""
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return Verdict(
        "worker", ranks, None, 0.0, {"state": "silent", "because": because}, False, (f"records of ranks {shown}",)
    )


def _slowness(trace: Trace) -> Array:
    """Per stage (S, D): log of a worker's compute over its peers', without what its replica's data explains.

    Where microbatches are long or short at every stage alike, a replica whose other stages are slower as well has more
    data, and only what a worker is slower than they counts.
    """
    import numpy as np

    ratios = np.stack([against_peers(durations.sum(axis=2)) for durations in trace.compute_s])
    if not _stages_vary_together(trace):
        return ratios
    # The lower median: of two other stages the one that is not slow itself.
    others = [np.sort(np.delete(ratios, stage, axis=0), axis=0) for stage in range(trace.stages)]
    return np.stack([ratios[stage] - others[stage][(trace.stages - 2) // 2] for stage in range(trace.stages)])


def _stages_vary_together(trace: Trace) -> bool:
    """Whether more than half of how a worker's microbatches differ from each other is the same at other stages."""
    import numpy as np

    if trace.stages < 2:
        return False
    places = [{operation: i for i, operation in enumerate(order)} for order in trace.order]
    # What was divided as the last stage's are long says nothing of whether it is as long.
    divided = {trace.order[0][place] for place in trace.split[0]} if trace.split else set[Operation]()
    common = sorted(set(places[0]).intersection(*places[1:]) - divided)
    if len(common) < 2:
        return False
    logs = [
        log[:, :, [place[operation] for operation in common]]
        for log, place in zip(_recorded_logs(trace, trace.compute_s), places, strict=True)
    ]
    # Neither what an operation usually takes nor what a worker has in all of a step tells microbatches apart.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        logs = [x - np.nanmedian(x, axis=(0, 1), keepdims=True) for x in logs]
        logs = [x - np.nanmean(x, axis=2, keepdims=True) for x in logs]
    pairs = [_correlation(one, other) for one, other in pairwise(logs)]
    told = [pair for pair in pairs if pair is not None]
    return len(told) == len(pairs) and float(np.median(told)) >= SHARED_DATA


def _recorded_logs(trace: Trace, compute_s: Sequence[Array]) -> list[Array]:
    """Logarithms of durations, NaN where they were not recorded: what is filled in is made from what others took."""
    import numpy as np

    logs = [log_s(durations) for durations in compute_s]
    return [np.where(known, log, np.nan) for log, known in zip(logs, trace.known, strict=True)] if trace.known else logs


def _correlation(one: Array, other: Array) -> float | None:
    """The correlation of what both tell; None where one of them does not vary, or they tell too little."""
    import numpy as np

    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < 3 or min(one[both].std(), other[both].std()) == 0.0:
        return None
    return float(np.corrcoef(one[both], other[both])[0, 1])


def _workers(trace: Trace, base_s: Array) -> tuple[list[Verdict], list[Array]]:
    """(verdicts on slow workers, compute durations with their slowness taken out)."""
    import numpy as np

    compute_s = [durations.copy() for durations in trace.compute_s]
    found = []
    if trace.replicas < 2:
        return [], compute_s
    slowness = _slowness(trace)
    slow = slowness >= np.log(SLOW_WORKER) / 2
    # The lower median: of two workers the share of the one that is not slow.
    usual = max(float(np.quantile(slow.mean(axis=1), 0.5, method="lower")), RARELY_SLOW)
    for stage, (ratios, is_told) in enumerate(zip(slowness, _told(trace), strict=True)):
        for replica, steps, effect in slow_places(ratios, np.log(SLOW_WORKER), is_told):
            if slow.size * usual ** slow[stage, steps, replica].sum() > BY_CHANCE:
                continue
            compute_s[stage][steps, replica] /= np.exp(effect)
            found.append((stage, replica, steps, effect))
    if not found:
        return [], compute_s
    while len(found) > 1:
        # What costs nothing even once the others are taken out is not blamed beside them.
        costs = [_cost_beside(trace, compute_s, *suspect) for suspect in found]
        least = int(np.argmin(costs))
        if costs[least] >= MIN_SAVING:
            break
        compute_s = _slowed(compute_s, *found.pop(least))
    saving = _most_saved(trace, trace.compute_s, compute_s)
    if saving < MIN_SAVING:
        return [], [durations.copy() for durations in trace.compute_s]
    evidence = [_worker_evidence(trace, base_s, slowness, *suspect) for suspect in found]
    evidence.sort(key=lambda record: -record["saving_alone"])
    stages = {stage for stage, *_ in found}
    ranks = tuple(record["rank"] for record in evidence)
    shares = variance_shares(trace.compute_s)
    return [
        Verdict("worker", ranks, stages.pop() if len(stages) == 1 else None, saving, {"workers": evidence, **shares})
    ], compute_s


def _told(trace: Trace) -> list[NDArray[np.bool_]]:
    """Per stage (S, D): whether a worker tells enough of a step; what is filled in is as usual, and judges nobody."""
    import numpy as np

    if not trace.known:
        return [np.ones(durations.shape[:2], bool) for durations in trace.compute_s]
    return [known.mean(axis=2) >= LEAST_TOLD for known in trace.known]


def _slowed(compute_s: Sequence[Array], stage: int, replica: int, steps: Steps, effect: float) -> list[Array]:
    """`compute_s` with a worker's slowness put in."""
    import numpy as np

    slowed = [durations.copy() for durations in compute_s]
    slowed[stage][steps, replica] *= np.exp(effect)
    return slowed


def _cost_beside(
    trace: Trace, healthy_s: Sequence[Array], stage: int, replica: int, steps: Steps, effect: float
) -> float:
    """The share of the step that a suspect alone costs, the others' slowness being taken out in `healthy_s`."""
    return _most_saved(trace, _slowed(healthy_s, stage, replica, steps, effect), healthy_s)


def _most_saved(trace: Trace, compute_s: Sequence[Array], fixed_s: Sequence[Array]) -> float:
    """The share of the step saved by `fixed_s`.

    A slow link elsewhere may hide what a worker costs, so it is asked for with links at their peers' speed as well.
    """
    import numpy as np

    even = {link: np.minimum(alone, np.median(alone, axis=1, keepdims=True)) for link, alone in trace.links.items()}
    return max(
        _saving(step_s(trace.order, compute_s, links), step_s(trace.order, fixed_s, links))
        for links in (trace.links, even)
    )


def _worker_evidence(
    trace: Trace, base_s: Array, slowness: Array, stage: int, replica: int, steps: Steps, effect: float
) -> dict[str, Any]:
    import numpy as np

    alone = [durations.copy() for durations in trace.compute_s]
    alone[stage][steps, replica] /= np.exp(effect)
    ratios = slowness[stage][steps, replica]
    busy = trace.compute_s[stage].sum(axis=2)[steps] / base_s[steps, None]
    idle = 1 - busy.mean(axis=0)
    return {
        "rank": int(trace.ranks[replica, stage]),
        "stage": stage,
        "replica": replica,
        "slowdown": float(np.exp(effect)),
        "slow_step_share": float((ratios >= np.log(SLOW_WORKER) / 2).mean()),
        "first_step": int(trace.steps[steps[0]]),
        "last_step": int(trace.steps[steps[-1]]),
        "idle_share": float(idle[replica]),
        "peers_idle_share": float(np.median(np.delete(idle, replica))),
        "last_arriver_share": _last_arriver(trace, stage, replica, steps),
        "saving_alone": _saving(base_s, step_s(trace.order, alone, trace.links)),
    }


def _last_arriver(trace: Trace, stage: int, replica: int, steps: Steps) -> float | None:
    """Share of steps in which the replica was shortest in its stage's longest collective; None without one."""
    import numpy as np

    spent = [group[steps, :, stage] for group in trace.groups.values() if np.isfinite(group[:, :, stage]).all()]
    if not spent:
        return None
    longest = max(spent, key=lambda seconds: float(seconds.mean()))
    return float((np.argmin(longest, axis=1) == replica).mean())


def _saving(base_s: Array, changed_s: Array) -> float:
    return float(1 - changed_s.mean() / base_s.mean())


def _links(trace: Trace, compute_s: Sequence[Array]) -> list[Verdict]:
    """Verdicts on pipeline links that are slower than the same link of other replicas."""
    import numpy as np

    if trace.replicas < 2:
        return []
    base_s = step_s(trace.order, compute_s, trace.links)
    verdicts: list[Verdict] = []
    for (boundary, direction), alone in trace.links.items():
        if not (alone > 0).all():
            continue
        for replica, steps, effect in slow_places(against_peers(alone), np.log(SLOW_LINK)):
            slowdown = float(np.exp(effect))
            fixed = {**trace.links, (boundary, direction): alone.copy()}
            fixed[boundary, direction][steps, replica] /= slowdown
            saving = _saving(base_s, step_s(trace.order, compute_s, fixed))
            if saving < MIN_SAVING:
                continue
            ends = tuple(int(rank) for rank in trace.ranks[replica, boundary : boundary + 2])
            verdicts.append(Verdict("link", ends, boundary, saving, {
                "direction": direction,
                "slowdown": slowdown,
                "message_s": float(np.median(alone[steps, replica])),
                "first_step": int(trace.steps[steps[0]]),
                "last_step": int(trace.steps[steps[-1]]),
            }))  # fmt: skip
    return _joined(verdicts)


def _joined(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Both directions of a link in one verdict, with the larger saving's evidence first."""
    joined: dict[tuple[int, ...], Verdict] = {}
    for verdict in sorted(verdicts, key=lambda v: -v.saving):
        if verdict.ranks in joined:
            first = joined[verdict.ranks]
            evidence = {**first.evidence, "direction": "both", "other_direction": verdict.evidence}
            joined[verdict.ranks] = Verdict("link", first.ranks, first.stage, first.saving + verdict.saving, evidence)
        else:
            joined[verdict.ranks] = verdict
    return list(joined.values())


def _groups(trace: Trace, base_s: Array) -> list[Verdict]:
    """Return verdicts on stages whose collectives are slower than those of the other stages."""
    import numpy as np

    verdicts = []
    for kind, alone in _collectives(trace).items():
        # One that takes less of the step is not worth its name.
        if np.median(alone) < MIN_SAVING * np.median(base_s):
            continue
        for stage, steps, effect in slow_groups(alone):
            saving = float((alone[steps, stage] * (1 - np.exp(-effect))).sum() / base_s.sum())
            verdicts.append(slow_group(tuple(map(int, trace.ranks[:, stage])), stage, saving, kind, alone, effect))
    return verdicts


def _collectives(trace: Trace) -> dict[str, Array]:
    """Return (S, P) seconds of each collective that all stages have, waiting excluded."""
    import numpy as np

    found = {kind: spent.min(axis=1) for kind, spent in trace.groups.items() if np.isfinite(spent).all()}
    return {kind: alone for kind, alone in found.items() if trace.stages > 1 and (alone > 0).all()}


def slow_groups(alone_s: Array) -> list[Slow]:
    """Return the slow ones of groups that do the same: (S, G) seconds that a collective takes each, waiting excluded.

    A rank that is late waits least, so that its time is the collective's own.
    """
    import numpy as np

    series = against_peers(alone_s)
    least, noise = np.log(SLOW_GROUP), noise_of(series)
    # Where half of several groups are apart they do other work, as the first and the last stage with embeddings.
    if 1 < (np.median(series, axis=0) >= least / 2).sum() >= series.shape[1] / 2:
        return []
    # Groups need not move the same bytes to a percent: the slowdown itself must be beyond its error.
    return [one for one in slow_places(series, least) if one.effect >= least + 2 * error_of(noise, len(one.steps))]


def least_group_seen(alone_s: Array) -> float:
    """Return the times its copies from which on any of healthy groups would be slow; `alone_s` as in `slow_groups`."""
    import numpy as np

    series = against_peers(alone_s)
    return max(
        least_seen(series, np.log(SLOW_GROUP)), SLOW_GROUP * float(np.exp(4 * error_of(noise_of(series), len(series))))
    )


def slow_group(
    ranks: tuple[int, ...], stage: int | None, saving: float, collective: str, alone_s: Array, effect: float
) -> Verdict:
    """Return the Verdict on a group that is slower by `effect`; `alone_s` as in `slow_groups`."""
    import numpy as np

    evidence = {
        "collective": collective,
        "slowdown": float(np.exp(effect)),
        "collective_s": float(np.median(alone_s) * np.exp(effect)),
    }
    return Verdict("link", ranks, stage, saving, evidence)


def _structure(trace: Trace, compute_s: Sequence[Array]) -> list[Verdict]:
    """Return verdicts on an uneven partition and on uneven data, the costlier one first."""
    base_s = step_s(trace.order, compute_s, trace.links)
    found = [v for v in (_stage(trace, compute_s, base_s), _data(trace, compute_s, base_s)) if v is not None]
    return sorted(found, key=lambda verdict: -verdict.saving)


def _by_kind(order: Sequence[Operation]) -> dict[str, list[int]]:
    return {kind: [i for i, operation in enumerate(order) if operation[0] == kind] for kind in "FB"}


def _stage(trace: Trace, compute_s: Sequence[Array], base_s: Array) -> Verdict | None:
    """The stage with more work than the others; the saving is that of an even partition of the same work."""
    import numpy as np

    if trace.stages < 2:
        return None
    usual = np.stack([np.median(durations.sum(axis=2), axis=1) for durations in compute_s], axis=1)
    heaviest = int(np.argmax(np.median(usual, axis=0)))
    ratios = usual[:, heaviest] / np.median(np.delete(usual, heaviest, axis=1), axis=1)
    if (ratios >= SLOW_WORKER).mean() < PERSISTENT:
        return None
    even = usual.mean(axis=1) / usual.T
    fixed = [durations * even[stage][:, None, None] for stage, durations in enumerate(compute_s)]
    saving = _saving(base_s, step_s(trace.order, fixed, trace.links))
    if saving < MIN_STRUCTURAL_SAVING:
        return None
    evidence = {
        "stage_ranks": [int(rank) for rank in trace.ranks[:, heaviest] if rank >= 0],
        "stage_over_others": float(np.median(ratios)),
        "stage_compute_s": [float(s) for s in np.median(usual, axis=0)],
        "heaviest_step_share": float((np.argmax(usual, axis=1) == heaviest).mean()),
        **variance_shares(compute_s),
    }
    # Its GPUs do what they are told; none is blamed.
    return Verdict("stage", (), heaviest, saving, evidence)


def _data(trace: Trace, compute_s: Sequence[Array], base_s: Array) -> Verdict | None:
    """Microbatches of unequal work: long forwards have long backwards. The saving is that of equal microbatches."""
    import numpy as np

    correlations: list[float] = []
    within: list[float] = []
    fixed: list[Array] = []
    split = trace.split or (frozenset[int](),) * trace.stages
    logs = _recorded_logs(trace, compute_s)
    for order, durations, log, sums in zip(trace.order, compute_s, logs, split, strict=True):
        kinds = _by_kind(order)
        level = durations.copy()
        for places in filter(None, kinds.values()):
            level[:, :, places] = durations[:, :, places].mean(axis=(1, 2), keepdims=True)
        fixed.append(level)
        backward = {op[1:]: i for i, op in enumerate(order) if op[0] == "B" and i not in sums}
        forward = {op[1:]: i for i, op in enumerate(order) if op[0] == "F" and i not in sums}
        pairs = [(i, backward[which]) for which, i in forward.items() if which in backward]
        if not pairs:
            continue
        forwards, backwards = (log[:, :, [pair[end] for pair in pairs]] for end in (0, 1))
        # Levels of the two are compared, which must be those of the same microbatches.
        ends = forwards + 0 * backwards, backwards + 0 * forwards
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            # What a worker always has is not the data's; what all share in a step is not unevenness.
            residuals = [x - np.nanmedian(x, axis=(1, 2), keepdims=True) for x in ends]
            residuals = [x - np.nanmedian(x, axis=(0, 2), keepdims=True) for x in residuals]
            if (shared := _correlation(*residuals)) is not None:
                correlations.append(shared)
            # A worker that stalls for a whole step makes all its microbatches long; data makes some long, some short.
            residuals = [x - np.nanmean(x, axis=2, keepdims=True) for x in residuals]
            if len(pairs) > 1 and (shared := _correlation(*residuals)) is not None:
                within.append(shared)
    if trace.coarse and not _replicas_vary_together(compute_s):
        return None
    saving = _saving(base_s, step_s(trace.order, fixed, trace.links))
    if within and np.median(within) < SHARED_DATA:
        return None
    if saving < MIN_STRUCTURAL_SAVING:
        return None
    if not correlations and trace.split:
        # Forwards and backwards are known by their sums alone: then the stages must tell the same of a microbatch.
        same, told = _stages_vary_together(trace), {}
    else:
        same = bool(correlations) and float(np.median(correlations)) >= SHARED_DATA
        told = {"forward_backward_correlation": float(np.median(correlations))} if correlations else {}
    if not same:
        return None
    evidence = {**told, **variance_shares(compute_s)}
    return Verdict("data", (), None, saving, evidence)


def _replicas_vary_together(compute_s: Sequence[Array]) -> bool:
    """Whether the stages of a replica are long in the same steps: the same data goes through all of them."""
    import numpy as np

    if len(compute_s) < 2:
        return False
    logs = [log_s(durations.sum(axis=2)) for durations in compute_s]
    logs = [x - np.median(x, axis=1, keepdims=True) for x in logs]
    logs = [(x - np.median(x, axis=0)).ravel() for x in logs]
    if min(x.std() for x in logs) == 0.0:
        return False
    pairs = [float(np.corrcoef(one, other)[0, 1]) for one, other in pairwise(logs)]
    return float(np.median(pairs)) >= SHARED_DATA


def variance_shares(compute_s: Sequence[Array]) -> dict[str, dict[str, float]]:
    """Shares of the variance of log compute time per step: of stages, of workers within them, and of worker x step.

    A slow GPU shows as worker share, partitioning as stage share, sequence lengths as worker x step.
    """
    import numpy as np

    logs = log_s(np.stack([durations.sum(axis=2) for durations in compute_s], axis=2))
    logs -= logs.mean(axis=(1, 2), keepdims=True)
    stage = logs.mean(axis=(0, 1))
    worker = logs.mean(axis=0) - stage
    rest = logs - stage - worker
    total = max(float((logs**2).mean()), 1e-30)
    parts = {"stage": (stage**2).mean(), "worker": (worker**2).mean(), "worker_step": (rest**2).mean()}
    return {"variance_shares": {name: float(part) / total for name, part in parts.items()}}
