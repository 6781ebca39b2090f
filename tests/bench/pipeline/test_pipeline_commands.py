"""`lanterne pipeline plan`, `simulate` and `sweep` as a user calls them."""

import json
from pathlib import Path

import pytest

from lanterne.bench import cli

CASES = str(Path(__file__).parents[2] / "pipeline" / "data" / "cases.json")
FLAGS = ["--stages", "4", "--microbatches", "12", "--forward", "10ms"]


def call(capsys, *argv):
    """(exit code, standard output, standard error) of `lanterne pipeline ARGV`."""
    code = cli.main(["pipeline", *map(str, argv)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def answer(capsys, *argv):
    code, out, err = call(capsys, *argv, "--json", "-")
    assert code == 0, err
    return json.loads(out)


def test_plan_holds_the_contract(capsys):
    found = answer(capsys, "plan", CASES, "--case", "c05", "--scheduler", "zb_h1")
    assert found["schema_version"] == 1 and found["scheduler"] == "zb_h1"
    assert (found["makespan"], found["lower_bound"], found["bubble_rate"]) == (
        3300,
        3100,
        pytest.approx(1 - 2400 / 3300),
    )
    assert found["peak_inflight"] == [4, 4, 4, 4] and found["planning_s"] >= 0
    assert found["link_tolerance"] == [0, 0, 0]
    assert found["placement"] == "unidirectional" and found["stage_to_rank"] == [0, 1, 2, 3]
    assert len(found["ranks"]) == 4 and found["ranks"][3][:4] == ["F3.0", "B3.0", "F3.1", "B3.1"]


def test_options_describe_a_problem(capsys):
    argv = ["--backward-input", "11ms", "--backward-weight", "8ms,8ms,8ms,9ms", "--link", "1=20ms", "--memory", "8"]
    found = answer(capsys, "plan", *FLAGS, *argv, "--scheduler", "1f1b")
    assert found["problem"] == {
        "stages": 4,
        "microbatches": 12,
        "forward": [10] * 4,
        "backward_input": [11] * 4,
        "backward_weight": [8, 8, 8, 9],
        "link_latency": [0, 20, 0],
        "max_inflight_activations": [8] * 4,
        "unit": "ms",
    }


def test_bytes_are_the_capacity_of_the_memory_that_a_file_tells(capsys, tmp_path):
    held = {"forward": [2e6, 3e6], "backward_input": [-5e5, -1e6], "backward_weight": [-1.5e6, -2e6]}
    problem = {"stages": 2, "microbatches": 8, "forward": 1, "backward_input": 1, "backward_weight": 1, "memory": held}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(problem))
    found = answer(capsys, "plan", path, "--memory", "6MB", "--placement", "unidirectional")
    assert found["problem"]["memory"] == held | {"capacity": [6e6, 6e6]}
    # Without the cap rank 0 would hold more.
    uncapped = answer(capsys, "plan", path, "--scheduler", "gpipe")
    assert max(found["peak_inflight"]) <= 6e6 < max(uncapped["peak_inflight"])
    # A bare number still counts activations, whatever they hold.
    assert answer(capsys, "plan", path, "--memory", "2", "--scheduler", "1f1b")["problem"] == {
        **{key: problem[key] for key in ("stages", "microbatches")},
        **{key: [1, 1] for key in ("forward", "backward_input", "backward_weight")},
        "link_latency": [0],
        "max_inflight_activations": [2, 2],
    }


def test_all_compares_every_scheduler(capsys):
    found = answer(capsys, "plan", CASES, "--case", "c04", "--scheduler", "all", "--time-limit", "2")["results"]
    by_name = {result["scheduler"]: result for result in found}
    assert {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_h2", "zb_v"} <= set(by_name)
    assert by_name["zb_v"]["makespan"] == 2550 and by_name["zb_h2"]["fits_memory"] is False
    fitting = [result["makespan"] for result in found if result["fits_memory"]]
    assert fitting == sorted(fitting) and all(result["fits_memory"] for result in found[: len(fitting)])
    code, out, _ = call(capsys, "plan", CASES, "--case", "c04", "--scheduler", "all", "--time-limit", "2")
    assert code == 0 and "zb_v" in out and " NO " in out


def test_a_plan_file_is_simulated_again(capsys, tmp_path):
    path = tmp_path / "plan.json"
    assert call(capsys, "plan", *FLAGS, "--scheduler", "zb_h1", "--json", path)[0] == 0
    assert answer(capsys, "simulate", path)["makespan"] == 390
    assert answer(capsys, "simulate", path, "--link", "0=10ms")["makespan"] == 460
    assert answer(capsys, "simulate", path, path, "--link", "0=10ms")["makespan"] == 460
    blocked = answer(capsys, "simulate", path, "--link", "0=30ms", "--in-order", "--queue", "0")
    assert blocked["makespan"] > answer(capsys, "simulate", path, "--link", "0=30ms")["makespan"]
    assert blocked["in_order"] is True and blocked["queue"] == 0


def test_pictures_and_traces_are_written(capsys, tmp_path):
    code, *_ = call(
        capsys,
        "plan",
        *FLAGS,
        "--scheduler",
        "zb_v",
        "--plot",
        tmp_path / "plan.svg",
        "--trace",
        tmp_path / "trace.json",
    )
    assert code == 0 and (tmp_path / "plan.svg").read_text().startswith("<?xml")
    spans = [event for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in spans) == pytest.approx(375_000)


@pytest.mark.parametrize("scheduler", ["adaptra", "alternating"])
def test_a_list_needs_no_brackets(capsys, scheduler):
    bare, bracketed = (
        answer(capsys, "plan", *FLAGS, "--scheduler", scheduler, "--option", f"warmups={text}")["ranks"]
        for text in ("12,9,6,3", "[12,9,6,3]")
    )
    usual = answer(capsys, "plan", *FLAGS, "--scheduler", scheduler)["ranks"]
    assert bare == bracketed != usual


def test_scheduler_options(capsys):
    found = answer(capsys, "plan", *FLAGS, "--scheduler", "interleaved_1f1b", "--option", "stages_per_rank=3")
    assert found["makespan"] == pytest.approx((12 + 3 / 3) * 30) and len(found["stage_to_rank"]) == 12


@pytest.mark.parametrize(
    ("over", "at", "scheduler", "expected"),
    [
        ("latency", "0ms,10ms", "zb_h1", [390, 460]),
        ("latency", "0ms,10ms,20ms", "zb_h2+frozen", [390, 400, 420]),
        ("bandwidth", "0ms,10ms", "1f1b", [450, 550]),
        ("microbatches", "1,12", "1f1b", [120, 450]),
        ("memory", "1,4", "zb_h1", [390, 390]),
    ],
)
def test_sweep(capsys, over, at, scheduler, expected):
    on = ["--on", "0"] if over in ("latency", "bandwidth") else []
    found = answer(capsys, "sweep", *FLAGS, "--over", over, *on, "--at", at, "--scheduler", scheduler)
    points = found["results"][0]["points"]
    assert [point["makespan"] for point in points] == expected
    assert all(
        b["makespan"] <= p["makespan"] or not p["fits_memory"]
        for p, b in zip(points, found["results"][1]["points"], strict=True)
    )


def test_a_plan_for_torch_goes_to_standard_output(capsys):
    code, out, _ = call(capsys, "plan", *FLAGS, "--scheduler", "zb_h1", "--csv", "-")
    assert code == 0 and out.startswith("0F0,0F1,") and out.count("\n") == 4
    code, out, err = call(capsys, "plan", *FLAGS, "--scheduler", "zb_h1", "--csv", "-", "--json", "-")
    assert code == 2 and not out and "--csv: got '-' beside --json -" in err


def test_sweep_marks_plans_that_do_not_fit_and_draws(capsys, tmp_path):
    argv = [
        "--over",
        "memory",
        "--at",
        "1,4,8",
        "--scheduler",
        "zb_h1,gpipe",
        "--scheduler",
        "1f1b",
        "--relative-to",
        "zb_h1",
        "--plot",
        tmp_path / "s.png",
    ]
    code, out, err = call(capsys, "sweep", *FLAGS, *argv)
    assert code == 0, err
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    assert out.split()[1:4] == ["zb_h1", "gpipe", "1f1b"]
    rows = [line.split() for line in out.splitlines()[1:]]
    assert [row[1] for row in rows[-3:]] == ["1.000*", "1.000", "1.000"]


def test_what_a_problem_file_lacks_names_the_file(capsys, tmp_path):
    path = tmp_path / "problem.json"
    path.write_text('{"stages": 4}')
    assert call(capsys, "plan", str(path))[2] == f"lanterne: {path}: problem: microbatches is missing\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["plan"], "problem: got no stages, expected a problem file or --stages"),
        (["plan", "nope.json"], "cannot read nope.json: No such file or directory"),
        (["plan", __file__], "is no JSON"),
        (["plan", CASES], "holds several cases, expected --case with one of c01, c02"),
        (["plan", CASES, "--case", "c99"], "--case: got 'c99', expected one of c01"),
        (["plan", *FLAGS, "--scheduler", "zb"], "scheduler: got 'zb' (did you mean 'zb_v'?), expected one of gpipe"),
        (
            ["plan", *FLAGS, "--scheduler", "1f1b", "--option", "x=1"],
            "--option: got 'x', expected none for 1f1b",
        ),
        (
            ["plan", *FLAGS, "--scheduler", "alternating", "--option", "slack=x"],
            "got slack='x', expected a value such as 2",
        ),
        (["plan", *FLAGS, "--scheduler", "alternating", "--option", "slack=-1"], "slack: got -1, expected at least 0"),
        (
            ["plan", *FLAGS, "--scheduler", "interleaved_1f1b", "--option", "stages_per_rank=0"],
            "placement: got 0 stages",
        ),
        (
            ["plan", *FLAGS, "--scheduler", "adaptra", "--option", "warmups=3,x"],
            "warm-up counts: got '3,x', expected initial, adapted or 4 that do not rise",
        ),
        (
            ["plan", *FLAGS, "--scheduler", "adaptra", "--option", "warmups=5"],
            "--option: adaptra cannot take warmups=5",
        ),
        (
            ["plan", *FLAGS, "--scheduler", "adaptra", "--placement", "wave"],
            "--placement: got 'wave', expected none: adaptra has one of its own",
        ),
        (["plan", *FLAGS, "--scheduler", "all", "--option", "x=1"], "--option: got 'x=1' with all schedulers"),
        (["plan", *FLAGS, "--scheduler", "1f1b", "--option", "x"], "--option: got 'x', expected NAME=VALUE"),
        (["plan", *FLAGS, "--link", "3=1ms"], "link: got '3', expected 0 to 2"),
        (["plan", *FLAGS, "--link", "1"], "--link: got '1', expected LINK=VALUE"),
        (["plan", *FLAGS, "--link", "1=5"], "times: got '5' beside '10ms', expected all with units or none"),
        (
            ["plan", *FLAGS, "--memory", "0.5"],
            "max_inflight_activations: got 0.5 on stage 0, expected at least 1, which any schedule needs",
        ),
        (["plan", *FLAGS, "--memory", "8MB"], "--memory: got 8MB and a problem without memory, expected a number of"),
        (["plan", *FLAGS, "--memory", "many"], "--memory: got 'many', expected a size such as 64K"),
        (["plan", *FLAGS, "--memory", "4", "--scheduler", "zb_h2"], "memory: rank 0 needs 7, over its capacity of 4"),
        (["plan", *FLAGS, "--time-limit", "0"], "--time-limit: got 0"),
        (["plan", *FLAGS, "--scheduler", "1f1b", "--plot", "plan.nope"], "cannot draw plan.nope"),
        (
            ["plan", "--stages", "4", "--microbatches", "0", "--forward", "1"],
            "microbatches: got 0, expected a whole number of at least 1",
        ),
        (["plan", "--stages", "4", "--microbatches", "4", "--forward", "-1"], "forward"),
        (["plan", "--stages", "4", "--microbatches", "4", "--forward", "1,2"], "forward: got 2 values, expected 4"),
        (["simulate", CASES], f"{CASES}: plan: stage_to_rank is missing"),
        (["simulate", CASES, "--queue", "-1"], "--queue"),
        (["sweep", *FLAGS, "--at", "x"], "time"),
        (["sweep", *FLAGS, "--over", "memory", "--at", "4ms"], "--at: got '4ms', expected a bare number"),
        (["sweep", *FLAGS, "--at", "1ms", "--scheduler", "1f1b+fast"], "got +fast, expected +in-order or +frozen"),
    ],
)
def test_bad_input_is_one_error_and_exit_2(capsys, argv, message):
    code, _, err = call(capsys, *argv)
    assert code == 2, err
    assert err.startswith("lanterne: ") and message in err and "Traceback" not in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ranks: ranks[0].remove("F0.3"), "rank 0: got no F0.3, expected it once"),
        (lambda ranks: ranks[1].append("F1.3"), "got F1.3 as number 2 of F1.3"),
        (lambda ranks: ranks[1].append("X1.3"), "action: got 'X1.3'"),
        (
            lambda ranks: ranks[0].insert(0, ranks[0].pop(ranks[0].index("BW0.0"))),
            "got BW0.0 before F0.0, which it needs",
        ),
        (lambda ranks: ranks[3].insert(0, ranks[3].pop(ranks[3].index("F3.3"))), "deadlock: rank "),
        (lambda ranks: ranks.pop(), "expected each of 0 to 2"),
    ],
)
def test_broken_plans_are_refused(capsys, tmp_path, change, message):
    found = answer(capsys, "plan", *FLAGS, "--scheduler", "1f1b")
    change(found["ranks"])
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(found))
    code, _, err = call(capsys, "simulate", path)
    assert code == 2 and message in err, err
