"""Training that notices what makes it slow, and does something about it: the acting shell around a Controller.

    loop = ClosedLoop(comm, make_trainer, plans, layout)
    while loop.iterations < 1000:
        loop.iteration()

Rank 0 decides; the ranks hand over their reports and learn the decision at the end of each iteration. Nothing is
restarted for S2 and S3: microbatches change at once, ranks change places by move_state. For S4 the state goes to the
disk, and a new trainer of the remaining ranks takes it from there; the others wait.
"""

import json
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..pipeline.checkpoint import load, save
from ..pipeline.estimate import pair_delays
from ..pipeline.execute import execute
from ..pipeline.inline import Inline
from ..pipeline.layout import Layout
from ..pipeline.observed import ObservedPlane
from ..pipeline.profile import Profiler, make_profile, report_length
from ..pipeline.train import plans as make_plans
from ..pipeline.verdicts import Agreement
from .controller import Controller, Seen
from .mitigate import Arrangement, Forecaster
from .probe_message import probe_message
from .suspects import examine

# At the head of a rank's row: seconds of its iteration, when its wait for gradients began and ended, seconds of a probe.
ITERATION, BEGAN, ENDED, PROBED, HEAD = range(5)
# A link that carries nothing is tried every so many iterations.
PROBE_EVERY = 3
KEY = "lanterne/mitigation"


def observed(pipeline):
    """The data plane of a pipeline's ranks, as a ClosedLoop wants it."""
    return ObservedPlane(pipeline.rank, Inline(pipeline))


class ClosedLoop:
    """Iterations of training, and what is done about slow ranks and links.

    Args:
        comm: the Communicator of all ranks; every rank makes the same calls.
        make_trainer: a function of (comm, plans, layout) that makes a Trainer whose plane is `observed`.
        plans: a CheckedPlan per copy. layout: the Layout.
        settings: Settings.
        transport: what the work goes over, as the trainers have it.
        wrap: a function of {stage: Stage} that gives those to run; to slow them on purpose.
        slowdown: a function that gives this rank's, for experiments.
        checkpoint: where S4 keeps the state: a file; None for a temporary one.
        acts: False: only watch, and decide nothing.

    Attributes: `trainer`, None on a rank that is out; `controller`, on rank 0; `iterations`; `acted`, dicts of what was
    carried out: kind, iteration, seconds; on every rank.
    """

    def __init__(
        self, comm, make_trainer, plans, layout, *, settings=None, transport=None, wrap=None, slowdown=None,
        checkpoint=None, acts=True,
    ):  # fmt: skip
        self.comm, self._make, self._acts = comm, make_trainer, acts
        self._wrap, self._slowdown = wrap or (lambda stages: stages), slowdown or (lambda: 1.0)
        self._checkpoint, self.iterations, self.acted = checkpoint, 0, []
        self.scheduler, self._problem = plans[0].plan.scheduler, plans[0].problem
        self.wire = comm.split(0, comm.rank, transport)
        self.agreement = Agreement(comm.split(0, comm.rank), 0)
        self.now = Arrangement(layout.ranks, tuple(checked.plan.microbatches for checked in plans))
        self._members, self._team = tuple(range(comm.world_size)), None
        self._probes, self._probing = (), None
        self.controller = Controller(self.now, self._forecaster, settings) if comm.rank == 0 else None
        self.trainer = make_trainer(comm, plans, layout)
        self._adopt()

    def iteration(self):
        """Train on the next batch, as Trainer.iteration; None on a rank that is out. Then agree, and act."""
        done = None
        if self._probes and self.iterations % PROBE_EVERY == 0:
            link = self._probes[self.iterations // PROBE_EVERY % len(self._probes)]
            self._probing = link, probe_message(self.wire, link)
        if self.trainer is not None:
            self._profiler.begin()
            done = self.trainer.iteration()
        self.iterations += 1
        if self._acts:
            self._agree(self._row(done))
        return done

    def close(self):
        """Release trainer, planes and communicators."""
        if self.trainer is not None:
            self.trainer.close()
        if self._team is not None:
            self._team.close()
        self.agreement.close()
        self.wire.close()

    # -- observing

    def _execute(self, checked, stages, comm, *args, after=None, **options):
        def ended(action):
            self._profiler.after(action)
            if after is not None:
                after(action)

        self._measured = execute(checked, self._stages, comm, *args, after=ended, **options)
        return self._measured

    def _row(self, done):
        """What this rank reports: a row of one length on all ranks."""
        row = np.full(HEAD + self._length, np.nan)
        if self._probing is not None:
            row[PROBED] = self._probing[1]
        if done is not None:
            trainer = self.trainer
            report = self._profiler.report(trainer.plans[trainer.copy], self._measured, done.number)
            row[ITERATION], row[[BEGAN, ENDED]] = done.seconds, done.gradients_s
            row[HEAD : HEAD + len(report)] = report
        return row

    def _seen(self, table):
        """The Seen of all ranks' rows."""
        compute_s, links, gradients_s = {}, {}, {}
        for ranks, checked in zip(self.now.ranks, self.plans, strict=True):
            for part in range(len(ranks[0])):
                here = [parts[part] for parts in ranks]
                reports = [table[rank, HEAD : HEAD + self._lengths[rank]] for rank in here]
                if np.isnan([table[rank, ITERATION] for rank in here]).any():
                    continue
                profile = make_profile(checked, reports)
                for place, rank in enumerate(here):
                    compute_s[rank] = float(np.nansum([values[place] for values in profile.durations_s.values()]))
                for one, other in {(min(pair), max(pair)) for pair in profile.links}:
                    ways = pair_delays(profile, one, other)
                    ends = tuple(sorted((here[one], here[other])))
                    links[ends] = tuple(float(sum(getattr(way, b) for way in ways) / 2) for b in ("low_s", "high_s"))
        for rank in self._lengths:
            gradients_s[rank] = tuple(table[rank, [BEGAN, ENDED]].tolist())
        if self._probing is not None:
            link, _ = self._probing
            links[link] = (float(table[link[1], PROBED]),) * 2
        return Seen(self.iterations - 1, float(np.nanmax(table[:, ITERATION])), compute_s, links, gradients_s)

    # -- deciding

    def _agree(self, row):
        table = np.empty((self.comm.world_size, len(row)))
        self.comm.all_gather(row, table.reshape(-1))
        verdict = self._told(lambda: self.controller.update(self._seen(table)))
        self._probing = None
        if verdict is not None and verdict["kind"] == "validate":
            began_s = time.monotonic()
            measured = examine(self.comm, self.wire, verdict["suspects"], self._slowdown())
            self._note(verdict, began_s)
            verdict = self._told(lambda: self.controller.validated(measured))
        if verdict is not None and verdict["arrangement"] is not None:
            self._rearrange(verdict)
        elif verdict is not None:
            self._note(verdict, time.monotonic())

    def _told(self, decide):
        """What rank 0 decides, a dict, or None, on every rank."""
        payload = None
        if self.comm.rank == 0:
            began_s = time.monotonic()
            decision = decide()
            probes = self.controller.probes
            told = decision and decision.to_dict() | {"deciding_s": time.monotonic() - began_s}
            changed = decision is not None or probes != self._probes
            payload = json.dumps([told, probes]).encode() if changed else b""
            if decision is not None:
                self._keep()
        payload = self.agreement.verdict(payload)
        if not payload:
            return None
        verdict, probes = json.loads(payload)
        self._probes = tuple(map(tuple, probes))
        return verdict

    def _keep(self):
        """The state of the incident in the job's store, where it has one."""
        store = getattr(getattr(self.comm.transport, "group", None), "store", None)
        if store is not None:
            store.set(KEY, json.dumps(self.controller.state()).encode())

    def _forecaster(self, work_s, gradients_s):
        """A Forecaster for stages that take `work_s` a microbatch, F, B and W in the proportions of the plan."""
        problem = self._problem
        parts = (problem.forward, problem.backward_input, problem.backward_weight)
        planned = [sum(times) for times in zip(*parts, strict=True)]
        changes = {
            name: tuple(t * now / then for t, now, then in zip(getattr(problem, name), work_s, planned, strict=True))
            for name in ("forward", "backward_input", "backward_weight")
        }
        return Forecaster(replace(problem, **changes), self.scheduler, gradients_s)

    # -- acting

    def _rearrange(self, verdict):
        began_s = time.monotonic()
        wanted = verdict["arrangement"]
        ranks = tuple(tuple(tuple(parts) for parts in copy) for copy in wanted["ranks"])
        self.now = Arrangement(ranks, tuple(wanted["microbatches"]))
        plans = make_plans(self._problem, self.scheduler, self.now.microbatches)
        members = tuple(sorted(self.now.seats()))
        if members == self._members:
            if self.trainer is not None:
                self.trainer.change(plans, self._layout())
                self._adopt()
        else:
            self._restart(plans, members)
        self._lengths_of()
        self.comm.barrier()
        self._note(verdict, began_s)
        if self.controller is not None and verdict["kind"] == "mitigate":
            self.controller.took(verdict["strategy"], self.acted[-1]["seconds"])

    def _restart(self, plans, members):
        """Through a checkpoint to a trainer on other ranks."""
        path = self._checkpoint or Path(tempfile.gettempdir(), f"lanterne-{self._job()}.npz")
        if self.trainer is not None:
            state = self.trainer.state()
            if self.comm.rank == self._members[0]:
                save(path, state, {})
            self.trainer.close()
        self.comm.barrier()
        if self._team is not None:
            self._team.close()
        self._members, self.trainer = members, None
        self._team = self.comm.split(0 if self.comm.rank in members else -1, self.comm.rank)
        if self._team is not None:
            self.trainer = self._make(self._team, plans, self._layout())
            self.trainer.restore(load(path, {}))
            self._adopt()
        self.comm.barrier()
        if self._checkpoint is None and self.comm.rank == members[0]:
            path.unlink()

    def _job(self):
        """A number that the ranks have in common, and no other job of this host has."""
        number = np.array([os.getpid()])
        self.comm.broadcast(number)
        return int(number[0])

    def _layout(self):
        """The Layout among the ranks that are in."""
        at = {rank: index for index, rank in enumerate(sorted(self.now.seats()))}
        return Layout(tuple(tuple(tuple(at[rank] for rank in parts) for parts in copy) for copy in self.now.ranks))

    def _adopt(self):
        """The trainer has other stages or planes."""
        self.trainer.execute = self._execute
        self._stages = self._wrap(self.trainer.stages)
        self._profiler = Profiler(self.trainer.plane)
        self._lengths_of()

    def _lengths_of(self):
        self.plans = (
            self.trainer.plans
            if self.trainer is not None
            else make_plans(self._problem, self.scheduler, self.now.microbatches)
        )
        self._lengths = {
            rank: report_length(self.plans[copy], place) for rank, (copy, place) in self.now.seats().items()
        }
        self._length = max(self._lengths.values())

    def _note(self, verdict, began_s):
        seconds = time.monotonic() - began_s
        self.acted.append(verdict | {"at": self.iterations, "seconds": seconds})
