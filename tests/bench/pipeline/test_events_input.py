"""Events from options and files."""

import json
from argparse import Namespace
from math import inf

import pytest

from lanterne.bench.pipeline.events_input import events_from, read_events, slow_link, slow_rank
from lanterne.errors import InputError
from lanterne.pipeline.adapt.injection import InjectedEvent


@pytest.mark.parametrize(
    "text, event",
    [
        ("1=20ms@50:120", InjectedEvent(50, 120, (1,), 0.02)),
        ("1=20ms", InjectedEvent(0, inf, (1,), 0.02)),
        ("0+2=3us@7:", InjectedEvent(7, inf, (0, 2), 3e-6)),
        ("1=severe@:4", InjectedEvent(0, 4, (1,), 0.03)),
        ("1=200mbit@5:6", InjectedEvent(5, 6, (1,), 0.0, 25e6)),
    ],
)
def test_slow_links(text, event):
    assert slow_link(text) == event


@pytest.mark.parametrize(
    "text, event",
    [
        ("2=1.5x@50:120", InjectedEvent(50, 120, rank=2, slowdown=1.5)),
        ("0=severe", InjectedEvent(0, rank=0, slowdown=2.0)),
    ],
)
def test_slow_ranks(text, event):
    assert slow_rank(text) == event


@pytest.mark.parametrize(
    "text", ["", "1", "1=", "1=fast", "x=20ms", "1=20ms@", "1=-3ms", "1=20", "1=20@5:9", "1=20ms@5-6"]
)
def test_what_is_no_slow_link(text):
    with pytest.raises(InputError, match="--slow-link: got"):
        slow_link(text)


@pytest.mark.parametrize("text", ["1", "1=0.5x", "1+2=2x", "1=nan", "1=20ms", "1=infx"])
def test_what_is_no_slow_rank(text):
    with pytest.raises(InputError, match="--slow-rank: got"):
        slow_rank(text)


def test_json_and_csv_are_the_same(tmp_path):
    events = [slow_link("0+2=20ms@5:9"), slow_link("1=200mbit@5:"), slow_rank("1=1.5x@2:3")]
    events.append(InjectedEvent(4, 5, (1,), down=True))
    (tmp_path / "a.json").write_text(json.dumps({"events": [event.to_dict() for event in events]}))
    rows = ["# a comment", "first,last,links,latency,bandwidth,rank,slowdown,down"]
    rows += ["5,9,0+2,20ms,,,,", "5,,1,,200mbit,,,", "2,3,,,,1,1.5x,", "4,5,1,,,,,yes"]
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    assert read_events(tmp_path / "a.json") == read_events(tmp_path / "a.csv") == events


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("a.json", "{}", "got no list of events"),
        ("a.json", '[{"first": 1}]', "a.json: event 0: event: got neither"),
        ("a.csv", "when,what\n1,2\n", "got columns"),
        ("a.csv", "first,links,latency\n1,0,soon\n", "event 0: latency: got 'soon'"),
        ("a.csv", "first,links,latency\nlater,0,1ms\n", "got first 'later'"),
        ("a.csv", "first,links,down\n1,0,perhaps\n", "got down 'perhaps', expected true or false"),
    ],
)
def test_files_that_hold_no_events(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words):
        read_events(tmp_path / name)


def test_a_command_line():
    args = Namespace(slow_link=["0=weak@1:2"], slow_rank=["1=2x@3:4"], events=None)
    assert events_from(args, 2) == (InjectedEvent(1, 2, (0,), 0.01), InjectedEvent(3, 4, rank=1, slowdown=2.0))
    with pytest.raises(InputError, match="got link 0, expected"):
        events_from(args, 1)


def test_a_dead_path_needs_delegates():
    args = Namespace(slow_link=[], slow_rank=[], events="adaptra-table-3", adapt=True)
    assert events_from(args, 8)[-1].down
    args.adapt = False
    with pytest.raises(InputError, match="got a path that is down without --adapt"):
        events_from(args, 8)
