"""Calls that do not end: who has not come is named in time, and healthy jobs with long pauses are left alone."""

import gc
import json
import os
import subprocess
import sys
import threading
import time

import pytest
from call_logs import new_calls
from hypothesis import given
from hypothesis import strategies as st

from lanterne.failslow.operate.thresholds import Thresholds
from lanterne.failslow.record import hangs
from lanterne.failslow.record import recorder as recording
from lanterne.failslow.record.call_ring import OPEN_S, RecordedCall, RingReader, RingWriter
from lanterne.failslow.record.hangs import HangFinder, SeenCalls
from lanterne.failslow.record.job_log import JobLog
from lanterne.failslow.record.recorder import Recorder, boot_id, pid_namespace, start_of
from lanterne.failslow.record.whereabouts import Whereabouts, whereabouts

RANKS = 4
PATIENCE_S, STATUS_S = Thresholds.patience_s, Thresholds.status_s
STEP_S = 0.25


class Job:
    """Logs of ranks that call one all_reduce an iteration, looked at every STEP_S of a clock that is made up."""

    def __init__(self, folder, states=None, patience_s=PATIENCE_S, world_size=RANKS):
        self.states, self.world_size = states or {}, world_size
        self.finder = HangFinder(folder, self.where, Thresholds(patience_s))
        self.now_s, self.told, self.opened = 100.0, [], {rank: {} for rank in range(RANKS)}
        self.index, self.latest = 0, dict.fromkeys(range(RANKS), -1)

    def where(self, rank):
        return Whereabouts(rank, "h", 7, self.states.get(rank, "runs"), (("train.py", 3, "step"),), 0.1)

    def call(self, ranks, name="all_reduce", communicator=0, size=RANKS):
        """`ranks` come to a call now."""
        self.index += 1
        for rank in ranks:
            self.opened[rank][self.index] = RecordedCall(name, size, communicator, 8, self.now_s, OPEN_S)

    def leave(self):
        """All that wait go on."""
        for rank, calls in self.opened.items():
            self.finder.add(new_calls({rank: [call._replace(end_s=self.now_s) for call in calls.values()]}))
            self.latest[rank] = max([self.latest[rank], *calls])
            calls.clear()

    def run(self, seconds):
        for _ in range(int(seconds / STEP_S)):
            self.now_s += STEP_S
            self.told += self.finder.look(self.now_s, self.opened, 0.1, self.world_size, self.latest)

    def iterate(self, count):
        for _ in range(count):
            self.call(range(RANKS))
            self.run(STEP_S)
            self.leave()


@pytest.mark.parametrize("state", ["runs", "stopped", "gone", "ended", "silent", "unresponsive"])
def test_a_rank_that_does_not_come(tmp_path, state):
    job = Job(tmp_path, {2: state})
    job.iterate(20)
    job.call([0, 1, 3])
    job.run(STATUS_S)
    assert not job.told
    job.run(1)
    (hang,) = job.told
    assert (hang.kind, hang.ranks, hang.came, hang.number) == ("missing", (2,), (0, 1, 3), 21)
    assert hang.is_incident == (state in ("stopped", "gone", "ended"))
    assert "not rank 2" in hang.text and "train.py:3 in step" in hang.text and "after all_reduce" in hang.text
    job.run(PATIENCE_S)
    assert job.told[-1].is_incident and len(job.told) == 1 + (not hang.is_incident)
    (record,) = job.finder.told.report()
    assert json.loads(json.dumps(record)) == record and record["ended_after_s"] is None
    job.call([2])
    job.leave()
    job.run(1)
    assert "went on after" in job.told[-1].text
    (record,) = job.finder.told.report()
    assert record["ended_after_s"] == pytest.approx(PATIENCE_S + STATUS_S + 1, abs=1)


def test_the_place_in_the_code_is_told_as_soon_as_it_is_known(tmp_path):
    job = Job(tmp_path)
    where, frames = job.where, ()
    job.finder._where = lambda rank: where(rank)._replace(frames=frames)
    job.iterate(20)
    job.call([0, 1, 3])
    job.run(STATUS_S + 2)
    assert ["is not known" in hang.text for hang in job.told] == [True]
    frames = (("train.py", 3, "step"),)
    job.run(2)
    assert ["train.py:3 in step" in hang.text for hang in job.told] == [False, True]
    assert not any(hang.is_incident for hang in job.told)


def test_a_checkpoint_of_one_rank_is_no_incident_and_teaches_patience(tmp_path):
    job = Job(tmp_path, patience_s=25.0)
    for _ in range(3):
        job.iterate(20)
        job.call(range(1, RANKS))
        job.run(20)
        job.call([0])
        job.leave()
    job.call(range(1, RANKS))
    job.run(39)
    assert not any(hang.is_incident for hang in job.told)
    job.run(2)
    assert job.told[-1].is_incident, "twice the longest wait so far"


@given(pauses=st.lists(st.tuples(st.integers(0, 3), st.floats(0, 24)), max_size=8), seed=st.integers(0, 99))
def test_healthy_jobs_have_no_incident(tmp_path_factory, pauses, seed):
    job = Job(tmp_path_factory.mktemp("logs"))
    for rank, pause_s in pauses:
        job.iterate(3 + seed % 5)
        job.call([r for r in range(RANKS) if r != rank])
        job.run(pause_s)
        job.call([rank])
        job.run(STEP_S)
        job.leave()
    assert not any(hang.is_incident for hang in job.told)
    assert {hang.ranks for hang in job.told} == {(rank,) for rank, pause_s in pauses if pause_s >= STATUS_S + STEP_S}


def test_another_order(tmp_path):
    job = Job(tmp_path)
    job.iterate(5)
    job.call([0, 1, 3])
    job.call([2], "barrier")
    job.run(STATUS_S + 1)
    (hang,) = job.told
    assert (hang.kind, hang.ranks, hang.is_incident, hang.others) == ("order", (2,), True, {2: "barrier"})
    assert "rank 2 is in barrier" in hang.text


def test_ranks_that_wait_in_a_circle(tmp_path):
    (tmp_path / "group-5.json").write_text("[0, 1]")
    (tmp_path / "group-6.json").write_text("[0, 1]")
    job = Job(tmp_path)
    job.call([0], communicator=5, size=2)
    job.call([1], communicator=6, size=2)
    job.run(STATUS_S + 1)
    (hang,) = job.told
    assert hang.kind == "order" and hang.is_incident


def test_the_end_of_a_chain_is_blamed(tmp_path):
    """0 waits for 1 in a group of two, 1 and 3 for 2 in another."""
    (tmp_path / "group-5.json").write_text("[0, 1]")
    (tmp_path / "group-6.json").write_text("[1, 2, 3]")
    job = Job(tmp_path, {2: "stopped"})
    job.call([0], communicator=5, size=2)
    job.call([1, 3], communicator=6, size=3)
    job.run(STATUS_S + 1)
    (hang,) = job.told
    assert (hang.kind, hang.ranks, hang.communicator, hang.came) == ("missing", (2,), 6, (1, 3))


def test_all_have_come(tmp_path):
    job = Job(tmp_path)
    job.call(range(RANKS))
    job.run(STATUS_S + 1)
    assert [(hang.kind, hang.is_incident) for hang in job.told] == [("call", False)]
    job.run(PATIENCE_S)
    assert job.told[-1].is_incident and "none leaves it" in job.told[-1].text


def test_ranks_that_are_not_known_are_counted(tmp_path):
    job = Job(tmp_path, world_size=None)
    job.call([0, 1], communicator=9, size=3)
    job.run(STATUS_S + 1)
    (hang,) = job.told
    assert (hang.ranks, hang.unknown) == ((), 1) and "1 ranks that are not known" in hang.text


def test_messages_wait_for_those_that_compute(tmp_path):
    job = Job(tmp_path, {3: "ended"})
    for rank in (0, 1):
        job.opened[rank][1] = RecordedCall("recv", 0, 0, 8, job.now_s, OPEN_S)
    job.run(STATUS_S + 1)
    (hang,) = job.told
    assert (hang.ranks, hang.is_incident) == ((2,), False)
    job.opened[2][1] = RecordedCall("recv", 0, 0, 8, job.now_s, OPEN_S)
    job.opened[3][1] = RecordedCall("recv", 0, 0, 8, job.now_s, OPEN_S)
    job.run(PATIENCE_S + 1)
    assert not any(hang.is_incident for hang in job.told), "listeners that are idle"


def test_who_is_in_a_call_of_its_own_has_not_come(tmp_path):
    job = Job(tmp_path)
    job.iterate(5)
    job.call([2], name="forward", communicator=7, size=1)
    job.call([0, 1, 3])
    job.run(STATUS_S + 1)
    (hang,) = job.told
    assert (hang.kind, hang.ranks, hang.came) == ("missing", (2,), (0, 1, 3))


def test_calls_that_are_only_queued_wait_later(tmp_path):
    job = Job(tmp_path)
    for rank in range(RANKS):
        job.finder.add_rank(rank, ["all_reduce"])
    job.iterate(5)
    job.run(60)
    assert not job.told, "all have come, and do something else"
    job.call([0, 1, 3])
    job.leave()
    job.run(PATIENCE_S + 1)
    assert [(hang.ranks, hang.is_incident) for hang in job.told] == [((2,), False), ((2,), True)]


def test_calls_that_a_device_times_may_end_late_and_begin_later_than_others_were_made(tmp_path):
    """The program is ahead of its devices: open calls were made before those began that have ended."""
    job = Job(tmp_path)
    for rank in range(RANKS):
        job.finder.add_rank(rank, ["all_reduce"])
    for _ in range(3):
        job.call(range(RANKS))
    for rank, calls in job.opened.items():
        index, call = next(iter(calls.items()))
        job.latest[rank] = index
        job.finder.add(new_calls({rank: [calls.pop(index)._replace(start_s=job.now_s + 200, end_s=job.now_s + 201)]}))
        assert call.start_s == job.now_s, (rank, calls)
    job.run(60)
    assert not job.told, "all have come, and their devices compute"
    job.call([0, 1, 3])
    job.run(PATIENCE_S + 1)
    assert [(hang.ranks, hang.is_incident) for hang in job.told] == [((2,), False), ((2,), True)]


def test_a_log_with_holes_is_no_suspect_and_a_reader_that_slept_knows_nothing(tmp_path):
    job = Job(tmp_path)
    job.finder.lose(2)
    job.call([0, 1, 3])
    job.now_s += 3600
    job.run(STATUS_S - 1)
    assert not job.told
    job.run(PATIENCE_S)
    assert all(2 not in hang.ranks for hang in job.told)


# -- where a rank is


def header(pid, **more):
    return {"rank": 0, "pid": pid, "started": start_of(pid), "pids": pid_namespace(), "boot": boot_id(), **more}


def test_whereabouts_of_processes(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        writer = RingWriter(tmp_path / "rank-0-1.calls", header(child.pid))
        writer.beat(time.monotonic())
        reader = RingReader(tmp_path / "rank-0-1.calls")
        assert whereabouts(tmp_path, 0, reader).state == "runs"
        os.kill(child.pid, 19)
        deadline_s = time.monotonic() + 10
        while whereabouts(tmp_path, 0, reader).state != "stopped" and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert whereabouts(tmp_path, 0, reader).state == "stopped"
    finally:
        child.kill()
        child.wait()
    assert whereabouts(tmp_path, 0, reader).state == "gone"
    writer.end()
    assert whereabouts(tmp_path, 0, reader).state == "ended"
    assert whereabouts(tmp_path, 1, None).state == "silent"
    writer = RingWriter(tmp_path / "rank-2-1.calls", header(os.getpid()))
    writer.beat(time.monotonic() - 60)
    assert whereabouts(tmp_path, 2, RingReader(tmp_path / "rank-2-1.calls")).state == "unresponsive"
    writer = RingWriter(tmp_path / "rank-3-1.calls", header(1, boot="another"))
    assert "not known" in str(whereabouts(tmp_path, 3, RingReader(tmp_path / "rank-3-1.calls")))


def test_a_recorder_says_where_its_program_is(tmp_path, monkeypatch):
    monkeypatch.setattr(recording, "BEAT_S", 0.1)
    recorder = Recorder(tmp_path)
    channel = recorder.channel(0, "barrier", 2, 0)
    channel(0, 1.0, 2.0)
    path = tmp_path / f"rank-0-{os.getpid()}.stack"
    deadline_s = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    (reader,) = (RingReader(file) for file in tmp_path.glob("*.calls"))
    found = whereabouts(tmp_path, 0, reader)
    assert found.state == "runs" and found.age_s < 30
    assert any(function == "test_a_recorder_says_where_its_program_is" for _, _, function in found.frames)
    assert "test_hangs.py" in str(found)
    path.write_text("{")
    assert whereabouts(tmp_path, 0, reader).frames == ()
    recorder.end()


def test_the_log_of_a_job_that_hangs_says_so(tmp_path):
    logs = []
    for rank in range(2):
        # Of another machine: its clock is not ours, and nobody sees its process.
        writer = RingWriter(tmp_path / f"rank-{rank}-1.calls", header(1, boot=f"b{rank}") | {"rank": rank})
        logs.append(writer)
    logs[0].channel("barrier", 2, 0).begin(-1, 5.0)
    job, told, deadline_s = JobLog(tmp_path, 2, Thresholds(status_s=0.3)), [], time.monotonic() + 30
    while not told and time.monotonic() < deadline_s:
        job.poll()
        told += job.hangs
        time.sleep(0.05)
    assert [(hang.kind, hang.ranks) for hang in told] == [("missing", (1,))]
    assert job.report()["hangs"] == []


@pytest.mark.parametrize("how", ["ended", "dropped"])
def test_the_thread_of_a_recorder_does_not_outlive_it(tmp_path, how):
    recorder = Recorder(tmp_path)
    recorder.channel(0, "barrier", 2, 0)(0, 1.0, 2.0)
    (thread,) = (one for one in threading.enumerate() if one is recorder._thread)
    if how == "ended":
        recorder.end()
    del recorder
    gc.collect()
    thread.join(5)
    assert not thread.is_alive()


def test_of_ever_new_communicators_the_first_are_counted_on(tmp_path, monkeypatch):
    """What is kept neither grows nor is thrown away and grows again; who makes them is no suspect any more."""
    monkeypatch.setattr(hangs, "MANY", 4)
    seen = SeenCalls(tmp_path)
    for i in range(3):
        seen.add(new_calls({0: [("a", 2, c, 8, 10.0 * i + c, 10.0 * i + c) for c in range(2 + 2 * i)]}))
    assert [seen.ended(0, communicator) for communicator in range(6)] == [3, 3, 2, 2, 0, 0]
    assert seen.lost == {0}


def test_who_died_in_a_call_to_which_all_came_is_named(tmp_path):
    job = Job(tmp_path, {1: "gone", 2: "gone"})
    job.call(range(RANKS))
    job.run(STATUS_S + 1)
    (hang,) = job.told
    assert (hang.kind, hang.ranks, hang.came, hang.is_incident) == ("call", (1, 2), (0, 3), True)
    assert "all came, but rank 1: its process is gone" in hang.text and "link" not in hang.text


@pytest.mark.parametrize("how", ["killed in a call", "ended in order"])
def test_a_job_that_is_started_again_is_watched_on(tmp_path, how):
    """Its iterations go on, its calls are counted anew, and what it hung in before is over."""
    dead = {"boot": boot_id(), "pids": pid_namespace(), "started": 1, "pid": 2**22 + 1, "world_size": 2}
    job, hung = JobLog(tmp_path, None, Thresholds(status_s=0.2)), []

    def run(about, iterations):
        paths = [tmp_path / f"rank-{rank}-{about['pid']}.calls" for rank in (0, 1)]
        writers = [RingWriter(path, about | {"rank": rank}) for rank, path in enumerate(paths)]
        now_s = time.monotonic() - 0.01 * iterations
        for _ in range(iterations):
            for _ in range(3):
                for writer in writers:
                    writer.channel("all_reduce", 2, 0)(8, now_s, now_s + 1e-3)
                now_s += 3e-3
            for writer in writers:
                writer.channel("barrier", 2, 0)(0, now_s, now_s + 5e-4)
            now_s += 1e-3
        return writers

    for writer in run(dead, 50):
        if how == "ended in order":
            writer.end()
        else:
            writer.channel("all_reduce", 2, 0).begin(8, time.monotonic())
    # The second: processes that live.
    ends_s = time.monotonic() + (0.8 if how == "killed in a call" else 0.0)
    while time.monotonic() < ends_s:
        job.poll()
        hung += job.hangs
        time.sleep(0.05)
    job.poll()
    assert {hang.ranks for hang in hung} == ({(0, 1)} if how == "killed in a call" else set())
    own = {"started": start_of(os.getpid()), "pid": os.getpid()}
    run(dead | own, 60)
    job.poll()
    job.poll()
    found = job.report()
    assert found["iterations"]["count"] >= 105 and found["reported"] == [0, 1] and not found["incidents"]
    assert found["arrivals"]["matched"] >= 200
    assert any("started again once" in note for note in found["notes"])
    assert all(hang["ended_after_s"] is not None for hang in found["hangs"])
    job.close()
