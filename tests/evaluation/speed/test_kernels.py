"""`./run evaluate kernels`: its records, its exit codes, and that it notices a wrong kernel."""

import json

import pytest

from evaluation.__main__ import EVALUATE
from evaluation.speed import kernels

SMALL = ["kernels", "--bytes", "1000,64K", "--iterations", "2"]


def test_records(tmp_path, capsys):
    path = tmp_path / "kernels.json"
    assert EVALUATE.main([*SMALL, "--dtype", "float32,bfloat16,int8", "--inputs", "3", "--json", str(path)]) == 0
    document = json.loads(path.read_text())
    assert document["schema_version"] == 1
    assert {(r["dtype"], r["nbytes"]) for r in document["results"]} == {
        (dtype, nbytes) for dtype in ("float32", "bfloat16", "int8") for nbytes in (1000, 65536)
    }
    for result in document["results"]:
        assert result["wrong"] == 0, result
        assert len(result["time_s"]) == len(result["peer_time_s"]) == 2, result
        assert result["ratio"] > 0, result
    table = capsys.readouterr().out
    assert "fold / adds" in table
    assert "#wrong" in table


def test_a_wrong_kernel_is_exit_code_1(monkeypatch, capsys):
    class Broken(kernels._Cpu):
        def __init__(self):
            super().__init__()
            self.kernels = {"broken": lambda op, out, *inputs, dtype: out.__setitem__(-1, 1)}

    monkeypatch.setattr(kernels, "_Cpu", Broken)
    assert EVALUATE.main([*SMALL, "--dtype", "int32"]) == 1


@pytest.mark.parametrize(("ratio", "check", "code"), [(0.5, True, 1), (0.5, False, 0), (1.0, True, 0)])
def test_bars(monkeypatch, capsys, ratio, check, code):
    missed = kernels.KernelComparison("reduce / copy", "llvm", "float32", 4, 2, (1.0,), (1.0,), 1.0, ratio, 0.9, 0)
    monkeypatch.setattr(kernels, "measure", lambda args: [missed])
    assert EVALUATE.main(["kernels", *(["--check"] if check else [])]) == code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--bytes", "abc"], "--bytes: got 'abc'"),
        (["--bytes", "1", "--dtype", "float32"], "--bytes: got 1, expected at least one float32"),
        (["--dtype", "float8"], "dtype: got 'float8'"),
        (["--inputs", "1"], "--inputs, --iterations: got 1 and 7"),
        (["--iterations", "0"], "--inputs, --iterations: got 7 and 0"),
    ],
)
def test_bad_input(arguments, message, capsys):
    assert EVALUATE.main(["kernels", *arguments]) == 2
    assert message in capsys.readouterr().err
