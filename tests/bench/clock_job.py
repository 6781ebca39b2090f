"""A rank on a host of its own, whose clock is off: what link delays does its pipeline measure? For lab/test_command.py.

clock_job.py OFFSET_S NBYTES: rank 0 prints {"clock_s": [...], "error_s": [...], "delay_s": {"0-1": ..., "1-0": ...}}.
"""

import json
import sys
import time

_monotonic = time.monotonic
# Before lanterne is imported: all its modules then read a clock that was started at another time on this host.
_off_s = 0.0
time.monotonic = lambda: _monotonic() + _off_s

import lanterne  # noqa: E402
from lanterne.pipeline.adapt.adapter import Adapter, AdaptSettings  # noqa: E402
from lanterne.pipeline.execute.stage_timed import Clock, TimedStage  # noqa: E402
from lanterne.pipeline.plan.problem import Problem  # noqa: E402
from lanterne.pipeline.planes.inline import Inline  # noqa: E402
from lanterne.pipeline.planes.observed import ObservedPlane  # noqa: E402
from lanterne.pipeline.planners.schedulers import plan  # noqa: E402
from lanterne.pipeline.simulate.check_plan import check  # noqa: E402


def main(off_s, nbytes):
    global _off_s  # noqa: PLW0603 (the clock of this process)
    with lanterne.init(transport="ucx") as comm:
        _off_s = off_s * comm.rank
        problem = Problem(2, 4, 0.005, 0.005, 0.005)
        checked = check(plan(problem, "1f1b"), problem)
        stages = {
            comm.rank: TimedStage((0.005, 0.005, 0.005), Clock(), nbytes, begins=comm.rank == 0, ends=comm.rank == 1)
        }
        plane = ObservedPlane(comm.rank, Inline(comm))
        settings = AdaptSettings(scheduler="1f1b", divert=False)
        with Adapter(comm, checked, plane, problem, settings) as adapter:
            for _ in range(6):
                adapter.execute(adapter.checked, stages, comm)
                adapter.agree()
            comm.barrier()
            if comm.rank == 0:
                links = adapter.profiles[0][-1].links
                found = {"clock_s": adapter.clocks.offset_s.tolist(), "error_s": adapter.clocks.error_s.tolist()}
                delays_s = {f"{one}-{other}": [delay.low_s, delay.high_s] for (one, other), delay in links.items()}
                print(json.dumps(found | {"delay_s": delays_s}))


main(float(sys.argv[1]), int(sys.argv[2]))
