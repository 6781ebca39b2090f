"""All errands; which one a seed stands for, and what comes of it."""

import gc
from collections.abc import Callable

from evaluation.simulation.errands import (
    admitting,
    boards,
    deciding,
    ending,
    grouping,
    hosts,
    meeting,
    returning,
)
from evaluation.simulation.errands.errand import Errand, ErrandOutcome, run_errand

# By name; seeds take one after the other.
ERRANDS: dict[str, Callable[[Errand], object]] = {
    "claims": admitting.claims,
    "anew": admitting.anew,
    "ends": ending.ends,
    "votes": ending.votes,
    "idle": ending.idle,
    "agreements": meeting.agreements,
    "absences": meeting.absences,
    "returns": returning.returns,
    "between": returning.between,
    "windows": deciding.windows,
    "durations": deciding.durations,
    "prepared": deciding.prepared,
    "calls": boards.calls,
    "memory": boards.memory,
    "seats": boards.seats,
    "fellows": hosts.fellows,
    "elector": hosts.elector,
    "losses": hosts.losses,
    "a leader": hosts.a_leader,
    "goodbyes": grouping.goodbyes,
    "ends after": grouping.ends_after,
    "no shows": grouping.no_shows,
    "mixed MPI": grouping.mixed_mpi,
    "grows": grouping.grows,
    "electors": grouping.electors,
    "heirs": grouping.heirs,
}


def run(seed: int, *, traced: bool = False) -> ErrandOutcome:
    """What comes of the errand of a seed: the same each time."""
    gc.disable()
    try:
        return run_errand(seed, [*ERRANDS.items()], traced=traced)
    finally:
        gc.enable()
