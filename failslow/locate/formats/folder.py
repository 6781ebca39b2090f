"""All in a folder that says something of a job's calls, of all ranks together; the formats are told by content."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lanterne.errors import InputError, shown
from lanterne.failslow.locate.formats import call_logs, flight_recorder, kineto, ras
from lanterne.failslow.locate.formats.flight_recorder import FlightRecorderReader
from lanterne.failslow.locate.formats.foreign_calls import CallBuilder, CallTable
from lanterne.failslow.locate.formats.inspector import InspectorReader, is_line

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# What reading a file that is broken, or made up, raises: it is named, and the rest is used.
UNUSABLE = (
    OSError, EOFError, zlib.error, struct.error, ValueError, LookupError, TypeError, ArithmeticError, RecursionError,
    MemoryError,
)  # fmt: skip
# Of a file, packed and unpacked.
MAX_FILES, MAX_NBYTES = 100_000, 4 << 30
# Of what a gzip file unpacks to, over what it is packed; below so many bytes any ratio will do.
MAX_RATIO, LEAST_NBYTES = 200, 16 << 20
# Of a document whose events are dropped as it is parsed, and of another, which takes up to 64 times its size in memory.
MAX_DOCUMENT, MAX_WHOLE = 1 << 30, 64 << 20
# Of a file whose first line is cut off, so many lines are looked at.
LOOKED_LINES = 8
TRACES, LAYOUTS = (".parquet", ".csv"), (".yaml", ".yml")
# Of our own call logs, read with them.
BESIDE_LOGS = (".stack", ".new", ".telemetry", ".status", ".owner", ".path")


@dataclass(frozen=True, eq=False)
class Folder:
    """What a folder holds: `calls` of all ranks; `traces`, files of operations; `layout`, what describes these."""

    calls: CallTable
    traces: tuple[Path, ...]
    layout: Path | None


def read_folder(path: str | Path) -> Folder:
    """Read a folder, or one file of it. What cannot be used is counted in `calls.skipped`, by why.

    Raises:
        InputError: no such folder, or nothing in it that is known.
    """
    path = Path(path)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())[:MAX_FILES]
    if not path.exists():
        raise InputError(f"cannot read {shown(path)}: no such file or folder")
    readers = _Readers()
    into = readers.into
    traces: list[Path] = []
    layout: Path | None = None
    for file in files:
        if file.suffix in LAYOUTS:
            layout = layout or file
        elif file.suffix in TRACES:
            traces.append(file)
        elif file.suffix not in BESIDE_LOGS and not file.name.startswith("group-"):
            try:
                traces += readers.read(file)
            except UNUSABLE as error:
                into.notes.append(f"{shown(file.name)}: not used: {shown(str(error) or type(error).__name__)}")
    table = readers.finish()
    if not traces and not into.used:
        whys = [
            *(into.notes[:1] or ["no calls in them"] * (not into.skipped)),
            *(f"{number} not used: {why}" for why, number in sorted(into.skipped.items())),
        ]
        raise InputError(
            f"{shown(path)}: got {len(files)} files and nothing known in them{''.join(f'; {why}' for why in whys)}; "
            "expected Inspector lines, RAS documents, Flight Recorder dumps, Kineto traces, call logs of lanterne, or "
            "a trace of operations"
        )
    return Folder(table, tuple(traces), layout)


class _Readers:
    """Readers of all formats, into one CallBuilder."""

    def __init__(self) -> None:
        self.into = CallBuilder()
        self._inspector = InspectorReader()
        self._flights = FlightRecorderReader(self.into)
        self._documents: list[dict[str, Any]] = []

    def finish(self) -> CallTable:
        """Return what all files said."""
        self._inspector.finish(self.into)
        self._flights.finish()
        # By their own time where they have it; else in the order of their names.
        ras.read_all(sorted(self._documents, key=lambda one: str(one.get("timestamp", ""))), self.into)
        return self.into.table()

    def read(self, file: Path) -> list[Path]:
        """Take what is in `file`; return it where it is a trace of operations. Raises ValueError if it is nothing."""
        if file.stat().st_size > MAX_NBYTES:
            raise ValueError(f"got {file.stat().st_size} bytes, expected at most {MAX_NBYTES}")
        if file.suffix == ".calls":
            call_logs.read(file, self.into)
            return []
        with open(file, "rb") as raw:
            magic = raw.read(2)
        if not magic:
            raise ValueError("it is empty")
        if magic[:1] == b"\x80":
            if file.stat().st_size > MAX_WHOLE:
                raise ValueError(f"got {file.stat().st_size} bytes, expected a pickle of at most {MAX_WHOLE}")
            self._dump(file, flight_recorder.load_pickle(file.read_bytes()))
            return []
        if any(is_line(line) for line in _first_lines(file)):
            self._lines(file)
            return []
        with _opened(file) as stream:
            # By parts: at once, it would be in memory three times.
            text = "".join(islice(iter(lambda: stream.read(1 << 20), ""), 1 + (MAX_DOCUMENT >> 20)))
        if len(text) > MAX_DOCUMENT:
            raise ValueError(f"got more than {MAX_DOCUMENT} characters, expected at most as many")
        return self._document(file, text)

    def _lines(self, file: Path) -> None:
        self._inspector.begin()
        try:
            for line in _lines(file, self.into):
                if is_line(line):
                    self._inspector.take(line, self.into)
                else:
                    self.into.skipped["a line that is not the Inspector's"] += 1
        except UNUSABLE as error:
            self.into.notes.append(f"{shown(file.name)}: used up to where it broke off: {shown(str(error))}")

    def _document(self, file: Path, text: str) -> list[Path]:
        if '"traceEvents"' in text:
            kineto.read(file, text, self.into)
            return []
        if len(text) > MAX_WHOLE:
            raise ValueError(f"got {len(text)} characters, expected at most {MAX_WHOLE}")
        if (told := ras.from_text(text)) is not None:
            self._documents.append(told)
            return []
        try:
            content = json.loads(text, strict=False)
        except ValueError as error:
            if '"communicators"' not in text:
                raise ValueError(f"it is no JSON: {error}") from error
            content = ras.mended(text)
        if ras.is_document(content):
            self._documents.append(content)
        elif isinstance(content, list) and content and isinstance(content[0], dict) and "optype" in content[0]:
            return [file]
        else:
            self._dump(file, content)
        return []

    def _dump(self, file: Path, content: Any) -> None:
        is_list = isinstance(content, list) and all(isinstance(one, dict) and "state" in one for one in content)
        # Its first version was the list alone.
        dump: Any = {"entries": content} if is_list else content
        if not flight_recorder.is_dump(dump):
            raise ValueError("it is of no known format")
        self._flights.take(file, dump)


class _Unpacked(io.RawIOBase):
    """What a gzip file unpacks to, as it is read.

    Reading raises ValueError where that is more than MAX_NBYTES, or MAX_RATIO times what it is packed. Records of calls
    are packed 10 to 40 times.
    """

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = gzip.open(file)  # noqa: SIM115 (closed by close)
        self._nbytes = 0
        self._most = min(MAX_NBYTES, max(MAX_RATIO * file.stat().st_size, LEAST_NBYTES))

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Unpack on into `buffer`; how many bytes."""
        count = self._file.readinto(buffer)
        self._nbytes += count
        if self._nbytes > self._most:
            raise ValueError(f"got more than {self._most} bytes unpacked, expected at most these")
        return count

    def close(self) -> None:
        """Close the file, too."""
        self._file.close()
        super().close()


def _opened(file: Path) -> io.TextIOWrapper:
    with open(file, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "replace"}
    return io.TextIOWrapper(io.BufferedReader(_Unpacked(file)), **how) if packed else open(file, **how)


def _first_lines(file: Path) -> Iterator[Any]:
    with _opened(file) as lines:
        for _ in range(LOOKED_LINES):
            line = lines.readline(1 << 16)
            if not line.endswith("\n") and len(line) == 1 << 16:
                return
            try:
                yield json.loads(line)
            except (ValueError, RecursionError):
                continue


def _lines(file: Path, into: CallBuilder) -> Iterator[Any]:
    decode = json.JSONDecoder().raw_decode
    with _opened(file) as lines:
        for line in lines:
            try:
                # As json.loads, in half of its time.
                text = line.strip()
                content, end = decode(text)
                if end != len(text):
                    raise ValueError(text[end:])
                yield content
            except (ValueError, RecursionError):
                if line.strip():
                    into.skipped["a line that is cut off, or no JSON"] += 1
