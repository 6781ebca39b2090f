"""What each collective promises: where every part of the data starts and where its result must end.

The chunks of a schedule fall into equal *parts*, in order; a part is what the user's buffers are made of. A part starts
either on every rank (each with its own contribution, to be summed) or on one rank, and its result ends on every rank or
on one:

    collective      parts          starts at        ends at
    all_reduce      1              every rank       every rank
    reduce          1              every rank       root
    reduce_scatter  p              every rank       rank `part`
    broadcast       1              root             every rank
    all_gather      p              rank `part`      every rank
    all_to_all      p * p          rank part // p   rank part % p
    gather          p              rank `part`      root
    scatter         p              root             rank `part`
    scan, exscan    1              every rank       every rank, of which rank r wants the sum of those up to, before r
    barrier         p, no bytes    rank `part`      every rank

One rule maps chunks to buffers: the input array of a rank is the concatenation, in index order, of the chunks that
start at it; its output array is the concatenation of the chunks that end at it (see `chunk_layout.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lanterne.collectives.schedule.ir import CollectiveSchedule, Ints
from lanterne.errors import ScheduleError

EVERY = -1
# From numbers of parts, p and root to the rank of each.
Place: TypeAlias = Callable[[Ints, int, int | None], Ints]


@dataclass(frozen=True)
class Contract:
    """Pre- and postcondition of a collective.

    Attributes: `name`; `parts`: p -> number of parts; `starts_at`, `ends_at`: (part, p, root) -> rank or EVERY,
    vectorised over `part`; `buffer_parts`: p -> parts in the larger of a rank's two arrays; `rooted`; `prefix`: where
    the result of rank r is of the first r + prefix ranks only, else None: of all.
    """

    name: str
    parts: Callable[[int], int]
    starts_at: Place
    ends_at: Place
    buffer_parts: Callable[[int], int]
    rooted: bool = False
    prefix: int | None = None

    @property
    def reduces(self) -> bool:
        """True if contributions are summed."""
        return self.starts_at is _every


def _one(p: int) -> int:
    return 1


def _p(p: int) -> int:
    return p


def _every(part: Ints, p: int, root: int | None) -> Ints:
    return part * 0 + EVERY


def _root(part: Ints, p: int, root: int | None) -> Ints:
    assert root is not None
    return part * 0 + root


def _part(part: Ints, p: int, root: int | None) -> Ints:
    return part


CONTRACTS: dict[str, Contract] = {
    contract.name: contract
    for contract in (
        Contract("all_reduce", _one, _every, _every, _one),
        Contract("reduce", _one, _every, _root, _one, rooted=True),
        Contract("reduce_scatter", _p, _every, _part, _p),
        Contract("broadcast", _one, _root, _every, _one, rooted=True),
        Contract("all_gather", _p, _part, _every, _p),
        Contract("all_to_all", lambda p: p * p, lambda part, p, root: part // p, lambda part, p, root: part % p, _p),
        Contract("gather", _p, _part, _root, _p, rooted=True),
        Contract("scatter", _p, _root, _part, _p, rooted=True),
        Contract("scan", _one, _every, _every, _one, prefix=1),
        Contract("exscan", _one, _every, _every, _one, prefix=0),
        Contract("barrier", _p, _part, _every, _p),
    )
}


def contract_of(schedule: CollectiveSchedule) -> Contract:
    """The Contract of `schedule`, once its collective, chunk count and root are known to fit it.

    Raises:
        ScheduleError: unknown collective, chunks that do not fill the parts equally, root missing or out of range.
    """
    contract = CONTRACTS.get(schedule.collective)
    if contract is None:
        raise ScheduleError(
            f"{schedule.name}: got collective {schedule.collective!r}, expected one of {', '.join(CONTRACTS)}"
        )
    parts = contract.parts(schedule.world_size)
    if schedule.num_chunks % parts:
        raise ScheduleError(f"{schedule.name}: got {schedule.num_chunks} chunks, expected a multiple of {parts}")
    if contract.rooted and (schedule.root is None or not 0 <= schedule.root < schedule.world_size):
        raise ScheduleError(f"{schedule.name}: got root {schedule.root}, expected 0 to {schedule.world_size - 1}")
    if not contract.rooted and schedule.root is not None:
        raise ScheduleError(f"{schedule.name}: got root {schedule.root}, expected none for {schedule.collective}")
    return contract


def starts_at(schedule: CollectiveSchedule, chunk: NDArray[np.integer[Any]]) -> Ints:
    """Rank at which each of `chunk` (int array) starts, or EVERY."""
    return _ranks(schedule, chunk, CONTRACTS[schedule.collective].starts_at)


def ends_at(schedule: CollectiveSchedule, chunk: NDArray[np.integer[Any]]) -> Ints:
    """Rank at which each of `chunk` (int array) must end, or EVERY."""
    return _ranks(schedule, chunk, CONTRACTS[schedule.collective].ends_at)


def _ranks(schedule: CollectiveSchedule, chunk: NDArray[np.integer[Any]], place: Place) -> Ints:
    pieces = schedule.num_chunks // CONTRACTS[schedule.collective].parts(schedule.world_size)
    return place(np.asarray(chunk, np.int64) // pieces, schedule.world_size, schedule.root)
