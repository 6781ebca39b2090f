"""The benchmark of deaths: its document, its verdict, its bad input."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from evaluation.deaths import record


def run(*arguments):
    command = [sys.executable, "-m", "evaluation", "deaths", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize(("name", "module"), [("mpi", "mpi4py"), pytest.param("ucx", "ucxx", marks=pytest.mark.slow)])
def test_survivors_name_the_victim(name, module):
    if find_spec(module) is None and name not in os.environ.get("LANTERNE_REQUIRE", "").split(","):
        pytest.skip(f"{module} is not installed")
    result = run("--transport", name, "--bytes", "4M", "--trials", "1", "--json", "-")
    document = json.loads(result.stdout)
    assert document["schema_version"] == 1
    cases = [(case["own_hosts"], case["survivors"]) for case in document["results"]]
    hosts = [False, True] if name == "ucx" else [False]
    assert cases == [(own, direction) for own in hosts for direction in ("receiving", "sending")]
    for case in document["results"]:
        assert case["named"] == [2, 2], result.stderr
        assert len(case["noticed_s"]) == 2, case
    assert result.returncode == int(any(case["missed"] for case in document["results"]))


def test_late_wrong_and_silent_survivors_are_missed():
    good = {"named": 3, "noticed_s": 0.1}
    trials = [
        [good, {"named": 1, "noticed_s": 0.1}],
        [{"named": None, "noticed_s": 30.0}, {"named": 3, "noticed_s": 2.1}],
    ]
    assert record(4, 8, "ucx", False, "sending", trials)["missed"] == 3
    assert record(4, 8, "ucx", True, "sending", trials)["missed"] == 2
    assert record(4, 8, "ucx", True, "sending", [[good]])["missed"] == 0


@pytest.mark.parametrize(
    "arguments", [["--transport", "pigeon"], ["-n", "1"], ["--trials", "0"], ["--bytes", "many"], ["--bytes", "0"]]
)
def test_bad_input(arguments):
    result = run(*arguments)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1 and "expected" in result.stderr
