"""The page: every part closed, everything from outside escaped, and the pictures show what they are of."""

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statuses import GPU, ledger_of

from lanterne.failslow.operate import page, pictures

PATTERN = {
    **{"host": "h", "pattern": "chronic", "incidents": 4, "named_in": 3, "jobs": 5, "first_s": 0.0, "last_s": 1e5},
    **{"gpus": ["2"], "nics": ["eth0"]},
}
VOID = ("meta", "input", "br", "rect", "line", "path")


class Tree(HTMLParser):
    """Checks that what is opened is closed; collects tags and texts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def of(self, tag, **attributes):
        return [found for name, found in self.tags if name == tag and attributes.items() <= found.items()]


@pytest.fixture(scope="module")
def status(tmp_path_factory):
    return ledger_of(tmp_path_factory.mktemp("job")).status()


def test_a_slow_job(status):
    tree = Tree(page.whole([status], [PATTERN]))
    assert tree.of("span", **{"class": "badge slow"})
    for words in ("slow: ", "rank 3", "What to do:", "throttled by heat", "chronic", "3 of 5", "1970-01-02 03:46"):
        assert words in tree.text, words
    assert len(tree.of("rect", **{"class": "spell"})) == 1 and len(tree.of("rect", **{"class": "bar named"})) == 1
    assert len(tree.of("path", **{"class": "time"})) == 1


def test_a_healthy_job_an_ended_one_and_none(status):
    calm = status | {"incidents": [], "iterations": status["iterations"] | {"slow": False, "ratio": 1.0}}
    assert Tree(page.body([calm], [])).of("span", **{"class": "badge well"})
    assert Tree(page.body([calm | {"ended": True}], [])).of("span", **{"class": "badge ended"})
    assert "No job is watched now" in Tree(page.whole([], [])).text
    two = Tree(page.body([calm, status], []))
    assert len(two.of("h1")) == 2


@given(st.text(max_size=30))
def test_what_comes_from_outside_is_text(status, words):
    hostile = words + "</script><img src=x onerror=alert(1)>\"'&"
    one = status["incidents"][-1]
    rank = one["ranks"][0] | {"host": hostile, "text": hostile, "frames": [[hostile, 3, hostile]], "gpu": hostile}
    incident = one | {"text": hostile, "remedy": hostile, "ranks": [rank]}
    incident |= {"evidence": [hostile], "telemetry": [hostile]}
    telemetry = {hostile: {"gpus": [GPU | {"reasons": [hostile]}]}}
    job = status | {"program": hostile, "incidents": [incident], "notes": [hostile], "telemetry": telemetry}
    tree = Tree(page.whole([job], [PATTERN | {"host": hostile, "gpus": [hostile]}]))
    assert not tree.of("img") and len(tree.of("script")) == 1


STEPS = st.lists(st.tuples(st.integers(0, 3), st.floats(1e-7, 1e5)), min_size=2, max_size=40)


@given(STEPS, st.none() | st.floats(1e-6, 1e4))
def test_times_are_drawn_inside_and_gaps_are_gaps(steps, usual_s):
    recent, index, gaps = [], 0, 0
    for skipped, value in steps:
        gaps += bool(skipped and recent)
        index += 1 + skipped
        recent.append((index, value))
    svg = pictures.iteration_times({"recent": recent, "usual_s": usual_s}, [])
    (path,) = re.findall(r'd="([^"]+)"', svg)
    points = [tuple(map(float, pair.split())) for pair in re.split("[ML]", path)[1:]]
    assert len(points) == len(recent) and path.count("M") == 1 + gaps
    assert all(0 <= x <= pictures.WIDTH and 0 <= y <= pictures.HEIGHT for x, y in points)
    # The higher the longer, as far as the picture goes.
    assert all(a[1] >= b[1] for a, b, u, v in zip(points, points[1:], recent, recent[1:], strict=False) if u[1] <= v[1])
    Tree(svg)


def test_of_many_late_ranks_the_latest_are_drawn():
    late = [{"rank": rank, "host": None, "late_s": rank * 1e-3} for rank in range(100)]
    tree = Tree(pictures.lateness(late, {99}))
    assert len(tree.of("rect")) == pictures.MAX_BARS and len(tree.of("rect", **{"class": "bar named"})) == 1
    assert "and 67 ranks more" in tree.text
    assert pictures.lateness([{"rank": 0, "host": None, "late_s": None}], set()) == ""


@pytest.mark.parametrize(
    ("time_s", "text"),
    [(None, "-"), (0.0, "0"), (1e-6, "1 us"), (2.5e-3, "2.5 ms"), (1.0, "1 s"), (4321.0, "4321 s")],
)
def test_times_in_words(time_s, text):
    assert page.seconds(time_s) == text
