"""Keeps a running pipeline on a plan that suits its links: measures, watches, plans again, swaps between iterations.

    delegates = lambda pair: make_plane("delegate", comm, pairs=[pair])
    plane = ObservedPlane(comm.rank, make_plane("inline", comm), delegates)
    with Adapter(comm, checked, plane, problem) as adapter:
        for inputs, targets in batches:
            adapter.execute(adapter.checked, stages, comm, inputs, targets)
            for stage in stages.values():
                stage.step()
            adapter.agree()

After each iteration every rank reports what it measured to the coordinator and waits for its verdict: go on, or a new
plan, and which links go by delegates. All take it at once, so each iteration runs under one plan.

Paper: Wu et al. 2025 (ADAPTRA), sections 4.2 and 6. Differs: triggered by measured delays against equation 1, not by a
detector of slow iterations; a new plan must be predicted to gain; a link that heals gives the first plan back.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lanterne.collectives.communicator import Communicator
from lanterne.pipeline.adapt.agreement import PLANNING_S, Agreement, Report
from lanterne.pipeline.adapt.clocks import Offsets, clock_offsets, share_a_clock
from lanterne.pipeline.adapt.decide import AdaptSettings, Change, Decider, Held
from lanterne.pipeline.adapt.link_delay import Pair
from lanterne.pipeline.adapt.profile import Durations, Profile, Profiler, make_profile, report_length, worst
from lanterne.pipeline.execute.execute import After, Measured, execute
from lanterne.pipeline.execute.stage import Samples, Stage
from lanterne.pipeline.plan.action import Action
from lanterne.pipeline.plan.plan import Plan
from lanterne.pipeline.plan.problem import TIMES, Problem
from lanterne.pipeline.planes.data_plane import DataPlane
from lanterne.pipeline.planes.observed import ObservedPlane
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check

if TYPE_CHECKING:
    from lanterne.pipeline.train.trainer import Executor, Trainer

# Iterations after which the clocks of several hosts are compared again: they drift, some 50 us a second at most.
CLOCKS_EVERY = 50


class Adapter:
    """Runs iterations and adapts; every rank of a job makes one.

    Args:
        comm: the Communicator of all ranks that change together: a pipeline's, or those of all its copies and parts.
        plans: the CheckedPlan to begin with, or a tuple with that of each copy of the pipeline.
        plane: the ObservedPlane on the ranks of this pipeline; closed by its owner.
        problem: the undisturbed Problem in seconds; None to measure it in the first iterations.
        settings: AdaptSettings.
        where: (copy, place, part) of this rank: which copy of the pipeline, its rank there, and which of those that
            share the work of that rank; None: it is one pipeline of `comm`'s ranks.
        durations_s, held_nbytes: of the Profiler.
        memory_nbytes: of each rank for what `held_nbytes` tells; where the problem is measured, new plans fit in it.
            None: no limit.
        run: what runs an iteration.

    Attributes:
        plans: (copies,) CheckedPlans of the next iteration; `checked`, that of this rank's copy.
        iteration: its number, from 0.
        changes: the Changes so far, on every rank; held: the Helds, likewise.
        profiles: on the coordinator, per copy the Profiles of the iterations of which all reports have come.
        run: as above.
        clocks: on the coordinator, the Offsets of the ranks' clocks; None where all are on one host.
    """

    def __init__(
        self,
        comm: Communicator,
        plans: CheckedPlan | Sequence[CheckedPlan],
        plane: ObservedPlane,
        problem: Problem | None = None,
        settings: AdaptSettings | None = None,
        where: tuple[int, int, int] | None = None,
        durations_s: Durations | None = None,
        held_nbytes: Callable[[], float] | None = None,
        memory_nbytes: float | None = None,
        run: "Executor" = execute,
    ) -> None:
        mine = (0, comm.rank, 0) if where is None else where
        self.comm = comm
        self.plane = plane
        self.settings: AdaptSettings = settings or AdaptSettings()
        self.plans = (plans,) if isinstance(plans, CheckedPlan) else tuple(plans)
        self.copy: int = mine[0]
        self.iteration: int = 0
        self.changes: list[Change] = []
        self.held: list[Held] = []
        # By copy, the undisturbed Problem.
        self._bases: dict[int, Problem] = {} if problem is None else dict.fromkeys(range(len(self.plans)), problem)
        self.run = run
        self.profiles: list[list[Profile]] = [[] for _ in self.plans]
        self.profiler: Profiler = Profiler(plane, durations_s, held_nbytes)
        self._slow: set[Pair] = set()
        # Of each copy.
        self._dead: list[set[Pair]] = [set() for _ in self.plans]
        everyone = np.empty((comm.world_size, 3), np.int64)
        comm.all_gather(np.array(mine, np.int64), everyone.reshape(-1))
        self._where = [(copy, place, part) for copy, place, part in everyone.tolist()]
        first = self._where.index((0, self.plans[0].plan.placement.stage_to_rank[0], 0))
        self.agreement: Agreement = Agreement(comm.split(0, comm.rank), first)
        self._lengths: list[int] | None = None
        self._ran: dict[int, tuple[CheckedPlan, ...]] = {}
        self._deciders: list[Decider] = []
        if self.agreement.is_root:
            for checked in self.plans:
                own = problem and dataclasses.replace(problem, microbatches=checked.plan.microbatches)
                self._deciders.append(Decider(checked, own, self.settings, plane.in_order, memory_nbytes))
            if self.settings.scheduler == "best":
                from lanterne.pipeline.planners.best import load_search

                load_search()
        self.agreement.comm.barrier(timeout_s=PLANNING_S)  # Else they would wait in the middle of the first iteration.
        self.clocks: Offsets | None = None
        self._shares_a_clock = share_a_clock(self.agreement.comm)
        self._compare_clocks()

    @classmethod
    def of(cls, trainer: "Trainer", problem: Problem | None = None, run: "Executor" = execute) -> Self:
        """The Adapter of a Trainer on an ObservedPlane, whose new plans keep to the cap of its saved activations.

        Args:
            problem, run: as above.
        """
        assert isinstance(trainer.plane, ObservedPlane)
        spill, device = trainer.spill, trainer.device
        made = cls(
            trainer.comm,
            trainer.plans,
            trainer.plane,
            problem,
            where=(trainer.copy, trainer.place, trainer.part),
            durations_s=device.durations_s if device else None,
            held_nbytes=(lambda: spill.kept_nbytes) if spill else None,
            memory_nbytes=spill.room_nbytes if spill else None,
            run=run,
        )
        made.iteration = trainer.iterations
        return made

    @property
    def checked(self) -> CheckedPlan:
        return self.plans[self.copy]

    @property
    def is_calibrated(self) -> bool:
        """True once the undisturbed Problem of every copy is known, and planned for."""
        return len(self._bases) == len(self.plans)

    @property
    def base(self) -> Problem | None:
        """The undisturbed Problem of a copy, on every rank, by the quickest stages and links; None: not known yet."""
        if not self.is_calibrated:
            return None
        known = list(self._bases.values())
        first = min(known, key=lambda base: sum(base.latency(stage, stage + 1) for stage in range(base.stages - 1)))
        times: dict[str, Any] = {
            name: tuple(map(min, zip(*(getattr(base, name) for base in known), strict=True))) for name in TIMES
        }
        return dataclasses.replace(first, **times)

    def execute(
        self,
        checked: CheckedPlan,
        stages: Mapping[int, Stage],
        comm: Communicator,
        inputs: Samples = None,
        targets: Samples = None,
        *,
        plane: DataPlane | None = None,
        timeout_s: float | None = None,
        after: After | None = None,
    ) -> Measured:
        """One iteration, as pipeline.execute.execute, of this rank's plan (`checked`) over its plane; and a report."""
        self.profiler.begin()

        def ended(action: Action) -> None:
            self.profiler.after(action)
            if after is not None:
                after(action)

        measured = self.run(
            checked, stages, comm, inputs, targets, plane=plane or self.plane, timeout_s=timeout_s, after=ended
        )
        if self._lengths is None:
            self._lengths = [report_length(self.plans[copy], place) for copy, place, _ in self._where]
        self.agreement.report(self.profiler.report(checked, measured, self.iteration), self._lengths)
        return measured

    def agree(self) -> list[Change]:
        """The Changes for the next iteration, a list, on all ranks alike; they hold once this has returned."""
        payload = self.agreement.verdict(self._decide() if self.agreement.is_root else None)
        self.iteration += 1
        if self.iteration % CLOCKS_EVERY == 0:
            self._compare_clocks()
        if not payload:
            return []
        verdicts = json.loads(payload)
        self.held += [Held(**verdict["held"]) for verdict in verdicts if "held" in verdict]
        plans, changes = list(self.plans), []
        for verdict in (verdict for verdict in verdicts if "change" in verdict):
            changes.append(Change(**verdict["change"]))
            if verdict["base"]:
                self._bases[changes[-1].copy] = Problem.from_dict(verdict["base"])
            if verdict["plan"]:
                made = check(Plan.from_dict(verdict["plan"]), Problem.from_dict(verdict["problem"]))
                plans[changes[-1].copy] = made
        if not changes:
            return []
        self.plans, self._lengths = tuple(plans), None
        self.agreement.comm.barrier()  # Nobody is in the iteration before any more: what is not needed can be closed.
        for change in changes:
            if change.copy == self.copy:
                self._slow = {(one, other) for one, other in change.slow_links}
                self._divert()
        self.changes += changes
        return changes

    def avoid(self, pairs: Sequence[Iterable[Pair]]) -> None:
        """Between iterations: the usual path between pairs of ranks is dead. All ranks call it alike.

        Args:
            pairs: (copies,) of ranks of that copy's pipeline.
        """
        if self._dead != (dead := list(map(set, pairs))):
            self._dead = dead
            self.agreement.comm.barrier()
            self._divert()

    def _divert(self) -> None:
        self.plane.divert(self._slow | self._dead[self.copy])

    def finish(self) -> None:
        """Between iterations, on all ranks, before `close` in a job that goes on: every link is on its usual path."""
        if self.agreement.is_root:
            self.agreement.collect(wait=True)
        self.agreement.comm.barrier()
        self.plane.divert(())

    def close(self) -> None:
        """Release what the agreement holds; not the plane."""
        self.agreement.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _decide(self) -> bytes:
        self._ran[self.iteration] = self.plans
        verdicts: dict[int, dict[str, Any]] = {}
        for reports in self.agreement.collect():
            plans = self._ran.pop(int(reports[0][0]))
            for copy, decider in enumerate(self._deciders):
                profile = self._profile(reports, plans[copy], copy)
                self.profiles[copy].append(profile)
                if verdict := decider.after(profile, self.iteration + 1):
                    for told in verdict.keys() & {"change", "held"}:
                        verdict[told]["copy"] = copy
                    verdicts[copy] = verdict
        return json.dumps(list(verdicts.values())).encode() if verdicts else b""

    def _compare_clocks(self) -> None:
        if not self._shares_a_clock:
            self.clocks = clock_offsets(self.agreement.comm, self.agreement.root)

    def _profile(self, reports: Sequence[Report], checked: CheckedPlan, copy: int) -> Profile:
        """The Profile of one copy; of what several ranks share, the worst."""
        parts: dict[int, dict[int, tuple[Report, float]]] = {}
        offsets_s = np.zeros(len(reports)) if self.clocks is None else self.clocks.offset_s
        for (its, place, part), report, offset_s in zip(self._where, reports, offsets_s, strict=True):
            if its == copy:
                parts.setdefault(part, {})[place] = report, offset_s
        assumed, profiles = self._deciders[copy].occupancy_s, []
        for by in parts.values():
            own, own_offsets_s = zip(*(by[place] for place in sorted(by)), strict=True)
            profiles.append(make_profile(checked, own, own_offsets_s, assumed))
        return worst(profiles)
