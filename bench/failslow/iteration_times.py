"""Iteration times out of what jobs write: CSV with any column names and units, and lines of logs."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, islice, pairwise, repeat
from math import inf, isfinite, isnan, nan
from pathlib import Path
from typing import Any, cast

from lanterne.bench.output.units import format_count
from lanterne.errors import InputError, one_of, shown
from lanterne.failslow.locate.trace import short_lines

UNITS: dict[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0}
# What else column names call them.
_UNIT_WORDS: dict[str, str] = {
    **{word: "s" for word in ("s", "sec", "secs", "second", "seconds")},
    **{word: "ms" for word in ("ms", "msec", "msecs", "millis", "millisecond", "milliseconds")},
    **{word: "us" for word in ("us", "usec", "usecs", "micros", "microsecond", "microseconds")},
    **{word: "ns" for word in ("ns", "nsec", "nanos", "nanosecond", "nanoseconds")},
    **{word: "min" for word in ("min", "mins", "minute", "minutes")},
}
_ITERATION_WORDS = {"iteration", "iterations", "iter", "iters", "step", "steps"}
# Lines in which a log's form is looked for, and characters of one.
SEARCHED_LINES, LINE_LENGTH = 2000, 65536
NO_TEXT = "\ufffd"  # what stands for a byte that is no UTF-8
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Numbers and dates as others write them: 1,025.8, 1.026s, 2026-01-31T10:00:00Z.
_NUMBER_LIKE = re.compile(rf"[-+]?\d[\d.,:_'T +-]*(?:Z|{'|'.join(_UNIT_WORDS)})?")
# A record of JSON, or as Python prints a dict; its numbers; keys that are times, and rates.
_RECORD = re.compile(r"\s*\{[\"'].*\}\s*$")
_FIELD = re.compile(r"""["']([^"']{1,80})["']\s*:\s*["']?([-+]?[\d.]+)""")
_TIMED = re.compile(
    r"(step|iter|iteration|batch)[ _-]?(time|timing|duration)|time[ _-]per[ _-](step|iter)", re.IGNORECASE
)
_RATE = re.compile(r"per[ _-]?sec(ond)?$|/s(ec)?$|^tps$", re.IGNORECASE)
_NUMBER = r"([-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)"


# What an iteration works on, where a line has it beside the time.
WORK = re.compile(
    r"\b((?:global|micro|total)?[ _-]?batch[ _-]?size|seq(?:uence)?[ _-]?len(?:gth)?|num[ _-]microbatches)"
    r"\W{1,16}(\d+)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class LogForm:
    """Lines that report an iteration: `pattern`, whose first group is a number of `unit`; a rate where `is_rate`.

    Of a progress bar group `value` is the number, `per` its unit ("s/it", or "it/s" of a rate), `at` how far it is, and
    `bar` tells it from other bars.
    """

    name: str
    pattern: re.Pattern[str]
    unit: str = "s"
    is_rate: bool = False


_BAR = rf"(?P<value>{_NUMBER[1:]}(?P<per>s/it|it/s)"
# As printed by Megatron-LM's training_log (and its forks, in seconds), NeMo's logger and bar, torchtitan's metrics
# (tokens a second: the time of a token is as good), nanoGPT's train.py, litgpt, DeepSpeed's timer and pipeline engine,
# and the bars of tqdm and of rich (Hugging Face, Lightning).
LOG_FORMS: tuple[LogForm, ...] = (
    LogForm("Megatron-LM", re.compile(rf"elapsed time per iteration \(ms\): *{_NUMBER}"), "ms"),
    LogForm("Megatron-LM", re.compile(rf"elapsed time per iteration \(s\): *{_NUMBER}")),
    LogForm("NeMo", re.compile(rf"\btrain_step_timing in s[=:] *{_NUMBER}")),
    LogForm("torchtitan", re.compile(rf"\bstep: *\d+\b.*\b(?:tps|wps): *{_NUMBER}"), is_rate=True),
    LogForm("nanoGPT", re.compile(rf"\biter \d+: .*\btime {_NUMBER}ms"), "ms"),
    LogForm("litgpt", re.compile(rf"\biter time: {_NUMBER} ?ms"), "ms"),
    LogForm("DeepSpeed", re.compile(rf"\biter time \(s\): *{_NUMBER}")),
    LogForm("DeepSpeed", re.compile(rf"\bCurrSamplesPerSec={_NUMBER}"), is_rate=True),
    LogForm("a progress bar", re.compile(rf"(?P<bar>.*)\| *(?P<at>\d+)/\d+ \[[\d:]+<[\d:?]+, *{_BAR}")),
    LogForm("a progress bar", re.compile(rf"(?P<bar>.*?)(?P<at>\d+)/\d+ +[\d:]+ • [-\d:]+ *{_BAR}")),
)


@dataclass(frozen=True)
class Source:
    """Where iteration times are: a `column` (None: found by its name), or lines that match `pattern`.

    Attributes: `unit`, one of UNITS, None where the name tells it; `is_rate`: a line's number is iterations or tokens
    a second.
    """

    column: str | None = None
    unit: str | None = None
    pattern: str | None = None
    is_rate: bool = False

    def form(self) -> LogForm | None:
        """The LogForm of `pattern`, None without one.

        Raises:
            InputError: it is no regular expression with a group.
        """
        if self.pattern is None:
            return None
        try:
            pattern = re.compile(self.pattern)
        except re.error as error:
            raise InputError(f"--pattern: got {self.pattern!r}, expected a regular expression ({error})") from error
        if not pattern.groups:
            example = "as in 'took (\\S+) ms'"
            raise InputError(f"--pattern: got {self.pattern!r}, expected a group around the number, {example}")
        return LogForm("--pattern", pattern, self.unit or "s", self.is_rate)


def read_times(path: str | Path, source: Source, notes: list[str], changes: list[int] | None = None) -> Iterator[float]:
    """Yield the iteration times of file `path` ("-": standard input), in seconds; `notes`: what was assumed.

    Of a rate its inverse: what a token takes, say. A row without a time, blank, NaN or 0, is nan; at the end `notes`
    says how many are. `changes` gets the rows from which on an iteration works on another batch size or length.

    Raises:
        InputError: no such file, nothing there that looks like iteration times, or a value that cannot be one.
    """
    name = source_name(path)
    try:
        with nullcontext(cast("io.BufferedReader", sys.stdin.buffer)) if path == "-" else open(path, "rb") as raw:
            _check_text(name, raw.peek(2)[:2])
            # A carriage return ends a line, too: progress bars have no other.
            file = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="replace", newline=None)
            text = _counting(short_lines(file, name), notes)
            first = list(islice(text, SEARCHED_LINES))
            form = source.form() or _log_form(first, source)
            lines = chain(first, text)
            changed = [] if changes is None else changes
            if form is None:
                _check_records(name, first)
                read = _read_csv(name, source, lines, notes)
            else:
                read = _read_log(name, form, _main_bar(form, first), lines, notes, changed)
            try:
                yield from _counted(name, read, notes)
            finally:
                # Standard input stays open.
                file.detach()
    except IsADirectoryError as error:
        raise InputError(f"{name}: got a folder, expected a file") from error
    except (OSError, csv.Error) as error:
        raise InputError(f"cannot read {name}: {getattr(error, 'strerror', None) or error}") from error


def _check_text(name: str, first: bytes) -> None:
    """Raise InputError for a file that is packed or no UTF-8, by its `first` two bytes, with how to have it read."""
    if first == b"\x1f\x8b":
        raise InputError(f"{name}: got a gzip file, expected it unpacked: zcat FILE | lanterne detect -")
    if first in (b"\xff\xfe", b"\xfe\xff"):
        how = "iconv -f UTF-16 -t UTF-8 FILE | lanterne detect -"
        raise InputError(f"{name}: got text in UTF-16, expected UTF-8: {how}")


def _counting(lines: Iterable[str], notes: list[str]) -> Iterator[str]:
    """Yield `lines`; at their end a note says how many have bytes that are no UTF-8 text."""
    odd = 0
    for line in lines:
        odd += NO_TEXT in line
        yield line
    if odd:
        notes.append(f"{format_count(odd, 'line')} with bytes that are no UTF-8 text: read without them")


def _counted(name: str, times_s: Iterable[float], notes: list[str]) -> Iterator[float]:
    """`times_s`; at their end a note says how many are nan, and which is the first.

    Raises:
        InputError: all are.
    """
    count, lost, first = 0, 0, 0
    for count, time_s in enumerate(times_s, start=1):
        if isnan(time_s):
            first = first if lost else count - 1
            lost += 1
        yield time_s
    if lost == count:
        raise InputError(f"{name}: got {format_count(count, 'row')} without a number, expected iteration times")
    if lost:
        notes.append(f"{lost} of {format_count(count, 'row')} have no time, row {first} the first: left out")


def read_column(path: str | Path, column: str) -> Iterator[float]:
    """The numbers of `column` of CSV file `path`, one by one, as read_times() has them."""
    return read_times(path, Source(column), [])


def differences(path: str | Path, timestamps: Iterable[float]) -> Iterator[float]:
    """What lies between `timestamps` of file `path`, one by one; nan beside one that is not known.

    Raises:
        InputError: there is only one, or one is not above the one before.
    """
    row = 0
    for row, (before, now) in enumerate(pairwise(timestamps), start=1):
        if now <= before:
            raise InputError(
                f"{source_name(path)}: row {row}: got {now!r} after {before!r},"
                " expected increasing timestamps (was the clock set back?)"
            )
        yield now - before
    if row == 0:
        raise InputError(f"{source_name(path)}: got one row, expected several timestamps")


def source_name(path: str | Path) -> str:
    """A file's name in one line."""
    return "standard input" if path == "-" else shown(path)


# -- logs


def _log_form(lines: Iterable[str], source: Source) -> LogForm | None:
    """Return the first of LOG_FORMS that a line is of, or that of the first line that is a record of JSON."""
    plain = [_COLOURS.sub("", line[:LINE_LENGTH]) for line in lines]
    known = () if source.column else LOG_FORMS
    found = next((form for form in known if any(form.pattern.search(line) for line in plain)), None)
    records = (line for line in plain if _RECORD.match(line))
    return found or next((form for line in records if (form := _record_form(line, source)) is not None), None)


def _record_form(line: str, source: Source) -> LogForm | None:
    """Return the LogForm of records like that of `line`: its time, or else its rate; None where it has none."""
    keys = [key for key, _ in _FIELD.findall(line)]
    timed = [key for key in keys if _TIMED.search(key)]
    rates = sorted((key for key in keys if _RATE.search(key)), key=lambda key: not _ITERATION_WORDS & {*_words_of(key)})
    column = source.column or _pick([key for key in keys if key not in rates]) or next(iter((*timed, *rates)), None)
    if column is None or column not in keys:
        return None
    pattern = re.compile(rf"""["']{re.escape(column)}["']\s*:\s*["']?{_NUMBER}""", re.IGNORECASE)
    return LogForm(f"records with {column!r}", pattern, source.unit or _unit_of(column) or "s", column in rates)


def _check_records(name: str, lines: Iterable[str]) -> None:
    """Raise InputError where a line is a record of JSON: its keys are not known to be times."""
    if (record := next((line for line in lines if _RECORD.match(line)), None)) is not None:
        keys = ", ".join(shown(key) for key, _ in _FIELD.findall(record[:LINE_LENGTH])) or "no numbers"
        raise InputError(f"{name}: got records of {keys}, expected a time such as step_time, or a rate (--column)")


def _main_bar(form: LogForm, lines: Iterable[str]) -> str:
    """Return the bar that most of `lines` draw: training, beside a check or an evaluation; "" of another form."""
    if "bar" not in form.pattern.groupindex:
        return ""
    matches = (form.pattern.search(_COLOURS.sub("", line[:LINE_LENGTH])) for line in lines)
    drawn = {(_bar_of(match), match["at"]) for match in matches if match is not None}
    return Counter(bar for bar, _ in drawn).most_common(1)[0][0]


def _bar_of(match: re.Match[str]) -> str:
    """Return what tells a progress bar from others: an epoch's number does not."""
    return re.sub(r"[\d%█▏▎▍▌▋▊▉#━╸╺ ]+", "", match["bar"])


def _read_log(
    name: str, form: LogForm, bar: str, lines: Iterable[str], notes: list[str], changes: list[int]
) -> Iterator[float]:
    count, number = 0, 0
    work: list[tuple[str, str]] | None = None
    is_bar, is_record = "bar" in form.pattern.groupindex, form.name.startswith("records")
    last = ""
    for number, line in enumerate(lines, start=1):
        plain = _COLOURS.sub("", line[:LINE_LENGTH])
        match = form.pattern.search(plain)
        if match is None or (text := match["value" if is_bar else 1]) is None:
            if is_record and plain.startswith("{") and not plain.rstrip().endswith("}"):
                # A record that is cut off.
                count += 1
                yield nan
            continue
        if is_bar:
            # What is drawn twice counts once.
            if _bar_of(match) != bar or match["at"] == last:
                continue
            last = match["at"]
        value = _number(text.replace(",", ""))
        if not (0.0 <= value < inf or _is_missing(text)):
            raise InputError(f"{name}: line {number}: got {text!r}, expected a positive number")
        its = WORK.findall(plain)
        if work is not None and its != work:
            changes.append(count)
        work = its
        count += 1
        unit = match["per"] if is_bar else form.unit
        is_rate = form.is_rate or unit == "it/s"
        yield nan if value == 0.0 else 1 / value if is_rate else value * UNITS[unit.removesuffix("/it")]
    if not count:
        raise InputError(f"{name}: no line of {number} matches, expected the form of {form.name}")
    what = "rates" if form.is_rate else "rates or times" if is_bar else f"times in {form.unit}"
    notes.append(f"{what} of {format_count(count, 'line')} of {number}, of the form of {form.name}")
    if changes:
        times = f"{len(changes)} times, at row {changes[0]} first"
        notes.append(f"the work of an iteration changes {times}: judged anew there")


# -- CSV


def _read_csv(name: str, source: Source, lines: Iterator[str], notes: list[str]) -> Iterator[float]:
    head = next(lines, "")
    if NO_TEXT in head:
        raise InputError(f"{name}: got what is no UTF-8 text, expected CSV or a log")
    delimiter = max(",;\t", key=head.count)
    header = next(csv.reader([head], delimiter=delimiter), [])
    if not header:
        raise InputError(f"{name}: got an empty file, expected CSV with a header line")
    rows = _whole_rows(lines, delimiter)
    column, found = source.column, next(rows, None)
    if column is None:
        column = _pick(header)
        if column is None or (column != "seconds" and not _is_time(found, header.index(column))):
            # A sentence in a log may name a unit, too.
            raise InputError(_no_column(name, "seconds", header, found or []))
        if column != "seconds" and not source.unit:
            notes.append(f"column {column!r}, in {_unit_of(column)}")
    if column not in header:
        raise InputError(_no_column(name, column, header, found or []))
    if header.count(column) > 1:
        raise InputError(f"{name}: got several columns {column!r}, expected one")
    yield from _rows(name, header, column, source.unit, chain([found] if found is not None else [], rows))


def _whole_rows(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    """The rows of CSV `lines`, the last one without a cell that is cut: its quotes are still open."""
    is_over = False

    def and_one_more() -> Iterator[str]:
        nonlocal is_over
        yield from lines
        is_over = True
        # A row of its own, unless it is swallowed by a cell whose quotes are open.
        yield "end"

    for fields in csv.reader(and_one_more(), delimiter=delimiter):
        if not is_over:
            yield fields
        elif fields != ["end"]:
            yield fields[:-1] or [""]


def _rows(
    name: str, header: Sequence[str], column: str, unit: str | None, rows: Iterable[Sequence[str]]
) -> Iterator[float]:
    factor = UNITS[unit or _unit_of(column) or "s"]
    at, step_at = header.index(column), header.index("step") if "step" in header else None
    row, blanks, last_step = -1, 0, None
    for fields in rows:
        if not fields:
            # Of one column it is a blank cell, unless the file ends with it.
            blanks += len(header) == 1
            continue
        yield from repeat(nan, blanks)
        row, blanks = row + 1 + blanks, 0
        if len(fields) > len(header):
            count = len(header)
            raise InputError(
                f"{name}: row {row}: got {len(fields)} fields, expected {count} as in the header (a decimal comma?)"
            )
        if step_at is not None and step_at < len(fields):
            last_step = _check_step(name, row, fields[step_at], last_step)
        text = fields[at] if at < len(fields) else ""
        value = _number(text)
        if not (0.0 <= value < inf or _is_missing(text)):
            raise InputError(f"{name}: row {row}, column {column}: got {text!r}, expected {_expected(text)}")
        # A time of 0 was not measured.
        yield value * factor or nan
    if row < 0:
        raise InputError(f"{name}: got a header and no rows, expected iteration times")


def _is_time(fields: Sequence[str] | None, at: int) -> bool:
    """Whether a row, if there is one, has a number at `at`, however it is written, or nothing."""
    return fields is None or at >= len(fields) or _is_number_like(fields[at]) or _is_missing(fields[at])


def _is_number_like(text: str) -> bool:
    return isfinite(_number(text)) or _NUMBER_LIKE.fullmatch(text.strip()) is not None


def _expected(text: str) -> str:
    """What is expected of a cell that says `text`."""
    if re.match(r"\s*\d{4}-\d\d?-\d", text):
        return "a number of seconds, no date"
    for form, hint in (
        (r"[-+]?[\d.]*\d,\d*", " with a decimal point (a decimal comma?)"),
        (r"[-+]?\d{1,3}(,\d{3})+\.\d*", " without commas"),
        (r"[-+]?\d*\.?\d+ ?[A-Za-zµ]+", " without its unit (--unit)"),
    ):
        if re.fullmatch(form, text.strip()):
            return f"a positive time{hint}"
    return "a positive time"


def _words_of(name: str) -> list[str]:
    """The words of a column's name, in small letters: those of "iterTime(ms)" are iter, time, ms."""
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name.replace("µ", "u"))]


def _unit_of(name: str) -> str | None:
    """The unit that a column's name tells."""
    units = [_UNIT_WORDS[word] for word in _words_of(name) if word in _UNIT_WORDS]
    return units[-1] if units else None


def _pick(header: Sequence[str]) -> str | None:
    """The column of iteration times, where names leave no doubt."""
    if "seconds" in header:
        return "seconds"
    timed = [name for name in header if _unit_of(name)]
    of_iterations = [name for name in timed if _ITERATION_WORDS & set(_words_of(name))]
    for candidates in (timed, of_iterations):
        if len(candidates) == 1:
            return candidates[0]
    return None


def _no_column(name: str, column: str, header: Sequence[str], fields: Sequence[str]) -> str:
    """What is wrong with a file whose first line is `header`; only of a table of numbers, names from it are told."""
    likely = [at for at, field in enumerate(fields) if _is_number_like(field)]
    if likely and len(fields) == len(header) and not any(map(_is_number_like, header)):
        if not any(isfinite(_number(fields[at])) for at in likely):
            where, text = shown(header[likely[0]]), fields[likely[0]]
            return f"{name}: row 0, column {where}: got {text!r}, expected {_expected(text)}"
        names = ", ".join(shown(field) for field in header)
        ask = "" if any(_unit_of(field) for field in header) else f", and --unit: {', '.join(UNITS)}"
        return f"{name}: no column {column!r}, expected one of: {names} (--column{ask})"
    return (
        f"{name}: got a first line that does not look like column names ({format_count(len(header), 'field')}), "
        f"expected CSV with a header line, one column {column!r} (--column), and rows of numbers; of a log, --pattern"
    )


def _number(text: Any) -> float:
    """What `text` says, nan where it is no number."""
    try:
        return float(text)
    except ValueError:
        return nan


def _is_missing(text: str) -> bool:
    """Whether a cell is blank or NaN: nothing was measured there."""
    return text.strip().lower() in ("", "nan")


def _check_step(name: str, row: int, text: str, last: float | None) -> float:
    step = _number(text)
    if not isfinite(step):
        raise InputError(f"{name}: row {row}, column step: got {text!r}, expected a number")
    if last is not None and not step > last:
        raise InputError(f"{name}: row {row}: got step {text} after step {last:g}, expected increasing steps")
    return step


def parse_unit(text: str) -> str:
    """One of UNITS.

    Raises:
        InputError: another one.
    """
    if text not in UNITS:
        raise InputError(f"--unit: {one_of(text, UNITS)}")
    return text
