"""What is built holds each module once, and what it needs: the wheel the product, the sdist all of `./run` too."""

import ast
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import lanterne
from lanterne.transport.ucx.worker import UCXX_VERSION

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "locks" / "base.txt"
PACKAGE = Path(lanterne.__file__).parent


def package_files():
    """Names, from `lanterne/` on, of all files of the package."""
    for folder, _, names in os.walk(PACKAGE, followlinks=True):
        inside = Path("lanterne", Path(folder).relative_to(PACKAGE))
        if "__pycache__" not in inside.parts:
            yield from (str(inside / name) for name in names if name.endswith((".py", ".csv", ".typed", "h800.json")))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return a folder with a wheel, an sdist, a zip and a repository of a checkout that has no links.

    The wheel and the sdist are made from a copy: setuptools would reuse the results of an earlier build.
    """
    folder = tmp_path_factory.mktemp("built")
    for name in ("clone", "copy"):
        shutil.copytree(ROOT, folder / name, ignore=not_committed)
    shutil.make_archive(str(folder / "main"), "zip", folder, "clone")
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        subprocess.run(["git", *IDENTITY, *words], cwd=folder / "clone", check=True)
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--sdist",
        "--no-isolation",
        "--outdir",
        folder,
        folder / "copy",
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


IDENTITY = ["-c", "user.name=lanterne", "-c", "user.email=lanterne@localhost"]
NOT_COMMITTED = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "src")


def not_committed(folder, names):
    """Return the names in `folder` that are not in a commit."""
    return NOT_COMMITTED(folder, names) | {name for name in names if (Path(folder) / name).is_symlink()}


def test_the_wheel_holds_the_product(built):
    (wheel,) = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert len(set(names)) == len(names)
    assert {name for name in names if not name.startswith("lanterne-")} == set(package_files())
    assert {"lanterne/py.typed", "lanterne/pipeline/calibrate/h800.json"} <= set(names)
    assert all(name.startswith(("lanterne/", "lanterne-")) for name in names)


@pytest.mark.parametrize("source", ["main.zip", "*.tar.gz", "git+file://{}/clone"])
def test_every_source_installs_the_whole_package(built, tmp_path, source):
    """Archives and some checkouts hold no links."""
    (found,) = built.glob(source) if "://" not in source else [source.format(built)]
    install = ["pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-cache", "-p", sys.executable]
    result = subprocess.run([uv(), *install, "--target", tmp_path, found], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    installed = {str(path.relative_to(tmp_path)) for path in (tmp_path / "lanterne").rglob("*") if path.is_file()}
    assert {name for name in installed if "__pycache__" not in name} == set(package_files())
    imports = "import lanterne, lanterne.collectives.communicator as c; print(lanterne.__file__, c.__file__)"
    command = [sys.executable, "-P", "-c", imports]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout.count(str(tmp_path)) == 2, result.stderr


def test_a_checkout_that_was_never_installed_runs(built):
    command = [sys.executable, "-m", "lanterne", "--version"]
    result = subprocess.run(command, cwd=built / "clone", capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert not (built / "clone" / "lanterne" / "bench").exists()


@pytest.mark.parametrize(
    ("before", "line"),
    [
        # A file in the place of a folder stands for a file system that has no links.
        ("open('src', 'w')", r"lanterne: .*; expected a folder in which symbolic links can be made\n"),
        ("sys.version_info = (3, 10)", r"lanterne: got Python .*, expected 3\.11 or newer\n"),
    ],
)
def test_what_cannot_be_installed_is_refused_in_one_line(tmp_path, before, line):
    shutil.copy(ROOT / "setup.py", tmp_path)
    (tmp_path / "lanterne").mkdir()
    (tmp_path / "lanterne" / "__init__.py").touch()
    command = [sys.executable, "-c", f"import runpy, sys; {before}; runpy.run_path('setup.py')", "--version"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert re.fullmatch(line, result.stderr)


def uv():
    """Return the uv of PATH or of ./run."""
    found = shutil.which("uv") or ROOT / ".uv" / "bin" / "uv"
    if not Path(found).exists():
        pytest.skip("needs uv, which ./run installs")
    return found


def test_the_sdist_holds_each_module_once_and_what_run_needs(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames() if not archive.getmember(name).isdir()]
        run = archive.getmember(f"{sdist.name.removesuffix('.tar.gz')}/run")
    assert sorted(name for name in names if name.startswith("src/lanterne/")) == sorted(
        f"src/{name}" for name in package_files()
    )
    # Nothing of the package lies beside it a second time.
    assert not [
        name
        for name in names
        if name.endswith(".py") and not name.startswith(("src/", "tests/", "examples/", "docs/conf.py", "setup.py"))
    ]
    locks = {f"locks/{path.name}" for path in (ROOT / "locks").iterdir()}
    needed = {"run", "pyproject.toml", "README.md", "LICENSE", "tests/conftest.py", "examples/all_reduce.py"}
    assert needed | locks <= set(names)
    assert run.mode & 0o100


def test_no_import_reaches_a_folder_of_the_checkout_by_its_bare_name():
    """`from transport import ...` would work beside a checkout only."""
    # lanterne/torch is no folder at the top of the checkout: `torch` is PyTorch.
    tops = {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {"torch"}
    modules = [path for path in package_files() if path.endswith(".py")]
    assert len(tops) >= 6 and len(modules) > 500
    for module in modules:
        for node in ast.walk(ast.parse((PACKAGE.parent / module).read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            bare = {name.partition(".")[0] for name in names} & tops
            relative = isinstance(node, ast.ImportFrom) and node.level
            assert not bare and not relative, f"{module}:{getattr(node, 'lineno', 0)}: {bare or 'a relative import'}"


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


def documented_installs():
    """Return what pages, help and errors tell users to install: requirements, and `.[EXTRAS]` of this checkout."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *(PACKAGE.parent / name for name in package_files())]
    text = "".join(path.read_text() for path in pages if path.suffix in (".md", ".py"))
    text = text.replace("{UCXX_VERSION}", UCXX_VERSION)
    named = re.findall(r"pip install (?:--?\w+ )*'?([\w.,\[\]=*-]*[\w\]*]|\.)(?=['`\"\s;,:)])", text)
    extras = re.findall(r"'(\.\[[\w,]+\])'|lanterne(\[\w+\])", text)
    return {*named, *(checkout or f".{extra}" for checkout, extra in extras)}


@pytest.mark.slow
def test_every_documented_install_resolves_to_one_cuda_and_one_torch(tmp_path):
    documented = documented_installs()
    assert documented > {".", ".[torch,ucx]", ".[ucx12]", ".[cuda12]", ".[cuda13]", f"ucxx-cu13=={UCXX_VERSION}.*"}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    torches = set()
    for install in documented:
        extras = re.findall(r"\w+", install) if install.startswith(".") else []
        assert declared.keys() >= set(extras), install
        source = ROOT / "pyproject.toml" if install.startswith(".") else tmp_path / "requirements.in"
        (tmp_path / "requirements.in").write_text(f"{install}\n")
        command = [uv(), "pip", "compile", "-q", "-p", sys.executable, source, *(f"--extra={each}" for each in extras)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        refused = "No solution found" in result.stderr and "network was disabled" not in result.stderr
        if result.returncode and not refused:
            pytest.skip(f"the index cannot be had: {result.stderr.strip()[-200:]}")
        assert result.returncode == 0, f"{install}: {result.stderr}"
        assert len(set(re.findall(r"^\S+-cu(12|13)==", result.stdout, re.M))) <= 1, f"{install}: {result.stdout}"
        torches |= set(re.findall(r"^torch==\S+", result.stdout, re.M))
    # Beside our other extras PyTorch is as new as alone.
    assert len(torches) == 1


MB = 1_000_000
# What the core may weigh, installed.
CORE_NBYTES = 280 * MB
RANK = """
import numpy, lanterne
with lanterne.init() as comm:
    x = numpy.full(70_000, comm.rank + 1.0)
    comm.all_reduce(x, x)
    print(comm.transport.name, comm.world_size, x[0])
"""


@pytest.fixture(scope="module")
def bare(built, tmp_path_factory):
    """The folder of a virtual environment with the wheel and its core dependencies, as the lock has them."""
    venv = tmp_path_factory.mktemp("bare") / "venv"
    (wheel,) = built.glob("*.whl")
    pins = venv.parent / "pins.txt"
    pins.write_text("\n".join(re.findall(r"^[a-z0-9_-]+==[^\s;]+(?: ;[^\\\n]*)?", LOCK.read_text(), re.M)))
    make, fill = ["venv", "-q", "-p", sys.executable, venv], ["pip", "install", "-q", "-p", venv, "-c", pins, wheel]
    for command in (make, fill):
        result = subprocess.run([uv(), *command], capture_output=True, text=True, check=False)
        if result.returncode and command[0] == "pip":
            pytest.skip(f"the packages cannot be had: {result.stderr.strip()[-200:]}")
        assert result.returncode == 0, result.stderr
    return venv


@pytest.mark.slow
def test_the_core_is_light(bare):
    names = {path.name.partition("-")[0] for path in bare.glob("lib/*/site-packages/*.dist-info")}
    assert names == {"lanterne", "llvmlite", "mpi4py", "numba", "numpy", "cryptography", "cffi", "pycparser"}
    files = {path for path in bare.glob("lib/*/site-packages/**/*") if path.is_file()}
    assert sum(path.stat().st_size for path in files) <= CORE_NBYTES


@pytest.mark.slow
def test_the_bare_wheel_runs_over_tcp(bare, tmp_path):
    """Without MPI and UCX: ranks that `-n` starts, and ranks of torchrun-style variables."""
    variables = {"PATH": "/nowhere", "HOME": str(tmp_path), "LANTERNE_TRIALS": "off"}
    lanterne = [bare / "bin" / "lanterne", "bench", "all_reduce", "-n", "4", "--bytes", "256K", "--iterations", "2"]
    run = {"capture_output": True, "text": True, "cwd": tmp_path}
    result = subprocess.run(lanterne, env=variables, check=False, **run)
    assert (result.returncode, result.stderr) == (0, "")
    assert "4 ranks over tcp" in result.stdout and "auto" in result.stdout and "ring" in result.stdout
    result = subprocess.run([*lanterne, "--plot", "late.png"], env=variables, check=False, **run)
    assert result.returncode == 3 and result.stderr.endswith("-m pip install matplotlib\n")
    job = variables | {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen([bare / "bin" / "python", "-c", RANK], env=job | {"RANK": str(rank)}, stdout=subprocess.PIPE)
        for rank in range(3)
    ]
    assert [rank.communicate(timeout=120)[0] for rank in ranks] == [b"tcp 3 6.0\n"] * 3


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]
