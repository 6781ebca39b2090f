"""Events by iteration: what holds when, on emulated links and stages."""

import time
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lanterne
from lanterne.errors import InputError
from lanterne.pipeline.adapt.injection import InjectedEvent, Replay, SlowStage, conditions
from lanterne.pipeline.execute.stage_timed import Clock, TimedStage
from lanterne.pipeline.planes.plane_makers import make_plane
from lanterne.transport.shaped import Link

SLOW = InjectedEvent(5, 8, links=(1,), latency_s=0.02)


def test_what_holds_when():
    slow = {(1, 2): Link(0.02), (2, 1): Link(0.02)}
    assert [conditions([SLOW], i)[0] for i in (4, 5, 7, 8)] == [{}, slow, slow, {}]


def test_events_add_up_over_the_usual_links():
    usual = {(0, 1): Link(0.001, 2e6)}
    events = [
        InjectedEvent(0, links=(0,), latency_s=0.01),
        InjectedEvent(0, links=(0, 1), bandwidth_bytes_per_s=1e6),
        InjectedEvent(0, links=(0,), bandwidth_bytes_per_s=3e6),
        InjectedEvent(0, rank=2, slowdown=1.5),
        InjectedEvent(0, rank=2, slowdown=2),
        InjectedEvent(3, 4, links=(1,), down=True),
    ]
    links, slowdowns, down = conditions(events, 3, usual)
    assert links[0, 1] == Link(0.011, 1e6) and links[1, 0] == Link(0.01, 1e6) and links[2, 1] == Link(0.0, 1e6)
    assert slowdowns == {2: 3.0} and down == {(1, 2)}


@given(
    st.integers(0, 100),
    st.none() | st.integers(101, 200),
    st.lists(st.integers(0, 9), min_size=1, unique=True),
    st.floats(1e-6, 10),
)
def test_json_and_back(first, last, links, latency_s):
    event = InjectedEvent(first, inf if last is None else last, tuple(links), latency_s)
    assert InjectedEvent.from_dict(event.to_dict()) == event


@pytest.mark.parametrize(
    "document, words",
    [
        ({"links": [1], "latency_s": 1}, "first"),
        ({"first": None, "links": [1], "latency_s": 1}, "got first None"),
        ({"first": 5, "last": 5, "links": [1], "latency_s": 1}, "got iterations 5 to 5"),
        ({"first": 0}, "got neither or both of links and rank"),
        ({"first": 0, "rank": 1, "links": [1]}, "got neither or both of links and rank"),
        ({"first": 0, "rank": 1, "slowdown": 0.5}, "got a slowdown of 0.5"),
        ({"first": 0, "links": [1]}, "expected a latency, a bandwidth or down"),
        ({"first": 0, "links": [-1], "latency_s": 1}, r"got links \[-1\]"),
        ({"first": 0, "links": [[1]], "latency_s": 1}, r"got links \[\[1\]\]"),
        ({"first": 0, "links": [1], "down": "no"}, "got down 'no', expected true or false"),
        ({"first": 0, "links": [1], "latency_s": -1}, "latency_s: got -1"),
        ({"first": 1.5, "links": [1], "latency_s": 1}, "got first 1.5"),
        ({"first": 0, "links": [1], "latency": 1}, "unknown key 'latency', expected 'latency_s'"),
        ([], "expected an object"),
    ],
)
def test_what_is_no_event(document, words):
    with pytest.raises(InputError, match=words):
        InjectedEvent.from_dict(document)


def test_replay_sets_links_and_puts_them_back():
    def job(comm):
        calls = []
        with make_plane("inline", comm) as plane:
            plane.set_link = lambda *change: calls.append(change)
            replay = Replay([SLOW], plane.set_link, 0, {(1, 2): Link(0.001)})
            for iteration in range(10):
                replay.begin(iteration)
                calls.append(iteration)
        return calls

    slow, usual = Link(0.021), Link(0.001)
    assert lanterne.spawn(1, job)[0] == [
        0, 1, 2, 3, 4, (1, 2, slow), (2, 1, Link(0.02)), 5, 6, 7, (1, 2, usual), (2, 1, Link()), 8, 9,
    ]  # fmt: skip


def test_a_slow_stage_takes_longer_and_gives_the_same():
    clock = Clock(time.monotonic())
    stage = SlowStage(TimedStage((0.004, 0.004, 0.004), clock, nbytes=8))
    out = np.zeros(8, np.uint8)
    stage.begin(1)
    stage.slowdown = 3.0
    began_s = time.monotonic()
    assert stage.forward(0, out, out) is out
    assert time.monotonic() - began_s >= 0.0115
    stage.backward_weight(0)
    assert time.monotonic() - began_s >= 0.023
    assert (stage.input_shape, stage.dtype, stage.losses) == ((8,), np.uint8, {})
