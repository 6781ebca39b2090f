"""Plans of a pipeline with one slow link, compared by the simulator."""

from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.analysis import bubble_rate
from lanterne.pipeline.simulate.simulate import simulate

# Four stages; the link from rank 1 to rank 2 takes as long as two forward passes.
problem = Problem(stages=4, microbatches=12, forward=10, backward_input=10, backward_weight=10, link_latency=(0, 20, 0))
timelines = {name: simulate(plan(problem, name), problem) for name in ("1f1b", "zb_h1", "adaptra", "best")}
for name, timeline in timelines.items():
    print(f"{name:8} {timeline.makespan:5.0f} ms, {bubble_rate(timeline):.0%} of it idle")
assert timelines["best"].makespan <= min(timeline.makespan for timeline in timelines.values())
