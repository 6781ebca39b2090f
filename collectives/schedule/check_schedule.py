"""The one checker: proves a schedule by tracking which ranks' contributions every (rank, chunk) holds.

The rules, in order within a round: (1) ranks, chunks and ops in range; (2) the sender holds something; (3) nothing is
added to nothing; (4) no conflicting writes; (5) at most `ports` messages sent, and received, per rank. Then (6) every
result is exactly what the contract wants, with no contribution added twice (what is overwritten later may be as it
likes); (7) scratch within its bound. The late rank takes part in nothing but the last phases, those named "join". A
rank of `joins` takes part in nothing before its round.
"""

from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.schedule.cells import Cells, Sets
from lanterne.collectives.schedule.contracts import EVERY, Contract, contract_of, ends_at, starts_at
from lanterne.collectives.schedule.ir import COPY, OP_NAMES, REDUCE, CollectiveSchedule, Column, Ints, late_set
from lanterne.errors import ScheduleError

# Of a transfer, from the first round on.
Index: TypeAlias = "int | np.integer[Any]"


@dataclass(frozen=True)
class CheckedSchedule:
    """A schedule that has passed the checker; the only thing that an executor takes. Making one is the check.

    Attributes:
        schedule: the CollectiveSchedule.
        max_scratch_chunks: the bound of rule 7; None for the larger of a rank's two buffers times the larger
            of ports and ceil(log2 p).
        scratch_chunks: chunks that one rank needs besides its buffers, at most: those received to be
            reduced in one round, and those only passed on.

    Raises:
        ScheduleError: naming schedule, round, transfer, rank and chunk.
    """

    schedule: CollectiveSchedule
    max_scratch_chunks: int | None = None
    scratch_chunks: int = field(init=False)

    def __post_init__(self) -> None:
        schedule = self.schedule
        contract = contract_of(schedule)
        check_ranges(schedule)
        check_late_rank(schedule)
        _check_joins(schedule)
        cells = Cells(schedule, contract)
        marks = np.zeros(len(cells.keys), np.int64)
        for index in range(schedule.num_rounds):
            _check_round(schedule, cells, marks, index)
        _check_results(schedule, contract, cells)
        object.__setattr__(self, "scratch_chunks", _scratch_chunks(schedule, cells))
        bound = self.max_scratch_chunks
        if bound is None:
            p = schedule.world_size
            buffer_chunks = schedule.num_chunks // contract.parts(p) * contract.buffer_parts(p)
            bound = buffer_chunks * max(schedule.ports, (p - 1).bit_length())
        if self.scratch_chunks > bound:
            raise ScheduleError(
                f"{schedule.name}: got scratch of {self.scratch_chunks} chunks on a rank, expected at most {bound}"
            )


def check(schedule: CollectiveSchedule, max_scratch_chunks: int | None = None) -> CheckedSchedule:
    """Prove `schedule` and return it as a CheckedSchedule.

    Raises:
        ScheduleError: naming schedule, round, transfer, rank and chunk.
    """
    return CheckedSchedule(schedule, max_scratch_chunks)


def _fail(schedule: CollectiveSchedule, transfer: Index, reason: str) -> NoReturn:
    round_index = int(np.searchsorted(schedule.offsets, transfer, side="right")) - 1
    raise ScheduleError(f"{schedule.name}: round {round_index}, transfer {schedule.transfer(int(transfer))}: {reason}")


def _first(mask: NDArray[np.bool_]) -> int:
    return int(np.argmax(mask))


def _nonempty(sets: Sets) -> NDArray[np.bool_]:
    return np.logical_or.reduce(sets, axis=1)


def check_ranges(schedule: CollectiveSchedule) -> None:
    """Rule 1, and that late ranks and ports are such."""
    p, m = schedule.world_size, schedule.num_chunks
    for column, limit, what in (
        (schedule.src, p, "sending rank"),
        (schedule.dst, p, "receiving rank"),
        (schedule.chunk, m, "chunk"),
        (schedule.op, len(OP_NAMES), "op"),
    ):
        wrong = (column < 0) | (column >= limit)
        if wrong.any():
            at = _first(wrong)
            _fail(schedule, at, f"got {what} {column[at]}, expected 0 to {limit - 1}")
    wrong = schedule.src == schedule.dst
    if wrong.any():
        _fail(schedule, _first(wrong), "a rank sends to itself")
    for rank in late_set(schedule.late_rank):
        if not 0 <= rank < p:
            raise ScheduleError(f"{schedule.name}: got late rank {rank}, expected 0 to {p - 1}")
    if schedule.ports < 1:
        raise ScheduleError(f"{schedule.name}: got {schedule.ports} ports, expected 1 or more")


def check_late_rank(schedule: CollectiveSchedule) -> None:
    """The late rank takes part in nothing but the last phases, named "join"."""
    if schedule.late_rank is None:
        return
    joins = [phase.name == "join" for phase in schedule.phases]
    if sorted(joins) != joins:
        raise ScheduleError(
            f"{schedule.name}: got phase {schedule.phases[-1].name!r} after a join, expected joins last"
        )
    first_join = next((phase.start for phase in schedule.phases if phase.name == "join"), schedule.num_rounds)
    early = slice(0, schedule.offsets[first_join])
    for rank in late_set(schedule.late_rank):
        wrong = (schedule.src[early] == rank) | (schedule.dst[early] == rank)
        if wrong.any():
            _fail(schedule, _first(wrong), f"late rank {rank} takes part before the join")


def _check_joins(schedule: CollectiveSchedule) -> None:
    """A rank takes part in nothing before the round of `joins` that it joins in."""
    for rank, first in schedule.joins:
        if not 0 <= rank < schedule.world_size or not 0 <= first <= schedule.num_rounds:
            expected = f"expected ranks below {schedule.world_size} and rounds up to {schedule.num_rounds}"
            raise ScheduleError(f"{schedule.name}: got rank {rank} joining in round {first}, {expected}")
        early = slice(0, schedule.offsets[first])
        wrong = (schedule.src[early] == rank) | (schedule.dst[early] == rank)
        if wrong.any():
            _fail(schedule, _first(wrong), f"rank {rank} takes part before round {first}, in which it joins")


def _check_round(schedule: CollectiveSchedule, cells: Cells, marks: Ints, index: int) -> None:
    """Check one round and bring `cells` up to date. `marks`: int64 scratch, one per cell."""
    start, stop = schedule.offsets[index : index + 2]
    src, dst, op = cells.src[start:stop], cells.dst[start:stop], schedule.op[start:stop]
    read = cells.sets[src]
    spoilt = None if cells.spoilt is None else cells.spoilt[src]
    empty = ~_nonempty(read)
    if empty.any():
        at = start + _first(empty)
        _fail(schedule, at, f"rank {schedule.src[at]} holds nothing of chunk {schedule.chunk[at]} to send")
    copies = np.flatnonzero(op == COPY)
    layers = _layers(dst, marks)
    for layer in layers:
        _reduce(schedule, cells, start, layer[op[layer] == REDUCE], dst, read, spoilt)
    if len(layers) > 1 and len(copies):
        _check_single_writes(schedule, start, dst, op, layers)
    cells.sets[dst[copies]] = read[copies]
    if cells.spoilt is not None:
        cells.spoilt[dst[copies]] = -1 if spoilt is None else spoilt[copies]
    _check_ports(schedule, start, stop)


def _layers(dst: Ints, marks: Ints) -> list[Ints]:
    """Positions of a round's transfers in groups: the first into each cell, the second into each cell, and so on."""
    count = len(dst)
    positions = np.arange(count)
    marks[dst] = positions
    if (marks[dst] == positions).all():
        return [positions]
    order = np.argsort(dst, kind="stable")
    new_cell = np.r_[True, dst[order][1:] != dst[order][:-1]]
    depth = np.arange(count) - np.maximum.accumulate(np.where(new_cell, np.arange(count), 0))
    by_depth = np.argsort(depth, kind="stable")
    return np.split(order[by_depth], np.flatnonzero(np.diff(depth[by_depth])) + 1)


def _reduce(
    schedule: CollectiveSchedule,
    cells: Cells,
    start: Index,
    positions: Ints,
    dst: Ints,
    read: Sets,
    spoilt: Ints | None,
) -> None:
    if not len(positions):
        return
    to, added = dst[positions], read[positions]
    held = cells.sets[to]
    nothing = ~_nonempty(held)
    if nothing.any():
        at = start + positions[nothing].min()
        _fail(schedule, at, f"rank {schedule.dst[at]} holds nothing of chunk {schedule.chunk[at]} to add to")
    twice = _nonempty(held & added)
    if twice.any():
        cells.spoil(to[twice], start + positions[twice], (held & added)[twice])
    if spoilt is not None and cells.spoilt is not None:
        cells.spoilt[to] = np.where(cells.spoilt[to] < 0, spoilt[positions], cells.spoilt[to])
    cells.sets[to] = held | added


def _check_single_writes(schedule: CollectiveSchedule, start: Index, dst: Ints, op: Column, layers: list[Ints]) -> None:
    repeated = np.concatenate(layers[1:])
    crowded = np.isin(dst, dst[repeated])
    copied = np.isin(dst, dst[(op == COPY) & crowded])
    wrong = np.sort(repeated[copied[repeated]])
    if len(wrong):
        at = start + wrong[0]
        _fail(
            schedule,
            at,
            f"rank {schedule.dst[at]} is written twice in chunk {schedule.chunk[at]}, expected one copy or reduces",
        )


def _check_ports(schedule: CollectiveSchedule, start: Index, stop: Index) -> None:
    src, dst = schedule.src[start:stop], schedule.dst[start:stop]
    if stop == start or max(np.bincount(src).max(), np.bincount(dst).max()) <= schedule.ports:
        return
    messages, firsts = np.unique(src.astype(np.int64) * schedule.world_size + dst, return_index=True)
    senders, receivers = np.divmod(messages, schedule.world_size)
    for ranks, verb in ((senders, "sends"), (receivers, "receives")):
        load = np.bincount(ranks)
        rank = int(load.argmax())
        if load[rank] > schedule.ports:
            at = start + np.sort(firsts[ranks == rank])[schedule.ports]
            _fail(schedule, at, f"rank {rank} {verb} {load[rank]} messages, expected at most {schedule.ports}")


def _check_results(schedule: CollectiveSchedule, contract: Contract, cells: Cells) -> None:
    wanted = (cells.ends == EVERY) | (cells.ends == cells.rank)
    if cells.spoilt is not None:
        _check_spoilt(schedule, cells, cells.spoilt[wanted])
    full = np.broadcast_to(cells.full, cells.sets.shape)
    # Of an exclusive scan rank 0 wants nothing.
    wrong = wanted & (cells.sets != full).any(axis=1) & full.any(axis=1)
    if wrong.any():
        at = _first(wrong)
        if contract.reduces:
            lacking, extra = full[at] & ~cells.sets[at], cells.sets[at] & ~full[at]
            named = cells.contributors(at, lacking if lacking.any() else extra)
            names = ", ".join(map(str, named[:8])) + (", ..." if len(named) > 8 else "")
            reason = f"{'lacks' if lacking.any() else 'also has'} the contribution of rank {names}"
        else:
            reason = f"holds nothing, expected what rank {cells.starts[at]} had"
        raise ScheduleError(f"{schedule.name}: at the end rank {cells.rank[at]} chunk {cells.chunk[at]} {reason}")
    _check_untouched(schedule, contract, cells)


def _check_spoilt(schedule: CollectiveSchedule, cells: Cells, spoilt: Ints) -> None:
    """Raise if a result holds a contribution twice: `spoilt` of the wanted cells."""
    transfers = spoilt[spoilt >= 0]
    if not len(transfers):
        return
    at = int(transfers.min())
    common = next(twice[found == at][0] for found, twice in cells.doubled if (found == at).any())
    rank = cells.contributors(int(cells.dst[at]), common)[0]
    _fail(schedule, at, f"rank {schedule.dst[at]} already contains rank {rank}'s contribution")


def _check_untouched(schedule: CollectiveSchedule, contract: Contract, cells: Cells) -> None:
    """Raise if a wanted cell that no transfer touches does not hold its result from the start."""
    p, m = schedule.world_size, schedule.num_chunks
    if p == 1:
        return
    chunks = np.arange(m, dtype=np.int64)
    ends = ends_at(schedule, chunks)
    starts = starts_at(schedule, chunks)
    touched = np.bincount(cells.chunk[(cells.ends == EVERY) | (cells.ends == cells.rank)], minlength=m)
    wanted = np.where(ends == EVERY, p, 1)
    if not contract.reduces:
        # The one rank that has the chunk from the start need not be touched to end with it.
        home = np.isin(starts * m + chunks, cells.keys, assume_unique=True)
        wanted = wanted - (~home & ((ends == EVERY) | (ends == starts)))
    short = np.flatnonzero(touched < wanted)
    if not len(short):
        return
    chunk = int(short[0])
    at_ranks = range(p) if ends[chunk] == EVERY else [int(ends[chunk])]
    present = set(cells.rank[cells.chunk == chunk].tolist())
    rank = next(r for r in at_ranks if r not in present and (contract.reduces or r != starts[chunk]))
    raise ScheduleError(
        f"{schedule.name}: at the end rank {rank} chunk {chunk} lacks its result: no transfer reaches it"
    )


def _scratch_chunks(schedule: CollectiveSchedule, cells: Cells) -> int:
    """Chunks of scratch that the neediest rank uses: passed on, plus received to be reduced in one round."""
    p = schedule.world_size
    own = (cells.starts == EVERY) | (cells.starts == cells.rank) | (cells.ends == EVERY) | (cells.ends == cells.rank)
    passed_on = np.bincount(cells.rank[~own], minlength=p)
    added = np.flatnonzero(schedule.op == REDUCE)
    if not len(added):
        return int(passed_on.max())
    round_of = np.searchsorted(schedule.offsets, added, side="right") - 1
    pairs, counts = np.unique(round_of * p + schedule.dst[added], return_counts=True)
    peak = np.zeros(p, np.int64)
    np.maximum.at(peak, pairs % p, counts)
    return int((passed_on + peak).max())
