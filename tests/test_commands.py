"""Each command of README, docs and `--help` runs as written, in order, in a folder with a checkout's examples.

Those that take seconds run in a shell, with `-m slow`; of the others only those that need one: a process for each would
cost more than what it does.
"""

import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lanterne.bench import cli
from lanterne.collectives.algorithms.catalogue import make_schedule
from lanterne.collectives.schedule.check_schedule import check
from lanterne.collectives.schedule.formats.export_json import to_json
from lanterne.collectives.schedule.formats.export_msccl import to_msccl_xml

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# By what is in a command: why no test runs it. The first that fits counts.
NOT_HERE = {
    r"--device cuda|tests/gpu": "a GPU",
    r"^torchrun|train_torch|--launcher": "PyTorch, Gloo or Open MPI beside",
    r"\blab\b|--hosts": "root",
    r"--attach PID|--ras": "a job to attach to",
    r"(run|lanterne) serve|--listen": "it serves until Ctrl-C, at a port that may be taken; tests of its own",
    r"--every": "it sweeps until Ctrl-C; tests of its own",
    r"(run|lanterne) history|--admit": "a history that jobs have kept; tests of its own",
    r"locate FOLDER": "a folder that a cluster wrote; tests/failslow/locate/test_formats.py makes them",
    r"evaluat|run test|run figures|--seconds": "minutes, and tests of its own",
    r"-n (16|1024)|64x256|--solver|4,8,16,64,256 --scheduler": "more cores, or minutes",
}
# Runs longer than some two seconds: with `-m slow`.
SLOW = re.compile(
    r"(run|lanterne) (bench|demo|launch)|validate|watch|cost|study|pipeline (run|train|sweep|calibrate)|--scheduler all"
    r"|h800\.json"
)
QUICK = re.compile(r"mpiexec -n 4 lanterne bench all_gather --bytes 1M\b")
# What only a shell can run.
SHELL = re.compile(r"[|<>&;*?$`~]|^(?!lanterne |\./run )")
EXIT_CODES = {
    r"validate .*--slow-rank": (1,),
    "--fail-on incident": (1,),
}


def commands_of_page(text):
    for block in re.findall(r"```sh\n(.*?)```", text, re.S):
        yield from (line.split(" #")[0].strip() for line in block.replace("\\\n", " ").splitlines())


def commands_of_help(text):
    for line in re.sub(r"\\\n +", " ", text).splitlines():
        if re.match(r"  (lanterne|mpiexec|zcat|torchrun|python) ", line):
            yield re.split(r" {3,}| #", line.strip())[0]


def all_commands():
    """{page or command: its commands}, each command once."""
    pages = {page.name: list(commands_of_page(page.read_text())) for page in DOCS}
    pages |= {name: list(commands_of_help(cli.LANTERNE.build_parser(name).description or "")) for name in cli.COMMANDS}
    seen = set()
    for name, commands in pages.items():
        pages[name] = [command for command in commands if command not in seen]
        seen.update(commands)
    return {name: commands for name, commands in pages.items() if commands}


PAGES = all_commands()


def reason_against(command):
    return next((reason for found, reason in NOT_HERE.items() if re.search(found, command)), None)


def is_slow(command):
    return bool(SLOW.search(command)) and not QUICK.search(command)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """The folder to run in, the current one: the sample files, what stands for an engineer's own, and ./run."""
    for name in ("README.md", "docs", "examples", "bench"):
        (tmp_path / name).symlink_to(ROOT / name)
    run = tmp_path / "run"
    run.write_text(f'#!/bin/sh\nexec "{BIN}/lanterne" "$@"\n')
    run.chmod(0o755)
    for name in ("times.csv", "a.csv", "b.csv"):
        shutil.copy(ROOT / "examples" / "times.csv", tmp_path / name)
    rows = (ROOT / "examples" / "times.csv").read_text().split()[1:]
    ended_s, lines = 0.0, ["ended_at"]
    for row in rows:
        ended_s += float(row.split(",")[1])
        lines.append(f"{ended_s:.4f}")
    steps = [(number, 1000 * float(row.split(",")[1])) for number, row in enumerate(rows)]
    (tmp_path / "train.log").write_text("".join(f"step took {time_ms:.1f}\n" for _, time_ms in steps))
    megatron = " iteration {:8d}/    1000 | elapsed time per iteration (ms): {:.1f} |\n"
    (tmp_path / "megatron.log").write_text("".join(megatron.format(*step) for step in steps))
    records = "".join(json.dumps({"step": number, "step_time": time_ms / 1000}) + "\n" for number, time_ms in steps)
    (tmp_path / "trainer.jsonl").write_text(records)
    (tmp_path / "times.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (tmp_path / "book.txt").write_text(20 * (ROOT / "README.md").read_text())
    (tmp_path / "problem.json").write_text(
        '{"stages": 4, "microbatches": 8, "unit": "1ms", "forward": 10, "backward_input": 10, "backward_weight": 10,'
        ' "link_latency": [0, 20, 0], "max_inflight_activations": 8}'
    )
    # As `pipeline train --profile profiled.json` writes it.
    (tmp_path / "profiled.json").write_text(
        '{"stages": 3, "microbatches": 8, "unit": "1ms", "forward": 10, "backward_input": 10, "backward_weight": 10,'
        ' "memory": {"forward": 1e6, "backward_input": -4e5, "backward_weight": -6e5, "capacity": 1e7}}'
    )
    runs = json.loads((ROOT / "evaluation" / "papers" / "adaptra" / "h800_runs.json").read_text())
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    case = {key: value for key, value in runs["runs"][0].items() if key != "slow_ms"}
    (tmp_path / "case.json").write_text(json.dumps(case))
    for name in ("h800.json", "mine.json"):
        shutil.copy(ROOT / "pipeline" / "calibrate" / "h800.json", tmp_path / name)
    shutil.copy(ROOT / "examples" / "two_hosts.json", tmp_path / "cluster.json")
    ring = make_schedule("all_reduce", "ring", 4)
    (tmp_path / "ring.json").write_text(json.dumps(to_json(ring)))
    (tmp_path / "theirs.xml").write_text(to_msccl_xml(check(ring)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def in_shell(command):
    """(exit code, standard error) of a command."""
    words = ["bash", "-o", "pipefail", "-c", re.sub(r"^\.venv/bin/", f"{BIN}/", command)]
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    return result.returncode, result.stderr


@pytest.fixture
def in_place(capfd):
    """(exit code, standard error) of a command, in this process where it needs no shell."""

    def run(command):
        if SHELL.search(command):
            return in_shell(command)
        try:
            code = cli.main(shlex.split(command)[1:])
        except SystemExit as error:
            code = error.code or 0
        return code, capfd.readouterr().err

    return run


def run_all(commands, run):
    """What went wrong: (command, exit code, the end of what it said)."""
    wrong = []
    for command in commands:
        code, said = run(command)
        expected = next((codes for found, codes in EXIT_CODES.items() if re.search(found, command)), (0,))
        if code not in expected or "Traceback" in said:
            wrong.append((command, code, said[-300:]))
    return wrong


def needs_plan(name, folder):
    """`pipeline simulate`, `run` and `check` read what `pipeline plan` wrote."""
    if name in ("pipeline simulate", "pipeline run"):
        assert cli.main(["pipeline", "plan", "problem.json", "--json", "plan.json"]) == 0
    if name == "pipeline check":
        words = ["--csv", "theirs.csv", "--comms"]
        assert cli.main(["pipeline", "plan", "problem.json", "--scheduler", "zb_h1", *words]) == 0
    if name == "locate":
        pq = pytest.importorskip("pyarrow.parquet")
        csv = pytest.importorskip("pyarrow.csv")
        pq.write_table(csv.read_csv(ROOT / "examples" / "trace.csv"), folder / "trace.parquet")
        (folder / "meta.yaml").write_text("dp_size: 2\n")


def runnable(slow):
    found = {}
    for name, commands in PAGES.items():
        here = [command for command in commands if not reason_against(command) and (slow or not is_slow(command))]
        if any(is_slow(command) == slow for command in here):
            found[name] = here
    return found


@pytest.mark.parametrize("name", runnable(slow=False))
def test_commands_run_as_written(name, checkout, in_place):
    needs_plan(name, checkout)
    assert run_all(runnable(slow=False)[name], in_place) == []


# A page takes minutes; that of delegates, which is time in the kernel, took 45 on a machine a fifth as fast.
@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("name", runnable(slow=True))
def test_all_commands_run_as_written(name, checkout):
    needs_plan(name, checkout)
    assert run_all(runnable(slow=True)[name], in_shell) == []


def test_each_reason_not_to_run_a_command_is_one():
    for found in NOT_HERE:
        assert any(re.search(found, command) for commands in PAGES.values() for command in commands), found
