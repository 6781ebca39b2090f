"""What is to be planned: stages, microbatches, and what each piece of work costs in time and memory.

A problem describes one rank per stage. A placement that gives a rank several stages (loop, wave) cuts the rank's work,
memory and data-parallel time into as many equal stages; messages keep their size. All times are in one unit of the
user's choice.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from lanterne.errors import InputError
from lanterne.pipeline.plan import fields
from lanterne.pipeline.plan.fields import MOST, Pairs, PerPair, as_count, as_number, as_numbers, as_per_pair, check_keys
from lanterne.pipeline.plan.resources import (
    DataParallel,
    Recompute,
    StageMemory,
    read_data_parallel,
    read_memory,
    read_recompute,
)

TIMES = ("forward", "backward_input", "backward_weight")

Value = TypeVar("Value")
# One value for all, or one for each.
Given: TypeAlias = Value | Sequence[Value]
GivenPerPair: TypeAlias = Given[Value] | Sequence[Sequence[Value]]


@dataclass(frozen=True)
class Problem:
    """A pipeline to plan; equal problems compare and hash equal.

    Wherever a value per stage is wanted, one number stands for all. Given values are checked and turned into tuples of
    floats.

    Attributes:
        stages: ranks of the pipeline, one stage each.
        microbatches: at least 1; fewer than stages too.
        forward, backward_input, backward_weight: (stages,) durations of F, B and W; only W's may be 0. A BW takes B +
            W.
        link_latency: (stages - 1,) for the link between ranks i and i + 1, both ways, where any other pair takes the
            largest; or (stages, stages) by [source][destination].
        link_bandwidth: bytes per unit of time, shaped likewise, None for unlimited, any other pair taking the smallest.
            A message occupies its link for nbytes / bandwidth, and arrives link_latency after that.
        message_nbytes: bytes of an activation and of its gradient: one number, or two, or {"forward",
            "backward_input"}.
        shared_links: groups of [source, destination] pairs whose messages queue on one physical link. Any other pair
            has a link of its own.
        max_inflight_activations: the memory limit in activations, one or (stages,); F adds 1, W takes it away. None: no
            limit.
        memory: instead of that, {"forward", "backward_input", "backward_weight", "capacity"}; see StageMemory.
        data_parallel: {"kind": "all_reduce", "time"} or {"kind": "zero1", "reduce_scatter", "all_gather"}; see
            DataParallel.
        recompute: True, or {"time": its duration if not F's, "keeps": 0 to 1}; see Recompute.
        microbatch_lengths: (microbatches,) how many times as long as that F, B and W of each take, above 0, such as of
            sequences of unequal lengths; messages and memory stay. None: all alike.

    Raises:
        InputError: a value cannot be; the message begins with its key.
    """

    stages: int
    microbatches: int
    forward: tuple[float, ...]
    backward_input: tuple[float, ...]
    backward_weight: tuple[float, ...]
    link_latency: PerPair[float]
    link_bandwidth: PerPair[float | None] | None
    message_nbytes: tuple[float, ...]
    shared_links: Pairs
    max_inflight_activations: tuple[float | None, ...] | None
    memory: StageMemory | None
    data_parallel: DataParallel | None
    recompute: Recompute | None
    microbatch_lengths: tuple[float, ...] | None

    def __init__(
        self,
        stages: int,
        microbatches: int,
        forward: Given[float],
        backward_input: Given[float],
        backward_weight: Given[float],
        link_latency: GivenPerPair[float] = 0.0,
        link_bandwidth: GivenPerPair[float | None] = None,
        message_nbytes: Given[float] | dict[str, float] = 0.0,
        shared_links: Sequence[Sequence[Sequence[int]]] = (),
        max_inflight_activations: Given[float | None] = None,
        memory: StageMemory | dict[str, Any] | None = None,
        data_parallel: DataParallel | dict[str, Any] | None = None,
        recompute: Recompute | dict[str, Any] | bool | None = None,
        microbatch_lengths: Sequence[float] | None = None,
    ) -> None:
        def put(key: str, value: object) -> None:
            object.__setattr__(self, key, value)

        put("stages", as_count("stages", stages))
        put("microbatches", as_count("microbatches", microbatches))
        if self.stages * self.microbatches > MOST:
            raise InputError(
                f"microbatches: got {self.microbatches} on {self.stages} stages, expected at most {MOST} in all"
            )
        put("forward", as_numbers("forward", forward, self.stages, fields.as_positive))
        put("backward_input", as_numbers("backward_input", backward_input, self.stages, fields.as_positive))
        put("backward_weight", as_numbers("backward_weight", backward_weight, self.stages, as_number))
        put("link_latency", as_per_pair("link_latency", link_latency, self.stages, as_number, 0.0))
        if link_bandwidth is not None:
            link_bandwidth = as_per_pair(
                "link_bandwidth", link_bandwidth, self.stages, fields.or_none(fields.as_positive), 0.0
            )
        put("link_bandwidth", link_bandwidth)
        put("message_nbytes", _message_nbytes(message_nbytes))
        if link_bandwidth is not None and not any(self.message_nbytes):
            raise InputError("message_nbytes: got none beside a link_bandwidth, expected the bytes of a message")
        put("shared_links", fields.as_pairs("shared_links", shared_links, self.stages))
        if max_inflight_activations is not None:
            if memory is not None:
                raise InputError("memory: got a max_inflight_activations too, expected one of them")
            key = "max_inflight_activations"
            max_inflight_activations = as_numbers(key, max_inflight_activations, self.stages, fields.or_none(as_number))
        put("max_inflight_activations", max_inflight_activations)
        put("memory", read_memory(memory, self.stages))
        put("data_parallel", read_data_parallel(data_parallel, self.stages))
        put("recompute", read_recompute(recompute, self.stages, self.forward))
        if microbatch_lengths is not None:
            lengths = as_numbers("microbatch_lengths", microbatch_lengths, self.microbatches, fields.as_positive)
            microbatch_lengths = lengths if len(set(lengths)) > 1 or lengths[0] != 1 else None
        put("microbatch_lengths", microbatch_lengths)
        _check_capacity(self)

    @cached_property
    def limits(self) -> StageMemory:
        """The StageMemory of this problem, whichever way it was given, recomputation included."""
        memory = self.memory
        if memory is None:
            ones = (1.0,) * self.stages
            given = self.max_inflight_activations or (None,) * self.stages
            capacity = tuple(math.inf if value is None else value for value in given)
            memory = StageMemory(ones, (0.0,) * self.stages, (-1.0,) * self.stages, capacity)
        if self.recompute is None:
            return memory
        kept = tuple(value * self.recompute.keeps for value in memory.forward)
        made_again = zip(memory.forward, kept, memory.backward_input, strict=True)
        return memory._replace(
            forward=kept, backward_input=tuple(full - part + given for full, part, given in made_again)
        )

    @cached_property
    def durations(self) -> dict[str, tuple[float, ...]]:
        """Kind -> (stages,) durations, recomputation included."""
        extra = self.recompute.time if self.recompute else (0.0,) * self.stages
        backward = tuple(a + b for a, b in zip(self.backward_input, extra, strict=True))
        fused = tuple(a + b for a, b in zip(backward, self.backward_weight, strict=True))
        return {"F": self.forward, "B": backward, "W": self.backward_weight, "BW": fused}

    def latency(self, src: int, dst: int) -> float:
        """Time from a message's last byte on the link to its arrival; 0 on one rank."""
        return _of_pair(self.link_latency, src, dst, max, 0.0)

    def occupancy(self, src: int, dst: int, nbytes: float) -> float:
        """Time for which a message of `nbytes` keeps the link busy."""
        bandwidth = None if self.link_bandwidth is None else _of_pair(self.link_bandwidth, src, dst, _least, None)
        return 0.0 if bandwidth is None else nbytes / bandwidth

    def needed_memory(self, rank: int, stages_per_rank: int = 1) -> float:
        """The least capacity with which any schedule can exist on `rank`.

        Before the B of a microbatch on its last stage here can start, its F have ended on all stages of this rank.
        """
        limits = self.limits
        return limits.forward[rank] + max(limits.backward_input[rank], 0.0) / stages_per_rank

    @classmethod
    def from_dict(cls, document: Any) -> "Problem":
        """The problem that a JSON object describes; its keys are the attributes above, notes beside them are allowed.

        Raises:
            InputError: no object, a key is missing or misspelt, or a value cannot be.
        """
        known = tuple(cls.__dataclass_fields__)
        required = ("stages", "microbatches", *TIMES)
        check_keys("problem", document, known, required)
        return cls(**{key: document[key] for key in known if key in document})

    def to_dict(self) -> dict[str, Any]:
        """A JSON object that `from_dict` turns into an equal problem."""
        document: dict[str, Any] = {"stages": self.stages, "microbatches": self.microbatches}
        document |= {key: list(getattr(self, key)) for key in TIMES}
        document["link_latency"] = _lists(self.link_latency)
        document["max_inflight_activations"] = _lists(self.max_inflight_activations)
        if self.link_bandwidth is not None:
            document["link_bandwidth"] = _lists(self.link_bandwidth)
        if any(self.message_nbytes):
            document["message_nbytes"] = list(self.message_nbytes)
        if self.shared_links:
            document["shared_links"] = _lists(self.shared_links)
        if self.memory is not None:
            del document["max_inflight_activations"]
            document["memory"] = self.memory.to_dict()
        if self.data_parallel is not None:
            document["data_parallel"] = self.data_parallel.to_dict()
        if self.recompute is not None:
            document["recompute"] = {"time": list(self.recompute.time), "keeps": self.recompute.keeps}
        if self.microbatch_lengths is not None:
            document["microbatch_lengths"] = list(self.microbatch_lengths)
        return document


def _lists(value: object) -> object:
    return [_lists(item) for item in value] if isinstance(value, tuple) else value


def _least(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _of_pair(table: PerPair[Any], src: int, dst: int, pick: Callable[[Iterable[Any]], Any], here: float | None) -> Any:
    if src == dst:
        return here
    if table and isinstance(table[0], tuple):
        return table[src][dst]
    return table[min(src, dst)] if abs(src - dst) == 1 else pick(table)


def _message_nbytes(given: Given[float] | dict[str, float]) -> tuple[float, ...]:
    key = "message_nbytes"
    if isinstance(given, dict):
        check_keys(key, given, ("forward", "backward_input"), ("forward", "backward_input"))
        given = given["forward"], given["backward_input"]
    return as_numbers(key, given, 2, as_number)


def _check_capacity(problem: Problem) -> None:
    key = "max_inflight_activations" if problem.memory is None else "memory.capacity"
    for rank, capacity in enumerate(problem.limits.capacity):
        needed = problem.needed_memory(rank)
        if capacity < needed * (1 - 1e-9):
            raise InputError(
                f"{key}: got {capacity:g} on stage {rank}, expected at least {needed:g}, which any schedule needs"
            )
