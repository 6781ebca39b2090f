"""What a decision does to a job that trains: the losses are those of a job that nothing happened to."""

import json
import sys

import numpy as np
import pytest

import lanterne
from lanterne.failslow.mitigate.closed_loop import ClosedLoop, observed
from lanterne.failslow.mitigate.decision import ControllerSettings
from lanterne.failslow.validate.suspects import Examiner
from lanterne.pipeline.adapt import decide
from lanterne.pipeline.adapt.injection import SlowStage
from lanterne.pipeline.model.stage_gpt import gpt
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.plane_makers import adapting
from lanterne.pipeline.train.adam import Adam
from lanterne.pipeline.train.rank_layout import make_layout
from lanterne.pipeline.train.trainer import Trainer, plans
from lanterne.transport.job.launch import launch

TOTAL, ITERATIONS = 8, 6
HOME = [[[0], [1]], [[2], [3]]]


def batches(number):
    inputs = np.random.default_rng(number).standard_normal((TOTAL, 2, 6))
    return inputs, np.tanh(inputs)


def train(comm, steps):
    """The losses of every iteration on a rank, None where it was out; `steps`: iteration -> (ranks, microbatches)."""

    def make(comm, planned, layout):
        return Trainer(
            comm, mlp((6,) * 5, 2), batches, planned, layout=layout, optimizer=lambda: Adam(0.01), plane=observed
        )

    planned = plans(Problem(2, TOTAL // 2, 2, 2, 1), "zb_h1", (TOTAL // 2,) * 2)
    loop, losses = ClosedLoop(comm, make, planned, make_layout(4, 2, 2)), []
    for number in range(ITERATIONS):
        if number in steps:
            ranks, microbatches = steps[number]
            arrangement = {"ranks": ranks, "microbatches": microbatches}
            loop._rearrange(json.loads(json.dumps({"kind": "revert", "arrangement": arrangement})))
        done = loop.iteration()
        losses.append(None if done is None else done.losses)
    loop.close()
    return losses


STEPS = {
    "rebalanced": {2: (HOME, [2, 6]), 4: (HOME, [4, 4])},
    "moved": {2: ([[[3], [1]], [[2], [0]]], [4, 4]), 4: (HOME, [4, 4])},
    "moved and rebalanced": {2: ([[[1], [0]], [[3], [2]]], [5, 3]), 3: ([[[2], [0]], [[3], [1]]], [3, 5])},
    "restarted without two ranks, and with them again": {2: (HOME[:1], [8]), 4: (HOME, [4, 4])},
    "restarted without rank 0": {3: (HOME[1:], [8])},
}


@pytest.fixture(scope="module")
def expected():
    """The losses of a job that nothing happens to."""
    return lanterne.spawn(4, train, {})[0]


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_what_is_done_changes_no_loss(steps, expected):
    for losses in lanterne.spawn(4, train, steps):
        for number, (mine, those) in enumerate(zip(losses, expected, strict=True)):
            if mine is not None:
                np.testing.assert_allclose(mine, those, rtol=1e-5, err_msg=f"iteration {number}")
    assert len(expected) == ITERATIONS


@pytest.mark.parametrize("scheduler", ["zb_h1", "zb_v"])
def test_the_plan_adapts_wherever_ranks_are_and_no_loss_changes(scheduler, expected, monkeypatch):
    """Calibrated once, then moved, rebalanced and without two ranks: each time an Adapter knows what is undisturbed."""
    monkeypatch.setattr(decide, "CALIBRATED", 1)
    moves = {3: ([[[3], [1]], [[2], [0]]], [4, 4]), 4: (HOME, [2, 6]), 5: (HOME[:1], [8])}

    def job(comm):
        def make(comm, planned, layout):
            return Trainer(
                comm, mlp((6,) * 5, 2), batches, planned, layout=layout, optimizer=lambda: Adam(0.01), plane=adapting,
                cap_nbytes=600,
            )  # fmt: skip

        planned = plans(Problem(2, TOTAL // 2, 2, 2, 1), scheduler, (TOTAL // 2,) * 2)
        loop, losses, seen = ClosedLoop(comm, make, planned, make_layout(4, 2, 2), adapts=True), [], []
        for number in range(ITERATIONS):
            if number in moves:
                arrangement = dict(zip(("ranks", "microbatches"), moves[number], strict=True))
                loop._rearrange(json.loads(json.dumps({"kind": "revert", "arrangement": arrangement})))
            # Ranks of the job: the first place of copy 0 and its neighbour, or neighbours nowhere.
            loop.avoid({(0, 1)})
            done = loop.iteration()
            losses.append(None if done is None else done.losses)
            adapter, trainer = loop._adapter, loop.trainer
            seen.append(trainer and (adapter.base, trainer.plane.pairs, trainer.spill.peak_nbytes))
        loop.close()
        assert {checked.plan.placement for checked in loop.plans} == {planned[0].plan.placement}
        return losses, seen, [change.copy for change in loop.changes if "calibrated" in change.findings]

    found = lanterne.spawn(4, job)
    for losses, _, calibrated in found:
        assert calibrated in ([0, 1], [1, 0])
        for number, (mine, those) in enumerate(zip(losses, expected, strict=True)):
            if mine is not None:
                np.testing.assert_allclose(mine, those, rtol=1e-5, err_msg=f"iteration {number}")
    of_rank_0, of_rank_3 = found[0][1], found[3][1]
    base = of_rank_0[2][0]
    assert base is not None and [each[0] == base for each in of_rank_0[2:]] == [True] * 4
    # Together in a pipeline but for iteration 3, when ranks 3 and 1 are, and 2 and 0.
    assert [each[1] for each in of_rank_0] == [((0, 1),)] * 3 + [()] + [((0, 1),)] * 2
    assert [each and each[1] for each in of_rank_3] == [()] * 5 + [None]
    assert 0 < of_rank_0[-1][2] <= 600


def test_a_path_that_is_dead_for_one_part_is_avoided_by_all():
    """Else the ranks of that part would wait for the others, which wait for them."""

    def job(comm):
        def make(comm, planned, layout):
            def model(tensor):
                return gpt(11, 4, 8, 2, 2, 2, tensor)

            return Trainer(comm, model, tokens, planned, layout=layout, plane=adapting)

        planned = plans(Problem(2, 4, 2, 2, 1), "zb_h1", (4,))
        loop = ClosedLoop(comm, make, planned, make_layout(4, 2, 1, 2), adapts=True)
        loop.avoid({(0, 2)})
        loop.iteration()
        pairs = loop.trainer.plane.pairs
        loop.close()
        return pairs

    assert lanterne.spawn(4, job, timeout_s=20) == [((0, 1),)] * 4


def tokens(number):
    drawn = np.random.default_rng(number).integers(0, 11, (4, 2, 5))
    return drawn[..., :-1], drawn[..., 1:]


@pytest.mark.timing
def test_who_is_out_is_tested_and_comes_back():
    """Rank 3 is slow, left out by a restart, well again, and in; by the controller's own decisions."""

    def job(comm):
        factor = [1.0]

        def make(comm, planned, layout):
            return Trainer(
                comm, mlp((6,) * 5, 2), batches, planned, layout=layout, optimizer=lambda: Adam(0.01), plane=observed
            )

        def wrap(stages):
            return {number: Slow(stage, 2e-3, lambda: factor[0]) for number, stage in stages.items()}

        planned = plans(Problem(2, TOTAL // 2, 2e-3, 2e-3, 2e-3), "zb_h1", (TOTAL // 2,) * 2)
        settings = ControllerSettings(calibrate=4, rebalance_s=100.0, topology_s=100.0, restart_s=1e-3)
        loop = ClosedLoop(
            comm, make, planned, make_layout(4, 2, 2), settings=settings, wrap=wrap, slowdown=lambda: factor[0]
        )
        loop._examiner = Exact(comm, slowdown=lambda: factor[0])
        where = []
        for number in range(42):
            factor[0] = 6.0 if comm.rank == 3 and 9 <= number < 22 else 1.0
            loop.iteration()
            where.append(loop.trainer is not None)
        loop.close()
        return where, loop.controller and loop.controller.incidents

    found = lanterne.spawn(4, job)
    incident = next(one for one in found[0][1] if one["what"] == "rank 3")
    assert incident["named"] < 22 <= incident["ended"]
    assert [where[0] and where[-1] for where, _ in found] == [True] * 4
    # With the rank goes its copy.
    assert [False in where for where, _ in found] == [False, False, True, True]


class Exact(Examiner):
    """Threads that share cores would blame each other."""

    def examine(self, suspects):
        self.compare(range(self.comm.world_size))
        factors = np.empty(self.comm.world_size)
        self.comm.all_gather(np.array([self.retest()]), factors)
        # On a busy machine links are suspected, too.
        ranks = {name: int(name.removeprefix("rank ")) for name in suspects if name.startswith("rank ")}
        return {name: factors[ranks[name]] if name in ranks else 1.0 for name in suspects}

    def _load_s(self):
        return 1e-3 * self._slowdown()


class Slow(SlowStage):
    """Paced, and as slow as `factor` says at each action."""

    def __init__(self, stage, pace_s, factor):
        self._factor = factor
        super().__init__(stage, pace_s)

    @property
    def slowdown(self):
        return self._factor()

    @slowdown.setter
    def slowdown(self, value):
        pass


KEPT = """
import json
import lanterne
import numpy as np
from lanterne.failslow.mitigate.closed_loop import KEY, ClosedLoop, observed
from lanterne.failslow.mitigate.decision import Decision
from lanterne.pipeline.train.rank_layout import make_layout
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.train.trainer import Trainer, plans

def make(comm, planned, layout):
    return Trainer(comm, mlp((4, 4), 2), lambda n: (np.ones((4, 2, 4)),) * 2, planned, layout=layout, plane=observed)

with lanterne.init(transport="mpi") as comm:
    loop = ClosedLoop(comm, make, plans(Problem(1, 2, 1, 1, 1), "1f1b", (2, 2)), make_layout(2, 1, 2))
    loop._spread(Decision("report", 3, evidence="told") if comm.rank == 0 else None)
    if comm.rank == 0:
        print(json.loads(comm.transport.membership.store.get(KEY))["arrangement"]["microbatches"])
    loop.close()
"""


def test_the_state_of_an_incident_is_in_the_jobs_store(tmp_path, capfd):
    pytest.importorskip("mpi4py")
    script = tmp_path / "kept.py"
    script.write_text(KEPT)
    assert launch([sys.executable, str(script)], 2, launcher="mpi", timeout_s=60) == 0
    assert capfd.readouterr().out.strip() == "[2, 2]"
