"""What every command prints and writes: one JSON envelope, tables rendered from the same records, progress."""

import argparse
import json
import os
import platform
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from importlib import metadata
from itertools import takewhile
from math import isfinite, isnan
from pathlib import Path
from typing import Any, TextIO

from lanterne.errors import InputError, need_package
from lanterne.transport.job.bootstrap import in_a_job

SCHEMA_VERSION = 1
PICTURES = (".png", ".svg", ".pdf")
# Of a JSON document that is read.
MAX_READ = 256 << 20
# Options of commands that name a file to be written.
OUTPUTS = ("json", "plot", "trace", "report", "checkpoint", "output", "record", "csv")
# How often a job that another launcher started says how far it is.
LINE_S = 10.0
_said_s = time.monotonic()
_check: Callable[[], object] | None = None


def environment() -> dict[str, str | int]:
    """Machine and versions, for the record."""
    found: dict[str, str | int] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": platform.node(),
        "cpus": len(os.sched_getaffinity(0)),
    }
    for package in (
        "lanterne",
        "numpy",
        "numba",
        "mpi4py",
        "mpich",
        "ortools",
        "ucxx-cu12",
        "ucxx-cu13",
        "cupy-cuda12x",
        "cupy-cuda13x",
    ):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def envelope(**content: Any) -> dict[str, Any]:
    """The outer object of every JSON file of ours: schema_version, argv, environment, then `content`."""
    return {"schema_version": SCHEMA_VERSION, "argv": sys.argv, "environment": environment(), **content}


def before_output(check: Callable[[], object] | None) -> None:
    """Call `check` once, before the next output of a command; it raises InputError where there is to be none."""
    global _check  # noqa: PLW0603 (one check a process)
    _check = check


def _check_once() -> None:
    check = _check
    before_output(None)
    if check is not None:
        check()


def check_outputs(args: argparse.Namespace) -> None:
    """Refuse output files that could not be written, before the work for them is done.

    Args:
        args: a command's options; those of OUTPUTS are looked at ("-" and "none" are no files).

    Raises:
        InputError: a folder that does not exist or may not be written to, a folder where a file is expected, or a
            picture that is no .png, .svg or .pdf.
        Unavailable: a picture is asked for, and Matplotlib is missing.
    """
    for name in OUTPUTS:
        path = vars(args).get(name)
        if not isinstance(path, str) or path in ("-", "none"):
            continue
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            raise InputError(f"--{name}: cannot write {path}: No such file or directory, expected an existing folder")
        if Path(path).is_dir():
            raise InputError(f"--{name}: cannot write {path}: Is a directory, expected a file")
        if name == "plot" and Path(path).suffix.lower() not in PICTURES:
            raise InputError(f"--plot: cannot draw {path}: expected a name that ends in .png, .svg or .pdf")
        if name == "plot":
            need_package("matplotlib", f"--plot {path}")
        # A device or a pipe is written through, a file is replaced by one of its folder.
        if not os.access(path if _is_written_through(Path(path)) and Path(path).exists() else folder, os.W_OK):
            raise InputError(f"--{name}: cannot write {path}: Permission denied, expected one that may be written")


def read_text(path: str | Path) -> str:
    """The text of file `path`, UTF-8.

    Raises:
        InputError: it cannot be read, or is longer than MAX_READ characters.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read(MAX_READ + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no text: {error}") from error
    if len(text) > MAX_READ:
        raise InputError(f"{path}: got over {MAX_READ} characters, expected at most as many")
    return text


def read_json(path: str | Path) -> Any:
    """The JSON document in file `path`.

    Raises:
        InputError: it cannot be read or is no JSON.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is no JSON: {error}") from error


def write_json(path: str | Path, document: object) -> None:
    """Write `document` to file `path` ("-" for standard output), whole or not at all.

    JSON has neither NaN nor infinity: where `document`, an object, holds one, null is written, and its key `not_finite`
    lists these places with the reason.

    Raises:
        InputError: the folder does not exist or cannot be written.
    """
    text = _as_json(document) + "\n"
    if str(path) == "-":
        write_text(text)
        return
    write_atomically(path, text.encode())


def _as_json(document: object) -> str:
    try:
        return json.dumps(document, indent=1, allow_nan=False)
    except ValueError:
        # Rare, so only then is all of it looked through.
        places: list[dict[str, str]] = []
        found = _finite(document, "", places)
        if isinstance(found, dict):
            found["not_finite"] = places
        return json.dumps(found, indent=1, allow_nan=False)


def _finite(value: object, at: str, places: list[dict[str, str]]) -> object:
    """Return `value` with None for NaN and infinity, and append to `places` where these are and why."""
    if isinstance(value, Mapping):
        return {key: _finite(each, f"{at}.{key}".lstrip("."), places) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each, f"{at}[{index}]", places) for index, each in enumerate(value)]
    if isinstance(value, float) and not isfinite(value):
        places.append({"at": at, "reason": "not a number" if isnan(value) else f"{value:g}"})
        return None
    return value


def write_text(text: str) -> None:
    """Write `text` to standard output."""
    _check_once()
    sys.stdout.write(text)


def tell(path: str | None, document: dict[str, Any], show: Callable[[dict[str, Any], TextIO], object]) -> None:
    """Write `document` to file `path`, if there is one, and let `show(document, file)` print it for people.

    They read it on standard output, unless `path` is "-" and the JSON is there: then on standard error.

    Raises:
        InputError: as write_json.
    """
    _check_once()
    if path:
        write_json(path, document)
    show(document, sys.stderr if path == "-" else sys.stdout)


def write_atomically(path: str | Path, data: bytes) -> None:
    """Replace file `path` by the bytes `data`; a reader sees the old file or the new one.

    A link, a device or a pipe (/dev/stdout, /dev/null) stays what it is and is written through, not replaced.

    Raises:
        InputError: the folder does not exist or cannot be written.
    """
    _check_once()
    path = Path(path)
    temporary = None
    try:
        if _is_written_through(path):
            path.write_bytes(data)
            return
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(data)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _is_written_through(path: Path) -> bool:
    return path.is_symlink() or (path.exists() and not path.is_file())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def print_table(
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    notes: Iterable[str] = (),
    left: Container[int] = (0,),
    file: TextIO | None = None,
) -> None:
    """Print a table for people.

    Args:
        columns: (header, unit) pairs; the unit line is left out where all units are empty.
        rows: sequences of cells, one per column.
        left: the columns that are left-aligned; the others are right-aligned.
        notes: lines printed first, behind `# `.

    On a terminal that is too narrow it is folded: further columns come below, behind the first ones on the left again.
    """
    file = file or sys.stdout
    print_notes(notes, file)
    if title:
        print(title, file=file)
    lines = [[header for header, _ in columns]] if any(header for header, _ in columns) else []
    if any(unit for _, unit in columns):
        lines.append([f"({unit})" if unit else "" for _, unit in columns])
    lines += [list(map(str, row)) for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(columns))]
    cells = [
        [
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    for number, block in enumerate(_blocks(widths, left, columns_of(file))):
        if number:
            print(file=file)
        for line in cells:
            print("  ".join(line[i] for i in block).rstrip(), file=file)


def _blocks(widths: Sequence[int], left: Container[int], limit: int | None) -> list[list[int]]:
    """The columns of a table that stand side by side in `limit` characters; what names a line is in each block."""
    if limit is None:
        return [list(range(len(widths)))]
    names = list(takewhile(lambda i: i in left, range(len(widths))))
    while len(names) > 1 and sum(widths[i] + 2 for i in names) > limit // 2:
        names.pop()
    blocks = [[*names]]
    for i in range(len(names), len(widths)):
        if len(blocks[-1]) > len(names) and sum(widths[j] + 2 for j in blocks[-1]) + widths[i] > limit:
            blocks.append([*names])
        blocks[-1].append(i)
    return blocks


def print_notes(notes: Iterable[str], file: TextIO | None) -> None:
    """Print lines behind `# `, each over several where the terminal is narrow."""
    _check_once()
    limit = columns_of(file)
    for note in notes:
        wrapped = [note] if limit is None else textwrap.wrap(note, max(20, limit - 2), break_on_hyphens=False)
        for line in wrapped or [""]:
            print(f"# {line}", file=file)


def columns_of(file: TextIO | None) -> int | None:
    """How many characters a line of the terminal that `file` is holds; None: it is no terminal.

    Ranks write through a pipe: their launcher tells them of its own in LANTERNE_COLUMNS.
    """
    try:
        return os.get_terminal_size(file.fileno()).columns or None if file else None
    except (AttributeError, OSError, ValueError):
        told = os.environ.get("LANTERNE_COLUMNS", "") if file is sys.stdout and in_a_job() else ""
        return int(told) if told.isdigit() and int(told) else None


def progress(text: str) -> None:
    """Show `text` on the terminal's last line; silent where there is none. `progress("")` clears it.

    Ranks write through a pipe: their launcher sets LANTERNE_PROGRESS to the width of its own standard error where that
    is a terminal. Under another launcher, which tells nothing, rank 0 says it in a line of its own each LINE_S.
    """
    global _said_s  # noqa: PLW0603 (one line a process)
    told = os.environ.get("LANTERNE_PROGRESS")
    if told is not None or sys.stderr.isatty():
        # A line that wraps could not be cleared; 0 stands for a terminal that does not know its width.
        columns = columns_of(sys.stderr) or int(told if told and told.isdigit() else 0)
        sys.stderr.write(f"\r\x1b[K{text[: columns - 1] if columns else text}")
        sys.stderr.flush()
    elif text and time.monotonic() > _said_s + LINE_S and _is_first_of_a_foreign_job():
        _said_s = time.monotonic()
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def say(lines: Sequence[str]) -> None:
    """Print lines on standard error that stay, above the one of `progress`."""
    if lines:
        progress("")
        print(*lines, sep="\n", file=sys.stderr, flush=True)


def _is_first_of_a_foreign_job() -> bool:
    from lanterne.transport.job.bootstrap import launched_rank

    return in_a_job() and "LANTERNE_LAUNCHER" not in os.environ and launched_rank() == 0
