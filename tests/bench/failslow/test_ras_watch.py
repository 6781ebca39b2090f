"""`watch --ras`: what NCCL's RAS service says of a job is told as it changes; a stand-in of the service answers."""

import json
import socketserver
import threading
from contextlib import contextmanager

import pytest

from lanterne.bench import cli
from lanterne.bench.failslow import ras_watch
from lanterne.bench.failslow.ras_watch import RasWatch, ask, parse_place
from lanterne.errors import InputError, TransportError

TEXT = """NCCL version 2.27.3 compiled with CUDA 12.9
Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         8         8         8   RUNNING  MISMATCH

Warnings
========

#0-0 (a1b2c3d4e5f60718) MISMATCH
  Communicator ranks have different collective operation counts
  7 ranks have launched up to operation 100
  1 rank has launched up to operation 98
  Rank 3 -- GPU 3 managed by process 503 on node 10.0.0.1
"""


def document(counts, dead=(), errors=()):
    """What RAS says of one communicator: calls by rank, ranks that it considers dead, and those with an error."""
    ranks = [
        {"rank": rank, "host": "h", "pid": 100 + rank, "cuda_dev": rank, "collective_counts": {"AllReduce": count}}
        | {"status": {"async_error": 2 if rank in errors else 0}}
        for rank, count in enumerate(counts)
        if rank not in dead
    ]
    missing = [
        {"rank": rank, "host": "h", "pid": 100 + rank, "cuda_dev": rank, "status": {"considered_dead": True}}
        for rank in dead
    ]
    about = {"hash": "0xab", "size": len(counts), "ranks": ranks, "missing_ranks": missing}
    return {"communicators": [about]}


@contextmanager
def service(answers, greeting="SERVER PROTOCOL 2", speaks_json=True):
    """Return the port of a service that gives the next of `answers` to each client, then is gone."""
    left = list(answers)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            for line in self.rfile:
                if line.startswith(b"CLIENT"):
                    self.wfile.write(f"{greeting}\n".encode())
                elif line == b"VERBOSE STATUS\n":
                    self.wfile.write(left.pop(0).encode())
                    if not left:
                        threading.Thread(target=server.server_close).start()
                    return
                else:
                    known = speaks_json or not line.startswith(b"SET")
                    self.wfile.write(b"OK\n" if known else b"ERROR: Unknown command\n")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def watched(documents, patience_s=5.0):
    """A RasWatch that has seen `documents`, 2 s apart."""
    left = iter(documents)
    watch = RasWatch(lambda: next(left), "h:1", "none", patience_s)
    for number, _ in enumerate(documents):
        watch.look(2.0 * number)
    return watch


def test_a_rank_behind_is_told_and_an_incident_after_patience(capsys):
    watch = watched([document([7, 7, 6])] * 2)
    assert watch.named == {}
    watch = watched([document([7, 7, 6])] * 3)
    assert watch.named == {"rank 2": "it has not begun call 7 in group 0xab; its last there is 6"}
    assert watch.incidents.count == 0
    watch = watched([document([7, 7, 6])] * 6)
    (incident,) = watch.incidents.documents.values()
    assert (incident["kind"], incident["lasts"]) == ("process", True)
    assert [(one["rank"], one["host"], one["pid"], one["gpu"]) for one in incident["ranks"]] == [(2, "h", 102, "2")]
    assert capsys.readouterr().err.count("INCIDENT for 6 s: rank 2") == 1


def test_an_incident_that_is_over_is_told():
    watch = watched([document([7, 7, 6])] * 6 + [document([8, 8, 8])])
    assert watch.named == {}
    (incident,) = watch.incidents.documents.values()
    assert incident["lasts"] is False


@pytest.mark.parametrize(
    ("last", "because"),
    [
        (document([7, 7, 7], dead=[1]), "NCCL considers it dead"),
        (document([7, 7, 7], errors=[1]), "NCCL reports an asynchronous error of it: 2 (unhandled system error)"),
    ],
)
def test_death_and_errors_are_incidents_at_once(last, because):
    watch = watched([last])
    assert watch.named == {"rank 1": because}
    assert watch.incidents.count == 1


def test_a_job_whose_calls_go_on_has_nothing_to_tell(capsys):
    watch = watched([document([number, number, number - 1]) for number in range(5, 15)])
    assert watch.named == {}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("answer", "speaks_json"), [(json.dumps(document([7, 7, 6])), True), (TEXT, False)])
def test_the_service_is_asked_for_json_and_else_read_as_text(answer, speaks_json):
    with service([answer], speaks_json=speaks_json) as port:
        found = ask("127.0.0.1", port)
    (communicator,) = found["communicators"]
    counts = {one["rank"]: sum(one["collective_counts"].values()) for one in communicator["ranks"]}
    assert counts.get(2 if speaks_json else 3) == (6 if speaks_json else 98)


def test_the_command_ends_with_the_job(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(ras_watch, "LOOK_S", 0.05)
    with service([json.dumps(document([7, 7, 7], dead=[2]))] * 3) as port:
        words = ["watch", "--ras", f"127.0.0.1:{port}", "--incidents", str(tmp_path / "incidents")]
        code = cli.main([*words, "--json", str(tmp_path / "report.json"), "--fail-on", "incident"])
    said = capsys.readouterr().err
    assert code == 1, said
    assert "INCIDENT: rank 2: NCCL considers it dead" in said
    assert "answers no more" in said
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["incidents"], report["named"]) == (1, {"rank 2": "NCCL considers it dead"})
    (incident,) = [json.loads(path.read_text()) for path in (tmp_path / "incidents").iterdir()]
    assert incident["text"] == "rank 2: NCCL considers it dead"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--ras", "127.0.0.1:1"], 1, "127.0.0.1:1 does not answer (Connection refused), expected the RAS service"),
        (["--ras", "here:none"], 2, "--ras: got 'here:none', expected HOST, PORT or HOST:PORT"),
        (["--ras", "-n", "3"], 2, "--ras: got -n beside it, expected none"),
        (["--ras", "--history", "x"], 2, "--ras: got --history beside it"),
        (["--ras", "x", "--", "true"], 2, "expected one of a COMMAND after --, --attach PID and --ras HOST:PORT"),
    ],
)
def test_what_cannot_be_is_one_line(words, code, said, capsys):
    assert cli.main(["watch", *words]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("greeting", ["220 mail.example ESMTP", ""])
def test_another_service_is_named(greeting):
    with (
        service(["x"], greeting=greeting) as port,
        pytest.raises(TransportError, match="expected NCCL's SERVER PROTOCOL"),
    ):
        ask("127.0.0.1", port)


def test_an_answer_that_is_no_status_is_named():
    with service(["ERROR"]) as port, pytest.raises(TransportError, match="expected NCCL's status"):
        ask("127.0.0.1", port)


def test_places():
    assert parse_place("node7") == ("node7", 28028)
    assert parse_place("[::1]:9") == ("::1", 9)
    assert parse_place(":9") == parse_place("9") == ("localhost", 9)
    with pytest.raises(InputError, match="expected HOST, PORT or HOST:PORT"):
        parse_place("x:99999")
