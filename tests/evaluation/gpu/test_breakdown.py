"""The figures of `./run evaluate gpu` over nccl, on stand-ins: each is there, and what is wrong or not made is seen."""

from functools import partial

import pytest
from device_ranks import over_nccl, synchronize
from nccl_ranks import HostArray

from evaluation.gpu import breakdown, ranks
from evaluation.gpu.figures import Figure
from lanterne.collectives.execute import stream_execution, stream_program
from lanterne.collectives.late import calls as late


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(late, "LEAST_NORMAL_S", 0.0)
    monkeypatch.setattr(breakdown, "SCHEDULE_NBYTES", (1 << 12, 1 << 16))
    monkeypatch.setattr(breakdown, "GROUP_NBYTES", (1 << 10, 1 << 12))
    monkeypatch.setattr(breakdown, "LAUNCH_NBYTES", 3 << 17)
    monkeypatch.setattr(stream_program, "MERGED_NBYTES", 0)
    monkeypatch.setattr(breakdown, "ITERATIONS", 2)


def found(part, world_size=3):
    def program(comm):
        return list(ranks.figures(comm, part, HostArray, lambda array: array.values, partial(synchronize, comm)))

    results = over_nccl(world_size, program)
    assert isinstance(results[0], list), results
    names = [record["name"] for record in results[0]]
    assert all([record["name"] for record in result] == names for result in results)
    return [Figure(**record) for record in results[0]]


def test_schedules_have_bandwidth_and_ratio_by_chunk_and_nothing_wrong():
    figures = found("schedules")
    wrong = [figure for figure in figures if "differ" in figure.name]
    assert [figure.value for figure in wrong] == [0, 0] and all(figure.ok for figure in wrong)
    speeds = [figure for figure in figures if "busbw" in figure.name]
    assert len(speeds) == 2 * (1 + 2 * len(breakdown.SCHEDULES)) and all(figure.value > 0 for figure in speeds)
    barred = {figure.name: figure.bar for figure in figures if figure.bar.startswith(">=")}
    assert barred == {
        "ring, 64 KiB: native's time over ours": ">= 0.85",
        "late_join, 64 KiB: native's time over ours": ">= 0.8",
    }
    assert all(figure.ok == (figure.value >= breakdown.BARS[figure.name.split(",")[0]]) for figure in figures
               if figure.name in barred)  # fmt: skip


def test_a_call_that_is_not_made_is_seen(monkeypatch):
    monkeypatch.setattr(breakdown, "SCHEDULES", {"tree": {"algorithm": "tree"}})

    def program(comm):
        class Lazy(type(comm)):
            def all_reduce(self, x, out, **options):
                if options.get("algorithm") != "tree":
                    super().all_reduce(x, out, **options)

        comm.__class__ = Lazy
        synchronized = partial(synchronize, comm)
        found = breakdown.schedule_figures(comm, HostArray, lambda array: array.values, synchronized)
        return [(record["value"], record["ok"]) for record in found if "differ" in record["name"]]

    # The eager call of tree is not made, its graph is.
    assert over_nccl(2, program)[0] == [(1 << 10, False), (1 << 14, False)]


def test_groups_are_timed_by_messages_and_bytes():
    figures = found("groups")
    assert [figure.name for figure in figures] == [
        *(f"group of {count} of 1 KiB each way" for count in (1, 2, 4)),
        "group of 1 of 4 KiB each way",
    ]
    assert all(figure.value > 0 and len(figure.samples) > 1 for figure in figures)


def test_launches_are_timed_by_the_length_of_the_graph(monkeypatch):
    made, lower = set(), stream_program.lower
    monkeypatch.setattr(stream_execution, "lower", lambda *part: (steps := lower(*part), made.add(len(steps)))[0])
    *launches, decision = found("launches")
    # A ring of three ranks: four groups and two folds; then of each part of its chunk.
    pieces = [int(figure.name.split()[5]) for figure in launches]
    assert pieces == [6 * parts for parts in breakdown.LAUNCH_PARTS] and set(pieces) <= made, made
    assert [figure.bar for figure in launches] == ["<= 20 us", "-", "-", "-", "-"]
    assert decision.name == "from the record of who is late to the launch"
    # A call that nobody was late to is launched once, one without a rank twice.
    assert len(decision.samples) >= 10 and all(sample > 0 for sample in decision.samples)
