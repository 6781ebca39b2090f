"""The intermediate representation: a collective algorithm is rounds of transfers, stored as columns.

Semantics. Every transfer of a round reads the state from before the round. COPY overwrites the receiver's chunk, at
most once per (rank, chunk) and round; REDUCE adds to it, and several REDUCEs into one (rank, chunk) apply in listed
order, so results are bitwise reproducible. The transfers of one round from one rank to another, in listed order, are
one *message*. Rounds are logical, with no barrier between them: a rank is in round i + 1 once its own part of round i
is done.

A million transfers take 20 ms as columns and seconds as objects; `Transfer` is the view for people.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.errors import ScheduleError

COPY, REDUCE = 0, 1
OP_NAMES = ("copy", "reduce")
# Of a schedule, one entry per transfer.
Column: TypeAlias = NDArray[np.int32]
Ints: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.float64]
# The rank that is expected last, several of them, or none.
LateRank: TypeAlias = int | tuple[int, ...] | None
# Src, dst, chunk and op of transfers of one round, to be broadcast together.
Entry: TypeAlias = int | NDArray[np.integer[Any]]
Group: TypeAlias = tuple[Entry, Entry, Entry, Entry]
# A drawing of more transfers helps nobody.
MAX_DRAWN = 20_000
# Far beyond any use; so that a broken file cannot exhaust the memory.
MAX_WORLD_SIZE, MAX_CHUNKS = 2**16, 2**24


class Transfer(NamedTuple):
    """Move `chunk` from rank `src` to rank `dst`; `op` is COPY or REDUCE."""

    src: int
    dst: int
    chunk: int
    op: int

    def __str__(self) -> str:
        return f"{self.src}->{self.dst} chunk {self.chunk}"


class Phase(NamedTuple):
    """The rounds from `start` up to, not including, `stop`."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class CollectiveSchedule:
    """Rounds of transfers that carry out one collective; immutable, hashable, compared by value.

    Attributes:
        collective: a key of contracts.CONTRACTS; contracts.py says how chunks map to user buffers.
        algorithm: its registered name.
        src, dst, chunk, op: (transfers,) int32, read-only; op is COPY or REDUCE.
        offsets: (rounds + 1,) int64, read-only: round i is transfers offsets[i] to offsets[i + 1].
        phases: Phase tuple that tiles the rounds; those that need the late rank come last and are named "join".
        root: the root of a rooted collective, else None.
        late_rank: the rank that the schedule expects late, a tuple of them where there are several, else None.
        ports: messages that a rank may send, and receive, in one round.
        joins: (rank, round) pairs by rank: that rank takes part in nothing before that round.
        note: one line on how it was made, where that matters (a fallback, say).

    Raises:
        ScheduleError: columns, offsets or phases that do not fit together. All else is check_schedule.py's to say.
    """

    collective: str
    algorithm: str
    world_size: int
    num_chunks: int
    src: Column
    dst: Column
    chunk: Column
    op: Column
    offsets: NDArray[np.int64]
    phases: tuple[Phase, ...]
    root: int | None = None
    late_rank: LateRank = None
    ports: int = 1
    note: str = ""
    joins: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for name, dtype in (
            ("src", np.int32),
            ("dst", np.int32),
            ("chunk", np.int32),
            ("op", np.int32),
            ("offsets", np.int64),
        ):
            column = np.array(getattr(self, name), dtype)
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        object.__setattr__(self, "phases", tuple(Phase(*phase) for phase in self.phases))
        if not 1 <= self.world_size <= MAX_WORLD_SIZE or not 1 <= self.num_chunks <= MAX_CHUNKS:
            raise ScheduleError(
                f"{self.name}: got {self.num_chunks} chunks on {self.world_size} ranks, expected 1 or more of both, "
                f"at most {MAX_CHUNKS} and {MAX_WORLD_SIZE}"
            )
        if any(
            column.shape != self.src.shape or column.ndim != 1 for column in (self.src, self.dst, self.chunk, self.op)
        ):
            raise ScheduleError(f"{self.name}: got columns of unequal length, expected one entry per transfer")
        offsets = self.offsets
        if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != len(self.src) or (np.diff(offsets) < 0).any():
            raise ScheduleError(f"{self.name}: got round offsets that do not rise from 0 to {len(self.src)}")
        bounds = [0, *(phase.stop for phase in self.phases)]
        if (
            [phase.start for phase in self.phases] != bounds[:-1]
            or bounds[-1] != self.num_rounds
            or sorted(bounds) != bounds
        ):
            raise ScheduleError(
                f"{self.name}: got phases {self.phases}, expected them to tile {self.num_rounds} rounds"
            )

    @property
    def num_rounds(self) -> int:
        """Number of rounds."""
        return len(self.offsets) - 1

    @property
    def num_transfers(self) -> int:
        """Number of transfers in all rounds."""
        return len(self.src)

    def __repr__(self) -> str:
        size = f"{self.num_rounds} rounds, {self.num_chunks} chunks, {self.num_transfers} transfers"
        return f"CollectiveSchedule({self.name}, {size})"

    def _repr_svg_(self) -> str | None:
        """What notebooks show: the drawing, None where there is too much to draw."""
        if self.num_transfers > MAX_DRAWN:
            return None
        # By name: it needs this module.
        svg: str = import_module("lanterne.collectives.schedule.draw").draw_svg(self)
        return svg

    @property
    def name(self) -> str:
        """How messages call this schedule: "ring_all_reduce(world_size=8)"."""
        labels = "".join(
            f", {key}={getattr(self, key)}" for key in ("root", "late_rank") if getattr(self, key) is not None
        )
        return f"{self.algorithm}_{self.collective}(world_size={self.world_size}{labels})"

    def transfer(self, index: int) -> Transfer:
        """Transfer number `index`, counted from the first round on."""
        return Transfer(*(int(column[index]) for column in (self.src, self.dst, self.chunk, self.op)))

    def round(self, index: int) -> tuple[Transfer, ...]:
        """The transfers of round `index`, as a tuple of Transfer."""
        return tuple(self.transfer(i) for i in range(self.offsets[index], self.offsets[index + 1]))

    @property
    def rounds(self) -> Iterator[tuple[Transfer, ...]]:
        """The rounds, each a tuple of Transfer: for people and tests, slow for a million transfers."""
        return (self.round(index) for index in range(self.num_rounds))

    def columns(self, index: int) -> tuple[Column, Column, Column, Column]:
        """(src, dst, chunk, op) of round `index`: int32 views."""
        part = slice(self.offsets[index], self.offsets[index + 1])
        return self.src[part], self.dst[part], self.chunk[part], self.op[part]

    @cached_property
    def fingerprint(self) -> str:
        """Hexadecimal digest of everything that two ranks must agree on to run this schedule together."""
        digest = hashlib.blake2b(repr(self._labels()).encode(), digest_size=16)
        for column in (self.src, self.dst, self.chunk, self.op, self.offsets):
            digest.update(column.tobytes())
        return digest.hexdigest()

    def _labels(self) -> tuple[Any, ...]:
        names = "collective algorithm world_size num_chunks phases root late_rank ports note"
        return (*(getattr(self, name) for name in names.split()), *self.joins)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CollectiveSchedule):
            return NotImplemented
        return self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


def distinct(*ranks: Ints) -> Ints:
    """The distinct ones of all, ascending.

    As np.union1d has it, which would import NumPy's masked arrays first: 20 ms of a job's start.
    """
    return np.unique(np.concatenate(ranks), return_counts=True)[0]


class ScheduleBuilder:
    """Collects rounds and makes the schedule of them.

    Args:
        rank_of: (world_size,) ranks by role, for algorithms written in roles; None where a role is its rank.
        root, late_rank, ports, note, joins: of the schedule.
        only: keep the transfers that this rank takes part in, and no others.
    """

    def __init__(
        self,
        collective: str,
        algorithm: str,
        world_size: int,
        num_chunks: int,
        *,
        rank_of: Ints | None = None,
        root: int | None = None,
        late_rank: LateRank = None,
        ports: int = 1,
        note: str = "",
        joins: tuple[tuple[int, int], ...] = (),
        only: int | None = None,
    ):
        self._only = only
        self._head = (collective, algorithm, world_size, num_chunks)
        self._rank_of: Ints = np.arange(world_size) if rank_of is None else np.asarray(rank_of)
        self._labels: tuple[Any, ...] = (root, late_rank, ports, note, joins)
        self._columns: tuple[list[NDArray[np.integer[Any]]], ...] = ([], [], [], [])
        self._sizes: list[int] = []
        self._phases: list[tuple[str, int]] = []

    def phase(self, name: str) -> None:
        """Start phase `name`: the rounds that follow are in it."""
        self._phases.append((name, len(self._sizes)))

    def round(self, *groups: Group) -> None:
        """Append one round of (src, dst, chunk, op) groups; each entry an int or an array, broadcast together."""
        size = 0
        for group in groups:
            src, dst, chunk, op = (values.reshape(-1) for values in np.broadcast_arrays(*group))
            size += self._append(self._rank_of[src], self._rank_of[dst], chunk, op).size
        self._sizes.append(size)

    def rounds(self, index: Entry, src: Entry, dst: Entry, chunk: Entry, op: Entry, count: int | None = None) -> None:
        """Append as many rounds as `index` counts: transfer i goes into round index[i] of them, in listed order.

        Args:
            index, src, dst, chunk, op: ints or arrays, broadcast together; index from 0.
            count: so many rounds, of which the last may be empty.
        """
        index, *columns = (values.reshape(-1) for values in np.broadcast_arrays(index, src, dst, chunk, op))
        order = np.argsort(index, kind="stable")
        src, dst, chunk, op = (values[order] for values in columns)
        kept = self._append(self._rank_of[src], self._rank_of[dst], chunk, op)
        rounds = (int(index.max()) + 1 if index.size else 0) if count is None else count
        self._sizes += np.bincount(index[order][kept], minlength=rounds).tolist()

    def _append(self, src: Ints, dst: Ints, chunk: NDArray[np.integer[Any]], op: NDArray[np.integer[Any]]) -> Ints:
        """Append transfers, or those of them that are kept; the indices of these."""
        kept = np.arange(src.size) if self._only is None else np.flatnonzero((src == self._only) | (dst == self._only))
        for column, values in zip(self._columns, (src, dst, chunk, op), strict=True):
            column.append(values[kept])
        return kept

    def mine(self, size: int) -> Ints:
        """(k,) those of the first `size` roles whose transfers are kept: all, or that of `only`, if it is one of them.

        So a generator makes the transfers of these alone, instead of all that would be dropped.
        """
        roles = np.arange(size)
        return roles if self._only is None else roles[self._rank_of[:size] == self._only]

    def build(self) -> CollectiveSchedule:
        """The CollectiveSchedule of the rounds so far."""
        starts = [start for _, start in self._phases]
        stops = [*starts[1:], len(self._sizes)]
        phases = tuple(Phase(name, start, stop) for (name, start), stop in zip(self._phases, stops, strict=False))
        if not starts and self._sizes:
            phases = (Phase("main", 0, len(self._sizes)),)
        src, dst, chunk, op = (
            np.concatenate(column, dtype=np.int32) if column else np.zeros(0, np.int32) for column in self._columns
        )
        offsets = np.concatenate([[0], np.cumsum(self._sizes, dtype=np.int64)])
        return CollectiveSchedule(*self._head, src, dst, chunk, op, offsets, phases, *self._labels)


def late_set(late_rank: LateRank) -> tuple[int, ...]:
    """The ranks that a schedule's `late_rank` names: a tuple, empty for None."""
    if late_rank is None:
        return ()
    return tuple(sorted(late_rank)) if isinstance(late_rank, tuple) else (late_rank,)


def late_builder(
    algorithm: str,
    world_size: int,
    num_chunks: int,
    late_rank: LateRank,
    *,
    ports: int = 1,
    note: str = "",
    only: int | None = None,
) -> ScheduleBuilder:
    """A ScheduleBuilder of an all-reduce in roles: the last roles are the late ranks, the others keep their order."""
    late = late_set(late_rank)
    rank_of = np.array([*(rank for rank in range(world_size) if rank not in late), *late])
    return ScheduleBuilder(
        "all_reduce",
        algorithm,
        world_size,
        num_chunks,
        rank_of=rank_of,
        late_rank=late_rank,
        ports=ports,
        note=note,
        only=only,
    )
