"""Everything that a GPU has to prove, in one command for a machine that one has for minutes: tests, then figures.

  PYTHONPATH=. python3 -m lanterne.bench.gpu_session --out FOLDER --name h200

Runs in a checkout under the Python that it is started with, which needs NumPy, llvmlite, CuPy, Numba CUDA, NCCL, pytest
(and pytest-timeout); jobs of several ranks also mpi4py with an MPI: what is missing fails by name. Nothing is
installed. Every step is a process with a time limit of its own, and what has hung is killed with all its children, so
the next step runs. Writes session.json, session.md (the verdicts and the names of what failed), session.log (all
output) and the gpu-NAME*.json and .md of `lanterne bench gpu`, the first three anew after each step.
The exit code is 1 if a step failed or a bar was missed.
"""

import argparse
import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from . import report
from .units import format_time

ROOT = Path(__file__).resolve().parent.parent
BUDGET_S = 570.0
# How much sooner than its step a job of several ranks is ended, so that what it has found is still read.
JOB_MARGIN_S = 12.0
CUDA_HOME = "/usr/local/cuda"
MAX_FAILED = 40
FAILED = re.compile(r"^(?:FAILED|ERROR) .*$", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """A command and how long it may take; `tests`: it is a run of pytest."""

    name: str
    arguments: tuple
    limit_s: float
    tests: bool = False


@dataclass(frozen=True)
class Outcome:
    """How a step ended: `code`, None if its time was over; `failed`, the lines that name what did; its last line."""

    name: str
    command: str
    code: int | None
    took_s: float
    failed: tuple
    last: str


def steps(name, folder):
    """The Steps, those that tell most first."""
    bench = ("-m", "lanterne", "bench", "gpu", "--check", "--iterations", "5", "--out", str(folder))
    collectives = "tests/gpu/test_gpu_collectives.py"
    return (
        Step("environment", ("-c", VERSIONS), 40),
        Step("delays and staging", ("tests/gpu/test_gpu_delay.py", "tests/gpu/test_gpu_staging.py"), 70, True),
        Step("nccl, 1 rank", (collectives, "-k", "over_nccl and 1-"), 60, True),
        Step("figures of kernels", (*bench, "--name", name, "--only", "kernels,grids,staging,gemm,delays"), 110),
        Step("nccl, 2 ranks", (collectives, "-k", "over_nccl and 2-"), 70, True),
        Step("staged", (collectives, "-k", "staged"), 60, True),
        Step("reductions", ("tests/gpu/test_gpu_reduce.py", *_workers()), 110, True),
        Step("nccl, 3 ranks", (collectives, "-k", "over_nccl and 3-"), 70, True),
        Step("figures over nccl", (*bench, "--name", f"{name}-nccl", "--only", "collectives"), 70),
        Step("the rest", (collectives, "-k", "not over_nccl and not staged"), 60, True),
    )


def _workers():
    """Options that spread tests over the cores, where pytest-xdist is there."""
    return ("-n", str(min(8, os.cpu_count() or 1))) if importlib.util.find_spec("xdist") else ()


VERSIONS = """
import importlib.metadata as metadata, platform, sys
print(sys.executable, platform.python_version(), platform.platform())
for name in ("numpy", "llvmlite", "numba", "numba-cuda", "cupy-cuda13x", "cupy-cuda12x", "cuda-bindings",
             "nvidia-nccl-cu13", "nvidia-nccl-cu12", "mpi4py", "mpich", "torch", "pytest", "pytest-timeout"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        print(name, "missing")
from lanterne.bench.cli import main
print("lanterne info:")
main(["info"])
from lanterne.transport.nccl_library import load_nccl, version_text
print("NCCL", version_text(load_nccl().get_version()))
from lanterne.kernels.cuda_runtime import CudaRuntime
runtime = CudaRuntime()
print("device", runtime.identity, runtime.device.attributes["MultiProcessorCount"], "multiprocessors")
"""


def environment(limit_s):
    """The variables of a step that may take `limit_s`."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    found = os.environ | {
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "LANTERNE_REQUIRE": "gpu",
        "LANTERNE_TEST_JOB_S": str(max(5.0, limit_s - JOB_MARGIN_S)),
    }
    found.setdefault("NCCL_DEBUG", "WARN")
    # Numba looks for NVVM there, which is beside the compiler and in no wheel that CuPy or torch bring.
    if Path(CUDA_HOME).is_dir():
        found.setdefault("CUDA_HOME", CUDA_HOME)
    return found


def command_of(step, limit_s):
    """The command line of `step`."""
    if not step.tests:
        return [sys.executable, *step.arguments]
    options = ["-p", "no:cacheprovider", "-rfE", "--tb=short", "-o", f"timeout={limit_s:.0f}"]
    return [sys.executable, "-m", "pytest", *step.arguments, *options]


def run_step(step, limit_s, log):
    """Run `step` for `limit_s` at most, its output to the file `log`; an Outcome."""
    command = command_of(step, limit_s)
    started = time.monotonic()
    log.write(f"\n===== {step.name}: at most {limit_s:.0f} s\n".encode())
    log.flush()
    begin = log.tell()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env=environment(limit_s),
        start_new_session=True,
    )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        _kill_session(process)
    took_s = time.monotonic() - started
    text = Path(log.name).read_bytes()[begin:].decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    log.seek(0, os.SEEK_END)
    shown = " ".join(argument if len(argument) < 80 else "..." for argument in command[1:])
    return Outcome(step.name, shown, code, took_s, tuple(FAILED.findall(text)), lines[-1] if lines else "")


def _kill_session(process):
    """End `process` and all that it has started, in sessions of their own too."""
    pids = _descendants(process.pid)
    for pid in [process.pid, *pids]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def _descendants(pid):
    """The pids of all processes that `pid` has started, and those these have; without those whose parent has ended."""
    children = {}
    for folder in filter(str.isdigit, os.listdir("/proc")):
        try:
            # The name before the last parenthesis may hold anything.
            parent = Path(f"/proc/{folder}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(folder))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def markdown(outcomes):
    """The session as a Markdown document."""
    lines = ["# GPU session", "", "| step | ended | took | last line |", "|---|---|---|---|"]
    for outcome in outcomes:
        ended = "time was over" if outcome.code is None else "ok" if outcome.code == 0 else f"code {outcome.code}"
        last = outcome.last.replace("|", "\\|")[:160]
        lines.append(f"| {outcome.name} | {ended} | {format_time(outcome.took_s)} | {last} |")
    for outcome in outcomes:
        if outcome.failed:
            shown = [f"- {line[:300]}" for line in outcome.failed[:MAX_FAILED]]
            more = len(outcome.failed) - len(shown)
            lines += ["", f"## {outcome.name}", "", *shown, *([f"- and {more} more"] if more else [])]
    return "\n".join(lines) + "\n"


def run(folder, budget_s, chosen):
    """Run `chosen` Steps within `budget_s`, report after each; the Outcomes."""
    deadline, outcomes = time.monotonic() + budget_s, []
    with (folder / "session.log").open("w+b") as log:
        for step in chosen:
            limit_s = min(step.limit_s, deadline - time.monotonic())
            if limit_s < 5:
                outcomes.append(Outcome(step.name, "", None, 0.0, (), "not begun: the session's time was over"))
            else:
                outcomes.append(run_step(step, limit_s, log))
            document = report.envelope(steps=[asdict(outcome) for outcome in outcomes])
            report.write_json(str(folder / "session.json"), document)
            report.write_atomically(str(folder / "session.md"), markdown(outcomes).encode())
            last = outcomes[-1]
            print(f"{last.name}: {'time was over' if last.code is None else last.code}: {last.last[:120]}", flush=True)
    return outcomes


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="gpu_session", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where the files go")
    parser.add_argument("--name", default="gpu", help="of this GPU, for the files' names (default gpu)")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="S", help="seconds in all (default 570)")
    parser.add_argument("--only", default="", metavar="TEXT", help="steps whose name has TEXT")
    args = parser.parse_args(argv)
    folder = Path(args.out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [step for step in steps(args.name, folder) if args.only in step.name]
    if not chosen:
        names = ", ".join(step.name for step in steps(args.name, folder))
        parser.error(f"--only: got {args.only!r}, expected part of one of: {names}")
    outcomes = run(folder, args.budget, chosen)
    print(markdown(outcomes))
    return 0 if all(outcome.code == 0 for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
