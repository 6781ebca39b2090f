"""A stage that only waits, for studies of schedules."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lanterne.kernels.arrays import Stream
from lanterne.kernels.cpu.delay import wait_until
from lanterne.pipeline.execute.stage import Message, Samples, Stage
from lanterne.pipeline.plan.action import KINDS
from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.placement import Placement
from lanterne.pipeline.plan.problem import Problem

# The last part of a wait polls and yields. More would take the core from the ranks that share it, and an action that
# ends late costs nothing while another follows: deadlines are absolute.
SPIN_S = 2e-4


class Jitter(NamedTuple):
    """Of all actions a `share`, drawn anew for each `seed`, takes `factor` times as long."""

    share: float
    factor: float
    seed: int = 0

    def of(self, kind: str, stage: int, microbatch: int) -> float:
        """What the duration of an action is multiplied by."""
        drawn = np.random.default_rng((self.seed, KINDS.index(kind), stage, microbatch)).random()
        return self.factor if drawn < self.share else 1.0


NO_JITTER = Jitter(0.0, 1.0)


@dataclass(slots=True)
class Clock:
    """When the work of a rank that is under way is due to end; its stages share it.

    An action that follows at once begins at the deadline of the one before, so lateness in waking up does not add up.

    Attributes:
        deadline_s: of time.monotonic(); None where the rank has nothing to do: the next work begins when it comes.
        lane_s: likewise, when its communication with its data-parallel copies is due to have ended, which goes on
            beside its work, one after the other.
    """

    deadline_s: float | None = None
    lane_s: float = 0.0

    def work(self, duration_s: float) -> None:
        """Return once work of `duration_s` that follows is due to have ended."""
        self.deadline_s = (time.monotonic() if self.deadline_s is None else self.deadline_s) + duration_s
        wait_until(self.deadline_s, SPIN_S)

    def restart(self) -> None:
        """The rank had nothing to do."""
        self.deadline_s = None

    def gather(self, duration_s: float) -> None:
        """What follows waits for an all-gather, which begins once those before it have ended."""
        self.lane_s += duration_s
        now_s = time.monotonic() if self.deadline_s is None else self.deadline_s
        self.deadline_s = max(now_s, self.lane_s)

    def reduce(self, duration_s: float) -> None:
        """A reduction of what has been computed until now begins, once those before it have ended."""
        self.lane_s = max(self.lane_s, time.monotonic() if self.deadline_s is None else self.deadline_s) + duration_s


class StreamClock:
    """As Clock, on a device: the CPU queues delays, and goes on.

    Args:
        stream: where the stages compute.
        delay: a function (duration_s, stream), such as cuda_delay's.
    """

    def __init__(self, stream: Stream, delay: Callable[[float, Stream], object]) -> None:
        self._stream = stream
        self._delay = delay

    def work(self, duration_s: float) -> None:
        """Hold the stream up for `duration_s`."""
        self._delay(duration_s, self._stream)

    def restart(self) -> None:
        """The stream waits by itself."""


class TimedStage(Stage):
    """F, B and W take the given seconds and compute nothing; messages are of `nbytes` bytes.

    Args:
        durations_s: of F, B and W, three numbers.
        clock: the Clock, or StreamClock, of the rank.
        nbytes: of a message.
        begins, ends: whether a route begins or ends here.
        xp: the array module, numpy or cupy.
        number, jitter: of the stage; and what makes some of its actions longer.
        lengths: by microbatch, how many times as long as `durations_s`; None: all alike.
        data_parallel_s: all-gather before the first F, reduction after the last of `microbatches` W.
    """

    def __init__(
        self,
        durations_s: Iterable[float],
        clock: Clock | StreamClock,
        nbytes: int = 0,
        *,
        begins: bool = False,
        ends: bool = False,
        xp: Any = np,
        number: int = 0,
        jitter: Jitter = NO_JITTER,
        lengths: Sequence[float] | None = None,
        data_parallel_s: tuple[float, float] = (0.0, 0.0),
        microbatches: int = 0,
    ) -> None:
        self.number = number
        self.jitter = jitter
        self.lengths = lengths
        self.data_parallel_s = data_parallel_s
        self.microbatches = microbatches
        # How many F and W are still to come.
        self._left = {"F": 0, "W": 0}
        self.durations_s: tuple[float, ...] = tuple(durations_s)
        self.clock = clock
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)
        self.xp = xp
        self.input_shape: tuple[int, ...] | None = None if begins else (nbytes,)
        self.output_shape: tuple[int, ...] | None = None if ends else (nbytes,)

    def begin(self, microbatches: int, inputs: Samples = None, targets: Samples = None) -> None:
        self.clock.restart()
        self._left = dict.fromkeys(self._left, self.microbatches)
        if isinstance(self.clock, Clock):
            self.clock.lane_s = time.monotonic()

    def forward(
        self, microbatch: int, x: Message = None, out: Message = None, part: int = 1, parts: int = 1
    ) -> Message:
        self._work("F", microbatch, part, parts)
        return self._message(self.output_shape, out, part == parts)

    def backward_input(
        self, microbatch: int, dy: Message = None, out: Message = None, part: int = 1, parts: int = 1
    ) -> Message:
        self._work("B", microbatch, part, parts)
        return self._message(self.input_shape, out, part == parts)

    def backward_weight(self, microbatch: int, part: int = 1, parts: int = 1) -> None:
        self._work("W", microbatch, part, parts)

    def step(self) -> None:
        """Nothing to update."""

    def waited(self) -> None:
        self.clock.restart()

    def _work(self, kind: str, microbatch: int, part: int, parts: int) -> None:
        gather_s, reduce_s = self.data_parallel_s
        if gather_s and kind == "F" and self._left["F"] == self.microbatches and isinstance(self.clock, Clock):
            self.clock.gather(gather_s)
        factor = self.jitter.of(kind, self.number, microbatch) if self.jitter.share else 1.0
        if self.lengths is not None:
            factor *= self.lengths[microbatch]
        self.clock.work(self.durations_s["FBW".index(kind)] * factor / parts)
        if kind in self._left and part == parts:
            self._left[kind] -= 1
            if reduce_s and kind == "W" and not self._left["W"] and isinstance(self.clock, Clock):
                self.clock.reduce(reduce_s)

    def _message(self, shape: tuple[int, ...] | None, out: Message, is_last: bool) -> Message:
        if shape is None or not is_last:
            return None
        return self.xp.zeros(shape, self.dtype) if out is None else out


def timed_stages(
    problem: Problem,
    placement: Placement,
    rank: int,
    unit_s: float,
    clock: Clock | StreamClock | None = None,
    xp: Any = np,
    jitter: Jitter = NO_JITTER,
) -> dict[int, TimedStage]:
    """The stages that `rank` holds, stage -> TimedStage on one clock, with the problem's durations times `unit_s`.

    Messages have the problem's number of bytes, the larger of its two, rounded down.

    Args:
        clock, xp, jitter: as TimedStage has them; None for a new Clock.
    """
    table, clock = costs(dataclasses.replace(problem, microbatch_lengths=None), placement), clock or Clock()
    stages = {}
    for stage in placement.stages_of(rank):
        durations_s = [unit_s * float(table.duration[table.id(KINDS.index(kind), stage, 0)]) for kind in "FBW"]
        own: dict[str, Any] = {
            "begins": placement.step(stage, -1) is None,
            "ends": placement.step(stage, 1) is None,
            "data_parallel_s": (unit_s * float(table.all_gather[stage]), unit_s * float(table.reduce[stage])),
            "microbatches": len(placement.microbatches_of(stage, problem.microbatches)),
        }
        nbytes = int(max(problem.message_nbytes))
        stages[stage] = TimedStage(
            durations_s, clock, nbytes, **own, xp=xp, number=stage, jitter=jitter, lengths=problem.microbatch_lengths
        )
    return stages
