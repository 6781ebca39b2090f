"""What an experiment's records have to reach: figures with their bars; --check prints and checks them."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TextIO, TypeAlias

import numpy as np

# How far from the simulator's the times over a data plane may be, a share: where sends block computing, and elsewhere.
BLOCKED_LIMIT, LIMIT = 0.05, 0.02
Record: TypeAlias = Mapping[str, Any]


class Bar(NamedTuple):
    """A figure and the least or most that it may be.

    Attributes:
        what: in words.
        found, limit: numbers of one unit.
        at_least: whether `found` must not be less; else it must not be more.
        form: how both are shown, of str.format.
    """

    what: str
    found: float
    limit: float
    at_least: bool = False
    form: str = "{:.3g}"

    @property
    def is_met(self) -> bool:
        return self.found >= self.limit if self.at_least else self.found <= self.limit

    def __str__(self) -> str:
        found, limit = self.form.format(self.found), self.form.format(self.limit)
        bound = "at least" if self.at_least else "at most"
        return f"{'met' if self.is_met else 'MISSED'}: {self.what}: {found}, expected {bound} {limit}"


def at_most(what: str, found: float, limit: float, form: str = "{:.3g}") -> Bar:
    """The Bar that a figure must not exceed."""
    return Bar(what, found, limit, False, form)


def at_least(what: str, found: float, limit: float, form: str = "{:.3g}") -> Bar:
    """The Bar that a figure must reach."""
    return Bar(what, found, limit, True, form)


def print_bars(bars: Iterable[Bar], file: TextIO | None = None) -> None:
    """A line for each (default: on standard output), as --check shows them under a table."""
    for bar in bars:
        print(f"# bar {bar}", file=file)


def near_simulator(records: Iterable[Record], limit: float, what: str = "measured off simulated") -> Bar:
    """The Bar of how far off, a share, the farthest of records is: `predicted_s`, and `measured_s`, one or several."""
    off = max(abs(float(np.median(record["measured_s"])) / record["predicted_s"] - 1) for record in records)
    return at_most(what, off, limit, "{:.1%}")


def near_simulator_by_plane(records: Iterable[Record]) -> list[Bar]:
    """The Bars of `near_simulator` for the records of each `data_plane`."""
    by_plane: dict[str, list[Record]] = {}
    for record in records:
        by_plane.setdefault(record["data_plane"], []).append(record)
    return [
        near_simulator(own, BLOCKED_LIMIT if plane == "inline" else LIMIT, f"{plane}, measured off simulated")
        for plane, own in by_plane.items()
    ]
