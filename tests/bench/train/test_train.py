"""`lanterne pipeline train` as a user runs it: losses of one process, going on after SIGKILL, bad input in one line."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec

import numpy as np
import pytest
from processes import MARK, assert_none_left, marked, new_mark

from lanterne.bench import cli
from lanterne.bench.train.profiled_blocks import link_costs
from lanterne.collectives.jobs import spawn
from lanterne.pipeline.model.stage_layers import LayerStage
from lanterne.pipeline.plan.problem import Problem
from lanterne.pipeline.planes.plane_makers import shaped
from lanterne.pipeline.planners.schedulers import plan
from lanterne.pipeline.simulate.check_plan import check
from lanterne.transport.shaped import Link

SMALL = "--blocks 2 --width 16 --heads 2 --length 16 --rows 2 --microbatches 4 --iterations 6".split()
LAUNCHERS = {"mpi": "mpi", "ucx": "direct"}
COMMAND = [sys.executable, "-m", "lanterne", "pipeline", "train"]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("Who comes in last carries the lantern; nobody waits for him, and nobody is left behind. " * 20)
    return str(path)


def need(transport):
    """Skip where the library of `transport` is missing and not required."""
    module = {"mpi": "mpi4py", "ucx": "ucxx"}.get(transport)
    if module and find_spec(module) is None and transport not in os.environ.get("LANTERNE_REQUIRE", "").split(","):
        pytest.skip(f"{module} is not installed")


def run(text, *options):
    command = [*COMMAND, "--data", text, *SMALL, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def local(text, *options):
    """The exit code of ranks that are threads of this process."""
    return cli.main(["pipeline", "train", "--transport", "local", "--data", text, *SMALL, *options])


def losses(path):
    return [record["losses"] for record in json.loads(path.read_text())["results"]]


@pytest.mark.parametrize(
    ("transport", "options"),
    [
        ("mpi", "-n 2 --scheduler zb_v --tokens chars"),
        ("ucx", "-n 3 --data-parallel 3 --microbatches 1,2,1 --zero1 --dtype float64"),
        ("local", "-n 8 --stages 2 --data-parallel 2 --tp 2"),
    ],
)
def test_losses_are_those_of_one_process(transport, options, text, tmp_path):
    need(transport)
    result = run(text, "--transport", transport, *options.split(), "--check", "--json", str(tmp_path / "out.json"))
    assert result.returncode == 0, result.stderr
    assert "one process: the same" in result.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["check"]["same"] and len(document["results"]) == 6
    assert document["results"][-1]["loss"] < document["results"][0]["loss"]


@pytest.mark.parametrize(("transport", "how"), [("mpi", "silent"), ("ucx", "reset")])
def test_a_path_that_dies_amid_an_iteration_changes_no_loss(transport, how, text, tmp_path):
    need(transport)
    words = f"-n 2 --transport {transport} --spare-rails 127.0.0.2 --cut 0-1@3={how} --check"
    result = run(text, *words.split(), "--json", str(tmp_path / "out.json"))
    assert result.returncode == 0, result.stderr
    assert "one process: the same" in result.stdout
    assert "iteration 4: the path 0-1 died, its messages went on over 127.0.0.2" in result.stdout
    moves = json.loads((tmp_path / "out.json").read_text())["moves"]
    assert moves == [{"iteration": 3, "ranks": [0, 1], "rail": "127.0.0.2"}]


def test_losses_that_are_no_numbers_end_training_before_they_are_kept(text, tmp_path):
    need("mpi")
    words = f"-n 2 --learning-rate 1e30 --checkpoint {tmp_path / 'run.npz'} --checkpoint-every 1 --check"
    result = run(text, *words.split(), "--json", str(tmp_path / "out.json"))
    assert result.returncode == 1 and result.stderr.count("lanterne:") == 1
    assert "train: got a loss of nan in iteration 2, expected a finite one" in result.stderr
    with np.load(tmp_path / "run.npz") as saved:
        assert np.isfinite(saved["parameters"]).all()


def a_rank(mark):
    """The process of a rank: the innermost that runs the command."""
    return max(pid for pid in marked(mark, "pipeline train") if b"lanterne.transport" not in command_line(pid))


def command_line(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


@pytest.fixture(scope="module")
def expected(text, tmp_path_factory):
    """Losses of 120 iterations that nothing disturbs."""
    out = tmp_path_factory.mktemp("expected") / "out.json"
    assert local(text, "-n", "2", "--json", str(out), "--iterations", "120") == 0
    return losses(out)


def test_a_run_killed_at_any_point_goes_on_to_the_same_losses(text, expected, tmp_path):
    """Killed by its launcher's death and then by a rank's, and taken up each time by another number of ranks."""
    need("mpi")
    mark = new_mark()
    small, saved, out = [*SMALL[:-1], "120"], tmp_path / "run.npz", tmp_path / "out.json"
    options = ["--checkpoint", str(saved), "--checkpoint-every", "1"]
    for victim, ranks, copies in (("launcher", 2, 2), ("rank", 3, 1)):
        command = [*COMMAND, "--data", text, *small, "-n", str(ranks), "--data-parallel", str(copies)]
        before = saved.stat().st_mtime_ns if saved.exists() else None
        environment = os.environ | {MARK: mark}
        quiet = {"stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        process = subprocess.Popen([*command, *options], env=environment, **quiet)
        while process.poll() is None and not (saved.exists() and saved.stat().st_mtime_ns != before):
            time.sleep(0.001)
        time.sleep(0.02 * ranks)
        os.kill(process.pid if victim == "launcher" else a_rank(mark), signal.SIGKILL)
        process.wait(60)
        assert_none_left(mark)
        options = ["--resume", str(saved), "--checkpoint-every", "1"]
    assert local(text, "-n", "2", "--resume", str(saved), "--json", str(out), "--iterations", "120") == 0
    found = losses(out)
    assert 0 < len(found) < len(expected), "every one of the runs was to be killed on its way"
    np.testing.assert_allclose(found, expected[-len(found) :], rtol=1e-5)


def test_a_recorded_job_is_what_calibrate_reads(text, tmp_path, capsys):
    """A run for each set of slow links; iterations in which they change do not count."""
    out = tmp_path / "own.json"
    slow = ["--slow-link", "0=20ms@5:8", "--slow-link", "1=5ms@8:11", "--iterations", "11"]
    assert local(text, "-n", "3", *slow, "--record", str(out)) == 0
    runs = json.loads(out.read_text())["runs"]
    delays = [{(each["src"], each["dst"]): each["ms"] for each in run["delayed_sends"]} for run in runs]
    assert delays == [{(0, 1): 20.0, (1, 0): 20.0}, {(1, 2): 5.0, (2, 1): 5.0}]
    for run in runs:
        assert run["policy"] == "zb_delegates" and run["message_bytes"] == 2 * 16 * 16 * 4, run
        assert run["healthy_ms"]["n"] == 3 and run["slow_ms"] > 10, run
    assert runs[0]["slow_ms"] > 40
    assert cli.main(["pipeline", "calibrate", str(out), "--json", str(tmp_path / "mine.json")]) == 0
    assert "recorded" in json.loads((tmp_path / "mine.json").read_text())["gpus"]


def test_a_profiled_job_is_a_problem_with_the_memory_that_blocks_take(text, tmp_path, capsys):
    """What is held by the plan that ran, by the profile, is what its stages held; twice the rows take twice of it."""
    held = {}
    for rows in (2, 4):
        out, most = tmp_path / f"{rows}.json", []
        with pytest.MonkeyPatch.context() as patch:
            nbytes_held = LayerStage.nbytes_held.fget
            seen = property(lambda stage, most=most, held=nbytes_held: most.append(held(stage)) or most[-1])
            patch.setattr(LayerStage, "nbytes_held", seen)
            assert local(text, "-n", "2", "--scheduler", "zb_h1", "--rows", str(rows), "--profile", str(out)) == 0, rows
        problem = Problem.from_dict({k: v for k, v in json.loads(out.read_text()).items() if k != "unit"})
        checked = check(plan(problem, "zb_h1"), problem)
        assert max(checked.peak_memory) == pytest.approx(max(most), rel=0.02), rows
        # Of both ranks: where the model is cut depends on how long its layers took.
        held[rows] = sum(problem.limits.forward)
        assert min(problem.forward + problem.backward_input + problem.backward_weight) > 0, rows
        assert problem.latency(0, 1) > 0 and problem.occupancy(0, 1, problem.message_nbytes[0]) < 1000, rows
    assert held[4] == pytest.approx(2 * held[2], rel=0.05)
    assert cli.main(["pipeline", "plan", str(out), "--scheduler", "zb_h1"]) == 0


def costs_on(comm, links, nbytes):
    with shaped(comm, links) as slow:
        return link_costs(slow, nbytes)


def test_two_message_sizes_tell_latency_from_bandwidth():
    """Load prolongs messages, the short ones too: only the cost of a long one has a sharp lower limit."""
    links = {(0, 1): Link(5e-3, 1e7), (1, 0): Link(5e-3, 1e7), (1, 2): Link(10e-3), (2, 1): Link(10e-3)}
    first, *_ = found = spawn(3, costs_on, links, 200_000)
    assert found == [first] * 3
    (near_s, near_s_per_byte), (far_s, far_s_per_byte) = first
    assert 4.9e-3 <= near_s < 9e-3 and near_s + 200_000 * near_s_per_byte >= 24.9e-3
    assert 0.5e-7 <= near_s_per_byte < 1.5e-7
    assert 9.9e-3 <= far_s < 15e-3 and far_s_per_byte < 2e-8
    assert spawn(1, costs_on, {}, 100) == [[]]


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.timeout(200)
def test_one_job_works_around_a_slow_rank_a_slow_link_and_a_dead_rail_under_a_cap(text, tmp_path):
    """ADAPTRA, figure 13: the orchestrator, the scheduler and the delegates in one job, whose losses do not change."""
    need("mpi")
    out = tmp_path / "out.json"
    options = "-n 4 --stages 2 --mitigate --adapt --cap 1MiB --pace 8ms --iterations 90 --check --json".split()
    options += [str(out), "--slow-rank", "3=2.5x@24:44", "--slow-link", "0-1=40ms@54:80"]
    options += ["--spare-rails", "127.0.0.2,127.0.0.3", "--cut", "2-3@70=reset"]
    small = "--blocks 4 --width 32 --heads 2 --length 32 --rows 4 --microbatches 8".split()
    command = [*COMMAND, "--data", text, *small, *options]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["check"]["same"] and len(found["results"]) == 90
    rank_3 = [act for act in found["mitigation"]["acted"] if act["kind"] == "mitigate" and "rank 3" in act["suspects"]]
    assert rank_3 and rank_3[0]["iteration"] < 30
    diverted = [change["running_from"] for change in found["changes"] if [0, 1] in change["slow_links"]]
    assert diverted and 54 < diverted[0] < 62
    assert found["moves"][0]["ranks"] == [2, 3] and found["moves"][0]["iteration"] == 70
    assert 0 < max(found["spill"]["peak_nbytes"]) <= 1 << 20


BAD = {
    "-n 5 --stages 2": "ranks: got 5 for 2 stages x 1 tensor parts, expected a multiple of 2",
    "-n 4 --stages 2 --data-parallel 3": "ranks: got 4 for 2 stages x 3 copies x 1 tensor parts, expected 6",
    "-n 2 --heads 3 --width 15 --tp 2": "--tp: got 2 for 3 heads, expected a divisor",
    "-n 2 --width 15": "gpt: got width 15 with 2 heads, expected a multiple",
    "-n 7": "stages: got 7, expected 1 to 6, the layers of the model",
    "-n 2 --data missing.txt": "cannot read missing.txt: No such file or directory",
    "-n 2 --length 5000": "expected at least 5001, one window and its target",
    "-n 2 --microbatches 1,2": "--microbatches: got '1,2', expected one number in all or one for each of 1 copies",
    "-n 2 --data-parallel 2 --microbatches 1": "--microbatches: got 1, expected at least one for each of 2 copies",
    "-n 2 --scheduler nope": "scheduler: got 'nope', expected one of gpipe,",
    "-n 2 --plan missing.json": "cannot read missing.json: No such file or directory",
    "-n 2 --resume missing.npz": "cannot read missing.npz: No such file or directory",
    "-n 2 --checkpoint-every 2": "--checkpoint-every: got no file, expected --checkpoint FILE or --resume FILE",
    "-n 2 --checkpoint missing/run.npz": "cannot write missing/run.npz: No such file or directory",
    "-n 0": "-n: got 0, expected 1 to",
    "-n 2 --iterations 0": "--iterations: got '0', expected a whole number of at least 1",
    "-n 2 --learning-rate 0": "--learning-rate: got 0, expected more than 0",
    "-n 2 --cut 0-1@3": "--cut: got no --spare-rails, expected both: else the job ends with the path",
    "-n 2 --spare-rails 127.0.0.2 --cut 0-2@3": "--cut: got ranks 0 and 2, expected two different ones, 0 to 1",
    "-n 2 --spare-rails 127.0.0.2 --cut 0-1@3=loud": "--cut: got '0-1@3=loud', expected A-B@ITERATION",
    "-n 2 --timeout 0s": "--timeout: got 0s, expected more than 0",
    "-n 2 --record own.json --adapt": "--record: got --adapt, --mitigate, --cap or --endure beside it, expected",
    "-n 2 --record own.json --scheduler 1f1b": "--record: got a plan of 1f1b, expected one stage per rank, of whole F",
    "-n 2 --profile own.json --scheduler 1f1b": "--profile: got a plan of 1f1b, expected one stage per rank, of whole",
    "-n 2 --profile own.json --iterations 2": "--profile: got 2 iterations, expected more than 2",
    "-n 2 --profile own.json --adapt": "--profile: got --record, --adapt, --mitigate, --cap or --endure beside it",
    "-n 2 --record own.json --slow-rank 1=2x": "--record: got a slow rank, a bandwidth or a dead link, expected",
    "-n 2 --record own.json --slow-link 0=5ms@0:9": "--record: got no iterations without slow links, expected some",
}


@pytest.mark.parametrize("options", BAD)
def test_bad_input_is_one_line(options, text, capsys):
    assert local(text, *options.split()) == 2
    error = capsys.readouterr().err
    assert BAD[options] in error and error.count("\n") == 1


def test_a_checkpoint_of_another_model_is_named(text, tmp_path, capsys):
    saved = str(tmp_path / "run.npz")
    assert local(text, "-n", "1", "--checkpoint", saved) == 0
    assert local(text, "-n", "1", "--checkpoint", saved) == 2  # a run that was killed is lost no more by this slip
    assert (
        f"--checkpoint: got {saved}, which is there, expected a new file, or --resume to go on"
        in capsys.readouterr().err
    )
    for option, words in (
        ("--width=32", "was saved with width 16, expected 32, as this run has it"),
        ("--microbatches=8", "was saved with microbatches 4, expected 8"),
        ("--seed=1", "was saved with seed 0, expected 1"),
    ):
        assert local(text, "-n", "2", "--resume", saved, option) == 2, (option, words)
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1, (option, words)
    (tmp_path / "other.txt").write_text("Another text is another run. " * 40)
    assert local(str(tmp_path / "other.txt"), "-n", "2", "--resume", saved) == 2
    error = capsys.readouterr().err
    assert "was saved with text_sha256" in error and error.count("\n") == 1
    (tmp_path / "run.npz").write_bytes(b"PK\x03\x04 no zip file")
    assert local(text, "-n", "1", "--resume", saved) == 2
    error = capsys.readouterr().err
    assert "is no checkpoint of lanterne" in error and error.count("\n") == 1


def test_a_plan_that_does_not_fit_is_named(text, tmp_path, capsys):
    path = str(tmp_path / "plan.json")
    problem = "--stages 3 --microbatches 4 --forward 1ms --scheduler 1f1b"
    assert cli.main(["pipeline", "plan", *problem.split(), "--json", path]) == 0
    assert local(text, "-n", "2", "--plan", path) == 2
    assert "3 ranks" in capsys.readouterr().err
    assert local(text, "-n", "3", "--plan", path, "--check") == 0
    assert local(text, "-n", "3", "--plan", path, "--microbatches", "5") == 2
    assert "got 4 microbatches, expected the problem's 5" in capsys.readouterr().err


FAULT = """
import sys
from lanterne.bench import cli
from lanterne.pipeline.model.stage_layers import LayerStage
from lanterne.transport.job.bootstrap import launched_rank

forward, calls = LayerStage.forward, []

def failing(stage, *args):
    calls.append(args)
    if launched_rank() == 1 and len(calls) == 3:
        raise ArithmeticError("cannot go on")
    return forward(stage, *args)

LayerStage.forward = failing
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("transport", "copies", "third"), [("mpi", 2, "F1.0"), ("ucx", 1, "F1.2")])
def test_a_stage_that_raises_ends_all_ranks_and_is_shown_once(transport, copies, third, text, tmp_path):
    need(transport)
    job, mark = tmp_path / "job.py", new_mark()
    job.write_text(FAULT)
    train = ["pipeline", "train", "--data", text, *SMALL, "--stages", "2", "--data-parallel", str(copies)]
    code = (
        "import sys; from lanterne.transport.job.launch import launch; "
        f"sys.exit(launch([sys.executable, *sys.argv[2:]], {2 * copies}, launcher=sys.argv[1]))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, LAUNCHERS[transport], str(job), *train, "--transport", transport],
        env=os.environ | {MARK: mark},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr == f"lanterne: pipeline rank 1, {third}: ArithmeticError: cannot go on\n"
    assert_none_left(mark)


def test_what_does_not_fit_the_cap_goes_to_the_host_and_changes_nothing(text, tmp_path):
    documents = []
    for given in ("1GiB", None):
        cap = given or str(max(documents[0]["spill"]["peak_nbytes"]) * 3 // 5)
        path = tmp_path / "run.json"
        assert local(text, "-n", "2", "--scheduler", "gpipe", "--cap", cap, "--json", str(path)) == 0, cap
        documents.append(json.loads(path.read_text()))
    roomy, tight = documents
    assert roomy["spill"]["spilled_nbytes"] == [0, 0]
    assert max(tight["spill"]["peak_nbytes"]) <= max(roomy["spill"]["peak_nbytes"]) * 3 // 5
    assert max(tight["spill"]["spilled_nbytes"]) > 0
    assert [record["losses"] for record in tight["results"]] == [record["losses"] for record in roomy["results"]]


@pytest.mark.parametrize("options", ["--spill 1M", "--cap 0", "--cap much", "--cap 10"])
def test_a_cap_that_cannot_be(options, text, capsys):
    assert local(text, "-n", "2", *options.split()) == 2
    assert capsys.readouterr().err.count("expected") == 1


OWN = """
from lanterne.pipeline.model.stage_gpt import gpt

def same(vocabulary, length, width, heads, blocks, rows):
    return gpt(vocabulary, length, width, heads, blocks, rows)

def other(*shape):
    return 3

def nothing():
    return 3
"""


def test_a_model_of_ones_own(text, tmp_path, monkeypatch, capsys):
    (tmp_path / "own_model_here.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    losses = []
    for model in ("gpt", "own_model_here:same"):
        assert local(text, "-n", "2", "--iterations", "2", "--model", model, "--json", "-") == 0, model
        losses.append([each["losses"] for each in json.loads(capsys.readouterr().out)["results"]])
    assert losses[0] == losses[1]
    for model, told in (
        ("own_model_here:other", "returned a int, expected a StageModel"),
        ("own_model_here:none", "has no attribute 'none'"),
        ("own_model_here:nothing", "too many positional arguments, expected a function of vocabulary, length, width"),
        ("nowhere_to_be_found:gpt", "No module named"),
        ("gtp", "got 'gtp', expected gpt or MODULE:FUNCTION"),
    ):
        assert local(text, "-n", "2", "--iterations", "2", "--model", model) == 2, (model, told)
        assert told in capsys.readouterr().err, (model, told)
    (tmp_path / "own_model_of_a_library.py").write_text("import nowhere_to_be_found")
    assert local(text, "-n", "2", "--model", "own_model_of_a_library:make") == 3
    assert "imports what is not here: No module named 'nowhere_to_be_found'" in capsys.readouterr().err
    assert local(text, "-n", "2", "--iterations", "2", "--model", "own_model_here:same", "--tp", "2") == 2
    assert "--tp: got 2 beside --model" in capsys.readouterr().err
