"""`lanterne pipeline run`: predicted and measured side by side, from real processes; bad input in one line."""

import json

import pytest

from lanterne.bench.cli import main
from lanterne.bench.output import bars
from lanterne.bench.pipeline import measure as pipeline_measure
from lanterne.bench.pipeline import run as pipeline_run
from lanterne.bench.pipeline.measure import rank_main
from lanterne.errors import InputError, LanterneError, PeerFailed, TransportError, TransportTimeout, Unavailable

PROBLEM = ["--stages", "2", "--microbatches", "3", "--forward", "2ms", "--link", "0=4ms"]


def run(capsys, *words):
    code = main(["pipeline", "run", *PROBLEM, *words])
    out, err = capsys.readouterr()
    # Other tests may run meanwhile.
    return code, out, "".join(line for line in err.splitlines(keepends=True) if not line.startswith("# busy"))


@pytest.mark.parametrize(("transport", "free"), [("mpi", "delegate"), ("ucx", "paired_o"), ("local", "unbounded")])
def test_every_contender_is_predicted_and_measured(capsys, tmp_path, transport, free):
    file, picture, trace = tmp_path / "run.json", tmp_path / "run.png", tmp_path / "trace.json"
    words = ["--scheduler", "1f1b,adaptra", "--data-plane", f"inline,{free}", "--iterations", "2", "--queue", "0"]
    words += ["--json", str(file), "--transport", transport]
    if transport == "local":
        words += ["--plot", str(picture), "--trace", str(trace)]
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    rows = [line for line in out.splitlines() if not line.startswith("#")]
    assert [line.split()[:2] for line in rows[2:]] == [
        [scheduler, plane] for scheduler in ("1f1b", "adaptra") for plane in ("inline", free)
    ]
    assert "# bar" not in out
    document = json.loads(file.read_text())
    limits = [str(bar).rpartition("%, ")[2] for bar in pipeline_run.bars(document["results"])]
    assert limits == ["expected at most 5.0%", "expected at most 2.0%"]
    assert document["scheduler"] == "1f1b" and document["predicted_makespan_s"] == pytest.approx(0.040)
    for result in document["results"]:
        # Timed stages never end early: no run is shorter than the work of a rank.
        assert len(result["measured_makespan_s"]) == 2, result
        assert min(result["measured_makespan_s"]) >= 0.018, result
        assert len(result["actions"]) == {"1f1b": 12, "adaptra": 18}[result["scheduler"]], result
        assert {action["rank"] for action in result["actions"]} == {0, 1}, result
        assert min(action["start_s"] for action in result["actions"]) == 0, result
    drawn = [f"{scheduler}-{plane}" for scheduler in ("1f1b", "adaptra") for plane in ("inline", free)]
    assert {path.name for path in tmp_path.glob("*.png")} == {
        f"run-{name}.png" for name in drawn if str(picture) in words
    }
    if transport == "local":
        spans = json.loads((tmp_path / "trace-1f1b-inline.json").read_text())["traceEvents"]
        assert sum(span["ph"] == "X" for span in spans) == 12


def test_a_plan_file_runs_as_it_is(capsys, tmp_path):
    file = tmp_path / "mine.json"
    assert main(["pipeline", "plan", *PROBLEM, "--scheduler", "gpipe", "--json", str(file)]) == 0
    capsys.readouterr()
    words = ["--scheduler", f"1f1b,{file}", "--iterations", "1", "--warmup", "0", "--transport", "local", "--json", "-"]
    code, out, _ = run(capsys, *words)
    ran = json.loads(out)["results"]
    assert code == 0 and [result["scheduler"] for result in ran] == ["1f1b", "mine"]
    order = [action["action"] for action in ran[1]["actions"] if action["rank"] == 0]
    assert order == json.loads(file.read_text())["ranks"][0]

    document = json.loads(file.read_text())
    document["ranks"][0].pop()
    file.write_text(json.dumps(document))
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "") and f"{file}: rank 0: got no" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data-plane", "carrier"], "data plane: got 'carrier', expected one of inline"),
        (["--scheduler", "zb"], "scheduler: got 'zb' (did you mean 'zb_v'?), expected one of gpipe"),
        (["--transport", "pigeon"], "--transport: got 'pigeon', expected one of local, mpi, ucx"),
        (["--iterations", "0"], "--iterations, --warmup: got 0 and 1"),
        (["--timeout", "0"], "--timeout: got 0, expected more than 0"),
        (["--link", "1=3ms"], "link: got '1', expected 0 to 0"),
        (["--unit", "0s"], "--unit: got none"),
        (["--data-plane", "streams"], "--data-plane: got streams, expected it with --device cuda --transport nccl"),
        (["--device", "cuda", "--adapt"], "--device: got cuda beside --adapt, expected it without"),
        (["--device", "cuda", "--slow-rank", "0=2x"], "--device: got cuda beside --slow-rank, expected it without"),
        (["--message", "9000G"], "message_nbytes: got 9663676416000, 57982058496000 for the messages"),
    ],
)
def test_bad_input_is_one_line(capsys, words, message):
    code, out, err = run(capsys, *words)
    assert code == 2 and out == "" and err.startswith(f"lanterne: {message}") and err.count("\n") == 1


@pytest.mark.parametrize("transport", ["local", "mpi"])
def test_messages_of_all_ranks_queue_on_a_shared_link(capsys, tmp_path, transport):
    """Both ways between the ranks are one link: never sooner than simulated, and a link each would be sooner."""
    file = tmp_path / "problem.json"
    problem = {"stages": 2, "microbatches": 3, "forward": 2, "backward_input": 2, "backward_weight": 2, "unit": "ms"}
    problem |= {"link_bandwidth": 100, "message_nbytes": 1024}
    shared = {"shared_links": [[[0, 1], [1, 0]]]}
    words = ["pipeline", "run", str(file), "--transport", transport, "--iterations", "1"]
    words += ["--scheduler", "interleaved_1f1b"]

    def predicted_and_measured(document):
        file.write_text(json.dumps(document))
        assert main([*words, "--data-plane", "delegate,unbounded", "--json", "-"]) == 0
        results = json.loads(capsys.readouterr().out)["results"]
        return [(result["predicted_makespan_s"], min(result["measured_makespan_s"])) for result in results]

    own = predicted_and_measured(problem)
    for (apart_s, _), (predicted_s, measured_s) in zip(own, predicted_and_measured(problem | shared), strict=True):
        assert measured_s > 0.98 * predicted_s > 1.2 * apart_s, (apart_s, predicted_s, measured_s)
    for more in ([], ["--data-plane", "delegate", "--adapt"], ["--data-plane", "delegate", "--jitter", "0.1=2"]):
        assert main([*words, *more]) == 2, more
        err = capsys.readouterr().err
        assert "shared_links: got some" in err and err.count("\n") == 1, more


@pytest.mark.parametrize(
    "work", [{"kind": "all_reduce", "time": 40}, {"kind": "zero1", "reduce_scatter": 20, "all_gather": 30}]
)
def test_data_parallel_work_is_waited_for(work, capsys, tmp_path):
    """Beside computing, one communication of a rank after the other; never sooner than simulated."""
    file = tmp_path / "problem.json"
    problem = {"stages": 2, "microbatches": 3, "forward": 2, "backward_input": 2, "backward_weight": 2, "unit": "ms"}
    file.write_text(json.dumps(problem | {"data_parallel": work}))
    words = ["pipeline", "run", str(file), "--transport", "local", "--iterations", "2"]
    words += ["--scheduler", "zb_h1,interleaved_1f1b"]
    assert main([*words, "--json", "-"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    for result in results:
        assert result["predicted_makespan_s"] > 0.05, result
        assert min(result["measured_makespan_s"]) > 0.98 * result["predicted_makespan_s"], result
    assert main([*words, "--adapt"]) == 2
    assert "data_parallel: got some beside --adapt or events" in capsys.readouterr().err


@pytest.mark.parametrize(("limit", "code"), [(1e9, 0), (-1.0, 1)])
def test_check_is_the_exit_code(capsys, monkeypatch, limit, code):
    monkeypatch.setattr(bars, "LIMIT", limit)
    words = ["--scheduler", "zb_h1", "--data-plane", "delegate", "--transport", "local", "--iterations", "1", "--check"]
    found, out, _ = run(capsys, *words)
    assert found == code and f"# bar {'MISSED' if code else 'met'}: delegate, measured off simulated" in out


def test_a_rank_that_fails_ends_the_command_with_its_error(capsys, monkeypatch):
    """A link slower than the timeout."""
    code, out, err = run(capsys, "--link", "0=9s", "--timeout", "2s", "--scheduler", "1f1b", "--iterations", "1")
    assert code == 1 and out == ""
    assert "no message from or to rank" in err and "none" not in err and "within 2 s" in err and "Traceback" not in err


@pytest.mark.parametrize(("error", "code"), [(Unavailable, 3), (InputError, 2), (LanterneError, 1)])
def test_what_the_ranks_lack_is_told_apart_from_what_fails(error, code, capsys, monkeypatch):
    def fail(function, work):
        raise error("ucx: is not here")

    monkeypatch.setattr(pipeline_measure, "run_rank", fail)
    monkeypatch.setattr("lanterne.transport.job.launch.launch", lambda command, *_, **__: rank_main(None, command[-1]))
    assert main(["pipeline", "run", "--stages", "2", "--microbatches", "2", "--forward", "1ms"]) == code
    assert "lanterne: ucx: is not here\n" in capsys.readouterr().err


def test_the_cause_is_told_and_not_what_others_saw_of_it(capsys, monkeypatch):
    errors = [PeerFailed(1, "it is gone"), TransportError("its delegate was killed"), TransportTimeout("too long")]

    def fail(function, work):
        raise errors.pop()

    def launch(command, *_, **__):
        return max(rank_main(None, command[-1]) for _ in range(3))

    monkeypatch.setattr(pipeline_measure, "run_rank", fail)
    monkeypatch.setattr("lanterne.transport.job.launch.launch", launch)
    assert main(["pipeline", "run", *PROBLEM]) == 1
    assert "lanterne: its delegate was killed\n" in capsys.readouterr().err


def test_a_gpu_that_is_not_here_is_named(capsys, monkeypatch):
    def none_here():
        raise Unavailable("CUDA: no device; check nvidia-smi")

    monkeypatch.setattr("lanterne.kernels.arrays.require_device", none_here)
    code, out, err = run(capsys, "--device", "cuda", "--transport", "nccl")
    assert (code, out, err) == (3, "", "lanterne: CUDA: no device; check nvidia-smi\n")


def test_what_is_ready_first_runs_beside_the_plan(capsys):
    words = ["--scheduler", "zb_h1", "--data-plane", "unbounded", "--iterations", "2", "--transport", "local"]
    code, out, _ = run(capsys, *words, "--ready-first", "--jitter", "0.2=3", "--json", "-")
    document = json.loads(out)
    assert code == 0 and [result["ready_first"] for result in document["results"]] == [False, True]
    for result in document["results"]:
        # What is drawn is drawn alike where it runs and where it is simulated, and no wait is shorter than asked for.
        assert min(result["measured_makespan_s"]) > 0.018 and result["predicted_makespan_s"] >= 0.024, result


@pytest.mark.parametrize("word", ["0.2", "2=3", "x=1", "0.1=0"])
def test_a_jitter_that_cannot_be(capsys, word):
    code, _, err = run(capsys, "--jitter", word)
    assert code == 2 and f"--jitter: got '{word}', expected SHARE=FACTOR" in err


@pytest.mark.timing
def test_own_runs_are_recorded_and_calibrated(capsys, tmp_path):
    file = tmp_path / "own.json"
    words = ["--scheduler", "zb_h1", "--data-plane", "delegate", "--iterations", "2", "--transport", "local"]
    code, _, err = run(capsys, *words, "--record", str(file))
    assert code == 0, err
    (recorded,) = json.loads(file.read_text())["runs"]
    assert [sorted(order) for order in recorded["order"]] == [sorted("FBW" * 3)] * 2
    assert recorded["delayed_sends"] == [{"src": s, "dst": 1 - s, "ms": pytest.approx(4)} for s in (0, 1)]
    assert recorded["slow_ms"] > recorded["healthy_ms"]["min"] > 17
    assert main(["pipeline", "calibrate", str(file)]) == 0
    assert "hold_ms_per_mbyte" in capsys.readouterr().out
    code, _, err = run(capsys, *words[:2], "--data-plane", "inline", "--record", str(file))
    assert code == 2 and "--record: got data plane inline" in err
    code, _, err = run(capsys, "--scheduler", "1f1b", *words[2:], "--record", str(file))
    assert code == 2 and "--record: got a plan of 1f1b" in err
