"""Plans of every scheduler against digests and makespans that were recorded: a change of any plan shows here.

Record them again with `python tests/pipeline/planners/test_golden_plans.py` and say in the commit why they changed.
"""

import hashlib
import json
from pathlib import Path

import pytest

from lanterne.errors import InputError
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.best import best
from lanterne.pipeline.planners.crosspipe import crosspipe
from lanterne.pipeline.planners.schedulers import SCHEDULERS, plan
from lanterne.pipeline.simulate.simulate import simulate

DATA = Path(__file__).parents[1] / "data"
TIMES = [100, 120, 90, 110], 113, 87, [50, 0, 170]
SHARED = [[[0, 1], [1, 2], [2, 3]], [[1, 0], [2, 1], [3, 2]]]
PROBLEMS = {case["id"]: Problem.from_dict(case) for case in json.loads((DATA / "cases.json").read_text())["cases"]} | {
    "slow-link": Problem(
        6, 12, [100, 120, 90, 110, 100, 130], 113, 87, [50, 0, 170, 0, 90], max_inflight_activations=5
    ),
    "shared": Problem(4, 12, *TIMES, link_bandwidth=1, message_nbytes=60, shared_links=SHARED),
    "bandwidth": Problem(4, 7, *TIMES, link_bandwidth=[2, 1, 2], message_nbytes=120, max_inflight_activations=4),
    "backward-frees": Problem(
        4, 7, *TIMES, memory={"forward": 3, "backward_input": -1, "backward_weight": -2, "capacity": 13}
    ),
    "backward-adds": Problem(
        4, 7, *TIMES, memory={"forward": 3, "backward_input": 2, "backward_weight": -5, "capacity": 13}
    ),
    "zero1": Problem(
        4, 7, *TIMES, data_parallel={"kind": "zero1", "reduce_scatter": 130, "all_gather": [70, 0, 90, 30]}
    ),
    "all-reduce": Problem(4, 7, *TIMES, data_parallel={"kind": "all_reduce", "time": [130, 0, 90, 30]}),
    "recompute": Problem(4, 7, *TIMES, recompute={"keeps": 0.25}, max_inflight_activations=3),
    "lengths": Problem(4, 6, *TIMES, microbatch_lengths=[1, 2, 0.5, 1, 3, 1], max_inflight_activations=4),
    "little-memory": Problem(4, 12, *TIMES, max_inflight_activations=2),
}
PLANNERS = {
    name: (lambda problem, name=name: plan(problem, name)) for name in SCHEDULERS if name not in ("best", "optimal")
}
for placement in ("unidirectional", "wave", "loop", "bidirectional"):
    PLANNERS[f"crosspipe {placement}"] = lambda problem, on=placement: crosspipe(problem, placement=on, weight_parts=1)
    PLANNERS[f"best {placement}"] = lambda problem, on=placement: best(problem, placement=on, effort=0.05)


def record(planner, problem):
    """[digest, makespan] of the plan; the error's class where there is none."""
    try:
        made = PLANNERS[planner](problem)
    except InputError as error:
        return type(error).__name__
    text = json.dumps([made.words(), [list(map(str, messages)) for messages in made.message_order]])
    return [hashlib.sha256(text.encode()).hexdigest()[:12], round(simulate(made, problem).makespan, 6)]


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_plan_is_the_recorded_one(name):
    recorded = json.loads((DATA / "plans.json").read_text())[name]
    assert {planner: record(planner, PROBLEMS[name]) for planner in PLANNERS} == recorded


if __name__ == "__main__":
    rows = {name: {each: record(each, PROBLEMS[name]) for each in PLANNERS} for name in PROBLEMS}
    lines = [f" {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
    (DATA / "plans.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
