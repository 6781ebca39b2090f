"""A job that is not recorded: its ranks are found, and what its host shows of them names the odd one, or nobody."""

import os

import pytest

from lanterne.bench.failslow.outside import OddTeller
from lanterne.failslow.record.incidents import REMEDIES
from lanterne.failslow.record.outside_view import WORDS, OutsideView, odd_kinds, ranks_beside

TICKS = os.sysconf("SC_CLK_TCK")
STEP_S = 0.5


class Host:
    """A /proc of processes that are made up; `step` lets each use so many cores for STEP_S."""

    def __init__(self, root):
        self.root, self.now_s = root, 0.0
        self.told = {}

    def add(self, pid, environment, parent=1, state="S"):
        (self.root / str(pid)).mkdir()
        words = "\0".join(f"{name}={value}" for name, value in environment.items())
        (self.root / str(pid) / "environ").write_text(words)
        (self.root / str(pid) / "wchan").write_text("0")
        self.told[pid] = [state, parent, 0.0]
        self._write(pid)

    def _write(self, pid):
        state, parent, used_s = self.told[pid]
        ticks = int(used_s * TICKS)
        # A program may have any name.
        text = f"{pid} (a) R b) {state} {parent} {'0 ' * 9}{ticks} 0 {'0 ' * 6}77 0\n"
        (self.root / str(pid) / "stat").write_text(text)

    def step(self, cores, states=None):
        self.now_s += STEP_S
        for pid, used in cores.items():
            self.told[pid][2] += used * STEP_S
            self.told[pid][0] = (states or {}).get(pid, "S")
            self._write(pid)


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


def job_of(host, ranks, **more):
    for rank in range(ranks):
        host.add(100 + rank, {"RANK": rank, "MASTER_PORT": 1, **more})
    return OutsideView(ranks_beside(100, host.root), host.root)


def test_the_ranks_of_the_job_and_no_others(host):
    host.add(10, {"HOME": "/"})
    for rank in range(3):
        host.add(100 + rank, {"RANK": rank, "MASTER_PORT": 5}, parent=10)
        # Its loader of data.
        host.add(90 - rank, {"RANK": rank, "MASTER_PORT": 5}, parent=100 + rank)
    host.add(200, {"RANK": 1, "MASTER_PORT": 6}, parent=10)
    host.add(201, {"RANK": "one", "MASTER_PORT": 5}, parent=10)
    (host.root / "uptime").write_text("1")
    assert ranks_beside(101, host.root) == {0: 100, 1: 101, 2: 102}
    assert ranks_beside(200, host.root) == {1: 200}
    assert ranks_beside(10, host.root) == ranks_beside(201, host.root) == ranks_beside(9999, host.root) == {}


def test_of_ranks_that_shells_have_started_it_is_the_program(host):
    for rank in range(3):
        host.add(100 + rank, {"RANK": rank, "MASTER_PORT": 5}, parent=10)
        host.add(200 + rank, {"RANK": rank, "MASTER_PORT": 5}, parent=100 + rank)
        host.add(150 + rank, {"RANK": rank, "MASTER_PORT": 5}, parent=200 + rank)
    assert ranks_beside(201, host.root) == {0: 200, 1: 201, 2: 202}
    assert ranks_beside(101, host.root) == {0: 100, 1: 101, 2: 102}


def test_without_a_name_of_the_job_its_ranks_have_one_parent(host):
    for pid, rank, parent in ((100, 0, 10), (101, 1, 10), (102, 1, 11)):
        host.add(pid, {"PMI_RANK": rank}, parent=parent)
    assert ranks_beside(100, host.root) == {0: 100, 1: 101}
    assert ranks_beside(102, host.root) == {1: 102}


@pytest.mark.parametrize(
    "cores, state, kind",
    [
        ((1.0, 1.0, 1.0, 1.0), "S", None),
        ((0.0, 0.0, 0.0, 0.0), "S", None),
        ((1.0, 0.8, 0.0, 1.0), "S", "idle"),
        ((0.0, 0.0, 1.0, 0.01), "S", "busy"),
        ((1.0, 0.0, 0.0, 1.0), "S", None),
        ((1.0, 1.0, 1.0, 1.0), "T", "stopped"),
        ((1.0, 1.0, 0.0, 1.0), "D", "stuck"),
        ((1.0, 1.0, 1.0, 1.0), "Z", "gone"),
    ],
)
def test_who_is_odd(host, cores, state, kind):
    view = job_of(host, 4)
    for _ in range(14):
        host.step({100 + rank: used for rank, used in enumerate(cores)}, {102: state})
        view.look(host.now_s)
    assert {rank: odd.kind for rank, odd in view.odd.items()} == ({2: kind} if kind else {})
    assert [one["odd"] for one in view.report()] == [None, None, kind, None]
    assert kind is None or (kind in REMEDIES and WORDS[kind] in view.odd[2].text)


@pytest.mark.parametrize(
    ("waits", "used", "odd"),
    [
        (("futex_do_wait", "futex_do_wait", "hrtimer_nanosleep", "futex_do_wait"), 0.0, [2]),
        (("futex_do_wait", "futex_do_wait", "hrtimer_nanosleep", "futex_do_wait"), 0.1, []),
        (("futex_do_wait", "ep_poll", "hrtimer_nanosleep", "futex_do_wait"), 0.0, []),
        (("futex_do_wait", "futex_do_wait", "0", "futex_do_wait"), 0.0, []),
    ],
    ids=["all stand still", "some work", "two of them", "not told"],
)
def test_who_waits_elsewhere_where_all_stand_still(host, waits, used, odd):
    """Seen in a job of torch's gloo, whose calls sleep: one rank slept by itself."""
    view = job_of(host, 4)
    for rank, place in enumerate(waits):
        (host.root / str(100 + rank) / "wchan").write_text(place)
    for _ in range(14):
        host.step({100 + rank: used for rank in range(4)})
        view.look(host.now_s)
    assert [*view.odd] == odd
    assert not odd or ("it sleeps" in view.odd[2].text and view.odd[2].kind in REMEDIES)


def test_ranks_that_spin_on_a_busy_machine_compute_though_they_get_little(host):
    """Seen beside a load of five on two cores: three ranks, of which two spun, got 0.19 of a core each."""
    view = job_of(host, 3)
    for _ in range(14):
        host.step({100: 0.15, 101: 0.15, 102: 0.0}, {100: "R", 101: "R"})
        view.look(host.now_s)
    assert {rank: odd.kind for rank, odd in view.odd.items()} == {2: "idle"}


def test_of_two_ranks_and_of_a_short_look_nothing_is_said(host):
    view = job_of(host, 2)
    for look in range(14):
        host.step({100: 1.0, 101: 0.0})
        assert view.look(host.now_s) == [], look
    assert odd_kinds({rank: list(seen)[:3] for rank, seen in view._glimpses.items()}) == {}


def test_another_process_of_the_same_number_is_not_the_rank(host):
    view = job_of(host, 3)
    text = (host.root / "101" / "stat").read_text()
    (host.root / "101" / "stat").write_text(text.replace(" 77 ", " 78 "))
    assert [odd.kind for odd in view.look(1.0)] == ["gone"]


def test_what_is_told_and_when_it_is_an_incident(host, tmp_path, capsys):
    view = job_of(host, 4)
    teller = OddTeller(view, str(tmp_path / "incidents"), ["x"], 10.0)
    for step in range(80):
        idle = 20 <= step < 70
        (host.root / "102" / "wchan").write_text("futex_do_wait")
        host.step({100: 1.0, 101: 1.0, 102: 0.0 if idle else 1.0, 103: 1.0}, {103: "T" if step == 40 else "R"})
        teller.look(host.now_s)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[1].split(" ", 1)[1].split(" for")[0] for line in lines] == [
        "odd", "INCIDENT", "rank 3", "INCIDENT", "rank 2",
    ]  # fmt: skip
    assert "rank 2" in lines[0] and "another thread, or a lock (futex_do_wait)" in lines[0]
    assert "rank 3" in lines[1] and "stopped" in lines[1] and "rank 2" in lines[3]
    assert teller.incidents.counts == {"process": 2}
    assert all(not document["lasts"] for document in teller.incidents.documents.values())
    assert len(list((tmp_path / "incidents").glob("*.json"))) == 2


def test_what_becomes_odd_in_another_way_is_not_any_more_what_it_was(host, capsys):
    teller = OddTeller(job_of(host, 4), "none", ["x"], 2.0)
    for step in range(20):
        host.step({}, {})
        host.told[102][0] = "T" if step < 10 else "Z"
        host._write(102)
        teller.look(host.now_s)
    stopped, gone = teller.incidents.documents.values()
    assert ("is stopped" in stopped["text"], stopped["lasts"]) == (True, False)
    assert ("has ended" in gone["text"], gone["lasts"]) == (True, True)
    assert [line.split(": ")[1].split(" ", 1)[1].split(" for")[0] for line in capsys.readouterr().err.splitlines()] == [
        "INCIDENT", "INCIDENT",
    ]  # fmt: skip
