"""What a problem may say of memory, data-parallel communication and recomputation, and how a problem file says it."""

import math
from typing import Any, NamedTuple

from lanterne.errors import InputError
from lanterne.pipeline.plan.fields import as_number, as_numbers, as_signed, check_keys, or_none


class StageMemory(NamedTuple):
    """Change of a rank's memory by each action, and its limit: four (stages,) tuples; capacity inf where there is none.

    What an action adds is there from its start, what it takes away until its end. F + B + W is zero.
    """

    forward: tuple[float, ...]
    backward_input: tuple[float, ...]
    backward_weight: tuple[float, ...]
    capacity: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """As a problem file has it."""
        capacity = [None if math.isinf(value) else value for value in self.capacity]
        return {key: list(value) for key, value in self._asdict().items()} | {"capacity": capacity}


class DataParallel(NamedTuple):
    """Communication with the rank's copies in other pipelines: one at a time on a rank, overlapped with all else.

    kind "all_reduce": `reduce` after a stage's last W. kind "zero1": `reduce` is a reduce-scatter there, and an
    `all_gather` precedes the stage's first F. Times are (stages,) tuples. Paper: CrossPipe section 4.1.
    """

    kind: str
    reduce: tuple[float, ...]
    all_gather: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """As a problem file has it."""
        if self.kind == "all_reduce":
            return {"kind": self.kind, "time": list(self.reduce)}
        return {"kind": self.kind, "reduce_scatter": list(self.reduce), "all_gather": list(self.all_gather)}


class Recompute(NamedTuple):
    """Of an activation only the part `keeps` (0 to 1) outlives F; B makes it again and takes `time` longer.

    `time` is (stages,).
    """

    time: tuple[float, ...]
    keeps: float


def read_memory(given: StageMemory | dict[str, Any] | None, stages: int) -> StageMemory | None:
    """The StageMemory of a problem file's `memory`, of a StageMemory, or None."""
    if given is None:
        return None
    given = given.to_dict() if isinstance(given, StageMemory) else given
    check_keys("memory", given, StageMemory._fields, StageMemory._fields[:3])
    deltas = (as_numbers(f"memory.{key}", given[key], stages, as_signed) for key in StageMemory._fields[:3])
    forwards, backwards, weights = deltas
    capacity = as_numbers("memory.capacity", given.get("capacity"), stages, or_none(as_number))
    memory = StageMemory(
        forwards, backwards, weights, tuple(math.inf if value is None else value for value in capacity)
    )
    for stage, (forward, backward_input, backward_weight) in enumerate(zip(*memory[:3], strict=True)):
        total = forward + backward_input + backward_weight
        if forward < 0 or backward_weight > 0:
            raise InputError(
                f"memory: got F {forward:+g} and W {backward_weight:+g} on stage {stage}, "
                "expected F to add and W to free"
            )
        if abs(total) > 1e-9 * max(forward, abs(backward_input), 1.0):
            raise InputError(
                f"memory: got F + B + W = {total:g} on stage {stage}, expected 0: an iteration leaves nothing behind"
            )
    return memory


def read_data_parallel(given: DataParallel | dict[str, Any] | None, stages: int) -> DataParallel | None:
    """The DataParallel of a problem file's `data_parallel`, of a DataParallel, or None."""
    if given is None:
        return None
    given = given.to_dict() if isinstance(given, DataParallel) else given
    check_keys("data_parallel", given, ("kind", "time", "reduce_scatter", "all_gather"), ("kind",))
    wanted = {"all_reduce": ("time",), "zero1": ("reduce_scatter", "all_gather")}.get(str(given["kind"]))
    if wanted is None:
        raise InputError(f"data_parallel.kind: got {given['kind']!r}, expected all_reduce or zero1")
    check_keys("data_parallel", given, ("kind", *wanted), wanted)
    times = [as_numbers(f"data_parallel.{key}", given[key], stages, as_number) for key in wanted]
    return DataParallel(given["kind"], times[0], times[1] if len(times) == 2 else (0.0,) * stages)


def read_recompute(
    given: Recompute | dict[str, Any] | bool | None, stages: int, forward: tuple[float, ...]
) -> Recompute | None:
    """The Recompute of a problem file's `recompute`, of a Recompute, or None; its time is `forward` by default."""
    if not given:
        return None
    given = {} if isinstance(given, bool) else given._asdict() if isinstance(given, Recompute) else given
    check_keys("recompute", given, ("time", "keeps"), ())
    keeps = as_number("recompute.keeps", given.get("keeps", 0.0))
    if keeps > 1:
        raise InputError(f"recompute.keeps: got {keeps:g}, expected 0 to 1")
    return Recompute(as_numbers("recompute.time", given.get("time", forward), stages, as_number), keeps)
