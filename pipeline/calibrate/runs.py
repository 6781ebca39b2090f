"""Recorded runs of pipelines: what was computed, sent and held back, and how long iterations took; times in ms."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lanterne.errors import InputError, one_of
from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.fields import as_count, as_number, as_numbers, as_positive, check_keys, is_list
from lanterne.pipeline.plan.placement import unidirectional
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.adaptra import adaptra
from lanterne.pipeline.schedules.one_f_one_b import one_f_one_b
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check
from lanterne.pipeline.simulate.devices import COMPUTE, RECEIVE, SEND, Issued

FORMAT = "lanterne-h800-1"
# Policies: 1F1B in blocking groups; zero bubble over NCCL; the same plan over delegates; a plan for the slow links.
POLICIES = ("1f1b", "zb", "zb_delegates", "adaptra")
PROFILE = ("forward", "backward_input", "backward_weight")
# The healthy iteration is the least of so many.
LEAST_OF = 4
OPTIONAL = ("delegates", "ranks_per_host", "tensor_parallel", "order", "issue", "slow_ms")
REQUIRED = ("stages", "microbatches", "policy", "profile_ms", "message_bytes", "delayed_sends", "healthy_ms")


@dataclass(frozen=True, eq=False)
class RecordedRun:
    """One run, or the case of one that is to be predicted.

    Attributes:
        name: its id, or "case".
        model, gpu, policy: as recorded; the policy is one of POLICIES.
        quiet: the Problem without slow links, its durations those of the profile.
        slow: the same with what holds each message back as link_latency.
        message_nbytes: of one message. ranks_per_host: ranks that share a host. tensor_parallel: ranks that compute a
            stage together. delegates: see Devices; 0 over NCCL.
        plan: the CheckedPlan that ran under the slow links, and quiet_plan what ran before.
        issue: what the hosts issued, where that is known.
        healthy_ms: an iteration before links got slow, the least of four; None if it is not known.
        usual_ms: the median of those; healthy_ms where that is not known.
        slow_ms: an iteration after; None if it is to be predicted.
        is_doubtful: whether to weigh it less.
    """

    name: str
    model: str
    gpu: str
    policy: str
    quiet: Problem
    slow: Problem
    message_nbytes: float
    ranks_per_host: int
    tensor_parallel: int
    delegates: int
    plan: CheckedPlan
    quiet_plan: CheckedPlan
    issue: tuple[tuple[Issued, ...], ...] | None
    healthy_ms: float | None
    usual_ms: float | None
    slow_ms: float | None
    is_doubtful: bool

    @property
    def baseline_ms(self) -> float | None:
        """What an iteration took that the slow ones are to be compared with: the least, or, over delegates, the median.

        Where sends block, waiting hides what disturbs an iteration; with delegates slow iterations are disturbed too.
        """
        return self.usual_ms if self.delegates else self.healthy_ms

    @property
    def delays_ms(self) -> list[float]:
        """What holds back the messages that something holds back."""
        ranks = range(self.slow.stages)
        return [delay for src in ranks for dst in ranks if src != dst and (delay := self.slow.latency(src, dst))]


def read_runs(document: Any) -> list[RecordedRun]:
    """The runs of a file: an object with a list of `runs`.

    Raises:
        InputError: as read_run; the message begins with the place.
    """
    check_keys("runs file", document, ("runs", "format"), ("runs",))
    if not is_list(document["runs"]) or not document["runs"]:
        raise InputError("runs: got none, expected a list of at least one run")
    return [read_run(each, f"runs[{i}]") for i, each in enumerate(document["runs"])]


def read_run(document: Any, where: str = "case") -> RecordedRun:
    """The RecordedRun that an object describes; keys that are not known are notes.

    Raises:
        InputError: a value is missing or cannot be; the message begins with `where` and the key.
    """
    check_keys(where, document, (*REQUIRED, *OPTIONAL), REQUIRED)
    try:
        return _read(document)
    except InputError as error:
        raise type(error)(f"{where}: {error}") from None


def _read(document: dict[str, Any]) -> RecordedRun:
    policy = document["policy"]
    if policy not in POLICIES:
        raise InputError(f"policy: {one_of(policy, POLICIES)}")
    stages, microbatches = (as_count(key, document[key]) for key in ("stages", "microbatches"))
    profile = document["profile_ms"]
    check_keys("profile_ms", profile, PROFILE, PROFILE)
    forward, backward_input = (
        as_numbers(f"profile_ms.{key}", profile[key], stages, as_positive) for key in PROFILE[:2]
    )
    weight = as_numbers("profile_ms.backward_weight", profile["backward_weight"], stages, as_number)
    quiet = Problem(stages, microbatches, forward, backward_input, weight)
    latency = _latency(document["delayed_sends"], stages)
    slow = Problem(stages, microbatches, forward, backward_input, weight, link_latency=latency)
    plan, quiet_plan = _plans(document, policy, quiet, slow)
    issue = document.get("issue")
    delegates = document.get("delegates", 0)
    healthy_ms = _iteration("healthy_ms", document["healthy_ms"], _least_of_four)
    return RecordedRun(
        str(document.get("id", "case")),
        str(document.get("model", "")),
        str(document.get("gpu", "")),
        policy,
        quiet,
        slow,
        as_number("message_bytes", document["message_bytes"]),
        as_count("ranks_per_host", document.get("ranks_per_host", 1)),
        as_count("tensor_parallel", document.get("tensor_parallel", 1)),
        0 if delegates == 0 else as_count("delegates", delegates),
        plan,
        quiet_plan,
        None if issue is None else tuple(_issued(issue, plan.plan)),
        healthy_ms,
        _usual(document["healthy_ms"], healthy_ms),
        _iteration("slow_ms", document.get("slow_ms"), _median),
        bool(document.get("doubtful")),
    )


def _latency(delayed: Any, stages: int) -> list[list[float]]:
    if not is_list(delayed):
        raise InputError(f"delayed_sends: got {delayed!r}, expected a list of objects with src, dst and ms")
    latency = [[0.0] * stages for _ in range(stages)]
    for i, each in enumerate(delayed):
        where = f"delayed_sends[{i}]"
        check_keys(where, each, ("src", "dst", "ms"), ("src", "dst", "ms"))
        src, dst = each["src"], each["dst"]
        known = all(type(stage) is int and 0 <= stage < stages for stage in (src, dst))
        if not known or abs(src - dst) != 1:
            raise InputError(f"{where}: got src {src!r}, dst {dst!r}, expected neighbours of {stages} stages")
        latency[src][dst] += as_number(f"{where}.ms", each["ms"])
    return latency


def _iteration(key: str, value: Any, of_object: Callable[[str, dict[str, Any]], float]) -> float | None:
    """A time that is given as a number, as an object that `of_object` understands, or not."""
    if isinstance(value, dict):
        return of_object(key, value)
    return None if value is None else as_number(key, value, positive=True)


def _usual(value: Any, otherwise: float | None) -> float | None:
    return _median("healthy_ms", value) if isinstance(value, dict) and "median" in value else otherwise


def _median(key: str, value: dict[str, Any]) -> float:
    check_keys(key, value, ("median",), ("median",))
    return as_number(f"{key}.median", value["median"], positive=True)


def _least_of_four(key: str, value: dict[str, Any]) -> float:
    """What the least of four iterations would be, of an object with `min` and, if it is of more, `q1` and their number
    `n`: the least of many is one that nothing disturbed, beside a median of slow ones too short.
    """
    check_keys(key, value, ("min", "q1", "n"), ("min",))
    least = as_number(f"{key}.min", value["min"], positive=True)
    count = as_count(f"{key}.n", value.get("n", LEAST_OF))
    if count <= LEAST_OF or "q1" not in value:
        return least
    lower, at, wanted = as_number(f"{key}.q1", value["q1"], positive=True), 1 / (count + 1), 1 / (LEAST_OF + 1)
    return least + (lower - least) * (wanted - at) / (0.25 - at)


def _plans(document: dict[str, Any], policy: str, quiet: Problem, slow: Problem) -> tuple[CheckedPlan, CheckedPlan]:
    """(what ran under slow links, what ran before); planned where the run does not say."""
    if policy == "1f1b":
        only = check(one_f_one_b(slow), slow, memory=False)
        return only, only
    order = document.get("order")
    given = None if order is None else check(_plan(order, slow), slow, memory=False)
    if policy == "adaptra":
        # Before the links got slow it ran the plan for links that are not.
        return given or check(adaptra(slow), slow, memory=False), check(adaptra(quiet), quiet, memory=False)
    only = given or check(adaptra(quiet), quiet, memory=False)
    return only, only


def _plan(order: Any, problem: Problem) -> Plan:
    if not is_list(order) or len(order) != problem.stages:
        raise InputError(f"order: got {len(order) if is_list(order) else order!r}, expected {problem.stages} texts")
    ranks = []
    for stage, letters in enumerate(order):
        if not isinstance(letters, str) or set(letters) - set("FBW"):
            raise InputError(f"order[{stage}]: got {letters!r:.40}, expected a text of F, B and W")
        counts = dict.fromkeys("FBW", -1)
        actions = []
        for letter in letters:
            counts[letter] += 1
            actions.append(Action(letter, stage, counts[letter]))
        ranks.append(actions)
    return Plan.from_actions(ranks, unidirectional(problem.stages), problem.microbatches, "recorded")


def _issued(issue: Any, plan: Plan) -> Iterable[tuple[Issued, ...]]:
    """Per rank what the texts such as "F0 >F0 <B0 B0" say."""
    if not is_list(issue) or len(issue) != len(plan.ranks):
        raise InputError(f"issue: got {len(issue) if is_list(issue) else issue!r}, expected {len(plan.ranks)} texts")
    for rank, (text, actions) in enumerate(zip(issue, plan.ranks, strict=True)):
        first = int(plan.offsets[rank])
        columns = {f"{action.kind}{action.microbatch}": first + i for i, action in enumerate(actions)}
        order = []
        for word in str(text).split():
            mark = word[0] if word[0] in (SEND, RECEIVE) else COMPUTE
            column = columns.get(word.removeprefix(mark))
            if column is None:
                raise InputError(f"issue[{rank}]: got {word!r:.40}, expected an action of the order, or > or < and one")
            order.append(Issued(mark, column))
        yield tuple(order)


def spread(values: Iterable[float]) -> tuple[float, float]:
    """(least, most) of `values`; (0, 0) of none."""
    found = [value for value in values if math.isfinite(value)]
    return (min(found), max(found)) if found else (0.0, 0.0)
