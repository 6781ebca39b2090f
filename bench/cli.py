"""The `lanterne` command: finds the sub-command, parses its options, turns errors into exit codes."""

import argparse
import errno
import os
import re
import signal
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from lanterne import __version__
from lanterne.bench.output.given_options import GivenOptions
from lanterne.bench.output.report import before_output, check_outputs
from lanterne.bench.output.units import integer
from lanterne.bench.removed import refuse_removed
from lanterne.errors import InputError, LanterneError, PeerFailed, Unavailable, did_you_mean, one_of
from lanterne.transport.job.bootstrap import in_a_job, launched_rank

# name -> (module of this folder, one line of help). A module has add_arguments(parser) and run(args) -> exit code, and
# is imported only when its command is called, so that --help stays instant. Of two names that fit, the longer one wins.
COMMANDS: dict[str, tuple[str, str]] = {
    "info": ("info", "what this machine offers: MPI, UCX, NCCL, GPUs, transports; versions"),
    "demo": ("demo.command", "watch it work: a link becomes slow, is noticed, found, worked around, and heals"),
    "launch": ("launch", "start a job of ranks here; those that fail are started again"),
    "bench": ("collective.all_reduce", "benchmark a collective, with and without a late rank"),
    "lab": ("lab.command", "run a command on every host of an emulated cluster with rate-limited links"),
    "schedule": ("collective.schedule", "make, check, price, draw or export a collective schedule"),
    "cost": ("collective.cost", "alpha-beta study over sizes, rank counts and delays"),
    "study": ("topology.command", "what a late rank costs on a cluster, with each algorithm; is auto right on any"),
    "pipeline plan": ("pipeline.plan", "plan a pipeline for slow links, unequal stages and little memory"),
    "pipeline simulate": ("pipeline.simulate", "price a pipeline plan under other delays, or with blocking sends"),
    "pipeline run": ("pipeline.run", "run pipeline plans on real processes over emulated links, against the simulator"),
    "pipeline train": ("train.train", "train a small GPT on text by pipeline, data and tensor parallelism"),
    "pipeline predict": ("pipeline.predict", "predict an iteration on real GPUs whose links got slow"),
    "pipeline calibrate": ("pipeline.calibrate", "find what messages cost on real devices, from recorded runs"),
    "pipeline sweep": ("pipeline.sweep", "draw makespan over link delay, bandwidth or memory, one line per scheduler"),
    "pipeline partition": ("pipeline.partition", "divide layers over stages on unequal devices"),
    "detect": ("failslow.detect", "find when a job became slow and when it recovered, in its iteration times"),
    "locate": ("failslow.locate", "say which worker, link or stage makes recorded steps long, or that it is the data"),
    "validate": ("failslow.validate", "find out in seconds which rank computes slowly and which link is slow"),
    "watch": ("failslow.watch", "run a program and say when it becomes slow, since when, and because of whom"),
    "serve": ("failslow.serve", "one page on loopback: the jobs watched here, their incidents, hosts' histories"),
    "history": ("failslow.history", "which hosts were named across jobs: chronic, or a burst"),
    "rebalance": ("failslow.rebalance", "distribute microbatches over groups of different speed"),
    "experiment": ("papers.experiment", "redo a figure of the papers: table, JSON and plot"),
    "bench p2p": ("collective.p2p", "benchmark point to point: latency, one way, both ways, against bare mpi4py"),
    "bench deaths": ("scores.deaths", "benchmark how soon survivors learn that a rank was killed"),
    "bench rejoins": ("scores.rejoins", "benchmark jobs whose ranks are killed, which go on and take them back"),
    "bench enduring": ("scores.enduring", "benchmark what being able to go on costs while all is well"),
    "bench splits": ("scores.splits", "benchmark the memory of communicators that are split and closed"),
    "bench strangers": ("scores.strangers", "benchmark a running job under forged connections to its ports"),
    "bench persistence": ("scores.persistence", "benchmark a late rank that is named wrongly, or absent"),
    "bench mpi": ("scores.peers.mpi_peers", "benchmark all-reduce against MPI's own and a plain ring over mpi4py"),
    "bench calls": ("scores.speed.calls", "benchmark small calls, calls of a megabyte and CPU time against MPI's own"),
    "bench lab-peers": ("scores.peers.lab_peers", "compare with MPICH, Open MPI and Gloo on the emulated cluster"),
    "bench ddp": ("scores.peers.ddp", "train a model by PyTorch's DDP over gloo and over lanterne, in turn"),
    "bench torch-pipelining": (
        "scores.peers.torch_pipelining",
        "train a model by torch.distributed.pipelining and by lanterne, the same plans in turn",
    ),
    "bench lab-arrivals": (
        "scores.peers.lab_arrivals",
        "benchmark all-reduce under patterns of arrivals on the emulated cluster",
    ),
    "bench schedules": ("scores.speed.schedules", "benchmark generating and checking of collective schedules"),
    "bench pipeline": ("scores.speed.planning", "benchmark planning, checking and simulating of pipelines"),
    "bench planner": (
        "scores.speed.planner_gaps",
        "benchmark the planner: how far from the optimum, and how long it takes",
    ),
    "bench delegate": (
        "scores.rails.delegates",
        "benchmark delegates against inline sends: iterations, cost of a send",
    ),
    "bench failover": (
        "scores.rails.failover",
        "benchmark how long a pipeline stalls when a rail dies amid an iteration",
    ),
    "bench train": ("scores.speed.training", "benchmark training by a pipeline against training in one process"),
    "bench failslow": (
        "scores.speed.watching",
        "benchmark what it costs to be watched and to redistribute microbatches",
    ),
    "bench kernels": ("scores.speed.kernels", "benchmark the reductions of one CPU or GPU against a plain copy"),
    "simulate": ("scores.simulation.simulate", "run jobs from seeds, with deaths, cuts, lost packets; see what breaks"),
    "replay": ("scores.simulation.replay", "replay a simulated job step by step, and shrink it"),
    "bench gpu": ("scores.gpu.command", "measure the GPU path: reductions, staging, delays; writes a report"),
}

# These run the user's program, whose exit code they pass on; codes of a `lanterne` that was told to stop.
USERS_PROGRAM, STOPPED = ("launch", "watch", "lab"), (128 + signal.SIGHUP, 128 + signal.SIGINT, 128 + signal.SIGTERM)

# These start jobs of their own and compare them: not from inside a job.
STARTS_JOBS = (
    *("lab", "bench deaths", "bench rejoins", "bench enduring", "bench strangers", "bench failover"),
    *("bench lab-peers", "bench lab-arrivals", "bench ddp", "bench torch-pipelining"),
)

# Characters of an error: of what it quotes, of the middle of a path, and in all.
MOST_QUOTED, MOST_PATH, MOST_TEXT = 80, 100, 500

USAGE = "usage: lanterne COMMAND [OPTION ...]\n\n"
DESCRIPTION = "Collectives and pipelines that stay fast although one rank is late or one link is slow.\n\ncommands:\n"
EPILOG = """
* redoes figures of our own, and is in a checkout of lanterne only
exit codes: 0 ok; 1 wrong result, a bar missed with --check, something slow (validate), or a rank lost; 2 usage;
3 not available here; 130 interrupted, 143 terminated
sizes like 64K or 1GiB, times like 50ms or 3us; `lanterne COMMAND --help` teaches each command
"""


def help_text() -> str:
    """What `lanterne --help` prints; commands that need a checkout are marked."""
    width = max(map(len, COMMANDS)) + 2
    marks = {name: " *" if module.startswith(("papers.", "scores.")) else "" for name, (module, _) in COMMANDS.items()}
    lines = (f"  {name.ljust(width)}{line}{marks[name]}\n" for name, (_, line) in COMMANDS.items())
    return USAGE + DESCRIPTION + "".join(lines) + EPILOG


def find_command(argv: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """(name, remaining words) of the command that `argv` begins with; the name is None where there is none."""
    for length in (2, 1):
        name = " ".join(argv[:length])
        if len(argv) >= length and name in COMMANDS:
            return name, argv[length:]
    return None, argv


def family(name: str) -> list[str]:
    """The commands of two words of which `name` is the first, such as "bench p2p"."""
    return [other for other in COMMANDS if other.startswith(f"{name} ")]


def unknown(argv: Sequence[str]) -> str:
    """What is wrong with `argv`, which begins with no command, and what there is instead."""
    known = family(argv[0])
    if known and len(argv) == 1:
        return f"command: got {argv[0]!r}, expected one of {', '.join(known)}"
    return f"command: {one_of(' '.join(argv[: 2 if known else 1]), known or COMMANDS)}"


# What argparse says, and how we say it: what, got, expected.
WORDS = (
    (r"^argument ", ""),
    (r"invalid int value: (.*)$", r"got \1, expected a whole number"),
    (r"invalid float value: (.*)$", r"got \1, expected a number"),
    (r"expected one argument$", "got nothing, expected a value"),
)


class Parser(argparse.ArgumentParser):
    """Argument errors are InputErrors: one line, like every other bad input."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # So that the value in `--delay -5ms` is no option, and the command can say what is wrong with it.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self.register("type", int, integer)
        self._given: dict[str, str] = {}

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Called for what stands on the command line only, not for defaults.
        if action.option_strings:
            self._given[action.dest] = max(action.option_strings, key=len)
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, one_of(value, map(str, action.choices)))

    def parse(self, words: Sequence[str]) -> GivenOptions:
        """The options that `words` give; of one that there is not, the error names one that is close."""
        try:
            found, left = self.parse_known_args(words, GivenOptions())
        except InputError:
            # Where a mistyped option is required, argparse speaks of the missing one only.
            names = (word.partition("=")[0] for word in words if word.startswith("--"))
            for name in names:
                if name not in self._option_string_actions and self._hint(name):
                    self._refuse_option(name)
            raise
        option = next((word.partition("=")[0] for word in left if word.startswith("-")), None)
        if option is not None:
            self._refuse_option(option)
        if left:
            self.error(f"got {' '.join(left)!r} too many, expected nothing more")
        found.give(self._given)
        return found

    def _hint(self, option: str) -> str:
        return did_you_mean(option, self._option_string_actions)

    def _refuse_option(self, option: str) -> NoReturn:
        self.error(f"option: got {option!r}{self._hint(option)}, expected one that the help lists")

    def error(self, message: str) -> NoReturn:
        for theirs, ours in WORDS:
            message = re.sub(theirs, ours, message)
        raise InputError(f"{message} (see `{self.prog} --help`)")


def is_told_by_launcher(error: LanterneError) -> bool:
    """Whether `error` is another rank's death by a signal, which our launcher tells once for all ranks."""
    by_signal = isinstance(error, PeerFailed) and error.reason.startswith("killed by signal")
    return by_signal and "LANTERNE_JOB" in os.environ


def _module_of(name: str) -> ModuleType:
    module = f"lanterne.bench.{COMMANDS[name][0]}"
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in ("lanterne.bench.papers", "lanterne.bench.scores"):
            raise
        raise Unavailable(f"{name}: redoes figures of our own, and is in a checkout of lanterne only") from None


def build_parser(name: str) -> Parser:
    """The parser of command `name`; imports its module."""
    module = _module_of(name)
    parser = Parser(
        prog=f"lanterne {name}",
        description=module.__doc__,
        epilog=f"{name} also has: {', '.join(family(name))}" if family(name) else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)
    return parser


def _tells_times(name: str) -> bool:
    """Whether command `name` measures times without looking itself at what others do on the machine."""
    times = COMMANDS[name][0].startswith("scores.") and name not in ("simulate", "replay")
    return (times or name in ("bench p2p", "pipeline run")) and not in_a_job()


def _measured(args: argparse.Namespace) -> int:
    """The exit code of a command that measures times; it ends with a line if others kept the machine busy meanwhile."""
    from lanterne.bench.output.load import busy_note
    from lanterne.collectives.auto.load_meter import LoadMeter

    meter = LoadMeter()
    code: int = args.run(args)
    if note := busy_note(meter.foreign_cores()):
        print(note, file=sys.stderr)
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: sys.argv) and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # closed; the first file that is opened must not take its number
        sys.stdout = open(os.open(os.devnull, os.O_WRONLY), "w")  # noqa: SIM115
        print("lanterne: cannot write standard output: it is closed", file=sys.stderr)
        return 1
    if argv[:1] == ["help"] and argv[1:]:
        argv = [*argv[1:], "--help"]
    if not argv or argv[0] in ("-h", "--help", "help"):
        (sys.stdout if argv else sys.stderr).write(help_text())
        return 0 if argv else 2
    if argv[0] == "--version":
        print(f"lanterne {__version__}")
        return 0
    text: object
    try:
        refuse_removed(argv)
        name, rest = find_command(argv)
        if name is None:
            raise InputError(unknown(argv))
        if name in STARTS_JOBS and in_a_job():
            raise InputError(f"{name}: got a job around it, expected none: it starts its own")
        args = build_parser(name).parse(rest)
        check_outputs(args)
        before_output(partial(args.refuse_unread, late=False) if launched_rank() == 0 else None)
        code = _measured(args) if _tells_times(name) else args.run(args)
        sys.stdout.flush()
        if code == 0 and launched_rank() == 0 and name not in USERS_PROGRAM:
            args.refuse_unread()
        # A signal that ended a rank is told in words; only the user's own program has codes of its own.
        return 1 if code >= 128 and name not in USERS_PROGRAM and code not in STOPPED else code
    except (InputError, Unavailable) as error:
        code, text = (2 if isinstance(error, InputError) else 3), error
        if launched_rank() != 0 and ("MASTER_ADDR" not in os.environ or "LANTERNE_LAUNCHER" in os.environ):
            return code  # every rank of a job finds the same; one of them says it, unless each has a host of its own
    except LanterneError as error:
        code, text = 1, error
        if getattr(error, "told", False) or is_told_by_launcher(error):
            return code  # the rank that it came from says it, or who started it
    except MemoryError as error:
        code, text = 1, ": ".join(filter(None, ("out of memory", str(error))))
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):  # a name that only the user can have given
            code, text = 2, f"cannot read {error.filename}: {error.strerror}"
        elif error.errno == errno.ENOSPC:
            # What is left in the buffer must not fail again when Python ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code, text = 1, f"cannot write standard output: {error.strerror}"
        else:
            raise
    except KeyboardInterrupt:
        code, text = 130, "interrupted"
    finally:
        before_output(None)
    print(f"lanterne: {in_short(str(text))}", file=sys.stderr)
    return code


def in_short(text: str) -> str:
    """Return an error in one line, what it quotes cut to MOST_QUOTED characters, and no longer than MOST_TEXT."""
    half = MOST_QUOTED // 2
    text = re.sub(rf"'([^']{{{half}}})[^']{{4,}}([^']{{{half}}})'", r"'\1...\2'", " ".join(text.split("\n")))
    text = re.sub(rf"(\S{{{MOST_QUOTED}}})\S{{{MOST_PATH},}}(\S{{{MOST_QUOTED}}})", r"\1...\2", text)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} ..."
