"""A job from its call logs: iterations, incidents, their causes, and every reason to say less."""

import gc
import io
import json
import os
import random
from math import inf
from types import BuiltinFunctionType, FunctionType, ModuleType, SimpleNamespace

import pytest
from call_logs import CALLS, OWN_S, TRANSFER_S, job_calls, new_calls, write_logs

from lanterne.bench.failslow.watch import print_report
from lanterne.failslow.operate.thresholds import Thresholds
from lanterne.failslow.record import blame, hangs, incidents, iteration_log, job_log, lateness, period
from lanterne.failslow.record.adapters import DDP_BACKWARD, DDP_FORWARD
from lanterne.failslow.record.bounds import OPEN
from lanterne.failslow.record.call_ring import BEGUN_OFFSET, RECORD, RingWriter
from lanterne.failslow.record.hangs import Hang
from lanterne.failslow.record.iteration_log import Notice
from lanterne.failslow.record.job_ledger import JobLedger, about_run
from lanterne.failslow.record.job_log import CALM_S, FILLED, LONGEST_S, SHORTEST_S, JobLog
from lanterne.failslow.record.lateness import Matcher
from lanterne.failslow.record.watch import Looks, Reader, next_wait_s

USUAL_S = CALLS * (OWN_S + TRANSFER_S)


def report_of(folder, logs, world_size=None, **options):
    write_logs(folder, logs, **options)
    job = JobLog(folder, world_size or len(logs))
    notices = job.poll()
    found = job.report()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found, notices


def test_healthy_job(tmp_path):
    found, notices = report_of(tmp_path, job_calls(4, 100))
    assert found["incidents"] == [] and found["notes"] == [] and not notices
    assert found["iterations"]["calls"] == CALLS
    assert found["iterations"]["count"] >= 98
    assert found["iterations"]["median_s"] == pytest.approx(USUAL_S, rel=0.02)
    matched = found["arrivals"]["matched"]
    assert matched == 100 * CALLS
    assert sum(rank["last"] for rank in found["arrivals"]["ranks"]) == matched
    assert [rank["calls"] for rank in found["arrivals"]["ranks"]] == [100 * CALLS] * 4
    assert {call["name"]: call["count"] for call in found["calls"]} == {"all_reduce": 300, "barrier": 100}


@pytest.mark.parametrize("culprit", [0, 2])
def test_a_late_rank_is_named(tmp_path, culprit):
    found, notices = report_of(tmp_path, job_calls(4, 120, late=(culprit, 60, 90, 4e-3)))
    (incident,) = found["incidents"]
    assert abs(incident["onset"] - 60) <= 1 and abs(incident["relief"] - 90) <= 1
    assert incident["ratio"] == pytest.approx(1 + CALLS * 4e-3 / USUAL_S, rel=0.05)
    assert (incident["cause"]["kind"], incident["cause"]["rank"]) == ("rank", culprit)
    onset = next(notice for notice in notices if notice.event.confirmed_at is not None)
    assert onset.cause.rank == culprit and "onset" in onset.text
    waited_s = [rank["waited_s"] for rank in found["arrivals"]["ranks"]]
    assert min(range(4), key=waited_s.__getitem__) == culprit


def test_slow_calls_blame_no_rank(tmp_path):
    found, _ = report_of(tmp_path, job_calls(4, 120, slow=(60, 90, 4e-3)))
    (incident,) = found["incidents"]
    assert (incident["cause"]["kind"], incident["cause"]["rank"]) == ("calls", None)


def test_the_job_ends_inside_an_incident(tmp_path):
    found, _ = report_of(tmp_path, job_calls(4, 100, late=(1, 70, 100, 4e-3)))
    assert found["incidents"][0]["lasts"] and found["incidents"][0]["relief"] is None
    assert found["incidents"][0]["cause"]["rank"] == 1
    assert "the job ended inside an incident" in found["notes"]


def test_a_silent_rank_is_told_and_is_a_suspect(tmp_path):
    logs = job_calls(4, 120, late=(2, 60, 90, 4e-3))
    del logs[2]
    found, _ = report_of(tmp_path, logs, world_size=4)
    assert found["reported"] == [0, 1, 3]
    assert any(note.startswith("rank 2 reported nothing") for note in found["notes"])
    assert found["incidents"][0]["cause"]["ranks"] == [2]
    assert "nothing is known of rank 2" in found["incidents"][0]["cause"]["evidence"]


def test_nobody_reports(tmp_path):
    found, _ = report_of(tmp_path, {}, world_size=2)
    assert found["iterations"]["count"] == 0
    assert found["notes"] == ["ranks 0, 1 reported nothing: no call that is recorded before the end"]


def test_clocks_of_other_machines_are_aligned(tmp_path):
    skew_s = {2: 1234.5, 3: -77.0}
    logs = job_calls(4, 120, late=(2, 60, 90, 4e-3), skew_s=skew_s)
    found, _ = report_of(tmp_path, logs, boots={2: "c", 3: "d"})
    assert found["incidents"][0]["cause"]["rank"] == 2
    assert max(rank["late_max_s"] for rank in found["arrivals"]["ranks"]) < 5e-3


def test_a_clock_that_goes_backwards(tmp_path):
    logs = job_calls(2, 120)
    for calls in logs.values():
        calls[300:] = [(*call[:4], call[4] - 50.0, call[5] - 50.0) for call in calls[300:]]
    found, _ = report_of(tmp_path, logs)
    assert found["incidents"] == []
    assert "the clock of rank 0 went backwards 1 times" in found["notes"]
    assert max(found["iterations"]["time_s"]) < 2 * USUAL_S


def test_calls_that_were_overwritten(tmp_path):
    found, _ = report_of(tmp_path, job_calls(2, 100), capacity=64)
    assert any("came faster than they were read" in note for note in found["notes"])
    assert found["arrivals"]["matched"] == 0


def test_a_rank_that_was_killed_and_too_few_iterations(tmp_path):
    found, _ = report_of(tmp_path, job_calls(2, 20), ended=False)
    assert "ranks 0, 1 did not end in order" in found["notes"]
    assert any("too few to judge" in note for note in found["notes"])


def test_no_period(tmp_path):
    logs = {0: [(f"call {i}", 1, 0, i, float(i), float(i)) for i in range(30)]}
    found, _ = report_of(tmp_path, logs)
    assert "no call recurs evenly: no iterations were found" in found["notes"]


def test_files_that_are_no_logs(tmp_path):
    (tmp_path / "rank-9-1.calls").write_bytes(b"\0" * 100)
    found, _ = report_of(tmp_path, job_calls(2, 50))
    assert any(note.startswith("rank-9-1.calls cannot be read") for note in found["notes"])
    assert found["reported"] == [0, 1]


def test_forwards_of_ddp_mark_iterations_and_their_ends_say_who_is_late(tmp_path):
    logs, now_s = {0: [], 1: [], 2: []}, 100.0
    for i in range(140):
        ends = {rank: now_s + 5e-3 + (4e-3 if rank == 1 and 60 <= i < 90 else 1e-5 * rank) for rank in logs}
        for rank, end_s in ends.items():
            # Batches of many sizes, another forward to look at the result, and now and then a sum of losses.
            logs[rank].append((DDP_FORWARD, 3, 7, 64 + i % 9, now_s, end_s))
            logs[rank] += [(DDP_FORWARD, 0, 7, 64, end_s, end_s + 1e-4)] * (i % 3 == 0)
            logs[rank] += [("all_reduce", 3, 0, 4, end_s, max(ends.values()) + 1e-3)] * (i % 10 == 0)
        now_s = max(ends.values()) + 3e-3
    found, _ = report_of(tmp_path, logs)
    (incident,) = found["incidents"]
    assert abs(incident["onset"] - 60) <= 1 and abs(incident["relief"] - 90) <= 1
    assert (incident["cause"]["kind"], incident["cause"]["rank"]) == ("rank", 1)
    assert found["iterations"]["count"] >= 138 and any("from C++" in note for note in found["notes"])


def test_backwards_of_ddp_say_who_is_late_and_forwards_that_are_followed_by_one_do_not(tmp_path):
    logs, now_s = {0: [], 1: [], 2: []}, 100.0
    for i in range(140):
        # Rank 2's forward is longer in all iterations, rank 1's backward in some.
        begins = {rank: now_s + 8e-3 + (6e-3 if rank == 1 and 60 <= i < 90 else 1e-5 * rank) for rank in logs}
        end_s = max(begins.values()) + 1e-3
        for rank, begin_s in begins.items():
            forward_s = now_s + (7e-3 if rank == 2 and i >= 60 else 2e-3)
            logs[rank].append((DDP_FORWARD, 3 if i == 0 else 1, 7, 64, now_s, forward_s))
            logs[rank].append((DDP_BACKWARD, 3, 8, 0, begin_s, end_s))
        now_s = end_s + 3e-3
    found, _ = report_of(tmp_path, logs)
    (incident,) = found["incidents"]
    assert (incident["cause"]["kind"], incident["cause"]["ranks"]) == ("rank", [1])
    assert abs(incident["onset"] - 60) <= 1 and not any("from C++" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("queued", "timed", "note"),
    [
        (["allReduce"], True, "timed by the device"),
        (["allReduce"], False, "show when they were queued"),
        # None of these was made.
        (["send"], False, ""),
    ],
)
def test_the_report_says_whose_times_calls_on_gpus_are(tmp_path, queued, timed, note):
    writer = RingWriter(tmp_path / "rank-0-1.calls", {"rank": 0, "pid": 1, "queued": queued})
    channel = writer.channel("allReduce", 1, 7)
    place = channel.begin(8, 1.0)
    if timed:
        channel.begun(place, 1.5)
    channel.end(place, 2.0)
    job = JobLog(tmp_path, 1)
    job.poll()
    found = job.report()
    told = [text for text in found["notes"] if "GPUs" in text]
    assert len(told) == bool(note) and all(note in text for text in told)
    assert found["arrivals"]["ranks"][0]["timed_on_device"] == timed


def test_it_reads_while_the_job_runs(tmp_path):
    logs = job_calls(2, 120, late=(1, 60, 90, 4e-3))
    writers = write_logs(tmp_path, {rank: [] for rank in logs}, ended=False, capacity=64)
    job, rows = JobLog(tmp_path, 2), []
    for i in range(120 * CALLS):
        for writer, calls in zip(writers, logs.values(), strict=True):
            writer.channel(*calls[i][:3])(*calls[i][3:])
        rows += [(i // CALLS, notice.event) for notice in job.poll()]
    confirmed = next(row for row, event in rows if event.kind == "onset" and event.confirmed_at is not None)
    assert 60 <= confirmed <= 60 + 6
    assert job.report()["incidents"][0]["cause"]["rank"] == 1


def test_memory_does_not_grow_with_the_job(tmp_path, monkeypatch):
    """Every store is made small, and filled twice over, before it is measured."""
    for module, name, value in (
        (job_log, "KEPT", 8),
        (iteration_log, "MANY", 256),
        (iteration_log, "KEPT", 8),
        (blame, "KEPT", 32),
        (lateness, "MANY", 64),
        (period, "SETTLED_S", 1.0),
        (hangs, "MANY", 16),
        (incidents, "KEPT", 4),
        (incidents, "OPEN", 24),
    ):
        monkeypatch.setattr(module, name, value)
    writers = write_logs(tmp_path, {0: [], 1: []}, ended=False, capacity=512)
    usual = [(writer.channel("all_reduce", 2, 0), writer.channel("barrier", 2, 0)) for writer in writers]
    job, now_s, counts = JobLog(tmp_path, 2), 0.0, []
    ledger = JobLedger(job, about_run(["x"]), None)
    for i in range(6000):
        late_s = 0.5 if i % 100 >= 80 else 0.0
        for rank, (reduces, barriers) in enumerate(usual):
            reduces(8, now_s + 0.9 + late_s * rank, now_s + 1.0 + late_s)
            barriers(-1, now_s + 1.0 + late_s, now_s + 1.01 + late_s)
            if i % 10 == 0:
                writers[rank].channel("broadcast", 2, i + 1)(8, now_s + 1.01 + late_s, now_s + 1.01 + late_s)
        now_s += 1.01 + late_s
        if i % 100 == 99:
            for notice in job.poll():
                ledger.notice(notice)
            ledger.look()
            counts.append(reachable(ledger))
    assert ledger.incidents.counts["slow"] == 60 and job.report()["incidents"][-1]["cause"]["rank"] == 1
    assert any("only counted" in note for note in job.report()["notes"])
    assert max(counts[40:]) <= max(counts[20:40]) + 5


def reachable(root):
    """Objects that `root` keeps, without code and what modules hold."""
    seen, left = {}, [root]
    while left:
        one = left.pop()
        if id(one) not in seen and not isinstance(one, (type, ModuleType, FunctionType, BuiltinFunctionType)):
            seen[id(one)] = one
            left += gc.get_referents(one)
    return len(seen)


def test_what_waits_for_a_silent_rank_is_bounded():
    matcher = Matcher()
    for rank in range(2):
        matcher.add_rank(rank, "b")
    for i in range(300):
        matcher.add(new_calls({0: [("a", 2, 0, 8, float(i), float(i))] * (OPEN // 100)}))
    assert sum(len(calls.weights) for calls in matcher._open.values()) <= OPEN
    assert matcher.calls == 0


def test_calls_that_could_not_be_recorded_are_told(tmp_path):
    writers = write_logs(tmp_path, job_calls(2, 60))
    writers[1].fault()
    writers[1].fault()
    job = JobLog(tmp_path, 2)
    job.poll()
    assert "rank 1: 2 calls could not be recorded" in job.report()["notes"]


def test_a_reader_that_fails_or_a_notice_that_does_ends_no_program_and_says_so(tmp_path):
    write_logs(tmp_path, job_calls(2, 120, late=(1, 60, 90, 4e-3)))

    class Broken(JobLog):
        def poll(self):
            super().poll()
            raise OSError("gone")

    found = Reader(Broken(tmp_path, 2), print).finish()
    assert found["notes"][-1] == "the call logs could not be read any further: OSError: gone"
    asked = []

    def on_notice(notice):
        asked.append(notice)
        raise RuntimeError("of the caller")

    found = Reader(JobLog(tmp_path, 2), on_notice).finish()
    assert len(asked) > 1 and found["incidents"] and not any("could not be read" in note for note in found["notes"])


def test_incidents_of_before_a_program_changed_remain(tmp_path):
    logs = job_calls(2, 120, late=(1, 60, 90, 4e-3))
    now_s = max(calls[-1][-1] for calls in logs.values())
    for calls in logs.values():
        calls += [(f"phase {i % 6}", 2, 0, 8, now_s + 5e-3 * i, now_s + 5e-3 * i + 1e-3) for i in range(6 * 400)]
    found, _ = report_of(tmp_path, logs)
    assert found["iterations"]["calls"] == 6
    (incident,) = found["incidents"]
    assert abs(incident["onset"] - 60) <= 1 and abs(incident["relief"] - 90) <= 1 and not incident["lasts"]
    assert (incident["calls"], incident["cause"]["rank"]) == (CALLS, 1)
    print_report(found | {"exit_code": 0}, file := io.StringIO())
    assert f"SLOW from iteration {incident['onset']} to {incident['relief']} (each of 4 calls): " in file.getvalue()


def test_the_slow_rank_moves_and_the_report_says_what_was_said_live(tmp_path):
    """However often the logs are read: by each iteration, or all at once."""
    logs = job_calls(4, 160, late=(1, 60, 90, 4e-3), later=[(3, 90, 120, 4e-3)])
    writers = write_logs(tmp_path, {rank: [] for rank in logs}, ended=False, capacity=64)
    job, said = JobLog(tmp_path, 4), []
    for i in range(160 * CALLS):
        for writer, calls in zip(writers, logs.values(), strict=True):
            writer.channel(*calls[i][:3])(*calls[i][3:])
        said += [(i // CALLS, notice.cause) for notice in job.poll() if notice.cause is not None]
    (incident,) = job.report()["incidents"]
    assert [list(cause.ranks) for _, cause in said] == [cause["ranks"] for cause in incident["causes"]] == [[1], [3]]
    assert [row - start <= 6 for (row, _), start in zip(said, (60, 90), strict=True)] == [True, True]


def test_what_is_said_does_not_depend_on_when_logs_are_read(tmp_path):
    logs = job_calls(4, 160, late=(1, 60, 90, 4e-3), later=[(3, 90, 120, 4e-3)])
    found, notices = report_of(tmp_path, logs)
    assert [cause["ranks"] for cause in found["incidents"][0]["causes"]] == [[1], [3]]
    assert [list(notice.cause.ranks) for notice in notices if notice.cause is not None] == [[1], [3]]


# As of ranks that spin on shared cores: times alone tell a rank of x1.3 tens of iterations late, or never.
UNEVEN = {"uneven_s": 4e-3}


def told_of(folder, logs):
    """The report, and (iteration, ranks) of each time that somebody was named."""
    found, notices = report_of(folder, logs)
    named = [notice for notice in notices if notice.cause is not None and notice.cause.ranks]
    return found, [(int(one.text.split()[1].rstrip(":")), [*one.cause.ranks]) for one in named]


@pytest.mark.parametrize("seed", range(5))
def test_who_is_slow_then_another_and_then_nobody_where_iteration_times_vary_much(tmp_path, seed):
    logs = job_calls(6, 180, late=(1, 60, 90, 5e-3), later=[(3, 90, 150, 5e-3)], seed=seed, **UNEVEN)
    found, told = told_of(tmp_path, logs)
    assert [ranks for _, ranks in told] == [[1], [3]]
    assert [0 < row - begin <= 6 for (row, _), begin in zip(told, (60, 90), strict=True)] == [True, True]
    (incident,) = found["incidents"]
    assert [cause["ranks"] for cause in incident["causes"]] == [[1], [3]] and not incident["lasts"]
    assert incident["onset"] == pytest.approx(60, abs=2) and incident["relief"] == pytest.approx(150, abs=9)


@pytest.mark.parametrize("seed", range(5))
def test_who_was_slow_from_the_start_where_iteration_times_vary_much(tmp_path, seed):
    """That it recovers is told as soon as that a rank becomes slow, and an end of the job tells nothing else."""
    logs = job_calls(6, 130, late=(1, 0, 50, 5e-3), seed=seed, **UNEVEN)
    found, told = told_of(tmp_path, logs)
    assert [ranks for _, ranks in told] == [[1]] and 0 < told[0][0] - 50 <= 6
    (incident,) = found["incidents"]
    assert (incident["cause"]["ranks"], incident["relief"]) == ([1], pytest.approx(50, abs=2))


@pytest.mark.parametrize("seed", range(3))
def test_two_slow_ranks_where_iteration_times_vary_much(tmp_path, seed):
    logs = job_calls(6, 120, late=(1, 60, 120, 8e-3), later=[(3, 60, 120, 8e-3)], seed=seed, **UNEVEN)
    _, told = told_of(tmp_path, logs)
    assert [sorted(ranks) for _, ranks in told] == [[1, 3]] and 60 < told[0][0] <= 66


@pytest.mark.parametrize("seed", range(6))
def test_nobody_is_blamed_where_iteration_times_vary_much(tmp_path, seed):
    found, told = told_of(tmp_path, job_calls(6, 200, seed=seed, **UNEVEN))
    assert told == [] and found["incidents"] == []


def test_a_rank_that_is_always_the_last_is_no_incident_where_iteration_times_vary_much(tmp_path):
    """It has more to do, and does it in every iteration."""
    found, told = told_of(tmp_path, job_calls(6, 200, late=(2, 0, 200, 5e-3), **UNEVEN))
    assert told == [] and found["incidents"] == []


def test_two_slow_ranks_are_both_named(tmp_path):
    found, _ = report_of(tmp_path, job_calls(5, 120, late=(1, 60, 90, 4e-3), later=[(3, 60, 90, 3e-3)]))
    assert found["incidents"][0]["cause"]["ranks"] == [1, 3]


@pytest.mark.parametrize("seed", range(3))
def test_a_rank_that_is_late_by_less_than_a_tenth_is_named_as_soon_where_times_are_quiet(tmp_path, seed):
    """By 8 %: times alone tell that after 16 iterations."""
    found, told = told_of(tmp_path, job_calls(4, 120, late=(2, 60, 90, 0.55e-3), seed=seed))
    assert [ranks for _, ranks in told] == [[2]] and 60 < told[0][0] <= 65
    (incident,) = found["incidents"]
    assert (incident["onset"], incident["relief"]) == (pytest.approx(60, abs=1), pytest.approx(90, abs=1))


def test_who_was_slow_from_the_start_is_named(tmp_path):
    found, _ = report_of(tmp_path, job_calls(4, 120, late=(2, 0, 70, 4e-3)))
    (incident,) = found["incidents"]
    assert (incident["onset"], incident["relief"]) == (pytest.approx(0, abs=5), pytest.approx(70, abs=1))
    assert incident["cause"]["ranks"] == [2]


def test_that_who_was_slow_from_the_start_is_late_no_more_tells_its_end_sooner(tmp_path):
    # By a fifth: times alone are certain of that 12 iterations later.
    found, told = told_of(tmp_path, job_calls(4, 120, late=(2, 0, 70, 1.7e-3)))
    assert told == [(72, [2])] and [incident["relief"] for incident in found["incidents"]] == [69]


@pytest.mark.parametrize("is_calm", [False, True])
@pytest.mark.parametrize("fills_in_s", [1e9, 20.0, 4.0, 1.0, 0.1])
def test_logs_are_looked_at_as_often_as_they_fill(fills_in_s, is_calm):
    longest_s = CALM_S if is_calm else LONGEST_S
    wait_s, filled = SHORTEST_S, 0.0
    for _ in range(20):
        filled = wait_s / fills_in_s
        wait_s = next_wait_s(wait_s, filled, wait_s, is_calm=is_calm)
    assert SHORTEST_S <= wait_s <= longest_s
    assert wait_s in (SHORTEST_S, longest_s) or filled == pytest.approx(FILLED)
    assert wait_s == longest_s or longest_s / fills_in_s > FILLED


def followed(folder, monkeypatch, logs, until_s, capacity=16_384):
    """(when, what) was polled or told of a job that makes these calls, by a clock that is made up."""
    begin_s = now_s = min(calls[0][4] for calls in logs.values())
    writers = write_logs(folder, {rank: [] for rank in logs}, ended=False, capacity=capacity)
    events = sorted(
        (at_s, rank, place, kind)
        for rank, calls in logs.items()
        for place, call in enumerate(calls)
        for kind, at_s in enumerate(call[4:])
    )
    indices, done, seen = {}, 0, []
    monkeypatch.setattr(job_log, "time", SimpleNamespace(monotonic=lambda: now_s))
    job = JobLog(folder, len(logs))
    looks = Looks(job, now_s)
    while now_s < begin_s + until_s:
        now_s += looks.wait_s
        while done < len(events) and events[done][0] <= now_s:
            at_s, rank, place, kind = events[done]
            name, ranks, communicator, nbytes = logs[rank][place][:4]
            channel = writers[rank].channel(name, ranks, communicator)
            if kind == 0:
                indices[rank, place] = channel.begin(nbytes, at_s)
            else:
                channel.end(indices[rank, place], at_s)
            done += 1
        if looks.look(now_s):
            seen += [(now_s - begin_s, what) for what in ("poll", *job.poll(), *job.hangs)]
    return job, seen


@pytest.mark.parametrize("iteration_s", [0.03, 0.4, 3.0])
def test_a_healthy_job_is_polled_seldom_and_loses_nothing(tmp_path, monkeypatch, iteration_s):
    logs = job_calls(3, int(90 / iteration_s), own_s=iteration_s / CALLS, transfer_s=iteration_s / 50)
    job, seen = followed(tmp_path, monkeypatch, logs, 80)
    polls = [at_s for at_s, what in seen if what == "poll" and at_s > 60]
    assert 4 <= len(polls) <= 6, "every read_s"
    assert all(what == "poll" for _, what in seen) and not any("faster" in note for note in job.report()["notes"])


@pytest.mark.parametrize("iteration_s", [0.03, 0.4])
@pytest.mark.parametrize("late", [1.2, 1.5])
def test_what_is_slow_is_told_soon_though_calm_jobs_are_polled_seldom(tmp_path, monkeypatch, iteration_s, late):
    count = int(60 / iteration_s)
    own_s, begin = iteration_s / CALLS, count // 2
    late_s = (late - 1) * own_s
    logs = job_calls(3, count, late=(1, begin, count, late_s), own_s=own_s, transfer_s=iteration_s / 50)
    told = []
    for name in ("seldom", "always"):
        (tmp_path / name).mkdir()
        with monkeypatch.context() as patch:
            if name == "always":
                patch.setattr(JobLog, "is_calm", lambda job: False)
            _, seen = followed(tmp_path / name, patch, logs, 50)
        told += [(at_s, what) for at_s, what in seen if isinstance(what, Notice) and what.cause]
    (seldom_s, seldom), (always_s, always) = told
    assert seldom == always and seldom.cause.ranks == (1,)
    assert always_s - LONGEST_S <= seldom_s <= always_s + CALM_S


@pytest.mark.parametrize("iteration_s", [0.03, 0.4, 3.0])
def test_a_rank_that_does_not_come_to_a_calm_job_is_told_in_time(tmp_path, monkeypatch, iteration_s):
    logs = job_calls(3, int(60 / iteration_s), own_s=iteration_s / CALLS, transfer_s=iteration_s / 50)
    place = int(40 / iteration_s) * CALLS
    stops_s = logs[0][place][4]
    for rank, calls in logs.items():
        kept = calls[: place + (rank != 2)]
        calls[:] = kept if rank == 2 else [*kept[:-1], (*kept[-1][:5], inf)]
    _, seen = followed(tmp_path, monkeypatch, logs, 100)
    hangs = [(at_s + logs[0][0][4] - stops_s, what) for at_s, what in seen if isinstance(what, Hang)]
    assert [(hang.ranks, hang.is_incident) for _, hang in hangs] == [((2,), False), ((2,), True)]
    least_s = max(Thresholds.status_s, 3 * iteration_s)
    assert least_s <= hangs[0][0] <= least_s * 1.1 + CALM_S + LONGEST_S
    assert Thresholds.patience_s <= hangs[1][0] <= Thresholds.patience_s + CALM_S + LONGEST_S


def test_who_asks_how_a_job_is_hears_of_what_is_new_and_the_next_poll_tells_it(tmp_path):
    writers = write_logs(tmp_path, {rank: [] for rank in range(2)}, ended=False)
    logs = job_calls(2, 120, late=(1, 60, 120, 4e-3))
    job, counts = JobLog(tmp_path, 2), []
    for begin in range(0, 480, 40):
        for writer, calls in zip(writers, logs.values(), strict=True):
            for name, *rest in calls[begin : begin + 40]:
                writer.channel(name, *rest[:2])(*rest[2:])
        counts.append(job.status()["iterations"]["count"])
    assert counts[-6:] == [69, 79, 89, 99, 109, 119] and not job.is_calm()
    assert [notice.cause.ranks for notice in job.poll() if notice.cause is not None] == [(1,)]
    assert job.poll() == []


def test_a_log_that_is_cut_short_ends_no_other(tmp_path):
    logs = job_calls(3, 60)
    writers = write_logs(tmp_path, {rank: [] for rank in logs}, ended=False)
    job = JobLog(tmp_path, 3)
    for begin in (0, 120):
        for rank, calls in logs.items():
            # Its program could not write there, either.
            for name, *rest in calls[begin : begin + 120] if rank or not begin else ():
                writers[rank].channel(name, *rest[:2])(*rest[2:])
        job.poll()
        if not begin:
            (path,) = tmp_path.glob("rank-0-*")
            os.truncate(path, 100)
    found = job.report()
    assert found["reported"] == [1, 2] and found["lead"] == 1 and found["iterations"]["count"] >= 25
    assert any(note.startswith("the log of rank 0 is read no further") for note in found["notes"])
    assert job.status()["iterations"]["count"] >= 25


@pytest.mark.parametrize("header", [[], {"rank": None}, {"rank": 1, "world_size": "many"}, {"rank": 1, "capacity": 0}])
def test_a_log_whose_header_makes_no_sense_is_named_and_left(tmp_path, header):
    write_logs(tmp_path, job_calls(2, 60))
    content = next(tmp_path.glob("rank-1-*")).read_bytes()
    about = {"capacity": 16384, "record_nbytes": RECORD.size} | header if isinstance(header, dict) else header
    text = json.dumps(about).encode().ljust(BEGUN_OFFSET, b"\0")
    (tmp_path / "rank-1-99.calls").write_bytes(text + content[len(text) :])
    job = JobLog(tmp_path, 2)
    job.poll()
    found = job.report()
    assert found["reported"] == [0, 1]
    assert any(note.startswith("rank-1-99.calls cannot be read") for note in found["notes"])


def test_what_is_usual_before_a_spell_is_not_that_of_the_one_before(tmp_path):
    """A rank is slow, for eight iterations nobody is, then all alike are: not for want of calls."""
    draw, now_s, logs = random.Random(1), 100.0, {rank: [] for rank in range(4)}
    for i in range(110):
        own_s = 0.05 + draw.gauss(0.0, 0.0006) + (0.015 if 69 <= i < 95 else 0.0)
        come_s = [
            now_s + own_s + draw.uniform(0.0, 4e-4) + (0.05 if r == 2 and 30 <= i < 60 else 0.0) for r in range(4)
        ]
        now_s = max(come_s) + 1e-3
        for rank in range(4):
            logs[rank].append(("all_reduce", 4, 0, 8000, come_s[rank], now_s))
    found, _ = report_of(tmp_path, logs)
    causes = [cause for incident in found["incidents"] for cause in incident["causes"]]
    assert [(cause["kind"], cause["since"]) for cause in causes] == [("rank", 31), ("unknown", 69)]
    assert "all are slow alike" in causes[1]["evidence"]
