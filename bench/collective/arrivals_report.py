"""`lanterne bench --arrivals`: who came last, how often, by how much; printed, drawn, and read back as a profile."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from lanterne.bench.output import report
from lanterne.bench.output.units import format_time
from lanterne.collectives.late.arrivals import Arrivals
from lanterne.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = [("last", "rank"), ("calls", ""), ("share", "%"), ("delay", "median"), ("p90", ""), ("max", "")]


def print_arrivals(arrivals: Arrivals, file: TextIO) -> None:
    """Print a row for each rank that arrived last: how often, and how long after the last but one."""
    rows = []
    for rank in np.flatnonzero(arrivals.last).tolist():
        delays_s = arrivals.delays_s[arrivals.ranks == rank]
        if not len(delays_s):
            continue
        quantiles = [format_time(float(np.quantile(delays_s, q))) for q in (0.5, 0.9, 1)]
        count = int(arrivals.last[rank])
        rows.append([rank, count, f"{100 * count / arrivals.calls:.0f}", *quantiles])
    seen = f"arrivals: {arrivals.calls} calls by auto asked the board"
    notes = [f"{seen}; {arrivals.begun_early} were begun without the last rank"]
    report.print_table(COLUMNS, rows, notes=notes, file=file)


def profile_of(path: str, option: str) -> Arrivals:
    """Return the Arrivals in the file `path` of `bench --arrivals --json`.

    Raises:
        InputError: it cannot be read, or is another file; names `option`.
    """
    try:
        found = Arrivals.from_json(json.loads(Path(path).read_text())["arrivals"])
    except OSError as error:
        raise InputError(f"{option}: got {path!r}, expected a readable file ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{option}: got {path}, expected a file of bench --arrivals --json") from None
    if not (np.isfinite(found.arrivals_s).all() and (found.arrivals_s >= 0).all()):
        raise InputError(f"{option}: got {path}, expected arrivals of at least 0 s")
    return found


def late_rank_of(text: str | None) -> int | None:
    """Return the rank that `text` names: a number, or a profile in which that rank arrived last most often.

    Raises:
        InputError: neither; or no rank came last in more than half of the calls of the file.
    """
    if text is None or re.fullmatch("-?[0-9]{1,18}", text):
        return None if text is None else int(text)
    arrivals = profile_of(text, "--late-rank")
    rank = arrivals.late_rank()
    if rank is None:
        raise InputError(f"--late-rank: got {text}, in which no rank came last in over half of {arrivals.calls} calls")
    return rank


def draw(who: Axes, delays: Axes, arrivals: Arrivals) -> None:
    """Draw who came last, and the distribution of by how much, as the StragglAR paper's figures 2a and 8."""
    ranks = np.arange(len(arrivals.last))
    who.bar(ranks, 100 * arrivals.last / max(1, arrivals.calls), color="#0072B2")
    who.set(xlabel="rank", ylabel="came last, % of calls", xticks=ranks, ylim=(0, 100))
    who.set_title(f"who came last in {arrivals.calls} calls")
    if len(arrivals.delays_s):
        delays_ms = np.sort(np.maximum(arrivals.delays_s * 1e3, 1e-3))
        shares = np.arange(1, len(delays_ms) + 1) / len(delays_ms)
        delays.step(delays_ms, 100 * shares, where="post", color="#D55E00", linewidth=2)
        middle_ms = float(np.median(delays_ms))
        delays.axvline(middle_ms, color="#000000", linestyle="--", label=f"median {format_time(middle_ms / 1e3)}")
        delays.set_xscale("log")
        delays.legend()
    delays.set(xlabel="last after the last but one, ms", ylabel="calls with at most that, %", ylim=(0, 102))
    delays.set_title("delay of the last rank")
    for axis in (who, delays):
        axis.grid(alpha=0.3, axis="y")
