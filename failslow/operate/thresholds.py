"""From when on something is told, and a file in which that can be changed while a job is watched."""

import json
import logging
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from lanterne.errors import InputError, one_of, shown

log: logging.Logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Thresholds:
    """From when on something is told.

    Attributes: `patience_s`: how long a rank that lives may not come to a call until that is an incident; `status_s`:
    how long until a line says so; `slow_ratio`: how many times the usual time an iteration must take for an incident
    (what the detector finds below is in the report, but no incident); `busy_s`: for how long iterations must be slow
    since other work has the cores until that is an incident: before, it is told and in the report, and is none.
    """

    patience_s: float = 30.0
    status_s: float = 2.0
    slow_ratio: float = 1.0
    busy_s: float = 300.0

    def to_json(self) -> dict[str, float]:
        """As a document."""
        return asdict(self)


USUAL_THRESHOLDS = Thresholds()


def read_thresholds(text: str, usual: Thresholds, where: str) -> Thresholds:
    """`usual` with what the JSON document `text` changes of it.

    Raises:
        InputError: no JSON object, an unknown name, or no positive number.
    """
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InputError(f"{where}: got {type(found).__name__}, expected an object, as in {usual.to_json()}")
    known = [field.name for field in fields(Thresholds)]
    for name, value in found.items():
        if name not in known:
            raise InputError(f"{where}: {one_of(name, known)}")
        # An int may be too large for a float.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 < value <= sys.float_info.max:
            raise InputError(f"{where}: {name}: got {value!r}, expected a positive number")
    return Thresholds(**(usual.to_json() | {name: float(value) for name, value in found.items()}))


class ThresholdFile:
    """Thresholds that follow a JSON file; what it does not name is as `usual` has it.

    Raises:
        InputError: the file cannot be read now. Later, that is logged once, and what held goes on holding.
    """

    def __init__(self, path: str | Path, usual: Thresholds) -> None:
        self._path, self._usual = Path(path), usual
        self._seen: tuple[int, int] | None = None
        try:
            self._seen = self._stamp()
            self.now: Thresholds = self._read()
        except IsADirectoryError:
            raise InputError(f"--thresholds: got {shown(path)}, a folder, expected a file") from None
        except OSError as error:
            raise InputError(f"--thresholds: cannot read {shown(path)}: {error.strerror}") from None

    def look(self) -> Thresholds | None:
        """The Thresholds, where they have changed; else None."""
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return None
            self._seen = stamp
            before, self.now = self.now, self._read()
        except (OSError, InputError) as error:
            if self._seen is not None:
                log.warning("thresholds stay as they were: %s", error)
            self._seen = self._seen if isinstance(error, InputError) else None
            return None
        return self.now if self.now != before else None

    def _stamp(self) -> tuple[int, int]:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_size

    def _read(self) -> Thresholds:
        try:
            return read_thresholds(self._path.read_text(encoding="utf-8"), self._usual, str(self._path))
        except UnicodeDecodeError:
            raise InputError(f"{self._path}: is no JSON: it is no text") from None
