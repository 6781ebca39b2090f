"""Training that notices what makes it slow, and does something about it: the acting shell around a Controller.

    loop = ClosedLoop(comm, make_trainer, plans, layout)
    while loop.iterations < 1000:
        loop.iteration()

Rank 0 decides; the ranks hand over their reports and learn the decision at the end of each iteration. Nothing is
restarted for S2 and S3: microbatches change at once, ranks change places by move_state. For S4 the state goes to the
disk, and a new trainer of the remaining ranks takes it from there; the others wait.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import InputError
from lanterne.failslow.mitigate.controller import Controller
from lanterne.failslow.mitigate.decision import ControllerSettings, Decision
from lanterne.failslow.mitigate.loop_state import LoopState, StoreState
from lanterne.failslow.mitigate.reports import make_row, see
from lanterne.failslow.mitigate.strategies import Arrangement, Forecaster
from lanterne.failslow.validate.links import Link
from lanterne.failslow.validate.probe_message import LinkProbes
from lanterne.failslow.validate.suspects import Examiner
from lanterne.pipeline.adapt.agreement import Agreement
from lanterne.pipeline.adapt.profile import Profiler, report_length
from lanterne.pipeline.adapt.suspect import Suspect
from lanterne.pipeline.execute.execute import After, Measured, execute
from lanterne.pipeline.execute.stage import Stage
from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.planes.inline import Inline
from lanterne.pipeline.planes.observed import ObservedPlane
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.train.checkpoint import load, save
from lanterne.pipeline.train.rank_layout import Layout
from lanterne.pipeline.train.trainer import Iteration, Trainer
from lanterne.pipeline.train.trainer import plans as make_plans

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.transport.base import Transport

# A rank calls for attention when an iteration takes so many times the median of the latest.
UNUSUAL, LATEST = 1.1, 16
# Of a path that ranks tell each other.
MAX_PATH_NBYTES = 4096
# Of the messages that suspect links are tested with, at least.
LEAST_NBYTES = 4 << 10


def observed(pipeline: Communicator) -> ObservedPlane:
    """The data plane of a pipeline's ranks, as a ClosedLoop wants it."""
    return ObservedPlane(pipeline.rank, Inline(pipeline))


class ClosedLoop:
    """Iterations of training, and what is done about slow ranks and links.

    Args:
        comm: the Communicator of all ranks; every rank makes the same calls.
        make_trainer: a function of (comm, plans, layout) that makes a Trainer whose plane is `observed`.
        plans: a CheckedPlan per copy. layout: the Layout.
        transport: what the work goes over, as the trainers have it.
        wrap: a function of {stage: Stage} that gives those to run; to slow them on purpose.
        slowdown: a function that gives this rank's, for experiments.
        checkpoint: where S4 keeps the state: a file; None for a temporary one.
        state: where rank 0 keeps what it knows; None for the job's store.
        acts: False: only train, and watch nothing.

    Attributes: `trainer`, None on a rank that is out; `controller`, on rank 0; `iterations`; `acted`, dicts of what was
    carried out: kind, iteration, seconds; on every rank.

    Cost in health: a message per rank and iteration to rank 0, for which nobody waits.
    """

    def __init__(
        self,
        comm: Communicator,
        make_trainer: Callable[[Communicator, Sequence[CheckedPlan], Layout], Trainer],
        plans: Sequence[CheckedPlan],
        layout: Layout,
        *,
        settings: ControllerSettings | None = None,
        transport: Transport | None = None,
        wrap: Callable[[Mapping[int, Stage]], Mapping[int, Stage]] | None = None,
        slowdown: Callable[[], float] | None = None,
        checkpoint: str | Path | None = None,
        state: LoopState | None = None,
        acts: bool = True,
    ) -> None:
        self.comm = comm
        self._make = make_trainer
        self._acts = acts
        self._wrap = wrap or (lambda stages: stages)
        self._checkpoint = checkpoint
        self.iterations: int = 0
        self.acted: list[dict[str, Any]] = []
        self._recent_s: deque[float] = deque(maxlen=LATEST)
        self.scheduler: str = plans[0].plan.scheduler
        self._problem = plans[0].problem
        self.wire: Communicator = comm.split(0, comm.rank, transport)
        self.agreement: Agreement = Agreement(comm.split(0, comm.rank), 0)
        self.now: Arrangement = Arrangement(layout.ranks, tuple(checked.plan.microbatches for checked in plans))
        self._members = tuple(range(comm.world_size))
        self._team: Communicator | None = None
        self._probed: tuple[Link, ...] = ()
        self._decision: Decision | None = None
        self._judged = 0
        self._state: LoopState = state or StoreState(comm.transport.store)
        self.controller: Controller | None = None
        if comm.rank == 0:
            self.controller = Controller(self.now, self._forecaster, settings)
        trainer = make_trainer(comm, plans, layout)
        self.trainer: Trainer | None = trainer
        nbytes = self._message_nbytes(trainer)
        self._probes = LinkProbes(self.wire, nbytes)
        self._examiner = Examiner(comm, transport, nbytes, slowdown or (lambda: 1.0))
        self._adopt(trainer)

    def iteration(self) -> Iteration | None:
        """Train on the next batch, as Trainer.iteration; None on a rank that is out. Then agree, and act."""
        done, links = None, self._probed
        self._probes.begin(links[self.iterations % len(links)] if links else None)
        if self.trainer is not None:
            self._profiler.begin()
            self._began_s = time.monotonic()
            done = self.trainer.iteration()
        elif self._acts:
            self._probes.finish()
            self._report(make_row(self._length, tested=self._examiner.retest(), probed=self._probes.take()))
        self.iterations += 1
        if self._acts:
            # A rank that is out hears no votes, and asks every time.
            self._agree(urgent=len(self._members) < self.comm.world_size or done is None or done.votes > 0)
        return done

    def close(self) -> None:
        """Release trainer, planes and communicators."""
        if self.trainer is not None:
            self.trainer.close()
        if self._team is not None:
            self._team.close()
        self._examiner.close()
        self.agreement.close()
        self.wire.close()
        self._state.close()

    # -- observing

    def _execute(
        self,
        checked: CheckedPlan,
        stages: Mapping[int, Stage],
        comm: Communicator,
        *args: Any,
        after: After | None = None,
        **options: Any,
    ) -> Measured:
        def ended(action: Action) -> None:
            self._profiler.after(action)
            self._probes.look()
            if after is not None:
                after(action)

        return execute(checked, self._stages, comm, *args, after=ended, **options)

    def _vote(self, measured: Measured, gradients_s: tuple[float, float]) -> float:
        """Hand over what this rank saw, and say whether this iteration must be judged at once."""
        trainer, seconds = self.trainer, time.monotonic() - self._began_s
        assert trainer is not None
        self._probes.finish()
        profile = self._profiler.report(trainer.plans[trainer.copy], measured, trainer.iterations)
        self._report(
            make_row(
                self._length, seconds=seconds, gradients_s=gradients_s, probed=self._probes.take(), profile=profile
            )
        )
        is_unusual = bool(self._recent_s) and seconds > UNUSUAL * median(self._recent_s)
        self._recent_s.append(seconds)
        return float(is_unusual or self._decision is not None)

    def _report(self, row: NDArray[np.float64]) -> None:
        self.agreement.report(row, [len(row)] * self.comm.world_size)

    # -- deciding

    def _agree(self, *, urgent: bool) -> None:
        """Judge what has come; if it is urgent, all of it, and tell every rank."""
        if self.controller is not None:
            tables = self.agreement.collect(wait=urgent)
            self._decision = self._decision or self._judge(self.controller, tables, urgent)
            self._judged += len(tables)
        if not urgent:
            return
        verdict = self._told(self._decision)
        self._decision = None
        if verdict is not None and verdict["kind"] == "validate":
            began_s = time.monotonic()
            measured = self._examiner.examine([*map(Suspect, verdict["suspects"])])
            self._note(verdict, began_s)
            verdict = self._told(self.controller.validated(measured) if self.controller is not None else None)
        if verdict is not None and verdict["arrangement"] is not None:
            self._rearrange(verdict)
        elif verdict is not None:
            self._note(verdict, time.monotonic())

    def _judge(
        self, controller: Controller, tables: Sequence[Sequence[NDArray[np.float64]]], urgent: bool
    ) -> Decision | None:
        """The first Decision that iterations lead to, or None; what came after it is of no interest."""
        for number, rows in enumerate(tables, self._judged):
            with_links = urgent or controller.heeds_links
            decision = controller.update(see(number, rows, self.now, self.plans, self._lengths, with_links))
            if decision is not None:
                return decision
        return None

    def _told(self, decision: Decision | None) -> dict[str, Any] | None:
        """What rank 0 decided, a dict, or None, on every rank."""
        payload = None
        if self.controller is not None:
            probed = self.controller.probes
            told = decision.to_dict() if decision is not None else None
            payload = json.dumps([told, probed]).encode() if told or probed != self._probed else b""
            if told:
                self._state.set(json.dumps(self.controller.state()).encode())
        payload = self.agreement.verdict(payload)
        if not payload:
            return None
        verdict, probed = json.loads(payload)
        self._probed = tuple((a, b) for a, b in probed)
        return verdict

    def _forecaster(self, work_s: Sequence[float], gradients_s: float) -> Forecaster:
        """A Forecaster for stages that take `work_s` a microbatch, F, B and W in the proportions of the plan."""
        problem = self._problem
        parts = (problem.forward, problem.backward_input, problem.backward_weight)
        planned = [sum(times) for times in zip(*parts, strict=True)]
        changes: dict[str, Any] = {
            name: tuple(t * now / then for t, now, then in zip(getattr(problem, name), work_s, planned, strict=True))
            for name in ("forward", "backward_input", "backward_weight")
        }
        return Forecaster(replace(problem, **changes), self.scheduler, gradients_s)

    # -- acting

    def _rearrange(self, verdict: dict[str, Any]) -> None:
        began_s = time.monotonic()
        wanted = verdict["arrangement"]
        ranks = tuple(tuple(tuple(parts) for parts in copy) for copy in wanted["ranks"])
        self.now = Arrangement(ranks, tuple(wanted["microbatches"]))
        plans = make_plans(self._problem, self.scheduler, self.now.microbatches)
        members = tuple(sorted(self.now.seats()))
        if members == self._members:
            if self.trainer is not None:
                self.trainer.change(plans, self._layout())
                self._adopt(self.trainer)
        else:
            self._restart(plans, members)
        self._lengths_of()
        self._recent_s.clear()
        self.comm.barrier()
        self._note(verdict, began_s)
        if self.controller is not None and verdict["kind"] == "mitigate":
            self.controller.took(verdict["strategy"], self.acted[-1]["seconds"])

    def _restart(self, plans: Sequence[CheckedPlan], members: tuple[int, ...]) -> None:
        """Through a checkpoint to a trainer on other ranks."""
        writer = self._members[0]
        path = Path(self._checkpoint) if self._checkpoint is not None else self._new_file(writer)
        if self.trainer is not None:
            state = self.trainer.state()
            if self.comm.rank == writer:
                save(path, state, {})
            self.trainer.close()
        # What those that are out compare themselves with, to know when they are well again.
        self._examiner.compare(members)
        if self._team is not None:
            self._team.close()
        self._members = members
        self.trainer = None
        self._team = self.comm.split(0 if self.comm.rank in members else -1, self.comm.rank)
        if self._team is not None:
            self.trainer = trainer = self._make(self._team, plans, self._layout())
            if not path.exists():
                raise InputError(
                    f"restart: rank {self.comm.rank} does not see {path}, which rank {writer} wrote, expected a folder "
                    "that all hosts share: name a checkpoint in one (--checkpoint), or set TMPDIR to one"
                )
            trainer.restore(load(path, {}))
            self._adopt(trainer)
        self.comm.barrier()
        if self._checkpoint is None and self.comm.rank == writer:
            shutil.rmtree(path.parent)

    def _new_file(self, writer: int) -> Path:
        """A file to be, in a new folder of rank `writer` that only its user can enter; the same on all ranks."""
        told = np.zeros(MAX_PATH_NBYTES, np.uint8)
        if self.comm.rank == writer:
            folder = os.fsencode(tempfile.mkdtemp(prefix="lanterne-"))
            told[: len(folder)] = np.frombuffer(folder, np.uint8)
        self.comm.broadcast(told, writer)
        return Path(os.fsdecode(told.tobytes().rstrip(b"\0")), "state.npz")

    def _message_nbytes(self, trainer: Trainer) -> int:
        """Bytes of the largest activation that a stage of any rank hands on."""
        stages = trainer.stages.values()
        sizes = [prod(stage.output_shape) * stage.dtype.itemsize for stage in stages if stage.output_shape is not None]
        nbytes = np.array([max(sizes, default=0)])
        self.comm.all_reduce(nbytes, nbytes, op="max")
        return max(int(nbytes[0]), LEAST_NBYTES)

    def _layout(self) -> Layout:
        """The Layout among the ranks that are in."""
        at = {rank: index for index, rank in enumerate(sorted(self.now.seats()))}
        return Layout(tuple(tuple(tuple(at[rank] for rank in parts) for parts in copy) for copy in self.now.ranks))

    def _adopt(self, trainer: Trainer) -> None:
        """The trainer has other stages or planes."""
        trainer.use(self._execute, self._vote if self._acts else None)
        self._stages = self._wrap(trainer.stages)
        assert isinstance(trainer.plane, ObservedPlane)
        self._profiler = Profiler(trainer.plane)
        self._lengths_of()

    def _lengths_of(self) -> None:
        self.plans: Sequence[CheckedPlan] = (
            self.trainer.plans
            if self.trainer is not None
            else make_plans(self._problem, self.scheduler, self.now.microbatches)
        )
        self._lengths = {
            rank: report_length(self.plans[copy], place) for rank, (copy, place) in self.now.seats().items()
        }
        self._length = max(self._lengths.values())

    def _note(self, verdict: dict[str, Any], began_s: float) -> None:
        seconds = time.monotonic() - began_s
        self.acted.append(verdict | {"at": self.iterations, "seconds": seconds})
