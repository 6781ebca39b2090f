"""The training job of the experiments on mitigation: a small MLP that really trains, its actions paced.

An action takes `pace_s`, of which it computes for a small part: so eight ranks on two cores behave as on eight, what
slows one is known exactly, and the losses show that nothing else changed.
"""

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lanterne.bench.output import report
from lanterne.bench.pipeline.measure import on_ranks
from lanterne.collectives.communicator import Communicator
from lanterne.failslow.mitigate.closed_loop import ClosedLoop, observed
from lanterne.failslow.mitigate.decision import ControllerSettings
from lanterne.pipeline.adapt.injection import InjectedEvent, Replay
from lanterne.pipeline.model.stage_mlp import mlp
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.train.adam import Adam
from lanterne.pipeline.train.rank_layout import Layout, make_layout
from lanterne.pipeline.train.trainer import Trainer, plans
from lanterne.transport.shaped import ShapedTransport

ROWS, WIDTH = 4, 16
PACE_S, SCHEDULER = 2.5e-3, "zb_h1"


def run_job(
    copies: int,
    places: int,
    microbatches: int,
    events: Iterable[InjectedEvent],
    iterations: int,
    *,
    acts: bool = True,
    settings: dict[str, Any] | None = None,
    transport: str = "mpi",
    pace_s: float | None = None,
) -> dict[str, Any]:
    """What `train` gives, of a job on copies x places ranks.

    Args:
        microbatches: of all copies.
        acts: whether the job is watched and mitigated.
        settings: of ControllerSettings, where not the default, a dict.
        pace_s: what an action takes at least; None for PACE_S.
    """
    work = {
        "copies": copies,
        "places": places,
        "microbatches": microbatches,
        "events": [event.to_dict() for event in events],
        "iterations": iterations,
        "acts": acts,
        "settings": settings or {},
        "pace_s": pace_s or PACE_S,
    }
    return on_ranks(train, work, copies * places, transport, 60.0)


def train(comm: Communicator, work: dict[str, Any]) -> dict[str, Any] | None:
    """The work on one rank; on rank 0 a dict: seconds and loss per iteration, what was done, and why."""
    copies, places, total, pace_s = (work[key] for key in ("copies", "places", "microbatches", "pace_s"))
    events = [InjectedEvent.from_dict(event) for event in work["events"]]
    transport = ShapedTransport(comm.transport, {}, separate=True)
    replay = Replay(events, transport.set_link, comm.rank, pace_s=pace_s)

    def batches(number: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        draw = np.random.default_rng(number)
        inputs = draw.standard_normal((total, ROWS, WIDTH))
        return inputs, np.tanh(inputs)

    def make(comm: Communicator, planned: Sequence[CheckedPlan], layout: Layout) -> Trainer:
        model = mlp((WIDTH,) * (2 * places + 1), ROWS)
        return Trainer(
            comm, model, batches, planned, layout=layout, optimizer=lambda: Adam(0.01), plane=observed,
            transport=transport,
        )  # fmt: skip

    problem = Problem(places, total // copies, pace_s, pace_s, pace_s)
    loop = ClosedLoop(
        comm,
        make,
        plans(problem, SCHEDULER, (total // copies,) * copies),
        make_layout(copies * places, places, copies),
        settings=ControllerSettings(**work["settings"]),
        transport=transport,
        wrap=replay.wrap,
        slowdown=lambda: replay.slowdown,
        acts=work["acts"],
    )
    times_s, losses = [], []
    for number in range(work["iterations"]):
        if comm.rank == 0:
            report.progress(f"iteration {number + 1} of {work['iterations']}")
        replay.begin(number)
        began_s = time.monotonic()
        done = loop.iteration()
        times_s.append(time.monotonic() - began_s)
        losses.append(done.loss if done else None)
    loop.close()
    if loop.controller is None:
        return None
    state = loop.controller.state()
    return {
        "iteration_s": times_s,
        "losses": losses,
        "acted": json.loads(json.dumps(loop.acted)),
        "incidents": state["incidents"],
    }


def outcomes(events: Iterable[InjectedEvent], plain: dict[str, Any], mitigated: dict[str, Any]) -> list[dict[str, Any]]:
    """Per InjectedEvent, a record: what was found of it, when, what was done, and what it took with and without."""
    records = []
    for event in events:
        what, last = event.suspect, int(event.last)
        incident = next(
            (i for i in mitigated["incidents"] if i["what"] == what and event.first <= i["named"] < last), None
        )
        strategies = [
            act["strategy"]
            for act in mitigated["acted"]
            if act["kind"] == "mitigate" and event.first <= act["iteration"] < last and what in act["suspects"]
        ]
        span = slice(event.first, last)
        records.append(
            {
                "what": what,
                "first": event.first,
                "last": last,
                "severity": event.slowdown if event.rank is not None else event.latency_s,
                "named_after": incident and incident["named"] - event.first + 1,
                "ended_after": incident and incident["ended"] and incident["ended"] - last + 1,
                "strategies": list(dict.fromkeys(strategies)),
                "plain_s": statistics.mean(plain["iteration_s"][span]),
                "mitigated_s": statistics.mean(mitigated["iteration_s"][span]),
            }
        )
    return records


def same_losses(one: dict[str, Any], other: dict[str, Any], tolerance: float = 1e-5) -> bool:
    """Whether two runs have the same losses, as far as both know them."""
    pairs = [(a, b) for a, b in zip(one["losses"], other["losses"], strict=True) if a is not None and b is not None]
    return bool(pairs) and all(abs(a - b) <= tolerance * abs(a) for a, b in pairs)
