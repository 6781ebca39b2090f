"""./run evaluate gpu-kernels: what the kernels take, in order, by one process and by several."""

import json

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.gpu import kernel_table
from evaluation.gpu.kernel_table import parse_inputs
from lanterne.errors import InputError


def test_kernels_are_told_without_a_gpu(tmp_path, capsys):
    pytest.importorskip("cuda.bindings", reason="dependency group gpu-compile")
    file = tmp_path / "kernels.json"
    chosen = ["--inputs", "2,9-10", "--dtypes", "float32,bool", "--ops", "sum,max", "--archs", "sm_90,sm_100"]
    assert EVALUATE.main(["gpu-kernels", *chosen, "--json", str(file)]) == 0
    kernels = json.loads(file.read_text())["kernels"]
    folds = [(k["name"], k["dtype"], k["inputs"], k["arch"]) for k in kernels if k["name"].startswith("fold")]
    assert folds == [
        (f"fold {op}", dtype, inputs, arch)
        for arch in ("sm_90", "sm_100")
        for dtype, ops in (("float32", ("sum", "max")), ("bool", ("bor",)))
        for op in ops
        for inputs in (2, 9, 10)
    ]
    assert all(kernel["spill_bytes"] == 0 < kernel["registers"] for kernel in kernels)
    # Of two inputs all threads run, and each has two vectors under way.
    assert (kernels[0]["occupancy"], kernels[0]["bytes_in_flight_per_multiprocessor"]) == (1.0, 2048 * 2 * 16)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 3 + len(kernels)
    assert shown[3].split()[:6] == ["fold", "sum", "float32", "2", "sm_90", str(kernels[0]["registers"])]


def test_kernels_come_in_order_from_several_processes(tmp_path, monkeypatch, capsys):
    pytest.importorskip("cuda.bindings", reason="dependency group gpu-compile")
    monkeypatch.setattr(kernel_table, "FEW_KERNELS", 0)
    chosen = ["--inputs", "2", "--dtypes", "uint8,bool", "--ops", "bor", "--archs", "sm_80"]
    found = []
    for jobs in ("1", "2"):
        file = tmp_path / f"{jobs}.json"
        assert EVALUATE.main(["gpu-kernels", *chosen, "--jobs", jobs, "--json", str(file)]) == 0, f"--jobs {jobs}"
        found.append(json.loads(file.read_text())["kernels"])
    assert [kernel["dtype"] for kernel in found[0]] == ["uint8", "uint8", "bool", *[None] * (len(found[0]) - 3)]
    assert found[0] == found[1]


@pytest.mark.parametrize("inputs", ["", "0", "3-2", "2,", "1-", "-3", "two", "1-501", "1-9999999999999999999", "²"])
def test_numbers_of_inputs_that_there_are_not(inputs):
    with pytest.raises(InputError, match=r"--inputs: got '.*', expected a number or a range, 2 or 1-32, of 1 to 500"):
        parse_inputs(inputs)
