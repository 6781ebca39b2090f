"""Problems: what a value may be, what is said where it may not, and JSON."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from problems import problems

from lanterne.errors import InputError
from lanterne.pipeline.plan.problem import Problem, StageMemory

GOOD = {
    "stages": 3,
    "microbatches": 4,
    "forward": [1, 1, 2],
    "backward_input": 2,
    "backward_weight": [0, 1, 1],
    "link_latency": [0, 5],
    "max_inflight_activations": 3,
    "note": "notes are allowed",
}


def with_keys(**keys):
    document = {key: value for key, value in (GOOD | keys).items() if value is not ...}
    return json.loads(json.dumps(document))


@settings(max_examples=40, deadline=None)
@given(problems(shared=True))
def test_json_and_replace_give_an_equal_problem(problem):
    again = Problem.from_dict(json.loads(json.dumps(problem.to_dict())))
    assert again == problem and hash(again) == hash(problem)
    assert dataclasses.replace(problem) == problem


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"stages": ...}, "problem: stages is missing"),
        ({"forward": ..., "forwards": 3}, "problem: got the unknown key 'forwards', expected 'forward'"),
        (
            {"max_inflight_activations": ..., "max_inflight": 3},
            "problem: got the unknown key 'max_inflight', expected 'max_inflight_activations'",
        ),
        ({"stages": 0}, "stages: got 0, expected a whole number of at least 1"),
        ({"stages": 2.5}, "stages: got 2.5, expected a whole number"),
        ({"stages": True}, "stages: got True, expected a whole number"),
        ({"microbatches": "4"}, "microbatches: got '4', expected a whole number"),
        ({"microbatches": 10**9}, "microbatches: got 1e+09, expected at most 1048576"),
        ({"microbatches": 10**6}, "microbatches: got 1000000 on 3 stages, expected at most 1048576 in all"),
        ({"microbatches": -1}, "microbatches: got -1, expected a whole number"),
        ({"microbatches": 10**400}, "microbatches: got 10000"),
        ({"forward": 10**400}, "forward[0]: got 10000"),
        ({"forward": 1e308}, "forward[0]: got 1e+308, expected a number above 0"),
        ({"forward": float("inf")}, "forward[0]: got inf, expected a number above 0"),
        ({"forward": [1, 1]}, "forward: got 2 values, expected 3"),
        ({"forward": [1, 0, 1]}, "forward[1]: got 0, expected a number above 0"),
        ({"forward": [1, -3, 1]}, "forward[1]: got -3, expected a number above 0"),
        ({"forward": [1, None, 1]}, "forward[1]: got None, expected a number above 0"),
        ({"forward": "fast"}, "forward[0]: got 'fast', expected a number above 0"),
        ({"backward_input": 0}, "backward_input[0]: got 0, expected a number above 0"),
        ({"backward_weight": -1}, "backward_weight[0]: got -1, expected a number of at least 0"),
        ({"link_latency": [1, 2, 3]}, "link_latency: got 3 values, expected 2"),
        ({"link_latency": [1, -2]}, "link_latency[1]: got -2, expected a number of at least 0"),
        ({"link_latency": [[0, 1], [1, 0]]}, "link_latency: got 2 rows, expected 3, one per source"),
        (
            {"link_latency": [[0, 1, 1], [1, 0], [1, 1, 0]]},
            "link_latency[1]: got 2 values, expected 3, one per destination",
        ),
        (
            {"link_latency": [[0, 1, 1], [1, 0, 1], [1, -1, 0]]},
            "link_latency[2][1]: got -1, expected a number of at least 0",
        ),
        ({"link_bandwidth": [1, 1]}, "message_nbytes: got none beside a link_bandwidth"),
        ({"link_bandwidth": [1, 0], "message_nbytes": 5}, "link_bandwidth[1]: got 0, expected a number above 0"),
        ({"message_nbytes": [1, 2, 3]}, "message_nbytes: got 3 values, expected 2"),
        ({"message_nbytes": {"forward": 1}}, "message_nbytes: backward_input is missing"),
        ({"shared_links": 5}, "shared_links: got 5, expected a list"),
        ({"shared_links": [[[0, 3]]]}, "shared_links[0]: got pair [0, 3] of 3 ranks"),
        ({"shared_links": [[[0, 1]], [[0, 1]]]}, "shared_links[1]: got pair [0, 1] twice"),
        ({"shared_links": [[[0, [1]]]]}, "shared_links[0]: got pair [0, [1]] of 3 ranks"),
        ({"shared_links": [[0, 1]]}, "shared_links[0]: got [0, 1], expected a list of [source, destination]"),
        (
            {"max_inflight_activations": 0},
            "max_inflight_activations: got 0 on stage 0, expected at least 1, which any schedule needs",
        ),
        (
            {"max_inflight_activations": [1, 1, 0.5]},
            "max_inflight_activations: got 0.5 on stage 2, expected at least 1",
        ),
        (
            {"memory": {"forward": 1, "backward_input": 0, "backward_weight": -1}},
            "memory: got a max_inflight_activations too",
        ),
        ({"data_parallel": {"kind": "fsdp"}}, "data_parallel.kind: got 'fsdp', expected all_reduce or zero1"),
        ({"data_parallel": {"kind": "all_reduce"}}, "data_parallel: time is missing"),
        (
            {"data_parallel": {"kind": "zero1", "reduce_scatter": 1, "all_gather": -1}},
            "data_parallel.all_gather[0]: got -1",
        ),
        ({"recompute": {"keeps": 2}}, "recompute.keeps: got 2, expected 0 to 1"),
        ({"recompute": {"time": [1]}}, "recompute.time: got 1 values, expected 3"),
    ],
)
def test_every_bad_value_names_its_key(keys, message):
    with pytest.raises(InputError) as error:
        Problem.from_dict(with_keys(**keys))
    assert str(error.value).startswith(message.split(":")[0]) and message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        (
            {"forward": 2, "backward_input": 1, "backward_weight": -2},
            "memory: got F + B + W = 1 on stage 0, expected 0",
        ),
        ({"forward": -1, "backward_input": 0, "backward_weight": 1}, "memory: got F -1 and W +1 on stage 0"),
        (
            {"forward": 2, "backward_input": 1, "backward_weight": -3, "capacity": 2.5},
            "memory.capacity: got 2.5 on stage 0, expected at least 3",
        ),
        (
            {"forward": 2, "backward_input": -1, "backward_weight": -1, "capacity": [2, 2, 1]},
            "memory.capacity: got 1 on stage 2, expected at least 2",
        ),
        ({"forward": 2, "backward_input": -2}, "memory: backward_weight is missing"),
    ],
)
def test_memory_that_cannot_be(memory, message):
    with pytest.raises(InputError) as error:
        Problem.from_dict(with_keys(max_inflight_activations=..., memory=memory))
    assert message in str(error.value)


def test_recomputation_moves_memory_from_f_to_b():
    problem = Problem.from_dict(with_keys(recompute={"keeps": 0.25}))
    assert problem.limits == StageMemory((0.25,) * 3, (0.75,) * 3, (-1.0,) * 3, (3.0,) * 3)
    assert problem.durations["B"] == (3, 3, 4) and problem.durations["F"] == (1, 1, 2)


def test_a_matrix_gives_each_direction():
    problem = Problem(2, 1, 1, 1, 1, link_latency=[[0, 3], [7, 0]])
    assert (problem.latency(0, 1), problem.latency(1, 0)) == (3, 7)
