"""Traces of training steps: one record per operation, read into arrays that compare like with like.

A record has dp_rank, stage, rank, step, optype, start_ts (seconds, of the step's clock), duration (seconds) and
mb_id; `mc`, the model chunk of interleaved schedules, is optional. Compute operations are called forward-compute and
backward-compute; the others are transfers (forward-send, forward-recv, backward-send, backward-recv) and collectives.
"""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from lanterne.errors import InputError, Unavailable, shown
from lanterne.failslow.locate.replay import Operation, StageLink

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lanterne.failslow.locate.replay import Array

REQUIRED = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "mb_id")
OPTIONAL = ("mc", "seq_id")
CHUNK_ROWS = 1 << 12
# Characters of a line of text: a header of 50,000 columns has as many.
MAX_LINE = 1 << 20
COMPUTE = {"forward-compute": "F", "backward-compute": "B"}
# Share of the operations of a rank, and of a step, that must be told; the rest is filled in.
LEAST_TOLD = 0.25
# A worker, and a worker's step, that lacks more of its operations than this share tells nothing.
MAX_HOLES = 0.5
TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")


@dataclass(frozen=True, eq=False)
class Trace:
    """The steps that every worker reported in full, of the replicas that reported most steps; of both where two did.

    Attributes: `steps` (S,); `ranks` (D, P) as recorded; `order`: per stage the compute operations as they ran;
    `compute_s`: per stage (S, D, operations) seconds; `links`: (S, D) seconds of a message alone, median over
    microbatches; `groups`: collective -> (S, D, P) seconds in it; `notes`: what was left out, for people; `coarse`:
    only what a worker computed in a step is known, and is spread evenly; `silent`: ranks that tell too little;
    `known`: what of `compute_s` was recorded, the rest is filled in (empty: all was); `split`: per stage the places of
    operations that were told by sums of two alone, the first stage's divided as the last stage's are long.
    """

    steps: NDArray[np.int64]
    ranks: NDArray[np.int64]
    order: tuple[tuple[Operation, ...], ...]
    compute_s: tuple[Array, ...]
    links: dict[StageLink, Array]
    groups: dict[str, Array]
    notes: tuple[str, ...]
    coarse: bool = False
    silent: tuple[int, ...] = ()
    known: tuple[NDArray[np.bool_], ...] = ()
    split: tuple[frozenset[int], ...] = ()

    @property
    def replicas(self) -> int:
        """Data-parallel width."""
        return self.ranks.shape[0]

    @property
    def stages(self) -> int:
        """Pipeline depth."""
        return self.ranks.shape[1]


def read_records(path: str | Path) -> dict[str, NDArray[Any]]:
    """Columns of a trace file as NumPy arrays: parquet (needs pyarrow), CSV, or JSON (a list of records).

    Raises:
        InputError: no such file, not readable, or columns are missing.
        Unavailable: parquet without pyarrow.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], dict[str, NDArray[Any]]]] = {
        ".parquet": _read_parquet,
        ".csv": _read_csv,
        ".json": _read_json,
    }
    if path.suffix not in readers:
        expected = ", ".join(readers)
        raise InputError(f"{shown(path)}: got a file ending in {path.suffix!r}, expected one of {expected}")
    if not path.is_file():
        raise InputError(f"cannot read {shown(path)}: no such file")
    columns = readers[path.suffix](path)
    if missing := [name for name in REQUIRED if name not in columns]:
        lacking, expected = ", ".join(missing), "it" if len(missing) == 1 else "all"
        got = ", ".join(name for name in REQUIRED if name in columns) or "none of them"
        raise InputError(f"{shown(path)}: no column {lacking}, expected {expected}; got {got}")
    return columns


def _read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise Unavailable("reading parquet needs pyarrow: pip install pyarrow") from error
    import numpy as np

    try:
        table = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{shown(path)}: got no readable parquet file ({str(error).splitlines()[0]})") from error
    names = [name for name in (*REQUIRED, *OPTIONAL) if name in table.column_names]
    columns = {name: table[name].to_numpy() for name in names if name != "optype"}
    if "optype" in names:
        columns["optype"] = np.asarray(table["optype"].cast(pa.string()).to_pylist(), dtype=str)
    return columns


def short_lines(file: TextIO, name: str) -> Iterator[str]:
    """Yield the lines of a text file called `name`.

    Raises:
        InputError: one of more than MAX_LINE characters, such as a device without end, or a table of too many columns.
    """
    for line in iter(partial(file.readline, MAX_LINE), ""):
        if len(line) == MAX_LINE and not line.endswith("\n"):
            raise InputError(f"{name}: got a line of over {MAX_LINE} characters, expected CSV or a log")
        yield line


def _read_csv(path: Path) -> dict[str, NDArray[Any]]:
    import numpy as np

    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(short_lines(file, shown(path)))
            names = next((row for row in reader if row), [])
            wanted = [name for name in (*REQUIRED, *OPTIONAL) if name in names]
            if not wanted and (separator := next((mark for mark in ";\t|" if mark in "".join(names)), None)):
                raise InputError(f"{shown(path)}: got columns separated by {separator!r}, expected commas")
            # The last column of a name counts. Few rows at a time stay in the processor's caches.
            places = [len(names) - 1 - names[::-1].index(name) for name in wanted]
            parts: list[list[NDArray[Any]]] = [[] for _ in wanted]
            while chunk := list(islice(reader, CHUNK_ROWS)):
                rows = [row for row in chunk if row]
                if not rows:
                    continue
                if any(len(row) < len(names) for row in rows):
                    rows = [row + [""] * (len(names) - len(row)) for row in rows]
                values = list(zip(*rows, strict=False))
                for name, place, part in zip(wanted, places, parts, strict=True):
                    part.append(np.array(values[place]) if name == "optype" else _numbers(values[place]))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{shown(path)}: got no readable CSV ({error})") from error
    if not names:
        raise InputError(f"{shown(path)}: got an empty file, expected CSV with a header line")
    return {name: np.concatenate(part) if part else np.empty(0) for name, part in zip(wanted, parts, strict=True)}


def _read_json(path: Path) -> dict[str, NDArray[Any]]:
    try:
        records = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{shown(path)}: got no valid JSON ({error}); is the file whole?") from error
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise InputError(f"{shown(path)}: got JSON {type(records).__name__}, expected a list of records")
    return _columns(records, records[0] if records else REQUIRED)


def _columns(records: Sequence[Mapping[str, Any]], names: Collection[str]) -> dict[str, NDArray[Any]]:
    import numpy as np

    columns = {}
    for name in (*REQUIRED, *OPTIONAL):
        if name not in names:
            continue
        values: list[Any] = [record.get(name) for record in records]
        columns[name] = np.array([str(v) for v in values]) if name == "optype" else _numbers(values)
    return columns


def _numbers(values: Sequence[Any] | NDArray[Any]) -> NDArray[np.float64]:
    """Values as numbers, NaN for those that are none."""
    import numpy as np

    try:
        # For texts three times as fast as asarray.
        is_array = isinstance(values, np.ndarray)
        return np.asarray(values, float) if is_array else np.fromiter(map(float, values), float, len(values))
    except (TypeError, ValueError):
        return np.array([_number(value) for value in values])


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def read_trace(path: str | Path) -> Trace:
    """The Trace of a file; see read_records and build_trace for what is refused."""
    return build_trace(read_records(path), shown(path))


def build_trace(columns: Mapping[str, NDArray[Any]], name: str = "trace") -> Trace:
    """Arrange records, given as columns, by step, replica and stage; without replicas of which a worker is silent.

    Where that would leave one, which has none to be compared with, what the silent worker lacks is filled in instead.

    Raises:
        InputError: no records, times that are no numbers or negative, no compute operations, or no step that is whole.
    """
    import numpy as np

    size = len(columns["step"])
    if size == 0:
        raise InputError(f"{name}: got no records, expected at least one step")
    columns, notes = _usable(columns, name)
    compute = np.isin(columns["optype"], list(COMPUTE))
    if not compute.any():
        raise InputError(f"{name}: got no forward-compute or backward-compute records")
    layout = _Layout(columns, compute)
    durations, order = layout.compute(name)
    silent = layout.silent(durations)
    left_out: NDArray[np.bool_] = np.any(silent, axis=1)
    lost = tuple(int(rank) for rank in layout.numbered()[silent] if rank >= 0)
    filled_in = np.zeros_like(silent)
    if np.count_nonzero(~left_out) == 1 < len(left_out):
        notes.append(f"{layout.told(silent)}: taken to be as the other's")
        filled_in = silent
    elif left_out.any() and not left_out.all():
        # One step without a worker says little; without most of its steps its replica has nothing to compare.
        notes.append(f"{layout.told(silent)}: left out with the replica")
        columns = {column: values[~left_out[layout.replica]] for column, values in columns.items()}
        layout = _Layout(columns, np.isin(columns["optype"], list(COMPUTE)))
        durations, order = layout.compute(name)
        filled_in = np.zeros(layout.ranks.shape, bool)
    lacking = np.stack([np.isnan(d).mean(axis=2) for d in durations], axis=2) > MAX_HOLES
    holes = np.any(lacking & ~filled_in, axis=(1, 2))
    missing = f"{int(holes.sum())} of {len(holes)} steps left out, where a worker lacks half of its operations"
    if holes.all():
        why = layout.told(silent) if left_out.all() else missing
        raise InputError(f"{name}: got no step in which every worker reports most of its operations; {why}")
    if holes.any():
        notes.append(missing)
    whole = ~holes
    durations = [d[whole] for d in durations]
    known = tuple(np.isfinite(d) for d in durations)
    if gaps := sum(int(np.isnan(d).sum()) for d in durations):
        notes.append(f"{gaps} of {sum(d.size for d in durations)} operations are missing, and taken to be as usual")
        durations = filled(durations, order)
    links, groups = layout.links(), layout.groups()
    return Trace(
        layout.steps[whole],
        layout.ranks,
        tuple(order),
        tuple(durations),
        {key: value[whole] for key, value in links.items()},
        {key: value[whole] for key, value in groups.items()},
        tuple(notes),
        silent=lost,
        known=known,
    )


def filled(compute_s: Sequence[Array], order: Sequence[tuple[Operation, ...]]) -> list[Array]:
    """(S, D, operations) seconds of each stage with NaN filled in.

    With what is usual for the worker's operation, as much longer as it is in all of the step, and as the microbatch is
    beside that elsewhere: a slow worker says nothing of the other stages.
    """
    import numpy as np

    logs = [np.log(np.maximum(durations, 1e-9)) for durations in compute_s]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        usual = [np.nanmedian(log, axis=0) for log in logs]
        for stage, operations in enumerate(order):
            for kind in "FB":
                own = [i for i, operation in enumerate(operations) if operation[0] == kind]
                # An operation that no step tells takes what others of its kind do.
                level = np.nanmedian(usual[stage][:, own], axis=1, keepdims=True) if own else 0.0
                usual[stage][:, own] = np.where(np.isfinite(usual[stage][:, own]), usual[stage][:, own], level)
            # A worker that tells nothing takes what the other replicas' do.
            usual[stage] = np.where(np.isfinite(usual[stage]), usual[stage], np.nanmedian(usual[stage], axis=0))
        apart = [log - known for log, known in zip(logs, usual, strict=True)]
        levels = np.nan_to_num(np.stack([np.nanmedian(one, axis=2) for one in apart]))
        apart = [one - level[:, :, None] for one, level in zip(apart, levels, strict=True)]
        shared: dict[int, Array] = {}
        for m in {operation[1] for operations in order for operation in operations}:
            same = [a[:, :, k] for a, ops in zip(apart, order, strict=True) for k, op in enumerate(ops) if op[1] == m]
            shared[m] = np.nan_to_num(np.nanmedian(np.stack(same), axis=0))
    found = []
    for stage, operations in enumerate(order):
        guess = usual[stage] + levels[stage][:, :, None] + np.stack([shared[m] for _, m, _ in operations], axis=2)
        found.append(np.exp(np.where(np.isfinite(logs[stage]), logs[stage], guess)))
    return found


def _usable(columns: Mapping[str, NDArray[Any]], name: str) -> tuple[dict[str, NDArray[Any]], list[str]]:
    """(columns as numbers, a missing microbatch or chunk as -1, text for optype; notes on records left out).

    Raises:
        InputError: no record is whole.
    """
    import numpy as np

    found: dict[str, NDArray[Any]] = {}
    wrong: dict[str, NDArray[np.bool_]] = {}
    for column, values in columns.items():
        if column == "optype":
            found[column] = values.astype(str)
            continue
        numbers = _numbers(values)
        if column in ("mb_id", "mc", "seq_id"):
            numbers = np.where(np.isnan(numbers), -1.0, numbers)
        # Beyond it neither seconds nor counts are exact.
        wrong[column] = ~(np.abs(numbers) <= 2**53)
        if column == "duration":
            wrong[column] |= numbers < 0
        found[column] = numbers
    bad = np.any(list(wrong.values()), axis=0)
    if not bad.any():
        return found, []
    column = next(column for column, where in wrong.items() if where.any())
    row = int(np.argmax(wrong[column]))
    expected = {"start_ts": "seconds", "duration": "seconds, 0 or more"}.get(column, "a number")
    told = f"record {row}, column {column}: got {columns[column][row]}, expected {expected}"
    if bad.all():
        raise InputError(f"{name}: {told}")
    note = f"{int(bad.sum())} of {len(bad)} records left out, which hold something that is no number: {told}"
    return {column: values[~bad] for column, values in found.items()}, [note]


class _Layout:
    """Row indices of the columns by step, replica and stage."""

    def __init__(self, columns: Mapping[str, NDArray[Any]], compute: NDArray[np.bool_]) -> None:
        import numpy as np

        self.columns = columns
        self.is_compute = compute
        self.steps, self.step = np.unique(columns["step"].astype(np.int64), return_inverse=True)
        self.replicas, self.replica = np.unique(columns["dp_rank"].astype(np.int64), return_inverse=True)
        self.stages, self.stage = np.unique(columns["stage"].astype(np.int64), return_inverse=True)
        self.shape = (len(self.steps), len(self.replicas), len(self.stages))
        self.ranks = np.full(self.shape[1:], -1, np.int64)
        self.ranks[self.replica, self.stage] = columns["rank"].astype(np.int64)
        chunk = columns.get("mc")
        self.chunk = np.maximum(chunk.astype(np.int64), 0) if chunk is not None else np.zeros(len(self.step), np.int64)

    def compute(self, name: str) -> tuple[list[Array], list[tuple[Operation, ...]]]:
        """Per stage: (S, D, operations) durations, NaN where missing, and the operations in the usual order."""
        import numpy as np

        columns = self.columns
        durations, orders = [], []
        for stage in range(self.shape[2]):
            rows = np.flatnonzero(self.is_compute & (self.stage == stage))
            keys = np.stack(
                [columns["optype"][rows] == "backward-compute", columns["mb_id"][rows].astype(int), self.chunk[rows]]
            )
            kinds, which = np.unique(keys.astype(np.int64), axis=1, return_inverse=True)
            which = which.reshape(-1)
            place = (self.step[rows], self.replica[rows], which)
            starts = np.full((*self.shape[:2], kinds.shape[1]), np.inf)
            np.minimum.at(starts, place, columns["start_ts"][rows].astype(float))
            took = np.zeros(starts.shape)
            # An operation that was recorded in pieces takes their sum.
            np.add.at(took, place, columns["duration"][rows].astype(float))
            took[np.isinf(starts)] = np.nan
            # An operation that most steps lack, such as a microbatch of a larger batch, would leave no step whole.
            usual = np.isfinite(took).mean(axis=(0, 1)) >= 0.5
            kinds, starts, took = (
                kinds[:, usual],
                np.where(np.isinf(starts), np.nan, starts)[:, :, usual],
                took[:, :, usual],
            )
            if not usual.any():
                raise InputError(f"{name}: got no compute operation of stage {self.stages[stage]} in half of the steps")
            # The usual order is that of the median start, relative to each worker's first operation.
            relative = starts - np.fmin.reduce(starts, axis=2, keepdims=True)
            order = np.argsort(np.nanmedian(relative, axis=(0, 1)), kind="stable")
            orders.append(tuple(("B" if kinds[0, k] else "F", int(kinds[1, k]), int(kinds[2, k])) for k in order))
            durations.append(took[:, :, order])
        return durations, orders

    def silent(self, durations: Sequence[Array]) -> NDArray[np.bool_]:
        """(D, P): workers that lack more than half of their operations."""
        import numpy as np

        return np.stack([np.isnan(d).mean(axis=(0, 2)) > MAX_HOLES for d in durations], axis=1)

    def numbered(self) -> NDArray[np.int64]:
        """(D, P) ranks, with those that no record tells (-1) where the others' grow evenly by replica and by stage."""
        import numpy as np

        known = self.ranks >= 0
        grid = np.stack([np.ones(known.shape), *np.meshgrid(self.replicas, self.stages, indexing="ij")], axis=2)
        fit, _, found, _ = np.linalg.lstsq(grid[known], self.ranks[known], rcond=None)
        ranks: NDArray[np.int64] = np.rint(grid @ fit).astype(np.int64)
        is_even = found == grid.shape[2] and (ranks[known] == self.ranks[known]).all()
        is_new = (ranks >= 0) & ~np.isin(ranks, self.ranks[known])
        return np.where(~known & is_even & is_new, ranks, self.ranks)

    def told(self, silent: NDArray[np.bool_]) -> str:
        """One line on `silent` workers."""
        workers = [
            f"dp_rank {self.replicas[d]} stage {self.stages[p]}"
            + (f" (rank {self.ranks[d, p]})" if self.ranks[d, p] >= 0 else "")
            for d, p in zip(*silent.nonzero(), strict=True)
        ]
        more = f" and {len(workers) - 4} more" if len(workers) > 4 else ""
        reports = "reports" if len(workers) == 1 else "report"
        return f"{', '.join(workers[:4])}{more} {reports} in fewer than half of the steps"

    def links(self) -> dict[StageLink, Array]:
        """(S, D) of each: a message alone takes the shorter of what sender and receiver see."""
        import numpy as np

        columns = self.columns
        found = {}
        _, sequence = np.unique(columns.get("seq_id", columns["mb_id"]), return_inverse=True)
        for direction, send, receive, step in (("forward", *TRANSFERS[:2], 1), ("backward", *TRANSFERS[2:], -1)):
            for boundary in range(self.shape[2] - 1):
                sender = boundary if step == 1 else boundary + 1
                seen = [
                    self._by_message(columns["optype"] == kind, stage, sequence)
                    for kind, stage in ((send, sender), (receive, sender + step))
                ]
                sent, received = seen
                if sent is None or received is None:
                    continue
                count = min(sent.shape[2], received.shape[2])
                alone = np.fmin(sent[:, :, :count], received[:, :, :count])
                # A worker without messages has none to compare, and one end alone sees what it waits for, too.
                both = np.isfinite(sent).any(axis=(0, 2)) & np.isfinite(received).any(axis=(0, 2))
                if both.all() and np.isfinite(alone).any(axis=2).all():
                    found[boundary, direction] = np.nanmedian(alone, axis=2)
        return found

    def _by_message(self, kind: NDArray[np.bool_], stage: int, sequence: NDArray[np.intp]) -> Array | None:
        import numpy as np

        rows = np.flatnonzero(kind & (self.stage == stage))
        if not len(rows):
            return None
        seen = np.full((*self.shape[:2], int(sequence[rows].max()) + 1), np.nan)
        seen[self.step[rows], self.replica[rows], sequence[rows]] = self.columns["duration"][rows]
        return seen

    def groups(self) -> dict[str, Array]:
        """Collective -> (S, D, P) seconds that each worker spent in it, NaN where it took no part."""
        import numpy as np

        columns = self.columns
        found = {}
        for kind in np.unique(columns["optype"]):
            if not any(word in kind for word in ("reduce-scatter", "all-gather", "all-reduce")):
                continue
            spent = np.full(self.shape, np.nan)
            rows = np.flatnonzero(columns["optype"] == kind)
            spent[self.step[rows], self.replica[rows], self.stage[rows]] = 0.0
            np.add.at(spent, (self.step[rows], self.replica[rows], self.stage[rows]), columns["duration"][rows])
            found[str(kind)] = spent
        return found
