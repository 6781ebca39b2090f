"""Recorded runs: predicted within the bars, parameters found again, and what is wrong with a file named by place."""

import copy
import json
import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanterne.bench.cli import main
from lanterne.bench.pipeline.predict import PUBLISHED
from lanterne.errors import InputError
from lanterne.pipeline.calibrate.fit import calibrate, prepare
from lanterne.pipeline.calibrate.parameters import DeviceCalibration, GpuCalibration, GpuParameters
from lanterne.pipeline.calibrate.prediction import predict_run
from lanterne.pipeline.calibrate.runs import read_run, read_runs

RUNS = Path(__file__).parents[3] / "evaluation" / "papers" / "adaptra" / "h800_runs.json"
DOCUMENT = json.loads(RUNS.read_text())
CASE = {
    "stages": 3,
    "microbatches": 4,
    "gpu": "H800",
    "policy": "zb",
    "profile_ms": {"forward": [10, 10, 10], "backward_input": [11, 11, 11], "backward_weight": [5, 5, 5]},
    "message_bytes": 10_000_000,
    "ranks_per_host": 1,
    "delegates": 0,
    "delayed_sends": [{"src": 0, "dst": 1, "ms": 30.0}],
    "healthy_ms": {"min": 200.0},
}


@pytest.fixture(scope="module")
def published():
    return DeviceCalibration.from_dict(json.loads(PUBLISHED.read_text()))


@pytest.mark.parametrize(
    ("policy", "mean", "worst"),
    [("1f1b", 0.02, 0.05), ("zb", 0.02, 0.06), ("zb_delegates", 0.02, 0.08), ("adaptra", 0.05, 0.12)],
)
def test_published_runs_are_predicted(policy, mean, worst, published):
    """With the parameters that are committed, on H800, of the runs that are not doubtful."""
    runs = [run for run in read_runs(DOCUMENT) if run.policy == policy and run.gpu == "H800" and not run.is_doubtful]
    errors = [abs(predict_run(run, published).slow_ms / run.slow_ms - 1) for run in runs]
    assert len(errors) >= 12
    assert statistics.mean(errors) <= mean and max(errors) <= worst


@pytest.mark.slow
def test_the_published_parameters_are_what_the_runs_say(published):
    assert calibrate(prepare(read_runs(DOCUMENT))) == published


def test_parameters_are_found_again():
    """Runs that are made by the model, with one rank a host."""
    parameters = GpuParameters(spin=1.05, hold_ms_per_mbyte=0.5, message_cost_ms=2.0, gap_ms=0.5)
    made = DeviceCalibration({"X": GpuCalibration(parameters, 1, {})})
    runs = []
    for policy, delegates in (("zb", 0), ("1f1b", 0), ("zb_delegates", 1), ("adaptra", 2)):
        for delay in (10, 30):
            case = CASE | {"policy": policy, "delegates": delegates, "gpu": "X"}
            case["delayed_sends"] = [{"src": 0, "dst": 1, "ms": delay}, {"src": 1, "dst": 0, "ms": delay}]
            case["message_bytes"] = 4_000_000 * (1 + delegates)
            runs.append(case | {"slow_ms": predict_run(read_run(case), made).slow_ms})
    found = calibrate(prepare(read_runs({"runs": runs}))).gpus["X"].parameters
    assert found.spin == pytest.approx(1.05, abs=0.003)
    assert found.message_cost_ms == pytest.approx(2.0, abs=0.15)
    assert found.hold_ms_per_mbyte == pytest.approx(0.5, abs=0.1)


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["zb", "1f1b"]), st.integers(1, 40), st.floats(0.1, 10))
def test_as_many_times_all_times_is_as_many_times_the_iteration(policy, delay, factor):
    parameters = DeviceCalibration({"H800": GpuCalibration(GpuParameters(), 1, {})})
    case = CASE | {"policy": policy, "delayed_sends": [{"src": 1, "dst": 0, "ms": delay}]}
    scaled = case | {
        "profile_ms": {key: [factor * value for value in values] for key, values in case["profile_ms"].items()},
        "delayed_sends": [{"src": 1, "dst": 0, "ms": factor * delay}],
        "healthy_ms": factor * 200.0,
    }
    once, more = (predict_run(read_run(each), parameters).slow_ms for each in (case, scaled))
    assert more == pytest.approx(factor * once, rel=1e-6)


def without(key):
    return {name: value for name, value in CASE.items() if name != key}


def profile(**changes):
    return CASE | {"profile_ms": CASE["profile_ms"] | changes}


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (without("profile_ms"), "case: profile_ms is missing"),
        (profile(forward=[10, math.nan, 10]), r"case: profile_ms.forward\[1\]: got nan"),
        (profile(backward_input=[11, 11, -1]), r"case: profile_ms.backward_input\[2\]: got -1"),
        (profile(backward_weight=[5, 5]), "case: profile_ms.backward_weight: got 2 values, expected 3"),
        (profile(forward=None), "case: profile_ms.forward"),
        (CASE | {"policy": "zbh"}, "case: policy: got 'zbh'"),
        (CASE | {"delayed_sends": [{"src": 0, "dst": 2, "ms": 1}]}, r"case: delayed_sends\[0\]: got src 0, dst 2"),
        (CASE | {"delayed_sends": [{"src": 0, "dst": 1, "ms": -1}]}, r"case: delayed_sends\[0\].ms: got -1"),
        (CASE | {"delayed_sends": [3]}, r"case: delayed_sends\[0\]: got int"),
        (CASE | {"healthy_ms": {"min": 0}}, "case: healthy_ms.min: got 0"),
        (CASE | {"order": ["FFB"]}, "case: order: got 1, expected 3 texts"),
        (CASE | {"order": ["FX", "F", "F"]}, r"case: order\[0\]: got 'FX'"),
        (CASE | {"order": ["F" * 4] * 3}, "case: .*"),
        (CASE | {"issue": ["F0 ?F0", "", ""]}, r"case: issue\[0\]: got '\?F0'"),
        (CASE | {"message_bytes": "many"}, "case: message_bytes: got 'many'"),
        (CASE | {"delegates": -1}, "case: delegates: got -1"),
        ([], "case: got list"),
    ],
)
def test_what_is_wrong_with_a_case_is_named_by_place(case, told):
    with pytest.raises(InputError, match=told):
        read_run(case)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_a_case_holds_it_is_read_or_refused(data):
    nothing = st.sampled_from([None, True, [], {}])
    junk = st.one_of(nothing, st.integers(-3, 3), st.floats(), st.text(max_size=3))
    case = copy.deepcopy(CASE)
    place = case
    key = data.draw(st.sampled_from(sorted(case)))
    while isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
    place[key] = data.draw(junk)
    try:
        predict_run(read_run(case), DeviceCalibration({"H800": GpuCalibration(GpuParameters(), 1, {})}))
    except InputError as error:
        assert "\n" not in str(error).split("rank 0:")[0].rstrip("\n") or "order" in str(error)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda d: d.pop("format"), "calibration: format is missing"),
        (lambda d: d.update(format="other"), "calibration: got format 'other'"),
        (lambda d: d.update(gpus={}), "gpus: got none"),
        (lambda d: d["gpus"]["H800"]["parameters"]["spin"].update(value=-1), "gpus.H800.parameters.spin.value: got -1"),
        (lambda d: d["gpus"]["H800"]["parameters"].pop("gap_ms"), "gpus.H800.parameters: gap_ms is missing"),
        (lambda d: d["gpus"]["A10"]["seen"].update(stages=[1]), "gpus.A10.seen.stages: got 1 values, expected 2"),
    ],
)
def test_what_is_wrong_with_a_calibration(change, told):
    document = json.loads(PUBLISHED.read_text())
    change(document)
    with pytest.raises(InputError, match=told):
        DeviceCalibration.from_dict(document)


def write(folder, document):
    path = folder / "file.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_the_contract_of_predict(tmp_path, capsys):
    entry = next(run for run in DOCUMENT["runs"] if run["policy"] == "adaptra")
    case = {key: value for key, value in entry.items() if key not in ("slow_ms", "doubtful", "id")}
    assert main(["pipeline", "predict", write(tmp_path, case), "--json", "-"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["slow_ms"] > found["healthy_ms"] == pytest.approx(entry["healthy_ms"]["min"])
    assert found["policy"] == "adaptra" and found["schema_version"] == 1
    assert set(found["parameters"]["message_cost_ms"]) == {"value", "unit"}
    assert not found["extrapolated"] and not err


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"gpu": "B200"}, "gpu: got B200, seen H800, A10: predicted as H800"),
        ({"ranks_per_host": 16}, "ranks_per_host: got 16, seen 1 to 8"),
    ],
)
def test_what_lies_beyond_the_runs_is_marked(change, told, tmp_path, capsys):
    assert main(["pipeline", "predict", write(tmp_path, CASE | change), "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["extrapolated"] and told in err and err.startswith("warning: ")


@pytest.mark.slow
def test_errors_of_a_model_that_was_left_out(tmp_path, capsys):
    few = {"runs": [run for run in DOCUMENT["runs"] if run["policy"] in ("1f1b", "zb") and run["ranks_per_host"] == 1]}
    path = write(tmp_path, few)
    assert main(["pipeline", "calibrate", path, "--leave-out", "7B"]) == 0
    assert "7B left out" in capsys.readouterr().out
    assert main(["pipeline", "calibrate", path, "--leave-out", "9B"]) == 2
    assert "expected one of 14B, 7B" in capsys.readouterr().err
    assert main(["pipeline", "calibrate", path, "--leave-out", "links"]) == 0
    assert "links left out" in capsys.readouterr().out
    assert main(["pipeline", "calibrate", path, "--json", str(tmp_path / "out.json")]) == 0
    capsys.readouterr()
    assert main(["pipeline", "predict", write(tmp_path, CASE), "--calibration", str(tmp_path / "out.json")]) == 0


def test_a_plan_for_calibrated_devices(tmp_path, capsys):
    options = ["--stages", "4", "--microbatches", "8", "--forward", "9ms", "--link", "2=30ms", "--message", "10MB"]
    more = ["--calibration", str(PUBLISHED), "--ranks-per-host", "8", "--scheduler", "adaptra", "--json", "-"]
    assert main(["pipeline", "plan", *options, *more]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not found["devices"]["extrapolated"]
    times = found["devices"]["iterations"]
    assert times["plan_over_delegates"] < times["plan_over_nccl"]
    # With a delegate for nearly every message, and W of the plan's gaps, it is what the plan was made for.
    assert times["plan_over_delegates"] == pytest.approx(found["makespan"], rel=0.02)
    assert main(["pipeline", "plan", *options, *more, "--ranks-per-host", "32"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "warning: ranks_per_host: got 32, seen 1 to 8: extrapolated\n"
    assert json.loads(printed.out)["devices"]["extrapolated"]
    assert main(["pipeline", "plan", *options, "--calibration", str(PUBLISHED), "--gpu", "H8000"]) == 2
    assert "--gpu: got 'H8000' (did you mean 'H800'?)" in capsys.readouterr().err
