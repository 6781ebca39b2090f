"""What a rank sees of a ClosedLoop's iterations: the times of each, of its actions and messages, and of probes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from math import exp
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

from lanterne.failslow.evidence.series import SHIFT
from lanterne.failslow.mitigate.reports import make_row
from lanterne.failslow.validate.links import Link
from lanterne.failslow.validate.probe_message import LinkProbes
from lanterne.pipeline.adapt.agreement import Agreement
from lanterne.pipeline.adapt.profile import Profiler
from lanterne.pipeline.execute.execute import After, Measured, execute
from lanterne.pipeline.execute.stage import Stage
from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.planes.observed import ObservedPlane
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.train.trainer import Executor, Trainer

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator

LATEST = 16  # iterations of which the median is what one usually takes

Wrap: TypeAlias = Callable[[Mapping[int, Stage]], Mapping[int, Stage]]


class Observation:
    """A rank's side: a row of each iteration (reports.py) goes to rank 0, for which nobody waits.

    Args:
        agreement: takes the rows.
        probes: send probes beside the work, of the links that are asked for.
        world_size: of the agreement.
        wrap: a function of {stage: Stage} that gives those to run.

    Attributes: `length`, entries of the longest profile of any rank; who changes the plans sets it. `run`, what runs
    the trainer's iterations, such as an Adapter's `execute`.
    """

    def __init__(self, agreement: Agreement, probes: LinkProbes, world_size: int, wrap: Wrap | None) -> None:
        self.length: int = 0
        self._agreement = agreement
        self._probes = probes
        self._world_size = world_size
        self._wrap = wrap or (lambda stages: stages)
        self._recent_s: deque[float] = deque(maxlen=LATEST)
        self._began_s = 0.0
        self._trainer: Trainer | None = None
        self.run: Executor = execute

    def adopt(self, trainer: Trainer) -> None:
        """The trainer, whose plane is an ObservedPlane, is another, or has other stages or planes."""
        assert isinstance(trainer.plane, ObservedPlane)
        if trainer is not self._trainer:
            self._trainer, self.run = trainer, trainer.use(self.execute)
        self._stages = self._wrap(trainer.running)
        self._profiler = Profiler(trainer.plane)

    def begin(self, link: Link | None, *, trains: bool) -> None:
        """An iteration begins, in which `link` is probed; `trains`: this rank takes part in it."""
        self._probes.begin(link)
        if trains:
            self._profiler.begin()
            self._began_s = time.monotonic()

    def execute(
        self,
        checked: CheckedPlan,
        _stages: Mapping[int, Stage],
        comm: Communicator,
        *args: Any,
        after: After | None = None,
        **options: Any,
    ) -> Measured:
        """As what the trainer was run by before: the wrapped stages, watched."""

        def ended(action: Action) -> None:
            self._profiler.after(action)
            self._probes.look()
            if after is not None:
                after(action)

        return self.run(checked, self._stages, comm, *args, after=ended, **options)

    def end(self, trainer: Trainer, measured: Measured, gradients_s: tuple[float, float]) -> bool:
        """Hand over what this rank saw of the iteration that has ended: True if it took unusually long."""
        seconds = time.monotonic() - self._began_s
        self._probes.finish()
        profile = self._profiler.report(trainer.plans[trainer.copy], measured, trainer.iterations)
        self._report(
            make_row(self.length, seconds=seconds, gradients_s=gradients_s, probed=self._probes.take(), profile=profile)
        )
        is_unusual = bool(self._recent_s) and seconds > exp(SHIFT) * median(self._recent_s)
        self._recent_s.append(seconds)
        return is_unusual

    def end_outside(self, tested: float) -> None:
        """Hand over what a rank that is out of training knows: the factor of its test."""
        self._probes.finish()
        self._report(make_row(self.length, tested=tested, probed=self._probes.take()))

    def forget(self) -> None:
        """What is usual is another from now on."""
        self._recent_s.clear()

    def _report(self, row: NDArray[Any]) -> None:
        self._agreement.report(row, [len(row)] * self._world_size)
