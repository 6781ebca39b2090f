"""What the times of actions on a device must be, whether a stand-in or a real GPU: `check_times`."""

import time

import lanterne
from lanterne.pipeline.adapt.profile import KINDS, Profiler, make_profile
from lanterne.pipeline.device.device_times import DeviceTimes
from lanterne.pipeline.execute.execute import execute
from lanterne.pipeline.execute.stage import Stage
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.inline import Inline
from lanterne.pipeline.planes.observed import ObservedPlane
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check

MICROBATCHES, ITERATIONS = 3, 2
DELAYS_S = {"forward": 4e-3, "backward_input": 8e-3, "backward_weight": 16e-3}
# Which of a stage's calls make up an action.
WORK_S = {
    "F": DELAYS_S["forward"],
    "B": DELAYS_S["backward_input"],
    "W": DELAYS_S["backward_weight"],
    "BW": DELAYS_S["backward_input"] + DELAYS_S["backward_weight"],
}


class DelayStage(Stage):
    """A stage that queues delays on a stream and returns at once; `queue_delay(duration_s, stream)`."""

    def __init__(self, queue_delay, stream):
        self._queue = lambda name, parts: queue_delay(DELAYS_S[name] / parts, stream)

    def begin(self, microbatches, inputs=None, targets=None):
        pass

    def forward(self, microbatch, x=None, out=None, part=1, parts=1):
        self._queue("forward", parts)

    def backward_input(self, microbatch, dy=None, out=None, part=1, parts=1):
        self._queue("backward_input", parts)

    def backward_weight(self, microbatch, part=1, parts=1):
        self._queue("backward_weight", parts)

    def step(self):
        pass


def check_times(runtime, stream, queue_delay, scheduler, short_s=0.0):
    """Every action takes as long as was queued, whatever the CPU saw, and the Profile says so.

    Args:
        short_s: what a delay on this device may be too short by.
    """
    problem = Problem(1, MICROBATCHES, 1, 1, 1)
    checked = check(plan(problem, scheduler), problem)

    def job(comm):
        times = DeviceTimes(runtime, stream)
        stages = {0: times.watch(DelayStage(queue_delay, times.stream))}
        with ObservedPlane(0, Inline(comm)) as plane:
            profiler = Profiler(plane, times.durations_s)
            for iteration in range(ITERATIONS):
                began_s = time.monotonic()
                profiler.begin()
                measured = execute(checked, stages, comm, plane=plane, after=profiler.after)
                durations_s = times.durations_s(measured)
                took_s = time.monotonic() - began_s
                for action, duration_s in zip(measured.actions, durations_s.tolist(), strict=True):
                    assert duration_s >= WORK_S[action.kind] / action.parts - short_s, (action, duration_s)
                # No two overlap, and none is counted twice.
                assert durations_s.sum() <= took_s, (iteration, durations_s)
                assert (measured.end_s - measured.start_s).sum() < durations_s.sum(), (iteration, durations_s)
                report = profiler.report(checked, measured, iteration)
                profile = make_profile(checked, [report])
                kinds = {action.kind for action in measured.actions}
                for kind in KINDS:
                    assert (profile.durations_s[kind][0] >= WORK_S[kind] - short_s) == (kind in kinds), kind

    lanterne.spawn(1, job)
