"""Options of a command, which record that they were read: one that was given and has no effect is refused."""

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from lanterne.bench.output.report import OUTPUTS
from lanterne.errors import InputError
from lanterne.transport.own_python import own_python

# Read after the first output: names of files, and what only sets the exit code.
LATE = (*OUTPUTS, "check", "fail_on")


class GivenOptions(argparse.Namespace):
    """Values of a command line by option name.

    `_given` maps the name of each option on the command line to how it is spelled; `_read` holds the names that were
    read since. Copies made by `replaced` share both. `program` is the module that runs commands, for `own_command`.
    """

    def __init__(self, **values: Any) -> None:
        self._given: dict[str, str] = {}
        self._read: set[str] = set()
        super().__init__(**values)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            super().__getattribute__("_read").add(name)
        return super().__getattribute__(name)

    def give(self, given: Mapping[str, str]) -> None:
        """Record which options stand on the command line, none of them read yet."""
        self._given.update(given)
        self._read.clear()

    def replaced(self, **values: Any) -> "GivenOptions":
        """Return a copy with other values; what is read of it counts as read of this one."""
        copy = GivenOptions(**{name: value for name, value in vars(self).items() if not name.startswith("_")} | values)
        copy._given, copy._read = self._given, self._read
        return copy

    def own_command(self) -> list[str]:
        """Return the command that runs this command line again, once for each rank; the ranks read its options."""
        self._read.update(self._given)
        return [*own_python(), "-m", self.program, *sys.argv[1:]]

    def refuse_unread(self, *, late: bool = True) -> None:
        """Refuse an option that was given and never read.

        Args:
            late: whether those of LATE count too.

        Raises:
            InputError: there is one.
        """
        for name, spelled in self._given.items():
            if name not in self._read and (late or name not in LATE):
                raise InputError(f"{spelled}: got one, expected none: nothing in this call depends on it")
