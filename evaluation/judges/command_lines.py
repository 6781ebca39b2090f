"""Generated command lines: does any end in a traceback, not at all, or in an error that is too long to read?

  ./run evaluate judges.command_lines --lines 1000 --seed 7

Lines are drawn from the parsers of the users' commands. Each option stands in three lines at least, with values that
are right and with hostile ones: numbers beyond every range, broken files, devices, names of folders. Each line runs in
a folder of its own with a time limit. A line that is still at work then is interrupted and has to end.
"""

import argparse
import gzip
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lanterne.bench import cli
from lanterne.bench.output import report
from lanterne.bench.output.units import whole

# How often each option leads a line.
EACH = 3
LIMIT_S, TO_END_S = 30.0, 20.0
# An error is to be read in a terminal; a command reads files as a stream.
WIDEST, MOST_NBYTES = 600, 4 << 30
CODES = (0, 1, 2, 3, 130, 143)
# Names of environment variables that mark the processes of a line.
MARK = "LANTERNE_GENERATED_LINE"

STAGES = "--stages 3 --microbatches 4 --forward 10ms"
# Words that make a line of a command run; without them most options are never looked at.
BASES: dict[str, Sequence[str]] = {
    "launch": ("-n 2 -- true", "-n 2"),
    "bench": ("all_reduce -n 2 --transport local --bytes 1K --iterations 1 --warmup 0", "all_reduce -n 2 --bytes 1K"),
    "bench p2p": ("--bytes 8 --blocks 1",),
    "lab": ("--hosts 2 -- true", "--hosts 2"),
    "schedule": ("all_reduce -n 4", "plan.json", "broadcast -n 3 --algorithm tree"),
    "cost": ("all_reduce -n 4", "reduce -n 2,3"),
    "study": ("topology dgx-2x2",),
    "pipeline plan": (f"{STAGES} --scheduler zb_h1", "problem.json --scheduler gpipe"),
    "pipeline simulate": (f"zb.json {STAGES}", "zb.json"),
    "pipeline run": (f"{STAGES} --scheduler 1f1b --transport local --iterations 1 --warmup 0",),
    "pipeline train": (
        "-n 1 --data train.log --transport local --iterations 1 --blocks 1 --width 8 --heads 1 --length 8 --rows 1",
    ),
    "pipeline predict": ("case.json",),
    "pipeline calibrate": ("runs.json",),
    "pipeline sweep": (f"{STAGES} --at 0ms,9ms --scheduler 1f1b",),
    "pipeline partition": ("--layers 6 --stages 2", "--times 1,2,3 --speeds 1,2"),
    "detect": ("times.csv", "train.log --pattern 'took ([0-9.]+)'"),
    "locate": ("trace.csv", "."),
    "validate": ("-n 2 --transport local --repetitions 1 --bytes 64K --limit 2s",),
    "watch": ("-- true", "-n 2 -- true"),
    "history": ("hosts.jsonl",),
    "rebalance": ("--times 1,2,3 --microbatches 12",),
    "demo": ("-n 3 --transport local --seconds 1",),
}
# These serve until they are ended.
SERVING = ("serve", "watch")
NUMBERS = ("0", "-1", "2", "3", "1.5", "nan", "inf", "-inf", "1e309", "18446744073709551616", "99999999999999999999999")
WORDS = (
    "",
    " ",
    "-",
    "--",
    "=",
    ",",
    ",,",
    "a=b",
    "0=1",
    "1=",
    "%s",
    "{}",
    "ünïcode",
    "\udcff",
    "x" * 5000,
    "1,2",
    "a:b",
)
TIMES = ("0", "1ms", "2s", "-1ms", "1e300s", "1", "ms", "1ms,1ms")
SIZES = ("1K", "64K", "0", "-1", "1.5", "99999T", "18446744073709551616", "K", "1K,2K")
RATES = ("100mbit", "1GB/s", "0mbit", "mbit", "1=10mbit", "1e300gbit")
FILES: tuple[str, ...] = (
    "missing",
    "no/such/file.json",
    ".",
    "empty",
    "noise",
    "deep.json",
    "list.json",
    "wide.csv",
    "zeros.gz",
    "loop",
)
FILES += ("times.csv", "trace.csv", "plan.json", "problem.json", "zb.json", "/dev/null", "/dev/zero", "-")
HOSTILE = (*NUMBERS, *WORDS, *TIMES, *SIZES, *RATES, *FILES)
RIGHT = {
    "N": ("1", "2", "3"), "K": ("1", "2"), "M": ("2", "4"), "R": ("0", "1"), "S": ("1", "2"), "P": ("1", "2"),
    "T": ("1ms", "10ms"), "TIME": ("1ms",), "SIZE": ("1K", "64K"), "RATE": ("100mbit", "1GB/s"),
    "NAME": ("ring", "best"),
    "FILE": ("out.json", "out.png", "out.csv"), "DIR": (".",), "SECONDS": ("1",), "I=T": ("1=5ms",), "ADDR": ("0",),
}  # fmt: skip


class LineOutcome(NamedTuple):
    """How a line ended.

    Attributes: `fault`: "" for none, else traceback, endless, left processes, exit code, memory or wide error;
        `limited`: it was interrupted at the time limit.
    """

    words: tuple[str, ...]
    code: int
    seconds: float
    fault: str
    limited: bool
    last: str


def make_files(folder: Path) -> None:
    """Fill `folder` with the files that lines name, right ones and broken ones."""
    examples = Path(cli.__file__).resolve().parent.parent / "examples"
    for name in ("times.csv", "trace.csv"):
        shutil.copy(examples / name, folder)
    shutil.copy(examples / "pipeline.json", folder / "problem.json")
    shutil.copy(Path(__file__).resolve().parent.parent / "papers" / "adaptra" / "h800_runs.json", folder / "runs.json")
    runs = json.loads((folder / "runs.json").read_text())
    case = dict((runs["runs"] if isinstance(runs, dict) else runs)[0])
    case.pop("slow_ms", None)
    (folder / "case.json").write_text(json.dumps(case))
    (folder / "train.log").write_text("".join(f"step {i} took {1 + i % 3 / 100}\n" for i in range(60)))
    (folder / "hosts.jsonl").write_text('{"what": "job", "job": "j", "hosts": ["a"], "time_s": 1.0}\n')
    (folder / "empty").touch()
    (folder / "noise").write_bytes(random.Random(0).randbytes(4096))
    (folder / "deep.json").write_text("[" * 100_000)
    (folder / "list.json").write_text('[1, "a", {"stages": -1, "phases": {}, "problem": []}]')
    (folder / "wide.csv").write_text(",".join(f"column_{i}" for i in range(200_000)) + "\n" + ",".join(["1"] * 200_000))
    with gzip.open(folder / "zeros.gz", "wb", 9) as file:
        for _ in range(1024):
            file.write(bytes(1 << 20))
    (folder / "loop").symlink_to("loop")
    for name, line in (
        ("plan.json", "schedule all_reduce --algorithm ring -n 4 --format json --output"),
        ("zb.json", f"pipeline plan {STAGES} --scheduler zb_h1 --json"),
    ):
        cli.main([*line.split(), str(folder / name)])


def draw_lines(count: int, seed: int) -> list[tuple[str, tuple[str, ...]]]:
    """Return at least `count` (command, words), in which each option of each command leads EACH lines."""
    choose = random.Random(seed)
    actions = {name: options_of(name) for name in cli.COMMANDS}
    leading = [(name, action) for name, each in actions.items() for action in each] * EACH
    leading += choose.choices(leading, k=max(0, count - len(leading)))
    choose.shuffle(leading)
    return [(name, draw_line(choose, name, action, actions[name])) for name, action in leading]


def options_of(name: str) -> list[argparse.Action]:
    """Return the options of command `name`, but for --help, or one that stands for none."""
    found = [
        action for action in cli.LANTERNE.build_parser(name)._actions if action.option_strings and action.dest != "help"
    ]
    return found or [argparse.Action([], "none", nargs=0)]


def draw_line(
    choose: random.Random, name: str, lead: argparse.Action, others: Sequence[argparse.Action]
) -> tuple[str, ...]:
    """Return words of command `name` with option `lead` and up to two others of it."""
    base = choose.choice(BASES.get(name, ("",))) if choose.random() < 0.85 else ""
    before, dashes, behind = base.partition(" -- ")
    words = [*name.split(), *_unquoted(before)]
    for action in [lead, *choose.sample(others, min(len(others), choose.choice((0, 0, 1, 2))))]:
        if action.option_strings:
            words += [choose.choice(action.option_strings), *_value(choose, action)]
    return (*words, *([dashes.strip()] if dashes else []), *behind.split())


def _unquoted(text: str) -> list[str]:
    return [word.strip("'") for word in text.replace("took ([0-9", "took~([0-9").split()]


def _value(choose: random.Random, action: argparse.Action) -> list[str]:
    if action.nargs == 0:
        return []
    if action.choices and choose.random() < 0.6:
        return [str(choose.choice(list(action.choices)))]
    metavar = str(action.metavar).partition(",")[0].partition("[")[0]
    if metavar in RIGHT and choose.random() < 0.5:
        return [choose.choice(RIGHT[metavar])]
    return [choose.choice(HOSTILE)]


def run_line(name: str, words: Sequence[str], files: Path, limit_s: float) -> LineOutcome:
    """Run a line in a process of its own, in a folder with copies of `files`."""
    with tempfile.TemporaryDirectory(prefix="lanterne-line-") as folder:
        shutil.copytree(files, folder, symlinks=True, dirs_exist_ok=True)
        output = Path(folder) / ".output"
        began_s = time.monotonic()
        mark = f"{os.getpid()}-{began_s}"
        child = os.fork()
        if child == 0:
            _be_the_line(words, folder, output, mark)
        found = _ended(child, limit_s)
        limited = found is None
        if limited:
            # The child is not reaped yet, so its number is its own.
            os.killpg(child, signal.SIGTERM if name in SERVING else signal.SIGINT)
            found = _ended(child, TO_END_S)
        seconds = time.monotonic() - began_s
        left = _left(mark)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if found is None:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return LineOutcome(tuple(words), -1, seconds, "endless", True, "")
        status, nbytes = found
        text = output.read_text(errors="replace")
        code = os.waitstatus_to_exitcode(status)
        return LineOutcome(tuple(words), code, seconds, _fault(code, text, nbytes, left), limited, text[-300:])


def _fault(code: int, text: str, nbytes: int, left: Sequence[int]) -> str:
    if "Traceback (most recent call last)" in text:
        return "traceback"
    if code not in CODES:
        return f"exit code {code}"
    if left:
        return "left processes"
    if nbytes > MOST_NBYTES:
        return "memory"
    if code == 2 and max(map(len, text.splitlines()), default=0) > WIDEST:
        return "wide error"
    return ""


def _be_the_line(words: Sequence[str], folder: str, output: Path, mark: str) -> None:
    code = 99
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        os.chdir(folder)
        os.environ |= {MARK: mark, "TMPDIR": folder, "LANTERNE_TIMEOUT_S": "20"}
        tempfile.tempdir = None
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        file = os.open(output, os.O_WRONLY | os.O_CREAT)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1, errors="backslashreplace")
        sys.argv = ["lanterne", *words]
        code = cli.main(words)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _ended(child: int, limit_s: float) -> tuple[int, int] | None:
    """Return (status, most memory in bytes) of process `child` once it ends, None after `limit_s`."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            return status, usage.ru_maxrss << 10
        time.sleep(0.01)
    return None


def _left(mark: str) -> list[int]:
    """Return the processes that a line started and that still live two seconds after its end."""
    time.sleep(0.2)
    found: list[int] = []
    until_s = time.monotonic() + 2.0
    while time.monotonic() < until_s:
        found = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _has(pid, mark)]
        if not found:
            break
        time.sleep(0.1)
    return found


def _has(pid: int, mark: str) -> bool:
    try:
        return f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def run(lines: Sequence[tuple[str, tuple[str, ...]]], limit_s: float, jobs: int) -> Iterator[LineOutcome]:
    """Run `lines`, `jobs` at a time."""
    with tempfile.TemporaryDirectory(prefix="lanterne-lines-") as folder, ProcessPoolExecutor(jobs) as pool:
        files = Path(folder)
        make_files(files)
        yield from pool.map(partial(_run, files=files, limit_s=limit_s), lines)


def _run(line: tuple[str, tuple[str, ...]], files: Path, limit_s: float) -> LineOutcome:
    return run_line(*line, files, limit_s)


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw lines, run them, print what was wrong; exit code 1 if any was."""
    parser = argparse.ArgumentParser(description=str(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=whole(1), default=1000, metavar="N", help="at least (default 1000)")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="S", help="of the lines (default 0)")
    parser.add_argument("--command", metavar="NAME", help="lines of this command only")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS", help="of a line (default 30)")
    parser.add_argument("--jobs", type=whole(1), default=2, metavar="J", help="lines at a time (default 2)")
    parser.add_argument("--json", metavar="FILE", help="write all outcomes ('-' for standard output)")
    args = parser.parse_args(arguments)
    lines = draw_lines(args.lines, args.seed)
    if args.command:
        lines = [line for line in lines if line[0] == args.command]
    outcomes: list[LineOutcome] = []
    for outcome in run(lines, args.limit, args.jobs):
        outcomes.append(outcome)
        report.progress(f"{len(outcomes)} of {len(lines)} lines, {sum(bool(each.fault) for each in outcomes)} faults")
    report.progress("")
    if args.json:
        report.write_json(args.json, report.envelope(seed=args.seed, results=[each._asdict() for each in outcomes]))
    if args.json != "-":
        print_outcomes(outcomes)
    return int(any(each.fault for each in outcomes))


def print_outcomes(outcomes: Sequence[LineOutcome]) -> None:
    """Print each line that was wrong, and how many ended with which code."""
    for each in outcomes:
        if each.fault:
            print(f"{each.fault}: lanterne {' '.join(map(repr, each.words))[:300]}\n    {each.last!r}")
    codes = Counter("interrupted at the limit" if each.limited else f"code {each.code}" for each in outcomes)
    told = ", ".join(f"{count} {what}" for what, count in sorted(codes.items()))
    print(f"{len(outcomes)} lines: {told}; {sum(bool(each.fault) for each in outcomes)} faults")


if __name__ == "__main__":
    sys.exit(main())
