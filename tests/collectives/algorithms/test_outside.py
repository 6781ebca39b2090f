"""Algorithms of others, by name: files, functions, entry points; what is wrong with them is told."""

import json
from importlib import metadata

import pytest

from lanterne.collectives.algorithms import outside
from lanterne.collectives.algorithms.catalogue import find_algorithm, make_schedule
from lanterne.collectives.algorithms.ring import ring_all_reduce
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.formats.export_json import to_json
from lanterne.errors import InputError, ScheduleError

RING = "lanterne.collectives.algorithms.ring:ring_all_reduce"
LATE = "lanterne.collectives.algorithms.late.join:late_join_all_reduce"
TREE = "lanterne.collectives.algorithms.tree:tree_broadcast"


def file_of(path, schedule, **changes):
    path.write_text(json.dumps(to_json(schedule) | changes))
    return str(path)


def test_a_function_is_an_algorithm_with_what_it_takes():
    line = find_algorithm("all_reduce", LATE)
    assert (line.outside, line.late, line.chunked, line.nodes, line.own) == (True, True, True, False, False)
    made = make_schedule("all_reduce", LATE, 5, 7, late_rank=2)
    assert made == make_schedule("all_reduce", "late_join", 5, 7, late_rank=2)
    assert make_schedule("broadcast", TREE, 4, root=2).root == 2
    assert make_schedule("all_reduce", RING, 4, 8).num_chunks == 8


def test_a_file_is_an_algorithm_for_its_ranks(tmp_path):
    path = file_of(tmp_path / "mine.json", ring_all_reduce(4))
    line = find_algorithm("all_reduce", path)
    assert line.refuses(4) is None
    assert line.refuses(5) == "its schedule is of 4 ranks"
    assert make_schedule("all_reduce", path, 4).num_rounds == 6
    file_of(tmp_path / "mine.json", ring_all_reduce(5))
    assert find_algorithm("all_reduce", path).refuses(5) is None, "it was read again"


def test_labels_of_files_are_found(tmp_path):
    """Ports, and the rounds that need the late rank, are those of the transfers, whatever the file says of them."""
    late = make_schedule("all_reduce", "late_join", 4, late_rank=1)
    phases = [{"name": "all", "rounds": [each for phase in to_json(late)["phases"] for each in phase["rounds"]]}]
    found = make_schedule("all_reduce", file_of(tmp_path / "late.json", late, phases=phases), 4)
    assert [phase.name for phase in check(found).schedule.phases][-1] == "join"
    assert found.phases[-1].start >= late.phases[-1].start
    allpairs = make_schedule("all_reduce", "allpairs", 4)
    assert make_schedule("all_reduce", file_of(tmp_path / "wide.json", allpairs, ports=1), 4).ports == 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:f", "algorithm no_such_module:f: No module named 'no_such_module'"),
        ("json:missing", "algorithm json:missing: module 'json' has no attribute 'missing'"),
        ("lanterne:__version__", "got str, expected a function"),
        ("builtins:len", "got int, expected a CollectiveSchedule"),
        ("missing.json", "algorithm missing.json: No such file or directory"),
        (TREE, f"algorithm {TREE}: missing a required argument: 'root'"),
        (RING.replace("all_reduce", "all_gather"), "got a schedule with collective all_gather, expected all_reduce"),
        ("rnig", "did you mean 'ring'"),
    ],
)
def test_what_is_wrong_is_told(name, message, monkeypatch):
    if name == "builtins:len":
        monkeypatch.setattr(json, "mine", lambda world_size: 3, raising=False)
        name = "json:mine"
    with pytest.raises(InputError) as caught:
        make_schedule("all_reduce", name, 4)
    assert message in str(caught.value)


def test_a_wrong_file_is_refused_with_its_place(tmp_path):
    ring = to_json(ring_all_reduce(3))
    ring["phases"][0]["rounds"][1][0][2] = 2
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps(ring))
    with pytest.raises(ScheduleError, match="at the end rank 0 chunk 1 lacks the contribution"):
        check(make_schedule("all_reduce", str(path), 3))


def test_packages_offer_theirs_by_entry_points(monkeypatch):
    point = metadata.EntryPoint("theirs", RING, outside.ENTRY_POINTS)
    monkeypatch.setattr(outside, "_entry_points", lambda group: [point] if group == outside.ENTRY_POINTS else [])
    outside.offered.cache_clear()
    try:
        assert make_schedule("all_reduce", "theirs", 4) == ring_all_reduce(4)
        with pytest.raises(InputError, match="theirs"):
            find_algorithm("all_reduce", "thiers")
    finally:
        outside.offered.cache_clear()
