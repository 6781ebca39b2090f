"""The JSON form: exact both ways, and precise about what is wrong."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanterne.collectives.algorithms.catalogue import ALGORITHMS, make_schedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.formats.export_json import from_json, to_json
from lanterne.collectives.schedule.passes import relabelled
from lanterne.errors import ScheduleError

KEYS = "schema_version collective algorithm world_size num_chunks late_rank".split()


@pytest.mark.parametrize("line", ALGORITHMS.values(), ids=lambda line: f"{line.collective}-{line.name}")
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_round_trip_is_exact(line, world_size):
    if line.refuses(world_size):
        pytest.skip(line.refuses(world_size))
    schedule = make_schedule(line.collective, line.name, world_size)
    text = json.dumps(to_json(schedule))
    again = from_json(json.loads(text))
    assert again == schedule
    assert again.phases == schedule.phases
    assert json.dumps(to_json(again)) == text


def test_contract_form():
    document = to_json(make_schedule("all_reduce", "ring", 2))
    assert [document[key] for key in KEYS] == [1, "all_reduce", "ring", 2, 2, None]
    assert document["phases"] == [
        {"name": "reduce_scatter", "rounds": [[[0, 1, 1, "reduce"], [1, 0, 0, "reduce"]]]},
        {"name": "all_gather", "rounds": [[[0, 1, 0, "copy"], [1, 0, 1, "copy"]]]},
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "got schema_version 2, expected 1"),
        ({"world_size": "8"}, "got world_size '8', expected int"),
        ({"world_size": True}, "got world_size True, expected int"),
        ({"world_size": 0}, "on 0 ranks, expected 1 or more"),
        ({"phases": None}, "got phases None, expected list"),
        ({"phases": [3]}, "got phase 3, expected an object"),
        (
            {"phases": [{"name": "x", "rounds": [[], [[0, 1, 0, "copy"], [0, 1, "copy"]]]}]},
            "phase 'x', round 1, transfer 1: got",
        ),
        (
            {"phases": [{"name": "x", "rounds": [[[0, 1, 0, "move"]]]}]},
            'expected .src, dst, chunk, "copy" or "reduce".',
        ),
        ({"phases": [{"name": "x", "rounds": [[[0, 2**40, 0, "copy"]]]}]}, "beyond 32 bits"),
        ({"phases": [{"name": "x", "rounds": [[[0, 1, -(2**90), "copy"]]]}]}, "beyond 32 bits"),
        ({"phases": [{"name": "x", "rounds": [7]}]}, "round 0: got 7, expected a list of transfers"),
    ],
)
def test_bad_documents(change, message):
    document = to_json(make_schedule("all_reduce", "ring", 2)) | change
    with pytest.raises(ScheduleError, match=message):
        from_json(document)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from([*KEYS, "root", "ports", "note", "phases"]), JSON, max_size=4),
    st.integers(0, 5),
    JSON,
)
def test_what_is_damaged_is_refused_in_a_line_or_judged(changes, place, value):
    document = to_json(make_schedule("all_reduce", "late_join", 3))
    rounds = document["phases"][0]["rounds"] + document["phases"][-1]["rounds"]
    rounds[place % len(rounds)][0][place % 4] = value
    for each in (document, document | changes):
        try:
            check(relabelled(from_json(each)))
        except ScheduleError as error:
            assert "\n" not in str(error), each


def test_not_an_object():
    with pytest.raises(ScheduleError, match="got list, expected a JSON object"):
        from_json([])
