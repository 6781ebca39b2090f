"""What a problem may say of memory, data-parallel communication and recomputation, and how a problem file says it."""

import math
from typing import NamedTuple

from lanterne.errors import InputError
from lanterne.pipeline.plan.fields import as_number, as_numbers, check_keys


class StageMemory(NamedTuple):
    """Change of a rank's memory by each action, and its limit: four (stages,) tuples; capacity inf where there is none.

    What an action adds is there from its start, what it takes away until its end. F + B + W is zero.
    """

    forward: tuple
    backward_input: tuple
    backward_weight: tuple
    capacity: tuple

    def to_dict(self):
        """As a problem file has it."""
        capacity = [None if math.isinf(value) else value for value in self.capacity]
        return {key: list(value) for key, value in self._asdict().items()} | {"capacity": capacity}


class DataParallel(NamedTuple):
    """Communication with the rank's copies in other pipelines: one at a time on a rank, overlapped with all else.

    kind "all_reduce": `reduce` after a stage's last W. kind "zero1": `reduce` is a reduce-scatter there, and an
    `all_gather` precedes the stage's first F. Times are (stages,) tuples. Paper: CrossPipe section 4.1.
    """

    kind: str
    reduce: tuple
    all_gather: tuple

    def to_dict(self):
        """As a problem file has it."""
        if self.kind == "all_reduce":
            return {"kind": self.kind, "time": list(self.reduce)}
        return {"kind": self.kind, "reduce_scatter": list(self.reduce), "all_gather": list(self.all_gather)}


class Recompute(NamedTuple):
    """Of an activation only the part `keeps` (0 to 1) outlives F; B makes it again and takes `time` longer.

    `time` is a (stages,) tuple.
    """

    time: tuple
    keeps: float


def read_memory(given, stages):
    """The StageMemory of a problem file's `memory`, of a StageMemory, or None."""
    if given is None:
        return None
    given = given.to_dict() if isinstance(given, StageMemory) else given
    check_keys("memory", given, StageMemory._fields, StageMemory._fields[:3])
    deltas = [as_numbers(f"memory.{key}", given[key], stages, signed=True) for key in StageMemory._fields[:3]]
    capacity = as_numbers("memory.capacity", given.get("capacity"), stages, or_none=True)
    memory = StageMemory(*deltas, tuple(math.inf if value is None else value for value in capacity))
    for stage, (forward, backward_input, backward_weight) in enumerate(zip(*deltas, strict=True)):
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


def read_data_parallel(given, stages):
    """The DataParallel of a problem file's `data_parallel`, of a DataParallel, or None."""
    if given is None:
        return None
    if isinstance(given, DataParallel):
        given = given.to_dict()
    check_keys("data_parallel", given, ("kind", "time", "reduce_scatter", "all_gather"), ("kind",))
    wanted = {"all_reduce": ("time",), "zero1": ("reduce_scatter", "all_gather")}.get(str(given["kind"]))
    if wanted is None:
        raise InputError(f"data_parallel.kind: got {given['kind']!r}, expected all_reduce or zero1")
    check_keys("data_parallel", given, ("kind", *wanted), wanted)
    times = [as_numbers(f"data_parallel.{key}", given[key], stages) for key in wanted]
    return DataParallel(given["kind"], times[0], times[1] if len(times) == 2 else (0.0,) * stages)


def read_recompute(given, stages, forward):
    """The Recompute of a problem file's `recompute`, of a Recompute, or None; its time is `forward` by default."""
    if not given:
        return None
    given = {} if given is True else given._asdict() if isinstance(given, Recompute) else given
    check_keys("recompute", given, ("time", "keeps"), ())
    keeps = as_number("recompute.keeps", given.get("keeps", 0.0))
    if keeps > 1:
        raise InputError(f"recompute.keeps: got {keeps:g}, expected 0 to 1")
    return Recompute(as_numbers("recompute.time", given.get("time", forward), stages), keeps)
