"""What is built holds each module once, and what it needs: the wheel the product, the sdist all of `./run` too."""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import lanterne

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(lanterne.__file__).parent
# They redo our own figures, and need a checkout.
YARDSTICKS = ("lanterne/bench/papers", "lanterne/bench/scores")


def package_files():
    """Names, from `lanterne/` on, of all files of the package but the yardsticks'."""
    for folder, _, names in os.walk(PACKAGE, followlinks=True):
        inside = Path("lanterne", Path(folder).relative_to(PACKAGE))
        if "__pycache__" not in inside.parts and not str(inside).startswith(YARDSTICKS):
            yield from (str(inside / name) for name in names if name.endswith((".py", ".csv", ".typed", "h800.json")))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder of a wheel and an sdist, each made from a copy: setuptools would reuse what an earlier build left."""
    folder = tmp_path_factory.mktemp("built")
    copy = folder / "copy"
    ignored = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignored, symlinks=True)
    command = [sys.executable, "-m", "build", "--wheel", "--sdist", "--no-isolation", "--outdir", folder, copy]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def test_the_wheel_holds_the_product(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert len(set(names)) == len(names)
    assert {name for name in names if not name.startswith("lanterne-")} == set(package_files())
    assert {"lanterne/py.typed", "lanterne/pipeline/calibrate/h800.json"} <= set(names)
    assert all(name.startswith(("lanterne/", "lanterne-")) for name in names)


def test_the_sdist_holds_each_module_once_and_what_run_needs(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames() if not archive.getmember(name).isdir()]
        run = archive.getmember(f"{sdist.name.removesuffix('.tar.gz')}/run")
    assert sorted(name for name in names if name.startswith("src/lanterne/")) == sorted(
        f"src/{name}" for name in package_files()
    )
    # Nothing of the package lies beside it a second time.
    assert not [name for name in names if name.endswith(".py") and not name.startswith(("src/", "tests/", "examples/"))]
    locks = {f"locks/{path.name}" for path in (ROOT / "locks").iterdir()}
    needed = {"run", "pyproject.toml", "README.md", "LICENSE", "tests/conftest.py", "examples/all_reduce.py"}
    assert needed | locks <= set(names)
    assert run.mode & 0o100


def test_an_installed_wheel_says_what_needs_a_checkout(built, tmp_path):
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path)
    command = [sys.executable, "-P", "-m", "lanterne"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    for words in (["experiment", "list"], ["bench", "planner"]):
        result = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stdout) == (3, "")
        assert result.stderr == (
            f"lanterne: {words[0] if words[0] == 'experiment' else ' '.join(words)}: redoes figures of our own, "
            "and is in a checkout of lanterne only\n"
        )


@pytest.mark.parametrize("module", [path for path in package_files() if path.endswith(".py")])
def test_no_import_reaches_a_folder_of_the_checkout_by_its_bare_name(module):
    """`from transport import ...` would work beside a checkout only."""
    tops = {path.name for path in PACKAGE.iterdir() if path.is_dir()}
    for node in ast.walk(ast.parse((PACKAGE.parent / module).read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.partition(".")[0] for name in names} & tops
        assert not (isinstance(node, ast.ImportFrom) and node.level)


HERE = "import pathlib; pathlib.Path('executed').touch()"


@pytest.mark.parametrize("words", [["--version"], ["info"], ["bench", "all_reduce", "-n", "2", "--bytes", "1K"]])
def test_no_file_of_the_current_folder_is_executed(tmp_path, words):
    """The names of modules that Python, NumPy and we import."""
    for name in ("heapq", "random", "numpy", "kernels", "transport", "statistics", "json", "secrets"):
        (tmp_path / f"{name}.py").write_text(HERE)
    if not (ROOT / ".venv" / "bin" / "python").exists():
        pytest.skip("./run has no environment here")
    command = [ROOT / "run", *words]
    environment = os.environ | {"LANTERNE_LOCK": "test"}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "executed").exists()


def test_a_script_beside_a_folder_of_that_name_imports_what_is_installed(tmp_path):
    """A clone is such a folder: without an __init__.py, and with one of that name inside."""
    (tmp_path / "lanterne" / "lanterne").mkdir(parents=True)
    (tmp_path / "lanterne" / "lanterne" / "__init__.py").touch()
    (tmp_path / "script.py").write_text("import lanterne\nprint(lanterne.init, lanterne.__file__)\n")
    command = [sys.executable, str(tmp_path / "script.py")]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert str(PACKAGE / "__init__.py") in result.stdout
