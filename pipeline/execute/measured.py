"""What the ranks of a pipeline did in an iteration, put together: a Timeline like the simulator's."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.communicator import Communicator
from lanterne.pipeline.execute.execute import Measured
from lanterne.pipeline.plan.costs import costs
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.simulate.check_plan import CheckedPlan
from lanterne.pipeline.simulate.simulate import Timeline

COLUMNS = ("ready_s", "waited", "start_s", "end_s", "sent_s", "blocked")


def gather(measured: Measured, checked: CheckedPlan, comm: Communicator) -> dict[str, NDArray[np.float64]]:
    """The Measured of all ranks as one, on every rank; all call it after `execute`.

    Returns:
        {name: (num_actions,) float64} for each name of COLUMNS, by column of the plan, times of time.monotonic().
    """
    plan = checked.plan
    counts = np.diff(plan.offsets)
    mine = np.zeros((len(COLUMNS), int(counts.max(initial=0))))
    for row, name in zip(mine, COLUMNS, strict=True):
        row[: len(measured.actions)] = getattr(measured, name)
    every = np.empty((comm.world_size, *mine.shape))
    comm.all_gather(mine.reshape(-1), every.reshape(-1))
    by_rank = zip(every, counts.tolist(), strict=True)
    rows = np.concatenate([own[:, :count] for own, count in by_rank], axis=1)
    return dict(zip(COLUMNS, rows, strict=True))


def timeline(
    gathered: Mapping[str, NDArray[np.float64]], checked: CheckedPlan, problem: Problem, unit_s: float
) -> Timeline:
    """The Timeline of what `gather` gave, in units of `unit_s` seconds from the first action's start.

    Where a rank did not wait for a message it may have come earlier than `arrival` says. A message over a link that
    takes time is `sent` once its rank has handed it over.
    """
    table, ids = costs(problem, checked.plan.placement), checked.plan.ids
    origin_s = gathered["start_s"].min()
    times = ("start_s", "end_s", "ready_s", "sent_s")
    start, end, ready, sent = ((gathered[name] - origin_s) / unit_s for name in times)
    sent[(table.latency[ids] == 0) & (table.occupancy[ids] == 0)] = np.nan
    return Timeline(checked.plan, problem, start, end, ready, sent, (), float(end.max()))
