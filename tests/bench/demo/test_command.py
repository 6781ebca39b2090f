"""`lanterne demo --slow-link`: its job closes the loop on real processes; decisions and drawing are pure functions."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from processes import MARK, assert_none_left, new_mark

from lanterne.bench import cli
from lanterne.bench.demo import screen as demo_screen
from lanterne.bench.demo.command import summed_up
from lanterne.bench.demo.picture import PictureView
from lanterne.bench.demo.screen import PHASES, screen
from lanterne.bench.demo.steps import Observer
from lanterne.pipeline.adapt.suspect import Suspect

COMMAND = [sys.executable, "-m", "lanterne", "demo"]
ORDER = ("slowed", "noticed", "located", "swapped", "recovered", "healed", "reverted", "restored")
TRANSPORT = "mpi" if find_spec("mpi4py") else "local"


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """(document, standard error, folder) of a short run in a pipe."""
    folder = tmp_path_factory.mktemp("demo")
    options = "-n 3 --seconds 1 --pace 2ms --hold 8 --limit 200s --json - --plot out.png --trace out.json".split()
    command = [*COMMAND, *options, "--transport", TRANSPORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=folder)
    assert done.stdout, done.stderr
    return json.loads(done.stdout), done.stderr, folder


@pytest.mark.timing
def test_the_steps_come_in_order_and_the_right_link_is_named(ran):
    document, _, _ = ran
    first = {}
    for step in document["steps"]:
        first.setdefault(step["name"], step["iteration"])
    assert document["missing"] == [] and document["closed"]
    assert document["named"] == ["link 1-2"]
    about = document["about"]
    assert first["slowed"] == about["first"] and first["healed"] == about["last"]
    # Somebody else's load may set off an alarm before; what is done needs the place as well.
    times = [first[name] for name in ORDER if name != "noticed"]
    assert times == sorted(times)
    assert first["noticed"] <= first["located"] <= first["slowed"] + 12


@pytest.mark.timing
def test_the_swap_gains_and_the_end_is_as_the_beginning(ran):
    rates = {phase["name"]: phase["tokens_per_s"] for phase in ran[0]["phases"]}
    assert tuple(rates) == PHASES
    assert rates["slow, plan kept"] < 0.8 * rates["healthy"]
    assert rates["slow, adapted"] > 1.2 * rates["slow, plan kept"]
    assert rates["back to normal"] > 1.2 * rates["slow, plan kept"]


@pytest.mark.timing
def test_delays_are_measured_and_training_goes_on(ran):
    document = ran[0]
    results, about = document["results"], document["about"]
    # What is known of a delay is a lower bound, and the swapped plan asks for messages after they have come.
    swapped = next(step["iteration"] for step in document["steps"] if step["name"] == "swapped")
    slow = [record["link_delay_s"]["1-2"] for record in results[about["first"] + 2 : swapped]]
    assert sorted(slow)[len(slow) // 2] == pytest.approx(0.03, rel=0.25)
    assert [record["iteration"] for record in results] == list(range(about["iterations"]))
    assert results[-1]["loss"] < 0.75 * results[0]["loss"]


def test_in_a_pipe_it_says_lines_and_which_files_it_wrote(ran):
    _, said, folder = ran
    assert "\x1b" not in said
    assert re.search(r"iteration +\d+ +swapped +plan best, delegates for 1-2", said) or "delegates for 1-2" in said
    assert "# wrote out.png" in said and "# wrote out.json" in said
    assert sorted(path.name for path in folder.iterdir()) == ["out.json", "out.png"]
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")


def test_the_trace_has_the_whole_run(ran):
    document, _, folder = ran
    events = json.loads((folder / "out.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1, 2}
    assert len(spans) == document["about"]["iterations"] * 3 * 8 * 3
    assert sum(event["ph"] == "i" for event in events) == len(document["steps"])
    sent, received = ({event["id"] for event in events if event["ph"] == kind} for kind in "sf")
    assert sent == received and len(sent) == sum(event["ph"] == "s" for event in events)


@pytest.mark.skipif(TRANSPORT == "local", reason="mpi4py is not installed")
def test_ctrl_c_gives_the_terminal_back_and_leaves_nothing(tmp_path):
    mark = new_mark()
    master, slave = pty.openpty()
    env = os.environ | {MARK: mark, "TERM": "xterm"}
    # A shell's background jobs, these tests perhaps, ignore SIGINT, and so would what they start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [*COMMAND, "-n", "2"], stdin=slave, stdout=slave, stderr=slave, cwd=tmp_path, env=env, start_new_session=True
    )
    signal.signal(signal.SIGINT, before)
    os.close(slave)
    said = b""
    while b"tokens/s" not in said:
        said += os.read(master, 65536)
    os.killpg(process.pid, signal.SIGINT)
    while process.poll() is None:
        try:
            said += os.read(master, 65536)
        except OSError:
            time.sleep(0.01)
    os.close(master)
    assert process.returncode == 130
    assert b"\x1b[?25h\x1b[?1049l" in said and b"Traceback" not in said
    assert_none_left(mark)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-n 1", "2 to 16"),
        ("--slow-link 3=30ms", "a link from 0 to 2"),
        ("--slow-link 0-2=30ms", "a link from 0 to 2"),
        ("--slow-link 1=20ms@3:9", "one link and a time"),
        ("--slow-link 1=10mbit", "one link and a time"),
        ("--slow-link 0+1=30ms", "one link and a time"),
        ("--seconds nan", "more than 0"),
        ("-n 4 --pace 0", "1ms to 1s"),
        ("-n 4 --timeout 0", "more than 0"),
        ("-n 4 --limit 0", "more than 0"),
        ("--plot picture.doc", "ends in .png, .svg or .pdf"),
        ("--trace no/such/folder.json", "an existing folder"),
        ("-n 4 --transport carrier", "local, mpi, ucx"),
    ],
)
def test_bad_input_is_one_line(options, expected, capsys):
    assert cli.main(["demo", *options.split()]) == 2
    said = capsys.readouterr().err
    assert expected in said and said.count("\n") == 1


def test_a_limit_ends_the_job_and_says_why(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = "-n 2 --transport local --seconds 1 --pace 3ms --limit 1s --json demo.json --trace none --plot cut.png"
    assert cli.main(["demo", *options.split()]) == 1
    said = capsys.readouterr().out
    document = json.loads((tmp_path / "demo.json").read_text())
    done = len(document["results"])
    assert 0 < done < document["about"]["iterations"] == 97
    assert f"CUT SHORT: {done} of 97 iterations when 1 s were over (--limit)" in said and "NOT SEEN: " in said
    assert (tmp_path / "cut.png").exists()


def test_a_pipe_that_is_closed_ends_the_job(tmp_path, monkeypatch):
    feed = tmp_path / "feed"
    feed.write_text(json.dumps(made_up(1)[0]) + "\n")
    ends, signals = os.pipe(), []
    os.close(ends[0])
    monkeypatch.setattr(os, "kill", lambda pid, number: signals.append((pid, number)))
    with pytest.raises(BrokenPipeError), open(ends[1], "w") as file, PictureView(feed, ABOUT, file):
        pass
    assert signals == [(os.getpid(), signal.SIGTERM)]


# -- what decides


LINK = Suspect.link(1, 2)
WORK = {"event": {"first": 40, "last": 80, "links": [1], "latency_s": 0.03}, "hold": 10}


def change(at, links, scheduler="best", findings=None):
    return SimpleNamespace(
        running_from=at, findings=findings or {"link 1-2": 1}, slow_links=links, scheduler=scheduler,
        planning_s=0.02, predicted_before_s=0.4, predicted_s=0.2,
    )  # fmt: skip


def play(find=None, alarm=True, start=1.0):
    """An Observer after 110 made-up iterations, the first ones `start` times as long; and when it held changes back."""
    observer, held, now = Observer(WORK), [], []
    for iteration in range(110):
        held.append(observer.holds)
        observer.begins(iteration)
        is_slow = 40 <= iteration < 80
        time_s = 0.4 if is_slow and not now and alarm else 0.2 + iteration % 3 * 1e-3
        time_s *= start if iteration < 8 else 1.0
        found = find(iteration) if find else {LINK: 1} if is_slow and not now else {}
        if now and iteration >= 82:
            found = {LINK: -1}
        changes = []
        if not observer.holds and found:
            now = [[1, 2]] if found[LINK] > 0 else []
            changes = [change(iteration + 1, now)]
        record = {"iteration": iteration, "time_s": time_s, "link_delay_s": {"1-2": 0.03 if is_slow else 2e-4}}
        observer.ended(record, found, changes)
    return observer, held


def first(observer, name):
    return demo_screen.first_of(observer.steps, name)


def test_a_change_waits_for_alarm_place_and_the_slow_stretch():
    observer, held = play()
    names = [step["name"] for step in observer.steps]
    assert [name for name in names if name in ORDER] == list(ORDER)
    assert first(observer, "noticed") == first(observer, "located") == 44
    assert first(observer, "swapped") == 50
    assert all(held[:49]) and not held[49]
    assert next(step["onset"] for step in observer.steps if step["name"] == "noticed") == 40
    assert first(observer, "reverted") == 84
    assert all(held[86:])


def test_the_summary_says_what_is_missing_and_which_place_was_wrong():
    observer, _ = play()
    results = [{"iteration": i, "time_s": 0.2} for i in range(110)]
    about = {"link": "1-2", "iterations": len(results), "expected_s": 0.25 * len(results), "limit_s": 60.0}

    def closed(steps, link="1-2"):
        return summed_up(about | {"link": link}, {"results": results, "steps": steps, "tokens": 1, "changes": []})

    assert closed(observer.steps)["closed"]
    assert not closed(observer.steps, "0-1")["closed"]
    without = closed([step for step in observer.steps if step["name"] != "reverted"])
    assert without["missing"] == ["reverted"] and not without["closed"] and without["cut_short"] is None
    about["iterations"] += 20
    said = f"{len(results)} of {len(results) + 20} iterations when 60 s were over (--limit): they took "
    assert closed(observer.steps)["cut_short"].startswith(said)


# -- what is drawn


def made_up(count):
    """The records of `count` iterations of a run of 110, and its steps so far."""
    observer, _ = play()
    found = []
    for i in range(count):
        found += [step for step in observer.steps if step["iteration"] == i]
        found.append(
            {
                "kind": "iteration", "iteration": i, "time_s": 0.4 if 40 <= i < 50 else 0.2, "tokens_per_s": 2560.0,
                "loss": 4.0, "busy": [1.0, 0.5, 0.25, 0.0],
                "link_delay_s": {"0-1": 2e-4, "1-2": 0.03 if 40 <= i < 80 else 3e-4, "2-3": 2e-4},
            }
        )  # fmt: skip
    return found


ABOUT = {"ranks": 4, "iterations": 110, "link": "1-2"}


@pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 20), (120, 40), (20, 5)])
@pytest.mark.parametrize("count", [0, 1, 46, 60, 110])
def test_the_screen_fits(count, width, height):
    lines = screen(ABOUT, made_up(count), width, height)
    assert 1 <= len(lines) <= height
    assert max(map(len, lines)) <= width
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize(
    ("count", "said"),
    [(39, "link 1-2  300 us"), (46, "link 1-2   30 ms  SLOW"), (60, "SLOW, by delegates"), (90, "link 1-2  300 us")],
)
def test_the_screen_says_how_the_link_is(count, said):
    line = next(line for line in screen(ABOUT, made_up(count), 80, 30) if line.startswith("rank 1"))
    assert said in line and ("SLOW" in line) == ("SLOW" in said) and "50% busy" in line
