"""The job of validate_score.py: one validation of all, and one of suspects alone, on ranks of which one may be slow.

It stands apart because ranks import it by its name, and validate_score runs as a program, which has none.
"""

import math
import time
from typing import Any

from lanterne.collectives.communicator import Communicator
from lanterne.failslow.validate.suspects import Examiner
from lanterne.failslow.validate.validate import Injected, validate
from lanterne.pipeline.adapt.suspect import Suspect
from lanterne.pipeline.planes.plane_makers import shaped
from lanterne.transport.shaped import Link

LIMIT_S = 5.0
SLOW_RANK, SLOWDOWN, SLOW_LINK, LATENCY_S = 1, 2.0, (0, 1), 5e-3
SUSPECTS = (Suspect.rank(1), Suspect.rank(2), Suspect.link(0, 1), Suspect.link(2, 3))


def measure(comm: Communicator, work: dict[str, Any]) -> dict[str, Any] | None:
    """The work on one rank; the record on rank 0."""
    kind = work["kind"]
    a, b = SLOW_LINK
    links = {(a, b): Link(LATENCY_S), (b, a): Link(LATENCY_S)} if kind == "slow link" else {}
    slowdown = SLOWDOWN if kind == "slow rank" and comm.rank == SLOW_RANK else 1.0
    under_test = shaped(comm, links)
    found = validate(under_test, limit_s=LIMIT_S, injected=Injected(slowdown, slowdown))
    examiner = Examiner(comm, under_test.transport, slowdown=lambda: slowdown)
    comm.barrier()
    began_s = time.monotonic()
    severities = examiner.examine(SUSPECTS)
    examined_s = time.monotonic() - began_s
    examiner.close()
    if comm.rank:
        return None
    # JSON has no nan.
    told = {name: None if math.isnan(value) else value for name, value in severities.items()}
    return {"validation": found.to_json(), "severities": told, "examined_s": examined_s}
