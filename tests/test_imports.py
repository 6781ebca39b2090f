"""The import direction of the folders, and that the pure part touches neither MPI, UCX nor CUDA."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Each may import those to its right.
ORDER = ["bench", "failslow", "pipeline", "collectives", "transport", "kernels"]


def modules(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def imported_folders(path):
    """Folders of this project that `path` imports, at any depth of the code."""
    package = ["lanterne", *path.relative_to(ROOT).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else []
            names = [".".join([*base, *([node.module] if node.module else [])])]
            names += [f"{names[0]}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "lanterne" and len(parts) > 1 and parts[1] in ORDER:
                yield parts[1]


@pytest.mark.parametrize("folder", ORDER)
def test_imports_go_to_the_right_only(folder):
    assert modules(folder)
    allowed = set(ORDER[ORDER.index(folder) :])
    for path in modules(folder):
        wrong = set(imported_folders(path)) - allowed
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}, allowed: {sorted(allowed)}"


def test_the_walk_sees_relative_and_absolute_imports(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "kernels").mkdir()
    path = tmp_path / "kernels" / "x.py"
    path.write_text(
        "def f():\n    from ..bench.cli import main\n    import lanterne.pipeline.plan\n    from .. import failslow\n"
    )
    assert set(imported_folders(path)) == {"bench", "pipeline", "failslow"}


def test_import_is_light():
    heavy = "numpy numba mpi4py ucxx cupy matplotlib ortools networkx".split()
    code = f"import sys, lanterne, lanterne.bench.cli; print([m for m in {heavy!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert result.stdout.strip() == "[]"
