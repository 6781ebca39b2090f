"""The problem that a training job is: what F, B and W take and hold in its iterations, and what its links cost.

Paper: Chen et al. 2025 (CrossPipe), section 6.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from lanterne.bench.pipeline.recording import check_recordable, profile_ms_of
from lanterne.bench.train.recorded_training import FIRST
from lanterne.errors import InputError
from lanterne.pipeline.execute.measured import gather
from lanterne.pipeline.plan.problem import Problem

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.pipeline.execute.execute import Measured
    from lanterne.pipeline.execute.stage import Stage
    from lanterne.pipeline.plan.action import Action
    from lanterne.pipeline.simulate.check_plan import CheckedPlan
    from lanterne.pipeline.train.trainer import Iteration, Trainer

KINDS = ("F", "B", "W")
# Round trips of each size on each link, of which the shortest counts.
PINGS = 20


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
        nbytes = prod(shape) * stage.dtype.itemsize
        # Messages from GPU to GPU take another way than these.
        links = [] if trainer.plane.on_device else link_costs(trainer.pipeline, nbytes)
        costs: dict[str, Any] = {}
        if links:
            costs = {
                "link_latency": [1e3 * latency_s for latency_s, _ in links],
                "link_bandwidth": [1 / (1e3 * s_per_byte) if s_per_byte else None for _, s_per_byte in links],
                "message_nbytes": nbytes,
            }
        problem = Problem(
            plan.placement.num_stages,
            plan.microbatches,
            profile["forward"],
            profile["backward_input"],
            profile["backward_weight"],
            **costs,
            memory={
                "forward": forward.tolist(),
                "backward_input": (-forward - weight).tolist(),
                "backward_weight": weight.tolist(),
            },
        )
        return problem.to_dict() | {"unit": "ms"}


def link_costs(comm: Communicator, nbytes: int) -> list[tuple[float, float]]:
    """Return (latency in s, s per byte) of each link between neighbouring ranks, one way; every rank calls it.

    By two sizes, a byte and `nbytes`: a message of `nbytes` costs what was measured. Links are measured in turn.
    """
    if comm.world_size == 1:
        return []
    own = np.zeros((comm.world_size - 1, 2))
    for link in range(comm.world_size - 1):
        if comm.rank in (link, link + 1):
            own[link] = [_one_way_s(comm, link, size) for size in (1, nbytes)]
        comm.barrier()
    every = np.empty((comm.world_size, *own.shape))
    comm.all_gather(own, every.reshape(-1))
    costs = []
    for short_s, long_s in every.max(axis=0).tolist():
        s_per_byte = max(long_s - short_s, 0.0) / max(nbytes - 1, 1)
        costs.append((max(short_s - s_per_byte, 0.0), s_per_byte))
    return costs


def _one_way_s(comm: Communicator, link: int, nbytes: int) -> float:
    """Return half of the shortest round trip over a link, as this end of it sees it."""
    message, took_s = np.zeros(nbytes, np.uint8), []
    for _ in range(PINGS):
        began_s = perf_counter()
        if comm.rank == link:
            comm.send(message, link + 1)
            comm.recv(message, link + 1)
        else:
            comm.recv(message, link)
            comm.send(message, link)
        took_s.append(perf_counter() - began_s)
    return min(took_s) / 2 if comm.rank == link else 0.0
