"""Which lock `./run` installs, by its words and the driver: with stand-ins for uv, nvidia-smi and the environment."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Tells what it was asked to install; the Python of the environment that it makes tells what it is run with.
UV = """#!/bin/sh
case $1 in
    venv) for venv; do :; done; mkdir -p "$venv/bin"; cp "$(dirname "$0")/python-stand-in" "$venv/bin/python"
          chmod +x "$venv/bin/python" ;;
    pip) case "$*" in *" -r "*) for lock; do :; done
         echo "installs ${lock##*/}${UV_CACHE_DIR:+ by $UV_CACHE_DIR}" ;; esac
         case "$*" in ${LACKS:-nothing}) exit 1 ;; esac
         [ -z "${OFFLINE:-}" ] ;;
    cache) echo /home/me/.cache/uv ;;
esac
"""
# Tells what it runs, and the variable named in TELLS; fails for what the test says, a pattern.
PYTHON = """#!/bin/sh
echo "$0 $*${TELLS:+ $(printenv "$TELLS")}"
case $* in "-P -m "${FAILS:-nothing}) exit 1 ;; esac
"""
MODULES = {
    "test": (
        "pytest --cache-clear -n 3 -m not alone and not slow and not cluster and not operators",
        "pytest -m alone and not slow and not cluster and not operators",
    ),
    "test -m quick": ("pytest -n 2 -m quick and not slow",),
    "test tests/transport": ("pytest tests/transport",),
    "types": (
        "ruff check -q",
        "ruff format -q --check",
        "mypy -p lanterne -p evaluation",
        "mypy examples",
        "basedpyright",
    ),
    "evaluate ddp --init 5": ("evaluation ddp --init 5",),
}
FAILED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


@pytest.mark.parametrize(
    ("driver", "words", "variables", "lock"),
    [
        # As where there is no nvidia-smi, to which a stand-in comes closest.
        ("exit 127", "bench", {}, "base"),
        ("exit 127", "bench --transport ucx", {}, "full"),
        ("exit 127", "lab -- lanterne bench", {}, "full"),
        ("exit 127", "lab -- lanterne bench --transport tcp", {}, "base"),
        *(("exit 127", words, {}, "test") for words in MODULES),
        ("echo 580.65.06", "bench", {}, "cuda13"),
        ("echo 1000.1", "test", {}, "cuda13"),
        # A line for each GPU.
        ("echo 575.57.08; echo 575.57.08", "bench --transport ucx", {}, "cuda12"),
        # No driver is loaded: it says so on its standard output.
        (f'echo "{FAILED}"; exit 9', "bench", {}, "base"),
        ("echo 580.65.06", "bench", {"LANTERNE_LOCK": "cuda12"}, "cuda12"),
    ],
)
def test_the_lock_follows_the_words_and_the_driver(tmp_path, driver, words, variables, lock):
    result = run(tmp_path, driver, words, variables)
    python = tmp_path / (f".venv-{lock}" if lock.startswith("cuda") else ".venv") / "bin" / "python"
    modules = MODULES.get(words, (f"lanterne {words}",))
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [f"installs {lock}.txt", *(f"{python} -P -m {module}" for module in modules)]


AGAIN = "pytest --last-failed --last-failed-no-failures none -x -rp"


@pytest.mark.parametrize(("words", "fails"), [("test", "pytest --*"), ("types", MODULES["types"][0])])
def test_what_fails_first_is_in_the_exit_code(tmp_path, words, fails):
    result = run(tmp_path, "exit 127", words, {"FAILS": fails})
    assert result.returncode == 1
    assert (MODULES[words][1] in result.stdout) == (words == "test")  # all tests run; types stop
    assert "lanterne types" not in result.stdout


@pytest.mark.parametrize("fails", MODULES["test"])
def test_what_failed_runs_once_more_with_nothing_beside_it(tmp_path, fails):
    result = run(tmp_path, "exit 127", "test", {"FAILS": fails})
    assert result.returncode == 0
    assert result.stdout.endswith(f" -P -m {AGAIN}\n")
    assert "run: what failed, once more, nothing beside it" in result.stderr


def test_downloads_are_kept_inside_without_a_home_to_write_to(tmp_path):
    result = run(tmp_path, "exit 127", "info", {"HOME": "/proc/none", "XDG_CACHE_HOME": "", "UV_CACHE_DIR": ""})
    assert result.stdout.splitlines()[0] == f"installs base.txt by {tmp_path}/.uv/cache"
    result = run(tmp_path, "exit 127", "lab x", {"HOME": str(tmp_path), "XDG_CACHE_HOME": "", "UV_CACHE_DIR": ""})
    assert result.stdout.splitlines()[0] == "installs full.txt"


@pytest.mark.parametrize(("forbids", "kept"), [("1", "{}/.pytest_cache/bytecode"), ("", "")])
def test_what_python_compiles_is_kept_inside_where_the_environment_forbids_it(tmp_path, forbids, kept):
    variables = {"PYTHONDONTWRITEBYTECODE": forbids, "PYTHONPYCACHEPREFIX": ""}
    for name, told in (("PYTHONPYCACHEPREFIX", kept.format(tmp_path)), ("PYTHONDONTWRITEBYTECODE", "")):
        result = run(tmp_path, "exit 127", "info", variables | {"TELLS": name})
        assert result.stdout.endswith(f" -P -m lanterne info {told}\n"), name


def test_without_a_network_one_line_says_what_is_missing(tmp_path):
    result = run(tmp_path, "exit 127", "info", {"OFFLINE": "yes"})
    assert (result.returncode, result.stderr.splitlines()[1:]) == (
        3,
        ["run: could not install locks/base.txt; expected a network, or its packages in /home/me/.cache/uv"],
    )


def test_a_python_that_is_too_old_is_refused_before_anything_is_installed(tmp_path):
    old = tmp_path / "python3.10"
    old.write_text("#!/bin/sh\n[ $1 = -V ] && echo Python 3.10.13\n")
    old.chmod(0o755)
    result = run(tmp_path, "exit 127", "info", {"LANTERNE_PYTHON": str(old)})
    expected = "expected Python 3.11 or newer; LANTERNE_PYTHON=PATH names another"
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr == f"run: {old} is Python 3.10.13, {expected}\n"


def test_every_download_is_checked_by_a_hash():
    text = (ROOT / "run").read_text().replace("\\\n", " ")
    installs = [line for line in text.splitlines() if re.search(r"\bpip\b.* install ", line)]
    assert len(installs) == 5
    for line in installs:
        assert "--require-hashes" in line or "--no-deps --no-build-isolation --editable" in line, line
    for lock in (ROOT / "locks").iterdir():
        named = re.findall(r"^\S+==(?:[^\\\n]|\\\n)*", lock.read_text(), re.M)
        assert named and all("--hash=sha256:" in each for each in named), lock


TORCH = {"2.13": ".venv-torch", "2.14": ".venv-torch-2.14", "2.15": ".venv-torch-2.15"}


@pytest.mark.parametrize(
    ("words", "versions", "tests"),
    [
        ("torch", ["2.13"], "tests/torch"),
        ("torch-2.15 -k ddp", ["2.15"], "-k ddp"),
        ("torch-all", [*TORCH], "tests/torch"),
        ("torch-all -k ddp", [*TORCH], "-k ddp"),
    ],
)
def test_each_version_of_pytorch_has_an_environment_of_its_own(tmp_path, words, versions, tests):
    result = run(tmp_path, "exit 127", f"test -m {words}", {"TELLS": "LANTERNE_REQUIRE"})
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if "cuda_stubs" not in line and "pip" not in line]
    expected = []
    for version in versions:
        python = tmp_path / TORCH[version] / "bin" / "python"
        expected.append("installs test.txt")
        expected.append(f"{python} -P -m pytest -m torch and not slow {tests} torch")
    assert lines == expected


@pytest.mark.parametrize(
    ("words", "lacks", "fails", "code"),
    [
        ("torch", "*torch-2.13.txt", "nothing", 75),
        ("torch-all", "*torch-2.15.txt", "nothing", 75),
        ("torch-all", "*torch-2.15.txt", "pytest*", 1),
    ],
)
def test_what_could_not_be_installed_is_told_from_what_failed(tmp_path, words, lacks, fails, code):
    result = run(tmp_path, "exit 127", f"test -m {words}", {"LACKS": lacks, "FAILS": fails})
    assert result.returncode == code
    assert ("run: could not install PyTorch" in result.stderr) == (lacks != "nothing")
    ran = [version for version, venv in TORCH.items() if f"{tmp_path}/{venv}/bin/python -P -m pytest" in result.stdout]
    asked = TORCH if words == "torch-all" else ["2.13"]
    assert ran == [version for version in asked if f"*torch-{version}.txt" != lacks]


def test_an_unknown_version_of_pytorch_is_refused(tmp_path):
    result = run(tmp_path, "exit 127", "test -m torch-2.12", {})
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr == "run: torch-2.12: got PyTorch '2.12', expected one of 2.13 2.14 2.15 or all\n"


def test_continuous_integration_tests_one_version_of_pytorch_by_turn(tmp_path):
    for name in (".ci", "locks"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "run").write_text('#!/bin/sh\necho "$*"\n')
    (tmp_path / "run").chmod(0o755)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], check=True)
    tested = set()
    for _ in TORCH:
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "one more"], check=True)
        ended = subprocess.run(["sh", tmp_path / ".ci" / "run"], capture_output=True, text=True, check=True)
        types, docs, torch, tests = ended.stdout.splitlines()
        assert (types, docs, tests) == ("types", "docs", "test")
        tested.add(torch)
    assert tested == {f"test -m torch-{version}" for version in TORCH}


@pytest.mark.parametrize(
    ("more", "tests"),
    [
        ("", "-n 2 tests/gpu tests/host_cuda/checks.py"),
        (" -k nccl", "-k nccl tests/gpu tests/host_cuda/checks.py"),
        (" -k nccl tests/gpu/test_gpu_delay.py", "-k nccl tests/gpu/test_gpu_delay.py"),
    ],
)
def test_the_suite_of_stand_ins_has_an_environment_of_its_own(tmp_path, more, tests):
    folder = tmp_path / "tests/host_cuda"
    folder.mkdir(parents=True)
    (folder / "run").write_text('#!/bin/sh\necho "$LANTERNE_REQUIRE: $*"\n')
    (folder / "run").chmod(0o755)
    assert run(tmp_path, "exit 127", f"test -m host_cuda{more}", {}).stdout == f"gpu: -m pytest {tests}\n"


def run(tmp_path, driver, words, variables):
    """What `./run WORDS` does in a copy of the checkout, whose uv, nvidia-smi and Python are stand-ins."""
    for name in ("run", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "locks", tmp_path / "locks", dirs_exist_ok=True)
    (tmp_path / "tests" / "torch").mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "tests" / "torch" / "cuda_stubs.py", tmp_path / "tests" / "torch")
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for name, text in (("uv", UV), ("python-stand-in", PYTHON), ("nvidia-smi", f"#!/bin/sh\n{driver}\n")):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    # The stand-in tells of a cache that is set.
    environment = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "UV_CACHE_DIR": ""} | variables
    command = [str(tmp_path / "run"), *words.split()]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
