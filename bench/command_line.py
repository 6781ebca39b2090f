"""A command line: find the sub-command, parse its options, run it, and turn errors into exit codes.

`lanterne` (cli.py) and `./run evaluate` (evaluation/__main__.py) are two tables of commands for it.
"""

import argparse
import errno
import os
import re
import signal
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from lanterne import __version__
from lanterne.bench.output.given_options import GivenOptions
from lanterne.bench.output.report import before_output, check_outputs
from lanterne.bench.output.units import integer
from lanterne.errors import InputError, LanterneError, PeerFailed, Unavailable, did_you_mean, one_of
from lanterne.transport.job.bootstrap import in_a_job, launched_rank

# Exit codes of a command that a signal ended.
STOPPED = (128 + signal.SIGHUP, 128 + signal.SIGINT, 128 + signal.SIGTERM)

# Characters of an error: of what it quotes, of the middle of a path, and in all.
MOST_QUOTED, MOST_PATH, MOST_TEXT = 80, 100, 500

EPILOG = """
exit codes: 0 ok; 1 wrong result, a bar missed with --check, something slow (validate), or a rank lost; 2 usage;
3 not available here; 130 interrupted, 143 terminated
sizes like 64K or 1GiB, times like 50ms or 3us; `{prog} COMMAND --help` teaches each command
"""

# Patterns in argparse's errors, and their wording here: what, got, expected.
WORDS = (
    (r"^argument ", ""),
    (r"invalid int value: (.*)$", r"got \1, expected a whole number"),
    (r"invalid float value: (.*)$", r"got \1, expected a number"),
    (r"expected one argument$", "got nothing, expected a value"),
)


class Parser(argparse.ArgumentParser):
    """Parser whose errors are InputErrors of one line."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Without this the value in `--delay -5ms` would be an option, and the command could not say what is wrong.
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self.register("type", int, integer)
        self._given: dict[str, str] = {}

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        # Called for the words of the command line only, not for defaults.
        if action.option_strings:
            self._given[action.dest] = max(action.option_strings, key=len)
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, one_of(value, map(str, action.choices)))

    def parse(self, words: Sequence[str]) -> GivenOptions:
        """Return the options in `words`; the error for an unknown option names one that is close."""
        try:
            found, left = self.parse_known_args(words, GivenOptions())
        except InputError:
            # Where a mistyped option is required, argparse names the missing one only.
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


@dataclass(frozen=True)
class CommandLine:
    """Commands of one program.

    Attributes:
        prog: the program's name in help and errors.
        program: the module that runs it by `python -m`.
        package: where the commands' modules are.
        about: one line of help.
        commands: name -> (module, one line of help). A module has add_arguments(parser) and run(args) -> exit code. It
            is imported only for its command, so that --help stays instant. Of two names that fit, the longer one wins.
        starts_jobs: commands that start jobs of their own, so they refuse to run inside a job.
        measures: commands that measure times, and are followed by a note where other processes kept the machine busy.
        runs_programs: commands that pass on the exit code of the user's program.
        moved: old name of a command, or of a command and its option -> what to type instead.
    """

    prog: str
    program: str
    package: str
    about: str
    commands: Mapping[str, tuple[str, str]]
    starts_jobs: Collection[str] = ()
    measures: Collection[str] = ()
    runs_programs: Collection[str] = ()
    moved: Mapping[str, str] = field(default_factory=dict)

    def help_text(self, family: str = "") -> str:
        """Return the overview that --help prints: of all commands, or those of two words that begin with `family`."""
        names = self.family(family) if family else [*self.commands]
        width = max(map(len, names)) + 2
        lines = (f"  {name.ljust(width)}{self.commands[name][1]}\n" for name in names)
        first = f"{family} " if family else ""
        usage = f"usage: {self.prog} {first}COMMAND [OPTION ...]\n\n{self.about}\n\ncommands:\n"
        return usage + "".join(lines) + EPILOG.format(prog=self.prog)

    def find_command(self, argv: Sequence[str]) -> tuple[str | None, Sequence[str]]:
        """Return (name, remaining words) of the command that `argv` begins with; (None, argv) without one.

        Raises:
            InputError: the command has moved.
        """
        for length in (2, 1):
            name = " ".join(argv[:length])
            if len(argv) >= length and name in self.commands:
                return name, argv[length:]
            if name in self.moved:
                raise InputError(f"command: got {name!r}, expected {self.moved[name]}")
        return None, argv

    def refuse_moved(self, name: str, words: Sequence[str]) -> None:
        """Raise InputError where `words` of command `name`, up to their `--`, have an option that has moved."""
        for word in words[: [*words, "--"].index("--")]:
            option = word.partition("=")[0]
            if option.startswith("-") and (instead := self.moved.get(f"{name} {option}")):
                raise InputError(f"option: got {option!r}, expected {instead}")

    def family(self, name: str) -> list[str]:
        """Return the commands of two words whose first one is `name`, such as "bench p2p"."""
        return [other for other in self.commands if other.startswith(f"{name} ")]

    def unknown(self, argv: Sequence[str]) -> str:
        """Return an error for `argv`, which begins with no command."""
        known = self.family(argv[0])
        if known and len(argv) == 1:
            return f"command: got {argv[0]!r}, expected one of {', '.join(known)}"
        return f"command: {one_of(' '.join(argv[: 2 if known else 1]), known or self.commands)}"

    def build_parser(self, name: str) -> Parser:
        """Return the parser of command `name`; imports its module."""
        module = import_module(f"{self.package}.{self.commands[name][0]}")
        family = self.family(name)
        parser = Parser(
            prog=f"{self.prog} {name}",
            description=module.__doc__,
            epilog=f"{name} also has: {', '.join(family)}" if family else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(parser)
        parser.set_defaults(run=module.run, program=self.program)
        return parser

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the command line `argv` (default: sys.argv) and return its exit code."""
        argv = list(sys.argv[1:] if argv is None else argv)
        if sys.stdout is None:  # closed; the first file that is opened must not take its number
            sys.stdout = open(os.open(os.devnull, os.O_WRONLY), "w")  # noqa: SIM115
            print("lanterne: cannot write standard output: it is closed", file=sys.stderr)
            return 1
        if argv[:1] == ["help"] and argv[1:]:
            argv = [*argv[1:], "--help"]
        if not argv or argv[0] in ("-h", "--help", "help"):
            (sys.stdout if argv else sys.stderr).write(self.help_text())
            return 0 if argv else 2
        if argv[0] not in self.commands and self.family(argv[0]) and argv[1:] in (["--help"], ["-h"]):
            sys.stdout.write(self.help_text(argv[0]))
            return 0
        if argv[0] == "--version":
            print(f"lanterne {__version__}")
            return 0
        text: object
        name = None
        try:
            name, rest = self.find_command(argv)
            if name is None:
                raise InputError(self.unknown(argv))
            self.refuse_moved(name, rest)
            if name in self.starts_jobs and in_a_job():
                raise InputError(f"{name}: got a job around it, expected none: it starts its own")
            args = self.build_parser(name).parse(rest)
            check_outputs(args)
            before_output(partial(args.refuse_unread, late=False) if launched_rank() == 0 else None)
            code = _measured(args) if name in self.measures and not in_a_job() else args.run(args)
            sys.stdout.flush()
            if code == 0 and launched_rank() == 0 and name not in self.runs_programs:
                args.refuse_unread()
            # A signal that ended a rank is reported in words; only the user's own program has codes of its own.
            return 1 if code >= 128 and name not in self.runs_programs and code not in STOPPED else code
        except (InputError, Unavailable) as error:
            code, text = (2 if isinstance(error, InputError) else 3), error
            if launched_rank() != 0 and ("MASTER_ADDR" not in os.environ or "LANTERNE_LAUNCHER" in os.environ):
                return code  # every rank of a job finds the same; one reports it, unless each has a host of its own
        except LanterneError as error:
            code, text = 1, error
            if getattr(error, "told", False) or is_reported_by_launcher(error):
                return code
        except MemoryError as error:
            code, text = 1, ": ".join(filter(None, ("out of memory", str(error))))
        except BrokenPipeError:
            sys.stderr.close()
            return 1
        except OSError as error:
            if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):  # a name that only the user can have given
                code, text = 2, f"cannot read {error.filename}: {error.strerror}"
            elif error.errno == errno.ENOSPC:
                # The rest of the buffer must not fail again when Python ends.
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


def is_reported_by_launcher(error: LanterneError) -> bool:
    """Return whether `error` is another rank's death by a signal, which the launcher reports once for all ranks."""
    by_signal = isinstance(error, PeerFailed) and error.reason.startswith("killed by signal")
    return by_signal and "LANTERNE_JOB" in os.environ


def _measured(args: argparse.Namespace) -> int:
    """Run a command that measures times; a note follows if other processes kept the machine busy meanwhile."""
    from lanterne.bench.output.load import busy_note
    from lanterne.collectives.auto.load_meter import LoadMeter

    meter = LoadMeter()
    code: int = args.run(args)
    if note := busy_note(meter.foreign_cores()):
        print(note, file=sys.stderr)
    return code


def in_short(text: str) -> str:
    """Return an error in one line, its quotes cut to MOST_QUOTED characters, and no longer than MOST_TEXT."""
    half = MOST_QUOTED // 2
    text = re.sub(rf"'([^']{{{half}}})[^']{{4,}}([^']{{{half}}})'", r"'\1...\2'", " ".join(text.split("\n")))
    text = re.sub(rf"(\S{{{MOST_QUOTED}}})\S{{{MOST_PATH},}}(\S{{{MOST_QUOTED}}})", r"\1...\2", text)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]} ..."
