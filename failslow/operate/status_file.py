"""A job's status in a file, written while somebody asks for it: to make it every second is much of what watching costs.

The time of a second file beside it is the question: who reads sets it (`StatusAsker`), who writes sets it back to 0
once the status is there, and writes it every second from then on, for ASKED_S after the latest question. While nobody
asks, the status's own time tells that the job lives.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

# How long a question holds, and how long to wait for the first answer: two looks of the job.
ASKED_S, ANSWER_S = 30.0, 2.5
LOOK_S = 0.02


class StatusFile:
    """Writes the status into `path`. Where that cannot be, it is not: the job matters more."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._question = Path(path), _question_of(Path(path))
        self._until_s = -inf

    def begin(self, status: Mapping[str, Any]) -> None:
        """Write the first status, so that somebody may ask for more."""
        with suppress(OSError):
            self._question.touch()
            os.utime(self._question, (0, 0))
        self.write(status)

    def look(self, make: Callable[[], Mapping[str, Any] | None]) -> None:
        """Write what `make` makes where somebody asks for it; to be called about once a second."""
        now_s, is_asked = time.monotonic(), _is_asked(self._question)
        if is_asked:
            self._until_s = now_s + ASKED_S
        if not is_asked and now_s >= self._until_s:
            with suppress(OSError):
                os.utime(self._path)
        elif (status := make()) is not None:
            self.write(status)
        if is_asked:
            with suppress(OSError):
                os.utime(self._question, (0, 0))

    def write(self, status: Mapping[str, Any]) -> None:
        """Write `status`; who reads finds it whole."""
        partial = self._path.with_name(f".{self._path.name}.new")
        # The folder may be gone, or full.
        with suppress(OSError):
            partial.write_text(json.dumps(status))
            partial.replace(self._path)


class StatusAsker:
    """Asks for statuses in files; any thread may."""

    def __init__(self) -> None:
        self._asked_s: dict[Path, float] = {}

    def ask(self, paths: Iterable[Path]) -> None:
        """Have the statuses in `paths`, all there are, written; wait for those that are not written each second yet."""
        began_s, known = time.monotonic(), self._asked_s
        questions = [_question_of(path) for path in paths]
        self._asked_s = dict.fromkeys(questions, began_s)
        for question in questions:
            # It may be gone.
            with suppress(OSError):
                os.utime(question)
        waiting = [question for question in questions if began_s - known.get(question, -inf) > ASKED_S / 2]
        while (waiting := [*filter(_is_asked, waiting)]) and time.monotonic() < began_s + ANSWER_S:
            time.sleep(LOOK_S)


def _question_of(path: Path) -> Path:
    """The file whose time asks for the status in `path`."""
    return path.with_name(f"{path.name}.asked")


def _is_asked(question: Path) -> bool:
    with suppress(OSError):
        return os.stat(question).st_mtime_ns > 0
    return False
