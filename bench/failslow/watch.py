"""Watch a program, unchanged, and say when it becomes slow, since when, and because of whom.

  lanterne watch -- python examples/train.py
  lanterne watch -n 4 -- python examples/train.py                     starts 4 ranks here
  mpiexec -n 4 lanterne watch -- python examples/train.py             or runs under the launcher that is there
  torchrun --nproc-per-node 4 --no-python lanterne watch -- python examples/train.py
  lanterne watch --json report.json -- python examples/train.py

Recorded are the calls of lanterne, mpi4py, cupy.cuda.nccl and torch.distributed: name, bytes, communicator, start and
end. From them alone come the iteration time, incidents as they happen (standard error), and at the end a report: how
long iterations took, what made them long, which rank came last, how often and by how much. A log is a ring of fixed
size in a folder; --folder names an empty one that all hosts share, else each host has a report of its own.

A call that does not end is told after 2 s (or 3 iterations): which ranks have not come to it, and which line of their
Python code they are at. It is an incident at once where one of them is dead, stopped or in another call, else after
--patience, or twice the longest such wait so far. Incidents are also files in --incidents, one JSON document each.
That iterations are slow since other work has the cores is told at once, and is an incident after 5 min.

  lanterne watch --listen 9470 --history hosts.jsonl -n 4 -- python examples/train.py
  lanterne watch --fail-on incident -n 4 -- python examples/train.py        exit code 1 if there was one
  lanterne watch --attach PID                                      joins a job that runs, by one of its ranks

A job that was not started with `lanterne watch` shows no calls. Of its ranks on this host --attach tells then what the
system tells: who is stopped, dead or stuck in the kernel, and of three ranks or more who is idle while the others
compute, computes while they are idle, or alone waits elsewhere while all stand still.

  lanterne watch --ras localhost:28028                             a job over NCCL that runs, started in whatever way

--ras asks the RAS service of one process of the job, each 2 s, and needs nothing in the program: it tells which ranks
have not made the calls that others have, which are dead, and which have an error.

--listen serves a page (http://127.0.0.1:9470/) and metrics for Prometheus (/metrics); elsewhere than on loopback it
asks for a token, LANTERNE_PAGE_TOKEN's or one that is printed. `lanterne serve` does so for whatever job is watched
here, `lanterne history` shows which hosts were named across jobs.

Calls that do not pass Python are not seen, such as the all-reduces of torch's DistributedDataParallel; the forward
calls before them are, which tell its iterations and who comes last. The exit code is the program's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lanterne.bench.failslow.outside import attach_outside, say
from lanterne.bench.failslow.ras_watch import PORT, watch_ras
from lanterne.bench.lab.command import resolve
from lanterne.bench.output import report
from lanterne.bench.output.options import add_json, add_listen, add_ranks
from lanterne.bench.output.units import format_count, format_nbytes, format_time, parse_time_s
from lanterne.errors import InputError, shown
from lanterne.failslow.operate.thresholds import Thresholds
from lanterne.failslow.record.recorder import FOLDER_VARIABLE, start_of
from lanterne.transport.job.bootstrap import launched_world_size
from lanterne.transport.job.launch import MAX_WORLD_SIZE, lives, start_child
from lanterne.transport.registry import usual_transport

if TYPE_CHECKING:
    from lanterne.failslow.operate.history import History
    from lanterne.failslow.operate.publisher import Publisher
    from lanterne.failslow.record.hangs import Hang
    from lanterne.failslow.record.iteration_log import Notice
    from lanterne.failslow.record.job_ledger import JobLedger
    from lanterne.failslow.record.watch import Reader

# How long the ranks of others may take to end after ours.
END_S = 3.0
MAX_FILES = 1 << 16
# In the folder of a job's logs: its status, which `lanterne serve` reads.
STATUS_FILE = "job.status"

SITE = """import sys
try:
    sys.path.append({root!r})
    try:
        from lanterne.failslow.record.adapters import start
    finally:
        sys.path.remove({root!r})
    start()
except Exception:
    pass
# The sitecustomize that this one hides.
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
if {site!r} in sys.path:
    sys.path.remove({site!r})
spec = PathFinder.find_spec("sitecustomize")
if spec is not None and spec.loader is not None:
    spec.loader.exec_module(module_from_spec(spec))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    add_ranks(parser, "--world-size")
    parser.add_argument(
        "--launcher",
        choices=("mpi", "direct"),
        help="of -n: mpiexec (default, where there is one), or torchrun's variables",
    )
    parser.add_argument("--folder", metavar="DIR", help="where the ranks' call logs meet: one that all hosts share")
    parser.add_argument(
        "--keep", action="store_true", help="leave the latest calls of each rank in --folder, for `lanterne locate`"
    )
    add_json(parser, "the report")
    parser.add_argument(
        "--incidents", default="lanterne-incidents", metavar="DIR",
        help="write each incident as JSON into DIR, which the first makes (default lanterne-incidents; 'none')",
    )  # fmt: skip
    parser.add_argument(
        "--patience", default=f"{Thresholds.patience_s:g}s", metavar="T",
        help="how long a rank that lives may not come to a call until that is an incident (default 30s)",
    )  # fmt: skip
    add_listen(parser)
    parser.add_argument("--history", metavar="WHERE", help="keep incidents by host in a file")
    parser.add_argument(
        "--thresholds", metavar="FILE", help="JSON: patience_s, status_s, slow_ratio, busy_s; read again on changes"
    )
    parser.add_argument("--fail-on", choices=("incident",), help="exit code 1 if there was one and the program's is 0")
    parser.add_argument("--attach", type=int, metavar="PID", help="watch the job of a process that runs already")
    parser.add_argument(
        "--ras", nargs="?", const=f"localhost:{PORT}", metavar="HOST:PORT",
        help=f"ask NCCL's RAS service of a job that runs (default localhost:{PORT})",
    )  # fmt: skip
    parser.add_argument("command", nargs="*", metavar="COMMAND", help="the program, after --")


def run(args: argparse.Namespace) -> int:
    """Run the program, watched, or watch one that runs; the program's exit code, 0 where that is not known."""
    if sum(map(bool, (args.attach is not None, args.ras is not None, args.command))) != 1:
        raise InputError("watch: expected one of a COMMAND after --, --attach PID and --ras HOST:PORT")
    command = resolve(args.command) if args.command else [f"pid {args.attach}" if args.ras is None else args.ras]
    if args.world_size is not None and not 1 <= args.world_size <= MAX_WORLD_SIZE:
        raise InputError(f"-n: got {args.world_size}, expected 1 to {MAX_WORLD_SIZE}")
    if args.launcher is not None and args.world_size is None:
        raise InputError(f"--launcher: got {args.launcher}, expected none without -n: no ranks are started")
    if parse_time_s(args.patience, "--patience") <= 0.0:
        raise InputError(f"--patience: got {args.patience}, expected more than 0")
    ours = args.world_size is not None or launched_world_size() == 1
    if ours or args.attach is not None:
        _check_operators(args)
    if args.json not in (None, "-") and not Path(args.json).resolve().parent.is_dir():
        raise InputError(f"--json: got {args.json}, whose folder does not exist")
    if args.incidents != "none" and Path(args.incidents).exists() and not Path(args.incidents).is_dir():
        raise InputError(f"--incidents: got {shown(args.incidents)}, expected a folder, or none yet")
    if args.incidents != "none" and not _can_be_made(Path(args.incidents)):
        raise InputError(f"--incidents: got {shown(args.incidents)}, which cannot be made there")
    if args.folder is not None and not Path(args.folder).is_dir():
        raise InputError(f"--folder: got {shown(args.folder)}, expected a folder that is there")
    if args.folder is not None and not os.access(args.folder, os.W_OK):
        raise InputError(f"--folder: got {shown(args.folder)}, expected a folder that can be written")
    if args.keep and args.folder is None:
        raise InputError("--keep: expected --folder, where the calls are left")
    if args.ras is not None:
        return watch_ras(args)
    if args.attach is not None:
        return attach(args, command)
    if args.fail_on and not ours:
        raise InputError("--fail-on: got a job that another launcher has started, whose exit code is its own")
    # Absolute: Python makes the entries of its path so, and the program may change its folder.
    folder = Path(args.folder or tempfile.gettempdir()).resolve() / _name(ours, args.folder)
    leads = prepare(folder)
    variables = {**os.environ, FOLDER_VARIABLE: str(folder), "PYTHONPATH": _path(folder)}
    if ours:
        return lead(args, command, folder, variables)
    # Another launcher's job: this process becomes the program, so that the launcher sees what it would see anyhow.
    if leads:
        # Of a job on several hosts only this one needs what they name.
        try:
            _check_operators(args)
        except BaseException:
            shutil.rmtree(folder)
            raise
        _detach(lambda program: follow(args, command, folder, program))
    sys.stdout.flush()
    os.execvpe(command[0], command, variables)


def _check_operators(args: argparse.Namespace) -> None:
    """Raise what is wrong with the options of metrics, history and thresholds, before anything starts."""
    from lanterne.failslow.operate.status_server import parse_address
    from lanterne.failslow.operate.thresholds import ThresholdFile

    if args.thresholds is not None:
        ThresholdFile(args.thresholds, Thresholds())
    if args.listen is not None:
        parse_address(args.listen, "--listen")
    _history(args)


def _name(ours: bool, shared: str | None) -> str:
    """The name of the folder of a job's logs: the same on all ranks that another launcher started."""
    if ours:
        return f"lanterne-watch-{os.getuid()}-{os.getpid()}-{time.monotonic_ns()}"
    if shared is not None:
        return "lanterne-watch"
    return f"lanterne-watch-{os.getuid()}-{os.getppid()}-{start_of(os.getppid())}"


def _path(folder: Path) -> str:
    """PYTHONPATH with the folder of our sitecustomize first."""
    return os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH")]))


def prepare(folder: Path) -> bool:
    """Make `folder`, with the sitecustomize that starts the recorder; False where another rank has made it."""
    root = str(Path(sys.modules["lanterne"].__path__[0]).resolve().parent)
    try:
        partial = Path(tempfile.mkdtemp(prefix=".lanterne-watch-", dir=folder.parent))
        (partial / "site").mkdir()
        (partial / "site" / "sitecustomize.py").write_text(SITE.format(root=root, site=str(folder / "site")))
        try:
            # One rank's succeeds, and what the others find is complete.
            partial.rename(folder)
            return True
        except OSError:
            shutil.rmtree(partial)
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                raise InputError(f"watch: {folder} belongs to somebody else") from None
            return False
    except OSError as error:
        raise InputError(f"watch: cannot make {folder}: {error.strerror}") from error


def put_away(folder: Path, *, keep: bool) -> None:
    """Remove the `folder` of a job's logs; where they are to `keep`, the calls are left beside it."""
    if keep:
        kept = folder.with_name(f"calls-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}")
        with suppress(OSError):
            kept.mkdir()
            for pattern in ("rank-*.calls", "group-*.json"):
                for path in folder.glob(pattern):
                    path.rename(kept / path.name)
            print(f"lanterne watch: the calls are left in {kept}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)


def _can_be_made(folder: Path) -> bool:
    """Whether `folder` is there, or may be made where it is named."""
    above = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return above.is_dir() and os.access(above, os.W_OK)


def _detach(task: Callable[[int], None]) -> None:
    """Run `task(pid of this process)` in a process of its own that outlives us, whoever ends us, and how."""
    program = os.getpid()
    if (child := os.fork()) != 0:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    try:
        # The launcher's own connections to its ranks among them.
        os.closerange(3, MAX_FILES)
        task(program)
    finally:
        os._exit(0)


def follow(args: argparse.Namespace, command: list[str], folder: Path, program: int) -> None:
    """Read the logs of a job that another launcher started until process `program` and the other ranks have ended."""
    watching = Watching(args, command, folder, launched_world_size(), _history(args))
    try:
        while lives(program):
            time.sleep(0.05)
        _wait_for_others(folder)
        _finish(args, command, watching)
    finally:
        put_away(folder, keep=args.keep)


def lead(args: argparse.Namespace, command: list[str], folder: Path, variables: dict[str, str]) -> int:
    """Run the program and read the logs of its ranks; print the report; the program's exit code."""
    code = watching = None
    try:
        watching = Watching(args, command, folder, args.world_size, _history(args))
        code = _start_ranks(args, command, variables) if args.world_size else _run_here(command, variables)
        return code or int(bool(args.fail_on and watching.reader.finish() and watching.ledger.incidents.count))
    finally:
        if watching is not None:
            _finish(args, command, watching, code)
        put_away(folder, keep=args.keep)


def attach(args: argparse.Namespace, command: list[str]) -> int:
    """Read the logs of a job that runs already until process --attach ends, or Ctrl-C; look at one without logs."""
    try:
        folder = _folder_of(args.attach)
    except OSError as error:
        raise InputError(f"--attach: cannot look at process {args.attach}: {error.strerror}") from error
    if folder is None:
        return attach_outside(args, command)
    watching = Watching(args, command, folder, None, _history(args))
    try:
        while lives(args.attach):
            time.sleep(0.05)
    except KeyboardInterrupt:
        pass
    _finish(args, command, watching)
    return int(bool(args.fail_on and watching.ledger.incidents.count))


def _folder_of(pid: int) -> Path | None:
    """The folder of the call logs of process `pid`, or of what it has started: it may be `lanterne watch` itself.

    Raises:
        OSError: nobody may look at it, or it is no more.
    """
    prefix, own = f"{FOLDER_VARIABLE}=".encode(), Path(f"/proc/{pid}")
    environments = [(own / "environ").read_bytes()]
    with suppress(OSError):
        for child in (own / "task" / str(pid) / "children").read_text().split():
            environments.append(Path(f"/proc/{child}/environ").read_bytes())
    words = [word for environment in environments for word in environment.split(b"\0") if word.startswith(prefix)]
    folders = (Path(os.fsdecode(word[len(prefix) :])) for word in words)
    return next((folder for folder in folders if folder.is_dir()), None)


class LiveTeller:
    """Says what happens on standard error, and has it kept."""

    def __init__(self, ledger: JobLedger) -> None:
        self.ledger = ledger

    def notice(self, notice: Notice) -> None:
        """Say it; if it is certain, have it written what has become of the incidents."""
        self._say(notice.text, self.ledger.notice(notice), notice.cause.evidence if notice.cause else None)

    def hang(self, hang: Hang) -> None:
        """Say it; if it is an incident, have it written."""
        self._say(hang.text, self.ledger.hang(hang), None)

    def look(self) -> None:
        """Every second: look at what hosts tell, and say what has become an incident since it lasts."""
        if files := self.ledger.look():
            self._say("it lasts: an incident by now", files, None)

    def _say(self, text: str, files: Sequence[Path], because: str | None) -> None:
        lines = [text, *([because] if because else []), *(f"written to {file}" for file in files)]
        say("\nlanterne watch:   ".join(lines))


class Watching:
    """A job that is watched: `reader` reads it, `ledger` keeps what happens. End it by `_finish`."""

    def __init__(
        self,
        args: argparse.Namespace,
        command: list[str],
        folder: Path,
        world_size: int | None,
        history: History | None,
    ) -> None:
        from lanterne.failslow.operate.history import told_patterns
        from lanterne.failslow.operate.publisher import Publisher
        from lanterne.failslow.operate.thresholds import ThresholdFile
        from lanterne.failslow.record.job_ledger import JobLedger, about_run
        from lanterne.failslow.record.job_log import JobLog
        from lanterne.failslow.record.watch import Reader

        usual = Thresholds(patience_s=parse_time_s(args.patience, "--patience"))
        thresholds = ThresholdFile(args.thresholds, usual) if args.thresholds else None
        job = JobLog(folder, world_size, usual)
        self.publisher: Publisher = Publisher(
            args.listen,
            folder / STATUS_FILE if args.attach is None else None,
            history=lambda: told_patterns(history),
        )
        self.ledger: JobLedger = JobLedger(
            job, about_run(command), None if args.incidents == "none" else args.incidents,
            history=history, thresholds=thresholds, publisher=self.publisher,
        )  # fmt: skip
        if (server := self.publisher.server) is not None:
            token = f"; token: {server.token}" if server.token else ""
            say(f"page at {server.url}, metrics at {server.url}metrics{token}")
        teller = LiveTeller(self.ledger)
        self.reader: Reader = Reader(job, teller.notice, teller.hang, self.ledger.finish, teller.look)


def _history(args: argparse.Namespace) -> History | None:
    from lanterne.failslow.operate.history import open_to_add

    return None if args.history is None else open_to_add(args.history, "--history")


def _finish(args: argparse.Namespace, command: list[str], watching: Watching, code: int | None = None) -> None:
    """Write and print the report; `code` is the program's exit code, None where only its launcher knows it."""
    found = watching.reader.finish() | {"exit_code": code}
    watching.publisher.close()
    # Whoever reads standard error may be gone; the file is written first.
    with suppress(OSError):
        if args.json:
            report.write_json(args.json, report.envelope(command=command, **found))
        sys.stdout.flush()
        print_report(found, sys.stderr)


def _start_ranks(args: argparse.Namespace, command: list[str], variables: dict[str, str]) -> int:
    from lanterne.transport.job.launch import launch

    ours = {name: variables[name] for name in (FOLDER_VARIABLE, "PYTHONPATH")}
    launcher = args.launcher or ("mpi" if usual_transport() == "mpi" else "direct")
    return launch(command, args.world_size, launcher=launcher, env=ours)


def _run_here(command: list[str], variables: dict[str, str]) -> int:
    """Run the program as a child that gets our signals and ends with us; its exit code, 128 + n for signal n."""
    # MPI's launcher speaks to the program through a file descriptor that it has inherited.
    child = start_child(command, env=variables, close_fds=False)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _frame: child.send_signal(number))
    while True:
        try:
            code = child.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:
            # A terminal sends Ctrl-C to the program too; what that makes of it decides.
            continue


def _wait_for_others(folder: Path) -> None:
    """Let the other ranks come to their ends."""
    deadline_s = time.monotonic() + END_S
    while time.monotonic() < deadline_s:
        pids = [path.stem.rpartition("-")[2] for path in folder.glob("rank-*.calls")]
        if not any(lives(int(pid)) for pid in pids):
            return
        time.sleep(0.05)


def print_report(found: dict[str, Any], file: TextIO) -> None:
    """The tables of a report: iterations, incidents, arrivals, calls."""
    iterations = found["iterations"]
    ranks = found["ranks"]
    ended = f"; the program ended with exit code {found['exit_code']}" if found["exit_code"] else ""
    heading = f"{len(found['reported'])} of {format_count(ranks, 'rank')} reported{ended}"
    print(f"# lanterne watch: {heading}", file=file)
    if iterations["count"]:
        print(
            f"# {format_count(iterations['count'], 'iteration')} of {format_count(iterations['calls'], 'call')}, "
            f"median {format_time(iterations['median_s'])}, p90 {format_time(iterations['p90_s'])}",
            file=file,
        )
    if found["paths"]:
        print(f"# calls of {', '.join(found['paths'])}", file=file)
    for note in found["notes"]:
        print(f"# {note}", file=file)
    for incident in found["incidents"]:
        relief = "and lasts" if incident["lasts"] else f"to {incident['relief']}"
        # What an iteration is, was taken otherwise then.
        of = f" (each of {format_count(incident['calls'], 'call')})" if incident["calls"] != iterations["calls"] else ""
        first = f"SLOW from iteration {incident['onset']} {relief}{of}: {incident['ratio']:.2f} times the usual time"
        print(f"{first}; {incident['cause']['evidence']}", file=file)
        for cause in incident["causes"][1:]:
            print(f"  from iteration {cause['since']}: {cause['evidence']}", file=file)
    for hang in found["hangs"]:
        ended = hang["ended_after_s"]
        print(f"{hang['text']}" + ("; to the end" if ended is None else f"; it went on after {ended:.1f} s"), file=file)
    if iterations["count"] and not found["incidents"] and not found["hangs"]:
        print("no incident", file=file)
    arrivals = found["arrivals"]
    if arrivals["matched"]:
        columns = [
            ("rank", ""),
            ("host", ""),
            ("calls", ""),
            ("came last", ""),
            ("share", "%"),
            ("late", "median"),
            ("", "max"),
            ("waited", "in all"),
        ]
        rows = [
            [
                rank["rank"],
                rank["host"],
                rank["calls"],
                rank["last"],
                f"{100 * rank['last'] / arrivals['matched']:.0f}",
                format_time(rank["late_median_s"]),
                format_time(rank["late_max_s"]),
                format_time(rank["waited_s"]),
            ]
            for rank in arrivals["ranks"]
        ]
        report.print_table(columns, rows, left=(0, 1), file=file)
    if found["calls"]:
        rows = [
            [c["name"], format_nbytes(c["nbytes"]) if c["nbytes"] >= 0 else "-", c["count"], format_time(c["mean_s"])]
            for c in found["calls"][:10]
        ]
        report.print_table([("call", ""), ("size", ""), ("count", ""), ("mean", "")], rows, file=file)
