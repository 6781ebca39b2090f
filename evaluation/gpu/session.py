"""Everything that a GPU has to prove, in one command for a machine that one has for minutes: tests, then figures.

  PYTHONPATH=. python3 -m evaluation.gpu.session --out FOLDER --name h200

Runs in a checkout under the Python that it is started with, which needs NumPy, llvmlite, CuPy, Numba CUDA, NCCL and
pytest: what is missing fails by name. Nothing is installed, and no MPI is needed: ranks meet over UCX, or TCP without
it. Every step is a process with a time limit of its own, and what has hung is killed with all its children, so the next
step runs; a step is left out where the one that it needs has hung. On several GPUs each rank has its own; on one, three
ranks share it. Writes session.json, session.md (verdicts, figures, what failed and why, in 10,000 characters; also
printed at the end), session.log (all output) and the gpu-NAME.json and .md of `./run evaluate gpu`, the first three
anew after each step. A session that was ended, by its machine or by --budget, goes on where the same command is given
again: what has ended is not run again.
The exit code is 1 if a step failed or a bar was missed.
"""

import argparse
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from lanterne.bench.output import report
from lanterne.bench.output.units import format_figure, format_time
from lanterne.transport.job.launch import start_child
from lanterne.transport.nccl.binding import SHARED_GPU_ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
BUDGET_S = 840.0
# How much sooner than its step a job of several ranks is ended, so that what it has found is still read.
JOB_MARGIN_S = 12.0
# From telling a step whose time is over to abort, which makes it tell where it is, to killing it; and then, how long
# until it is left behind.
ABORT_S, KILL_S = 1.0, 5.0
CUDA_HOME = "/usr/local/cuda"
# Of the report: in all, of its parts, and lines of the output of a step that failed.
MAX_CHARS, FIGURES_CHARS, FAILURE_CHARS, LAST_LINES = 10_000, 4500, 1500, 8
# Of a step's output that are kept; and of that, which are shown where the step's output is the result.
LINES, SHOWN_LINES = 80, 24
# Of a job that measures, where the GPUs are fewer: of two ranks none is ever late.
LEAST_RANKS = 3
# In pytest's summary at the end, and, where that was never reached, in its lines of each test.
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?: - (.*))?$", re.MULTILINE)
FAILED_SO_FAR = re.compile(r"^(\S+::\S+) (?:FAILED|ERROR)", re.MULTILINE)
# Of what faulthandler tells, the innermost call of each thread.
STACK = re.compile(r"^(?:Current t|T)hread \S+.*most recent call first\):\n  File (.+)$", re.MULTILINE)
SKIPPED = re.compile(r"^SKIPPED .*$", re.MULTILINE)


@dataclass(frozen=True)
class SessionStep:
    """A command and how long it may take.

    `tests`: it is a run of pytest, each test of at most so many seconds. `needs`: the step that must not have hung.
    `shown`: the report has its output.
    """

    name: str
    arguments: tuple[str, ...]
    limit_s: float
    tests: float = 0.0
    needs: str = ""
    shown: bool = False


@dataclass(frozen=True)
class StepOutcome:
    """How a step ended: `code`, None if its time was over; `failed`, (test, why) pairs; `lines`, the end of its output;
    `where` it was when its time was over: the innermost lines of its threads' stacks, those of its children too;
    `shown`: see SessionStep.
    """

    name: str
    command: str
    code: int | None
    took_s: float
    failed: tuple[tuple[str, str], ...] = ()
    skipped: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    shown: bool = False

    @property
    def ended(self) -> str:
        """In a word."""
        if self.code is None:
            return "time was over" if self.took_s else "left out"
        return "ok" if self.code == 0 else f"code {self.code}"

    @property
    def last(self) -> str:
        return self.lines[-1] if self.lines else ""


def steps(name: str, folder: Path) -> tuple[SessionStep, ...]:
    """The steps, those that tell most first."""
    bench = ("-m", "evaluation", "gpu", "--check", "--iterations", "5")
    into = ("--out", str(folder), "--name", name, "--only")
    collectives, two = "tests/gpu/test_gpu_collectives.py", "nccl, 2 ranks"
    ranks = max(LEAST_RANKS, num_devices())
    over_nccl = ("-n", str(ranks), "--device", "cuda", "--transport", "nccl")
    late = ("--late-rank", str(ranks - 1), "--delay", "5ms")
    measured = ("all_reduce", *over_nccl, "--algorithm", "auto,ring,late_join,native", "--bytes", "1M,64M", *late)
    return (
        SessionStep("environment", ("-c", VERSIONS), 40),
        # Its group, unlike lanterne's core, has seen no device yet.
        SessionStep("torch", ("tests/gpu/test_gpu_torch.py",), 110, 100),
        SessionStep("figures of schedules", (*bench, *into, "schedules"), 90),
        SessionStep("figures of groups", (*bench, *into, "groups"), 45),
        SessionStep("figures of launches", (*bench, *into, "launches"), 45),
        SessionStep(
            "a late rank", ("-m", "lanterne", "bench", *measured, "--json", str(folder / "late.json")), 60, shown=True
        ),
        SessionStep("links", ("-m", "lanterne", "validate", *over_nccl), 45, shown=True),
        SessionStep("delays and staging", ("tests/gpu/test_gpu_delay.py", "tests/gpu/test_gpu_staging.py"), 70, 25),
        SessionStep("nccl, 1 rank", (collectives, "-k", "over_nccl and 1-"), 60, 60),
        # A process each: after a fault on the device it can do nothing more.
        SessionStep("figures of kernels", (*bench, *into, "kernels,grids"), 60),
        SessionStep("figures of staging", (*bench, *into, "staging,gemm,delegates"), 40),
        SessionStep("figures of delays", (*bench, *into, "delays"), 30),
        SessionStep(two, (collectives, "-k", "over_nccl and 2-"), 75, 75),
        SessionStep("figures of emulated links", (*bench, *into, "links"), 40, needs=two),
        SessionStep("staged", (collectives, "-k", "staged"), 45, 25),
        SessionStep("reductions", ("tests/gpu/test_gpu_reduce.py", *_workers()), 60, 30),
        SessionStep("nccl, 3 ranks", (collectives, "-k", "over_nccl and 3-"), 75, 75, needs=two),
        SessionStep(
            "the rest", (collectives, "tests/gpu/test_gpu_profile.py", "-k", "not over_nccl and not staged"), 65, 30
        ),
    )


def num_devices() -> int:
    """Return how many GPUs are here."""
    from lanterne.errors import LanterneError
    from lanterne.kernels.arrays import require_device

    try:
        return require_device()
    except LanterneError:
        return 0


def _workers() -> tuple[str, ...]:
    """Options that spread tests over the cores, where pytest-xdist is there."""
    return ("-n", str(min(8, os.cpu_count() or 1))) if importlib.util.find_spec("xdist") else ()


# Each part is told however the others end.
VERSIONS = """
import importlib.metadata as metadata, os, platform, shutil, subprocess, sys
failed = []
def part(what, tell):
    try:
        tell()
    except Exception as error:
        failed.append(what)
        print(f"{what}: {type(error).__name__}: {error}", flush=True)
def driver():
    asked = "name,driver_version,clocks.sm,clocks.mem,pcie.link.gen.current,pcie.link.width.current,memory.total"
    for options in ([f"--query-gpu={asked}", "--format=csv"], []):
        subprocess.run(["nvidia-smi", *options], timeout=10, check=not options)
def versions():
    for name in ("numpy", "llvmlite", "numba", "numba-cuda", "cupy-cuda13x", "cupy-cuda12x", "cuda-bindings",
                 "nvidia-nccl-cu13", "nvidia-nccl-cu12", "mpi4py", "mpich", "torch", "pytest", "pytest-timeout"):
        try:
            print(name, metadata.version(name))
        except metadata.PackageNotFoundError:
            print(name, "missing")
def info():
    from lanterne.bench.cli import main
    print("lanterne info:")
    main(["info"])
def nccl():
    from lanterne.transport.nccl.binding import load_nccl
    from lanterne.transport.nccl.versions import version_text

    print("NCCL", version_text(load_nccl().get_version()))
    print(*{line.split()[-1] for line in open("/proc/self/maps") if "libnccl" in line})
def device():
    from lanterne.kernels.cuda.runtime import CudaRuntime
    runtime = CudaRuntime()
    print("device", runtime.identity, runtime.device.attributes["MultiProcessorCount"], "multiprocessors")
def compilers():
    from lanterne.kernels.cuda.reduce_on_device import prepare
    for name in ("cuda-c", "numba"):
        part(f"kernels in {name}", lambda: prepare("sum", "float32", 2, name))
print(sys.executable, platform.python_version(), platform.platform(), os.cpu_count(), "cores")
told = ("CUDA", "NCCL", "LD_LIBRARY", "NVIDIA_VISIBLE", "CUPY", "LANTERNE")
print({name: value for name, value in os.environ.items() if name.startswith(told)})
for what, tell in (("nvidia-smi", driver), ("versions", versions), ("lanterne info", info), ("NCCL", nccl),
                   ("device", device), ("compilers", compilers)):
    part(what, tell)
print("failed:", *failed) if failed else print("nothing failed")
sys.exit(bool(failed))
"""


def environment(limit_s: float) -> dict[str, str]:
    """The variables of a step that may take `limit_s`."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    found = os.environ | {
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        # What is told to abort tells where it was.
        "PYTHONFAULTHANDLER": "1",
        "LANTERNE_REQUIRE": "gpu",
        "LANTERNE_TEST_JOB_S": str(max(5.0, limit_s - JOB_MARGIN_S)),
    }
    found.setdefault("NCCL_DEBUG", "WARN")
    if num_devices() < LEAST_RANKS:
        found |= SHARED_GPU_ENVIRONMENT
    # Or pytest cuts its reasons off.
    found["COLUMNS"] = "400"
    # Numba looks for NVVM there, which is beside the compiler and in no wheel that CuPy or torch bring.
    if Path(CUDA_HOME).is_dir():
        found.setdefault("CUDA_HOME", CUDA_HOME)
    return found


def command_of(step: SessionStep, limit_s: float) -> list[str]:
    """The command line of `step`."""
    if not step.tests:
        return [sys.executable, *step.arguments]
    options = ["-p", "no:cacheprovider", "-rfEs", "--tb=short", "-o", "verbosity_test_cases=1"]
    if importlib.util.find_spec("pytest_timeout"):
        options += ["-o", f"timeout={min(limit_s, step.tests):.0f}"]
    return [sys.executable, "-m", "pytest", *step.arguments, *options]


def run_step(step: SessionStep, limit_s: float, log: BinaryIO) -> StepOutcome:
    """Run `step` for `limit_s` at most, its output to the file `log`."""
    command = command_of(step, limit_s)
    started = time.monotonic()
    log.write(f"\n===== {step.name}: at most {limit_s:.0f} s\n".encode())
    log.flush()
    begin = log.tell()
    process = start_child(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env=environment(limit_s),
        start_new_session=True,
    )
    stop = None
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        code, stop = None, log.seek(0, os.SEEK_END)
    finally:
        _end(process, aborts=stop is not None)
    took_s = time.monotonic() - started
    text, after = (_text(log, *ends) for ends in ((begin, stop), (stop or log.seek(0, os.SEEK_END), None)))
    lines = [line for line in text.splitlines() if line.strip()]
    shown = " ".join(argument if len(argument) < 80 else "..." for argument in command[1:])
    failed = FAILED.findall(text) or [(test, "") for test in FAILED_SO_FAR.findall(text)]
    skipped, where = tuple(SKIPPED.findall(text)), tuple(STACK.findall(after))
    return StepOutcome(step.name, shown, code, took_s, tuple(failed), skipped, tuple(lines[-LINES:]), where, step.shown)


def _text(log: BinaryIO, begin: int, stop: int | None) -> str:
    """What is in the file `log` from byte `begin` up to `stop`; None: its end."""
    content = Path(log.name).read_bytes()[begin:stop]
    log.seek(0, os.SEEK_END)
    return content.decode(errors="replace")


def _end(process: subprocess.Popen[bytes], *, aborts: bool) -> None:
    """Kill `process` and all that it has started, in sessions of their own too; `aborts`: let them tell where they are.

    What the driver does not let go of is left behind.
    """
    pids = {process.pid, *_descendants(process.pid)}
    if aborts:
        _send(pids, signal.SIGABRT)
        time.sleep(ABORT_S)
        pids.update(_descendants(process.pid))
    _send(pids, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_S)


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """The pids of all processes that `pid` has started, and those these have; without those whose parent has ended."""
    children: dict[int, list[int]] = {}
    for folder in filter(str.isdigit, os.listdir("/proc")):
        try:
            # The name before the last parenthesis may hold anything.
            parent = Path(f"/proc/{folder}/stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(folder))
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def markdown(outcomes: Sequence[StepOutcome], folder: Path) -> str:
    """The session as a Markdown document, with the figures of `folder`."""
    lines = ["# GPU session", "", "| step | ended | took | last line |", "|---|---|---|---|"]
    for outcome in outcomes:
        last = outcome.last.replace("|", "\\|")[:110]
        lines.append(f"| {outcome.name} | {outcome.ended} | {format_time(outcome.took_s)} | {last} |")
    figures = figure_lines(folder)
    lines += ["", f"## Figures: {sum(line.startswith('MISSED') for line in figures)} missed of {len(figures)}", ""]
    lines += _cut(figures, FIGURES_CHARS)
    for outcome in outcomes:
        if outcome.code != 0 and outcome.lines and outcome.name != "environment":
            told = [*_failures(outcome), *(f"    was in {place}" for place in outcome.where)]
            lines += ["", f"## {outcome.name}: {outcome.ended}", "", *_cut(told, FAILURE_CHARS)]
        lines += [f"- {outcome.name}: {text[:300]}" for text in outcome.skipped]
        if outcome.code == 0 and outcome.shown:
            lines += ["", f"## {outcome.name}", "", *(f"    {line[:130]}" for line in outcome.lines[-SHOWN_LINES:])]
    for outcome in outcomes:
        if outcome.name == "environment":
            lines += ["", "## Environment", "", *outcome.lines]
    return "\n".join(_cut(lines, MAX_CHARS)) + "\n"


def _failures(outcome: StepOutcome) -> list[str]:
    """Tests by why they failed, most first; of what is no test, the end of its output."""
    tests: defaultdict[str, list[str]] = defaultdict(list)
    for test, why in outcome.failed:
        tests[why].append(test.rpartition("::")[2])
    groups = sorted(tests.items(), key=lambda group: -len(group[1]))
    found = [f"- {len(names)}: {why[:300]} ({', '.join(names)[:200]})" for why, names in groups]
    return found or [f"    {line[:200]}" for line in outcome.lines[-LAST_LINES:]]


def _cut(lines: Sequence[str], max_chars: int) -> list[str]:
    """As many of `lines` as fit."""
    kept: list[str] = []
    for number, line in enumerate(lines):
        max_chars -= len(line) + 1
        if max_chars < 0:
            return [*kept, f"... and {len(lines) - number} lines more, in session.log or the figures' files"]
        kept.append(line)
    return kept


def figure_lines(folder: Path) -> list[str]:
    """What the gpu-*.json of `folder` have measured, a line each; what missed its bar first."""
    lines = []
    for file in sorted(Path(folder).glob("gpu-*.json")):
        document = json.loads(file.read_text())
        if isinstance(document, list):
            # Of a job that was killed.
            document = {"failures": {}, "results": [], "figures": document}
        lines += [(True, f"{file.stem} {name}: {text.strip()[-300:]}") for name, text in document["failures"].items()]
        for c in document["results"]:
            missed = c["wrong"] or (c["bar"] is not None and c["ratio"] < c["bar"])
            speed = f"{c['bandwidth_gbytes_per_s']:.0f} GB/s"
            name = f"{c['comparison']}, {c['kernel']} {c['dtype']} k={c['inputs']}, {speed}"
            bar = "-" if c["bar"] is None else f">= {c['bar']:g}"
            lines.append((missed, f"{name}: {c['ratio']:.3f} ({bar}), {c['wrong']} wrong"))
        for figure in document["figures"]:
            value = format_figure(figure["value"], figure["unit"], figure["bar"])
            lines.append((not figure["ok"], f"{figure['name']}: {value} ({figure['bar']})"))
    return [f"{'MISSED ' * bool(missed)}{text}" for missed, text in sorted(lines, key=lambda line: not line[0])]


def run(folder: Path, budget_s: float, chosen: Iterable[SessionStep]) -> list[StepOutcome]:
    """Run `chosen` within `budget_s`, report after each; how they ended."""
    deadline = time.monotonic() + budget_s
    chosen = tuple(chosen)
    names = {step.name for step in chosen}
    before = {outcome.name: outcome for outcome in ended_before(folder)}
    outcomes = [outcome for name, outcome in before.items() if name not in names]
    with (folder / "session.log").open("a+b") as log:
        for step in chosen:
            if step.name in before:
                outcomes.append(before[step.name])
                continue
            limit_s = min(step.limit_s, deadline - time.monotonic())
            hung = [outcome.name for outcome in outcomes if outcome.code is None and outcome.name == step.needs]
            if limit_s < 5 or hung:
                why = f"needs {step.needs}, which hung" if hung else "the session's time was over"
                outcomes.append(StepOutcome(step.name, "", None, 0.0, lines=(f"not begun: {why}",)))
            else:
                outcomes.append(run_step(step, limit_s, log))
            document = report.envelope(steps=[asdict(outcome) for outcome in outcomes])
            report.write_json(str(folder / "session.json"), document)
            report.write_atomically(str(folder / "session.md"), markdown(outcomes, folder).encode())
            last = outcomes[-1]
            print(f"{last.name}: {last.ended}, {last.took_s:.0f} s: {last.last[:100]}", flush=True)
    return outcomes


def ended_before(folder: Path) -> list[StepOutcome]:
    """Return the steps that have ended in an earlier session with the same folder."""
    file = folder / "session.json"
    if not file.exists():
        return []
    found = [StepOutcome(**record) for record in json.loads(file.read_text())["steps"]]
    return [outcome for outcome in found if outcome.code is not None]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m evaluation.gpu.session",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where the files go")
    parser.add_argument("--name", default="gpu", help="of this GPU, for the files' names (default gpu)")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="S", help=f"seconds (default {BUDGET_S:g})")
    parser.add_argument("--only", default="", metavar="TEXT", help="steps whose name has TEXT")
    args = parser.parse_args(argv)
    folder = Path(args.out).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [step for step in steps(args.name, folder) if args.only in step.name]
    if not chosen:
        names = ", ".join(step.name for step in steps(args.name, folder))
        parser.error(f"--only: got {args.only!r}, expected part of one of: {names}")
    outcomes = run(folder, args.budget, chosen)
    print(markdown(outcomes, folder))
    return 0 if all(outcome.code == 0 for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
