"""Plans for a cluster of calibrated devices: what to plan for, and how long plans take over NCCL or delegates."""

import dataclasses
from typing import NamedTuple

from lanterne.errors import InputError
from lanterne.pipeline.calibrate.parameters import GpuParameters
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.schedules.one_f_one_b import one_f_one_b
from lanterne.pipeline.simulate.check_plan import CheckedPlan, check
from lanterne.pipeline.simulate.devices import Devices, on_devices


class Cluster(NamedTuple):
    """Devices of one kind; `unit_ms` is the problem's unit of time.

    Attributes:
        parameters: of its GPUs. ranks_per_host, delegates: as RecordedRun has them.
    """

    parameters: GpuParameters
    ranks_per_host: int
    delegates: int
    unit_ms: float

    def delegated(self, problem: Problem) -> Problem:
        """`problem` with what delegates add: their hold to each latency, the cost of messages to each F and B.

        Raises:
            InputError: shared links, or a bandwidth; both are in the hold.
        """
        if problem.shared_links or problem.link_bandwidth is not None:
            raise InputError("problem: got link_bandwidth beside a calibration, expected link_latency alone")
        hold, cost, gap = self._hold(problem), self._cost(), self.parameters.gap_ms / self.unit_ms
        ranks = range(problem.stages)
        latency = tuple(tuple(0.0 if a == b else problem.latency(a, b) + hold for b in ranks) for a in ranks)
        ends = (0, problem.stages - 1)
        # The first and the last stage only send or only receive; where there is one alone it does neither.
        more = [gap + cost * (2 - (stage == ends[0]) - (stage == ends[1])) for stage in ranks]
        forward, backward_input = (
            tuple(time + extra for time, extra in zip(times, more, strict=True))
            for times in (problem.forward, problem.backward_input)
        )
        return dataclasses.replace(
            problem,
            forward=forward,
            backward_input=backward_input,
            backward_weight=tuple(time + gap if time else 0.0 for time in problem.backward_weight),
            link_latency=latency,
        )

    def iterations(self, checked: CheckedPlan, problem: Problem) -> dict[str, float]:
        """How long an iteration takes under `problem`, as it is without delegates: 1F1B, and the plan either way."""
        plain = dataclasses.replace(problem, data_parallel=None)
        gap, delegated = self.parameters.gap_ms / self.unit_ms, max(self.delegates, 1)
        blocking = Devices(blocking_groups=True, gap=gap)
        senders = Devices(delegates=delegated, hold=self._hold(problem), message_cost=self._cost(), gap=gap)
        baseline = check(one_f_one_b(plain), plain, memory=False)
        return {
            "1f1b_over_nccl": on_devices(baseline, plain, blocking).makespan(),
            "plan_over_nccl": on_devices(checked, plain, Devices(gap=gap)).makespan(),
            "plan_over_delegates": on_devices(checked, plain, senders).makespan(),
        }

    def _hold(self, problem: Problem) -> float:
        return self.parameters.hold_ms(max(problem.message_nbytes), self.ranks_per_host, self.delegates) / self.unit_ms

    def _cost(self) -> float:
        return self.parameters.cost_ms(self.ranks_per_host) / self.unit_ms
