"""Training that notices what makes it slow, and does something about it: the acting shell around a Controller.

    loop = ClosedLoop(comm, make_trainer, plans, layout)
    while loop.iterations < 1000:
        loop.iteration()

Rank 0 decides; the ranks hand over their reports and learn the decision at the end of each iteration. Nothing is
restarted for S2 and S3: microbatches change at once, ranks change places by move_state. For S4 a new trainer of the
remaining ranks takes over the state; the others wait.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import inf, isinf, prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lanterne.failslow.mitigate.baseline import NOBODY
from lanterne.failslow.mitigate.controller import Controller
from lanterne.failslow.mitigate.decision import ControllerSettings, Decision
from lanterne.failslow.mitigate.observation import Observation, Wrap
from lanterne.failslow.mitigate.reports import see
from lanterne.failslow.mitigate.strategies import Arrangement, Forecaster, problem_of, stage_work_s
from lanterne.failslow.validate.links import Link
from lanterne.failslow.validate.probe_message import LinkProbes
from lanterne.failslow.validate.suspects import Examiner
from lanterne.pipeline.adapt.agreement import PLANNING_S, Agreement, from_first
from lanterne.pipeline.adapt.profile import report_length
from lanterne.pipeline.adapt.suspect import Suspect
from lanterne.pipeline.execute.execute import Measured
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.planes.inline import Inline
from lanterne.pipeline.planes.observed import ObservedPlane
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check
from lanterne.pipeline.train.rank_layout import Layout
from lanterne.pipeline.train.state import TrainingState, move_state
from lanterne.pipeline.train.trainer import Iteration, Trainer
from lanterne.pipeline.train.trainer import plans as make_plans

if TYPE_CHECKING:
    from lanterne.collectives.communicator import Communicator
    from lanterne.pipeline.adapt.adapter import Adapter
    from lanterne.pipeline.adapt.decide import Change, Held
    from lanterne.pipeline.plan.problem import Problem
    from lanterne.transport.base import Transport

# Of the messages that suspect links are tested with, at least.
LEAST_NBYTES = 4 << 10
# Key in the store of what rank 0 knows, for others to read.
KEY = "lanterne/mitigation"


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
        acts: False: only train, and watch nothing.
        adapts: whether the plan follows slow links between neighbours of a pipeline, by an Adapter; all else is left to
            the Controller. The plane of `make_trainer` is then plane_makers' `adapting`. While rank 0 is out of the job
            the plan stays as it is.
        before: rank -> factor of those that were blamed when the job had other ranks.

    Attributes: `trainer`, None on a rank that is out; `controller`, on rank 0; `iterations`; `acted`, dicts of what was
    carried out: kind, iteration, seconds; on every rank; `factor`, by which this rank is blamed for being slow, 1: it
    is not; `changes` and `held`, of the Adapters so far.

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
        wrap: Wrap | None = None,
        slowdown: Callable[[], float] | None = None,
        acts: bool = True,
        adapts: bool = False,
        before: Mapping[int, float] = NOBODY,
    ) -> None:
        self.comm = comm
        self._make = make_trainer
        self._acts = acts
        self._adapts = acts and adapts
        self._adapter: Adapter | None = None
        # What the Adapters before have found, and the undisturbed Problem that they measured.
        self._found: tuple[list[Change], list[Held]] = [], []
        self._undisturbed: Problem | None = None
        # The first iteration that says what is healthy: the plan that suits the measured stages runs from then on.
        self._settled: float = inf if self._adapts else 0
        self.iterations: int = 0
        self.acted: list[dict[str, Any]] = []
        self.plans: Sequence[CheckedPlan] = plans
        self.scheduler: str = plans[0].plan.scheduler
        self._problem = plans[0].problem
        self.wire: Communicator = comm.split(0, comm.rank, transport)
        self.agreement: Agreement = Agreement(comm.split(0, comm.rank), 0)
        self.now: Arrangement = Arrangement(layout.ranks, tuple(checked.plan.microbatches for checked in plans))
        self._members = tuple(range(comm.world_size))
        self._team: Communicator | None = None
        self._decision: Decision | None = None
        self._judged = 0
        # By iteration that is not judged yet, the plans that it ran by, and whether they are for slow links.
        self._ran: dict[int, tuple[Sequence[CheckedPlan], bool]] = {}
        # Links whose delays are measured by themselves, and rank -> factor of those that are blamed, as rank 0 has it.
        self._probed: tuple[Link, ...] = ()
        self._slow: dict[int, float] = dict(before)
        self.controller: Controller | None = None
        if comm.rank == 0:
            planned_s = stage_work_s(self._problem)
            self.controller = Controller(
                self.now, self._forecaster, settings, before=before, planned_s=planned_s, adapts=self._adapts
            )
        trainer = make_trainer(comm, plans, layout)
        self.trainer: Trainer | None = trainer
        nbytes = _largest_message(comm, trainer)
        self._observation = Observation(self.agreement, LinkProbes(self.wire, nbytes), comm.world_size, wrap)
        self._examiner = Examiner(comm, transport, nbytes, slowdown or (lambda: 1.0))
        self._adopt(trainer)

    @property
    def factor(self) -> float:
        return self._slow.get(self.comm.rank, 1.0)

    @property
    def changes(self) -> list[Change]:
        return self._found[0] + (self._adapter.changes if self._adapter is not None else [])

    @property
    def held(self) -> list[Held]:
        return self._found[1] + (self._adapter.held if self._adapter is not None else [])

    def avoid(self, pairs: Collection[Link]) -> None:
        """Between iterations: the usual path between these ranks of the job is dead. All ranks call it alike."""
        if self._adapter is not None:
            # Of all parts: every rank of a copy diverts the same places.
            copies = [{rank: place for place, parts in enumerate(copy) for rank in parts} for copy in self.now.ranks]
            self._adapter.avoid([[(at[a], at[b]) for a, b in pairs if {a, b} <= at.keys()] for at in copies])

    def iteration(self) -> Iteration | None:
        """Train on the next batch, as Trainer.iteration; None on a rank that is out. Then agree, and act."""
        done, links = None, self._probed
        link = links[self.iterations % len(links)] if links else None
        self._observation.begin(link, trains=self.trainer is not None)
        if self.trainer is not None:
            done = self.trainer.iteration()
        elif self._acts:
            self._observation.end_outside(self._examiner.retest())
        if self.controller is not None and self._acts:
            latest = {change.copy: change for change in self._adapter.changes} if self._adapter is not None else {}
            self._ran[self.iterations] = self.plans, any(change.delays_s for change in latest.values())
        self.iterations += 1
        if self._acts:
            # A rank that is out hears no votes, and asks every time.
            adapter = self._adapter
            self._agree(urgent=len(self._members) < self.comm.world_size or done is None or done.votes > 0)
            if adapter is not None and adapter is self._adapter:
                self._follow(adapter)
        return done

    def restore(self, state: TrainingState) -> None:
        """Go on from `state`, before the first iteration; every rank calls it."""
        assert self.trainer is not None, "nobody is out at first"
        self.trainer.restore(state)
        self.iterations = self._judged = state.iteration
        if self._adapter is not None:
            self._adapter.iteration = state.iteration

    def close(self) -> None:
        """Release trainer, planes and communicators."""
        if self._adapter is not None:
            self._adapter.close()
        if self.trainer is not None:
            self.trainer.close()
        if self._team is not None:
            self._team.close()
        self._examiner.close()
        self.agreement.close()
        self.wire.close()

    # -- deciding

    def _vote(self, measured: Measured, gradients_s: tuple[float, float]) -> float:
        """Whether this iteration must be judged at once."""
        assert self.trainer is not None
        is_unusual = self._observation.end(self.trainer, measured, gradients_s)
        return float(is_unusual or self._decision is not None)

    def _agree(self, *, urgent: bool) -> None:
        """Judge what has come; if it is urgent, all of it, and tell every rank."""
        if self.controller is not None:
            tables = self.agreement.collect(wait=urgent)
            self._decision = self._decision or self._judge(self.controller, tables, urgent)
            self._judged += len(tables)
            self._ran = {number: ran for number, ran in self._ran.items() if number >= self._judged}
        if not urgent:
            return
        verdict = self._spread(self._decision)
        self._decision = None
        if verdict is not None and verdict["kind"] == "validate":
            began_s = time.monotonic()
            measured = self._examiner.examine([*map(Suspect, verdict["suspects"])])
            self._note(verdict, began_s)
            decision = self.controller.validated(measured) if self.controller is not None else None
            verdict = self._spread(decision)
        if verdict is not None and verdict["arrangement"] is not None:
            self._rearrange(verdict)
        elif verdict is not None:
            self._note(verdict, time.monotonic())

    def _spread(self, decision: Decision | None) -> dict[str, Any] | None:
        """Return what rank 0 has decided, as JSON, alike on every rank; it keeps what it knows in the job's store."""
        payload, store = None, self.comm.transport.membership.store
        if (controller := self.controller) is not None:
            probed, slow = controller.probes, dict(controller.slow_ranks)
            told = decision.to_dict() if decision is not None else None
            changed = told or probed != self._probed or slow != self._slow
            payload = json.dumps([told, probed, [*slow.items()]]).encode() if changed else b""
            if told and store is not None:
                store.set(KEY, json.dumps(controller.state()).encode())
        payload = self.agreement.verdict(payload)
        if not payload:
            return None
        verdict, links, factors = json.loads(payload)
        self._probed = tuple((a, b) for a, b in links)
        self._slow = dict(factors)
        return verdict

    def _judge(
        self, controller: Controller, tables: Sequence[Sequence[NDArray[np.float64]]], urgent: bool
    ) -> Decision | None:
        """The first Decision that iterations lead to, or None; what came after it is of no interest."""
        seen = (
            see(number, rows, self.now, *self._ran[number], self._lengths, urgent or controller.heeds_links)
            for number, rows in enumerate(tables, self._judged)
            if number >= self._settled
        )
        return next(filter(None, map(controller.update, seen)), None)

    def _forecaster(self, work_s: Sequence[float], gradients_s: float) -> Forecaster:
        """A Forecaster for stages that take `work_s` a microbatch."""
        return Forecaster(problem_of(work_s, self._problem), self.scheduler, gradients_s, adapts=self._adapts)

    # -- acting

    def _rearrange(self, verdict: dict[str, Any]) -> None:
        began_s = time.monotonic()
        self._end_adapting()
        self.now = Arrangement.from_dict(verdict["arrangement"])
        self.plans = self._planned(self.now.microbatches)
        members = tuple(sorted(self.now.seats()))
        if members == self._members:
            if self.trainer is not None:
                self.trainer.change(self.plans, self.now.layout())
                self._adopt(self.trainer)
        else:
            self._restart(members)
        self._measure_profiles()
        self._observation.forget()
        self.comm.barrier()
        self._note(verdict, began_s)
        if self.controller is not None and verdict["kind"] == "mitigate":
            self.controller.took(verdict["strategy"], self.acted[-1]["seconds"])

    def _planned(self, microbatches: Sequence[int]) -> Sequence[CheckedPlan]:
        """The plan of each copy where nothing is slow: the scheduler's, or the best of what an Adapter has measured."""
        if (problem := self._undisturbed) is None:
            return make_plans(self._problem, self.scheduler, microbatches)
        placement = self.plans[0].plan.placement

        def make() -> list[dict[str, Any]]:
            return [each.plan.to_dict() for each in make_plans(problem, "best", microbatches, placement=placement)]

        made = from_first(self.comm, make, PLANNING_S)
        return tuple(
            check(Plan.from_dict(plan), replace(problem, microbatches=count))
            for plan, count in zip(made, microbatches, strict=True)
        )

    def _restart(self, members: tuple[int, ...]) -> None:
        """Go on with a trainer on other ranks, with the state of those before."""
        held = []
        if self.trainer is not None:
            held = self.trainer.held()
            self.trainer.close()
        # What those that are out compare themselves with, to know when they are well again.
        self._examiner.compare(members)
        if self._team is not None:
            self._team.close()
        self._members = members
        self.trainer = None
        self._team = self.comm.split(0 if self.comm.rank in members else -1, self.comm.rank)
        if self._team is not None:
            self.trainer = trainer = self._make(self._team, self.plans, self.now.layout())
            trainer.take_over(self.comm, held)
            self._adopt(trainer)
        else:
            move_state(self.comm, held, np.empty((0, 2), np.int64))

    def _adopt(self, trainer: Trainer) -> None:
        """The trainer has other stages or planes."""
        self._observation.adopt(trainer)
        if self._acts:
            trainer.use(vote=self._vote)
        if self._adapts and 0 in self._members:
            # It loads the compiler.
            from lanterne.pipeline.adapt.adapter import Adapter

            self._adapter = Adapter.of(trainer, self._undisturbed, self._observation.run)
            self._observation.run = self._adapter.execute
        if self.controller is not None:
            self.controller.adapts = self._adapter is not None
        self._measure_profiles()

    def _follow(self, adapter: Adapter) -> None:
        """Take over what the Adapter changes."""
        assert self.trainer is not None
        if not (changes := adapter.agree()):
            return
        self.trainer.change(plans=adapter.plans)
        self.plans = adapter.plans
        self._observation.forget()
        if adapter.is_calibrated and isinf(self._settled):
            self._settled = max(change.running_from for change in changes)

    def _end_adapting(self) -> None:
        """Everything is as without the Adapter; another one begins with what this one has measured."""
        if (adapter := self._adapter) is None:
            return
        self._found = self.changes, self.held
        self._undisturbed, self._adapter = adapter.base, None
        self._observation.run = adapter.run
        adapter.finish()
        adapter.close()

    def _measure_profiles(self) -> None:
        """How long the ranks' profiles are, by the plans of now."""
        seats = self.now.seats()
        self._lengths = {rank: report_length(self.plans[copy], place) for rank, (copy, place) in seats.items()}
        self._observation.length = max(self._lengths.values())

    def _note(self, verdict: dict[str, Any], began_s: float) -> None:
        self.acted.append(verdict | {"at": self.iterations, "seconds": time.monotonic() - began_s})


def _largest_message(comm: Communicator, trainer: Trainer) -> int:
    """Bytes of the largest activation that a stage of any rank hands on; every rank calls it."""
    stages = trainer.stages.values()
    sizes = [prod(stage.output_shape) * stage.dtype.itemsize for stage in stages if stage.output_shape is not None]
    nbytes = np.array([max(sizes, default=0)])
    comm.all_reduce(nbytes, nbytes, op="max")
    return max(int(nbytes[0]), LEAST_NBYTES)
