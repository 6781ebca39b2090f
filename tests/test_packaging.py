"""The wheel holds every module of the tree, and nothing outside `lanterne/`."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]


def tree_modules():
    """Wheel paths of all modules below the mapped top-level folders."""
    tops = {folder for package, folder in FOLDERS.items() if package.count(".") <= 1}
    for top in tops:
        for path in (ROOT / top).rglob("*.py"):
            inside = path.relative_to(ROOT)
            yield str(inside) if top == "lanterne" else f"lanterne/{inside}"


def test_wheel_holds_the_tree(tmp_path):
    # From a copy: setuptools would reuse what an earlier build left in build/.
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__"))
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, copy]
    result = subprocess.run(build, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    packaged = {name for name in names if name.endswith(".py")}
    assert packaged == set(tree_modules())
    assert "lanterne/bench/examples/adaptra-table-3.csv" in names
    assert all(name.startswith(("lanterne/", "lanterne-")) for name in names)
