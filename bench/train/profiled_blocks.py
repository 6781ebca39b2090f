"""The problem that a training job is, as its own iterations show it: what F, B and W take, and what they hold.

Paper: Chen et al. 2025 (CrossPipe), section 6.1; differs: links are not measured here, `bench p2p` does that.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from lanterne.bench.pipeline.recording import check_recordable, profile_ms_of
from lanterne.bench.train.recorded_training import FIRST
from lanterne.errors import InputError
from lanterne.pipeline.execute.measured import gather
from lanterne.pipeline.plan.problem import Problem

if TYPE_CHECKING:
    from lanterne.pipeline.execute.execute import Measured
    from lanterne.pipeline.execute.stage import Stage
    from lanterne.pipeline.plan.action import Action
    from lanterne.pipeline.simulate.check_plan import CheckedPlan
    from lanterne.pipeline.train.trainer import Iteration, Trainer

KINDS = ("F", "B", "W")


class BlockRecorder:
    """Notes the iterations of a Trainer, which runs them through this from now on; every rank calls `note` after each.

    Raises:
        InputError: a plan with several stages per rank, or without W of its own.
    """

    def __init__(self, trainer: Trainer) -> None:
        check_recordable(trainer.plans[0].plan, "--profile")
        self._trainer = trainer
        self._execute = trainer.use(self._observed)
        # Of each kind, by how many bytes the rank's stage held more after an action than before.
        self._grown: dict[str, list[int]] = {kind: [] for kind in KINDS}
        # (num_actions,) ms of each iteration that counts, on rank 0.
        self._took_ms: list[Any] = []
        self._iterations = 0

    def _observed(self, checked: CheckedPlan, stages: Mapping[int, Stage], *given: Any, **options: Any) -> Measured:
        held = {number: stage.nbytes_held for number, stage in stages.items()}
        after = options.pop("after", None)

        def observe(action: Action) -> None:
            now = stages[action.stage].nbytes_held
            self._grown[action.kind].append(now - held[action.stage])
            held[action.stage] = now
            if after is not None:
                after(action)

        return self._execute(checked, stages, *given, after=observe, **options)

    def note(self, done: Iteration) -> None:
        """An iteration has ended."""
        self._iterations += 1
        columns = gather(done.measured, self._trainer.plans[self._trainer.copy], self._trainer.pipeline)
        if self._iterations > FIRST:
            self._took_ms.append(1e3 * (columns["end_s"] - columns["start_s"]))

    def problem(self) -> dict[str, Any]:
        """A problem file's content, times in ms, memory in bytes; every rank calls it.

        Raises:
            InputError: too few iterations, or stages that do not tell what they hold.
        """
        trainer = self._trainer
        plan = trainer.plans[trainer.copy].plan
        if not self._took_ms:
            raise InputError(f"--profile: got {self._iterations} iterations, expected more than {FIRST}")
        own = np.array([float(np.median(self._grown[kind])) for kind in KINDS])
        every = np.empty((trainer.pipeline.world_size, len(KINDS)))
        trainer.pipeline.all_gather(own, every)
        if not every.any():
            raise InputError("--profile: got stages that do not tell what they hold, expected lanterne's own")
        # An iteration leaves nothing behind: what F adds and W does not free, B frees or adds.
        forward, weight = np.maximum(every[:, 0], 0.0), np.minimum(every[:, 2], 0.0)
        profile = profile_ms_of(plan, np.median(self._took_ms, axis=0))
        stage = next(iter(trainer.stages.values()))
        shape = stage.output_shape or stage.input_shape or (0,)
        problem = Problem(
            plan.placement.num_stages,
            plan.microbatches,
            profile["forward"],
            profile["backward_input"],
            profile["backward_weight"],
            message_nbytes=prod(shape) * stage.dtype.itemsize,
            memory={
                "forward": forward.tolist(),
                "backward_input": (-forward - weight).tolist(),
                "backward_weight": weight.tolist(),
            },
        )
        return problem.to_dict() | {"unit": "ms"}
