"""What `lanterne demo` shows, as text: pure functions of the records that its job tells (job.py)."""

import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from lanterne.bench.output.units import format_time

BLOCKS = " ▁▂▃▄▅▆▇█"
CHART_ROWS = 4
MARKS = {"slowed": "S", "noticed": "N", "located": "L", "swapped": "P", "healed": "H", "reverted": "R"}
COLOURS = {"red": "31", "green": "32", "yellow": "33", "bold": "1", "dim": "2"}
STEP_COLOURS = {"slowed": "red", "healed": "red", "suspected": "dim", "calibrated": "dim"}
Record: TypeAlias = dict[str, Any]
Records: TypeAlias = Sequence[Record]
# A line of the screen, and its colour of COLOURS, if any.
Line: TypeAlias = tuple[str, str | None]
PHASES = ("healthy", "slow, plan kept", "slow, adapted", "healed, before going back", "back to normal")


class DemoPhase(NamedTuple):
    """A stretch of the run; `first` to before `last`, in iterations; `time_s` is the median of an iteration."""

    name: str
    first: int
    last: int
    time_s: float
    tokens_per_s: float


def phases(results: Records, steps: Records, tokens: int, skipped: int) -> list[DemoPhase]:
    """The DemoPhases that a run had, in order: those that its steps delimit.

    Args:
        results: the iterations' records.
        steps: the steps.
        tokens: of an iteration.
        skipped: first iterations that do not count.
    """
    ends = [first_of(steps, name) for name in ("slowed", "swapped", "healed", "reverted")]
    known = [0, *(end for end in ends if end is not None), len(results)]
    names = [PHASES[0], *(name for name, end in zip(PHASES[1:], ends, strict=True) if end is not None)]
    found = []
    for name, (began, last) in zip(names, pairwise(known), strict=True):
        first = max(began, skipped)
        times_s = [record["time_s"] for record in results[first:last]]
        if times_s:
            median_s = statistics.median(times_s)
            found.append(DemoPhase(name, first, last, median_s, tokens / median_s))
    return found


def first_of(steps: Records, name: str) -> int | None:
    """The iteration of the first step of that name, or None."""
    return next((step["iteration"] for step in steps if step["name"] == name), None)


def chart(values: Sequence[float | None], width: int, rows: int = CHART_ROWS) -> list[str]:
    """Lines of text, the top one first: a column for each value, as high as it is beside the largest; None is empty."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    lines = []
    for row in reversed(range(rows)):
        cells = [0 if value is None else round(value / top * rows * 8) - row * 8 for value in values[:width]]
        lines.append("".join(BLOCKS[min(max(cell, 0), 8)] for cell in cells))
    return lines


def columns(values: Sequence[float], total: int, width: int) -> list[float | None]:
    """`values` of the first of `total` iterations as the values of `width` columns: the median of each column's."""
    width = min(width, total)
    found: list[float | None] = [None] * width
    for column in range(width):
        some = values[column * total // width : (column + 1) * total // width]
        found[column] = statistics.median(some) if some else None
    return found


def mark_line(steps: Records, total: int, width: int) -> str:
    """The line below the chart: a letter where something happened; the next free column where one is taken."""
    width = min(width, total)
    line = [" "] * width
    for step in steps:
        letter = MARKS.get(step["name"])
        if letter is None or (step["name"] != "noticed" and letter in line):
            continue
        column = min(step["iteration"] * width // total, width - 1)
        while column < width - 1 and line[column] != " ":
            column += 1
        line[column] = letter
    return "".join(line).rstrip()


def paint(text: str, colour: str | None, wanted: bool) -> str:
    """`text` in a colour of COLOURS, where colours are wanted."""
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if wanted and colour else text


def screen(
    about: Record, records: Records, width: int = 80, height: int = 24, *, colour: bool = False, elapsed_s: float = 0.0
) -> list[str]:
    """The lines of the screen, none longer than `width` as shown, at most `height`.

    Args:
        about: what command.py says of the job: ranks, iterations, link, event.
        records: the job's iterations and steps so far, in order.
    """
    results = [record for record in records if record["kind"] == "iteration"]
    steps = [record for record in records if record["kind"] == "step"]
    total = about["iterations"]
    clock = time.strftime("%M:%S", time.gmtime(elapsed_s))
    title = "lanterne demo: a link becomes slow and heals while ranks train"
    lines: list[Line] = [(title.ljust(width - len(clock) - 1)[: width - len(clock) - 1] + " " + clock, "bold")]
    if not results:
        return [paint(text[:width], kind, colour) for text, kind in [*lines, ("starting the ranks ...", "dim")]]
    lines += [(_now(results, total), None), ("", None), *_ranks(about, results[-1], steps), ("", None)]
    wide = min(width - 2, total)
    times = columns([record["time_s"] for record in results], total, wide)
    most = max(value for value in times if value is not None)
    lines.append((f"time of iterations, up to {format_time(most)}", "dim"))
    lines += [(line, None) for line in chart(times, wide)]
    lines += [(mark_line(steps, total, wide), "yellow"), ("", None)]
    lines += step_lines(steps, width, height - len(lines))
    return [paint(text[:width], kind, colour) for text, kind in lines[:height]]


def _now(results: Records, total: int) -> str:
    last = results[-1]
    rate = statistics.median(record["tokens_per_s"] for record in results[-3:])
    return (
        f"iteration {last['iteration'] + 1:>3} of {total}   {format_time(last['time_s']):>7}"
        f"   {rate:5.0f} tokens/s   loss {last['loss']:.3f}"
    )


def _ranks(about: Record, last: Record, steps: Records) -> list[Line]:
    """A line per rank, and beside it the link to the next one."""
    diverted = current_links(steps)
    found: list[Line] = []
    for rank in range(about["ranks"]):
        busy = last["busy"][rank] if rank < len(last["busy"]) else 0.0
        bar = ("█" * round(busy * 16)).ljust(16, "·")
        text = f"rank {rank} {bar} {busy:4.0%} busy"
        name = f"{rank}-{rank + 1}"
        kind: str | None = None
        if rank + 1 < about["ranks"]:
            delay_s = last["link_delay_s"].get(name)
            text += f"   link {name}{'' if delay_s is None else f' {format_time(max(delay_s, 1e-6)):>7}'}"
            if is_slow(steps, name):
                kind = "red"
                text += "  SLOW" + (", by delegates" if name in diverted else "")
        found.append((text, kind))
    return found


def current_links(steps: Records) -> set[str]:
    """The links whose messages go by delegates now, "0-1"."""
    swaps = [step for step in steps if "links" in step]
    return {"{}-{}".format(*pair) for pair in swaps[-1]["links"]} if swaps else set()


def is_slow(steps: Records, name: str) -> bool:
    """Whether the job has found that link slow, and has not gone back yet."""
    located = any(f"link {name}" in step.get("found", ()) for step in steps)
    return located and first_of(steps, "reverted") is None


def step_lines(steps: Records, width: int, most: int) -> list[Line]:
    """(line, colour) of each step, wrapped to `width`; what does not fit in `most` lines is left out at the top."""
    found: list[Line] = []
    for step in shown_steps(steps):
        letter = MARKS.get(step["name"], " ")
        head = f"{letter} {step['iteration']:>4} {step['name']:<10} "
        words, text, kind = step["text"].split(), "", STEP_COLOURS.get(step["name"], "green")
        block = []
        for word in words:
            if text and len(head) + len(text) + 1 + len(word) > width:
                block.append(text)
                text = ""
            text = f"{text} {word}" if text else word
        block.append(text)
        found += [((head if not i else " " * len(head)) + part, kind) for i, part in enumerate(block)]
    return found[-most:] if most > 0 else []


def shown_steps(steps: Records) -> list[Record]:
    """Without suspicions that something certain followed."""
    return [
        step
        for i, step in enumerate(steps)
        if step["name"] != "suspected" or not any(later["name"] != "suspected" for later in steps[i + 1 :])
    ]


def plain_line(record: Record, every: int) -> str | None:
    """The line of a record where there is no screen; None for iterations between `every`th ones."""
    if record["kind"] == "step":
        return f"iteration {record['iteration']:>3}  {record['name']:<10}  {record['text']}"
    if record["iteration"] % every:
        return None
    delays_s = record["link_delay_s"]
    links = "".join(f"  {name} {format_time(max(delay_s, 1e-6))}" for name, delay_s in delays_s.items())
    time_s, rate = format_time(record["time_s"]), f"{record['tokens_per_s']:.0f}"
    return f"iteration {record['iteration']:>3}  {time_s:>7}  {rate:>5} tokens/s  loss {record['loss']:.3f}{links}"
