"""`./run evaluate gpu` as far as it goes without a GPU: its errors, its files, its verdicts."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.gpu import command as gpu
from evaluation.gpu.figures import Figure
from evaluation.speed import kernels
from lanterne.errors import InputError, LanterneError, TransportTimeout, Unavailable
from lanterne.kernels import arrays

COMPARISON = kernels.KernelComparison(
    "reduce / copy", "cuda-c", "float32", 1 << 30, 2, (1e-3,), (1e-3,), 4000.0, 0.95, 0.9, 0
)
FIGURE = Figure("error of a delay of 10 us by globaltimer", 2e-6, "s", "<= 5 us", True, (12e-6,))


@pytest.fixture
def measured(monkeypatch):
    """What the GPU would have answered; tests change it."""
    answers = {"comparison": COMPARISON, "figure": FIGURE}
    monkeypatch.setattr(arrays, "require_device", lambda: 1)
    monkeypatch.setattr(kernels, "measure", lambda args: [answers["comparison"]])
    monkeypatch.setattr(gpu, "staging_figures", lambda *arguments: [answers["figure"]])
    monkeypatch.setattr(gpu, "delegate_figures", lambda *arguments: [])
    monkeypatch.setattr(gpu, "gemm_figures", lambda *arguments: [])
    monkeypatch.setattr(gpu, "delay_figures", lambda: [])
    monkeypatch.setattr(gpu, "grid_figures", lambda *arguments: [])
    monkeypatch.setattr(gpu, "collective_figures", lambda *arguments: [])
    monkeypatch.setattr(gpu, "device_environment", lambda: {"gpu": "H200"})
    return answers


def test_files(measured, tmp_path, capsys):
    assert EVALUATE.main(["gpu", "--name", "h200", "--out", str(tmp_path), "--check"]) == 0
    document = json.loads((tmp_path / "gpu-h200.json").read_text())
    assert document["environment"]["gpu"] == "H200"
    assert document["results"][0]["ratio"] == 0.95
    assert document["figures"][0]["samples"] == [12e-6]
    text = (tmp_path / "gpu-h200.md").read_text()
    assert "| reduce / copy | cuda-c | float32 | 1 GiB | 2 | 4000 | 0.95 | 0.9 | 0 |" in text
    assert "| error of a delay of 10 us by globaltimer | 2 us | <= 5 us | ok |" in text
    assert "globaltimer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "check", "code"),
    [
        ({"figure": FIGURE.__class__(**vars(FIGURE) | {"ok": False})}, True, 1),
        ({"figure": FIGURE.__class__(**vars(FIGURE) | {"ok": False})}, False, 0),
        ({"comparison": COMPARISON.__class__(**vars(COMPARISON) | {"ratio": 0.5})}, True, 1),
        ({"comparison": COMPARISON.__class__(**vars(COMPARISON) | {"wrong": 3})}, False, 1),
    ],
)
def test_exit_codes(measured, tmp_path, capsys, changes, check, code):
    measured.update(changes)
    assert EVALUATE.main(["gpu", "--name", "x", "--out", str(tmp_path), *(["--check"] if check else [])]) == code


@pytest.mark.parametrize("error", [LanterneError("no such luck"), ZeroDivisionError("by zero")])
def test_a_section_that_fails_is_named_and_the_others_go_on(measured, monkeypatch, tmp_path, capsys, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr(gpu, "staging_figures", fail)
    monkeypatch.setattr(gpu, "gemm_figures", lambda *arguments: [FIGURE])
    assert EVALUATE.main(["gpu", "--name", "x", "--out", str(tmp_path)]) == 1
    document = json.loads((tmp_path / "gpu-x.json").read_text())
    assert list(document["failures"]) == ["staging"] and str(error) in document["failures"]["staging"]
    assert len(document["results"]) == len(document["figures"]) == 1
    assert (
        f"**staging failed:** {'ZeroDivisionError: ' * isinstance(error, ZeroDivisionError)}{error}"
        in (tmp_path / "gpu-x.md").read_text()
    )
    assert str(error) in capsys.readouterr().err


def test_what_has_no_bar_gets_no_verdict_and_counts_are_whole():
    ratio = replace(FIGURE, name="ratio", value=0.5, unit="", bar="-")
    wrong = replace(FIGURE, name="wrong", value=3.0, unit="", bar="0", ok=False)
    rows = gpu.figure_rows([FIGURE, ratio, wrong])
    assert [row[1:] for row in rows] == [("2 us", "<= 5 us", "ok"), ("0.500", "-", ""), ("3", "0", "MISSED")]


def test_some_sections(measured, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu, "delay_figures", lambda: [FIGURE])
    assert EVALUATE.main(["gpu", "--name", "x", "--out", str(tmp_path), "--only", "delays, gemm"]) == 0
    document = json.loads((tmp_path / "gpu-x.json").read_text())
    assert (len(document["results"]), len(document["figures"])) == (0, 1)
    # No table of comparisons where there are none.
    assert "bandwidth" not in capsys.readouterr().out


@pytest.mark.parametrize("ends", [3, TransportTimeout("rank 1 still ran after 55 s")])
def test_a_job_that_ends_badly_has_told_what_it_had_found(monkeypatch, tmp_path, ends):
    found, file = [vars(FIGURE)], tmp_path / "gpu-x.groups.json"
    file.write_text("of a job before")

    def launch(command, *arguments, **options):
        assert command[-3:-1] == [str(file), "groups"] and not file.exists()
        if found:
            Path(command[-3]).write_text(json.dumps(found))
        if isinstance(ends, Exception):
            raise ends
        return ends

    monkeypatch.setattr(arrays, "require_device", lambda: 1)
    monkeypatch.setattr("lanterne.transport.job.launch.launch", launch)
    kept, failed = gpu.collective_figures("groups", file)
    assert kept == FIGURE and not failed.ok and "groups: the job of 3 ranks over nccl: " in failed.name
    assert not file.exists()
    found.clear()
    with pytest.raises(LanterneError, match=r"ended with 3|still ran after 55 s"):
        gpu.collective_figures("groups", file)


def test_no_gpu(monkeypatch, capsys, tmp_path):
    def none_here():
        raise Unavailable("CUDA: no device; check nvidia-smi")

    monkeypatch.setattr(arrays, "require_device", none_here)
    assert EVALUATE.main(["gpu", "--name", "x", "--out", str(tmp_path)]) == 3
    assert "CUDA: no device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--name", "../x"], "--name: got '../x'"),
        (["--name", ""], "--name: got ''"),
        (["--name", "x", "--bytes", "1K"], "--iterations, --bytes: got 7 and 1K"),
        (["--name", "x", "--only", "delays,speed"], "--only: got 'speed', expected some of kernels, grids"),
        (["--name", "x", "--iterations", "0"], "--iterations, --bytes: got 0 and 1GiB"),
        ([], "the following arguments are required: --name"),
    ],
)
def test_bad_input(arguments, message, capsys):
    assert EVALUATE.main(["gpu", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_an_impossible_folder_is_said_before_measuring(measured, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert EVALUATE.main(["gpu", "--name", "x", "--out", str(tmp_path / "file")]) == 2
    assert "--out: cannot make folder" in capsys.readouterr().err


def test_a_folder_that_is_not_there(measured, tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        gpu.write(tmp_path / "none" / "gpu-x", [COMPARISON], [FIGURE], {}, {})


def test_sections_measured_apart_are_told_together(measured, monkeypatch, tmp_path, capsys):
    def fail(*arguments):
        raise LanterneError("no such luck")

    def sections(*names):
        code = EVALUATE.main(["gpu", "--name", "x", "--out", str(tmp_path), "--only", ",".join(names), "--check"])
        document = json.loads((tmp_path / "gpu-x.json").read_text())
        return (
            code,
            len(document["results"]),
            {f["name"]: f["value"] for f in document["figures"]},
            document["failures"],
        )

    monkeypatch.setattr(gpu, "gemm_figures", fail)
    slow = replace(FIGURE, value=1.0, ok=False)
    assert sections("kernels", "gemm") == (1, 1, {}, {"gemm": "no such luck"})
    measured["figure"] = slow
    assert sections("staging") == (1, 1, {FIGURE.name: 1.0}, {"gemm": "no such luck"})
    # What was missed before is not held against this run; what is measured again is replaced.
    assert sections("kernels")[0] == 0
    measured["figure"] = FIGURE
    monkeypatch.setattr(gpu, "gemm_figures", lambda *arguments: [])
    assert sections("staging", "gemm") == (0, 1, {FIGURE.name: FIGURE.value}, {})
    (tmp_path / "gpu-x.json").write_text("{}")
    assert EVALUATE.main(["gpu", "--name", "x", "--out", str(tmp_path), "--only", "staging"]) == 2
    assert "expected what `evaluate gpu` has written" in capsys.readouterr().err
