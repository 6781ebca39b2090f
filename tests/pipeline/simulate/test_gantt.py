"""Gantt charts and traces hold what was simulated."""

import json
import re

import pytest

from lanterne.errors import InputError, Unavailable
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.chrome_trace import chrome_trace
from lanterne.pipeline.simulate.gantt import draw
from lanterne.pipeline.simulate.simulate import simulate

PROBLEM = Problem(3, 4, 10, 20, 30, [5, 0], data_parallel={"kind": "zero1", "reduce_scatter": 7, "all_gather": 3})


@pytest.mark.parametrize(
    ("scheduler", "ending", "in_order"), [("1f1b", "svg", False), ("zb_h1", "png", True), ("zb_v", "pdf", False)]
)
def test_every_format_is_drawn(tmp_path, scheduler, ending, in_order):
    path = tmp_path / f"plan.{ending}"
    draw(simulate(plan(PROBLEM, scheduler), PROBLEM, in_order=in_order), path, scheduler, "ms")
    assert path.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r", b"%PDF-")


def test_the_heading_gives_makespan_and_bubbles(tmp_path, monkeypatch):
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")
    timeline = simulate(plan(PROBLEM, "zb_h1"), PROBLEM)
    draw(timeline, tmp_path / "plan.svg", "zb_h1", "ms")
    text = (tmp_path / "plan.svg").read_text()
    assert f"zb_h1: makespan {timeline.makespan:g} ms, bubble rate" in text
    for words in ("rank 2", "time (ms)", "forward", "weight gradient", "reduce-scatter", "critical path"):
        assert words in text, words
    # Every microbatch number of every action is there.
    assert len(re.findall(r">\s*3\s*</text>", text)) == 9


@pytest.mark.parametrize("name", ["plan.nope", "no/such/folder/plan.png"])
def test_what_cannot_be_drawn_is_said(tmp_path, name):
    with pytest.raises(InputError, match="cannot draw"):
        draw(simulate(plan(PROBLEM, "1f1b"), PROBLEM), tmp_path / name)


def test_a_trace_has_every_action_message_and_level():
    timeline = simulate(plan(PROBLEM, "zb_h1"), PROBLEM)
    document = json.loads(json.dumps(chrome_trace(timeline, unit_us=1000)))
    spans = {event["name"]: event for event in document["traceEvents"] if event["ph"] == "X"}
    assert len(spans) == 3 * 4 * 3 + 6
    words = [str(action) for rank in timeline.plan.ranks for action in rank]
    for word, start, end, rank in zip(words, timeline.start, timeline.end, timeline.plan.rank_of, strict=True):
        event = spans[word]
        assert (event["ts"], event["ts"] + event["dur"], event["pid"]) == (start * 1000, end * 1000, rank), (
            word,
            start,
            end,
            rank,
        )
    begins = {event["id"]: event for event in document["traceEvents"] if event["ph"] == "s"}
    ends = {event["id"]: event for event in document["traceEvents"] if event["ph"] == "f"}
    assert len(begins) == len(ends) == 2 * 4 * 2
    assert all(begins[i]["ts"] <= ends[i]["ts"] and begins[i]["pid"] != ends[i]["pid"] for i in begins)
    levels = [event["args"]["in use"] for event in document["traceEvents"] if event["ph"] == "C"]
    assert max(levels) == 3 and min(levels) == 0


@pytest.mark.parametrize("scheduler", ["gpipe", "zb_h1", "interleaved_1f1b"])
def test_in_a_notebook_plans_and_timelines_are_charts_and_one_line(scheduler):
    problem = Problem(4, 4, 2, 2, 1)
    made = plan(problem, scheduler)
    timeline = simulate(made, problem)
    assert made._repr_svg_().count("<svg") == timeline._repr_svg_().count("<svg") == 1
    assert repr(timeline) == f"Timeline({made!r}, makespan {timeline.makespan:.6g})" and "\n" not in repr(timeline)


def test_drawing_leaves_the_users_matplotlib_alone(monkeypatch):
    import matplotlib

    monkeypatch.setattr(matplotlib, "use", None)
    problem = Problem(2, 2, 1, 1, 1)
    assert simulate(plan(problem, "1f1b"), problem)._repr_svg_()


def test_without_matplotlib_a_notebook_shows_the_line_and_drawing_says_what_is_missing(monkeypatch, tmp_path):
    for module in ("lanterne.pipeline.simulate.simulate", "importlib.util"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    problem = Problem(2, 2, 1, 1, 1)
    made = plan(problem, "1f1b")
    timeline = simulate(made, problem)
    assert made._repr_svg_() is None and timeline._repr_svg_() is None
    with pytest.raises(Unavailable, match=r"drawing a timeline: needs matplotlib; install it with: .* -m pip install"):
        draw(timeline, tmp_path / "plan.svg")
