"""bench calls: the way of a call to its first message stays short, and what contenders write is looked at."""

import io
from types import SimpleNamespace

from evaluation.__main__ import EVALUATE
from evaluation.speed import overlap as beside
from evaluation.speed import queues
from evaluation.speed.calls import PARTS, SIZES, CallContest, print_document, steps
from lanterne.collectives.jobs import spawn


def test_a_short_way_from_all_reduce_to_post():
    for calls, changes in spawn(2, steps):
        assert 10 < calls <= 30, (calls, changes)
        assert 8 < changes <= 14, (calls, changes)


def contest(comm):
    trial = CallContest(comm)
    small = trial.small(turns=2)
    return [small, *(trial.large(name, sizes[0]) for name, sizes in SIZES.items() if name != "broadcast")]


def test_results_are_right_and_shown():
    results = spawn(2, contest)[0]
    assert not any(row["wrong"] for result in results for row in result["rows"])
    assert [row["way"] for row in results[0]["rows"]] == ["bound", "plain", "ring"]
    text = io.StringIO()
    cpu = {"cpu_s_per_gb": 2.5, "sent_gb": 1.0, "seconds": 4.0}
    print_document({"results": results, "cpu": cpu, "steps": {"calls": 23, "changes_of_file": 14}}, text)
    assert "2.50 s a GB" in text.getvalue() and "23 functions" in text.getvalue()


def test_what_is_wrong_is_counted(monkeypatch):
    def spoiled(comm):
        trial = CallContest(comm)
        block = trial._block
        monkeypatch.setattr(trial, "_block", lambda call, calls: block(lambda: None, calls))
        return trial.small(turns=1)

    assert all(row["wrong"] for row in spawn(2, spoiled)[0]["rows"])


def test_a_call_beside_work_is_timed_and_checked(monkeypatch):
    monkeypatch.setattr(beside, "NBYTES", 1 << 16)
    rows = spawn(2, beside.overlap)[0]
    assert [row["work"] for row in rows] == ["asleep", "matmul", "Python loop"]
    assert all(row["over"] > 0 and not row["wrong"] and len(row["both_s"]) == beside.TURNS for row in rows)
    text = io.StringIO()
    print_document({"results": [], "overlap": [row | {"cpu_over": 0.2} for row in rows]}, text)
    assert "Python loop" in text.getvalue() and "0.20" in text.getvalue()


def test_queues_over_links_are_timed_and_checked(monkeypatch):
    monkeypatch.setattr(queues, "BUCKET_NBYTES", 1 << 14)
    monkeypatch.setattr(queues, "CROWDED_NBYTES", 1 << 16)
    monkeypatch.setattr(queues, "PROCESSES", 0)

    def both(comm):
        return {"backward": queues.backward(comm, 1e9), "crowded": queues.crowded(comm, 1e9)}

    document = spawn(2, both)[0]
    assert len(document["backward"]["left"]) == queues.TURNS and not document["backward"]["wrong"]
    assert list(document["crowded"]["over"]) == ["auto", "ring"] and not document["crowded"]["wrong"]
    text = io.StringIO()
    print_document({"results": [], **document}, text)
    assert "buckets left after the last start, 0 wrong" in text.getvalue() and "of s/rate beside" in text.getvalue()


def test_a_queue_over_links_needs_their_rate(capsys, monkeypatch):
    monkeypatch.delenv("LANTERNE_RATE_BYTES_PER_S", raising=False)
    assert EVALUATE.main(["calls", "--only", "backward"]) == 2
    assert "--rate: got none for backward, expected that of the links" in capsys.readouterr().err


def test_parts_are_known(capsys):
    assert EVALUATE.main(["calls", "--only", f"{PARTS[0]},nothing"]) == 2
    assert "--only: got 'nothing', expected one of small, large" in capsys.readouterr().err


def test_a_started_call_that_is_not_made_is_wrong(monkeypatch):
    monkeypatch.setattr(beside, "NBYTES", 1 << 12)
    monkeypatch.setattr(queues, "BUCKET_NBYTES", 1 << 12)
    monkeypatch.setattr(queues, "CROWDED_NBYTES", 1 << 12)
    monkeypatch.setattr(queues, "PROCESSES", 0)

    def program(comm):
        class Mute(type(comm)):
            def start_all_reduce(self, x, out, *args, **options):
                return SimpleNamespace(wait=lambda: None)

            def all_reduce(self, x, out, *args, **options):
                if out.nbytes != 1 << 12:
                    super().all_reduce(x, out, *args, **options)

        comm.__class__ = Mute
        return [*beside.overlap(comm), queues.backward(comm, 1e9), queues.crowded(comm, 1e9)]

    found = spawn(2, program)[0]
    assert len(found) == 5 and min(each["wrong"] for each in found) > 0
